"""Run a command; when it is told to stop, stay until all that it started has ended too.

``python -m infra.outlive prefect worker start ...``: a Prefect worker that is stopped ends its
flow runs at once, but their trainings still save. Where the end of this process is the end of all
others, as in a container, they would be cut off. SIGTERM and SIGINT both become SIGINT for the
command, which takes it even if it was started in the background of a shell.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments are; return its exit status."""
    if sys.platform == "linux":  # processes that lose their parent become children of this one
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stopped = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        process.send_signal(signal.SIGINT)

    wanted = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    for number in wanted:
        signal.signal(number, stop)  # with a handler here, not ignored in the command
    process = subprocess.Popen(
        list(sys.argv[1:] if argv is None else argv),
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),  # noqa: PLW1509
    )
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = process.wait()
    if stopped:
        _wait_for_children()
    return status if status >= 0 else 128 - status


def _wait_for_children() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
