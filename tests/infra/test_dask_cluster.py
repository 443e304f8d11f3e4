"""Stages on a Dask cluster: a scheduler and workers as separate processes, some on other hosts."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is an extra: albert-pretraining[dask]")

from albert_core.stage.command import RUN_AGAIN_STATUS, stage_argv
from albert_core.stage.manifest import read_manifest
from tests.dask_processes import DaskProcesses, kill, local_cluster, two_hosts
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import EXAMPLES, VOCABULARY

PROJECT = Path(__file__).parents[2]
LOCAL = os.environ | {"ALBERT_ENGINE": "local", "ALBERT_WORKERS": "1"}
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Source:
    """Files of text and the recipe to make examples of them."""

    recipe: Path

    @classmethod
    def write(cls, folder: Path) -> "Source":
        (folder / "source").mkdir()
        for number in range(8):
            write_jsonl(folder / "source" / f"{number}.jsonl", range(number * 15, number * 15 + 15))
        recipe = folder / "recipe.json"
        sections = {
            "source": {"uri": str(folder / "source")},
            "vocabulary": VOCABULARY.model_dump(),
            "examples": EXAMPLES.model_dump(),
        }
        recipe.write_text(json.dumps(sections))
        return cls(recipe)

    def argv(self, module: str, **inputs: str) -> list[str]:
        return stage_argv(f"pipelines.{module}", str(self.recipe), **inputs)


def run(argv: list[str], environment: Mapping[str, str]) -> str:
    """Run a stage; return the URI of its manifest."""
    done = subprocess.run(
        argv, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1].removeprefix("manifest: ")


def make(source: Source, work: Path, cluster: DaskProcesses | None = None) -> dict[str, str]:
    """Run the three text stages; return the digest of the shards of each."""
    inside = [] if cluster is None else list(cluster.inside)
    environment = LOCAL if cluster is None else cluster.environment
    made = {"work": str(work)}
    for module, name in (
        ("clean_corpus", "corpus"),
        ("train_vocab", "vocab"),
        ("make_examples", "examples"),
    ):
        made[name] = run([*inside, *source.argv(module, **made)], environment)
    del made["work"]
    return {name: read_manifest(manifest).content for name, manifest in made.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source.write(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def made_locally(source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make(source, tmp_path_factory.mktemp("local"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[DaskProcesses, list[str]]]:
    """A scheduler and a worker on one host; and the words that begin a command on the other."""
    try:
        with two_hosts() as ((address, here), (_, there)):
            cluster = DaskProcesses(tmp_path, address, here)
            try:
                cluster.start_scheduler()
                cluster.start_worker(here)
                yield cluster, there
            finally:
                cluster.stop()
    except PermissionError as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_two_hosts_make_the_same_bytes_as_one_process(
    hosts: tuple[DaskProcesses, list[str]],
    source: Source,
    made_locally: dict[str, str],
    tmp_path: Path,
) -> None:
    cluster, there = hosts
    cluster.start_worker(there)
    assert make(source, tmp_path / "work", cluster) == made_locally
    toy = start_toy(tmp_path, cluster, num_elements=8, seconds=0.3)
    output = toy.communicate(timeout=60)[0]
    assert toy.returncode == 0, output
    wrote = (tmp_path / "work" / "workers").iterdir()
    groups = {os.getpgid(int(file.name.rpartition("-")[2])) for file in wrote}
    assert groups == {process.pid for process in cluster.processes[1:]}


def test_when_a_host_dies_in_the_middle_the_rest_make_the_same_bytes(
    hosts: tuple[DaskProcesses, list[str]],
    source: Source,
    made_locally: dict[str, str],
    tmp_path: Path,
) -> None:
    cluster, there = hosts
    work = tmp_path / "work"
    before = {"work": str(work)}
    before["corpus"] = run(source.argv("clean_corpus", **before), LOCAL)
    before["vocab"] = run(source.argv("train_vocab", **before), LOCAL)
    cluster.start_worker(there)
    argv = [*cluster.inside, *source.argv("make_examples", **before)]
    stage = subprocess.Popen(
        argv, env=cluster.environment, cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    victim = os.getpgid(writer_of_a_file(work / "examples", stage))
    assert victim in [process.pid for process in cluster.processes]
    os.killpg(victim, signal.SIGKILL)
    output = stage.communicate(timeout=240)[0]
    assert stage.returncode == 0, output
    manifest = read_manifest(output.splitlines()[-1].removeprefix("manifest: "))
    assert manifest.content == made_locally["examples"]


def writer_of_a_file(folder: Path, stage: "subprocess.Popen[str]") -> int:
    """Return the worker process that is just writing a file below ``folder``; not the stage's."""
    while stage.poll() is None:
        for _, _, names in os.walk(folder):
            for name in names:
                temporary = re.fullmatch(r"\..+~.+-([0-9]+)-[0-9a-f]{8}\.tmp", name)
                if temporary and int(temporary.group(1)) != stage.pid:
                    return int(temporary.group(1))
        time.sleep(0.001)
    raise AssertionError("the stage has ended, and no worker was seen to write")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    """Two workers on this host."""
    with local_cluster(tmp_path_factory.mktemp("dask"), 2) as cluster:
        yield cluster


def start_toy(
    folder: Path, cluster: DaskProcesses, work: str = "", **toy: Any
) -> "subprocess.Popen[str]":
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps({"toy": toy}))
    argv = stage_argv("tests.toy_stage", str(recipe), work=work or str(folder / "work"))
    return subprocess.Popen(
        [*cluster.inside, *argv],
        env=cluster.environment,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def digest(work: Path) -> str:
    return hashlib.sha256(b"".join((work / "groups" / n).read_bytes() for n in "012")).hexdigest()


def test_both_workers_work_though_the_elements_are_few(
    cluster: DaskProcesses, tmp_path: Path
) -> None:
    output = start_toy(tmp_path, cluster, num_elements=4, seconds=0.5).communicate(timeout=60)[0]
    assert "Dask: 2 workers, 2 threads" in output
    workers = {file.name.partition("-")[2] for file in (tmp_path / "work" / "workers").iterdir()}
    assert len(workers) == 2


def test_workers_of_several_threads_make_the_same_bytes(
    source: Source, made_locally: dict[str, str], tmp_path: Path
) -> None:
    with local_cluster(tmp_path, 1, num_threads=4) as cluster:
        assert make(source, tmp_path / "work", cluster) == made_locally


def test_a_worker_that_kills_itself_is_replaced(cluster: DaskProcesses, tmp_path: Path) -> None:
    stage = start_toy(tmp_path, cluster, deadly=5, seconds=0.1)
    output = stage.communicate(timeout=60)[0]
    assert stage.returncode == 0, output
    assert (tmp_path / "work" / "died").exists()
    numbers = [(tmp_path / "work" / "numbers" / str(n)).read_text() for n in range(12)]
    assert numbers == [f"{n}\n" for n in range(12)]
    assert not [f for f in (tmp_path / "work" / "groups").iterdir() if f.name not in "012"]


def test_work_that_kills_every_worker_ends_with_advice(
    cluster: DaskProcesses, tmp_path: Path
) -> None:
    stage = start_toy(tmp_path, cluster, deadly=5, always_deadly=True)
    output = stage.communicate(timeout=60)[0]
    assert stage.returncode == 2
    assert "error: Attempted to run task" in output
    assert "raise --memory-limit" in output


def test_an_error_arrives_as_it_was_raised(cluster: DaskProcesses, tmp_path: Path) -> None:
    stage = start_toy(tmp_path, cluster, failing=5)
    output = stage.communicate(timeout=60)[0]
    assert stage.returncode == 2
    assert output.endswith("error: number 5 is bad:\n  look at 'it'.\n  Mend it.\n")


def test_workers_that_do_not_see_the_work_folder_are_refused(
    cluster: DaskProcesses, tmp_path: Path
) -> None:
    output = start_toy(tmp_path, cluster, work="memory://work").communicate(timeout=60)[0]
    assert "doesn't see memory://work/scratch/driver-was-here" in output


def test_a_lost_scheduler_ends_the_stage(tmp_path: Path) -> None:
    with local_cluster(tmp_path, 1) as cluster:
        stage = start_toy(tmp_path, cluster, seconds=1)
        writer_of_a_file(tmp_path / "work", stage)
        kill(cluster.processes[0])
        output = stage.communicate(timeout=60)[0]
    assert stage.returncode == RUN_AGAIN_STATUS
    assert output.endswith(
        "error: the Dask scheduler was lost. Start it, and run the stage again.\n"
    )
