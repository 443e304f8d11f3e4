"""The command `albert` as a whole: what it says of itself, what it loads, how it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import typer

from albert_core.stage.errors import OutageError
from flows.commands import main as module
from flows.commands.main import app, main
from tests.test_end_to_end import ALBERT

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
HEAVY = {"torch", "apache_beam", "mlflow", "prefect", "transformers"}


def parameters() -> Iterator[Any]:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            yield pytest.param(parameter, id=f"{name}-{parameter.name}")


def test_every_command_is_there() -> None:
    assert set(COMMANDS) == {
        *("demo", "pretrain", "refresh", "evaluate", "plan", "models", "promote", "rollback"),
        *("lineage", "trace", "rebuild", "serve", "production"),
        *("audit", "convert", "retention", "send-journals"),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[name].help.partition("\n")[0].endswith(".")
    assert main([name, "--help"]) == 0
    assert f"Usage: albert {name}" in capsys.readouterr().out


@pytest.mark.parametrize("parameter", list(parameters()))
def test_every_option_has_a_description(parameter: Any) -> None:
    assert len(parameter.help) > 10
    assert parameter.help[0].isupper() or parameter.help.startswith("models:/")
    assert parameter.help.endswith(".")


@pytest.mark.parametrize("words", [["--help"], ["plan", "--recipe", "base"], ["plan", "--table"]])
def test_help_and_plans_need_none_of_the_heavy_libraries(words: Sequence[str]) -> None:
    code = (
        "import sys; from flows.commands.main import main; status = main(sys.argv[1:]);"
        f"heavy = {HEAVY} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_wrong_option_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--hardwear", "l4"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_what_passes_is_status_75_and_a_defect_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end_with(error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(module, "app", fail)

    end_with(OutageError("the store is away"))
    assert main([]) == 75
    end_with(ConnectionResetError("by peer"))
    assert main([]) == 75
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: the store is away"
    assert said[1] == "error: a server or store is away (ConnectionResetError: by peer)"
    end_with(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        main([])


@pytest.mark.parametrize("command", ["pretrain", "refresh", "evaluate"])
def test_a_mistake_in_a_setting_is_told_before_anything_is_started(
    command: str, tmp_path: Any
) -> None:
    model = ["models:/albert-tiny@champion"] if command == "evaluate" else []
    options = ["--set=training.num_steps=5", "--set", "examples.max_seq_len=64"]
    done = subprocess.run(
        [ALBERT, command, *model, f"--work={tmp_path / 'work'}", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: --set examples.max_seq_len=64: unknown setting 'examples.max_seq_len'; "
        "did you mean 'examples.max_seq_length'?\n"
    )
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_mistake_found_by_a_stage_ends_in_one_message(tmp_path: Any) -> None:
    environment = os.environ | {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": ""}
    places = [f"--work={tmp_path / 'work'}", f"--source={tmp_path / 'missing.txt'}"]
    done = subprocess.run(
        [ALBERT, "refresh", *places], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("missing.txt") == 1
    assert done.stderr.rstrip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "work").rglob("manifest.json"))
