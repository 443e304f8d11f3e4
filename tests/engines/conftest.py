"""The text that real engines are tried on, what one local worker makes of it, and the figures."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.stages import LOCAL, Stages, left_behind
from tests.generated_text import write_jsonl
from tests.pipelines.readers.mixed_folder import ELEMENT, write_folder

_SECONDS: dict[str, dict[str, float]] = {}
"""Engine -> stage -> seconds, for the table at the end."""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe on 24 files of 1 MB, and on files of every kind, some of them broken."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "mixed").mkdir()
    write_folder(folder / "mixed")
    for number in range(24):
        write_jsonl(folder / f"{number}.jsonl", range(number * 550, number * 550 + 550))
    sections = {
        "source": {"uri": str(folder), "xml_element": ELEMENT},
        "cleaning": {"language": "auto"},
        "vocabulary": {"vocab_size": 400, "sample_mb": 2.0},
        "examples": {"max_seq_length": 128, "dupe_factor": 4, "shard_mb": 16.0},
    }
    recipe = folder / ".recipe.json"
    recipe.write_text(json.dumps(sections))
    return recipe


@pytest.fixture(scope="session")
def seconds() -> dict[str, dict[str, float]]:
    """Where tests note how long a stage took on an engine."""
    return _SECONDS


@pytest.fixture(scope="session")
def made_locally(
    recipe: Path, seconds: dict[str, dict[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> Stages:
    """The three stages by one local worker, all in one work folder."""
    stages = Stages(recipe, tmp_path_factory.mktemp("local"), LOCAL)
    stages.make_all()
    seconds["local, 1 worker"] = stages.seconds
    return stages


@pytest.fixture(autouse=True)
def nothing_is_left_behind(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test whose stages left a process or a temporary folder."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield
    assert left_behind(temporary) == []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the stages took."""
    if not _SECONDS:
        return
    terminalreporter.section("seconds of a stage, one run each")
    for engine, by_stage in _SECONDS.items():
        stages = "  ".join(f"{stage} {seconds:5.1f}" for stage, seconds in by_stage.items())
        terminalreporter.line(f"{engine:<40} {stages}")
