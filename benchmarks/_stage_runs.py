"""Stages as real processes, with what they cost: CPU seconds and memory of all their processes."""

import ctypes
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from types import TracebackType
from typing import Any

from albert_core.stage.command import stage_argv
from flows.recipe import load_recipe
from flows.stage_process import run_stage_process

PUBLISHED_MODEL = Path(
    os.environ.get("ALBERT_BENCH_MODEL", "/work/shared/data/models/30k-clean.model")
)
_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.1
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class StageRun:
    """What one run of a stage made and cost."""

    manifest: str
    cpu_seconds: float
    """User and system time of the stage and of every process it started."""
    wall_seconds: float
    peak_mb: float
    """Largest resident memory of all its processes together, in MB."""
    peak_private_mb: float
    """The same without pages of files, which the kernel may drop, in MB."""

    def beyond(self, start_up: "StageRun") -> "StageRun":
        """Return the cost without that of a run on next to nothing."""
        return StageRun(
            self.manifest,
            self.cpu_seconds - start_up.cpu_seconds,
            self.wall_seconds - start_up.wall_seconds,
            self.peak_mb,
            self.peak_private_mb,
        )


def run_stage(
    module: str, recipe: Path, workers: int, profile: Path | None = None, **inputs: str
) -> StageRun:
    """Run the stage in ``module``.

    Args:
        module: of the stage.
        recipe: a resolved one.
        workers: processes that the stage may use.
        profile: a file to write where its CPU time goes, which costs a little.
        **inputs: the stage's other options.
    """
    _adopt_orphans()
    argv = stage_argv(module, str(recipe), **inputs)
    if profile:
        argv[1:3] = [str(_HERE / "_profile_stage.py"), str(profile), module]
    os.environ["ALBERT_WORKERS"] = str(workers)
    before, begin = _cpu_of_children(), time.monotonic()
    with MemorySampler() as memory:
        manifest = run_stage_process(argv, lambda line: None)
    wall = time.monotonic() - begin
    _reap()
    return StageRun(
        manifest, _cpu_of_children() - before, wall, memory.peak_mb, memory.peak_private_mb
    )


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


def hardware() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "commit": _commit(),
        **{name: version(name) for name in ("apache-beam", "pyarrow", "sentencepiece")},
    }


def report(result: dict[str, Any], table: str, path: Path) -> None:
    """Write ``result`` to ``path``; print it for people, as ``table``, and as a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(table)
    print(json.dumps(result))


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    asked = ["git", "-C", str(_HERE), "describe", "--always", "--dirty"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu_of_children() -> float:
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _adopt_orphans() -> None:
    """Become the parent of workers that outlive their stage, so that their time counts too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _reap() -> None:
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return


@dataclass
class MemorySampler:
    """Looks at the memory of all processes below this one, ten times a second."""

    peak_mb: float = 0.0
    peak_private_mb: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "MemorySampler":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            amounts = [_memory_mb(pid) for pid in _descendants(os.getpid())]
            self.peak_mb = max(self.peak_mb, sum(total for total, _ in amounts))
            self.peak_private_mb = max(self.peak_private_mb, sum(own for _, own in amounts))


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return a process's resident memory in MB, in all and without pages of files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    kb = {
        line.split(":")[0]: line.split()[1]
        for line in lines
        if line.startswith(("VmRSS", "RssAnon"))
    }
    return int(kb.get("VmRSS", 0)) / 1e3, int(kb.get("RssAnon", 0)) / 1e3
