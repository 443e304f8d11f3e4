"""Objects that a process loads once and its threads share: one thread loads, the others wait.

With `functools.lru_cache`, each thread that finds nothing yet loads for itself: eight threads that
begin together read eight tokenizers, and keep them until they are done.
"""

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Loaded = TypeVar("Loaded")


class Loader(Generic[Asked, Loaded]):
    """A function that remembers its last call; see `loaded_once`."""

    def __init__(self, load: Callable[Asked, Loaded]) -> None:
        self._load = load
        self._kept: tuple[object, Loaded] | None = None
        # A loader may call other loaders, and itself, but not in a circle: two threads that begin
        # at either end of it would wait for each other.
        self._loading = threading.RLock()
        update_wrapper(self, load)

    def __call__(self, *args: Asked.args, **kwargs: Asked.kwargs) -> Loaded:
        """Return what the function gives for these arguments, loading it only if needed."""
        asked = args, kwargs
        kept = self._kept  # replaced as a whole, so it can be read without the lock
        if kept is None or kept[0] != asked:
            with self._loading:
                kept = self._kept  # another thread may have loaded it meanwhile
                if kept is None or kept[0] != asked:
                    kept = self._kept = asked, self._load(*args, **kwargs)
        return kept[1]

    def cache_clear(self) -> None:
        """Forget what was loaded."""
        self._kept = None


def loaded_once(load: Callable[Asked, Loaded]) -> Loader[Asked, Loaded]:
    """Make ``load`` keep its last result; no two threads load at the same time.

    The result is shared by all threads: nothing may change it, or it has a lock of its own. An
    error of ``load`` is raised, and the next call tries again.
    """
    return Loader(load)
