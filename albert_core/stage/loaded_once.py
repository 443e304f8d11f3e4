"""Objects that a process loads once and its threads share: one thread loads, the others wait.

With `functools.lru_cache` alone, each thread that finds nothing yet loads for itself: eight threads
that begin together read eight tokenizers, and keep them until they are done.
"""

import threading
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Loaded = TypeVar("Loaded")


def loaded_once(load: Callable[Asked, Loaded]) -> Callable[Asked, Loaded]:
    """Make ``load`` keep its last result; no two threads load at the same time.

    The result is shared by all threads: nothing may change it, or it has a lock of its own. An
    error of ``load`` is raised, and the next call tries again. A loader may call other loaders, and
    itself, but not in a circle: two threads that begin at either end of it would wait for each
    other.
    """
    kept = lru_cache(maxsize=1)(load)
    loading = threading.RLock()

    def shared(*args: Asked.args, **kwargs: Asked.kwargs) -> Loaded:
        with loading:
            return kept(*args, **kwargs)  # type: ignore[arg-type]  # all are hashable

    shared.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return update_wrapper(shared, load)
