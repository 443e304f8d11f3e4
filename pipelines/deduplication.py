"""Pure: which documents repeat an earlier one. Works on packed arrays of hashes, not on text.

Documents are ordered by the number of their part and their row there. The first of those that
are equal, or alike, is kept. Being alike isn't transitive, and no groups are formed: a document
goes when it is like any earlier one, also one that goes itself. So what is dropped depends on the
order of the documents alone: not on the cut into parts or partitions, nor on who is done first.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

UInt32s = NDArray[np.uint32]
UInt64s = NDArray[np.uint64]
Ints = NDArray[np.int64]

HASH_BYTES = 16


def partition_hashes(
    hashes: NDArray[np.void], num_partitions: int
) -> list[tuple[UInt32s, NDArray[np.void]]]:
    """Return for each partition the rows and the hashes that fall in it.

    Args:
        hashes: V16 (R,), a content hash a document.
        num_partitions: equal hashes fall in the same one; at most 65,536.

    Returns:
        For each partition, uint32 (R_p,) rows, ascending, and V16 (R_p,) hashes, together every
        row once.
    """
    partitions = (_halves(hashes)[:, 0] % np.uint64(num_partitions)).astype(np.uint16)
    order = np.argsort(partitions, kind="stable")
    ends = np.cumsum(np.bincount(partitions, minlength=num_partitions))[:-1]
    return [(rows.astype(np.uint32), hashes[rows]) for rows in np.split(order, ends)]


def repeated_rows(
    parts: Iterable[tuple[int, UInt32s, NDArray[np.void]]],
) -> dict[int, UInt32s]:
    """Return for each part the rows whose content stands in an earlier part or row.

    Args:
        parts: (part, uint32 (R,) rows, V16 (R,) hashes), in any order. Numbers of parts may be
            negative; the lowest comes first.

    Returns:
        part -> uint32 rows, ascending; every part of ``parts`` is there. Of equal documents the
        first one by (part, row) is not in it.
    """
    given = list(parts)
    numbers, rows = _places(given)
    hashes = _concatenated([_halves(hashes) for _, _, hashes in given], np.empty((0, 2), "<u8"))
    # Few documents repeat: only what agrees in the first half is put in order for good.
    some = _not_alone(hashes[:, 0])
    order = some[np.lexsort((rows[some], numbers[some], hashes[some, 1], hashes[some, 0]))]
    same = np.zeros(len(order), bool)
    same[1:] = (hashes[order][1:] == hashes[order][:-1]).all(axis=1)
    repeated = order[same]
    repeated = repeated[np.lexsort((rows[repeated], numbers[repeated]))]
    split = _split_by_part(numbers[repeated], sorted({number for number, _, _ in given}))
    return {number: rows[repeated[there]] for number, there in split.items()}


def candidate_pairs(
    parts: Iterable[tuple[int, UInt32s, UInt64s]],
) -> dict[int, tuple[UInt32s, Ints, UInt32s]]:
    """Return which documents of a partition to compare, each with an earlier one.

    A document is compared, for each of its band hashes, with the first document that has it and
    with the last one before it: two comparisons, however many have it in common. Whoever is
    like the others of such a group is like the first or its neighbour, but for rare chance.

    Args:
        parts: (part, uint32 (R,) rows, uint64 (R,) band hashes), in any order; a row as often as
            it has band hashes in this partition.

    Returns:
        part -> uint32 (C,) rows, int64 (C,) earlier parts, uint32 (C,) earlier rows, in ascending
        order and each triple once; every part of ``parts`` is there. The pairs of several
        partitions, taken together, are those of one that holds all hashes.
    """
    given = list(parts)
    numbers, rows = _places(given)
    bands = _concatenated([bands for _, _, bands in given], np.empty(0, np.uint64))
    some = _not_alone(bands)
    order = some[np.lexsort((rows[some], numbers[some], bands[some]))]
    later, earlier = _pairs_in_groups(bands[order])
    columns = [
        numbers[order[later]],
        rows[order[later]].astype(np.int64),
        numbers[order[earlier]],
        rows[order[earlier]].astype(np.int64),
    ]
    pairs = _unique_rows(np.stack(columns, axis=1))
    pairs = pairs[(pairs[:, :2] != pairs[:, 2:]).any(axis=1)]
    split = _split_by_part(pairs[:, 0], sorted({number for number, _, _ in given}))
    return {
        number: (
            pairs[there, 1].astype(np.uint32),
            pairs[there, 2],
            pairs[there, 3].astype(np.uint32),
        )
        for number, there in split.items()
    }


def _halves(hashes: NDArray[np.void]) -> UInt64s:
    """Return uint64 (R, 2) of V16 (R,)."""
    return np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)


def _places(given: Sequence[tuple[int, UInt32s, NDArray]]) -> tuple[Ints, UInt32s]:
    """Return part and row of every hash."""
    numbers = [np.full(len(rows), number, np.int64) for number, rows, _ in given]
    rows = [rows for _, rows, _ in given]
    return (
        _concatenated(numbers, np.empty(0, np.int64)),
        _concatenated(rows, np.empty(0, np.uint32)),
    )


def _concatenated(arrays: Sequence[NDArray], nothing: NDArray) -> NDArray:
    return np.concatenate([nothing, *arrays])


def _not_alone(values: UInt64s) -> Ints:
    """Return the places of the values that are there more than once."""
    order = np.argsort(values)
    same = np.zeros(len(values) + 1, bool)
    same[1:-1] = values[order[1:]] == values[order[:-1]]
    return order[same[1:] | same[:-1]]


def _pairs_in_groups(ordered: UInt64s) -> tuple[Ints, Ints]:
    """Return places of equal values: each but a group's first, with the first and the previous."""
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(ordered))
    first_of_group = np.maximum.accumulate(np.where(is_first, places, 0))
    later = np.flatnonzero(~is_first)
    return np.tile(later, 2), np.concatenate([first_of_group[later], later - 1])


def _unique_rows(table: Ints) -> Ints:
    """Return the rows in ascending order, each once."""
    table = table[np.lexsort(table.T[::-1])]
    is_new = np.ones(len(table), bool)
    is_new[1:] = (table[1:] != table[:-1]).any(axis=1)
    return table[is_new]


def _split_by_part(ordered: Ints, numbers: Sequence[int]) -> dict[int, slice]:
    """Return where each part's entries stand in ``ordered``, the ascending numbers of parts."""
    begins = np.searchsorted(ordered, numbers).tolist()
    ends = np.searchsorted(ordered, numbers, side="right").tolist()
    return {
        number: slice(begin, end) for number, begin, end in zip(numbers, begins, ends, strict=True)
    }
