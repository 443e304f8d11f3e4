"""Run a stage as a process of its own: relay its lines at once, return its manifest.

The process leads a session, so that it and all that it starts can be stopped together. It gets
SIGTERM when this process dies, even by SIGKILL.

Two environment variables limit every stage:

ALBERT_SILENT_MINUTES  a stage that prints no line for this long is stopped and retried
ALBERT_STAGE_HOURS     a stage that takes this long is stopped

Each is one number for all stages, or several by the name of the stage's module:
``pretrain=120, finetune=30, 60``, where the bare number is for the others. Unset means no limit.
"""

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import inf
from typing import IO

from albert_core.stage import command
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import ConfigError, OutageError, StageError, killed
from albert_core.stage.log import read_line
from albert_core.stage.machine import stop_seconds
from albert_core.stage.progress import PROGRESS_ASKED_FOR, StageProgress

SILENT_MINUTES = "ALBERT_SILENT_MINUTES"
STAGE_HOURS = "ALBERT_STAGE_HOURS"
STAGE_MODULES = (
    "clean_corpus", "train_vocab", "make_examples", "audit_shards", "removal", "make_task",
    "pretrain", "zero_shot", "finetune", "contamination", "tabulate", "register",
)  # fmt: skip
"""Names of the stages' modules, in the order of the flows."""


@dataclass(frozen=True)
class Limits:
    """Limits of one stage in seconds."""

    silent_seconds: float = inf
    seconds: float = inf


NO_LIMITS = Limits()


def limits_of(module: str) -> Limits:
    """Return the limits that the environment sets for the stage in ``module``.

    Raises:
        ConfigError: a limit is not a number above 0, or is set for an unknown stage.
    """
    return Limits(60 * _limit(SILENT_MINUTES, module), 3600 * _limit(STAGE_HOURS, module))


def _limit(variable: str, module: str) -> float:
    numbers: dict[str, float] = {}
    for part in filter(None, os.environ.get(variable, "").replace(" ", "").split(",")):
        name, _, text = part.rpartition("=")
        try:
            numbers[name] = float(text)
        except ValueError:
            numbers[name] = 0.0
        if not 0 < numbers[name] < inf:
            raise ConfigError(
                f"{variable}: {part!r} must be a number above 0, or stage=number, for example "
                "pretrain=120"
            )
        if name and name not in STAGE_MODULES:
            raise ConfigError(
                f"{variable}: there is no stage {name!r}; there is {', '.join(STAGE_MODULES)}"
            )
    return numbers.get(module.rpartition(".")[2], numbers.get("", inf))


_LAST_LINES = 20
_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 1.0
"""What counts at most between two looks: this process was stopped, or its machine suspended."""
_WORTH_ANOTHER_TRY = {command.RUN_AGAIN_STATUS, -signal.SIGKILL, -signal.SIGTERM}
"""Statuses of a stage that was killed, perhaps by the kernel for lack of memory, or told to stop.
Run again, it continues from what is done."""
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "LRU_CACHE_CAPACITY": "64",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    PROGRESS_ASKED_FOR: "yes",
}
"""Torch's threads sleep while they wait: a little slower on an idle machine, and nearly twice as
fast beside another process that computes. oneDNN makes a kernel for each length of a batch. Torch
and oneDNN keep as many kernels as a model needs at a time, not the last 1,024: packed batches all
differ in length, and their kernels would take gigabytes. The C library asks for large pages, as
activations come and go with every batch. And the stage reports its progress."""

_TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that starts this one has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class InterruptedStageError(StageError, OutageError):
    """A transient failure cut a stage short; running it again may well succeed."""


class StageRefusedError(StageError):
    """A stage can't do what it is asked to, and says why; running it again does not help."""


def tied(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs ``argv`` and tells it to stop when this process dies."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv]


LAUNCHER = "albert_core.training.launcher"


def distributed_argv(argv: Sequence[str], num_processes: int, num_hosts: int = 1) -> list[str]:
    """Return the command line of the training ``argv`` for several processes on each host.

    Several hosts need further options after the launcher's name, which say where they meet.
    """
    if num_processes == num_hosts == 1:
        return list(argv)
    meet = ["--standalone"] if num_hosts == 1 else []
    return [sys.executable, "-m", LAUNCHER, *meet, f"--nproc-per-node={num_processes}", *argv[1:]]


def run_stage_process(
    argv: Sequence[str],
    log: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    limits: Limits = NO_LIMITS,
    on_progress: Callable[[StageProgress], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Run the command line of a stage; return the URI of its manifest.

    If it has to be stopped, it has `stop_seconds` to save what it has.

    Args:
        argv: as made by `stage.command.stage_argv`.
        log: called with each line of the stage's output, except those of its result.
        environment: variables that the process gets besides this one's.
        limits: how long it may take.
        on_progress: called with the progress that the stage reports.
        check: called repeatedly meanwhile; an error that it raises stops the stage.

    Raises:
        InterruptedStageError: exit status 75, killed, told to stop, or silent for too long.
        StageRefusedError: exit status 2, with the stage's own message.
        StageError: the stage failed otherwise, with its last lines; or took too long.
    """
    grace_seconds = stop_seconds()
    process = subprocess.Popen(
        tied(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**_ENVIRONMENT, **os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    output = _Output(log, on_progress)
    # In this thread's context: Prefect's logger finds the flow run there.
    in_context = contextvars.copy_context().run
    reader = threading.Thread(target=in_context, args=(output.read, process.stdout), daemon=True)
    reader.start()
    try:
        while not _has_ended(process):
            output.check(limits)
            check()
            time.sleep(_LOOK_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and not _has_ended(process):
            time.sleep(_LOOK_SECONDS)
        raise
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        reader.join(timeout=grace_seconds)
        process.stdout.close()
    return output.result(argv, status)


class _Output:
    """The output of a stage."""

    def __init__(
        self, log: Callable[[str], None], on_progress: Callable[[StageProgress], None]
    ) -> None:
        self._log, self._on_progress = log, on_progress
        self._num_read = self._num_seen = 0
        self._looked_at, self._seconds, self._silent_seconds = time.monotonic(), 0.0, 0.0
        self._lines: list[str] = []
        self._failure: list[str] = []
        self._manifest: str | None = None

    def read(self, stream: IO[str]) -> None:
        """Take in every line of ``stream`` until it ends."""
        for line in stream:
            self._num_read += 1
            self._take(line.rstrip("\n"))

    def check(self, limits: Limits) -> None:
        """Raise an error if the stage has exceeded a limit."""
        looked_at, self._looked_at = self._looked_at, time.monotonic()
        passed = min(self._looked_at - looked_at, _LONGEST_LOOK_SECONDS)
        self._seconds += passed
        is_silent, self._num_seen = self._num_read == self._num_seen, self._num_read
        self._silent_seconds = self._silent_seconds + passed if is_silent else 0.0
        if self._seconds > limits.seconds:
            raise StageError(
                f"the stage was stopped: it took longer than {limits.seconds / 3600:g} hours. "
                f"Raise {STAGE_HOURS}; what is done by now is kept."
            )
        if self._silent_seconds > limits.silent_seconds:
            raise InterruptedStageError(
                f"the stage was stopped: it printed nothing for {limits.silent_seconds / 60:g} "
                f"minutes. If that is normal for it, raise {SILENT_MINUTES}."
            )

    def result(self, argv: Sequence[str], status: int) -> str:
        """Return the manifest's URI, or raise the error of a stage that ended with ``status``."""
        if status == 0 and self._manifest is not None:
            return self._manifest
        first, *rest = self._failure or [""]
        # A launcher may have said more after the stage's own message.
        rest = list(takewhile(lambda line: line.startswith("  "), rest))
        message = "\n".join([first.removeprefix(command.FAILURE), *rest]).rstrip()
        if message and status == command.FAILURE_STATUS:
            raise StageRefusedError(message)
        if not message:
            last_lines = "\n  ".join(self._lines + self._failure)
            message = f"{_named(argv)} {_ended(status)}. Its last lines:\n  {last_lines}"
        raise (InterruptedStageError if status in _WORTH_ANOTHER_TRY else StageError)(message)

    def _take(self, line: str) -> None:
        if progress := StageProgress.from_line(line):
            self._on_progress(progress)
            return
        _, text, _ = read_line(line)
        if text.startswith(command.RESULT):
            self._manifest = text.removeprefix(command.RESULT)
        elif text.startswith(command.FAILURE) or self._failure:
            self._failure += redacted(text).splitlines()
        else:
            self._lines = [*self._lines[1 - _LAST_LINES :], redacted(text)]
            self._log(redacted(line))


def _named(argv: Sequence[str]) -> str:
    modules = [name for option, name in pairwise(argv) if option == "-m"]
    return f"the stage {modules[-1]}" if modules else argv[0]


def _ended(status: int) -> str:
    if status == 0:
        return "ended without naming its manifest"
    return killed(-status) if status < 0 else f"ended with status {status}"


def _has_ended(process: subprocess.Popen[str]) -> bool:
    """Return whether ``process`` has ended, without freeing its number, which is its group's."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
