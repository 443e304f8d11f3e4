"""Real engines make the bytes of one local worker, with several threads in a worker too."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.engines import real
from tests.engines.stages import Stages

pytestmark = pytest.mark.engines

NUM_THREADS = 8
NUM_RUNS = 10
ONE_JAR = f"--files_to_stage={real.ENGINES / 'beam-job-servers.jar'}"
"""The only file of the job server's class path that a cluster does not have itself."""
FLINK, SPARK = "localhost:8081", "spark://localhost:7077"
_EIGHT, _LOOPBACK = f"--parallelism={NUM_THREADS}", "--environment_type=LOOPBACK"
ENGINES = {
    "prism": (real.prism, "localhost:8073", ""),
    "flink [local], own job server": (None, "[local]", _EIGHT),
    "flink [local], resident job server": (None, "[local]", f"{_EIGHT} {_LOOPBACK}"),
    "flink cluster, own job server": (real.flink_cluster, FLINK, ""),
    "flink cluster, resident job server": (real.flink_cluster, FLINK, f"--parallelism=2 {ONE_JAR}"),
    "spark local, own job server": (None, "local[2]", ""),
    "spark local, resident job server": (None, f"local[{NUM_THREADS}]", _LOOPBACK),
    "spark cluster, own job server": (real.spark_cluster, SPARK, ""),
    "spark cluster, resident job server": (real.spark_cluster, SPARK, ONE_JAR),
}
"""Name -> what runs the cluster, the address of its master, and Beam's options."""


@contextmanager
def engine(name: str, folder: Path) -> Iterator[Mapping[str, str]]:
    """Run an engine; give the environment of stages that run on it."""
    kind = name.partition(" ")[0]
    if reason := real.missing(kind):
        pytest.skip(reason)
    cluster, master, options = ENGINES[name]
    with ExitStack() as running:
        if cluster:
            running.enter_context(cluster(folder / "cluster"))
        if "own job server" in name:
            yield own_server(kind, master, folder, options)
        elif "resident" in name:
            server = real.job_server(kind, master, folder / "server")
            yield variables("portable", running.enter_context(server), options)
        else:
            yield variables("portable", master, options)


def variables(engine: str, address: str, options: str = "") -> dict[str, str]:
    named = {"ALBERT_ENGINE": engine, "ALBERT_ENGINE_ADDRESS": address}
    return {**named, "ALBERT_BEAM_OPTIONS": options}


def own_server(kind: str, address: str, folder: Path, options: str = "") -> dict[str, str]:
    """Return the environment of stages that each start a job server."""
    jar = real.job_server_jar(kind, folder)
    return variables(kind, address, f"--{kind}_job_server_jar={jar} {options}")


@pytest.mark.parametrize("name", ENGINES)
def test_the_three_stages_make_the_bytes_of_one_local_worker(
    name: str,
    recipe: Path,
    made_locally: Stages,
    seconds: dict[str, dict[str, float]],
    tmp_path: Path,
) -> None:
    with engine(name, tmp_path) as environment:
        stages = Stages(recipe, tmp_path / "work", environment)
        stages.make_all()
    seconds[name] = stages.seconds
    assert stages.contents == made_locally.contents


@pytest.mark.parametrize(
    "name", ["prism", "flink [local], resident job server", "spark local, resident job server"]
)
def test_examples_are_equal_in_ten_runs_of_eight_threads(
    name: str, made_locally: Stages, tmp_path: Path
) -> None:
    with engine(name, tmp_path) as environment:
        for run in range(NUM_RUNS):
            stages = made_locally.elsewhere(tmp_path / f"work-{run}", environment)
            stages.make("make_examples")
            assert stages.contents["examples"] == made_locally.contents["examples"], run
