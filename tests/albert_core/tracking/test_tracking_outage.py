"""A tracking server that fails for a while loses nothing and gets nothing twice: a real one."""

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from albert_core.stage import errors, storage
from albert_core.stage.lock import Owner
from albert_core.tracking import run as tracked_run_module
from albert_core.tracking.journal import Journal, journal_folder, journals_of, send_journals
from albert_core.tracking.run import TrackedRun
from albert_core.tracking.server import RUN_ID, Output
from tests.conftest import wait_until
from tests.mlflow_server import Gate, MlflowServer

LOGGING_PROCESS = """
import sys, time
from albert_core.tracking import run as tracking

tracking.UNAVAILABLE_SECONDS = 1.0
work, folder, name = sys.argv[1:]
run = tracking.TrackedRun(work, folder, name)
run.log_params({"model": {"hidden_size": 4}})
for step in range(100):
    run.log_metrics(step, {"loss": float(step)})
run.log_artifact(f"{folder}/report.txt")
print("logged", flush=True)
if name == "killed":
    time.sleep(600)
run.finish("FINISHED")
"""


@pytest.fixture
def gate(mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(mlflow_server.port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gate.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setattr(tracked_run_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tracked_run_module, "UNAVAILABLE_SECONDS", 4.0)
    yield gate
    gate.close()


@pytest.fixture
def client(mlflow_server: MlflowServer) -> MlflowClient:
    return MlflowClient(mlflow_server.url)


def points(client: MlflowClient, run_id: str | None, name: str = "loss") -> list[tuple[int, float]]:
    assert run_id is not None
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def expected(begin: int, end: int) -> list[tuple[int, float]]:
    return [(step, float(step)) for step in range(begin, end)]


def log(run: TrackedRun, begin: int, end: int) -> None:
    for step in range(begin, end):
        run.log_metrics(step, {"loss": float(step)})


def run_of(client: MlflowClient, folder: str) -> Run:
    return client.get_run(storage.read_bytes(f"{folder}/{RUN_ID}").decode())


def journal_of(gate: Gate, work: str, folder: str, num_steps: int) -> Journal:
    """Return the journal that a killed process leaves, open."""
    header = {"server": gate.url, "folder": folder, "name": "killed", "tags": {}}
    journal = Journal.begin(work, folder, header)
    for step in range(num_steps):
        journal.append({"metrics": {"loss": float(step)}, "step": step})
    return journal


def test_points_of_an_outage_arrive_afterwards_in_order_and_with_their_times(
    tmp_path: Path, gate: Gate, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/a"
    caplog.set_level(logging.INFO, "tracking")
    run = TrackedRun(work, folder, "outage")
    log(run, 0, 5)
    wait_until(lambda: run.num_waiting == 0)
    gate.is_shut = True
    began = time.time()
    log(run, 5, 3000)
    assert time.time() - began < 2
    ended = time.time()
    wait_until(lambda: "does not answer" in caplog.text)
    gate.is_shut = False
    run.finish("FINISHED")

    assert points(client, run.run_id) == expected(0, 3000)
    assert run.run_id is not None
    times = [point.timestamp / 1000 for point in client.get_metric_history(run.run_id, "loss")]
    assert began - 0.01 <= times[5] <= times[-1] <= ended + 0.01
    assert "MLflow answers again" in caplog.text
    assert caplog.text.count("does not answer") == 1
    assert run.num_failures == 0
    assert journals_of(work) == []


def test_a_server_that_does_not_answer_at_the_end_gets_all_from_the_next_run(
    tmp_path: Path, gate: Gate, client: MlflowClient
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/b"
    storage.write_bytes(f"{folder}/report.txt", b"good")
    gate.is_shut = True
    done = subprocess.run(
        [sys.executable, "-c", LOGGING_PROCESS, work, folder, "left"],
        capture_output=True,
        text=True,
        check=True,
    )
    ended = time.time()
    [journal] = journals_of(work)
    assert f"is unavailable: 104 entries of this run wait in {journal}" in done.stderr
    gate.is_shut = False
    with TrackedRun(work, f"{tmp_path}/finetuning/c", "next"):
        wait_until(lambda: not journal.exists())

    found = run_of(client, folder)
    assert (found.info.status, found.info.run_name[:6]) == ("FINISHED", "left: ")
    assert abs(found.info.end_time / 1000 - ended) < 20
    assert found.data.params == {"model.hidden_size": "4"}
    assert points(client, found.info.run_id) == expected(0, 100)
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.txt"]


def test_a_run_killed_in_an_outage_is_whole_after_the_resume(
    tmp_path: Path, gate: Gate, client: MlflowClient
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/d"
    gate.is_shut = True
    journal_of(gate, work, folder, 100).close()
    run = TrackedRun(work, folder, "killed")
    log(run, 80, 120)  # from its checkpoint on
    assert run.run_id is None
    gate.is_shut = False
    run.finish("FINISHED")
    assert points(client, run.run_id) == expected(0, 120)
    assert run_of(client, folder).info.status == "FINISHED"
    assert journals_of(work) == []


def test_a_run_whose_process_is_gone_is_ended_as_killed(
    tmp_path: Path, gate: Gate, client: MlflowClient
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/e"

    def is_left_to_its_process() -> bool:
        assert "0 sent, 1 of living processes" in send_journals(work)
        return storage.exists(f"{folder}/{RUN_ID}")

    command = [sys.executable, "-c", LOGGING_PROCESS, work, folder, "killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "logged\n"
        wait_until(is_left_to_its_process)
        process.send_signal(signal.SIGKILL)
    gate.is_shut = True
    with pytest.raises(errors.OutageError, match="does not answer"):
        send_journals(work)
    gate.is_shut = False
    assert "1 sent" in send_journals(work)
    found = run_of(client, folder)
    assert found.info.status == "KILLED"
    assert points(client, found.info.run_id) == expected(0, 100)


@pytest.mark.parametrize("request_path", ["runs/create", "runs/log-batch", "logged-models"])
def test_answers_that_are_lost_make_nothing_twice(
    tmp_path: Path, gate: Gate, client: MlflowClient, request_path: str
) -> None:
    gate.lost_answers = request_path
    run = TrackedRun(str(tmp_path), f"{tmp_path}/pretraining/f", request_path)
    run.log_params({"seed": 1})
    run.log_model(Output(kind="checkpoint", folder="/nowhere", digest="abc", step=4))
    log(run, 0, 5)
    wait_until(lambda: gate.num_lost >= 2)
    gate.lost_answers = ""
    run.finish("FINISHED")
    experiments = [each.experiment_id for each in client.search_experiments()]
    found = client.search_runs(experiments, f"attributes.run_name LIKE '{request_path}: %'")
    assert [each.info.run_id for each in found] == [run.run_id]
    assert points(client, run.run_id) == expected(0, 5)
    assert len(client.search_logged_models(experiments, f"source_run_id = '{run.run_id}'")) == 1
    assert run.num_failures == 0


def test_a_journal_for_another_server_waits_for_it(tmp_path: Path, gate: Gate) -> None:
    work = str(tmp_path)
    journal = Journal.begin(work, f"{work}/pretraining/g", {"server": "http://elsewhere"})
    journal.close()
    assert "0 sent, 0 of living processes, 1 for another server" in send_journals(work)
    assert journal.path.exists()


def test_where_the_file_system_has_no_locks_a_journal_has_a_lease(
    tmp_path: Path, gate: Gate, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/l"
    living = journal_of(gate, work, folder, 3)
    assert "0 sent, 1 of living processes" in send_journals(work)
    lease = next(journal_folder(work).glob("*.lease/000001.json"))
    living.close()
    lease.parent.mkdir()
    owner = Owner.this_process().model_copy(update={"started": "before"})  # killed
    lease.write_text(owner.model_dump_json())
    assert "1 sent, 0 of living processes" in send_journals(work)
    assert points(client, run_of(client, folder).info.run_id) == expected(0, 3)
    assert list(journal_folder(work).iterdir()) == []


def test_a_journal_without_a_header_holds_up_no_other(
    tmp_path: Path, gate: Gate, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/j"
    journal = journal_of(gate, work, folder, 3)
    journal.close()
    left = journal.path
    begun = left.with_suffix(".tmp")
    begun.touch()  # of a process that was killed as it began
    (left.parent / "1-host-2~pretraining-a.jsonl").touch()
    (left.parent / "1-host-3~pretraining-a.jsonl").write_text("[]\n")
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda file, line, at: 0)
        with pytest.raises(OSError, match="No space left"):
            Journal.begin(work, folder, {"name": "full"})
    assert "2 sent, 1 damaged and set aside" in send_journals(work)
    assert run_of(client, folder).info.status == "KILLED"
    damaged = left.parent / "1-host-3~pretraining-a.damaged"
    assert sorted(left.parent.iterdir()) == sorted([begun, damaged])


def test_a_journal_that_comes_late_adds_its_points_and_ends_nothing(
    tmp_path: Path, gate: Gate, client: MlflowClient
) -> None:
    work, folder = str(tmp_path), f"{tmp_path}/pretraining/k"
    late = journal_of(gate, f"{work}/another-machine", folder, 5)
    run = TrackedRun(work, folder, "late")
    log(run, 3, 10)
    run.finish("FINISHED")
    ended = run_of(client, folder).info.end_time
    late.close()
    late.path.rename(journal_folder(work) / late.path.name)
    send_journals(work)
    found = run_of(client, folder)
    assert sorted(points(client, found.info.run_id)) == expected(0, 10)
    assert (found.info.status, found.info.end_time) == ("FINISHED", ended)


def test_a_disk_that_was_full_loses_what_it_had_no_room_for_alone_and_half_a_line_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.begin(str(tmp_path), f"{tmp_path}/pretraining/i", {"name": "full"})
    with monkeypatch.context() as full:
        write = os.pwrite
        full.setattr(os, "pwrite", lambda file, line, at: write(file, line[:9], at))
        with pytest.raises(OSError, match="No space left"):
            journal.append({"step": 1})
    journal.append({"step": 2})
    with journal.path.open("ab") as file:
        file.write(b'{"step": 3, "metr')  # of a process that was killed
    assert [entry.get("step") for entry in journal.read()] == [None, 2]
    journal.close()
