"""What all tests have in common."""

import errno
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import hypothesis
import pytest
from filelock import FileLock
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# The models here are small: a second thread waits more than it works, and where other processes
# have the cores it makes a test many times slower. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Text stages run in the process of their test: workers take longer to start than the work takes.
os.environ["ALBERT_WORKERS"] = "1"

# What a property promises is no speed, and other processes may have the cores.
hypothesis.settings.register_profile("without deadline", deadline=None)
hypothesis.settings.load_profile("without deadline")

T = TypeVar("T")

_ENDING_SECONDS = 5.0
"""What a thread is given that has been told to end."""
_SHARED = {
    "a Prefect server": (
        *("test_evaluate_albert.py", "test_flow_run.py", "test_pretrain_albert.py"),
        "test_promotion.py",
    ),
    "a registered model": (
        *("commands/test_document_trace.py", "commands/test_model_lineage.py"),
        *("commands/test_model_rebuild.py", "commands/test_retention.py"),
        *("test_find_done.py", "test_flipped_bits.py"),
    ),
}
_SHARERS = {f"tests/flows/{file}": what for what, files in _SHARED.items() for file in files}
"""Files that share a fixture of `tests/flows/conftest.py`, which takes half a minute to make."""
_PREFECT_SERVICES = {
    "prefect.events.worker": "EventsWorker",
    "prefect.logging.handlers": "APILogWorker",
}
_WAITING = ("/queue.py", "/selectors.py", "/threading.py")
"""Where a thread is that waits, for whatever it may be."""
_IDLE = {
    ("concurrent/futures/thread.py", "_worker"),  # of pools that end with their owner, as MLflow's
    ("asyncio/base_events.py", "_run_once"),  # fsspec's loop and Prefect's two, one a process
    ("anyio/_backends/_asyncio.py", "run"),  # of a pool that ends with its loop
    ("tqdm/_monitor.py", "run"),  # looks now and then whether a bar of the process stands still
    ("apache_beam/utils/thread_pool_executor.py", "run"),  # of the process's one pool
}
"""Files and functions that wait for the next work of a pool or an event loop."""


@contextmanager
def not_listed(folder: str | Path) -> Iterator[None]:
    """Let this process not list a folder during the block, as if it were another user's."""
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if str(path).rstrip("/") == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        yield


def wait_until(found: Callable[[], T], seconds: float = 60.0, what: object = "") -> T:
    """Return what ``found`` gives as soon as it is true; fail if it is not within so many seconds.

    What is waited for long is looked for less often: a server has other work.
    """
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(min(seconds / 1000, 0.5))
    return it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that none is left to run alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one more than there are cores, because tests wait for servers and processes.

    The environment may say another number; xdist reads it.
    """
    is_given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return None if is_given else (os.cpu_count() or 1) + 1


class SharersTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files go to workers one by one; those that share what takes half a minute go to one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _SHARERS.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharersTogether | None:
    """Take the scheduler above for ``--dist loadfile``."""
    return SharersTogether(config, log) if config.getoption("dist") == "loadfile" else None


def _of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run of the tests, the same in each of its processes."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables, to be copied: making them takes longer than most tests."""
    from albert_core.tracking.server import create_database

    path = _of_all_workers(tmp_path_factory) / "mlflow.db"
    create_database(path)
    return path


@pytest.fixture(scope="session")
def empty_prefect_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect's tables as its server leaves them, to be copied: making them takes longer still."""
    from flows.prefect_server import DATABASE, prefect_server

    path = _of_all_workers(tmp_path_factory) / DATABASE
    with FileLock(f"{path}.lock"), pytest.MonkeyPatch.context() as patch:
        if not path.exists():
            work = tmp_path_factory.mktemp("first-start")
            patch.delenv("PREFECT_API_URL", raising=False)
            patch.setenv("PREFECT_HOME", str(work))
            with prefect_server(str(work)):
                pass
            with closing(sqlite3.connect(work / DATABASE)) as made:
                made.execute("VACUUM INTO ?", [str(path)])
    return path


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name no test by the bytes of a file, which may hold the second in which it was packed.

    Each worker collects for itself, and all must find the same names.
    """
    return "bytes" if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def no_thread_is_left_at_work() -> Iterator[None]:
    """Fail a test that leaves a thread at work: it would meddle with one that knows nothing of it.

    Threads that wait for work may stay, such as those of a library's pool that lives as long as
    the process. So may those of fixtures that serve several tests: they were there before.
    """
    before = set(threading.enumerate())
    yield
    _end_connections_of_prefect()
    until = time.monotonic() + _ENDING_SECONDS
    while (left := threads_at_work(before)) and time.monotonic() < until:
        time.sleep(0.01)
    if left:
        pytest.fail(f"threads are left at work: {', '.join(left)}", pytrace=False)


def _end_connections_of_prefect() -> None:
    """Have Prefect send what waits and end its connections; the next flow opens others.

    On the one for events its loop pings every ten seconds, with a number from `random`: drawn
    while Hypothesis tries an example of another test, that makes the example look unreliable.
    """
    for module, service in _PREFECT_SERVICES.items():
        if module in sys.modules:
            getattr(sys.modules[module], service).drain_all(timeout=_ENDING_SECONDS)


def threads_at_work(before: set[threading.Thread]) -> list[str]:
    """Return the names of the threads that are not in ``before`` and do something."""
    frames = sys._current_frames()
    others = [thread for thread in threading.enumerate() if thread not in before]
    return sorted(each.name for each in others if _does_something(frames.get(each.ident or 0)))


def _does_something(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    while frame.f_back and frame.f_code.co_filename.endswith(_WAITING):
        frame = frame.f_back
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    return not any(file.endswith(idle) and function == name for idle, name in _IDLE)
