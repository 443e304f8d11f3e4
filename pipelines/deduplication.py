"""Pure: which documents repeat an earlier one. Works on packed arrays of hashes, not on text."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 16


def partition_hashes(
    hashes: NDArray[np.void], num_partitions: int
) -> list[tuple[NDArray[np.uint32], NDArray[np.void]]]:
    """Return for each partition the rows and the hashes that fall in it.

    Args:
        hashes: V16 (R,), a content hash a document.
        num_partitions: equal hashes fall in the same one.

    Returns:
        For each partition, uint32 (R_p,) rows and V16 (R_p,) hashes, together every row once.
    """
    first_bytes = hashes.view(np.uint8).reshape(-1, HASH_BYTES)[:, 0]
    partitions = first_bytes % num_partitions
    return [
        (rows.astype(np.uint32), hashes[rows])
        for rows in (np.flatnonzero(partitions == p) for p in range(num_partitions))
    ]


def repeated_rows(
    parts: Iterable[tuple[int, NDArray[np.uint32], NDArray[np.void]]],
) -> dict[int, NDArray[np.uint32]]:
    """Return for each unit the rows whose content stands in an earlier unit or row.

    Args:
        parts: (unit, uint32 (R,) rows, V16 (R,) hashes), in any order.

    Returns:
        unit -> uint32 rows, ascending; every unit of ``parts`` is there. Of equal documents the
        first one by (unit, row) is not in it.
    """
    kept = list(parts)
    units = np.concatenate([np.full(len(rows), unit, np.int64) for unit, rows, _ in kept])
    rows = np.concatenate([rows for _, rows, _ in kept])
    hashes = np.concatenate([hashes for _, _, hashes in kept]).view("<u8").reshape(-1, 2)
    order = np.lexsort((rows, units, hashes[:, 1], hashes[:, 0]))
    same = np.zeros(len(order), bool)
    same[1:] = (hashes[order][1:] == hashes[order][:-1]).all(axis=1)
    repeated = order[same]
    return {
        unit: np.sort(rows[repeated[units[repeated] == unit]])
        for unit in {unit for unit, _, _ in kept}
    }
