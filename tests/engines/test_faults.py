"""A real engine loses a process while a stage runs: equal bytes, at once or by the next run."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from albert_core.stage.command import FAILURE_STATUS, RUN_AGAIN_STATUS, stage_argv
from tests.conftest import wait_until
from tests.engines import real
from tests.engines.stages import Done, Stages, finish, processes, start, wait_for
from tests.engines.test_same_bytes import FLINK, SPARK, engine, own_server, variables

pytestmark = pytest.mark.engines

WORKER = b"albert-beam-worker"
PRISM = variables("portable", "localhost:8073")
CLUSTERS = {
    "flink": "flink cluster, own job server",
    "spark": "spark cluster, own job server",
    "prism": "prism",
}
every_kind = pytest.mark.parametrize("kind", CLUSTERS)


def needs(kind: str) -> None:
    if reason := real.missing(kind):
        pytest.skip(reason)


def disturbed_stage(
    environment: Mapping[str, str], made_locally: Stages, folder: Path, victim: int | bytes = WORKER
) -> "subprocess.Popen[str]":
    """Make examples, and kill a process while parts are made.

    Args:
        environment: of the engine.
        made_locally: what is to be made.
        folder: for the work.
        victim: number of the process to kill, or a word of its command line.
    """
    stage = made_locally.elsewhere(folder, environment).start("make_examples")
    parts = folder / "parts"
    wait_for(lambda: parts.exists() and any(parts.glob("*.json")), stage)
    os.kill(victim if isinstance(victim, int) else processes(victim)[0], signal.SIGKILL)
    return stage


def ended(stage: "subprocess.Popen[str]") -> Done:
    """Return how a stage ends of which a process was killed."""
    done = finish(stage)
    assert done.status in (0, RUN_AGAIN_STATUS), done.output
    return done


def examples_are_equal(environment: Mapping[str, str], made_locally: Stages, folder: Path) -> None:
    """Run the stage again, or find it done."""
    stages = made_locally.elsewhere(folder, environment)
    stages.make("make_examples")
    assert stages.contents["examples"] == made_locally.contents["examples"]


def test_prism_loses_a_worker(made_locally: Stages, tmp_path: Path) -> None:
    needs("prism")
    with real.prism(tmp_path / "prism"):
        done = ended(disturbed_stage(PRISM, made_locally, tmp_path / "work"))
        assert "Traceback" not in done.output
        examples_are_equal(PRISM, made_locally, tmp_path / "work")


@pytest.mark.parametrize("restarts", [0, 3], ids=["as it comes", "with a restart strategy"])
@pytest.mark.parametrize("lost", ["worker", "task manager"])
def test_flink_loses_a_worker_or_a_task_manager(
    lost: str, restarts: int, made_locally: Stages, tmp_path: Path
) -> None:
    needs("flink")
    with real.flink_cluster(tmp_path / "cluster", restarts) as cluster:
        environment = own_server("flink", FLINK, tmp_path)
        victim = cluster.pid("taskmanager1") if lost == "task manager" else WORKER
        stage = disturbed_stage(environment, made_locally, tmp_path / "work", victim)
        if lost == "task manager":
            real.replace_task_manager(cluster, "taskmanager3")
        ended(stage)
        examples_are_equal(environment, made_locally, tmp_path / "work")


@pytest.mark.parametrize("victim", [WORKER, b"CoarseGrainedExecutorBackend"])
def test_spark_loses_a_worker_or_an_executor(
    victim: bytes, made_locally: Stages, tmp_path: Path
) -> None:
    needs("spark")
    with real.spark_cluster(tmp_path / "cluster"):
        environment = own_server("spark", SPARK, tmp_path)
        # Spark tries a task four times; all four may meet the lost worker before it is replaced.
        ended(disturbed_stage(environment, made_locally, tmp_path / "work", victim))
        examples_are_equal(environment, made_locally, tmp_path / "work")


@pytest.mark.parametrize("kind", ["flink", "prism"])
def test_a_master_is_lost_and_comes_back(kind: str, made_locally: Stages, tmp_path: Path) -> None:
    needs(kind)
    run = {"flink": real.flink_cluster, "prism": real.prism}[kind]
    with run(tmp_path / "cluster") as cluster:
        environment = own_server("flink", FLINK, tmp_path) if kind == "flink" else PRISM
        master = cluster.pid("jobmanager") if kind == "flink" else cluster.process.pid
        done = ended(disturbed_stage(environment, made_locally, tmp_path / "work", master))
        assert done.status == RUN_AGAIN_STATUS
        assert "Traceback" not in done.output
    with run(tmp_path / "another"):
        examples_are_equal(environment, made_locally, tmp_path / "work")


def toy(folder: Path, **settings: object) -> list[str]:
    """Return the command line of the toy stage."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps({"toy": settings}))
    return stage_argv("tests.toy_stage", str(recipe), work=str(folder / "work"))


@every_kind
def test_a_store_that_is_away_is_tried_again(kind: str, tmp_path: Path) -> None:
    with engine(CLUSTERS[kind], tmp_path) as environment:
        done = finish(start(toy(tmp_path, store_away_at=3), environment))
    assert done.status == RUN_AGAIN_STATUS, done.output
    assert "ConnectionResetError: the store is away" in done.output
    assert "Traceback" not in done.output


@every_kind
def test_an_error_of_a_step_arrives_as_it_was_raised(kind: str, tmp_path: Path) -> None:
    with engine(CLUSTERS[kind], tmp_path) as environment:
        done = finish(start(toy(tmp_path, failing=3), environment))
    assert done.status == FAILURE_STATUS, done.output
    assert done.output.endswith("error: number 3 is bad:\n  look at 'it'.\n  Mend it.\n")


@every_kind
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_stage_that_is_ended_leaves_nothing_and_its_job_is_cancelled(
    number: signal.Signals, kind: str, tmp_path: Path
) -> None:
    with engine(CLUSTERS[kind], tmp_path) as environment:
        stage = start(toy(tmp_path, num_elements=200, seconds=1.0), environment)
        numbers = tmp_path / "work" / "numbers"
        wait_for(lambda: numbers.exists() and any(numbers.iterdir()), stage)
        stage.send_signal(number)
        finish(stage)
        wait_until(lambda: not processes(WORKER), 30, "the end of the workers")
        made = len(list(numbers.iterdir()))
        time.sleep(3)
        assert len(list(numbers.iterdir())) == made


@pytest.mark.timeout(1800)
@every_kind
def test_twenty_stages_leave_nothing(kind: str, tmp_path: Path) -> None:
    with engine(CLUSTERS[kind], tmp_path) as environment:
        for run in range(20):
            done = finish(start(toy(tmp_path / str(run)), environment))
            assert done.status == 0, done.output
