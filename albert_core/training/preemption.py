"""Runs that end early and may be run again: preempted by SIGTERM, or left by another rank.

Their exit status tells whoever started them that the same command goes on from the newest
checkpoint.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from albert_core.stage.command import RUN_AGAIN_STATUS

log = logging.getLogger(__name__)


class RunAgain(SystemExit):
    """The run ends early but in order; what it has done is in its newest checkpoint."""

    def __init__(self) -> None:
        super().__init__(RUN_AGAIN_STATUS)


class UpdateStopped(Exception):  # noqa: N818  an order, not an error
    """A rank was told to stop: no rank goes on with the update, which changed nothing."""


class StopRequest:
    """Whether this process was told to stop."""

    def __init__(self) -> None:
        self.arrived = False
        self._ends_at_once = False

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Note SIGTERM, for which the training looks between micro-batches."""
        self.arrived = True
        if self._ends_at_once:
            self._ends_at_once = False
            raise RunAgain

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """End the run when SIGTERM comes in the block, or came before: nothing is left to save.

        Raises:
            RunAgain: it came.
        """
        self._ends_at_once = True
        try:
            if self.arrived:
                raise RunAgain
            yield
        finally:
            self._ends_at_once = False


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Note SIGTERM instead of ending; Python allows it only in a process's main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: Any = signal.signal(signal.SIGTERM, request.note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ending_when_told_to() -> Iterator[None]:
    """End the process immediately, with its status, when the block raises `RunAgain`.

    A normal exit of the interpreter can wait forever for a library's thread.
    """
    try:
        yield
    except RunAgain as ending:
        logging.shutdown()
        os._exit(int(str(ending.code)))
