"""The one harness: contestants in processes of their own, in turn; stages; tables and results.

A contestant is a function that makes ready, untimed, and returns the work of a turn, which says
how many units it did. It is called anew for each turn, in the same process: what takes long to
make it keeps (`functools.cache`). The first turn of each does not count: it compiles, and fetches
memory. Ratios are of two contestants' turns in the same round, so what else the machine does
meets both.
"""

import argparse
import contextlib
import ctypes
import datetime as dt
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import psutil

from albert_core.stage.command import stage_argv
from flows.recipe import load_recipe
from flows.stage_process import run_stage_process

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("ALBERT_BENCH_DATA", Path(__file__).parents[2] / "shared/data"))
"""Folder of the real corpora, the published vocabulary and the tasks."""
PUBLISHED_MODEL = DATA / "models/30k-clean.model"
_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.1

Work = Callable[[], Any]
Contestant = tuple[Any, ...]
"""A function that returns a turn's work, and its arguments."""


class ContestantError(Exception):
    """A contestant's process failed; the message says how."""


class Process:
    """A process that does a contestant's turns."""

    def __init__(self, make: Callable[..., Work], *args: Any) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_take_turns, args=(theirs, make, args))
        self._process.start()
        theirs.close()

    def turn(self, limit_seconds: float | None = None) -> tuple[Any, float]:
        """Do one turn; return what its work returned, and its CPU seconds.

        Raises:
            ContestantError: it raised, died or took too long.
        """
        self._pipe.send(None)
        if not self._pipe.poll(limit_seconds):
            raise ContestantError(f"took more than {limit_seconds} s")
        try:
            done = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise ContestantError(f"ended with status {self._process.exitcode}") from None
        if isinstance(done, str):
            raise ContestantError(done)
        result, seconds = done
        return result, float(seconds)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


def _take_turns(pipe: Connection, make: Callable[..., Work], args: tuple[Any, ...]) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pipe.recv()
            try:
                work = make(*args)
                begin = time.process_time()
                result = work()
                pipe.send((result, time.process_time() - begin))
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                pipe.send(f"{type(error).__name__}: {error}".strip().splitlines()[-1][:300])


def alone(function: Callable[..., Any], *args: Any, limit_seconds: float | None = None) -> Any:
    """Return what ``function`` returns in a process of its own."""
    with Process(partial, function, *args) as process:
        return process.turn(limit_seconds)[0]


@dataclass(frozen=True)
class Figure:
    """The median of the rounds' figures, and their spread."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """Return that of ``values``."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Rounds:
    """Units per CPU second of each contestant's turns."""

    rates: dict[str, list[float]]

    def rate(self, name: str) -> Figure:
        """Return units per CPU second."""
        return Figure.of(self.rates[name])

    def times(self, name: str, peer: str) -> Figure:
        """Return how many times as fast as ``peer``."""
        pairs = zip(self.rates[name], self.rates[peer], strict=True)
        return Figure.of([ours / theirs for ours, theirs in pairs])

    def result(self, peer: str = "") -> dict[str, dict[str, Any]]:
        """Return all figures for the results file, beside ``peer`` if there is one."""
        found: dict[str, dict[str, Any]] = {}
        for name in self.rates:
            found[name] = {"per_cpu_s": vars(self.rate(name))}
            if peer in self.rates and name != peer:
                found[name]["times_peer"] = vars(self.times(name, peer))
        return found


def in_turns(contestants: Mapping[str, Contestant], rounds: int) -> Rounds:
    """Let each contestant have a turn in each of so many rounds, and one before them."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    with contextlib.ExitStack() as running:
        processes = {n: running.enter_context(Process(*c)) for n, c in contestants.items()}
        for number in range(rounds + 1):
            for name, process in processes.items():
                units, seconds = process.turn()
                if number:
                    rates[name].append(units / seconds)
                print(f"{name}: {units:,.4g} in {seconds:.3f} CPU s", file=sys.stderr, flush=True)
    return Rounds(rates)


def arguments(doc: str | None, name: str, rounds: int = 0) -> argparse.ArgumentParser:
    """Return a parser for a benchmark of so many rounds whose results are called ``name``."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.json", help="to write")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def report(result: dict[str, Any], shown: str, path: Path) -> None:
    """Write ``result`` with the date and the CPU; print it for people and as a line of JSON."""
    result = result | {"hardware": hardware() | result.get("hardware", {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(shown)
    print(json.dumps(result))


def hardware() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    asked = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    packages = ("apache-beam", "pyarrow", "sentencepiece", "torch", "transformers")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "commit": commit or "unknown",
        **{name: version(name) for name in packages},
    }


@dataclass(frozen=True)
class StageRun:
    """What one run of a stage made and cost, over all its processes."""

    manifest: str
    cpu_seconds: float
    wall_seconds: float
    peak_mb: float
    """Largest resident memory of all its processes together, in MB."""
    peak_private_mb: float
    """The same without pages of files, which the kernel may drop, in MB."""


def run_stage(module: str, recipe: Path, workers: int, **inputs: str) -> StageRun:
    """Run the stage in ``module`` of `pipelines` as real processes, so many at a time."""
    # Become the parent of workers that outlive their stage, so that their time counts too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    others = _descendants()
    argv = stage_argv(f"pipelines.{module}", str(recipe), **inputs)
    os.environ["ALBERT_WORKERS"] = str(workers)
    before, begin = getrusage(RUSAGE_CHILDREN), time.monotonic()
    with _peak_memory(others) as peak:
        manifest = run_stage_process(argv, lambda line: None)
    wall = time.monotonic() - begin
    while left := _descendants() - others:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return StageRun(manifest, cpu, wall, *peak)


def write_recipe(path: Path, source: Path, **settings: Any) -> Path:
    """Write a resolved recipe that reads ``source``, with a vocabulary of 30,000 pieces.

    The vocabulary is the published one where it is at hand, else one is to be trained.
    """
    fixed = {
        "vocabulary.vocab_size": 30_000,
        "vocabulary.model": str(PUBLISHED_MODEL) if PUBLISHED_MODEL.is_file() else "",
        "examples.dupe_factor": 1,
        "examples.max_seq_length": 512,
        "examples.tfrecord": "false",
    }
    overrides = [f"{name}={value}" for name, value in (fixed | settings).items()]
    path.write_text(load_recipe("base", overrides, str(source)).model_dump_json())
    return path


@contextlib.contextmanager
def _peak_memory(others: set[int]) -> Iterator[list[float]]:
    """Yield the peaks of this process's descendants but ``others``, in all and private, in MB."""
    peak, over = [0.0, 0.0], threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_SECONDS):
            pids = _descendants() - others
            amounts = zip(*map(_memory_mb, pids), strict=True)
            peak[:] = [max(*each) for each in zip(peak, map(sum, amounts), strict=False)] or peak

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return a process's resident memory in MB, in all and without pages of files."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0, 0.0
    return found.rss / 1e6, (found.rss - found.shared) / 1e6


def status_mb(name: str) -> float:
    """Return what the kernel says of this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0]) / 1e3
