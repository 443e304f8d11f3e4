"""Two machines that share a work folder in S3: the one makes the examples, the other trains."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.generated_text import write_jsonl
from tests.s3_server import serve_s3
from tests.test_end_to_end import ALBERT, PROJECT, SMALLER

TEXT_STAGES = ["corpus", "vocab", "examples"]


def run_flow(command: str, source: Path, home: Path, variables: dict[str, str]) -> str:
    options = [f"--set={name}={value}" for name, value in SMALLER.items()]
    done = subprocess.run(
        [ALBERT, command, "--recipe=tiny", *options, f"--source={source}"],
        cwd=PROJECT,
        env={**os.environ, **variables, "PREFECT_API_URL": "", "PREFECT_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_one_machine_refreshed_another_finds_done_and_trains_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_jsonl(source / "text.jsonl", range(120))
    with serve_s3("albert") as store:
        variables = {
            **store,
            "ALBERT_WORK": "s3://albert/work",
            "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        }
        first = run_flow("refresh", source, tmp_path / "cpu", variables)
        second = run_flow("pretrain", source, tmp_path / "gpu", variables)
    for stage in TEXT_STAGES:
        assert f"{stage}: done, wrote s3://albert/work/" in first
        assert f"{stage}: done already (s3://albert/work/" in second
    assert "pretraining: done, wrote s3://albert/work/" in second
    assert re.search(r"model +albert-tiny, version 1", second)
