"""MLflow, on Postgres, is unavailable for two minutes while a model is trained.

About six minutes: ``pytest -m long -s tests/test_outage_while_training.py`` prints the table.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from albert_core.tracking.journal import journals_of
from albert_core.tracking.server import RUN_ID
from infra.production import Postgres
from tests.albert_core.training_runs import make_days, recipe_file, with_settings
from tests.mlflow_server import MlflowServer, free_port

PHASE_SECONDS = {"before": 75.0, "down": 120.0, "after": 75.0}
LOG_STEPS = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MlflowServer]:
    pytest.importorskip("psycopg2")
    open_to_all = Path(tempfile.mkdtemp(prefix="albert-postgres-"))  # it runs as another user
    open_to_all.chmod(0o755)
    postgres = Postgres(open_to_all / "postgres", free_port(), tmp_path / "secrets" / "password")
    postgres.prepare()
    with (tmp_path / "postgres.log").open("wb") as log:
        process = subprocess.Popen(postgres.command(), stdout=log, stderr=log, cwd="/")
    try:
        while not postgres.is_up():
            assert process.poll() is None, (tmp_path / "postgres.log").read_text()
            time.sleep(0.2)
        postgres.create_database("mlflow")
        url = postgres.url("mlflow", "postgresql")
        with MlflowServer(tmp_path / "mlflow-server", url) as server:
            yield server
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(open_to_all)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_minutes_without_mlflow_cost_no_point_and_no_time(
    tmp_path: Path, server: MlflowServer
) -> None:
    examples = make_days(tmp_path / "days", seed=0, num_documents=300)
    settings = with_settings(
        num_steps=1_000_000, log_steps=LOG_STEPS, checkpoint_steps=500, evaluation_steps=500
    )
    work = tmp_path / "work"
    command = [sys.executable, "-m", "albert_core.training.pretrain", f"--examples={examples}"]
    command += [f"--recipe={recipe_file(tmp_path, settings)}", f"--work={work}"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.url}
    with (tmp_path / "training.log").open("wb") as log:
        training = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        moments = sit_through_outage(training, server, work)
    finally:
        training.send_signal(signal.SIGTERM)  # it saves, and ends
        training.wait(timeout=180)
    said = (tmp_path / "training.log").read_text()
    assert "the run goes on, and what it logs waits in" in said
    assert "MLflow answers again" in said
    assert journals_of(str(work)) == []

    [folder] = (work / "pretraining").iterdir()
    client = MlflowClient(server.url)
    run_id = (folder / RUN_ID).read_text()
    seconds = seconds_an_update(client, run_id, moments)
    print(f"\n{table(seconds)}")
    points = points_at(client, run_id)
    assert points == points_of(newest_record(folder))
    print(f"\n{points.total():,} points, all there, none twice")
    usual = statistics.median([*seconds["before"], *seconds["after"]])
    assert statistics.median(seconds["down"]) < 1.25 * usual


def sit_through_outage(
    training: "subprocess.Popen[bytes]", server: MlflowServer, work: Path
) -> list[float]:
    """Stop the server for a while; return the times when each phase began, and the end."""
    while not list(work.glob(f"pretraining/*/{RUN_ID}")):
        assert training.poll() is None
        time.sleep(0.5)
    time.sleep(10)  # the first updates are slower
    moments = [time.time()]
    for phase, seconds in PHASE_SECONDS.items():
        if phase == "down":
            server.stop()
        time.sleep(seconds)
        assert training.poll() is None
        moments.append(time.time())
        if phase == "down":
            server.start()
    return moments


def newest_record(folder: Path) -> dict[str, Any]:
    paths = sorted(folder.glob("checkpoints/step-*/checkpoint.json"))
    record: dict[str, Any] = json.loads(paths[-1].read_text())
    return record


def points_of(record: dict[str, Any]) -> Counter[tuple[str, int]]:
    """Return what the run itself says it has reported: (metric, step), each once."""
    curves = ("", record["history"]), ("held_out/", record["evaluations"])
    return Counter(
        (f"{prefix}{name}", point["step"])
        for prefix, points in curves
        for point in points
        for name in point.keys() - {"step"}
    )


def points_at(client: MlflowClient, run_id: str) -> Counter[tuple[str, int]]:
    """Return the points that MLflow has, except the plan's speed, which is not on a curve."""
    names = [n for n in client.get_run(run_id).data.metrics if not n.startswith("planned_")]
    return Counter(
        (name, point.step) for name in names for point in client.get_metric_history(run_id, name)
    )


def seconds_an_update(
    client: MlflowClient, run_id: str, moments: list[float]
) -> dict[str, list[float]]:
    """Return the seconds of an update in each phase, by the times of MLflow's own points."""
    history = client.get_metric_history(run_id, "masked_lm_loss")
    times = sorted(point.timestamp / 1000 for point in history)
    return {
        phase: [
            (end - begin) / LOG_STEPS
            for begin, end in pairwise(times)
            if moments[number] <= begin and end <= moments[number + 1]
        ]
        for number, phase in enumerate(PHASE_SECONDS)
    }


def table(seconds: dict[str, list[float]]) -> str:
    lines = ["| MLflow | updates | ms an update, median | quartiles |", "| --- | --- | --- | --- |"]
    for phase, found in seconds.items():
        low, middle, high = (1000 * each for each in statistics.quantiles(found, n=4))
        name = {"before": "up", "down": "down for 120 s", "after": "up again"}[phase]
        lines.append(
            f"| {name} | {LOG_STEPS * len(found):,} | {middle:.1f} | {low:.1f} to {high:.1f} |"
        )
    return "\n".join(lines)
