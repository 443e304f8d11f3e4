"""Run a command; after a signal to stop, wait until everything that it started has ended too.

``python -m infra.outlive prefect worker start ...``: a Prefect worker that is stopped ends its
flow runs immediately, but their trainings still have to save. Where the end of this process is the
end of all others, as in a container, they would be cut off. SIGTERM and SIGINT both become SIGINT
for the command, which takes it even if it was started in the background of a shell.

``python -m infra.outlive --container ...`` does the same where the command ends by itself, as a
worker does that has not reached its server for minutes: what it started gets SIGTERM, and
ALBERT_STOP_SECONDS. Without the option what it started goes on, as a service's flow runs do until
its worker is started again, and after.
"""

import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

CONTAINER = "--container"
_LOOK_SECONDS = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments are; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    stop_seconds = _stop_seconds() if arguments[0] == CONTAINER else 0
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # A signal with a handler here is not ignored in the command.
        signal.signal(number, lambda number, _: received.append(number))
    command = psutil.Popen(arguments[1:] if stop_seconds else arguments)
    started: set[psutil.Process] = set()
    is_told = False
    while command.poll() is None:
        if received or stop_seconds:  # once the command has ended, nobody knows what it started
            still = {each for each in started if each.is_running()}
            started = still.union(command.children(recursive=True))
        if received:
            received.clear()
            is_told = True
            command.send_signal(signal.SIGINT)
        time.sleep(_LOOK_SECONDS)
    if is_told:
        psutil.wait_procs(started)
    elif stop_seconds:
        _stop(started, stop_seconds)
    status: int = command.returncode
    return status if status >= 0 else 128 - status


def _stop_seconds() -> int:
    from albert_core.stage.machine import stop_seconds

    return stop_seconds()


def _stop(started: Iterable[psutil.Process], seconds: float) -> None:
    """Send SIGTERM to the processes and what they have started since; wait until they end."""
    family = set(started)
    for process in started:
        with suppress(psutil.NoSuchProcess):
            family.update(process.children(recursive=True))
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(family, timeout=seconds)


if __name__ == "__main__":
    sys.exit(main())
