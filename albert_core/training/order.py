"""Pure: which examples an update takes, and how they are dealt to ranks and micro-batches.

The order of all examples is a pure function of seed, epoch and index. Within one update it is
free, because the loss is one mean over the update: there the examples are put in order of length,
so that a micro-batch has those of like length, and dealt to the ranks like cards.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed, random_bits

LENGTH_MULTIPLE = 8
"""Where sequences are padded, it is to a multiple of this, which suits the matrix units."""
_ROUNDS = 4

Length = TypeVar("Length", int, Ints)


def order_seed(seed: int) -> int:
    """Return the seed of `example_order` in a pretraining with this ``seed``."""
    return derive_seed(seed, "order")


def example_order(first: int, count: int, num_examples: int, seed: int) -> Ints:
    """Return which examples are trained on as numbers ``first`` to ``first + count`` of a run.

    Every epoch visits each example once, in another order. Updates take slices of this one
    sequence, so that it is the same however the work is cut.

    Args:
        first: examples already taken since the run began.
        count: examples to take.
        num_examples: examples there are.
        seed: of the order.
    """
    numbers = np.arange(first, first + count)
    epochs, within = numbers // num_examples, numbers % num_examples
    order = np.empty(count, np.int64)
    for epoch in np.unique(epochs):
        of_epoch = epochs == epoch
        order[of_epoch] = permute(
            within[of_epoch], num_examples, derive_seed(seed, "epoch", int(epoch))
        )
    return order


def permute(indices: Ints, size: int, seed: int) -> Ints:
    """Return where a random permutation of ``range(size)`` puts ``indices``; no table is kept.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains": a Feistel network
    over the next power of four, walked until the value falls below ``size``.
    """
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(np.uint64), half, seed)
    while (outside := values >= size).any():
        values[outside] = _feistel(values[outside], half, seed)
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: int, seed: int) -> NDArray[np.uint64]:
    shift, low = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & low
    for number in range(_ROUNDS):
        mixed = random_bits(derive_seed(seed, "round", number), right) & low
        left, right = right, left ^ mixed
    return (left << shift) | right


def padded_length(length: Length) -> Length:
    """Return what the longest of several sequences is padded to.

    >>> padded_length(505), padded_length(512)
    (512, 512)
    """
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def deal_update(lengths: Ints, rank: int, world_size: int, max_padded_pieces: int) -> list[Ints]:
    """Return which examples of an update a rank takes, for each of its micro-batches.

    The examples, longest first, are dealt out in rounds, back and forth, one to each rank in a
    round; consecutive rounds are a micro-batch. So the ranks have equally many examples, within
    one, nearly as many pieces, and the same number of micro-batches, of the same shapes but for
    a few pieces. Together they have each example once.

    Args:
        lengths: int64 (n,), pieces of each example of the update; n is at least ``world_size``.
        rank: 0..world_size - 1.
        world_size: ranks there are.
        max_padded_pieces: B x S of a micro-batch, as if it were padded. A longer example is a
            micro-batch of its own; and where ``world_size`` does not divide n, so that the last
            round is not for every rank, the last two rounds are never cut apart.

    Returns:
        Numbers 0..n - 1 for each micro-batch, longest first. Of equally long examples, the first
        comes first.
    """
    num_rounds = -(-len(lengths) // world_size)
    rounds = np.full((num_rounds, world_size), -1)
    rounds.ravel()[: len(lengths)] = np.argsort(-lengths, kind="stable")
    widths = padded_length(lengths[rounds[:, 0]])
    rounds[1::2] = rounds[1::2, ::-1]
    mine = rounds[:, rank]
    is_whole = len(lengths) % world_size == 0
    cuts = _cut_rounds(widths.tolist(), max_padded_pieces, min_in_last=1 if is_whole else 2)
    return [part[part >= 0] for part in np.split(mine, cuts)]


def _cut_rounds(widths: list[int], max_padded_pieces: int, min_in_last: int) -> list[int]:
    """Return before which rounds to cut, ascending, given the padded length of each, descending.

    The shortest are taken together first, so that the micro-batch that is not full has the
    longest, and the fewest.
    """
    cuts: list[int] = []
    end, at_least = len(widths), min_in_last
    for first in range(len(widths) - 1, -1, -1):
        count = end - first
        if count * widths[first] > max_padded_pieces and count > at_least:
            end, at_least = first + 1, 1
            cuts.append(end)
    return cuts[::-1]
