"""Run a stage as a process of its own: its lines as they come, its manifest at the end.

The process is the leader of its own session, so that it and all that it starts can be stopped
together; and it is told to stop when this process dies, however that happens.
"""

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import IO

from albert_core.contract.errors import StageError
from albert_core.contract.stage_command import FAILURE, FAILURE_STATUS, RESULT

WORKER_LOST_STATUS = os.EX_TEMPFAIL
"""Exit status (75) of a stage that lost a worker process: the same command may well succeed."""
GRACE_SECONDS = 30.0
"""How long a stage that is stopped may take, to save its checkpoint for example."""
_LAST_LINES = 20
_LOOK_SECONDS = 0.05
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Torch's threads sleep while they wait: a little slower on an idle machine, and nearly twice as
fast beside another process that computes."""

_TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the flow ended before its stage began")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class WorkerLostError(StageError):
    """A stage lost one of its worker processes; running it again may well succeed."""


def distributed_argv(argv: Sequence[str], num_processes: int) -> list[str]:
    """Return the command line of the training ``argv`` for so many processes on this machine."""
    if num_processes == 1:
        return list(argv)
    launcher = ["-m", "albert_core.launcher", "--standalone", f"--nproc-per-node={num_processes}"]
    return [sys.executable, *launcher, *argv[1:]]


def run_stage_process(
    argv: Sequence[str],
    log: Callable[[str], None],
    grace_seconds: float = GRACE_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command line of a stage; return the URI of its manifest.

    Args:
        argv: as made by `stage_command.stage_argv`.
        log: called with each line of the stage's output, but for those of its result.
        grace_seconds: time to end between SIGTERM and SIGKILL, when this call is interrupted.
        environment: variables that the process is to have besides this one's.

    Raises:
        WorkerLostError: exit status 75.
        StageError: the stage's own message, when it failed with one; or its last lines.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv],
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
    output = _Output(log)
    # In this thread's context: a logger may find there to whom it speaks.
    in_context = contextvars.copy_context().run
    reader = threading.Thread(target=in_context, args=(output.read, process.stdout), daemon=True)
    reader.start()
    try:
        _wait(process)
    except BaseException:
        _stop(process, grace_seconds)
        raise
    finally:
        _kill_group(process)
        status = process.wait()
        reader.join(timeout=grace_seconds)
        process.stdout.close()
    return output.result(argv, status)


class _Output:
    """What a stage has printed."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.log = log
        self.lines: list[str] = []
        self.failure: list[str] = []
        self.manifest: str | None = None

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self._take(line.rstrip("\n"))

    def _take(self, line: str) -> None:
        if line.startswith(RESULT):
            self.manifest = line.removeprefix(RESULT)
        elif line.startswith(FAILURE) or self.failure:
            self.failure.append(line)
        else:
            self.lines = [*self.lines[1 - _LAST_LINES :], line]
            self.log(line)

    def result(self, argv: Sequence[str], status: int) -> str:
        if status == 0 and self.manifest is not None:
            return self.manifest
        message = self._message(status)
        if message and status != WORKER_LOST_STATUS:
            raise StageError(message)
        last_lines = "\n  ".join(self.lines + self.failure)
        text = f"{_named(argv)} {_ended(status)}. Its last lines:\n  {last_lines}"
        raise WorkerLostError(text) if status == WORKER_LOST_STATUS else StageError(text)

    def _message(self, status: int) -> str:
        """Return the stage's own message, without what a launcher may have said after it."""
        if not self.failure:
            return ""
        first, *rest = self.failure
        if status != FAILURE_STATUS:
            indented = (i for i, line in enumerate(rest) if not line.startswith("  "))
            rest = rest[: next(indented, len(rest))]
        return "\n".join([first.removeprefix(FAILURE), *rest]).rstrip()


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
