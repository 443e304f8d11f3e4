"""How a flow run begins and ends: its recipe, the orphans of a killed one, and its MLflow run."""

import logging
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import TaskRunContext
from prefect.events import Event
from prefect.events.filters import EventFilter
from prefect.states import Crashed, Running
from prefect.task_runners import ThreadPoolTaskRunner

from albert_core.stage import errors, lock, storage
from albert_core.stage.manifest import Manifest
from albert_core.stage.progress import StageProgress
from albert_core.stage.results import FinetuningResult
from albert_core.tracking.journal import journals_of
from albert_core.tracking.run import PARENT_VARIABLE, TrackedRun
from albert_core.tracking.server import PARENT_TAG, RUN_ID
from flows import flow_run, stage_task, tracking
from flows.recipe import NotDoneError, RecipeChanges, RecipeRun, load_recipe, save_recipe
from pipelines.config import SourceSettings
from tests.conftest import wait_until
from tests.flows.conftest import made_manifest


def test_a_run_is_what_the_recipe_and_the_folder_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALBERT_WORK", raising=False)
    assert flow_run.start_run("tiny", None, None, None).work == f"{tmp_path}/work"
    monkeypatch.setenv("ALBERT_WORK", "elsewhere")
    run = flow_run.start_run("tiny", None, None, ["training.seed=3"])
    assert run.work == f"{tmp_path}/elsewhere"
    assert run.recipe.training.seed == 3
    assert Path(run.recipe_uri).is_file()
    assert flow_run.start_run("tiny", None, "mine", None).work == f"{tmp_path}/mine"


def test_a_mistake_is_on_the_page_of_a_run_without_a_traceback_and_a_defect_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "1")
    with pytest.raises(errors.ConfigError, match=r"training\.seed=x"):
        flow_run.start_run("tiny", None, str(tmp_path), ["training.seed=x"])
    logger = logging.getLogger("prefect.flow_runs")
    for error, has_traceback in ((errors.ConfigError("Give another."), False), (KeyError(), True)):
        given = (type(error), error, None)
        record = logger.makeRecord(logger.name, logging.ERROR, "", 0, "failed", (), given)
        assert logger.filter(record)
        assert bool(record.exc_info) == has_traceback


@pytest.mark.parametrize(
    ("source", "work", "message"),
    [
        (".", "work", "inside of the source .* read as text"),
        ("./**", "a/work", "inside of the source"),
        ("text", "link/work", "inside of the source"),
        ("*/**", "a/work", "inside of the source"),
        ("./[a-z]*/*/*", "a/work", "inside of the source"),
        ("./[b-z]*/**", "a/work", ""),
        ("*/*", "a/work", ""),
        ("*.txt", "a.txt", "a.txt is no folder"),
        ("*.txt", "a.txt/work", "a.txt is no folder"),
        ("*.txt", "dangling", "dangling is no folder"),
        ("*.txt", "a\nb", "a line end in its name"),
        ("*.txt", "a\udcff", "a name that is not UTF-8"),
        ("*.txt", "a%41/work", "has %41 in its name, which MLflow reads as 'A'"),
        ("*.txt", "a?/work", r"has \? in its name, which MLflow reads as the end of a path"),
        ("*.txt", "100% [x] #ü", ""),
        ("*.txt", "work", ""),
        (".", ".work", ""),
        (None, "work", ""),
        ("text", "text-work", ""),
    ],
)
def test_a_work_folder_in_the_source_or_that_cannot_be_made_is_refused(
    source: str | None, work: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    (tmp_path / "text").mkdir()
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(errors.ConfigError, match=message) if message else nullcontext():
        flow_run.start_run("tiny" if source else "base", source, work, None)


@task
def ran() -> UUID:
    context = TaskRunContext.get()
    assert context is not None
    return context.task_run.id


class ToldToStop(BaseException):
    """As Prefect's signals are, with which it would end this process."""


@stage_task.task("until-told")
def until_told(begun: Queue[str]) -> None:
    begun.put("begun")
    while True:
        stage_task.check_stop()
        time.sleep(0.01)


@flow(task_runner=cast(Any, ThreadPoolTaskRunner(max_workers=2)))
def in_threads(begun: Queue[str]) -> None:
    with stage_task.stopping_other_threads():
        futures = [until_told.submit(begun) for _ in range(2)]
        for _ in futures:
            begun.get()
        raise ToldToStop


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_that_is_told_to_stop_ends_the_stages_in_its_other_threads() -> None:
    with pytest.raises(ToldToStop):
        in_threads(Queue())


@flow(name="refresh-corpus", on_running=[flow_run.end_orphans])
def next_one() -> UUID:
    return ran()


def killed(name: str, state: State[None]) -> tuple[FlowRun, UUID]:
    """Run a flow whose run then gets this state; return it and its task, left Running."""
    ended = flow(name=name)(next_one.fn)(return_state=True)
    orphan: UUID = ended.result()
    flow_run_id = ended.state_details.flow_run_id
    assert flow_run_id is not None
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, state, force=True)
        client.set_task_run_state(orphan, Running(), force=True)
        return client.read_flow_run(flow_run_id), orphan


def state_of(task_run: UUID) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_task_run(task_run).state_name)


@pytest.mark.usefixtures("prefect_server")
def test_the_next_run_ends_the_tasks_of_a_killed_one_and_of_no_other_project() -> None:
    orphans = [killed(name, Crashed())[1] for name in ("pretrain-albert", "another-project")]
    own = next_one()
    assert [*map(state_of, orphans)] == ["Crashed", "Running"]
    assert state_of(own) != "Crashed"


@pytest.mark.usefixtures("prefect_server")
def test_the_next_run_ends_those_by_hand_whose_process_was_killed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORK", str(tmp_path))
    (dead, task), (alive, _), (elsewhere, _) = (
        killed("pretrain-albert", Running()) for _ in range(3)
    )
    left = lock.LockFile(tmp_path / lock.CLAIMS / f"flow-runs-{dead.id}")
    held = lock.LockFile(tmp_path / lock.CLAIMS / f"flow-runs-{alive.id}")
    for each in (left, held):
        assert each.take(lock.Owner.this_process())
    left._lock.release()  # as the kernel does when the process is killed
    next_one()
    with get_client(sync_client=True) as client:
        states = [client.read_flow_run(run.id).state_name for run in (dead, alive, elsewhere)]
    assert states == ["Crashed", "Running", "Running"]
    assert state_of(task) == "Crashed"
    assert left.holder() is None
    held.release()


@pytest.mark.usefixtures("prefect_server")
def test_a_run_that_crashed_and_begins_again_ends_its_own_tasks() -> None:
    again, orphan = killed("pretrain-albert", Running())
    flow_run.end_orphans(next_one, again, Running())
    assert state_of(orphan) == "Crashed"


@pytest.fixture(scope="module")
def client(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    return MlflowClient(f"sqlite:///{shutil.copy(empty_database, tmp_path_factory.mktemp('runs'))}")


def make(run: RecipeRun, stage: str) -> str:
    """Stand for a stage: write a manifest, and track a training as it would itself."""
    manifest: Manifest = made_manifest(stage)
    folder = storage.join(run.work, stage, manifest.key)
    uri = storage.join(folder, "manifest.json")
    if storage.exists(uri):
        return uri
    if stage == "pretraining":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in tracking.stage_environment().items():
                patch.setenv(name, value)
            with TrackedRun(run.work, folder, f"{stage}-1") as tracked:
                tracked.log_metrics(1, {"loss": 1.0})
        manifest = made_manifest(stage, mlflow_run_id=tracked.run_id)
    storage.write_bytes(uri, manifest.model_dump_json().encode())
    storage.write_bytes(storage.join(folder, "report.md"), b"# good")
    storage.write_bytes(storage.join(folder, "shard.arrow"), b"large")
    return uri


@flow(name="made-flow", **flow_run.FLOW_OPTIONS)
def made_flow(work: str, fails: bool = False, recipe: str = "tiny") -> None:
    run = flow_run.start_run(recipe, None, work, ["training.seed=3"])
    tracked = tracking.tracked_flow()
    assert tracked
    for stage in ("vocab", "pretraining"):
        tracked.note_stage(make(run, stage), began=0.0)
    tracked.note_stage("none", began=0.0)  # as of a command that found nothing to do
    storage.write_bytes(f"{work}/receipt.json", b"{}")
    tracked.note_receipt(f"{work}/receipt.json")
    tracked.note_report("# what was done")
    if fails:
        raise ValueError("as told")


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("minutes", "said"), [(-3, "3 minutes behind"), (62, "62 minutes ahead of")]
)
def test_a_run_on_a_machine_with_another_time_than_prefects_server_is_refused(
    minutes: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(time=lambda: time.time() + 60 * minutes)
    monkeypatch.setattr(flow_run, "time", other)
    with pytest.raises(errors.ConfigError, match=f"{said} that of Prefect's server"):
        made_flow(str(tmp_path))


def runs(client: MlflowClient, work: str) -> dict[str, list[Run]]:
    """Return the runs of a work folder by their stage, the oldest first."""
    found: dict[str, list[Run]] = {}
    experiments = [each.experiment_id for each in client.search_experiments()]
    for run in client.search_runs(experiments, order_by=["attributes.start_time"]):
        if run.data.tags["stage_folder"].startswith(work):
            found.setdefault(run.data.tags["stage"], []).append(run)
    return found


@pytest.mark.usefixtures("prefect_server")
def test_the_runs_of_the_stages_are_nested_in_that_of_their_flow(
    tmp_path: Path, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    made_flow(str(tmp_path))
    found = runs(client, str(tmp_path))
    [parent], [vocab], [pretraining] = (found[n] for n in ("flow_runs", "vocab", "pretraining"))
    assert {run.info.status for run in (parent, vocab, pretraining)} == {"FINISHED"}
    assert parent.info.run_name.startswith("made-flow: ")
    assert parent.data.tags["prefect_flow_run"]
    assert parent.data.tags[tracking.NOTE_TAG] == "# what was done"
    assert parent.data.params.keys() == {"recipe", "work", "fails"}
    assert parent.data.metrics["held_out/masked_lm_loss"] == 5.75
    assert vocab.data.metrics["vocab_size"] == made_manifest("vocab").result["vocab_size"]
    for child in (vocab, pretraining):
        assert child.data.tags[PARENT_TAG] == parent.info.run_id
    files = {file.path for file in client.list_artifacts(vocab.info.run_id)}
    assert files == {"manifest.json", "report.md"}
    assert vocab.inputs is not None
    assert {each.dataset.name for each in vocab.inputs.dataset_inputs} >= {"vocab"}
    receipts, recipe = sorted(file.path for file in client.list_artifacts(parent.info.run_id))
    assert (receipts, recipe[:5]) == ("receipts", "tiny-")
    for run in (parent, vocab, pretraining):
        assert run.data.tags["text"] == "installed-python"
        assert ": albert-tiny on installed-python, 20" in run.info.run_name

    with pytest.raises(ValueError, match="as told"):
        made_flow(str(tmp_path), fails=True)
    again = runs(client, str(tmp_path))
    assert (len(again["vocab"]), len(again["pretraining"])) == (1, 1)
    _, second = again["flow_runs"]
    assert second.info.status == "FAILED"
    assert second.data.tags["done_before.vocab"] == vocab.info.run_id
    assert second.data.tags["done_before.pretraining"] == pretraining.info.run_id
    assert again["vocab"][0].data.tags[PARENT_TAG] == parent.info.run_id


def test_the_run_of_a_flow_has_the_key_score_of_each_fine_tuning() -> None:
    manifest = made_manifest("finetuning")
    tuned = manifest.result_as(FinetuningResult)
    headlines = tracking._headlines(manifest)
    assert headlines[f"{tuned.task}/{tuned.metric}"] == tuned.score.value


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_goes_on_without_mlflow_and_tells_it_later(
    tmp_path: Path,
    client: MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("albert_core.tracking.run.UNAVAILABLE_SECONDS", 0.5)
    caplog.set_level(logging.WARNING, "tracking")
    made_flow(str(tmp_path))
    assert len(journals_of(str(tmp_path))) == 3
    assert "the run goes on" in caplog.text
    assert not storage.exists(f"{tmp_path}/vocab/{made_manifest('vocab').key}/{RUN_ID}")
    assert PARENT_VARIABLE not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    wait_until(lambda: not journals_of(str(tmp_path)))
    assert runs(client, str(tmp_path)).keys() == {"flow_runs", "vocab", "pretraining"}


@pytest.mark.parametrize(
    ("uris", "text"),
    [
        ("/data/wiki/**/*.txt", "wiki"),
        (["s3://b/books", "/a"], "books and 1 more"),
        ("**", "**"),
        ("", None),
    ],
)
def test_a_flow_run_is_about_a_model_and_a_text_by_name(
    uris: str | list[str], text: str | None
) -> None:
    source = {"source": SourceSettings(uri=uris)}
    recipe = load_recipe("tiny").model_copy(update=source)
    named = {"text": text} if text else {}
    assert tracking.about(recipe, None) == {"recipe": "tiny", "model": "albert-tiny", **named}
    assert tracking.about(recipe, "models:/a@champion") == {"recipe": "tiny", "model": "a@champion"}


def test_a_form_that_says_nothing_is_no_parameter() -> None:
    said = RecipeChanges.model_validate({"training": {"num_steps": 7}})
    parameters = {"settings": said, "work": None, "overrides": [], "recipe": "tiny"}
    assert tracking.given(parameters) == {
        "settings": {"training": {"num_steps": 7}},
        "recipe": "tiny",
    }
    assert tracking.given({"settings": RecipeChanges()}) == {}


FAKE_STAGE = """
import os, sys, time
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
    if corpus == "large":
        time.sleep(100)
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


@stage_task.task("fake")
def fake(run: RecipeRun, corpus: str) -> str:
    return stage_task.run_stage("fake_stage", run, corpus=corpus)


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


@flow(**flow_run.FLOW_OPTIONS)
def tracked_fake_flow(recipe: str, work: str) -> str:
    return fake(flow_run.start_run(recipe, None, work, []), "large")


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_whose_experiment_was_deleted_ends_before_it_has_trained(
    run_in_folder: RecipeRun, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "deleted")
    monkeypatch.setattr("albert_core.tracking.run.UNAVAILABLE_SECONDS", 0.5)
    number = client.create_experiment("deleted")
    client.delete_experiment(number)
    began = time.monotonic()
    with pytest.raises(errors.ConfigError, match=f"deleted .* --experiment-id {number}"):
        tracked_fake_flow("tiny", run_in_folder.work)
    assert time.monotonic() - began < 60  # its stage takes longer
    client.restore_experiment(number)
    wait_until(lambda: not journals_of(run_in_folder.work))


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
    training, command_of = stage_task.TRAINING, stage_task.command_of
    argv = command_of(training, run_in_folder, examples="e")
    assert argv[1:3] == ["-m", training]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    launcher = ["-m", "albert_core.training.launcher", "--standalone", "--nproc-per-node=4"]
    assert command_of(training, run_in_folder, examples="e") == [argv[0], *launcher, *argv[1:]]
    assert command_of("fake_stage", run_in_folder)[1:3] == ["-m", "fake_stage"]
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "0")
    with pytest.raises(errors.ConfigError, match="ALBERT_TRAINING_PROCESSES='0' must be"):
        command_of(training, run_in_folder)


def test_progress_is_told_now_and_then_and_at_the_end_also_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares: list[float] = []
    outages = [ConnectionError()]

    def create(share: float, key: str, description: str) -> UUID:
        if outages:
            raise outages.pop()
        assert (key, description) == ("clean-corpus-progress", "clean_corpus: 100 steps in all")
        shares.append(share)
        return uuid4()

    patch = monkeypatch.setattr
    patch("flows.stage_task.artifacts.create_progress_artifact", create)
    patch(
        "flows.stage_task.artifacts.update_progress_artifact", lambda _, share: shares.append(share)
    )
    patch("flows.stage_task._SECONDS_BETWEEN_REPORTS", 0.02)
    with stage_task.progress_page("clean_corpus") as report:
        for step in range(1, 62):
            report(StageProgress(step, 100.0, "steps"))
            time.sleep(0.005)
    assert shares == sorted(shares)
    assert 2 <= len(shares) < 60
    assert shares[-2:] == [pytest.approx(61.0, abs=10), 100.0]


@stage_task.task("made")
def saved_page(uri: str) -> str:
    stage_task.save_stage_page(uri, "sqlite:///mlflow.db")
    return uri


@flow
def makes(uri: str) -> None:
    saved_page(uri)


def events_about(asset: str) -> list[Event]:
    """Return the events about an asset as soon as there are any."""

    def events() -> list[Event]:
        wanted = EventFilter.model_validate({"resource": {"id": [asset]}})  # until now
        with get_client(sync_client=True) as client:
            return list(client.read_events(wanted, limit=10).events)

    return wait_until(events)


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
