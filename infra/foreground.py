"""Services that run in this terminal, until Ctrl-C or SIGTERM."""

import argparse
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from albert_core.contract import storage
from albert_core.contract.errors import AlbertError
from infra.services import LOOK_SECONDS, ServeError, Services


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The user asked to stop."""


def run_until_stopped(
    services: Services, start: Callable[[], str], watch: Callable[[], None]
) -> int:
    """Start the services, print a greeting, and watch them until a signal comes; then stop all.

    Args:
        services: that ``start`` starts.
        start: returns the greeting.
        watch: called again and again; what it raises ends all.

    Returns:
        The exit status.
    """
    # A signal with a handler here is not ignored in the children: a worker that ignores SIGINT,
    # as in a background job of a shell, could not be stopped.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_stopped)
    status = 0
    try:
        print(start(), flush=True)
        while True:
            watch()
            time.sleep(LOOK_SECONDS)
    except Stopped:
        print("\nstopping", flush=True)
    except (AlbertError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        services.stop()
    return status


def local_folder(text: str) -> Path:
    """Return a command line's folder, absolute; argparse's error if it is not on this machine."""
    path = storage.local_path(text)
    if path is None:
        raise argparse.ArgumentTypeError(
            f"{text} is not on this machine, where the databases and logs of the services are to "
            "be. Give a local folder here, and workers with ALBERT_WORK at that place"
        )
    return path.absolute()


def refuse_taken(host: str, **ports: int) -> None:
    """Raise ServeError if something listens already where a service is to listen."""
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ServeError(
                    f"{name} cannot listen at {host}:{port}: {error.strerror}. Stop what listens "
                    f"there (another `make serve`?), or give ARGS='--{name.lower()}-port ...'"
                ) from error


def _raise_stopped(_: int, __: FrameType | None) -> NoReturn:
    raise Stopped
