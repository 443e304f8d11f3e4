"""Batches of one shape, for devices that compile a program for each shape they meet.

Dimensions: B sequences, S pieces, P predictions, of the shape; R examples, at most B.
"""

from dataclasses import dataclass

import numpy as np
import torch

from albert_core.model.losses import IGNORED
from albert_core.stage.errors import ShapeError
from albert_core.text.ragged import Ints, ranges
from albert_core.training.order import padded_length
from albert_core.training.shards import Batch, ExampleShards, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What every batch is padded to."""

    num_sequences: int
    """B."""
    length: int
    """S, in pieces."""
    num_predictions: int
    """P, of one sequence."""


def shape_of(examples: ExampleShards, num_sequences: int) -> BatchShape:
    """Return the shape that holds any ``num_sequences`` of ``examples``, or of their kind."""
    facts = examples.manifest.facts
    return BatchShape(
        num_sequences=num_sequences,
        length=padded_length(facts["max_seq_length"]),
        num_predictions=facts["max_predictions"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch(Batch):
    """R examples as one run of B sequences of S pieces, with P predictions each.

    No real piece sees padding. What is padding in ``masked_lm_labels`` and
    ``sentence_order_labels`` is `losses.IGNORED`: it has no part in losses, gradients or
    accuracies.
    """

    lengths: tuple[int, ...]
    """(R,) the real pieces of each example."""
    num_real_predictions: int

    @property
    def num_pieces(self) -> int:
        """Real pieces, special ones included."""
        return sum(self.lengths)

    @property
    def sum_of_squares(self) -> int:
        """Sum of the squares of the examples' lengths in real pieces."""
        return sum(length**2 for length in self.lengths)

    @property
    def num_predictions(self) -> int:
        """Real ones."""
        return self.num_real_predictions


def make_batch(rows: Rows, shape: BatchShape | None) -> Batch:
    """Return the examples padded to ``shape``, or packed where it is None.

    Raises:
        ShapeError: ``shape`` does not hold them.
    """
    return rows.batch() if shape is None else _padded(rows, shape)


def _padded(rows: Rows, shape: BatchShape) -> PaddedBatch:
    _check_fits(rows, shape)
    batch, length = shape.num_sequences, shape.length
    real = np.zeros((batch, length), bool)
    row_numbers = np.repeat(np.arange(len(rows)), rows.lengths)
    columns = ranges(np.zeros_like(rows.lengths), rows.lengths)
    real[row_numbers, columns] = True
    input_ids, token_type_ids = np.zeros((2, batch, length), np.int64)
    input_ids[real] = rows.input_ids
    token_type_ids[real] = columns >= np.repeat(rows.segment_b_starts, rows.lengths)
    real[len(rows) :, 0] = True  # attention over no piece at all would have no mean
    is_prediction = np.arange(shape.num_predictions) < _filled(rows.num_predictions, batch)[:, None]
    first_positions = np.arange(batch) * length
    positions = np.repeat(first_positions[:, None], shape.num_predictions, axis=1)
    positions[is_prediction] += rows.positions
    labels = np.full((batch, shape.num_predictions), IGNORED)
    labels[is_prediction] = rows.labels
    return PaddedBatch(
        input_ids=torch.from_numpy(input_ids.ravel()),
        token_type_ids=torch.from_numpy(token_type_ids.ravel()),
        runs=((batch, length),),
        first_positions=torch.from_numpy(first_positions),
        masked_lm_positions=torch.from_numpy(positions.ravel()),
        masked_lm_labels=torch.from_numpy(labels.ravel()),
        sentence_order_labels=torch.from_numpy(_filled(rows.sentence_order_labels, batch, IGNORED)),
        key_mask=torch.from_numpy(real[:, None, None, :]),
        lengths=tuple(rows.lengths.tolist()),
        num_real_predictions=len(rows.labels),
    )


def _filled(values: Ints, size: int, value: int = 0) -> Ints:
    """Return ``values`` (R,) with more of ``value`` behind them, (size,)."""
    return np.pad(values, (0, size - len(values)), constant_values=value)


def _check_fits(rows: Rows, shape: BatchShape) -> None:
    found = (len(rows), int(rows.lengths.max()), int(rows.num_predictions.max()))
    most = (shape.num_sequences, shape.length, shape.num_predictions)
    if any(have > may for have, may in zip(found, most, strict=True)):
        raise ShapeError(
            f"a batch has {found[0]} sequences of up to {found[1]} pieces and {found[2]} "
            f"predictions, more than its shape holds: {most}. The examples' manifest names a "
            "smaller max_seq_length or max_predictions than they have: make them again."
        )
