"""Pure functions that turn raw texts into a clean corpus."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def cut_by_size(
    items: Iterable[Item], size_of: Callable[[Item], int], size: int
) -> Iterator[list[Item]]:
    """Yield ``items`` in order, in lists that end with the item that fills them to ``size``.

    >>> list(cut_by_size(["ab", "c", "def", "g"], len, 3))
    [['ab', 'c'], ['def'], ['g']]
    """
    batch: list[Item] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size_of(item)
        if filled >= size:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch
