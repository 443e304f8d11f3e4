"""Attention over a batch of sequences of many lengths, laid end to end.

On a CPU, sequences of like length are padded to one length, a bucket, so that attention has few,
large products instead of many small ones. Only attention sees this padding. A bucket lies head
after head, as matrix products want it, so filling it also lays it out.

Dimensions: B sequences or n of a bucket, S pieces, N heads of size D; T pieces of a whole batch, R
of its rows.
"""

# mypy: disable-error-code="no-untyped-call"
# ruff: noqa: SLF001 - PyTorch has no public names for these kernels

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.model import execution

Runs = Sequence[tuple[int, int]]
"""(number of sequences, their length) of each run of equally long sequences in a batch."""

_PADDING_ALLOWED = 6_000
"""Scores of padding in a bucket, above which another bucket costs less."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout_prob: float
) -> Tensor:
    """Return, for each query, the mean of the values, weighted by softmax(query . key / sqrt(D)).

    Args:
        query: (B, N, S, D), or another number of them.
        key: (B, N, S, D).
        value: (B, N, S, D).
        key_mask: bool (B, 1, 1, S), false at a key that no query may see; each query sees some.
        dropout_prob: share of the weights set to 0; above 0, attention is always the plain one.

    Returns:
        one for each query.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if dropout_prob or not execution.is_fast("products", query.device, query.dtype):
        return F.scaled_dot_product_attention(query, key, value, key_mask, dropout_prob)
    seen: Tensor = _AttentionByProducts.apply(query, key, value, key_mask)
    return seen


class _AttentionByProducts(torch.autograd.Function):
    """Attention by matrix products, which keeps its weights (B, N, S, S) for the backward pass.

    A product copies what does not lie head after head: here each input is laid out so once. There
    is one tensor of the scores, and one of their gradient, both changed in place.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None
    ) -> Tensor:
        ctx.scale = query.shape[-1] ** -0.5
        query, key, value = (x.contiguous() for x in (query * ctx.scale, key, value))
        scores = query @ key.transpose(-1, -2)
        if key_mask is not None:
            scores.masked_fill_(~key_mask, -torch.inf)
        weights = torch.softmax(scores, -1, out=scores)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_scores = gradient @ value.transpose(-1, -2)  # so far the gradient of the weights
        softmax_backward = torch.ops.aten._softmax_backward_data.out
        softmax_backward(of_scores, weights, -1, weights.dtype, grad_input=of_scores)
        return (
            (of_scores @ key).mul_(ctx.scale),
            of_scores.transpose(-1, -2) @ query,
            weights.transpose(-1, -2) @ gradient,
            None,
        )


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
    shapes: list[tuple[int, int, int]]
    """(n, N, S) of each bucket."""

    def fill(self, x: Tensor) -> list[Tensor]:
        """Return (n, N, S, D) for each bucket, of (R, N, D).

        The content of padding is undefined, and must have no part in a result.
        """
        filled = x.flatten(0, 1).index_select(0, self.rows)
        sizes = [n * heads * length for n, heads, length in self.shapes]
        parts = filled.split(sizes) if len(sizes) > 1 else [filled]
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def empty(self, buckets: Sequence[Tensor]) -> Tensor:
        """Return (R, N, D), the reverse of `fill`."""
        parts = [bucket.flatten(0, 2) for bucket in buckets]
        filled = parts[0] if len(parts) == 1 else torch.cat(parts)
        rows: Tensor = filled.index_select(0, self.of_rows).unflatten(0, (-1, self.shapes[0][1]))
        return rows


class Buckets:
    """The sequences of a packed batch in buckets, longest first; for the thread that made it."""

    def __init__(self, runs: Runs, num_heads: int) -> None:
        self._num_heads = num_heads
        self._lengths = torch.tensor(lengths_of(runs))
        by_length = self._lengths.argsort(descending=True, stable=True)
        self._sequences = by_length.split(_bucket_sizes(self._lengths[by_length].tolist()))

    @cached_property
    def pieces(self) -> Slots:
        """The slots of all T pieces."""
        return self.slots(torch.arange(int(self._lengths.sum())))

    def slots(self, pieces: Tensor) -> Slots:
        """Return the slots of rows that are these ``pieces``, int64 (R,), in any order."""
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
        rows = torch.zeros(num_slots, dtype=torch.int64)
        rows[of_rows] = torch.arange(len(of_rows))
        return Slots(of_rows, rows, shapes)

    @cached_property
    def key_masks(self) -> list[Tensor | None]:
        """bool (n, 1, 1, S) for each bucket, false at padding; None where there is none."""
        masks = [
            torch.arange(length) < self._lengths[sequences, None]
            for sequences, (_, _, length) in zip(self._sequences, self.pieces.shapes, strict=True)
        ]
        return [None if mask.all() else mask[:, None, None] for mask in masks]


def _bucket_sizes(lengths: list[int]) -> list[int]:
    """Return how many sequences go into each bucket, of ``lengths``, longest first."""
    sizes: list[int] = []
    longest = padding = 0
    for length in lengths:
        padding += longest**2 - length**2
        if not sizes or padding > _PADDING_ALLOWED:
            longest, padding = length, 0
            sizes.append(0)
        sizes[-1] += 1
    return sizes


@dataclass(frozen=True, slots=True)
class Layout:
    """How the T pieces of a batch are sequences, in the forms that the model needs."""

    runs: Runs
    buckets: Buckets | None = None
    """Where attention is computed bucket by bucket; or None."""
    ends: Tensor | None = None
    """int32 (B + 1,), 0 and the end of each sequence, where one kernel does them all; or None."""
    positions: Tensor | None = None
    """int64 (T,), of each piece in its sequence; or None."""
    longest: int = 0
    """Pieces of the longest sequence, where there are ``ends``."""


def layout_of(
    runs: Runs, device: torch.device, num_heads: int, head_size: int, is_padded: bool = False
) -> Layout:
    """Return the layout of a packed batch for a model with heads of this number and size.

    On a GPU in half precision flash attention does all sequences in one kernel, whatever their
    lengths. A CPU does them in buckets, unless the batch is padded already.
    """
    dtype = execution.dtype_of_products(device)
    if execution.is_fast("kernel", device, dtype, head_size):
        return _layout_on(tuple(runs), device)
    if not is_padded and execution.is_fast("buckets", device, dtype):
        return Layout(runs, Buckets(runs, num_heads))
    return Layout(runs)


@lru_cache(8)
def _layout_on(runs: tuple[tuple[int, int], ...], device: torch.device) -> Layout:
    """Return the layout with its tensors, without waiting for the device.

    Batches share it, also those of other threads: nobody changes its tensors.
    """
    lengths = lengths_of(runs)
    ends = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(device, non_blocking=True)
    starts, num_pieces = ends[:-1], sum(lengths)
    of_piece = torch.repeat_interleave(starts, ends.diff(), output_size=num_pieces)
    positions = torch.arange(num_pieces, device=device) - of_piece
    return Layout(runs, ends=ends.int(), positions=positions, longest=max(lengths))


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    key_mask: Tensor | None,
    dropout_prob: float,
    rows: Tensor | None = None,
) -> Tensor:
    """Return `attend` for each sequence by itself, in a packed batch.

    Args:
        query: (T, N, D), as are the next two; or (R, N, D) of some ``rows``.
        key: one for each piece.
        value: one for each piece.
        layout: how the T pieces are sequences.
        key_mask: bool (B, 1, 1, S), false at padding, where a single run is padded.
        dropout_prob: share of the weights set to 0.
        rows: int64 (R,), the pieces whose queries these are, where the layout has buckets; else
            None.

    Returns:
        (T, N, D), or (R, N, D).
    """
    if layout.buckets is not None:
        assert key_mask is None
        pieces, key_masks = layout.buckets.pieces, layout.buckets.key_masks
        asking = pieces if rows is None else layout.buckets.slots(rows)
        filled = asking.fill(query), pieces.fill(key), pieces.fill(value), key_masks
        buckets = zip(*filled, strict=True)
        return asking.empty([attend(*bucket, dropout_prob) for bucket in buckets])
    assert rows is None
    if layout.ends is not None and key_mask is None:
        return flash_attention(query, key, value, layout.ends, layout.longest, dropout_prob)
    by_run = zip(*(_by_run(each, layout.runs) for each in (query, key, value)), strict=True)
    seen = [
        attend(q, k, v, key_mask, dropout_prob).transpose(1, 2).flatten(0, 1) for q, k, v in by_run
    ]
    return seen[0] if len(seen) == 1 else torch.cat(seen)


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, dropout_prob: float
) -> Tensor:
    """Return `attend_packed` where the layout has ``ends``, by torch's kernel for CUDA.

    torch's own function for it takes no dropout, and needs three kernels more a layer.
    """
    of_kernel: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query, key, value, ends, ends, longest, longest, dropout_prob, False, False
    )
    return of_kernel[0]


def _by_run(x: Tensor, runs: Runs) -> list[Tensor]:
    """Return (number, N, length, D) for each run in (T, N, D)."""
    sizes = [number * length for number, length in runs]
    parts = [x] if len(runs) == 1 else x.split(sizes)
    return [part.unflatten(0, run).transpose(1, 2) for part, run in zip(parts, runs, strict=True)]
