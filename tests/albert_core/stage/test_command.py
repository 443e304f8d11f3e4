import errno
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import Field

from albert_core.stage import command, lock, settings
from albert_core.stage.errors import (
    ConfigError,
    RegistryError,
    SourceError,
    StageError,
    TrainingError,
)
from albert_core.stage.log import is_json, read_line
from flows.stage_process import run_stage_process

PROJECT = Path(__file__).parents[3]


class SourceSettings(settings.Settings):
    """Settings of the stage."""

    uri: str
    num_files: int = Field(default=3, ge=1)


def run(source: SourceSettings, old_corpus: str, work: str, mode: str = "all") -> str:
    """Count the files: 100 % of them."""
    logging.getLogger("stage").info("reading %s", source.uri)
    match source.uri:
        case "nothing":
            raise SourceError("source 'nothing' has no file. Give another.")
        case "defect":
            raise ZeroDivisionError("a defect")
        case "refused":
            raise ConnectionRefusedError("Connection refused")
        case "deleted":
            lock.take(work, "stage-1", lambda: False)
            shutil.rmtree(work)
            raise FileNotFoundError(2, "No such file or directory", f"{work}/unit.json")
        case "full":
            raise TrainingError("no checkpoint") from OSError(errno.ENOSPC, "No space left")
        case "registry":
            raise RegistryError("no answer") from ConnectionRefusedError("Connection refused")
    return f"{work}/{old_corpus}/{mode}/{source.num_files}/manifest.json"


@contextmanager
def own_logging() -> Iterator[None]:
    """Give the root logger handlers and a level of its own, and pytest's back afterwards."""
    handlers, level = logging.root.handlers, logging.root.level
    beam = logging.getLogger("apache_beam")
    beam_level = beam.level
    logging.root.handlers = []
    try:
        yield
    finally:
        logging.root.handlers = handlers
        logging.root.setLevel(level)
        beam.setLevel(beam_level)


def recipe(folder: Path, content: object) -> str:
    path = folder / "recipe.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def main(recipe_uri: str, *more: str) -> int:
    with own_logging():
        return command.run_command_line(
            run, [f"--recipe={recipe_uri}", "--old-corpus=c", "--work=w", *more]
        )


def failure(recipe_uri: str, capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """Run the stage, which fails with a message and nothing else; return the message."""
    assert main(recipe_uri) == status
    output, errors = capsys.readouterr()
    assert command.RESULT not in output
    assert errors.startswith(command.FAILURE)
    assert "Traceback" not in errors
    return errors.removeprefix(command.FAILURE)


@pytest.mark.parametrize(
    ("content", "options", "manifest"),
    [
        ({"source": {"uri": "/data", "num_files": 5}}, [], "w/c/all/5/manifest.json"),
        (
            {"name": "tiny", "source": {"uri": "/data"}, "model": {"x": 1}},
            ["--mode=some"],
            "w/c/some/3/manifest.json",
        ),
    ],
)
def test_the_last_line_is_the_manifest_made_by_the_options_and_own_sections_of_the_recipe(
    content: object,
    options: list[str],
    manifest: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(recipe(tmp_path, content), *options) == 0
    assert capsys.readouterr().out.splitlines() == ["reading /data", f"manifest: {manifest}"]


@pytest.mark.parametrize(
    ("uri", "status", "expected"),
    [
        ("nothing", command.FAILURE_STATUS, "source 'nothing' has no file. Give another.\n"),
        ("full", command.SYSTEM_STATUS, "no checkpoint\n"),
        ("registry", command.RUN_AGAIN_STATUS, "no answer\n"),
        (
            "refused",
            command.RUN_AGAIN_STATUS,
            "a server or store is unavailable (ConnectionRefusedError: Connection refused)\n",
        ),
    ],
)
def test_an_error_of_the_user_or_a_disk_and_an_outage_are_one_message_and_a_status(
    uri: str, status: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (command.FAILURE_STATUS, command.SYSTEM_STATUS, command.RUN_AGAIN_STATUS) == (2, 71, 75)
    assert failure(recipe(tmp_path, {"source": {"uri": uri}}), capsys, status) == expected


def test_a_work_folder_that_was_deleted_meanwhile_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failure(recipe(tmp_path, {"source": {"uri": "deleted"}}), capsys)
    assert "claims/stage-1 was deleted, perhaps with the whole work folder" in message


def test_a_defect_is_not_dressed_as_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        main(recipe(tmp_path, {"source": {"uri": "defect"}}))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"source": {"uri": "/data", "files": 5}}, "section source: unknown setting 'files'"),
        ({"source": {"uri": "/data", "num_files": 0}}, "section source: num_files: Input should"),
        ({}, "section source: setting 'uri' is missing"),
        ({"source": "/data"}, "section source"),
        ("{broken", "recipe.json"),
        ("[]", "recipe.json"),
        (None, "none.json' is missing: give --recipe a resolved recipe"),
    ],
)
def test_a_mistake_in_the_recipe_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, expected: str
) -> None:
    uri = f"{tmp_path}/none.json" if content is None else recipe(tmp_path, content)
    assert expected in failure(uri, capsys)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ([], 2, "--recipe, --old-corpus, --work"),
        (["--recipe=r", "--old-corpus=c", "--work=w", "--wrong=1"], 2, "--wrong=1"),
        (["--help"], 0, "Count the files: 100 % of them."),
    ],
)
def test_help_and_a_wrong_command_line_say_how_the_stage_is_called(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, expected: str
) -> None:
    with own_logging(), pytest.raises(SystemExit) as caught:
        command.run_command_line(run, arguments)
    assert caught.value.code == status
    said = "".join(capsys.readouterr())
    assert f"usage: python -m {__name__}" in said
    assert expected in said


LEFT_RUNNING = """
import sys, threading, time
from albert_core.stage.command import stage_main

def run(mode: str) -> str:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return str(1 / (mode == "well"))

stage_main(run)
"""


@pytest.mark.parametrize(("mode", "status", "said"), [("well", 0, ""), ("ill", 1, "ZeroDivision")])
def test_a_thread_left_running_does_not_keep_a_stage_from_its_end(
    tmp_path: Path, mode: str, status: int, said: str
) -> None:
    options = [f"--recipe={recipe(tmp_path, {})}", f"--mode={mode}"]
    argv = [sys.executable, "-c", LEFT_RUNNING, *options]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert said in done.stderr
    assert (command.RESULT in done.stdout) == (status == 0)


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
