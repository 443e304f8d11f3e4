"""The services of a team, for tests: real ones, with ports and data of their own."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from infra.production import MEMORY, Production, ProductionSettings, find_binaries
from infra.serve import LOOK_SECONDS, ServeError
from tests.mlflow_server import free_port


@contextmanager
def open_folder() -> Iterator[Path]:
    """Give a folder through which the user ``postgres`` may pass, unlike pytest's.

    Without Postgres the test is skipped.
    """
    try:
        find_binaries()
    except ServeError as error:
        pytest.skip(str(error))
    folder = Path(tempfile.mkdtemp(prefix="albert-postgres-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def stack(work: Path, **environment: str) -> Iterator[Production]:
    """Start the services, with artifacts in memory, and start again what ends; stop them after.

    Args:
        work: folder for their data, except that of Postgres.
        environment: variables that are set meanwhile.
    """
    with (
        open_folder() as databases,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as at_the_end,
    ):
        for name, value in environment.items():
            patch.setenv(name, value)
        production = Production(
            ProductionSettings(
                work=work,
                artifacts=MEMORY,
                prefect_port=free_port(),
                mlflow_port=free_port(),
                postgres_port=free_port(),
                s3_port=free_port(),
                postgres_folder=databases / "postgres",
            )
        )
        at_the_end.callback(production.stop)
        print(production.start_all(), flush=True)
        leave = threading.Event()

        def watch() -> None:
            while not leave.wait(LOOK_SECONDS):
                production.watch()

        watcher = threading.Thread(target=watch)
        watcher.start()
        at_the_end.callback(watcher.join)
        at_the_end.callback(leave.set)
        yield production
