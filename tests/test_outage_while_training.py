"""MLflow is unavailable for two minutes while a model is trained.

About six minutes: ``pytest -m long -s tests/test_outage_while_training.py`` prints the speeds.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from mlflow import MlflowClient

from albert_core.tracking.journal import journals_of
from albert_core.tracking.server import RUN_ID
from tests.albert_core.training_runs import make_days, recipe_file, with_settings
from tests.mlflow_server import MlflowServer

PHASE_SECONDS = {"before": 75.0, "down": 120.0, "after": 75.0}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_minutes_without_mlflow_cost_no_point_and_no_time(tmp_path: Path) -> None:
    examples = make_days(tmp_path / "days", seed=0, num_documents=300)
    settings = with_settings(
        num_steps=1_000_000, log_steps=5, checkpoint_steps=500, evaluation_steps=500
    )
    work = tmp_path / "work"
    command = [sys.executable, "-m", "albert_core.training.pretrain", f"--examples={examples}"]
    command += [f"--recipe={recipe_file(tmp_path, settings)}", f"--work={work}"]
    with MlflowServer(tmp_path / "mlflow-server") as server:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": server.url}
        with (tmp_path / "training.log").open("wb") as log:
            training = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            moments = sit_through_outage(training, server, work)
        finally:
            training.send_signal(signal.SIGTERM)  # it saves, and ends
            training.wait(timeout=180)
        said = (tmp_path / "training.log").read_text()
        assert "the run goes on, and its entries wait in" in said
        assert "MLflow answers again" in said
        assert journals_of(str(work)) == []
        [folder] = (work / "pretraining").iterdir()
        client, run_id = MlflowClient(server.url), (folder / RUN_ID).read_text()
        names = [
            n
            for n in client.get_run(run_id).data.metrics
            if not n.startswith(("planned_", "system/"))
        ]
        curves = {name: client.get_metric_history(run_id, name) for name in names}
    arrived = Counter((name, point.step) for name, curve in curves.items() for point in curve)
    expected = reported(folder)
    names_told = {name for name, _ in expected}
    assert Counter(point for point in arrived.elements() if point[0] in names_told) == expected
    assert set(arrived.values()) == {1}
    times = sorted(point.timestamp / 1000 for point in curves["masked_lm_loss"])
    seconds = {
        phase: statistics.median(
            end - begin
            for begin, end in pairwise(times)
            if moments[number] <= begin and end <= moments[number + 1]
        )
        for number, phase in enumerate(PHASE_SECONDS)
    }
    print(f"\n{arrived.total():,} points, all there, none twice; seconds of 5 updates: {seconds}")
    assert seconds["down"] < 1.25 * statistics.mean([seconds["before"], seconds["after"]])


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


def reported(folder: Path) -> Counter[tuple[str, int]]:
    """Return what the run itself says it has reported, but for its speed: (metric, step)."""
    newest = max(folder.glob("checkpoints/step-*/checkpoint.json"))
    record = json.loads(newest.read_text())
    before = Counter((f"held_out/{name}", 0) for name in record["before"])
    return before + Counter(
        (f"{prefix}{name}", point["step"])
        for prefix, curve in (("", "history"), ("held_out/", "evaluations"))
        for point in record[curve]
        for name in point.keys() - {"step"}
    )
