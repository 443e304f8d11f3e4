"""Examples of a shard as flat arrays, whoever wrote it and in whichever format."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.contract.errors import SourceError
from albert_core.contract.ragged import Ints
from albert_core.contract.records import EXAMPLE_SCHEMA
from albert_core.contract.seeds import UInt64s, random_bits
from pipelines.tfrecord import TFExample

Bools = NDArray[np.bool_]

PIECE_FEATURES = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
ORDER_FEATURE = "next_sentence_labels"
BOUNDARY_FEATURE = "token_boundary"
_CORE_COLUMNS = EXAMPLE_SCHEMA.names[:5]


@dataclass(frozen=True)
class Rows:
    """R examples laid end to end: T pieces and M predictions in all, as the shard has them."""

    ids: Ints
    """(T,) after masking."""
    lengths: Ints
    """(R,)"""
    b_starts: Ints
    """(R,)"""
    positions: Ints
    """(M,)"""
    labels: Ints
    """(M,)"""
    num_predictions: Ints
    """(R,)"""
    orders: Ints
    """(R,) the sentence order labels."""
    opens: Bools | None = None
    """(T,) whether a word begins at each piece, if that is known."""
    documents: UInt64s | None = None
    """(R,) hashes of the documents' ids, if they are known."""
    others: UInt64s | None = None
    """(R,) hash of the other document's id, 0 where segment b has none of its own."""
    copies: Ints | None = None
    """(R,)"""
    faults: dict[str, int] = field(default_factory=dict)
    """Rows that break a rule of the format: check -> rows."""

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Ints:
        """(R,) index of each row's first piece."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def row_of(self) -> Ints:
        """(T,) row of each piece."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def at(self) -> Ints:
        """(T,) position of each piece in its row."""
        return np.arange(len(self.ids)) - self.starts[self.row_of]

    @cached_property
    def where(self) -> Ints:
        """(M,) index of each prediction among all pieces; rows must be sound."""
        return np.repeat(self.starts, self.num_predictions) + self.positions

    @cached_property
    def chosen(self) -> Bools:
        """(T,) whether a piece is to be predicted."""
        chosen = np.zeros(len(self.ids), bool)
        chosen[self.where] = True
        return chosen

    @cached_property
    def unmasked(self) -> Ints:
        """(T,) the pieces before masking."""
        unmasked = self.ids.copy()
        unmasked[self.where] = self.labels
        return unmasked

    @cached_property
    def special(self) -> Bools:
        """(T,) whether the layout has [CLS] or [SEP] there."""
        special = np.zeros(len(self.ids), bool)
        for position in (np.zeros_like(self.lengths), self.b_starts - 1, self.lengths - 1):
            special[self.starts + position] = True
        return special

    @cached_property
    def hashes(self) -> UInt64s:
        """(R,) of everything in a row that both formats hold."""
        hashes = self._sum_of(self.ids, self.at)
        places = self.where.astype(np.uint64) - np.repeat(self.starts, self.num_predictions).astype(
            np.uint64
        )
        rows = np.repeat(np.arange(len(self)), self.num_predictions)
        np.add.at(hashes, rows, random_bits(places, self.labels + (1 << 40)))
        return hashes + random_bits(self.b_starts.astype(np.uint64), self.orders + (2 << 40))

    @cached_property
    def pair_hashes(self) -> UInt64s:
        """(R,) of the two segments before masking, whichever is a and whichever b."""
        in_b = self.at >= self.b_starts[self.row_of]
        at = self.at - np.where(in_b, self.b_starts[self.row_of], 1)
        return self._sum_of(np.where(self.special, 0, self.unmasked), np.where(self.special, 0, at))

    def _sum_of(self, values: Ints, places: Ints) -> UInt64s:
        bits = random_bits(values.astype(np.uint64), places)
        return np.add.reduceat(bits, self.starts) if len(self) else bits

    def only(self, keep: Bools) -> "Rows":
        """Return the rows where ``keep`` (R,) holds."""
        if keep.all():
            return self
        pieces = np.repeat(keep, self.lengths)
        predictions = np.repeat(keep, self.num_predictions)

        def of_rows(values: Any) -> Any:
            return None if values is None else values[keep]

        return Rows(
            ids=self.ids[pieces],
            lengths=self.lengths[keep],
            b_starts=self.b_starts[keep],
            positions=self.positions[predictions],
            labels=self.labels[predictions],
            num_predictions=self.num_predictions[keep],
            orders=self.orders[keep],
            opens=None if self.opens is None else self.opens[pieces],
            documents=of_rows(self.documents),
            others=of_rows(self.others),
            copies=of_rows(self.copies),
        )


def rows_of_table(table: pa.Table, opens_word: Bools | None) -> Rows:
    """Return the examples of an Arrow table.

    Args:
        table: at least the columns of EXAMPLE_SCHEMA up to the label.
        opens_word: bool (V,), if the vocabulary is known.

    Raises:
        SourceError: such a column is missing, or null in a row.
    """
    missing = [name for name in _CORE_COLUMNS if name not in table.column_names]
    if missing:
        raise SourceError(f"columns {missing} are missing; found {table.column_names}")
    if nulls := [name for name in _CORE_COLUMNS if table[name].null_count]:
        raise SourceError(f"columns {nulls} have rows without a value")
    ids, lengths = _lists(table["input_ids"])
    positions, num_predictions = _lists(table["masked_lm_positions"])
    labels, num_labels = _lists(table["masked_lm_labels"])
    wrong = num_labels != num_predictions
    if wrong.any():
        raise SourceError(f"{wrong.sum()} rows have unequal numbers of positions and labels")
    opens = None
    if opens_word is not None:
        unmasked = _unmask(ids, lengths, positions, labels, num_predictions)
        opens = opens_word[np.minimum(unmasked, len(opens_word) - 1)]
    names = table.column_names
    return Rows(
        ids=ids,
        lengths=lengths,
        b_starts=_numbers(table["segment_b_start"]),
        positions=positions,
        labels=labels,
        num_predictions=num_predictions,
        orders=_numbers(table["sentence_order_label"]),
        opens=opens,
        documents=_hashed(table["document_id"]) if "document_id" in names else None,
        others=_hashed(table["other_document_id"]) if "other_document_id" in names else None,
        copies=_numbers(table["copy"]) if "copy" in names else None,
        faults={"schema": _wrong_types(table.schema) * table.num_rows},
    )


def _unmask(ids: Ints, lengths: Ints, positions: Ints, labels: Ints, num_predictions: Ints) -> Ints:
    """Return ``ids`` with the labels in place, where positions are inside their rows."""
    starts = np.cumsum(lengths) - lengths
    inside = positions < np.repeat(lengths, num_predictions)
    unmasked = ids.copy()
    unmasked[(np.repeat(starts, num_predictions) + positions)[inside]] = labels[inside]
    return unmasked


def _wrong_types(schema: pa.Schema) -> int:
    return sum(
        schema.field(wanted.name).type != wanted.type
        for wanted in EXAMPLE_SCHEMA
        if wanted.name in schema.names
    )


def _lists(column: pa.ChunkedArray) -> tuple[Ints, Ints]:
    lists = column.combine_chunks()
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return values, np.diff(lists.offsets.to_numpy()).astype(np.int64)


def _numbers(column: pa.ChunkedArray) -> Ints:
    return column.to_numpy().astype(np.int64)


def _hashed(column: pa.ChunkedArray) -> UInt64s:
    """Return uint64 (R,) hashes of strings; 0 for null."""
    encoded = column.combine_chunks().dictionary_encode()
    hashes = np.array([hash_of(name) for name in encoded.dictionary.to_pylist()] + [0], np.uint64)
    return hashes[encoded.indices.fill_null(-1).to_numpy()]


def hash_of(name: str) -> int:
    """Return 64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def rows_of_records(records: Iterable[bytes], batch: int) -> Iterator[Rows]:
    """Yield the examples of serialised `tf.train.Example` records, ``batch`` at a time.

    Raises:
        SourceError: a record is none, lacks a feature, or has features of other lengths.
    """
    iterator = iter(records)
    while taken := list(islice(iterator, batch)):
        yield rows_of_features(_features(taken))


def _features(records: list[bytes]) -> dict[str, Ints]:
    columns: dict[str, list[NDArray[Any]]] = {}
    for record in records:
        try:
            features = TFExample.FromString(record).features.feature
        except Exception as error:  # protobuf's DecodeError has another base in each backend
            raise SourceError(f"a record is no tf.train.Example: {error}") from error
        for name, feature in features.items():
            is_float = name == "masked_lm_weights"
            values = feature.float_list.value if is_float else feature.int64_list.value
            of_type = np.float64 if is_float else np.int64
            columns.setdefault(name, []).append(np.fromiter(values, of_type, len(values)))
    wanted = {*PIECE_FEATURES, *PREDICTION_FEATURES, ORDER_FEATURE}
    if missing := sorted(wanted - columns.keys()):
        raise SourceError(f"features {missing} are missing; found {sorted(columns)}")
    try:
        return {name: np.stack(values) for name, values in columns.items()}
    except ValueError as error:
        raise SourceError(f"records have features of different lengths: {error}") from error


def rows_of_features(features: dict[str, Ints]) -> Rows:
    """Return the examples of padded features, each (R, its length).

    A row ends at its last piece that is not padding, and segment b begins after its first [SEP]'s
    segment; where masks, segment ids, weights and padding say otherwise is counted.
    """
    ids = features["input_ids"]
    lengths = _last_nonzero(ids)
    lanes = np.arange(ids.shape[1])
    real = lanes < lengths[:, None]
    segments = features["segment_ids"]
    has_b = (segments == 1).any(axis=1)
    b_starts = np.where(has_b, (segments == 1).argmax(axis=1), lengths)
    right_segments = (real & (lanes >= b_starts[:, None])) == segments
    num_predictions = (features["masked_lm_weights"] != 0).sum(axis=1)
    predicted = np.arange(features["masked_lm_ids"].shape[1]) < num_predictions[:, None]
    right_predictions = (features["masked_lm_weights"] == predicted).all(axis=1)
    for name in ("masked_lm_ids", "masked_lm_positions"):
        right_predictions &= ((features[name] == 0) | predicted).all(axis=1)
    boundary = features.get(BOUNDARY_FEATURE)
    return Rows(
        ids=ids[real],
        lengths=lengths,
        b_starts=b_starts,
        positions=features["masked_lm_positions"][predicted],
        labels=features["masked_lm_ids"][predicted],
        num_predictions=num_predictions,
        orders=features[ORDER_FEATURE][:, 0],
        opens=None if boundary is None else boundary[real] == 1,
        faults={
            "padding": int(
                (~((features["input_mask"] == real).all(axis=1) & right_predictions)).sum()
            ),
            "segment ids": int((~right_segments.all(axis=1)).sum()),
        },
    )


def _last_nonzero(values: Ints) -> Ints:
    """Return (R,) one past the last number in each row of (R, N) that is not 0."""
    nonzero = values != 0
    return np.where(nonzero.any(axis=1), values.shape[1] - nonzero[:, ::-1].argmax(axis=1), 0)
