"""Services that end are started again, and none outlives the end of all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.services import MARK, ServeError, Services, marked, run_until_stopped

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True);"
    "print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path, {})
    yield services
    services.stop()


def start(services: Services, code: str, *, keeps_children: bool = False) -> int:
    services.start("sleeper", sys.executable, "-c", code, keeps_children=keeps_children)
    wait_until(lambda: "up" in services.log_of("sleeper").read_text())
    return services.pid("sleeper")


def wait_until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_was_killed_is_started_again_and_it_is_said(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = start(services, SLEEPER)
    os.kill(killed, signal.SIGKILL)

    def is_back() -> bool:
        services.start_ended_again()
        return services.log_of("sleeper").read_text().count("up") == 2

    wait_until(is_back)
    said = capsys.readouterr().out
    assert "sleeper ended by itself, with status -9 (time 1)" in said
    assert f"sleeper was started again, with pid {services.pid('sleeper')}" in said
    assert services.pid("sleeper") != killed


def test_what_ends_at_once_is_tried_less_and_less_often(services: Services) -> None:
    services.start("sleeper", "false")
    service = services.services["sleeper"]
    waits = []
    for end in (1, 2, 3):
        service.process.wait()
        services.start_ended_again()
        assert service.num_ends == end
        assert service.start_again_at is not None
        waits.append(service.delay_seconds)
        service.start_again_at = 0.0  # the time has come
        services.start_ended_again()
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("keeps_children", [True, False])
def test_what_a_killed_service_had_started_goes_on_only_if_it_may(
    services: Services, keeps_children: bool
) -> None:
    killed = start(services, PARENT, keeps_children=keeps_children)
    [child] = descendants(killed)
    os.kill(killed, signal.SIGKILL)
    services.services["sleeper"].process.wait()
    services.start_ended_again()
    if keeps_children:
        assert is_running(child)
    else:
        wait_until(lambda: not is_running(child))


def test_stopping_reaches_what_outlived_the_service_that_started_it(services: Services) -> None:
    killed = start(services, PARENT, keeps_children=True)
    [child] = descendants(killed)
    os.kill(killed, signal.SIGKILL)
    services.services["sleeper"].process.wait()
    services.start_ended_again()
    assert is_running(child)
    services.stop()
    assert not is_running(child)


def test_a_mark_finds_the_processes_that_bear_it_and_no_other() -> None:
    bearer = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "this-test"})
    try:
        wait_until(lambda: bool(marked(MARK, "this-test")))
        assert marked(MARK, "this-test") == [bearer.pid]
        assert marked(MARK, "this") == []
    finally:
        bearer.kill()
        bearer.wait()


def test_a_service_that_ends_by_itself_is_named_with_its_last_words(services: Services) -> None:
    services.start("MLflow", sys.executable, "-c", "import sys; sys.exit('no such database')")
    services.services["MLflow"].process.wait()
    with pytest.raises(
        ServeError, match=r"(?s)MLflow ended by itself, with status 1.*no such database"
    ):
        services.check()


def test_what_ignores_the_signals_is_killed_with_what_it_started(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.services._STOP_SECONDS", 0.5)
    stubborn = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {PARENT}"
    pid = start(services, stubborn)
    family = [pid, *descendants(pid)]
    assert len(family) == 2
    services.stop()
    assert [pid for pid in family if is_running(pid)] == []


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and not stat.read_text().rpartition(") ")[2].startswith("Z")


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


@pytest.mark.parametrize(("error", "status"), [(OSError("disk full"), 2), (ServeError("away"), 2)])
def test_whatever_ends_the_watch_stops_the_services(
    services: Services, error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    started: list[int] = []

    def begin() -> str:
        started.append(start(services, SLEEPER))
        return "all is up"

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert run_until_stopped(services, begin, fail) == status
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert f"error: {error}" in capsys.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
