"""Input sequences of a fine-tuning set, laid end to end, and batches of them without padding.

Dimensions: N sequences of a set; B of a batch, with T pieces in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.model.attention import Runs
from albert_core.text.records import CLS, SEP, ranges

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """B sequences laid end to end, those of equal length beside each other."""

    input_ids: Tensor
    """int64 (T,)."""
    token_type_ids: Tensor
    """int64 (T,), 0 in segment a, 1 in segment b."""
    runs: Runs
    """How many sequences of which length lie one after the other."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins, in the order in which they were asked for."""
    lengths: Tensor
    """int64 (B,), in the same order."""


@dataclass(frozen=True)
class Sequences:
    """N sequences, [CLS] a [SEP] or [CLS] a [SEP] b [SEP], not padded."""

    input_ids: NDArray[np.int32]
    """All of them end to end."""
    lengths: Ints
    """(N,), special pieces included."""
    segment_b_starts: Ints
    """(N,), where in the sequence token type 1 begins; the length if there is no segment b."""

    @staticmethod
    def of(pairs: Sequence[tuple[Sequence[int], Sequence[int] | None]]) -> "Sequences":
        """Return the sequences of these segments a and b, piece ids without special pieces."""
        rows = [[CLS, *a, SEP] if b is None else [CLS, *a, SEP, *b, SEP] for a, b in pairs]
        return Sequences(
            input_ids=np.fromiter(chain.from_iterable(rows), np.int32),
            lengths=np.array([len(row) for row in rows], np.int64),
            segment_b_starts=np.array([len(a) + 2 for a, _ in pairs], np.int64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def _begins(self) -> Ints:
        begins: Ints = np.cumsum(self.lengths) - self.lengths
        return begins

    def batch(self, rows: Ints, device: torch.device) -> SequenceBatch:
        """Return the sequences ``rows``, int64 (B,), as a batch on ``device``."""
        by_length = np.argsort(self.lengths[rows], kind="stable")
        packed = rows[by_length]
        lengths = self.lengths[packed]
        pieces = ranges(self._begins[packed], lengths)
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(len(pieces)) - np.repeat(starts, lengths)
        token_types = positions >= np.repeat(self.segment_b_starts[packed], lengths)
        first = np.empty_like(starts)
        first[by_length] = starts
        of_length, number = np.unique(lengths, return_counts=True)
        tensors = (self.input_ids[pieces], token_types, first, self.lengths[rows])
        ids, types, firsts, asked = (
            torch.from_numpy(each.astype(np.int64)).to(device) for each in tensors
        )
        runs = list(zip(number.tolist(), of_length.tolist(), strict=True))
        return SequenceBatch(ids, types, runs, firsts, asked)


def batches_by_length(lengths: Ints, max_pieces: int) -> list[Ints]:
    """Return the numbers 0..N-1 in batches of similar length and at most ``max_pieces`` pieces.

    Args:
        lengths: (N,).
        max_pieces: of a batch; a longer sequence is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    found, begin, pieces = [], 0, 0
    for end, length in enumerate(lengths[order].tolist()):
        if pieces and pieces + length > max_pieces:
            found.append(order[begin:end])
            begin, pieces = end, 0
        pieces += length
    if begin < len(order):
        found.append(order[begin:])
    return found
