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
"""Of the job server's class path, all that the cluster does not have itself."""


@contextmanager
def engine(name: str, folder: Path) -> Iterator[Mapping[str, str]]:
    """Run an engine; give the environment of stages that run on it."""
    kind = name.partition(" ")[0]
    if reason := real.missing(kind):
        pytest.skip(reason)
    with ExitStack() as running:
        yield _ENGINES[name](folder, running)


def variables(engine: str, address: str, options: str = "") -> dict[str, str]:
    return {
        "ALBERT_ENGINE": engine,
        "ALBERT_ENGINE_ADDRESS": address,
        "ALBERT_BEAM_OPTIONS": options,
    }


def own_server(kind: str, address: str, folder: Path, options: str = "") -> dict[str, str]:
    """A job server of each stage's own."""
    jar = real.job_server_jar(kind, folder)
    return variables(kind, address, f"--{kind}_job_server_jar={jar} {options}")


def flink_cluster(folder: Path, running: ExitStack) -> Mapping[str, str]:
    running.enter_context(real.flink_cluster(folder / "cluster"))
    return own_server("flink", "localhost:8081", folder)


def resident_flink(folder: Path, running: ExitStack) -> Mapping[str, str]:
    running.enter_context(real.flink_cluster(folder / "cluster"))
    server = real.job_server("flink", "localhost:8081", folder / "server")
    options = f"--parallelism=2 {ONE_JAR}"
    return variables("portable", running.enter_context(server), options)


def resident_local_flink(folder: Path, running: ExitStack) -> Mapping[str, str]:
    server = real.job_server("flink", "[local]", folder / "server")
    options = f"--parallelism={NUM_THREADS} --environment_type=LOOPBACK"
    return variables("portable", running.enter_context(server), options)


def spark_cluster(folder: Path, running: ExitStack) -> Mapping[str, str]:
    running.enter_context(real.spark_cluster(folder / "cluster"))
    return own_server("spark", "spark://localhost:7077", folder)


def resident_spark(folder: Path, running: ExitStack) -> Mapping[str, str]:
    running.enter_context(real.spark_cluster(folder / "cluster"))
    server = real.job_server("spark", "spark://localhost:7077", folder / "server")
    return variables("portable", running.enter_context(server), ONE_JAR)


def resident_local_spark(folder: Path, running: ExitStack) -> Mapping[str, str]:
    server = real.job_server("spark", f"local[{NUM_THREADS}]", folder / "server")
    return variables("portable", running.enter_context(server), "--environment_type=LOOPBACK")


def prism(folder: Path, running: ExitStack) -> Mapping[str, str]:
    running.enter_context(real.prism(folder / "prism"))
    return variables("portable", "localhost:8073")


_ENGINES = {
    "prism": prism,
    "flink [local], own job server": lambda folder, _: own_server(
        "flink", "[local]", folder, f"--parallelism={NUM_THREADS}"
    ),
    "flink [local], resident job server": resident_local_flink,
    "flink cluster, own job server": flink_cluster,
    "flink cluster, resident job server": resident_flink,
    "spark local, own job server": lambda folder, _: own_server("spark", "local[2]", folder),
    "spark local, resident job server": resident_local_spark,
    "spark cluster, own job server": spark_cluster,
    "spark cluster, resident job server": resident_spark,
}


@pytest.mark.parametrize("name", _ENGINES)
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
