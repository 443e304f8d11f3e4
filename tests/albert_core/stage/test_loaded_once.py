import threading

import pytest

from albert_core.stage.loaded_once import loaded_once
from tests.threads import NUM_THREADS, at_once, in_threads


class Shelf:
    """What can be loaded, and what was."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.loading = 0

    def load(self, name: str) -> list[str]:
        assert self.loading == 0
        self.loading += 1
        threading.Event().wait(0.01)
        self.loading -= 1
        self.asked.append(name)
        return [name]


def test_one_thread_loads_for_all() -> None:
    shelf = Shelf()
    load = loaded_once(shelf.load)
    given = at_once(lambda: load("a"))
    assert given == [["a"]] * NUM_THREADS
    assert len(set(map(id, given))) == 1
    assert shelf.asked == ["a"]


def test_what_could_not_be_loaded_is_tried_again() -> None:
    failures = [OSError("gone")]

    @loaded_once
    def load() -> str:
        if failures:
            raise failures.pop()
        return "there"

    with pytest.raises(OSError, match="gone"):
        load()
    assert at_once(load) == ["there"] * NUM_THREADS


def test_a_loader_may_call_another_and_itself() -> None:
    inner = loaded_once(str)

    @loaded_once
    def outer(number: int) -> str:
        return inner(number) + (outer(number - 1) if number else "")

    assert in_threads(outer, [3, 2] * NUM_THREADS) == ["3210", "210"] * NUM_THREADS
