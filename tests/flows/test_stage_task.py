import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.events.filters import EventFilter

from albert_core.stage import errors, log, storage
from flows import stage_task as stage_task_module
from flows.recipe import NotDoneError, RecipeRun, load_recipe, save_recipe
from flows.stage_task import (
    TRAINING,
    command_of,
    progress_page,
    run_stage,
    save_stage_page,
    stage_task,
)
from tests.flows.made_manifests import made_manifest

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
    with pytest.raises(errors.StageError, match=r"^there is no corpus$"):
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


def test_training_on_several_devices_is_launched_by_the_launcher(
    run_in_folder: RecipeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALBERT_TRAINING_PROCESSES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    argv = command_of(TRAINING, run_in_folder, examples="e")
    assert argv[1:3] == ["-m", TRAINING]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    launcher = ["-m", "albert_core.training.launcher", "--standalone", "--nproc-per-node=4"]
    assert command_of(TRAINING, run_in_folder, examples="e") == [argv[0], *launcher, *argv[1:]]
    assert command_of("fake_stage", run_in_folder)[1:3] == ["-m", "fake_stage"]
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "0")
    with pytest.raises(errors.ConfigError, match="ALBERT_TRAINING_PROCESSES='0' must be"):
        command_of(TRAINING, run_in_folder)


class Artifacts:
    """Stands for Prefect: notes what it is told, and is unavailable the first time."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.keys: list[str] = []
        self.is_away = True

    def create(self, share: float, key: str, **_: Any) -> UUID:
        if self.is_away:
            self.is_away = False
            raise ConnectionError
        self.keys.append(key)
        self.shares.append(share)
        return uuid4()

    def update(self, _: UUID, share: float) -> None:
        self.shares.append(share)


def test_progress_is_told_now_and_then_and_at_the_end_also_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifacts = Artifacts()
    monkeypatch.setattr(stage_task_module, "create_progress_artifact", artifacts.create)
    monkeypatch.setattr(stage_task_module, "update_progress_artifact", artifacts.update)
    monkeypatch.setattr(stage_task_module, "_SECONDS_BETWEEN_REPORTS", 0.02)
    with progress_page("clean_corpus") as report:
        for step in range(1, 62):
            report(log.StageProgress(step, 100.0, "steps"))
            time.sleep(0.005)
    assert artifacts.keys == ["clean-corpus-progress"]
    assert artifacts.shares == sorted(artifacts.shares)
    assert 2 <= len(artifacts.shares) < 60
    assert artifacts.shares[-2:] == [pytest.approx(61.0, abs=10), 100.0]


@stage_task("made")
def saved_page(uri: str) -> str:
    save_stage_page(uri, "sqlite:///mlflow.db")
    return uri


@flow
def makes(uri: str) -> None:
    saved_page(uri)


def events_about(asset: str) -> list[Event]:
    """Return the events about an asset as soon as there are any."""
    with get_client(sync_client=True) as client:
        for _ in range(100):
            wanted = EventFilter.model_validate({"resource": {"id": [asset]}})  # until now
            if found := client.read_events(wanted, limit=10).events:
                return list(found)
            time.sleep(0.1)
    return []


@pytest.mark.usefixtures("prefect_server")
def test_what_a_stage_made_is_an_asset_that_tells_what_it_was_made_of(tmp_path: Path) -> None:
    made = made_manifest("vocab").model_copy(
        update={"input_manifests": {"corpus": f"/w/corpus/{'1' * 16}/manifest.json"}}
    )
    uri = f"{tmp_path}/work/vocab/{made.key}/manifest.json"
    storage.write_bytes(uri, made.model_dump_json().encode())
    makes(uri)
    [event] = events_about(f"albert://vocab/{made.key}")
    assert event.event == "prefect.asset.materialization.succeeded"
    assert event.payload["manifest"] == uri
    assert event.payload["content"] == made.content
    assert event.payload["vocab size"] == f"{made.result['vocab_size']:,}"
    related = {each.role: each.id for each in event.related}
    assert related["asset"] == f"albert://corpus/{'1' * 16}"
    assert {"task-run", "flow-run"} <= related.keys()
