"""Examples laid end to end, and the batches that a model takes, packed or padded.

Batches are packed, without padding, or padded to one shape, for devices that compile a program for
each shape they meet.

Dimensions: B sequences or R examples, with T pieces and M predictions in all. In a padded batch, B
sequences of S pieces and P predictions each; R examples, at most B.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.model.attention import Runs
from albert_core.model.losses import IGNORED
from albert_core.stage import errors
from albert_core.text.records import Bools, Ints, UInt16s, begins_of, ranges


class BatchShape(NamedTuple):
    """The shape to which every batch is padded."""

    num_sequences: int
    """B."""
    length: int
    """S, in pieces."""
    num_predictions: int
    """P, of one sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples laid end to end, as the model takes them.

    A packed batch has no padding. A padded one is a single run of B sequences of S pieces, with P
    predictions each. No real piece sees padding, and the labels of padding are `IGNORED`.
    """

    input_ids: Tensor
    """int64 (T,), after masking."""
    token_type_ids: Tensor
    """int64 (T,), 0 up to the first [SEP] of a sequence, 1 after it."""
    runs: Runs
    """Numbers of consecutive sequences of equal length; fewer runs are faster."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins."""
    masked_lm_positions: Tensor
    """int64 (M,), where in T the predictions are, ascending."""
    masked_lm_labels: Tensor
    """int64 (M,), the pieces that stood there."""
    sentence_order_labels: Tensor
    """int64 (B,), 0 in document order, 1 swapped."""
    key_mask: Tensor | None = None
    """bool (B, 1, 1, S), false at padding; None for a packed batch."""

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The arguments of `AlbertForPretraining.forward`, by name."""
        labels = ("masked_lm_labels", "sentence_order_labels")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in labels}

    def each(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each tensor replaced by ``move`` of it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {n: move(v) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class Rows:
    """R examples laid end to end, not padded: T pieces and M predictions in all."""

    input_ids: UInt16s
    """(T,) after masking."""
    lengths: Ints
    """(R,) pieces of each example; they sum to T."""
    segment_b_starts: Ints
    """(R,) first position of segment b."""
    positions: UInt16s
    """(M,) positions in their examples, ascending in each."""
    labels: UInt16s
    """(M,) the pieces that stood there."""
    num_predictions: Ints
    """(R,) predictions of each example; they sum to M."""
    sentence_order_labels: Ints
    """(R,) 0 in document order, 1 swapped."""

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Return the examples of all ``parts``, of which there is at least one."""
        return Rows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Rows)))

    def split(self, ends: Sequence[int]) -> Iterator["Rows"]:
        """Yield the first ``ends[0]`` examples, those from there to ``ends[1]``, and so on.

        They share their memory with these.
        """
        piece_ends = np.append(0, np.cumsum(self.lengths))
        prediction_ends = np.append(0, np.cumsum(self.num_predictions))
        begin = 0
        for end in ends:
            predictions = slice(prediction_ends[begin], prediction_ends[end])
            pieces = slice(piece_ends[begin], piece_ends[end])
            places = {"input_ids": pieces, "positions": predictions, "labels": predictions}
            rows = slice(begin, end)
            yield Rows(*(getattr(self, f.name)[places.get(f.name, rows)] for f in fields(Rows)))
            begin = end

    def unmasked(self) -> UInt16s:
        """Return (T,) the pieces before masking."""
        pieces = self.input_ids.copy()
        starts = begins_of(self.lengths)
        pieces[np.repeat(starts, self.num_predictions) + self.positions] = self.labels
        return pieces

    def batch(self, shape: BatchShape | None = None) -> Batch:
        """Return the examples, of which there is at least one, padded to ``shape`` or packed.

        In a packed batch, examples of equal length should lie beside each other.

        Raises:
            ShapeError: ``shape`` does not hold them.
        """
        return self._packed() if shape is None else self._padded(shape)

    def _packed(self) -> Batch:
        first = begins_of(self.lengths)
        begins = np.flatnonzero(np.diff(self.lengths, prepend=-1))  # of runs of one length
        numbers = np.diff(begins, append=len(self))
        return Batch(
            input_ids=_int64(self.input_ids),
            token_type_ids=_int64(self._in_b()),
            runs=tuple(zip(numbers.tolist(), self.lengths[begins].tolist(), strict=True)),
            first_positions=_int64(first),
            masked_lm_positions=_int64(np.repeat(first, self.num_predictions) + self.positions),
            masked_lm_labels=_int64(self.labels),
            sentence_order_labels=_int64(self.sentence_order_labels),
        )

    def _padded(self, shape: BatchShape) -> Batch:
        found = (len(self), int(self.lengths.max()), int(self.num_predictions.max()))
        if any(have > may for have, may in zip(found, shape, strict=True)):
            raise errors.ShapeError(
                f"a batch has {found[0]} sequences of up to {found[1]} pieces and {found[2]} "
                f"predictions, more than its shape holds: {tuple(shape)}. The examples' manifest "
                "names a smaller max_seq_length or max_predictions than they have: make them again."
            )
        num_sequences, length, num_predictions = shape
        rows, first = np.arange(len(self)), np.arange(num_sequences) * length
        pieces = ranges(rows * length, self.lengths)
        predictions = ranges(rows * num_predictions, self.num_predictions)
        num_pieces = num_sequences * length
        real = _spread(num_pieces, pieces, True)
        real[len(self) * length :: length] = 1  # attention needs a piece
        positions = np.repeat(first, num_predictions)
        positions[predictions] += self.positions
        return Batch(
            input_ids=_spread(num_pieces, pieces, self.input_ids),
            token_type_ids=_spread(num_pieces, pieces, self._in_b()),
            runs=((num_sequences, length),),
            first_positions=_int64(first),
            masked_lm_positions=_int64(positions),
            masked_lm_labels=_spread(len(positions), predictions, self.labels, IGNORED),
            sentence_order_labels=_spread(num_sequences, rows, self.sentence_order_labels, IGNORED),
            key_mask=real.bool().view(num_sequences, 1, 1, length),
        )

    def _in_b(self) -> Bools:
        """Return (T,), whether a piece is in segment b."""
        places = ranges(np.zeros_like(self.lengths), self.lengths)
        in_b: Bools = places >= np.repeat(self.segment_b_starts, self.lengths)
        return in_b


def _int64(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _spread(size: int, places: Ints, values: NDArray[Any] | bool, rest: int = 0) -> Tensor:
    """Return int64 (size,) with ``values`` at ``places`` and ``rest`` elsewhere."""
    spread = np.full(size, rest, np.int64)
    spread[places] = values
    return torch.from_numpy(spread)
