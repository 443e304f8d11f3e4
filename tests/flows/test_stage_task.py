import sys
from pathlib import Path

import pytest
from prefect import flow

from albert_core.stage.errors import ConfigError, StageError
from flows.done_before import NotDoneError, RecipeRun
from flows.recipe import load_recipe, save_recipe
from flows.stage_process import InterruptedStageError
from flows.stage_task import TRAINING, _distributed, run_stage, stage_task, start_run

FAKE_STAGE = """
import os, sys
from pathlib import Path
from albert_core.config import TrainingSettings
from albert_core.stage.errors import SourceError
from albert_core.stage.command import stage_main

def run(training: TrainingSettings, corpus: str, work: str) -> str:
    tries = Path(work) / "tries"
    with tries.open("a") as file:
        file.write("x")
    if corpus == "missing":
        raise SourceError("there is no corpus")
    if corpus == "flaky" and tries.stat().st_size < 3:
        sys.exit(os.EX_TEMPFAIL)
    print("steps:", training.num_steps)
    return f"{work}/fake/1/manifest.json"

def find_done(training: TrainingSettings, corpus: str, work: str) -> str | None:
    return f"{work}/fake/0/manifest.json" if corpus == "done" else None

if __name__ == "__main__":
    stage_main(run)
"""


@pytest.fixture
def run_in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipeRun:
    (tmp_path / "fake_stage.py").write_text(FAKE_STAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    recipe = load_recipe("tiny", ["training.num_steps=321"])
    return RecipeRun(recipe, save_recipe(recipe, str(tmp_path)), str(tmp_path))


@stage_task("fake")
def fake(run: RecipeRun, corpus: str) -> str:
    return run_stage("fake_stage", run, corpus=corpus)


@flow
def fake_flow(run: RecipeRun, corpus: str) -> str:
    return fake.with_options(retry_delay_seconds=0.01)(run, corpus)


def tries(run: RecipeRun) -> int:
    return (Path(run.work) / "tries").stat().st_size


@pytest.mark.usefixtures("prefect_server")
def test_a_stage_gets_its_section_of_the_recipe_and_gives_its_manifest(
    run_in_folder: RecipeRun, caplog: pytest.LogCaptureFixture
) -> None:
    assert fake_flow(run_in_folder, "there") == f"{run_in_folder.work}/fake/1/manifest.json"
    assert "steps: 321" in caplog.messages
    by_hand = next(message for message in caplog.messages if message.startswith("by hand: "))
    assert f"-m fake_stage --recipe={run_in_folder.recipe_uri} --corpus=there" in by_hand


@pytest.mark.usefixtures("prefect_server")
def test_a_stage_that_lost_a_worker_is_tried_again(run_in_folder: RecipeRun) -> None:
    assert fake_flow(run_in_folder, "flaky").endswith("manifest.json")
    assert tries(run_in_folder) == 3


@pytest.mark.usefixtures("prefect_server")
def test_a_users_mistake_is_not_tried_again(run_in_folder: RecipeRun) -> None:
    with pytest.raises(StageError, match=r"^there is no corpus$"):
        fake_flow(run_in_folder, "missing")
    assert tries(run_in_folder) == 1


@pytest.mark.usefixtures("prefect_server")
def test_what_was_done_before_is_found_without_a_process(run_in_folder: RecipeRun) -> None:
    found = f"{run_in_folder.work}/fake/0/manifest.json"
    assert fake_flow(run_in_folder, "done") == found
    assert fake(run_in_folder, "done") == found  # and without a flow run
    with pytest.raises(NotDoneError, match="fake_stage"):
        fake(run_in_folder, "there")
    assert not (Path(run_in_folder.work) / "tries").exists()


def test_a_run_is_what_the_recipe_and_the_folder_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALBERT_WORK", raising=False)
    assert start_run("tiny", None, None, None).work == f"{tmp_path}/work"
    monkeypatch.setenv("ALBERT_WORK", "elsewhere")
    run = start_run("tiny", None, None, ["training.seed=3"])
    assert run.work == f"{tmp_path}/elsewhere"
    assert run.recipe.training.seed == 3
    assert Path(run.recipe_uri).is_file()
    assert start_run("tiny", None, "mine", None).work == f"{tmp_path}/mine"


def test_training_on_several_devices_is_launched_by_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = [sys.executable, "-m", TRAINING, "--recipe=r"]
    monkeypatch.delenv("ALBERT_TRAINING_PROCESSES", raising=False)
    assert _distributed(argv) == argv
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "4")
    assert _distributed(argv)[1:5] == [
        "-m",
        "albert_core.training.launcher",
        "--standalone",
        "--nproc-per-node=4",
    ]
    assert _distributed(argv)[5:] == ["-m", TRAINING, "--recipe=r"]
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "0")
    with pytest.raises(ConfigError, match="ALBERT_TRAINING_PROCESSES='0' must be"):
        _distributed(argv)


def test_a_lost_worker_is_a_stage_error_like_the_others() -> None:
    assert issubclass(InterruptedStageError, StageError)
