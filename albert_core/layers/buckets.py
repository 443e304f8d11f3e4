"""Sequences of like length, padded to one: so attention has few, large products, not many small.

Only attention sees the padding; all else is computed of the packed batch. A bucket lies head after
head, as products of matrices want it, so to fill it is also to lay it out.

Dimensions: B sequences, T pieces of the packed batch, R rows of it (all pieces, or some), N heads,
D head size; n sequences of a bucket, S its length.
"""
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Runs = Sequence[tuple[int, int]]
"""How the pieces of a batch lie end to end: so many sequences, of that length; and so on."""

_PADDING_ALLOWED = 6_000
"""Scores of padding in a bucket, above which another bucket costs less."""


def lengths_of(runs: Runs) -> list[int]:
    """Return the length of each sequence."""
    return [length for number, length in runs for _ in range(number)]


@dataclass(frozen=True, slots=True)
class Slots:
    """Where rows of a packed batch lie in its buckets, which have a slot for each row and head."""

    of_rows: Tensor
    """int64 (R * N,), the slots of a row's heads beside each other."""
    rows: Tensor
    """int64 (slots,), the reverse: which of the R * N; 0 at padding."""
    padding: Tensor
    """int64, the slots without row."""
    shapes: list[tuple[int, int, int]]
    """(n, N, S) of each bucket."""

    def fill(self, x: Tensor) -> list[Tensor]:
        """Return (n, N, S, D) for each bucket, of (R, N, D).

        What stands at padding is any of the rows, and the gradient there is not looked at: nobody
        may read it.
        """
        filled: Tensor = _Filled.apply(x, self)
        sizes = [n * heads * length for n, heads, length in self.shapes]
        parts = filled.split(sizes) if len(sizes) > 1 else [filled]
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def empty(self, buckets: Sequence[Tensor]) -> Tensor:
        """Return (R, N, D), the reverse of `fill`; the gradient at padding is 0."""
        parts = [bucket.flatten(0, 2) for bucket in buckets]
        emptied: Tensor = _Emptied.apply(parts[0] if len(parts) == 1 else torch.cat(parts), self)
        return emptied


class _Filled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Slots) -> Tensor:
        ctx.slots, ctx.shape = slots, x.shape
        return x.flatten(0, 1).index_select(0, slots.rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].index_select(0, ctx.slots.of_rows).view(ctx.shape), None


class _Emptied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, filled: Tensor, slots: Slots) -> Tensor:
        ctx.slots = slots
        _, num_heads, _ = slots.shapes[0]
        emptied: Tensor = filled.index_select(0, slots.of_rows).unflatten(0, (-1, num_heads))
        return emptied

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        filled = gradients[0].flatten(0, 1).index_select(0, ctx.slots.rows)
        return filled.index_fill_(0, ctx.slots.padding, 0), None


class Buckets:
    """The sequences of a packed batch in buckets, the longest first; of the thread that made it."""

    def __init__(self, runs: Runs, num_heads: int) -> None:
        self._num_heads = num_heads
        self._lengths = torch.tensor(lengths_of(runs))
        by_length = self._lengths.argsort(descending=True, stable=True)
        self._sequences = by_length.split(_bucket_sizes(self._lengths[by_length].tolist()))

    @cached_property
    def pieces(self) -> Slots:
        """Return where all T pieces lie."""
        return self.slots(torch.arange(int(self._lengths.sum())))

    def slots(self, pieces: Tensor) -> Slots:
        """Return where rows lie that are these ``pieces``, int64 (R,), in any order."""
        of_row = torch.bucketize(pieces, self._lengths.cumsum(0), right=True)  # its sequence
        numbers = of_row.bincount(minlength=len(self._lengths))  # (B,), rows of a sequence
        by_sequence = of_row.argsort(stable=True)
        places = torch.empty_like(of_row)  # among the rows of its sequence
        places[by_sequence] = (
            torch.arange(len(of_row)) - (numbers.cumsum(0) - numbers)[of_row[by_sequence]]
        )
        starts, lengths = torch.empty_like(numbers), torch.empty_like(numbers)
        shapes, num_slots = [], 0
        for sequences in self._sequences:
            length = int(numbers[sequences].max())
            size = self._num_heads * length
            starts[sequences] = num_slots + torch.arange(len(sequences)) * size
            lengths[sequences] = length
            shapes.append((len(sequences), self._num_heads, length))
            num_slots += len(sequences) * size
        heads = torch.arange(self._num_heads) * lengths[of_row, None]
        of_rows = (starts[of_row, None] + heads + places[:, None]).flatten()
        rows = torch.full((num_slots,), -1)
        rows[of_rows] = torch.arange(len(of_rows))
        return Slots(of_rows, rows.clamp(min=0), (rows < 0).nonzero()[:, 0], shapes)

    @cached_property
    def key_masks(self) -> list[Tensor | None]:
        """Return bool (n, 1, 1, S) for each bucket, false at padding; None where there is none."""
        masks = []
        for sequences, (_, _, length) in zip(self._sequences, self.pieces.shapes, strict=True):
            mask = torch.arange(length) < self._lengths[sequences, None]
            masks.append(None if mask.all() else mask[:, None, None])
        return masks


def _bucket_sizes(lengths: list[int]) -> list[int]:
    """Return how many sequences go into each bucket, of ``lengths``, the longest first."""
    sizes: list[int] = []
    longest = padding = 0
    for length in lengths:
        padding += longest**2 - length**2
        if not sizes or padding > _PADDING_ALLOWED:
            longest, padding = length, 0
            sizes.append(0)
        sizes[-1] += 1
    return sizes
