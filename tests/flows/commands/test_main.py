"""The command `albert` as a whole: what it says of itself, what it loads, how it ends."""

import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from albert_core.stage.errors import OutageError
from albert_core.stage.machine import FINETUNING_PROCESSES
from flows.commands import by_hand
from flows.commands import main as module
from flows.commands.main import app, main
from tests.test_end_to_end import ALBERT, PROJECT

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
HEAVY = {"torch", "apache_beam", "mlflow", "prefect", "transformers"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_described(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[name].help.partition("\n")[0].endswith(".")
    assert main([name, "--help"]) == 0
    assert f"Usage: albert {name}" in capsys.readouterr().out
    for parameter in COMMANDS[name].params:
        assert len(parameter.help) > 10, parameter.name
        assert parameter.help[0].isupper() or parameter.help.startswith("models:/")
        assert parameter.help.endswith("."), parameter.name


@pytest.mark.parametrize("words", [["--help"], ["plan", "--recipe", "base"], ["plan", "--table"]])
def test_help_and_plans_need_neither_docstrings_nor_the_heavy_libraries(
    words: Sequence[str],
) -> None:
    code = (
        "import sys; from flows.commands.main import main; status = main(sys.argv[1:]);"
        f"heavy = {HEAVY} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else status)"
    )
    command = [sys.executable, "-OO", "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["pretrain", "serve"])
def test_a_second_source_is_refused_not_taken_for_the_first(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--source", "one.txt", "--source", "two.txt"]) == 2
    assert "2 addresses were given" in capsys.readouterr().err


def test_services_are_started_with_the_options_that_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, argv: started.append(argv))
    monkeypatch.setattr(os, "environ", {"ALBERT_WORK": "a", "ALBERT_MLFLOW_PORT": "5001"})
    assert main(["serve", "--work=w", "--prefect-port=4201", "--source=my text"]) == 0
    given = {"ALBERT_WORK": "w", "ALBERT_PREFECT_PORT": "4201", "ALBERT_SOURCE": "my text"}
    assert os.environ == {**given, "ALBERT_MLFLOW_PORT": "5001"}
    assert main(["production", "--mlflow-auth", "--artifacts=memory"]) == 0
    given = {"ALBERT_MLFLOW_AUTH": "True", "ALBERT_ARTIFACTS": "memory"}
    assert os.environ.items() >= given.items()
    assert [argv[1:] for argv in started] == [
        ["-P", "-m", "infra.serve"],
        ["-P", "-m", "infra.production"],
    ]


def test_the_demo_fine_tunes_two_models_at_a_time_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        by_hand, "run_flow", lambda *_, **__: told.append(os.environ[FINETUNING_PROCESSES])
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(os, "environ", {})
    assert main(["demo"]) == 0
    monkeypatch.setattr(os, "environ", {FINETUNING_PROCESSES: "1"})
    assert main(["demo"]) == 0
    assert told == ["2", "1"]


def test_what_is_transient_is_status_75_a_mistake_2_and_a_defect_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--hardwear", "l4"]) == 2
    assert "No such option" in capsys.readouterr().err

    def end_with(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(module, "app", fail)

    end_with(OutageError("the store is away"))
    assert main([]) == 75
    assert capsys.readouterr().err == "error: the store is away\n"
    end_with(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "s3://AKIAX:planted4711@bucket/model"],
        ["production", "--artifacts=s3://AKIAX:planted4711@bucket/mlflow"],
        ["serve", "--task-folder", "https://me:planted4711@host/tasks"],
    ],
)
def test_no_command_takes_credentials_which_others_would_see_in_a_list_of_processes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "***@" in said
    assert "planted4711" not in said


def test_the_traceback_of_a_defect_has_no_credentials() -> None:
    lines = [
        "from flows.commands import main",
        "def app(*_, **__): raise ValueError('s3://AKIAX:planted4711@bucket/x')",
        "main.app = app",
        "main.main([])",
    ]
    run = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: s3://***@bucket/x\n")


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_API_URL": ""}
    command = [str(ALBERT), *words, f"--work={folder / 'work'}"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


WRONG = (
    "--set=training.seed=5 --set=examples.max_seq_len=64",
    r"error: --set examples.max_seq_len=64: unknown setting .*did you mean .*max_seq_length'\?\n$",
)
WITHOUT_TEXT = (
    "--recipe=base",
    r"error: there is no text to read: the recipe has no source.uri\. .*--source.*wikipedia-books",
)


@pytest.mark.parametrize(
    ("command", "mistake", "message"),
    [
        *((command, *WRONG) for command in ("pretrain", "refresh", "evaluate models:/a@champion")),
        *((command, *WITHOUT_TEXT) for command in ("pretrain", "refresh")),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    command: str, mistake: str, message: str, tmp_path: Path
) -> None:
    before = children_seconds()
    done = typed(tmp_path, *command.split(), *mistake.split())
    assert children_seconds() - before < 3
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(message, done.stderr, re.DOTALL)
    assert not (tmp_path / "work").exists()


def test_a_deleted_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert main(["models"]) == 2
    assert "working directory was deleted" in capsys.readouterr().err


def children_seconds() -> float:
    """Return the CPU time of all processes that ended: clocks tell of other work too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_source_that_is_not_there_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--source={tmp_path / 'missing.txt'}", f"--work={tmp_path / 'work'}"]
    assert main(["refresh", *words]) == 2
    said, told = capsys.readouterr()
    assert said == ""
    assert told.count("missing.txt") == 1
    assert told.rstrip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in told
    assert not list((tmp_path / "work").rglob("manifest.json"))


def test_what_the_command_writes_is_for_its_owner_only(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0o022)
    try:
        assert main(["--help"]) == 0
    finally:
        assert os.umask(before) == 0o077


@pytest.mark.parametrize(
    ("target", "variable", "value"),
    [
        ("refresh", "SOURCE", 'it\'s $HOME; echo `x` "y"'),
        ("models", "NAME", "it's;`x`$HOME"),
        ("rollback", "NAME", "it's;`x`$HOME"),
    ],
)
def test_make_hands_on_a_value_with_any_sign_as_one_word(
    target: str, variable: str, value: str
) -> None:
    told = subprocess.run(
        ["make", "-n", target, f"{variable}={value.replace('$', '$$')}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT,
    )
    command = next(line for line in told.stdout.splitlines() if f"albert {target}" in line)
    assert value in shlex.split(command)
