"""Ctrl-C and SIGTERM for a flow that is run by hand: an end within ten seconds, and one line."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import psutil
import typer

from albert_core.stage.log import say

_MESSAGE = "stopped; the same command goes on from here"
_STAGE_SECONDS = 5.0
"""The time that stages have to save what they have."""
_ALL_SECONDS = 8.5
"""The time after which everything is killed."""


class Stopping:
    """What happens when this process is told to stop; only the first signal counts.

    The stages are told at once, and the flow run becomes Crashed. What takes too long is killed:
    every stage goes on from what it wrote.
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        """Numbers of the processes that are stopped last: the server that is told of the end."""
        self.signal: int | None = None

    def take(self, number: int, _: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: it is the first one.
        """
        if self.signal is None:
            self.signal = number
            threading.Thread(target=self._end_in_time, daemon=True).start()
            raise KeyboardInterrupt

    @property
    def status(self) -> int:
        """The exit status, as a shell has it for a process that was ended by the signal."""
        return 128 + (self.signal or signal.SIGINT)

    def _end_in_time(self) -> None:
        time.sleep(_STAGE_SECONDS)
        _kill([child for child in _children() if child.pid not in self.kept])
        time.sleep(_ALL_SECONDS - _STAGE_SECONDS)
        self._end()

    def _end(self) -> NoReturn:
        say(_MESSAGE, sys.stderr, logging.WARNING)
        _kill(_children())
        os._exit(self.status)


@contextmanager
def stopping() -> Iterator[Stopping]:
    """Let the block be stopped by Ctrl-C or SIGTERM, and say that it was.

    Raises:
        typer.Exit: it was.
    """
    told = Stopping()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, told.take) for number in numbers}
    try:
        yield told
    except KeyboardInterrupt:
        say(_MESSAGE, sys.stderr, logging.WARNING)
        _kill(_children())
        raise typer.Exit(told.status) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _children() -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
