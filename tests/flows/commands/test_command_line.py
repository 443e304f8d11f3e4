import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


def run_by_hand(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PREFECT_HOME": str(home / "prefect"), "PREFECT_API_URL": ""}
    command = [sys.executable, "-m", "flows.refresh_corpus", f"--work={home / 'work'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PROJECT)


@pytest.mark.slow
def test_a_mistake_found_by_a_stage_ends_in_one_message(tmp_path: Path) -> None:
    done = run_by_hand(tmp_path, "--source", str(tmp_path / "missing.txt"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("missing.txt") == 1
    assert done.stderr.rstrip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "work").rglob("manifest.json"))


def test_a_mistake_in_the_recipe_is_told_before_anything_is_started(tmp_path: Path) -> None:
    done = run_by_hand(tmp_path, "--set", "examples.max_seq_len=64")
    assert done.returncode == 1
    assert done.stderr.strip().startswith("error: ")
    assert "'examples.max_seq_len'; did you mean 'examples.max_seq_length'?" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "work").exists()
