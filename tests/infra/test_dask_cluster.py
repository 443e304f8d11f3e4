"""Stages on a Dask cluster: a scheduler and two workers as processes, on two hosts if possible.

All tests share one cluster, which the last two damage. Where network namespaces can be made, each
worker is on a host of its own; else both are on this one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is an extra: albert-pretraining[dask]")

from albert_core.stage.command import RUN_AGAIN_STATUS, stage_argv
from albert_core.stage.manifest import read_manifest
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import EXAMPLES, Made, make
from tests.two_hosts import Host, two_hosts

PROJECT = Path(__file__).parents[2]
SCHEDULER, WORKER = "distributed.cli.dask_scheduler", "distributed.cli.dask_worker"
SECONDS = 300
"""Time limit of a driver."""
THREADS = (1, 4)
"""Threads of each worker."""
MAKE = """
import dataclasses, json, sys
from pathlib import Path
from tests.pipelines.conftest import make
print(json.dumps(dataclasses.asdict(make(Path(sys.argv[1]), Path(sys.argv[2]))), default=str))
"""
TOYS: dict[str, dict[str, Any]] = {
    "few": {"num_elements": 8, "seconds": 0.5},
    "failing": {"failing": 5},
    "unseen": {"work": "memory://work"},
    "deadly": {"deadly": 5, "seconds": 0.1},
    "always_deadly": {"deadly": 5, "always_deadly": True},
}
RUN_TOYS = """
import json, logging, sys
from tests.toy_stage import ToySettings, run
logging.basicConfig(level=logging.INFO, force=True)
for name, toy in json.loads(sys.argv[1]).items():
    work = toy.pop("work", f"{sys.argv[2]}/{name}")
    try:
        run(ToySettings(**toy), work)
        print(json.dumps([name, "", ""]))
    except Exception as error:
        print(json.dumps([name, type(error).__name__, str(error)]))
"""
pytestmark = pytest.mark.long


@dataclass
class Cluster:
    """A scheduler and workers; all are leaders of process groups."""

    folder: Path
    inside: Sequence[str]
    """The words before a command that runs on the scheduler's host."""
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    address: str = ""

    def start(self, said: str, inside: Sequence[str], *command: str) -> str:
        """Start a process and wait until its log has ``said``; return the line."""
        log = self.folder / f"dask-{len(self.processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", *command, "--no-dashboard"],
                cwd=PROJECT,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + SECONDS
        while not (lines := [line for line in log.read_text().splitlines() if said in line]):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return lines[0]

    def drive(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command that runs stages on this cluster."""
        return subprocess.Popen(
            [*self.inside, *command],
            env={**os.environ, "ALBERT_ENGINE": "dask", "ALBERT_ENGINE_ADDRESS": self.address},
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        """Kill every process."""
        for process in self.processes:
            kill(process)

    def run(self, *command: str) -> tuple[str, str]:
        """Run such a command; return its output and its log."""
        with self.drive(*command) as driver:
            output, log = communicate(driver)
        assert driver.returncode == 0, log
        return output, log


def communicate(driver: "subprocess.Popen[str]") -> tuple[str, str]:
    """Wait for a driver's end; return its output and its log."""
    try:
        return driver.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        driver.kill()
        raise


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("dask")
    with ExitStack() as running:
        try:
            hosts = running.enter_context(two_hosts())
        except PermissionError:
            hosts = [Host("127.0.0.1", [], "lo")] * 2
        cluster = Cluster(folder, hosts[0].inside)
        running.callback(cluster.stop)
        listen = (f"--host={hosts[0].address}", "--port=0")
        said = cluster.start("Scheduler at:", cluster.inside, SCHEDULER, *listen)
        cluster.address = said.split()[-1]
        for host, number in zip(hosts, THREADS, strict=True):
            options = (f"--nthreads={number}", f"--local-directory={folder}/{number}")
            cluster.start("Registered to:", host.inside, WORKER, cluster.address, *options)
        yield cluster


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill -9 a process with all of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The results of one process."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "source").mkdir()
    for number in range(8):
        write_jsonl(folder / "source" / f"{number}.jsonl", range(number * 15, number * 15 + 15))
    return make(folder / "source", folder / "work")


@pytest.fixture(scope="module")
def toys(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The error of each toy stage, its work folder, and what the driver logged."""
    folder = tmp_path_factory.mktemp("toys")
    output, log = cluster.run(sys.executable, "-c", RUN_TOYS, json.dumps(TOYS), str(folder))
    ended = {name: error for name, *error in map(json.loads, output.splitlines())}
    return {"ended": ended, "folder": folder, "log": log}


def test_two_hosts_and_several_threads_make_the_bytes_of_one_process(
    cluster: Cluster, local: Made, tmp_path: Path
) -> None:
    output, _ = cluster.run(sys.executable, "-c", MAKE, str(local.source), str(tmp_path))
    made = json.loads(output.splitlines()[-1])
    for stage in ("corpus", "vocab", "examples"):
        expected = read_manifest(getattr(local, stage)).content
        assert read_manifest(made[stage]).content == expected, stage


def test_both_workers_work_though_the_elements_are_few(
    cluster: Cluster, toys: dict[str, Any]
) -> None:
    assert "Dask: 2 workers, 5 threads" in toys["log"]
    wrote = (toys["folder"] / "few" / "workers").iterdir()
    groups = {int(file.name.rpartition("-")[2]) for file in wrote}
    assert len(groups) == 2


def test_a_worker_that_kills_itself_is_replaced(toys: dict[str, Any]) -> None:
    work = toys["folder"] / "deadly"
    assert toys["ended"]["deadly"] == ["", ""]
    assert (work / "died").exists()
    numbers = [(work / "numbers" / str(n)).read_text() for n in range(12)]
    assert numbers == [f"{n}\n" for n in range(12)]
    assert sorted(file.name for file in (work / "groups").iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("toy", "kind", "message"),
    [
        ("failing", "SourceError", r"number 5 is bad:\n  look at 'it'.\n  Mend it."),
        ("unseen", "ConfigError", r".* doesn't see memory://work/scratch/driver-was-here\. .*"),
        ("always_deadly", "StageError", r"Attempted to run task.*raise --memory-limit.*"),
    ],
)
def test_an_error_arrives_as_it_was_raised_or_with_advice(
    toy: str, kind: str, message: str, toys: dict[str, Any]
) -> None:
    error = toys["ended"][toy]
    assert error[0] == kind
    assert re.fullmatch(message, error[1], re.DOTALL)


def test_when_a_host_dies_in_the_middle_the_rest_make_the_same_bytes(
    cluster: Cluster, local: Made, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"examples": EXAMPLES.model_dump()}))
    inputs = {"corpus": local.corpus, "vocab": local.vocab, "work": str(tmp_path)}
    argv = stage_argv("pipelines.make_examples", str(recipe), **inputs)
    with cluster.drive(*argv) as driver:
        victim = os.getpgid(writer_of_a_file(tmp_path / "examples", driver))
        assert victim in [process.pid for process in cluster.processes[1:]]
        os.killpg(victim, signal.SIGKILL)
        output, log = communicate(driver)
    assert driver.returncode == 0, log
    manifest = read_manifest(output.splitlines()[-1].removeprefix("manifest: "))
    assert manifest.content == read_manifest(local.examples).content


def test_a_lost_scheduler_ends_the_stage(cluster: Cluster, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"toy": {"seconds": 1}}))
    with cluster.drive(*stage_argv("tests.toy_stage", str(recipe), work=str(tmp_path))) as driver:
        writer_of_a_file(tmp_path, driver)
        kill(cluster.processes[0])
        _, log = communicate(driver)
    assert driver.returncode == RUN_AGAIN_STATUS
    assert log.endswith("error: the Dask scheduler was lost. Start it, and run the stage again.\n")


def writer_of_a_file(folder: Path, driver: "subprocess.Popen[str]") -> int:
    """Return the worker process that is just writing a file below ``folder``; not the driver."""
    while driver.poll() is None:
        for _, _, names in os.walk(folder):
            for name in names:
                temporary = re.fullmatch(r"\..+~.+-([0-9]+)-[0-9a-f]{8}\.tmp", name)
                if temporary and int(temporary.group(1)) != driver.pid:
                    return int(temporary.group(1))
        time.sleep(0.001)
    raise AssertionError("the stage has ended, and no worker was seen to write")
