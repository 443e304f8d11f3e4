"""Scaled dot-product attention: PyTorch's, but where its own is slow.

Dimensions: B sequences, N heads, S pieces, D head size; T pieces of a packed batch, end to end.

Sequences of like length are padded to one, a bucket, so that attention has few, large products
instead of many small ones. Only attention sees the padding; all else is computed of the packed
batch. A bucket lies head after head, as products of matrices want it, so to fill it is also to lay
it out.

Dimensions: B sequences, T pieces of the packed batch, R rows of it (all pieces, or some), N heads,
D head size; n sequences of a bucket, S its length.
"""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
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


varlen_attn: Callable[..., Any] | None = None
if torch.backends.cuda.is_built():  # without a GPU it is of no use, and loads torch's compiler
    with suppress(ImportError):  # torch 2.9 has none
        from torch.nn.attention.varlen import varlen_attn

_FLASH_CAPABILITY = (8, 0)
_FLASH_HEAD_MULTIPLE, _FLASH_LARGEST_HEAD = 8, 256
_LAYOUTS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """How the T pieces of a batch are sequences, as attention and the positions want to know it."""

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

    On a GPU in half precision (under autocast) flash attention does all sequences in one kernel,
    whatever their lengths; each run by itself would be hundreds of small kernels a layer. A CPU
    does them in buckets, but for a batch that is padded already.
    """
    if _has_flash(device, head_size):
        return _layout_on(tuple(runs), device)
    if device.type == "cpu" and not is_padded and not torch.compiler.is_compiling():
        return Layout(runs, Buckets(runs, num_heads))
    return Layout(runs)


def _has_flash(device: torch.device, head_size: int) -> bool:
    if device.type != "cuda" or not torch.is_autocast_enabled("cuda") or varlen_attn is None:
        return False
    fits = head_size % _FLASH_HEAD_MULTIPLE == 0 and head_size <= _FLASH_LARGEST_HEAD
    return fits and torch.cuda.get_device_capability(device) >= _FLASH_CAPABILITY


@lru_cache(_LAYOUTS_KEPT)
def _layout_on(runs: tuple[tuple[int, int], ...], device: torch.device) -> Layout:
    """Return the layout with its tensors, without waiting for the device.

    Batches share it, those of other threads too: nobody changes its tensors.
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
    """Return `attend` of each sequence by itself, in a batch of sequences laid end to end.

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
        return _attend_in_buckets(query, key, value, layout.buckets, dropout_prob, rows)
    assert rows is None
    if layout.ends is not None and key_mask is None and not dropout_prob:
        longest = layout.longest
        assert varlen_attn is not None
        together = varlen_attn(query, key, value, layout.ends, layout.ends, longest, longest)
        assert isinstance(together, Tensor)
        return together
    queries, keys, values = (_by_run(each, layout.runs) for each in (query, key, value))
    seen = [
        attend(q, k, v, key_mask, dropout_prob).transpose(1, 2).flatten(0, 1)
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    return seen[0] if len(seen) == 1 else torch.cat(seen)


def _attend_in_buckets(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Buckets,
    dropout_prob: float,
    rows: Tensor | None,
) -> Tensor:
    asking = buckets.pieces if rows is None else buckets.slots(rows)
    filled = zip(
        asking.fill(query),
        buckets.pieces.fill(key),
        buckets.pieces.fill(value),
        buckets.key_masks,
        strict=True,
    )
    return asking.empty([attend(*bucket, dropout_prob) for bucket in filled])


def _by_run(x: Tensor, runs: Runs) -> list[Tensor]:
    """Return (number, N, length, D) for each run in (T, N, D)."""
    sizes = [number * length for number, length in runs]
    parts = [x] if len(runs) == 1 else x.split(sizes)
    return [part.unflatten(0, run).transpose(1, 2) for part, run in zip(parts, runs, strict=True)]


def attend(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dropout_prob: float
) -> Tensor:
    """Return, for each query, the mean of the values, weighted by softmax(query . key / sqrt(D)).

    Args:
        query: (B, N, S, D), or another number of them.
        key: (B, N, S, D).
        value: (B, N, S, D).
        key_mask: bool (B, 1, 1, S), false at a key that no query may see; each query sees some.
        dropout_prob: share of the weights set to 0.

    Returns:
        one for each query.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    # On a CPU, the backward pass of PyTorch's fused attention takes four times as long in
    # bfloat16 as plain matrix products do.
    if query.dtype == torch.bfloat16 and query.device.type == "cpu" and not dropout_prob:
        seen: Tensor = _PlainAttention.apply(query, key, value, key_mask)
        return seen
    return F.scaled_dot_product_attention(query, key, value, key_mask, dropout_prob)


class _PlainAttention(torch.autograd.Function):
    """Attention by matrix products, which keeps its weights (B, N, S, S) for the way back.

    A product copies what does not lie head after head: here each is laid so once, for all. Of the
    scores, and of their gradient, there is one tensor, changed in place.
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
        of_scores = gradient @ value.transpose(-1, -2)  # yet of the weights
        softmax_backward = torch.ops.aten._softmax_backward_data.out  # noqa: SLF001
        softmax_backward(of_scores, weights, -1, weights.dtype, grad_input=of_scores)
        return (
            (of_scores @ key).mul_(ctx.scale),
            of_scores.transpose(-1, -2) @ query,
            weights.transpose(-1, -2) @ gradient,
            None,
        )
