"""Runs in MLflow, on a SQLite file of their own."""

import errno
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from albert_core.stage import errors, servers, storage
from albert_core.tracking import run as tracked_run_module
from albert_core.tracking import server
from albert_core.tracking.journal import Journal, journals_of, send_journals
from albert_core.tracking.run import TrackedRun
from tests.conftest import wait_until


@pytest.fixture(scope="module")
def client(work: str) -> MlflowClient:
    return server.open_client(work)


def history(client: MlflowClient, run_id: str | None, name: str) -> list[tuple[int, float]]:
    assert run_id is not None
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def test_a_run_holds_settings_curves_data_sets_and_files(work: str, client: MlflowClient) -> None:
    folder = f"{work}/whole"
    storage.write_bytes(f"{folder}/manifest.json", b"{}")
    storage.write_bytes(f"{folder}/pictures/a.txt", b"a")
    run = TrackedRun(work, folder, "whole", {"model": "abc"})
    run.log_params({"model": {"hidden_size": 4}, "note": "x" * 10_000})
    run.log_metrics(10, {"loss": 2.0, "accuracy": 0.5})
    run.log_metrics(20, {"loss": 1.0})
    run.log_dataset("examples", "d" * 64, f"{folder}/manifest.json", "train")
    run.log_artifact(f"{folder}/manifest.json")
    run.log_artifact(f"{folder}/pictures", "pictures")
    run.finish("FINISHED")

    assert run.num_failures == 0
    assert run.run_id == storage.read_bytes(f"{folder}/{server.RUN_ID}").decode()
    found = client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name.startswith("whole: abc, 20")
    assert found.info.artifact_uri.startswith(f"{work}/mlartifacts")
    assert found.data.tags["model"] == "abc"
    assert found.data.params["model.hidden_size"] == "4"
    assert len(found.data.params["note"]) == 6000
    assert history(client, run.run_id, "loss") == [(10, 2.0), (20, 1.0)]
    assert found.inputs is not None
    assert found.inputs.dataset_inputs[0].dataset.name == "examples"
    names = [file.path for file in client.list_artifacts(run.run_id)]
    assert names == ["manifest.json", "pictures"]


def test_a_resumed_run_goes_on_and_logs_no_step_twice(work: str, client: MlflowClient) -> None:
    folder = f"{work}/resumed"
    first = TrackedRun(work, folder, "resumed")
    for step in (10, 20, 30):
        first.log_metrics(step, {"loss": float(step)})
    first.log_metrics(10, {"dev": 1.0})
    first.finish("KILLED")
    second = TrackedRun(work, folder, "resumed")
    for step in (20, 30, 40):
        second.log_metrics(step, {"loss": float(step)})
    second.log_metrics(20, {"dev": 2.0})
    assert second.run_id == first.run_id
    second.finish("FINISHED")
    assert [step for step, _ in history(client, second.run_id, "loss")] == [10, 20, 30, 40]
    assert [step for step, _ in history(client, second.run_id, "dev")] == [10, 20]
    assert second.run_id is not None
    assert client.get_run(second.run_id).info.status == "FINISHED"


def test_a_run_that_the_server_does_not_have_is_replaced(work: str, client: MlflowClient) -> None:
    folder = f"{work}/gone"
    with TrackedRun(work, folder, "gone") as first:
        pass
    client.delete_run(str(first.run_id))
    with TrackedRun(work, folder, "gone") as run:
        assert run.run_id not in (None, first.run_id)
    assert storage.read_bytes(f"{folder}/{server.RUN_ID}").decode() == run.run_id
    for noted in (b"0" * 32, b"\xff/.."):
        storage.write_bytes(f"{folder}/{server.RUN_ID}", noted)
        with TrackedRun(work, folder, "gone") as unknown:
            assert unknown.run_id not in (None, "0" * 32)
        assert (run.num_failures, unknown.num_failures) == (0, 0)


def test_a_run_that_another_thread_is_creating_is_waited_for_and_adopted_without_a_warning(
    work: str, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    folder = f"{work}/corpus/child"
    header = {"server": servers.shown_tracking_uri(work), "folder": folder, "name": "", "tags": {}}
    journal = Journal.begin(work, folder, header)
    parent = TrackedRun(work, f"{work}/flow/parent", "parent")
    parent.adopt("corpus", folder)
    assert parent.run_id is not None
    time.sleep(1)
    journal.send()
    journal.remove()
    parent.finish("FINISHED")
    assert client.get_run(journal.run_id).data.tags[server.PARENT_TAG] == parent.run_id
    assert "not sent" not in caplog.text


@pytest.mark.parametrize("address", ["mlruns", "mlflow.example.org:5000"])
def test_an_address_that_mlflow_never_takes_is_refused_as_a_run_begins(
    work: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(tracked_run_module, "UNAVAILABLE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    run = TrackedRun(work, f"{work}/pretraining/{address}", "nowhere")
    assert run.run_id is None
    assert f"MLflow can't use {address}: " in str(run.refusal)
    assert "Set MLFLOW_TRACKING_URI to the address of a server" in str(run.refusal)
    run.finish("FAILED")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert run._done.wait(60)


def test_what_a_run_logs_waits_until_its_deleted_experiment_is_restored_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    work = str(tmp_path)
    client = server.open_client(work)
    number = server.experiment_id(client, work)
    client.delete_experiment(number)
    monkeypatch.setattr(tracked_run_module, "UNAVAILABLE_SECONDS", 0.5)
    run = TrackedRun(work, f"{work}/pretraining/a", "deleted")
    run.log_metrics(1, {"loss": 1.0})
    assert run.run_id is None
    assert f"mlflow experiments restore --experiment-id {number}" in str(run.refusal)
    run.finish("FINISHED")
    assert "was deleted" in caplog.text
    for name, experiment in (("b", "albert"), ("c", "another")):
        folder = f"{work}/pretraining/{name}"
        header = {"server": servers.tracking_name(work), "experiment": experiment}
        given = {**header, "folder": folder, "name": name, "tags": {}}
        Journal.begin(work, folder, given).close()
    assert "1 sent, 1 of a deleted experiment, 1 of living" in send_journals(work)

    client.restore_experiment(number)
    assert run._done.wait(60)
    assert history(client, run.run_id, "loss") == [(1, 1.0)]
    assert "1 sent, 0 of living" in send_journals(work)


def test_the_journals_of_a_work_folder_elsewhere_are_in_a_folder_of_their_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    journal = Journal.begin("memory://work", "memory://work/pretraining/a", {"name": "elsewhere"})
    journal.close()
    [folder] = tmp_path.iterdir()
    assert folder.name.endswith(f"-{os.getuid()}")
    assert folder.stat().st_mode & 0o077 == 0
    assert journals_of("memory://work") == [journal.path]
    assert folder in journal.path.parents
    assert journals_of("memory://other") == []


def test_one_refused_entry_does_not_hold_up_the_next(work: str, client: MlflowClient) -> None:
    run = TrackedRun(work, f"{work}/refused", "refused")
    run.log_metrics(1, {"not/allowed?": 1.0})
    run.log_artifact(f"{work}/nowhere.txt")
    run.log_metrics(1, {"loss": 1.0})
    run.finish("FINISHED")
    assert run.num_failures == 2
    assert history(client, run.run_id, "loss") == [(1, 1.0)]


@pytest.mark.parametrize(
    "error", [ConnectionError("the bucket does not answer"), OSError(errno.ENOSPC, "no space")]
)
def test_an_artifact_store_that_takes_nothing_for_a_while_gets_all_files(
    error: Exception,
    work: str,
    client: MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries, real = [], server.upload

    def upload(*given: Any) -> None:
        tries.append(given)
        if len(tries) < 5:
            raise error
        real(*given)

    monkeypatch.setattr(server, "upload", upload)
    monkeypatch.setattr("albert_core.tracking.journal._RETRY_SECONDS", (0.1,) * 4)
    monkeypatch.setattr(tracked_run_module, "RETRY_SECONDS", 0.0)
    Path(work, "report.txt").write_text("all is well")
    folder = f"{work}/away-{type(error).__name__}"
    run = TrackedRun(work, folder, "away-store")
    run.log_artifact(f"{work}/report.txt")
    run.log_metrics(1, {"loss": 1.0})
    wait_until(lambda: not run.num_waiting)
    run.finish("FINISHED")
    assert run.num_failures == 0
    assert [file.path for file in client.list_artifacts(str(run.run_id))] == ["report.txt"]
    assert history(client, run.run_id, "loss") == [(1, 1.0)]
    assert ("Let it write there" in caplog.text) == errors.lacks_room(error)


def test_finishing_waits_for_a_limited_time(
    work: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracked_run_module, "UNAVAILABLE_SECONDS", 0.0)
    monkeypatch.setattr(tracked_run_module, "CLOSING_SECONDS", 0.0)
    run = TrackedRun(work, f"{work}/slow", "slow")
    with caplog.at_level(logging.WARNING, "tracking"):
        run.finish("FINISHED")
    assert "is slow: 2 entries of this run wait in" in caplog.text
    assert run._done.wait(60)


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED")],
)
def test_a_run_ends_as_its_block_does(
    work: str, client: MlflowClient, error: BaseException | None, status: str
) -> None:
    run = TrackedRun(work, f"{work}/{status}", status)
    with suppress(ValueError, KeyboardInterrupt), run:
        if error is not None:
            raise error
    assert run.run_id is not None
    assert client.get_run(run.run_id).info.status == status


def test_a_process_that_exits_without_ending_its_run_ends_it_as_failed(
    work: str, client: MlflowClient
) -> None:
    program = (
        "from albert_core.tracking.run import TrackedRun\n"
        f"run = TrackedRun({work!r}, {work + '/silent'!r}, 'silent')\n"
        "run.log_metrics(1, {'loss': 1.0})\n"
        "raise SystemExit(2)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    run_id = storage.read_bytes(f"{work}/silent/{server.RUN_ID}").decode()
    assert client.get_run(run_id).info.status == "FAILED"
    assert history(client, run_id, "loss") == [(1, 1.0)]


def test_a_database_in_a_folder_that_may_only_be_read_is_opened(
    empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FileLock", Mock(side_effect=PermissionError))
    server.create_database(empty_database)


def test_processes_that_start_together_make_one_whole_database(tmp_path: Path) -> None:
    code = (
        "import sys; from albert_core.tracking.server import experiment_id, open_client;"
        "work = sys.argv[1]; print(experiment_id(open_client(work), work))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    left = tmp_path / "mlflow.db.new"
    with closing(sqlite3.connect(left)) as half:  # of a process that was killed meanwhile
        half.execute("create table datasets (name text)")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    results = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 2, results
    assert len({output for output, _ in results}) == 1


def test_a_moved_work_folder_is_told_how_its_files_are_found(
    empty_database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    old, new = tmp_path / "old", tmp_path / "new work"
    old.mkdir()
    shutil.copy(empty_database, old)
    made = server.experiment_id(server.open_client(str(old)), str(old))
    old.rename(new)
    assert server.experiment_id(server.open_client(str(new)), str(new)) == made
    assert f"leave a link in its place: ln -s '{new}' {old}" in caplog.text
    caplog.clear()
    old.symlink_to(new)
    for work in (old, new):
        assert server.experiment_id(server.open_client(str(work)), str(work)) == made
    assert "ln -s" not in caplog.text


# -- the experiment, and models


def test_the_experiment_is_the_one_of_mlflows_own_variable(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of my team")
    folder = f"{work}/elsewhere"
    with TrackedRun(work, folder, "elsewhere") as first:
        pass
    experiment = client.get_experiment_by_name("of my team")
    assert experiment is not None
    run = client.get_run(str(first.run_id))
    assert run.info.experiment_id == experiment.experiment_id
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    with TrackedRun(work, folder, "elsewhere") as second:  # a run goes on where it began
        pass
    assert second.run_id == first.run_id


def test_what_a_run_made_and_used_is_an_output_and_an_input_once_each(
    work: str, client: MlflowClient
) -> None:
    made = server.Output(
        kind="checkpoint",
        folder=f"{work}/nowhere",
        digest="abc",
        step=20,
        params={"a": "1"},
        measured="held_out/",
        data=("examples/held_out", "d"),
    )
    folder = f"{work}/made"
    for _ in range(2):  # as a journal that is sent again
        with TrackedRun(work, folder, "made", {"recipe": "v1.2"}) as run:
            run.log_metrics(10, {"held_out/loss": 2.0})
            run.log_metrics(20, {"held_out/loss": 1.0, "loss": 3.0})
            run.log_model(made)
    assert run.num_failures == 0
    outputs = client.get_run(str(run.run_id)).outputs
    assert outputs is not None
    [output] = outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (model.name, output.step, model.params) == ("v1-2-step-20", 20, {"a": "1"})
    [loss] = model.metrics or []
    assert (loss.key, loss.value, loss.dataset_name) == ("held_out/loss", 1.0, "examples/held_out")
    assert history(client, run.run_id, "held_out/loss") == [(10, 2.0), (20, 1.0)]

    with TrackedRun(work, f"{work}/using", "using") as user:
        for digest in ("abc", "unknown to MLflow"):
            user.log_used_model(digest)
    assert user.num_failures == 0
    inputs = client.get_run(str(user.run_id)).inputs
    assert inputs is not None
    assert [each.model_id for each in inputs.model_inputs] == [output.model_id]
