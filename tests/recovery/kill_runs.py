"""Kill a part of the system at a random moment of a run, see who carries on, compare what is made.

``python -m tests.recovery.kill_runs --kills 30 --folder FOLDER`` starts Postgres, an S3 store,
MLflow, Prefect and two workers there, does one run undisturbed, then as many with a `kill -9` each,
and prints a table.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.production import Production
from tests.recovery.deployed_runs import (
    TERMINAL,
    Order,
    PrefectApi,
    digests,
    num_versions,
    write_source,
)
from tests.recovery.stack import stack
from tests.recovery.victims import (
    beam_worker,
    flow_process,
    is_there,
    kill,
    stage_name,
    stage_process,
)

VICTIMS = (
    "flow process",
    "training process",
    "Beam worker",
    "Prefect worker",
    "MLflow server",
    "Prefect server",
    "Postgres",
)
DEPLOYMENT = "pretrain-albert"
RUN_SECONDS = 900.0
SETTLE_SECONDS = 240.0
_LOOK_SECONDS = 0.3
_LOOKS_A_QUESTION = 10
"""Looks at the machine's processes for each question to Prefect, which costs it more."""


@dataclass(frozen=True)
class Row:
    """What was killed when, and what came of it."""

    victim: str
    stage: str
    """That ran at the kill."""
    at_seconds: float
    """After the run had begun."""
    at_once: str
    """The state of the run that was disturbed, in the end; and tasks that were tried again."""
    carried_on: str
    seconds: float
    """From the kill to the finished result."""
    is_equal: bool
    """Whether all digests are those of the undisturbed run."""
    num_versions: int
    left_running: list[str]

    @property
    def is_good(self) -> bool:
        """Whether the result is right, once, and nothing is said to run that does not."""
        return self.is_equal and self.num_versions == 1 and not self.left_running


class RunEndedError(Exception):
    """The run was over before its moment came: other processes left it more of the machine."""


class KillRuns:
    """A stack of servers, a source, and runs that are disturbed one after the other."""

    def __init__(self, production: Production, folder: Path, seed: int) -> None:
        self.production, self.folder = production, folder
        self.api = PrefectApi(production.prefect_url)
        self.random = random.Random(seed)
        self.source = write_source(folder / "source")
        self.expected: dict[str, str] = {}
        self.num_orders = 0
        self.run_seconds = self.training_seconds = 0.0

    def undisturbed(self) -> float:
        """Do a run that nothing disturbs; return its seconds."""
        order = self._order("undisturbed")
        run_id = self._start(order)
        began = time.monotonic()
        self._find(run_id, lambda: stage_process(order.work, "albert_core.training.pretrain"))
        trains = time.monotonic()
        while stage_process(order.work, "albert_core.training.pretrain"):
            time.sleep(_LOOK_SECONDS)
        self.training_seconds = time.monotonic() - trains
        state = self.api.await_state(run_id, TERMINAL, RUN_SECONDS)
        assert state == "COMPLETED", f"the undisturbed run is {state}"
        self.run_seconds = time.monotonic() - began
        self.expected = digests(order.work)
        return self.run_seconds

    def disturbed(self, number: int, victim: str) -> Row:
        """Do a run and kill ``victim`` at a random moment of it."""
        while True:
            self.num_orders += 1
            order = self._order(f"{number:02d}-{self.num_orders}")
            run_id = self._start(order)
            began = time.monotonic()
            try:
                pid, stage = self._victim(victim, order, run_id)
                break
            except RunEndedError:
                print(f"{victim}: the run was over before the moment came; another", flush=True)
        killed = time.monotonic()
        kill(pid)
        state = self.api.await_state(run_id, TERMINAL, RUN_SECONDS)
        tried_again = self._tries(run_id)
        carried_on = "the same run" + (", task tried again" if tried_again else "")
        if state != "COMPLETED":
            carried_on = "the next run"
            next_id = self._start(order)
            again = self.api.await_state(next_id, TERMINAL, RUN_SECONDS)
            assert again == "COMPLETED", f"after the {victim} the next run is {again}"
        seconds = time.monotonic() - killed
        self._until_up()
        return Row(
            victim=victim,
            stage=stage.rpartition(".")[2],
            at_seconds=round(killed - began, 1),
            at_once=state.capitalize() + "".join(f", {tried}" for tried in tried_again),
            carried_on=carried_on,
            seconds=round(seconds),
            is_equal=digests(order.work) == self.expected,
            num_versions=num_versions(self.production.mlflow_url, order.model_name),
            left_running=self._left_running(),
        )

    def _order(self, name: str) -> Order:
        return Order(self.source, self.folder / f"run-{name}", f"albert-{name}")

    def _start(self, order: Order) -> str:
        run_id = self.api.start(DEPLOYMENT, **order.parameters())
        self.api.await_state(run_id, {"RUNNING", *TERMINAL}, RUN_SECONDS)
        return run_id

    def _victim(self, victim: str, order: Order, run_id: str) -> tuple[int, str]:
        """Wait for a random moment at which the victim is there; return it, and the stage."""
        share = self.random.random()
        if victim == "training process":
            self._find(run_id, lambda: stage_process(order.work, "albert_core.training.pretrain"))
            time.sleep(share * 0.9 * self.training_seconds)
            found = self._find(
                run_id, lambda: stage_process(order.work, "albert_core.training.pretrain")
            )
        elif victim == "Beam worker":
            if share > 0.5:
                self._find(run_id, lambda: stage_process(order.work, "pipelines.make_examples"))
            self._find(run_id, lambda: beam_worker(order.work))
            time.sleep(share % 0.5)
            found = self._find(run_id, lambda: beam_worker(order.work))
        else:
            time.sleep(share * 0.95 * self.run_seconds)
            if self.api.state(run_id)[0] in TERMINAL:
                raise RunEndedError
            found = self._find(run_id, lambda: self._pid(victim, run_id))
        return found, stage_name(order.work)

    def _pid(self, victim: str, run_id: str) -> int | None:
        match victim:
            case "flow process":
                return flow_process(run_id)
            case "Prefect worker":
                name = self.random.choice(["worker 1", "worker 2"])
                return self.production.pid(name)
            case "Prefect server":
                return self.production.pid("Prefect")
            case "MLflow server":
                return self.production.pid("MLflow")
        return self.production.pid("Postgres")

    def _find(self, run_id: str, look: Callable[[], int | None]) -> int:
        looked = 0
        while True:
            found = look()
            if found is not None and is_there(found):
                return found
            looked += 1
            if looked % _LOOKS_A_QUESTION == 0 and self.api.state(run_id)[0] in TERMINAL:
                raise RunEndedError
            time.sleep(_LOOK_SECONDS)

    def _tries(self, run_id: str) -> list[str]:
        body = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = self.api.ask("/task_runs/filter", body)
        return [f"{t['name']} {t['run_count']} times" for t in tasks if t["run_count"] > 1]

    def _until_up(self) -> None:
        for name in ("Postgres", "S3", "MLflow", "Prefect", "worker 1", "worker 2"):
            self.production.wait_until_up(name)

    def _left_running(self) -> list[str]:
        """Return what is still said to run, after some time for the rules to see it."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := [*self.api.under_way(), *self._mlflow_running()]) != []:
            if time.monotonic() > deadline:
                return left
            time.sleep(5)
        return []

    def _mlflow_running(self) -> list[str]:
        from mlflow import MlflowClient

        client = MlflowClient(self.production.mlflow_url)
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(ids, "attributes.status = 'RUNNING'")
        return [f"MLflow run {run.info.run_name}" for run in runs]


def kill_runs(folder: Path, num_kills: int, seed: int = 0, first: int = 0) -> Iterator[Row]:
    """Yield a row for each kill; the first before the others are done.

    Args:
        folder: of all data.
        num_kills: of the victims in turn.
        seed: of the moments.
        first: number of the victim to begin with.
    """
    with stack(folder) as production:
        print(production.greeting(), flush=True)
        runs = KillRuns(production, folder, seed)
        print(f"undisturbed: {runs.undisturbed():.0f} s", flush=True)
        for number in range(num_kills):
            yield runs.disturbed(number + 1, VICTIMS[(first + number) % len(VICTIMS)])


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    head = [
        "killed",
        "in stage, at",
        "the run",
        "who carried on",
        "s",
        "digests",
        "versions",
        "left",
    ]
    lines = [head, ["---"] * len(head), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row) -> list[str]:
    return [
        row.victim,
        f"{row.stage}, {row.at_seconds:.0f} s",
        row.at_once,
        row.carried_on,
        f"{row.seconds:.0f}",
        "equal" if row.is_equal else "DIFFER",
        str(row.num_versions),
        ", ".join(row.left_running) or "none",
    ]


def main() -> int:
    """Do the runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stack is stopped
    rows: list[Row] = []
    folder = options.folder.absolute()
    for row in kill_runs(folder, options.kills, options.seed, options.first):
        rows.append(row)
        with (folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(table([row]).splitlines()[-1], flush=True)
    print(table(rows))
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
