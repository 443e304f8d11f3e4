"""Run a stage as a process of its own: its lines as they come, its manifest at the end.

The process is the leader of its own session, so that it and all that it starts can be stopped
together; and it is told to stop when this process dies, however that happens.

How long a stage may take, and may say nothing, is the machine's affair:

ALBERT_SILENT_MINUTES  a stage that prints no line for so long is stopped and tried again
ALBERT_STAGE_HOURS     a stage that takes so long is stopped

Either is one number, for all stages, or several by the name of the stage's module:
``pretrain=120, finetune=30, 60``, where the bare one is for the others. Unset: no limit.
"""

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

from albert_core.stage.command import FAILURE, FAILURE_STATUS, RESULT, RUN_AGAIN_STATUS
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import ConfigError, OutageError, StageError
from albert_core.stage.log import ASKED_FOR, StageProgress, read_line

SILENT_MINUTES = "ALBERT_SILENT_MINUTES"
STAGE_HOURS = "ALBERT_STAGE_HOURS"


@dataclass(frozen=True)
class Limits:
    """Of one stage, in seconds; None is no limit."""

    silent_seconds: float | None = None
    seconds: float | None = None


NO_LIMITS = Limits()
STAGE_MODULES = (
    "clean_corpus",
    "train_vocab",
    "make_examples",
    "removal",
    "make_task",
    "pretrain",
    "finetune",
    "contamination",
    "tabulate",
    "register",
)
"""Names of the stages' modules, in the order of the flows."""


def limits_of(module: str) -> Limits:
    """Return the limits of the stage in ``module``, as the environment has them.

    Raises:
        ConfigError: it has something else than numbers above 0, or names no stage.
    """
    silent, hours = _number(SILENT_MINUTES, module), _number(STAGE_HOURS, module)
    return Limits(silent and silent * 60, hours and hours * 3600)


def _number(variable: str, module: str) -> float | None:
    stage = module.rpartition(".")[2]
    numbers: dict[str, float] = {}
    for part in filter(None, os.environ.get(variable, "").replace(" ", "").split(",")):
        name, _, text = part.rpartition("=")
        try:
            numbers[name] = float(text)
        except ValueError:
            numbers[name] = 0.0
        if not 0 < numbers[name] < float("inf"):
            raise ConfigError(
                f"{variable}: {part!r} must be a number above 0, or stage=number, for example "
                "pretrain=120"
            )
        if name and name not in STAGE_MODULES:
            raise ConfigError(
                f"{variable}: there is no stage {name!r}; there is {', '.join(STAGE_MODULES)}"
            )
    return numbers.get(stage, numbers.get(""))


GRACE_SECONDS = 30.0
"""How long a stage that is stopped may take, to save its checkpoint for example."""
_LAST_LINES = 20
_LOOK_SECONDS = 0.05
_WORTH_ANOTHER_TRY = {RUN_AGAIN_STATUS, -signal.SIGKILL, -signal.SIGTERM}
"""A stage that ended so was killed, by the kernel for want of memory perhaps, or told to stop; it
goes on from what is done."""
_KERNELS_KEPT = "64"
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "LRU_CACHE_CAPACITY": _KERNELS_KEPT,
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": _KERNELS_KEPT,
    ASKED_FOR: "yes",
}
"""Torch's threads sleep while they wait: a little slower on an idle machine, and nearly twice as
fast beside another process that computes. Of the kernels that oneDNN makes for each length of a
batch, torch and oneDNN keep as many as a model needs at a time, not the last 1,024, which packed
batches, each of another length, would make gigabytes of. And the stage reports how far it is."""

_TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the flow ended before its stage began")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class InterruptedStageError(StageError, OutageError):
    """A stage was cut short by what passes by itself; running it again may well succeed."""


def tied(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs ``argv``, and tells it to stop when this process dies."""
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv]


def distributed_argv(argv: Sequence[str], num_processes: int) -> list[str]:
    """Return the command line of the training ``argv`` for so many processes on this machine."""
    if num_processes == 1:
        return list(argv)
    launcher = [
        "-m",
        "albert_core.training.launcher",
        "--standalone",
        f"--nproc-per-node={num_processes}",
    ]
    return [sys.executable, *launcher, *argv[1:]]


def run_stage_process(
    argv: Sequence[str],
    log: Callable[[str], None],
    grace_seconds: float = GRACE_SECONDS,
    environment: Mapping[str, str] | None = None,
    limits: Limits = NO_LIMITS,
    on_progress: Callable[[StageProgress], None] | None = None,
) -> str:
    """Run the command line of a stage; return the URI of its manifest.

    Args:
        argv: as made by `stage.command.stage_argv`.
        log: called with each line of the stage's output, but for those of its result.
        grace_seconds: time to end between SIGTERM and SIGKILL, when this call is interrupted.
        environment: variables that the process is to have besides this one's.
        limits: how long it may take.
        on_progress: called with what the stage reports, if it does.

    Raises:
        InterruptedStageError: exit status 75, killed, told to stop, or silent for too long.
        StageError: the stage's own message, when it failed with one; or its last lines.
    """
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
    watch = _Watch(process, output, limits, grace_seconds)
    # In this thread's context: a logger may find there to whom it speaks.
    in_context = contextvars.copy_context().run
    reader = threading.Thread(target=in_context, args=(output.read, process.stdout), daemon=True)
    reader.start()
    try:
        with watch:
            _wait(process)
    except BaseException:
        _stop(process, grace_seconds)
        raise
    finally:
        _kill_group(process)
        status = process.wait()
        reader.join(timeout=grace_seconds)
        process.stdout.close()
    watch.check()
    return output.result(argv, status)


class _Output:
    """What a stage has printed."""

    def __init__(
        self, log: Callable[[str], None], on_progress: Callable[[StageProgress], None] | None
    ) -> None:
        self.log = log
        self.on_progress = on_progress
        self.last_at = time.monotonic()
        self.lines: list[str] = []
        self.failure: list[str] = []
        self.manifest: str | None = None

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self._take(line.rstrip("\n"))

    def _take(self, line: str) -> None:
        self.last_at = time.monotonic()
        if progress := StageProgress.from_line(line):
            if self.on_progress is not None:
                self.on_progress(progress)
            return
        _, text, _ = read_line(line)
        if text.startswith(RESULT):
            self.manifest = text.removeprefix(RESULT)
        elif text.startswith(FAILURE) or self.failure:
            self.failure += redacted(text).splitlines()
        else:
            self.lines = [*self.lines[1 - _LAST_LINES :], redacted(text)]
            self.log(redacted(line))

    def result(self, argv: Sequence[str], status: int) -> str:
        if status == 0 and self.manifest is not None:
            return self.manifest
        again = status in _WORTH_ANOTHER_TRY
        message = self._message(status)
        if not message:
            last_lines = "\n  ".join(self.lines + self.failure)
            message = f"{_named(argv)} {_ended(status)}. Its last lines:\n  {last_lines}"
        raise InterruptedStageError(message) if again else StageError(message)

    def _message(self, status: int) -> str:
        """Return the stage's own message, without what a launcher may have said after it."""
        if not self.failure:
            return ""
        first, *rest = self.failure
        if status != FAILURE_STATUS:
            indented = (i for i, line in enumerate(rest) if not line.startswith("  "))
            rest = rest[: next(indented, len(rest))]
        return "\n".join([first.removeprefix(FAILURE), *rest]).rstrip()


class _Watch:
    """A thread that stops a stage when it takes longer than its limits."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        output: _Output,
        limits: Limits,
        grace_seconds: float,
    ) -> None:
        self._process, self._output, self._limits = process, output, limits
        self._grace_seconds = grace_seconds
        self._began = time.monotonic()
        self._over = threading.Event()
        self._error: StageError | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        if self._limits != NO_LIMITS:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise what the stage was stopped for, if it was."""
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._error = self._overdue()
            if self._error is not None:
                _stop(self._process, self._grace_seconds)
                _kill_group(self._process)
                return

    def _overdue(self) -> StageError | None:
        now, limits = time.monotonic(), self._limits
        if limits.seconds is not None and now - self._began > limits.seconds:
            return StageError(
                f"the stage was stopped: it took longer than {limits.seconds / 3600:g} hours. "
                f"Raise {STAGE_HOURS}; what is done by now is kept."
            )
        if limits.silent_seconds is not None and now - self._output.last_at > limits.silent_seconds:
            return InterruptedStageError(
                f"the stage was stopped: it printed nothing for {limits.silent_seconds / 60:g} "
                f"minutes. If that is its way, raise {SILENT_MINUTES}."
            )
        return None


def _named(argv: Sequence[str]) -> str:
    modules = [name for option, name in pairwise(argv) if option == "-m"]
    return f"the stage {modules[-1]}" if modules else argv[0]


def _ended(status: int) -> str:
    if status == 0:
        return "ended without naming its manifest"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _wait(process: subprocess.Popen[str]) -> None:
    """Wait until ``process`` has ended, but leave its number taken, so that its group is its."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _stop(process: subprocess.Popen[str], grace_seconds: float) -> None:
    """Ask the whole group to end, and give its leader the time to."""
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            return
        time.sleep(_LOOK_SECONDS)


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
