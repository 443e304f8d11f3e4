"""Pure: index arithmetic for rows of different lengths laid end to end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]


def ranges(first: NDArray[Any], length: NDArray[Any]) -> Ints:
    """Return first[0], first[0] + 1, ... for length[0] numbers, then those of the next row.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    begins = np.cumsum(length) - length
    indices = np.arange(length.sum())
    indices += np.repeat(first - begins, length)
    return indices
