import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import Field

from albert_core.stage.command import (
    FAILURE,
    FAILURE_STATUS,
    RESULT,
    run_command_line,
    stage_argv,
    worker_count,
)
from albert_core.stage.errors import ConfigError, SourceError
from albert_core.stage.settings import Settings

PROJECT = Path(__file__).parents[3]


class SourceSettings(Settings):
    """Settings of the stage."""

    uri: str
    num_files: int = Field(default=3, ge=1)


def run(source: SourceSettings, old_corpus: str, work: str, mode: str = "all") -> str:
    """Count the files: 100 % of them."""
    logging.getLogger("stage").info("reading %s", source.uri)
    if source.uri == "nothing":
        raise SourceError("source 'nothing' has no file. Give another.")
    if source.uri == "defect":
        raise ZeroDivisionError("a defect")
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
        return run_command_line(
            run, [f"--recipe={recipe_uri}", "--old-corpus=c", "--work=w", *more]
        )


def failure(recipe_uri: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the stage, which fails with a message and nothing else; return the message."""
    assert main(recipe_uri) == FAILURE_STATUS == 2
    output, errors = capsys.readouterr()
    assert RESULT not in output
    assert errors.startswith(FAILURE)
    assert "Traceback" not in errors
    return errors.removeprefix(FAILURE)


def test_the_last_line_is_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(recipe(tmp_path, {"source": {"uri": "/data", "num_files": 5}})) == 0
    assert capsys.readouterr().out.splitlines() == [
        "reading /data",
        "manifest: w/c/all/5/manifest.json",
    ]


def test_an_option_with_a_default_may_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(recipe(tmp_path, {"source": {"uri": "/data"}}), "--mode=some")
    assert capsys.readouterr().out.endswith("manifest: w/c/some/3/manifest.json\n")


def test_other_sections_of_the_recipe_are_no_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(recipe(tmp_path, {"name": "tiny", "source": {"uri": "/data"}, "model": {"x": 1}}))
    assert RESULT in capsys.readouterr().out


def test_an_error_of_the_user_is_one_message_and_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failure(recipe(tmp_path, {"source": {"uri": "nothing"}}), capsys)
    assert message == "source 'nothing' has no file. Give another.\n"


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
    ],
)
def test_a_mistake_in_the_recipe_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, expected: str
) -> None:
    assert expected in failure(recipe(tmp_path, content), capsys)


def test_a_missing_recipe_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = failure(str(tmp_path / "none.json"), capsys)
    assert "none.json' is missing: give --recipe a resolved recipe" in message
    assert "'' is missing: give --recipe a resolved recipe" in failure("", capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--recipe, --old-corpus, --work"),
        (["--recipe=r", "--old-corpus=c", "--work=w", "--wrong=1"], "--wrong=1"),
    ],
)
def test_a_wrong_command_line_says_how_the_stage_is_called(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    with own_logging(), pytest.raises(SystemExit) as caught:
        run_command_line(run, arguments)
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert f"usage: python -m {__name__}" in errors
    assert expected in errors


def test_help_shows_what_the_stage_does(capsys: pytest.CaptureFixture[str]) -> None:
    with own_logging(), pytest.raises(SystemExit) as caught:
        run_command_line(run, ["--help"])
    assert caught.value.code == 0
    assert "Count the files: 100 % of them." in capsys.readouterr().out


def test_the_command_line_that_is_logged_runs_the_stage() -> None:
    argv = stage_argv("pipelines.train_vocab", "r.json", old_corpus="c.json", work="/w")
    assert argv == [
        *[sys.executable, "-m", "pipelines.train_vocab"],
        *["--recipe=r.json", "--old-corpus=c.json", "--work=/w"],
    ]


def test_a_stage_in_its_own_process_ends_with_its_status(tmp_path: Path) -> None:
    argv = stage_argv(
        "pipelines.clean_corpus",
        recipe(tmp_path, {"source": {"uri": str(tmp_path / "none")}}),
        work=str(tmp_path / "work"),
    )
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == FAILURE_STATUS
    assert done.stderr.startswith(f"error: source '{tmp_path}/none' has no file")
    assert not (tmp_path / "work").exists()


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
    argv = [
        sys.executable,
        "-c",
        LEFT_RUNNING,
        f"--recipe={recipe(tmp_path, {})}",
        f"--mode={mode}",
    ]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert said in done.stderr
    assert (RESULT in done.stdout) == (status == 0)


@pytest.mark.parametrize("text", ["1", "16"])
def test_the_number_of_workers_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", text)
    assert worker_count() == int(text)


def test_without_it_there_is_a_worker_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALBERT_WORKERS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert worker_count() == 3


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²"])
def test_a_number_of_workers_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", text)
    with pytest.raises(ConfigError, match=r"ALBERT_WORKERS=.* must be a whole number"):
        worker_count()
