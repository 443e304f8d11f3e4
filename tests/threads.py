"""Calls by several threads at once, as a Beam worker makes them."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar
from unittest.mock import patch

NUM_THREADS = 8
_SWITCH_SECONDS = 1e-5
"""Between switches of threads, five hundred times as many as there are else."""
_OBJECTS_PER_COLLECTION = 200
_REMEMBERING = (
    *("albert_core.text.tokenizer", "pipelines"),
    *("chardet", "charset_normalizer", "courlan", "ftfy", "htmldate", "justext", "trafilatura"),
)
"""Packages whose functions remember what they gave."""

Input = TypeVar("Input")
Result = TypeVar("Result")


def in_threads(
    call: Callable[[Input], Result], inputs: Sequence[Input], num_threads: int = NUM_THREADS
) -> list[Result]:
    """Return what ``call`` gives for each of ``inputs``, in their order.

    Each thread has every so manieth of them. None begins before all are there; they take turns
    as often as Python can. The first error of any is raised when all have ended.

    The garbage collector runs often, and code of Python with it, as finalizers are: so threads
    change inside of C functions too, where these make objects.
    """
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    together = threading.Barrier(num_threads)

    def work(first: int) -> None:
        together.wait()
        try:
            for place in range(first, len(inputs), num_threads):
                results[place] = call(inputs[place])
        except BaseException as error:  # noqa: BLE001 - raised below, where the test is
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True) for number in range(num_threads)
    ]
    with _many_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error
    return [results[place] for place in range(len(inputs))]


def at_once(call: Callable[[], Result], num_threads: int = NUM_THREADS) -> list[Result]:
    """Return what ``call`` gives each of the threads."""
    return in_threads(lambda _: call(), range(num_threads), num_threads)


def forget_what_is_kept() -> None:
    """Make this process what it was before it was asked for anything, but for its imports."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_REMEMBERING):
            for clear in _clears_of(module):
                clear()


@cache
def _clears_of(module: Any) -> list[Callable[[], None]]:
    functions = [value for value in vars(module).values() if not isinstance(value, type)]
    remembering = [each for each in functions if hasattr(each, "cache_clear")]
    return [each.cache_clear for each in remembering if each.__module__.startswith(_REMEMBERING)]


@contextmanager
def _many_switches() -> Iterator[None]:
    seconds, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(_OBJECTS_PER_COLLECTION, *thresholds[1:])
    gc.callbacks.append(_let_others_run)
    try:
        with patch.object(gc, "set_threshold"):  # workers set it, too
            yield
    finally:
        gc.callbacks.remove(_let_others_run)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(seconds)


def _let_others_run(*_: object) -> None:
    time.sleep(0)
