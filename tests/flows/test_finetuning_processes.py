import os
import threading
from contextlib import ExitStack

import pytest

from albert_core.stage.errors import ConfigError
from flows.finetunings import PROCESSES, Slots, num_processes, visible_devices


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PROCESSES, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def taken_at_once(slots: Slots, number: int) -> list[dict[str, str]]:
    with ExitStack() as stack:
        return [stack.enter_context(slots.taken()) for _ in range(number)]


def test_one_runs_at_a_time_unless_the_environment_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert num_processes() == 1
    monkeypatch.setenv(PROCESSES, "3")
    assert num_processes() == 3
    for text in ("0", "two", ""):
        monkeypatch.setenv(PROCESSES, text)
        with pytest.raises(ConfigError, match="must be a whole number, at least 1"):
            num_processes()


def test_a_single_process_gets_all_there_is() -> None:
    assert taken_at_once(Slots(1, ["0", "1"]), 1) == [{}]


def test_devices_are_dealt_out_in_turn() -> None:
    environments = taken_at_once(Slots(3, ["4", "6"]), 3)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["4", "6", "4"]


def test_without_devices_the_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert taken_at_once(Slots(2, []), 2) == [{"OMP_NUM_THREADS": "4"}] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert taken_at_once(Slots(2, []), 2) == [{}] * 2


def test_who_comes_when_all_places_are_taken_waits() -> None:
    slots, entered = Slots(1, []), threading.Event()

    def enter() -> None:
        with slots.taken():
            entered.set()

    with slots.taken():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(10)
    thread.join()


def test_the_visible_devices_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_devices() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == []
