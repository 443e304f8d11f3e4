"""Shards to batches: rows of the mapped files, laid end to end, or padded to one shape.

Packed batches hold no padding. Padded batches are for devices that compile a program for each shape
they meet.

Dimensions: B sequences or R examples, with T pieces and M predictions in all. In a padded batch, B
sequences of S pieces and P predictions each; R examples, at most B.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.model.attention import Runs
from albert_core.model.losses import IGNORED
from albert_core.stage import storage
from albert_core.stage.errors import ShapeError, TrainingError
from albert_core.stage.manifest import Manifest, check_shard, read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import Ints, ranges
from albert_core.training.order import padded_length

UInt16s = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Batch:
    """B examples laid end to end, as the model takes them at least cost: nothing is padding."""

    input_ids: Tensor
    """int64 (T,), after masking."""
    token_type_ids: Tensor
    """int64 (T,), 0 up to the first [SEP] of a sequence, 1 after it."""
    runs: Runs
    """How many sequences of which length lie one after the other; the fewer runs, the faster."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins."""
    masked_lm_positions: Tensor
    """int64 (M,), where in T the predictions are, ascending."""
    masked_lm_labels: Tensor
    """int64 (M,), the pieces that stood there."""
    sentence_order_labels: Tensor
    """int64 (B,), 0 in document order, 1 swapped."""
    key_mask: Tensor | None = None
    """bool (B, 1, 1, S), false at padding, where there is some: in a single run."""

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.first_positions)

    @property
    def num_pieces(self) -> int:
        """T, special pieces included."""
        return len(self.input_ids)

    @property
    def sum_of_squares(self) -> int:
        """Sum of the squares of the sequences' lengths, which attention costs."""
        return sum(number * length**2 for number, length in self.runs)

    @property
    def model_inputs(self) -> dict[str, Any]:
        """What `AlbertForPretraining.forward_packed` takes, by name."""
        return {
            "input_ids": self.input_ids,
            "token_type_ids": self.token_type_ids,
            "runs": self.runs,
            "first_positions": self.first_positions,
            "masked_lm_positions": self.masked_lm_positions,
            "key_mask": self.key_mask,
        }

    @property
    def num_predictions(self) -> int:
        """M."""
        return len(self.masked_lm_labels)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``; from pinned memory the copy goes on beside the caller."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Return the batch in page-locked memory, from which a GPU copies by itself."""
        return self.each(Tensor.pin_memory)

    def each(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with ``move`` of each tensor in its place."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
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

    def take(self, places: Ints) -> "Rows":
        """Return the examples with the numbers ``places``, in this order."""
        lengths, num_predictions = self.lengths[places], self.num_predictions[places]
        pieces = ranges((np.cumsum(self.lengths) - self.lengths)[places], lengths)
        first = np.cumsum(self.num_predictions) - self.num_predictions
        predictions = ranges(first[places], num_predictions)
        return Rows(
            input_ids=self.input_ids.take(pieces),
            lengths=lengths,
            segment_b_starts=self.segment_b_starts[places],
            positions=self.positions.take(predictions),
            labels=self.labels.take(predictions),
            num_predictions=num_predictions,
            sentence_order_labels=self.sentence_order_labels[places],
        )

    def split(self, ends: Sequence[int]) -> Iterator["Rows"]:
        """Yield the first ``ends[0]`` examples, those from there to ``ends[1]``, and so on.

        They share their memory with these.
        """
        piece_ends = np.append(0, np.cumsum(self.lengths))
        prediction_ends = np.append(0, np.cumsum(self.num_predictions))
        begin = 0
        for end in ends:
            rows = slice(begin, end)
            pieces = slice(piece_ends[begin], piece_ends[end])
            predictions = slice(prediction_ends[begin], prediction_ends[end])
            yield Rows(
                input_ids=self.input_ids[pieces],
                lengths=self.lengths[rows],
                segment_b_starts=self.segment_b_starts[rows],
                positions=self.positions[predictions],
                labels=self.labels[predictions],
                num_predictions=self.num_predictions[rows],
                sentence_order_labels=self.sentence_order_labels[rows],
            )
            begin = end

    def unmasked(self) -> UInt16s:
        """Return (T,) the pieces before masking."""
        pieces = self.input_ids.copy()
        starts = np.cumsum(self.lengths) - self.lengths
        pieces[np.repeat(starts, self.num_predictions) + self.positions] = self.labels
        return pieces

    def batch(self) -> Batch:
        """Return the examples as they lie, of which there is at least one.

        Those of equal length should lie beside each other.
        """
        first = np.cumsum(self.lengths) - self.lengths
        places = np.arange(len(self.input_ids)) - np.repeat(first, self.lengths)
        in_b = places >= np.repeat(self.segment_b_starts, self.lengths)
        return Batch(
            input_ids=_int64(self.input_ids),
            token_type_ids=_int64(in_b),
            runs=_runs(self.lengths),
            first_positions=_int64(first),
            masked_lm_positions=_int64(np.repeat(first, self.num_predictions) + self.positions),
            masked_lm_labels=_int64(self.labels),
            sentence_order_labels=_int64(self.sentence_order_labels),
        )


def _int64(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _runs(lengths: Ints) -> tuple[tuple[int, int], ...]:
    begins = np.flatnonzero(np.diff(lengths, prepend=-1))
    numbers = np.diff(begins, append=len(lengths))
    return tuple(zip(numbers.tolist(), lengths[begins].tolist(), strict=True))


class ExampleShards:
    """The examples of one kind by their number; local shards that are not compressed stay mapped.

    Args:
        manifest_uri: of the stage "examples".
        kind: train or held_out.

    Raises:
        IntegrityError: a shard is missing or is not the one that was written.
        TrainingError: there is no example.
    """

    def __init__(self, manifest_uri: str, kind: str) -> None:
        self.manifest: Manifest = read_manifest(manifest_uri)
        folder = manifest_uri.rpartition("/")[0]
        shards = self.manifest.shards_of(kind)
        for shard in shards:
            check_shard(shard, folder)
        tables = [read_arrow(storage.join(folder, shard.path)) for shard in shards]
        self._blocks = [
            _columns_of(batch) for table in tables for batch in table.to_batches() if len(batch)
        ]
        self._ends = np.cumsum([len(block.segment_b_start) for block in self._blocks])
        if not len(self):
            raise TrainingError(f"{manifest_uri} has no {kind} examples: give more text.")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sizes(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return int64 (R,) pieces and int64 (R,) predictions of the examples, without them."""
        lengths, num_predictions = np.empty_like(indices), np.empty_like(indices)
        for block, numbers, places in self._by_block(indices):
            lengths[places] = block.input_ids.lengths(numbers)
            num_predictions[places] = block.labels.lengths(numbers)
        return lengths, num_predictions

    def rows(self, indices: Ints) -> Rows:
        """Return the examples with these numbers, in this order: at least one, int64 (R,)."""
        found = [
            (block.rows(numbers), places) for block, numbers, places in self._by_block(indices)
        ]
        if len(found) == 1:
            return found[0][0]
        there = np.concatenate([places for _, places in found])
        return Rows.join([rows for rows, _ in found]).take(np.argsort(there))

    def batch(self, indices: Ints) -> Batch:
        """Return the examples with these numbers, in this order, as one batch."""
        return self.rows(indices).batch()

    def document_ids(self) -> list[str]:
        """Return the document of each example."""
        return [name for block in self._blocks for name in block.document_ids.to_pylist()]

    def _by_block(self, indices: Ints) -> Iterator[tuple["_Columns", Ints, Ints]]:
        """Yield each block that has some of the examples: their numbers in it, their places."""
        block_of = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(block_of, kind="stable")
        numbers, first = np.unique(block_of[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            block = self._blocks[number]
            begin = self._ends[number] - len(block.segment_b_start)
            yield block, indices[places] - begin, places


@dataclass(frozen=True, slots=True)
class _Lists:
    """A list column as two views of the file."""

    offsets: NDArray[np.int32]
    values: UInt16s

    def lengths(self, numbers: Ints) -> Ints:
        return (self.offsets[numbers + 1] - self.offsets[numbers]).astype(np.int64)

    def take(self, numbers: Ints, lengths: Ints) -> UInt16s:
        """Return the lists with these numbers, laid end to end, given their lengths."""
        return self.values.take(ranges(self.offsets[numbers], lengths))


@dataclass(frozen=True, slots=True)
class _Columns:
    """One record batch, as views of the file."""

    input_ids: _Lists
    segment_b_start: UInt16s
    positions: _Lists
    labels: _Lists
    sentence_order_label: NDArray[np.uint8]
    document_ids: pa.Array

    def rows(self, numbers: Ints) -> Rows:
        lengths, num_predictions = self.input_ids.lengths(numbers), self.labels.lengths(numbers)
        return Rows(
            input_ids=self.input_ids.take(numbers, lengths),
            lengths=lengths,
            segment_b_starts=self.segment_b_start[numbers].astype(np.int64),
            positions=self.positions.take(numbers, num_predictions),
            labels=self.labels.take(numbers, num_predictions),
            num_predictions=num_predictions,
            sentence_order_labels=self.sentence_order_label[numbers].astype(np.int64),
        )


def _columns_of(batch: pa.RecordBatch) -> _Columns:
    def numbers(name: str) -> NDArray[Any]:
        values: NDArray[Any] = batch[name].to_numpy()
        return values

    def lists(name: str) -> _Lists:
        return _Lists(batch[name].offsets.to_numpy(), batch[name].values.to_numpy())

    return _Columns(
        input_ids=lists("input_ids"),
        segment_b_start=numbers("segment_b_start"),
        positions=lists("masked_lm_positions"),
        labels=lists("masked_lm_labels"),
        sentence_order_label=numbers("sentence_order_label"),
        document_ids=batch["document_id"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSizes:
    """How large the batch of one update is, over all ranks; each knows it without asking."""

    num_sequences: int
    num_pieces: int
    """Real pieces, special ones included."""
    sum_of_squares: int
    """Sum of the squares of the sequences' lengths in real pieces, which attention costs."""
    num_predictions: int
    """At least 1, as losses are divided by it."""

    @classmethod
    def of_lengths(cls, lengths: Ints, num_predictions: int) -> "UpdateSizes":
        """Return those of an update.

        Args:
            lengths: int64 (n,), real pieces of each sequence.
            num_predictions: of all of them together.
        """
        return cls(
            num_sequences=len(lengths),
            num_pieces=int(lengths.sum()),
            sum_of_squares=int(lengths @ lengths),
            num_predictions=max(1, num_predictions),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """One rank's part of the batch of one update."""

    sizes: UpdateSizes
    """Of the whole update."""
    micro_batches: Iterable[Batch]
    """This rank's, longest sequences first; taken one by one, so they need not be there at once."""


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
