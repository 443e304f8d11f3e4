"""Run a command; after a signal to stop, wait until everything that it started has ended too.

``python -m infra.outlive prefect worker start ...``: a Prefect worker that is stopped ends its
flow runs immediately, but their trainings still have to save. Where the end of this process is the
end of all others, as in a container, they would be cut off. SIGTERM and SIGINT both become SIGINT
for the command, which takes it even if it was started in the background of a shell.
"""

import signal
import sys
import time
from collections.abc import Sequence

import psutil

_LOOK_SECONDS = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments are; return its exit status."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # A signal with a handler here is not ignored in the command.
        signal.signal(number, lambda number, _: received.append(number))
    command = psutil.Popen(sys.argv[1:] if argv is None else argv)
    started: list[psutil.Process] = []
    while command.poll() is None:
        if received:
            received.clear()
            started += command.children(recursive=True)
            command.send_signal(signal.SIGINT)
        time.sleep(_LOOK_SECONDS)
    psutil.wait_procs(started)
    status: int = command.returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
