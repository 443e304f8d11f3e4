"""Examples of a shard as flat arrays, whoever wrote it and in whichever format."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage.errors import AlbertError, SourceError
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS, Ints
from albert_core.text.seeds import UInt64s, random_bits
from pipelines.examples.tfrecord import TFExample

Bools = NDArray[np.bool_]

PIECE_FEATURES = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
ORDER_FEATURE = "next_sentence_labels"
BOUNDARY_FEATURE = "token_boundary"
_FEATURES = (*PIECE_FEATURES, *PREDICTION_FEATURES, ORDER_FEATURE)
_CORE_COLUMNS = EXAMPLE_SCHEMA.names[:5]
_NAMING_COLUMNS = ["document_id", "first_sentence", "last_sentence"]
_OTHER_COLUMNS = [name for name, _ in OTHER_DOCUMENT_FIELDS]
_COLUMNS: dict[str, pa.DataType] = {
    field.name: field.type for field in [*EXAMPLE_SCHEMA, *pa.schema(OTHER_DOCUMENT_FIELDS)]
}


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
    named: pa.Table | None = None
    """(R,) the columns that say where a pair comes from, without nulls, if they are all there."""
    faults: dict[str, int] = field(default_factory=dict)
    """Rows that break a rule of the format: check -> rows."""
    left_out: int = 0
    """Rows of the shard that are not among these, since a value is missing."""
    wrong_columns: tuple[str, ...] = ()
    """Deviations from the schema, in words."""

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
    def row_of_prediction(self) -> Ints:
        """(M,) row of each prediction."""
        return np.repeat(np.arange(len(self)), self.num_predictions)

    @cached_property
    def at(self) -> Ints:
        """(T,) position of each piece in its row."""
        return np.arange(len(self.ids)) - self.starts[self.row_of]

    @cached_property
    def where(self) -> Ints:
        """(M,) index of each prediction among all pieces; rows must be sound."""
        return self.starts[self.row_of_prediction] + self.positions

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
        places = self.positions.astype(np.uint64)
        np.add.at(hashes, self.row_of_prediction, random_bits(places, self.labels + (1 << 40)))
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
        pieces, predictions = keep[self.row_of], keep[self.row_of_prediction]
        masks = {"ids": pieces, "opens": pieces, "positions": predictions, "labels": predictions}
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        kept: dict[str, Any] = {
            name: array[masks.get(name, keep)]
            for name, array in values.items()
            if isinstance(array, np.ndarray)
        }
        if self.named is not None:
            kept["named"] = self.named.filter(pa.array(keep))
        return replace(self, **kept)


@contextmanager
def decoding(where: str) -> Iterator[None]:
    """Turn whatever a library raises on bytes that it cannot read into a SourceError.

    Libraries promise nothing about damaged bytes: a KeyError, a MemoryError or one of their own.
    """
    try:
        yield
    except AlbertError:
        raise
    except Exception as error:
        raise SourceError(f"{where}: {type(error).__name__}: {error}") from error


def read_batches(uri: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file that may be damaged, or some ``columns`` of them.

    Every offset and every text in them is valid, and every value is in its buffer.

    Raises:
        SourceError: the file cannot be read, or has not these columns.
    """
    with decoding("no readable Arrow file"):
        reader = open_arrow(uri)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch = batch if columns is None else batch.select(columns)
            batch.validate(full=True)
            yield batch


def rows_of_table(table: pa.Table) -> Rows:
    """Return the examples of an Arrow table, whoever wrote it.

    The table has at least the columns of EXAMPLE_SCHEMA up to the label. Numbers may be of any
    width; deviations from EXAMPLE_SCHEMA are listed. A row that lacks a value, or has two that
    contradict each other, is counted and left out.

    Raises:
        SourceError: such a column is missing, or a column is not of numbers, lists or text.
    """
    columns = _wide_columns(table)
    whole = _whole_rows(columns)
    wrong_columns = _wrong_columns(table.schema)
    if not whole.all():
        columns = {name: column.filter(pa.array(whole)) for name, column in columns.items()}
    ids, lengths = _lists(columns["input_ids"])
    positions, num_predictions = _lists(columns["masked_lm_positions"])
    labels, _ = _lists(columns["masked_lm_labels"])
    names = [name for name in (*_NAMING_COLUMNS, *_OTHER_COLUMNS) if name in columns]
    is_named = set(names) >= set(_NAMING_COLUMNS)
    left_out = int((~whole).sum())
    return Rows(
        ids=ids,
        lengths=lengths,
        b_starts=columns["segment_b_start"].to_numpy(),
        positions=positions,
        labels=labels,
        num_predictions=num_predictions,
        orders=columns["sentence_order_label"].to_numpy(),
        documents=_hashed(columns.get("document_id")),
        others=_hashed(columns.get("other_document_id")),
        copies=columns["copy"].to_numpy() if "copy" in columns else None,
        named=pa.table({name: columns[name] for name in names}) if is_named else None,
        faults={"schema": table.num_rows * bool(wrong_columns), "values": left_out},
        left_out=left_out,
        wrong_columns=wrong_columns,
    )


def _wide_columns(table: pa.Table) -> dict[str, pa.Array]:
    """Return the columns known here as int64, lists of int64, or text."""
    with decoding("names of the columns"):
        names = table.column_names
    if missing := [name for name in _CORE_COLUMNS if name not in names]:
        raise SourceError(f"columns {missing} are missing; found {names}")
    if repeated := [name for name in _COLUMNS if names.count(name) > 1]:
        raise SourceError(f"columns {repeated} are there twice; found {names}")
    columns = {}
    for name in set(names) & _COLUMNS.keys():
        with decoding(f"column {name}"):
            columns[name] = table[name].combine_chunks().cast(_wide(_COLUMNS[name]))
    return columns


def _wide(of: pa.DataType) -> pa.DataType:
    if pa.types.is_list(of):
        return pa.large_list(pa.int64())
    return pa.int64() if pa.types.is_integer(of) else pa.large_string()


def _whole_rows(columns: dict[str, pa.Array]) -> Bools:
    """Return bool (R,): which rows have all values, in agreement with each other."""
    whole = np.ones(len(columns["input_ids"]), bool)
    for name in columns.keys() - set(_OTHER_COLUMNS):
        column = columns[name]
        whole &= _has_value(column)
        if pa.types.is_large_list(column.type):
            whole[pc.list_parent_indices(column).to_numpy()[~_has_value(column.flatten())]] = False
    numbers = {
        name: (pc.list_value_length(column) if pa.types.is_large_list(column.type) else column)
        .fill_null(0)
        .to_numpy()
        for name, column in columns.items()
        if not pa.types.is_large_string(column.type)
    }
    whole &= numbers["masked_lm_positions"] == numbers["masked_lm_labels"]
    for first, last in (
        ("first_sentence", "last_sentence"),
        ("other_first_sentence", "other_last_sentence"),
    ):
        if first in numbers and last in numbers:
            whole &= (numbers[first] >= 0) & (numbers[first] <= numbers[last])
    if "copy" in numbers:
        whole &= numbers["copy"] >= 0
    others = [_has_value(columns[name]) for name in _OTHER_COLUMNS if name in columns]
    for there in others:
        whole &= there == others[0]
    return whole


def _has_value(column: pa.Array) -> Bools:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _wrong_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return in words what ``schema`` has that EXAMPLE_SCHEMA has not, and the other way round."""
    found = {field.name: field.type for field in schema}
    wanted = dict(_COLUMNS)
    if not found.keys() & set(_OTHER_COLUMNS):
        wanted = {name: wanted[name] for name in EXAMPLE_SCHEMA.names}
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    wrong += [f"{name!r} is not known" for name in found if name not in wanted]
    return *wrong, *(
        f"{name} is {found[name]}, not {of}"
        for name, of in wanted.items()
        if name in found and found[name] != of
    )


def _lists(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the values (T,) of lists end to end, and the length of each (R,)."""
    return column.flatten().to_numpy(), pc.list_value_length(column).to_numpy()


def _hashed(column: pa.Array | None) -> UInt64s | None:
    """Return uint64 (R,) hashes of strings; 0 for null; None where there is no such column."""
    if column is None:
        return None
    encoded = column.dictionary_encode()
    hashes = np.array([hash_of(name) for name in encoded.dictionary.to_pylist()] + [0], np.uint64)
    return hashes[encoded.indices.fill_null(-1).to_numpy()]


def hash_of(name: str) -> int:
    """Return 64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def rows_of_records(records: Iterable[bytes], batch: int) -> Iterator[Rows]:
    """Yield the examples of serialised `tf.train.Example` records, ``batch`` at a time.

    Raises:
        SourceError: a record cannot be read or is none, or its features are not those of
            examples or not of the same lengths as the first record's.
    """
    iterator = enumerate(records)
    widths: dict[str, int] = {}
    while True:
        with decoding("no readable TFRecord file"):
            taken = list(islice(iterator, batch))
        if not taken:
            return
        read = [_features(number, record) for number, record in taken]
        for (number, _), features in zip(taken, read, strict=True):
            found = _widths(features)
            widths = widths or found
            if found != widths:
                raise SourceError(
                    f"record {number} has features of lengths {found}, the first one {widths}"
                )
        yield rows_of_features({name: np.stack([of[name] for of in read]) for name in widths})


def padded_length(records: Iterable[bytes]) -> int:
    """Return the length of the first record's `input_ids`; 0 where there is no record.

    Raises:
        SourceError: as `rows_of_records`.
    """
    with decoding("no readable TFRecord file"):
        first = next(iter(records), None)
    return 0 if first is None else len(_features(0, first)["input_ids"])


def _widths(features: dict[str, NDArray[Any]]) -> dict[str, int]:
    return {name: len(values) for name, values in features.items()}


def _features(number: int, record: bytes) -> dict[str, NDArray[Any]]:
    """Return the features known here of a record whose features have lengths that fit."""
    with decoding(f"record {number} is no tf.train.Example"):
        features = TFExample.FromString(record).features.feature
    found: dict[str, NDArray[Any]] = {}
    for name in (*_FEATURES, BOUNDARY_FEATURE):
        if name in features:
            feature, is_float = features[name], name == "masked_lm_weights"
            values = feature.float_list.value if is_float else feature.int64_list.value
            found[name] = np.fromiter(values, np.float64 if is_float else np.int64, len(values))
    widths = _widths(found)
    groups = ((*PIECE_FEATURES, BOUNDARY_FEATURE), PREDICTION_FEATURES, (ORDER_FEATURE,))
    of_groups = [{widths[name] for name in group if name in widths} for group in groups]
    are_there = found.keys() >= set(_FEATURES) and 0 not in widths.values()
    if not are_there or any(len(of) > 1 for of in of_groups) or of_groups[-1] != {1}:
        raise SourceError(
            f"record {number} is no example: its features have lengths {widths}, but "
            f"{PIECE_FEATURES} must have one length, {PREDICTION_FEATURES} one, and "
            f"{ORDER_FEATURE} must have 1"
        )
    return found


def rows_of_features(features: dict[str, Ints]) -> Rows:
    """Return the examples of padded features, each (R, its length), (R, 1) at least.

    A row ends at its last piece that is not padding, and segment b begins after its first [SEP]'s
    segment; where masks, segment ids, weights and padding say otherwise is counted.
    """
    ids, segments, weights = (
        features[name] for name in ("input_ids", "segment_ids", "masked_lm_weights")
    )
    nonzero = ids != 0
    lengths = np.where(nonzero.any(axis=1), ids.shape[1] - nonzero[:, ::-1].argmax(axis=1), 0)
    lanes = np.arange(ids.shape[1])
    real = lanes < lengths[:, None]
    in_b = segments == 1
    b_starts = np.where(in_b.any(axis=1), in_b.argmax(axis=1), lengths)
    wrong_segments = (real & (lanes >= b_starts[:, None])) != segments
    num_predictions = (weights != 0).sum(axis=1)
    predicted = np.arange(weights.shape[1]) < num_predictions[:, None]
    wrong_padding = (features["input_mask"] != real).any(axis=1)
    wrong_padding |= (weights != predicted).any(axis=1)
    for name in ("masked_lm_ids", "masked_lm_positions"):
        wrong_padding |= ((features[name] != 0) & ~predicted).any(axis=1)
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
            "padding": int(wrong_padding.sum()),
            "segment ids": int(wrong_segments.any(axis=1).sum()),
        },
    )
