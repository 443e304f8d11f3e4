"""Runs of deployments on real servers: cancelled, preempted, doubled, repeated, refreshed."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from infra.deployments import main as deploy
from infra.deployments import make_pools
from infra.production import Production
from infra.serve import PROJECT
from tests.conftest import wait_until
from tests.generated_text import write_source
from tests.infra.stack import stack
from tests.infra.test_deployments import client_of
from tests.recovery import deployed_runs as running
from tests.test_end_to_end import ALBERT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
RUN_SECONDS = 900.0


@dataclass
class Deployed:
    """The stack, and what was done in it."""

    production: Production
    api: running.PrefectApi
    folder: Path
    source: Path

    def order(self, name: str) -> running.Order:
        return running.Order(self.source, self.folder / name, f"albert-{name}")

    def start(self, order: running.Order, deployment: str = "pretrain-albert") -> str:
        return self.api.start(deployment, **order.parameters())

    def finish(self, run_id: str) -> str:
        return self.api.await_state(run_id, running.TERMINAL, RUN_SECONDS)

    def run(self, order: running.Order, deployment: str = "pretrain-albert") -> str:
        run_id = self.start(order, deployment)
        assert self.finish(run_id) == "COMPLETED", self.api.log_of(run_id)
        return run_id

    def seconds(self, run_id: str) -> float:
        return float(self.api.ask(f"/flow_runs/{run_id}")["total_run_time"])

    def num_versions(self, order: running.Order) -> int:
        return running.num_versions(self.production.mlflow_url, order.model_name)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(folder / "home"))
        with stack(folder / "stack", ALBERT_RESTARTS="1") as production:
            api = running.PrefectApi(production.prefect_url, production.work)
            source = write_source(folder / "source", 40)
            yield Deployed(production, api, folder, source)


@pytest.fixture(scope="module")
def first(deployed: Deployed) -> tuple[running.Order, str]:
    """A run that nothing disturbs, and its id."""
    order = deployed.order("first")
    return order, deployed.run(order)


@pytest.fixture(scope="module")
def made(first: tuple[running.Order, str]) -> dict[str, str]:
    """What that run made; a refresh that comes later adds an audit."""
    return running.digests(first[0].work)


def wait_for_checkpoint(work: Path) -> psutil.Process:
    """Return the training process as soon as it has written a checkpoint."""
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        training = running.stage_process(work, running.TRAINING)
        if training and any(work.glob("pretraining/*/checkpoints/step-*")):
            return training
        time.sleep(0.1)
    raise AssertionError("no training wrote a checkpoint")


def test_a_repeated_run_takes_seconds_and_registers_nothing_new(
    deployed: Deployed, first: tuple[running.Order, str], made: dict[str, str]
) -> None:
    order, run_id = first
    again = deployed.run(order)
    assert "to do, because" not in deployed.api.log_of(again)
    assert running.digests(order.work) == made
    assert deployed.num_versions(order) == 1
    refresh = deployed.run(order, "refresh-corpus")
    [due] = re.findall(r"(\w+): to do, because", deployed.api.log_of(refresh))
    assert due == "audit"  # which a pretraining does without
    took = {name: round(deployed.seconds(i)) for name, i in (("first", run_id), ("again", again))}
    print(f"seconds: {took}, a refresh with nothing new {deployed.seconds(refresh):.0f}")


def test_a_cancelled_run_saves_its_training_and_the_next_one_resumes(
    deployed: Deployed, made: dict[str, str]
) -> None:
    order = deployed.order("cancelled")
    run_id = deployed.start(order)
    training = wait_for_checkpoint(order.work)
    deployed.api.cancel(run_id)
    assert deployed.finish(run_id) == "CANCELLED"
    assert not running.is_there(training)
    assert "told to stop: step" in deployed.api.log_of(run_id)
    deployed.run(order)
    assert running.digests(order.work) == made


def test_a_preempted_training_is_tried_again_in_the_same_run_and_resumes(
    deployed: Deployed, made: dict[str, str]
) -> None:
    order = deployed.order("preempted")
    run_id = deployed.start(order)
    wait_for_checkpoint(order.work).terminate()
    assert deployed.finish(run_id) == "COMPLETED"
    assert "ended with status 75" in deployed.api.log_of(run_id)
    assert running.digests(order.work) == made


def test_a_run_whose_process_is_killed_is_started_again_as_often_as_it_may_be(
    deployed: Deployed, made: dict[str, str]
) -> None:
    order = deployed.order("killed")
    run_id = deployed.start(order)
    for count in (1, 2):
        deadline = time.monotonic() + RUN_SECONDS
        while (
            deployed.api.ask(f"/flow_runs/{run_id}")["run_count"] < count
            or (process := running.flow_process(run_id)) is None
        ):
            assert time.monotonic() < deadline, f"start {count} did not come"
            time.sleep(0.5)
        process.kill()
        assert deployed.finish(run_id) == "CRASHED"
    time.sleep(90)  # in which a third start would have come
    assert deployed.api.state(run_id) == ("CRASHED", "Crashed")
    deployed.run(order)
    assert running.digests(order.work) == made


def test_of_two_runs_at_once_one_works_and_the_other_waits(
    deployed: Deployed, made: dict[str, str]
) -> None:
    """One by a worker and one by hand: limits of queues know nothing of the latter."""
    order = deployed.order("twice")
    by_worker = deployed.start(order)
    parameters = order.parameters()
    overrides = parameters["overrides"]
    assert isinstance(overrides, list)
    by_hand = subprocess.run(
        [
            *(ALBERT, "pretrain", "--recipe=tiny"),
            *(f"--source={order.source}", f"--work={order.work}"),
            *(f"--set={override}" for override in overrides),
        ],
        cwd=PROJECT,
        env={**os.environ, **deployed.production.environment},
        capture_output=True,
        text=True,
    )
    assert by_hand.returncode == 0, by_hand.stdout + by_hand.stderr
    assert deployed.finish(by_worker) == "COMPLETED"
    lines = by_hand.stdout + by_hand.stderr + deployed.api.log_of(by_worker)
    assert re.search(r"is being made by process \d+ on .*, since .*: waiting", lines)
    assert lines.count("corpus: to do, because") == lines.count("pretraining: to do, because") == 1
    assert running.digests(order.work) == made
    assert deployed.num_versions(order) == 1


@pytest.fixture
def texts(deployed: Deployed) -> Iterator[str]:
    """A pool of its own for refresh-corpus, with a worker."""
    pool, name = "texts", "worker of texts"
    production = deployed.production
    with client_of(f"{production.prefect_url}/api", production.work) as client:
        make_pools(client, {pool})
        assert deploy(["--name=refresh-corpus", f"--pool={pool}"]) == 0
        command = (sys.executable, "-m", "prefect", "worker", "start", "--type=process")
        worker = production.start(name, *command, f"--pool={pool}", keeps_children=True)
        yield pool
        assert deploy(["--name=refresh-corpus", "--pool=albert"]) == 0
    del production.by_name[name]
    worker.stop()


def test_the_text_is_made_in_the_pool_of_the_refresh(
    deployed: Deployed, made: dict[str, str], texts: str
) -> None:
    order = deployed.order("elsewhere")
    run_id = deployed.run(order)
    [refresh] = deployed.api.children_of(run_id)
    assert (refresh["work_pool_name"], refresh["state_type"]) == (texts, "COMPLETED")
    for stage in ("corpus", "vocab", "examples"):
        assert f"{stage}: to do, because" not in deployed.api.log_of(run_id)
        assert f"{stage}: to do, because" in deployed.api.log_of(refresh["id"])
    found = running.digests(order.work)
    assert found.pop("audit")  # by the refresh
    assert found == made


def test_a_refresh_is_cancelled_with_the_run_that_waits_for_it(
    deployed: Deployed, texts: str, tmp_path: Path
) -> None:
    # The worker tells a run some seconds later that it is cancelled: the text takes longer.
    source = write_source(tmp_path / "source", 5000)
    run_id = deployed.start(replace(deployed.order("both-cancelled"), source=source))
    [refresh] = wait_until(lambda: deployed.api.children_of(run_id), RUN_SECONDS)
    assert refresh["work_pool_name"] == texts
    assert deployed.api.await_state(refresh["id"], {"RUNNING"}, RUN_SECONDS)
    deployed.api.cancel(run_id)
    assert deployed.finish(run_id) == "CANCELLED"
    assert deployed.finish(refresh["id"]) == "CANCELLED"
