"""What is noted of how a result was made."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from albert_core.stage import provenance
from albert_core.stage.command import run_command_line
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import code_commit, machine
from albert_core.stage.settings import Settings
from tests.albert_core.stage.test_command import own_logging


class ShapeSettings(Settings):
    """Settings of the stage."""

    size: int = 3
    name: str = "round"


def run(shape: ShapeSettings, old_corpus: str, work: str, mode: str = "all") -> str:
    """Write a manifest, and nothing else."""
    return StagePlan("corpus", shape.model_dump(), {}, "code", {}).write(work, [], [], {})


@pytest.fixture(autouse=True)
def ask_git_anew() -> Iterator[None]:
    code_commit.cache_clear()
    yield
    code_commit.cache_clear()


def test_a_stage_that_is_called_by_its_command_line_notes_the_call(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"shape": {"size": 7}, "other": {"x": 1}}))
    argv = [f"--recipe={recipe}", "--old-corpus=s3://x/y", f"--work={tmp_path}"]
    with own_logging():
        assert run_command_line(run, argv) == 0
    [uri] = tmp_path.rglob("manifest.json")
    made_by = read_manifest(str(uri)).provenance
    assert made_by is not None
    assert made_by.call is not None
    assert made_by.call.module == __name__
    assert made_by.call.recipe == {"shape": {"size": 7, "name": "round"}}
    assert made_by.call.options == {"old_corpus": "s3://x/y", "mode": "all"}


def test_a_stage_that_is_called_as_a_function_notes_no_call(tmp_path: Path) -> None:
    made_by = read_manifest(run(ShapeSettings(), "", str(tmp_path))).provenance
    assert made_by is not None
    assert made_by.call is None


def test_the_commit_is_gits_or_where_there_is_no_checkout_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(provenance.__file__).parents[2]
    if (root / ".git").exists():
        commit, _ = code_commit()
        assert len(commit) == 40
        code_commit.cache_clear()
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    monkeypatch.setenv("ALBERT_COMMIT", "abc123")
    assert code_commit() == ("abc123", False)
    code_commit.cache_clear()
    monkeypatch.delenv("ALBERT_COMMIT")
    assert code_commit() == ("", False)


def test_a_checkout_around_an_installation_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m x"):
        assert os.system(f"git -C {tmp_path} {arguments}") == 0
    monkeypatch.delenv("ALBERT_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    assert len(code_commit()[0]) == 40
    code_commit.cache_clear()
    (tmp_path / "changed").touch()
    assert code_commit()[1]
    code_commit.cache_clear()
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(provenance, "_ROOT", tmp_path / "site-packages")
    assert code_commit() == ("", False)


def test_ranks_and_threads_are_those_of_the_environment() -> None:
    found = machine({"WORLD_SIZE": "4", "OMP_NUM_THREADS": "2"})
    assert (found["ranks"], found["threads"]) == (4, 2)
    found = machine({})
    assert (found["ranks"], found["threads"]) == (1, 0)
    assert found["cpu"]


def test_what_is_noted_is_no_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(ShapeSettings(), "", str(tmp_path / "a"))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    second = run(ShapeSettings(), "", str(tmp_path / "b"))
    one, two = read_manifest(first), read_manifest(second)
    assert one.provenance != two.provenance
    assert one.key == two.key
    assert one.content == two.content
