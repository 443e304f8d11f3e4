"""Runs the steps of a text stage on an engine, without an influence on its result.

A worker runs them in threads, which share what `loaded_once` loads.
"""

import threading
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Loaded = TypeVar("Loaded")


def loaded_once(load: Callable[Asked, Loaded]) -> Callable[Asked, Loaded]:
    """Decorate ``load`` to keep its last result, and let only one thread load at a time.

    With `functools.lru_cache` alone, eight threads that start together load eight tokenizers. All
    threads share the result, so it must be immutable or have a lock of its own. An error of
    ``load`` is raised, and the next call tries again. Loaders may call each other, but not in a
    circle, which would deadlock two threads.
    """
    kept = lru_cache(maxsize=1)(load)
    loading = threading.RLock()

    def shared(*args: Asked.args, **kwargs: Asked.kwargs) -> Loaded:
        with loading:
            return kept(*args, **kwargs)  # type: ignore[arg-type]  # all are hashable

    shared.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return update_wrapper(shared, load)
