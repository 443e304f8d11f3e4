"""Shards to batches, in an order that is a pure function of seed, epoch and index.

Dimensions: B sequences, S pieces, P predictions.
"""

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.contract import storage
from albert_core.contract.arrow_files import read_arrow
from albert_core.contract.errors import TrainingError
from albert_core.contract.manifest import Manifest, Shard, check_shard, read_manifest
from albert_core.contract.seeds import derive_seed, random_bits

Ints = NDArray[np.int64]

_ROUNDS = 4
_LENGTH_MULTIPLE = 8
"""Sequences are padded to a multiple of this, which suits the matrix units."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B examples, padded to the longest of them."""

    input_ids: Tensor
    """int64 (B, S), after masking, 0 at padding."""
    attention_mask: Tensor
    """bool (B, S), true at real pieces."""
    token_type_ids: Tensor
    """int64 (B, S), 0 up to the first [SEP], 1 after it, 0 at padding."""
    masked_lm_positions: Tensor
    """int64 (B, P), 0 at padding."""
    masked_lm_labels: Tensor
    """int64 (B, P), the pieces that stood there, 0 at padding."""
    masked_lm_weights: Tensor
    """float32 (B, P), 1 at a real prediction, 0 at padding."""
    sentence_order_labels: Tensor
    """int64 (B,), 0 in document order, 1 swapped."""

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on ``device``."""
        moved = (getattr(self, f.name).to(device, non_blocking=True) for f in fields(self))
        return Batch(*moved)

    @property
    def num_pieces(self) -> int:
        """Real pieces, special ones included."""
        return int(self.attention_mask.sum())


class ExampleShards:
    """The examples of one kind, mapped into memory, by their number.

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
        self.num_predictions: int = self.manifest.facts["max_predictions"]
        self._columns = [_map_columns(shard, folder) for shard in shards]
        self._ends = np.cumsum([shard.num_rows for shard in shards])
        if not len(self):
            raise TrainingError(f"{manifest_uri} has no {kind} examples: give more text.")

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def batch(self, indices: Ints) -> Batch:
        """Return the examples with these numbers, in this order."""
        rows = [self._row(int(index)) for index in indices]
        longest = max(len(row.input_ids) for row in rows)
        length = -(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        input_ids = np.zeros((len(rows), length), np.int64)
        attention_mask = np.zeros((len(rows), length), bool)
        token_type_ids = np.zeros((len(rows), length), np.int64)
        positions = np.zeros((len(rows), self.num_predictions), np.int64)
        labels = np.zeros((len(rows), self.num_predictions), np.int64)
        weights = np.zeros((len(rows), self.num_predictions), np.float32)
        for i, row in enumerate(rows):
            size, predictions = len(row.input_ids), len(row.positions)
            input_ids[i, :size] = row.input_ids
            attention_mask[i, :size] = True
            token_type_ids[i, row.segment_b_start : size] = 1
            positions[i, :predictions] = row.positions
            labels[i, :predictions] = row.labels
            weights[i, :predictions] = 1
        order = np.array([row.sentence_order_label for row in rows], np.int64)
        arrays = (
            input_ids,
            attention_mask,
            token_type_ids,
            positions,
            labels,
            weights,
            order,
        )
        return Batch(*(torch.from_numpy(array) for array in arrays))

    def document_ids(self) -> list[str]:
        """Return the document of each example."""
        return [name for columns in self._columns for name in columns.document_ids.to_pylist()]

    def _row(self, index: int) -> "_Row":
        shard = int(np.searchsorted(self._ends, index, side="right"))
        columns = self._columns[shard]
        row = index - (int(self._ends[shard - 1]) if shard else 0)
        return _Row(
            input_ids=columns.input_ids.row(row),
            segment_b_start=int(columns.segment_b_start[row]),
            positions=columns.positions.row(row),
            labels=columns.labels.row(row),
            sentence_order_label=int(columns.sentence_order_label[row]),
        )


@dataclass(frozen=True, slots=True)
class _Row:
    input_ids: NDArray[np.uint16]
    segment_b_start: int
    positions: NDArray[np.uint16]
    labels: NDArray[np.uint16]
    sentence_order_label: int


@dataclass(frozen=True, slots=True)
class _Lists:
    """A list column as two views of the mapped file."""

    offsets: NDArray[np.int32]
    values: NDArray[np.uint16]

    def row(self, number: int) -> NDArray[np.uint16]:
        return self.values[self.offsets[number] : self.offsets[number + 1]]


@dataclass(frozen=True, slots=True)
class _Columns:
    input_ids: _Lists
    segment_b_start: NDArray[np.uint16]
    positions: _Lists
    labels: _Lists
    sentence_order_label: NDArray[np.uint8]
    document_ids: pa.Array


def _map_columns(shard: Shard, folder: str) -> _Columns:
    table = read_arrow(storage.join(folder, shard.path))

    def column(name: str) -> pa.Array:
        return table[name].combine_chunks()

    def lists(name: str) -> _Lists:
        values = column(name)
        return _Lists(values.offsets.to_numpy(), values.values.to_numpy())

    return _Columns(
        input_ids=lists("input_ids"),
        segment_b_start=column("segment_b_start").to_numpy(),
        positions=lists("masked_lm_positions"),
        labels=lists("masked_lm_labels"),
        sentence_order_label=column("sentence_order_label").to_numpy(),
        document_ids=column("document_id"),
    )


def example_order(first: int, count: int, num_examples: int, seed: int) -> Ints:
    """Return which examples are trained on as numbers ``first`` to ``first + count`` of a run.

    Every epoch visits each example once, in another order. Ranks and micro-batches take slices
    of this one sequence, so that it is the same however the work is cut.

    Args:
        first: examples already taken since the run began.
        count: examples to take.
        num_examples: examples there are.
        seed: of the run.
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
