"""Parts of the system are killed at random moments, and every run ends with the same result.

ALBERT_TEST_KILLS says how many are killed, one in a run; without it, each part once.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from infra.production import Production
from tests.generated_text import write_source
from tests.infra.stack import stack
from tests.recovery import deployed_runs as running

VICTIMS = (
    "flow process",
    "training process",
    "Beam worker",
    "Prefect worker",
    "MLflow",
    "Prefect",
    "Postgres",
)
NUM_KILLS = int(os.environ.get("ALBERT_TEST_KILLS", str(len(VICTIMS))))
RUN_SECONDS = 900.0
SETTLE_SECONDS = 240.0
_LOOK_SECONDS = 0.3
_LOOKS_A_QUESTION = 10
"""Looks at the machine's processes for each question to Prefect, which costs it more."""


class RunEndedError(Exception):
    """The run was over before its moment came: other processes left it more of the machine."""


class KillRuns:
    """A stack of servers, a source, and runs that are disturbed one after the other."""

    def __init__(self, production: Production, folder: Path) -> None:
        self.production, self.folder = production, folder
        self.api = running.PrefectApi(production.prefect_url, production.work)
        self.random = random.Random(0)
        self.source = write_source(folder / "source", 40)
        self.expected: dict[str, str] = {}
        self.num_orders = 0
        self.run_seconds = self.training_seconds = 0.0

    def undisturbed(self) -> None:
        """Do a run that nothing disturbs, to learn its result and how long it takes."""
        order, run_id, began = self._start()
        self._find(run_id, lambda: running.stage_process(order.work, running.TRAINING))
        trains = time.monotonic()
        while running.stage_process(order.work, running.TRAINING):
            time.sleep(_LOOK_SECONDS)
        self.training_seconds = time.monotonic() - trains
        state = self.api.await_state(run_id, running.TERMINAL, RUN_SECONDS)
        assert state == "COMPLETED", f"the undisturbed run is {state}"
        self.run_seconds = time.monotonic() - began
        self.expected = running.digests(order.work)

    def disturbed(self, victim: str) -> list[str]:
        """Do a run and kill ``victim`` at a random moment of it; return what is wrong after it."""
        while True:
            order, run_id, began = self._start()
            try:
                process, stage = self._victim(victim, order, run_id)
                break
            except RunEndedError:
                print(f"{victim}: the run was over before the moment came; another", flush=True)
        killed = time.monotonic()
        process.kill()
        state = self.api.await_state(run_id, running.TERMINAL - {"CRASHED"}, RUN_SECONDS)
        assert state == "COMPLETED", f"after the {victim} the run is {state}"
        begun = self.api.ask(f"/flow_runs/{run_id}")["run_count"]
        print(
            f"{victim}, killed in {stage} at {killed - began:.0f} s: the run began {begun} times, "
            f"tried again {self._tried_again(run_id)}, done in {time.monotonic() - killed:.0f} s",
            flush=True,
        )
        self._wait_until_up()
        wrong = self._left_running()
        if running.digests(order.work) != self.expected:
            wrong.append("other digests than those of the undisturbed run")
        if (number := running.num_versions(self.production.mlflow_url, order.model_name)) != 1:
            wrong.append(f"{number} versions")
        return [f"{victim}: {each}" for each in wrong]

    def _start(self) -> tuple[running.Order, str, float]:
        """Return what the next run has to do, its id, and when it began."""
        self.num_orders += 1
        name = f"{self.num_orders:02d}"
        order = running.Order(self.source, self.folder / f"run-{name}", f"albert-{name}")
        run_id = self.api.start("pretrain-albert", **order.parameters())
        self.api.await_state(run_id, {"RUNNING", *running.TERMINAL}, RUN_SECONDS)
        return order, run_id, time.monotonic()

    def _victim(self, victim: str, order: running.Order, run_id: str) -> tuple[psutil.Process, str]:
        """Wait for a random moment at which the victim is there; return it, and the stage."""
        share = self.random.random()
        if victim == "training process":
            self._find(run_id, lambda: running.stage_process(order.work, running.TRAINING))
            time.sleep(share * 0.9 * self.training_seconds)
            found = self._find(run_id, lambda: running.stage_process(order.work, running.TRAINING))
        elif victim == "Beam worker":
            if share > 0.5:
                self._find(
                    run_id, lambda: running.stage_process(order.work, "pipelines.make_examples")
                )
            self._find(run_id, lambda: running.beam_worker(order.work))
            time.sleep(share % 0.5)
            found = self._find(run_id, lambda: running.beam_worker(order.work))
        else:
            time.sleep(share * 0.95 * self.run_seconds)
            if self.api.state(run_id)[0] in running.TERMINAL:
                raise RunEndedError
            found = self._find(run_id, lambda: self._process(victim, run_id))
        return found, running.stage_name(order.work)

    def _process(self, victim: str, run_id: str) -> psutil.Process | None:
        if victim == "flow process":
            return running.flow_process(run_id)
        name = self.random.choice(["worker 1", "worker 2"]) if "worker" in victim else victim
        return self.production.by_name[name].process

    def _find(self, run_id: str, look: Callable[[], psutil.Process | None]) -> psutil.Process:
        looked = 0
        while True:
            found = look()
            if found is not None and running.is_there(found):
                return found
            looked += 1
            if looked % _LOOKS_A_QUESTION == 0 and self.api.state(run_id)[0] in running.TERMINAL:
                raise RunEndedError
            time.sleep(_LOOK_SECONDS)

    def _tried_again(self, run_id: str) -> list[str]:
        body = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = self.api.ask("/task_runs/filter", body)
        return [f"{t['name']} {t['run_count']} times" for t in tasks if t["run_count"] > 1]

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while down := [s.name for s in self.production.by_name.values() if not s.is_up]:
            assert time.monotonic() < deadline, f"{down} did not come back"
            time.sleep(_LOOK_SECONDS)

    def _left_running(self) -> list[str]:
        """Return what is still said to run, after some time for the rules to see it."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := [*self.api.under_way(), *self._mlflow_running()]) != []:
            if time.monotonic() > deadline:
                return left
            time.sleep(5)
        return []

    def _mlflow_running(self) -> list[str]:
        client = MlflowClient(self.production.mlflow_url)
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(ids, "attributes.status = 'RUNNING'")
        return [f"MLflow run {run.info.run_name}" for run in runs]


@pytest.mark.long
@pytest.mark.timeout(2 * (NUM_KILLS + 1) * RUN_SECONDS)
def test_whatever_is_killed_the_result_is_the_same_and_nothing_stays_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    with stack(tmp_path / "stack") as production:
        runs = KillRuns(production, tmp_path)
        runs.undisturbed()
        wrong = [
            each
            for number in range(NUM_KILLS)
            for each in runs.disturbed(VICTIMS[number % len(VICTIMS)])
        ]
    assert wrong == []
