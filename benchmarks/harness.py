"""The one harness: contestants in processes of their own, in turn; tables, results and arguments.

A contestant is a function that prepares, untimed, and returns the work of a turn, which says how
many units it did. It is called anew for each turn, in the same process: what takes long to prepare
is cached (`functools.cache`). The first turn of each does not count: it compiles, and allocates
memory. Ratios are of two contestants' turns in the same round, so whatever else the machine does
affects both.
"""

import argparse
import contextlib
import datetime as dt
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from albert_core.stage.machine import this_machine

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "build/benchmarks"
"""Where results go, so that a run leaves those of the project as they are."""
DATA = Path(os.environ.get("ALBERT_BENCH_DATA", PROJECT.parent / "shared/data"))
"""Folder of the real corpora, the published vocabulary and the tasks."""
PUBLISHED_MODEL = DATA / "models/30k-clean.model"

Work = Callable[[], Any]
Contestant = tuple[Any, ...]
"""A function that returns a turn's work, and its arguments."""
Part = Callable[[argparse.Namespace, Path], tuple[dict[str, Any], str]]
"""Measures something with the given options and an empty folder; returns the result and a text."""


class Process:
    """A process that does a contestant's turns."""

    def __init__(self, make: Callable[..., Work], *args: Any) -> None:
        self._contestant = (make, *args)
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, initializer=end_with_parent)
        self._pid = self._pool.submit(os.getpid).result()

    def turn(self, limit_seconds: float | None = None) -> tuple[Any, float]:
        """Do one turn; return what its work returned, and its CPU seconds.

        Raises:
            BrokenProcessPool: the process died.
            TimeoutError: it took too long.
            Exception: the contestant's own.
        """
        return self._pool.submit(_turn, *self._contestant).result(limit_seconds)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:  # it may be in a turn that took too long
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self._pid).kill()
        self._pool.shutdown()


def end_with_parent() -> None:
    """End this process of a pool when the one that started it has ended, however it did."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _turn(make: Callable[..., Work], *args: Any) -> tuple[Any, float]:
    work = make(*args)
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def alone(function: Callable[..., Any], *args: Any, limit_seconds: float | None = None) -> Any:
    """Return what ``function`` returns in a process of its own."""
    with Process(partial, function, *args) as process:
        return process.turn(limit_seconds)[0]


def units(number: float, function: Callable[..., Any], *args: Any) -> Work:
    """Return work of so many units, which is a call of ``function``."""

    def work() -> float:
        function(*args)
        return float(number)

    return work


def in_turns(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """Return each contestant's units per CPU second in each round but the first."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    with contextlib.ExitStack() as running:
        processes = {n: running.enter_context(Process(*c)) for n, c in contestants.items()}
        for number in range(rounds + 1):
            for name, process in processes.items():
                units, seconds = process.turn()
                if number:
                    rates[name].append(units / seconds)
                print(f"{name}: {units:,.4g} in {seconds:.3f} CPU s", file=sys.stderr, flush=True)
    return rates


def compare(
    cases: Mapping[str, Mapping[str, Contestant]],
    rounds: int,
    unit: str,
    goals: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], str]:
    """Let the contestants of each case take turns; return all figures, and a table of them.

    Args:
        cases: contestants by case and name. A name that begins with "ours" is compared with all
            others of its case.
        rounds: how many are counted.
        unit: of the work.
        goals: what each case should reach.
    """
    result: dict[str, Any] = {}
    rows: list[list[object]] = []
    for case, contestants in cases.items():
        rates = in_turns(contestants, rounds)
        peers = [name for name in rates if not name.startswith("ours")]
        result[case] = {}
        for name, own in rates.items():
            pairs = {peer: zip(own, rates[peer], strict=True) for peer in peers}
            times = {
                peer: spread([ours / theirs for ours, theirs in both])
                for peer, both in pairs.items()
                if name not in peers
            }
            result[case][name] = {"per_cpu_s": spread(own), "times": times}
            said = "; ".join(f"{peer}: {_said(found)}" for peer, found in times.items())
            goal = "" if name in peers else (goals or {}).get(case, "")
            rows.append([case, name, _said(result[case][name]["per_cpu_s"]), said, goal])
    head = ["case", "contestant", f"{unit} per CPU second (spread)", "times the others", "goal"]
    return result, table(head, rows)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of the rounds' figures, and their range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _said(found: Mapping[str, float]) -> str:
    return "{median:.3g} ({low:.3g} to {high:.3g})".format(**found)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def arguments(doc: str | None, rounds: int = 0) -> argparse.ArgumentParser:
    """Return a parser for a benchmark of so many rounds; 0: it has none."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def run(parser: argparse.ArgumentParser, parts: Mapping[str, Part]) -> None:
    """Measure the parts that the command line names, or all.

    The result of each goes to a file called by its name, with the date and the hardware, and is
    printed as a table and as a line of JSON.
    """
    if len(parts) > 1:
        parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for name in getattr(options, "only", parts):
        with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
            result, shown = parts[name](options, Path(folder))
        print(shown)
        if not result:  # what it needs is absent
            continue
        result["hardware"] = hardware() | result.get("hardware", {})
        (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result), flush=True)


def hardware() -> dict[str, Any]:
    """Return the date, and what a figure depends on besides the options."""
    asked = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    packages = ("apache-beam", "pyarrow", "sentencepiece", "torch", "transformers")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cpu": "{cpu}, {cores} cores".format_map(this_machine()),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "commit": commit or "unknown",
        **{name: version(name) for name in packages},
    }
