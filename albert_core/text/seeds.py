"""Named randomness: a draw depends on its purpose, not on who draws or in which order.

A seed is derived from the run's seed and a name. A counter-based hash (splitmix64) turns it into
draws, so that they vectorise and are the same on every machine and with every library version.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def derive_seed(root: int, *names: str | int) -> int:
    """Return a seed in [0, 2**63) that depends only on ``root`` and ``names``.

    It does not depend on the worker, the order of work, or PYTHONHASHSEED: a document gets the same
    mask on a laptop and on a thousand workers.

    >>> derive_seed(7, "mask", "wiki/12", 0) == derive_seed(7, "mask", "wiki/12", 0)
    True
    >>> derive_seed(7, "mask", "wiki/12", 0) == derive_seed(7, "mask", "wiki/12", 1)
    False
    """
    digest = hashlib.blake2b(repr((root, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_bits(seed: int | UInt64s, counter: int | NDArray[Any]) -> UInt64s:
    """Return 64 random bits for each ``counter`` under ``seed``; the two broadcast.

    Source: splitmix64, Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
    generators", started at ``seed`` and jumped to ``counter``.
    """
    with np.errstate(over="ignore"):
        seeds = np.asarray(seed).astype(np.uint64)
        counters = np.asarray(counter).astype(np.uint64)
        return mix_bits(np.atleast_1d(seeds + (counters + np.uint64(1)) * _GOLDEN_GAMMA))


def mix_bits(values: UInt64s) -> UInt64s:
    """Mix the bits of each value in place, so that each depends on all others; return the values.

    Source: splitmix64's finisher, Steele, Lea and Flood 2014.
    """
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= _MIX_1
    values ^= np.right_shift(values, np.uint64(27), out=shifted)
    values *= _MIX_2
    values ^= np.right_shift(values, np.uint64(31), out=shifted)
    return values


def random_uniform(seed: int | UInt64s, counter: int | NDArray[Any]) -> NDArray[np.float64]:
    """Return a float64 in [0, 1) for each ``counter`` under ``seed``."""
    return (random_bits(seed, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def share_of(root: int, purpose: str, name: str) -> float:
    """Return the position of ``name`` in [0, 1) for a sample or split called ``purpose``.

    ``share_of(seed, "held-out", document_id) < 0.01`` sets aside one document in a hundred, and
    always the same ones.
    """
    return derive_seed(root, purpose, name) / 2**63
