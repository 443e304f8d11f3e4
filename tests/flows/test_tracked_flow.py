"""A flow run in MLflow: its own run, with those of its stages nested in it."""

import logging
import os
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from prefect import flow

from albert_core.stage import storage
from albert_core.stage.manifest import Manifest
from albert_core.tracking.journal import journals_of
from albert_core.tracking.run import PARENT_VARIABLE, TrackedRun
from albert_core.tracking.server import PARENT_TAG, RUN_ID
from flows.done_before import RecipeRun
from flows.flow_options import FLOW_OPTIONS
from flows.stage_task import start_run
from flows.tracked_flow import NOTE_TAG, allowed_name, note_report, note_stage, stage_environment
from tests.flows.made_manifests import made_manifest

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    return MlflowClient(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


@pytest.fixture
def database(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    return str(client.tracking_uri)


def make(run: RecipeRun, stage: str) -> str:
    """Stand for a stage: write a manifest, and track a training as it would itself."""
    manifest: Manifest = made_manifest(stage)
    folder = storage.join(run.work, stage, manifest.key)
    uri = storage.join(folder, "manifest.json")
    if storage.exists(uri):
        return uri
    if stage == "pretraining":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in stage_environment().items():
                patch.setenv(name, value)
            with TrackedRun(run.work, folder, f"{stage}-1") as tracked:
                tracked.log_metrics(1, {"loss": 1.0})
        facts = {**manifest.facts, "mlflow_run_id": tracked.run_id}
        manifest = manifest.model_copy(update={"facts": facts})
    storage.write_bytes(uri, manifest.model_dump_json().encode())
    storage.write_bytes(storage.join(folder, "report.md"), b"# good")
    storage.write_bytes(storage.join(folder, "shard.arrow"), b"large")
    return uri


@flow(name="made-flow", **FLOW_OPTIONS)
def made_flow(work: str, fails: bool = False, recipe: str = "tiny") -> None:
    run = start_run(recipe, None, work, ["training.seed=3"])
    for stage in ("vocab", "pretraining"):
        note_stage(make(run, stage), began=0.0)
    note_report("# what was done")
    if fails:
        raise ValueError("as told")


def runs(client: MlflowClient, work: str) -> dict[str, list[Run]]:
    """Return the runs of a work folder by their stage, the oldest first."""
    found: dict[str, list[Run]] = {}
    experiments = [each.experiment_id for each in client.search_experiments()]
    for run in client.search_runs(experiments, order_by=["attributes.start_time"]):
        if run.data.tags["stage_folder"].startswith(work):
            found.setdefault(run.data.tags["stage"], []).append(run)
    return found


def test_the_runs_of_the_stages_are_nested_in_that_of_their_flow(
    tmp_path: Path, client: MlflowClient, database: str
) -> None:
    made_flow(str(tmp_path))
    found = runs(client, str(tmp_path))
    [parent], [vocab], [pretraining] = (found[n] for n in ("flow_runs", "vocab", "pretraining"))
    assert {run.info.status for run in (parent, vocab, pretraining)} == {"FINISHED"}
    assert parent.info.run_name.startswith("made-flow: ")
    assert parent.data.tags["prefect_flow_run"]
    assert parent.data.tags[NOTE_TAG] == "# what was done"
    assert parent.data.params["recipe"] == "tiny"
    for child in (vocab, pretraining):
        assert child.data.tags[PARENT_TAG] == parent.info.run_id
    files = {file.path for file in client.list_artifacts(vocab.info.run_id)}
    assert files == {"manifest.json", "report.md"}
    assert vocab.inputs is not None
    assert {each.dataset.name for each in vocab.inputs.dataset_inputs} >= {"vocab"}
    recipe = [file.path for file in client.list_artifacts(parent.info.run_id)]
    assert [name.startswith("tiny-") for name in recipe] == [True]

    made_flow(str(tmp_path))
    again = runs(client, str(tmp_path))
    assert len(again["flow_runs"]) == 2
    assert (len(again["vocab"]), len(again["pretraining"])) == (1, 1)
    second = again["flow_runs"][1]
    assert second.data.tags["done_before.vocab"] == vocab.info.run_id
    assert second.data.tags["done_before.pretraining"] == pretraining.info.run_id
    assert again["vocab"][0].data.tags[PARENT_TAG] == parent.info.run_id


def test_a_flow_that_fails_is_a_failed_run(
    tmp_path: Path, client: MlflowClient, database: str
) -> None:
    with pytest.raises(ValueError, match="as told"):
        made_flow(str(tmp_path), fails=True)
    [parent] = runs(client, str(tmp_path))["flow_runs"]
    assert parent.info.status == "FAILED"


def test_a_flow_goes_on_without_mlflow_and_tells_it_later(
    tmp_path: Path,
    client: MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("albert_core.tracking.run.AWAY_SECONDS", 0.5)
    caplog.set_level(logging.WARNING, "tracking")
    made_flow(str(tmp_path))
    assert len(journals_of(str(tmp_path))) == 3
    assert "the run goes on" in caplog.text
    assert not storage.exists(f"{tmp_path}/vocab/{made_manifest('vocab').key}/{RUN_ID}")
    assert PARENT_VARIABLE not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    deadline = time.monotonic() + 60
    while journals_of(str(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert runs(client, str(tmp_path)).keys() == {"flow_runs", "vocab", "pretraining"}


def test_names_are_made_of_what_mlflow_allows() -> None:
    assert allowed_name("pieces, all copies/dropped/too long (%)") == (
        "pieces all copies/dropped/too long "
    )
