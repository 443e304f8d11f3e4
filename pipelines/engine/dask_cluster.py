"""A Dask cluster as the engine of a stage: its threads, and whether it is still there."""

import logging
import re
import time
from typing import Any

import distributed
from apache_beam.runners.dask.dask_runner import DaskRunnerResult
from distributed import KilledWorker

from albert_core.stage.errors import ConfigError, OutageError, StageError

PARTITIONS_PER_THREAD = 4
"""Enough to balance pieces of work of unequal size."""
CONNECT_SECONDS = 20
LOST_SECONDS = 300.0
"""How long to wait for a worker once none is left."""
_LOOK_SECONDS = 5.0

_Client: Any = distributed.Client  # untyped

log = logging.getLogger(__name__)
# It logs tracebacks of its own connections; here, one sentence says what went wrong.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


def num_threads(address: str) -> int:
    """Return the number of threads of all workers.

    Raises:
        ConfigError: the address is not a scheduler's.
        OutageError: no scheduler or no worker answers.
    """
    if not re.fullmatch(r"\w+://.+:\d+", address):
        raise ConfigError(
            f"ALBERT_ENGINE_ADDRESS={address} is not a Dask scheduler's; "
            "give one such as tcp://host:8786."
        )
    try:
        with _Client(address, timeout=CONNECT_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
            threads = client.nthreads()
    except (OSError, TimeoutError) as error:
        raise OutageError(
            f"no Dask scheduler with a worker answers at ALBERT_ENGINE_ADDRESS={address} "
            f"({error}). Start both; docs/engines.md says how."
        ) from error
    log.info("Dask: %d workers, %d threads", len(threads), sum(threads.values()))
    return sum(threads.values())


def wait(result: DaskRunnerResult) -> None:
    """Wait for the end of a stage; raise what a worker raised.

    A worker that dies is not an error: Dask gives its work to others.

    Raises:
        OutageError: the scheduler is lost, or all workers for `LOST_SECONDS`.
        StageError: one piece of work has ended worker after worker.
    """
    client: Any = result.client
    try:
        last_seen = time.monotonic()
        while not _is_over(result):
            if client.nthreads():
                last_seen = time.monotonic()
            elif time.monotonic() > last_seen + LOST_SECONDS:
                raise OutageError(f"Dask has had no worker for {LOST_SECONDS:.0f} s. Start some.")
        # When the scheduler is gone, Beam's runner reports success: its futures end, as cancelled.
        if any(future.status != "finished" for future in result.futures):
            raise OutageError("the Dask scheduler was lost. Start it, and run the stage again.")
    except KilledWorker as error:
        raise StageError(
            f"{error} Most likely it takes more memory than the workers have: see their logs, "
            "and raise --memory-limit or make source files smaller."
        ) from error
    finally:
        client.close()


def _is_over(result: DaskRunnerResult) -> bool:
    try:
        result.wait_until_finish(duration=_LOOK_SECONDS * 1000)
    except TimeoutError:
        return False
    return True
