import json
import logging
import sys
from pathlib import Path

import pytest

from albert_core.stage.errors import ConfigError, StageError
from albert_core.stage.log import is_json, read_line
from flows.stage_process import run_stage_process

STAGE = """
import logging, sys
from albert_core.stage.errors import SourceError
from albert_core.stage.command import stage_main
from albert_core.stage.log import note_ids

def run(how: str) -> str:
    logging.getLogger("corpus").warning("3 %s", "files")
    note_ids(mlflow_run_id="abc")
    note_ids(mlflow_run_id="another")
    logging.getLogger("corpus").info("two\\nlines")
    print("a library's own line")
    if how == "mistake":
        raise SourceError("there is no corpus\\n  in x")
    if how == "defect":
        raise ValueError("a defect")
    return "/work/corpus/1/manifest.json"

stage_main(run)
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "json_stage.py").write_text(STAGE)
    (tmp_path / "recipe.json").write_text("{}")
    monkeypatch.setenv("ALBERT_LOG_FORMAT", "json")
    monkeypatch.setenv("ALBERT_FLOW_RUN", "flow-1")
    return [sys.executable, str(tmp_path / "json_stage.py"), f"--recipe={tmp_path}/recipe.json"]


def test_the_lines_of_a_stage_are_objects_with_the_ids_of_their_runs(stage: list[str]) -> None:
    lines: list[str] = []
    manifest = run_stage_process([*stage, "--how=success"], lines.append)
    assert manifest == "/work/corpus/1/manifest.json"
    first, second = (json.loads(line) for line in lines[:2])
    assert (first["level"], first["message"]) == ("WARNING", "3 files")
    assert (first["flow_run_id"], first["logger"]) == ("flow-1", "corpus")
    assert first["time"].endswith("+00:00")
    assert "mlflow_run_id" not in first
    assert (second["message"], second["mlflow_run_id"]) == ("two\nlines", "abc")
    assert lines[2:] == ["a library's own line"]
    ids = {"stage": second["stage"], "mlflow_run_id": "abc"}
    assert read_line(lines[1]) == (logging.INFO, "two\nlines", ids)


@pytest.mark.parametrize(
    ("how", "message"),
    [("mistake", r"^there is no corpus\n  in x$"), ("defect", "ValueError: a defect")],
)
def test_a_mistake_is_told_by_its_message_and_a_defect_by_its_traceback(
    how: str, message: str, stage: list[str]
) -> None:
    with pytest.raises(StageError, match=message):
        run_stage_process([*stage, f"--how={how}"], lambda _: None)


@pytest.mark.parametrize("line", ["step 1", "{", '{"a": 1}', '{"level": "LOUD", "message": ""}'])
def test_other_lines_are_read_as_they_are(line: str) -> None:
    assert read_line(line) == (logging.INFO, line, {})


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="must be one of text, json"):
        is_json()
