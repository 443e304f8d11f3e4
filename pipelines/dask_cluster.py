"""A Dask cluster as the engine of a stage: is it fit for it, and does it still live?"""

import logging
import re
import time
from importlib.metadata import requires
from typing import Any

import distributed
from apache_beam.runners.dask.dask_runner import DaskRunnerResult
from distributed import KilledWorker

from albert_core.contract import storage
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import ConfigError, StageError

PARTITIONS_PER_THREAD = 4
"""Enough to even out pieces of work of unequal size."""
CONNECT_SECONDS = 20
LOST_SECONDS = 300.0
"""How long to wait for a worker once none is left."""
_LOOK_SECONDS = 5.0
_STAGES = ("pipelines.clean_corpus", "pipelines.train_vocab", "pipelines.make_examples")
_PROJECT = "albert-pretraining"

_Client: Any = distributed.Client  # untyped

log = logging.getLogger(__name__)
# Tracebacks of its own connections; what went wrong is said here, in a sentence.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


def check_workers(address: str, scratch: str) -> int:
    """Return the number of threads of all workers, after each has shown that it fits.

    Raises:
        ConfigError: no scheduler or no worker; or a worker has other code or libraries than
            this process, or doesn't see ``scratch``: its bytes would be others, or lost.
    """
    if not re.fullmatch(r"\w+://.+:\d+", address):
        raise ConfigError(
            f"ALBERT_ENGINE_ADDRESS={address} is no Dask scheduler's. One is tcp://host:8786."
        )
    seen = storage.join(scratch, "driver-was-here")
    storage.write_bytes(seen, b"")
    try:
        with _Client(address, timeout=CONNECT_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
            found = client.run(describe_worker, seen, on_error="return")
            num_threads = sum(client.nthreads().values())
    except (OSError, TimeoutError) as error:
        raise ConfigError(
            f"no Dask scheduler with a worker answers at ALBERT_ENGINE_ADDRESS={address} "
            f"({error}). Start both; infra/engines/README.md says how."
        ) from error
    here = describe_worker(seen)
    for worker, there in sorted(found.items()):
        if there != here:
            raise ConfigError(f"the Dask worker {worker} {_difference(here, there)}")
    log.info("Dask: %d workers, %d threads", len(found), num_threads)
    return num_threads


def describe_worker(file: str) -> dict[str, Any]:
    """Return what must be the same on all machines; run on each of them."""
    code = {module: code_digest(module) for module in _STAGES}
    return code | library_versions(*_libraries()) | {file: storage.exists(file)}


def _libraries() -> list[str]:
    """Return the libraries that text stages may use: the project's own and those of its extra."""
    wanted = [line for line in requires(_PROJECT) or [] if _is_for_pipelines(line)]
    return sorted(re.split(r"[^\w.-]", line)[0] for line in wanted)


def _is_for_pipelines(requirement: str) -> bool:
    return "extra ==" not in requirement or bool(re.search(r"extra == .pipelines", requirement))


def wait(result: DaskRunnerResult) -> None:
    """Wait for the end of a stage; raise what a worker raised.

    A worker that dies is no error: Dask gives its work to others.

    Raises:
        StageError: the scheduler is lost, or all workers for `LOST_SECONDS`, or one piece of
            work has ended worker after worker.
    """
    client: Any = result.client
    try:
        last_seen = time.monotonic()
        while not _is_over(result):
            if client.nthreads():
                last_seen = time.monotonic()
            elif time.monotonic() > last_seen + LOST_SECONDS:
                raise StageError(f"Dask has had no worker for {LOST_SECONDS:.0f} s. Start some.")
        # When the scheduler is gone, Beam's runner reports success: its futures end, as cancelled.
        if any(future.status != "finished" for future in result.futures):
            raise StageError("the Dask scheduler was lost. Start it, and run the stage again.")
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


def _difference(here: dict[str, Any], there: object) -> str:
    if not isinstance(there, dict):
        return f"can't run this project ({there!r}). Install the same version of it there."
    for name, value in here.items():
        if there[name] is False:
            return f"doesn't see {name}. Give a work folder that all machines share."
        if there[name] != value:
            return (
                f"has {name} {there[name]}, here it is {value}. Install the same versions there, "
                "and start it anew."
            )
    raise AssertionError(f"{here} and {there} are equal")
