"""Examples of a shard as flat arrays, whoever wrote it and in whichever format."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage.errors import AlbertError, SourceError
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS, Ints
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from pipelines.corpus.word_hashes import cut_by_size
from pipelines.examples.tfrecord import TFExample

Bools = NDArray[np.bool_]
Columns = dict[str, pa.Array]
Features = dict[str, NDArray[Any]]

OPENS_WORD = "opens_word"
"""Column of lists: 1 for each piece at which a word begins."""
_PIECE_FEATURES = ("input_ids", "input_mask", "segment_ids")
_PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_ORDER_FEATURE = "next_sentence_labels"
_BOUNDARY_FEATURE = "token_boundary"
_FEATURES = (*_PIECE_FEATURES, *_PREDICTION_FEATURES, _ORDER_FEATURE)
_CORE_COLUMNS = EXAMPLE_SCHEMA.names[:5]
_OTHER_COLUMNS = [name for name, _ in OTHER_DOCUMENT_FIELDS]
_TYPES: dict[str, pa.DataType] = {
    field.name: field.type for field in [*EXAMPLE_SCHEMA, *pa.schema(OTHER_DOCUMENT_FIELDS)]
}


class Rows:
    """R examples laid end to end: T pieces and M predictions in all, as the shard has them.

    Args:
        columns: those of EXAMPLE_SCHEMA up to the label, of int64 and large lists of it, without
            nulls; and as many of its other columns, `OTHER_DOCUMENT_FIELDS` and `OPENS_WORD` as
            are known.
        faults: rows of the shard that break a rule of the format, by check. Those under "values"
            lack a value and are not among these rows.
        wrong_columns: deviations from the schema, in words.
    """

    def __init__(
        self,
        columns: Columns,
        faults: dict[str, int] | None = None,
        wrong_columns: tuple[str, ...] = (),
    ) -> None:
        self.columns = columns
        self.faults = {"values": 0, **(faults or {})}
        self.wrong_columns = wrong_columns
        # (T,) after masking, and (R,); (M,) and (R,); (M,)
        self.ids, self.lengths = _lists(columns["input_ids"])
        self.positions, self.num_predictions = _lists(columns["masked_lm_positions"])
        self.labels, _ = _lists(columns["masked_lm_labels"])
        self.b_starts: Ints = columns["segment_b_start"].to_numpy()
        self.orders: Ints = columns["sentence_order_label"].to_numpy()

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def opens(self) -> Bools | None:
        """(T,) whether a word begins at each piece, if the shard says so."""
        column = self.columns.get(OPENS_WORD)
        return None if column is None else column.flatten().to_numpy() == 1

    @cached_property
    def documents(self) -> UInt64s | None:
        """(R,) hashes of the documents' ids, if they are known."""
        column = self.columns.get("document_id")
        return None if column is None else _hashed(column, hash_of)

    def keys(self, seed: int) -> UInt64s | None:
        """(R,) of document, copy and first sentence: what a pair's draws under ``seed`` depend on.

        None if one of them is not known.
        """
        if not {"document_id", "copy", "first_sentence"} <= self.columns.keys():
            return None
        of_document = partial(derive_seed, seed, "examples")
        keys = _hashed(self.columns["document_id"], of_document)
        for name in ("copy", "first_sentence"):
            keys = random_bits(keys, self.columns[name].to_numpy())
        return keys

    @cached_property
    def others(self) -> UInt64s | None:
        """(R,) hash of the other document's id, 0 where segment b has none of its own."""
        column = self.columns.get("other_document_id")
        return None if column is None else _hashed(column, hash_of)

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
        for position in (0, self.b_starts - 1, self.lengths - 1):
            special[self.starts + position] = True
        return special

    @cached_property
    def hashes(self) -> UInt64s:
        """(R,) of everything in a row that both formats hold."""
        hashes = self._sum_of(self.ids, self.at)
        places = self.positions.astype(np.uint64)
        np.add.at(hashes, self.row_of_prediction, random_bits(places, self.labels + (1 << 40)))
        return hashes + random_bits(self.b_starts.astype(np.uint64), self.orders + (2 << 40))

    def _sum_of(self, values: Ints, places: Ints) -> UInt64s:
        return np.add.reduceat(random_bits(values.astype(np.uint64), places), self.starts)

    def only(self, keep: Bools) -> "Rows":
        """Return the rows where ``keep`` (R,) holds."""
        if keep.all():
            return self
        return Rows(_filtered(self.columns, keep))


def _filtered(columns: Columns, keep: Bools) -> Columns:
    return {name: column.filter(pa.array(keep)) for name, column in columns.items()}


def _lists(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the values of lists end to end, and the length of each (R,)."""
    return column.flatten().to_numpy(), pc.list_value_length(column).to_numpy()


def hash_of(name: str) -> int:
    """Return 64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _hashed(column: pa.Array, hashed: Callable[[str], int]) -> UInt64s:
    """Return uint64 (R,) hashes of strings; 0 for null."""
    encoded = column.dictionary_encode()
    hashes = np.array([hashed(name) for name in encoded.dictionary.to_pylist()] + [0], np.uint64)
    return hashes[encoded.indices.fill_null(-1).to_numpy()]


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
        SourceError: the file cannot be read, or lacks one of these columns.
    """
    with decoding("no readable Arrow file"):
        reader = open_arrow(uri)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch = batch if columns is None else batch.select(columns)
            batch.validate(full=True)
            yield batch


def rows_of_batch(batch: pa.RecordBatch) -> Rows:
    """Return the examples of an Arrow batch, whoever wrote it.

    The batch has at least the columns of EXAMPLE_SCHEMA up to the label. Numbers may be of any
    width; deviations from EXAMPLE_SCHEMA are listed. A row that lacks a value, or has two that
    contradict each other, is counted and left out.

    Raises:
        SourceError: such a column is missing, or a column is not of numbers, lists or text.
    """
    with decoding("names of the columns"):
        names = batch.schema.names
    if missing := [name for name in _CORE_COLUMNS if name not in names]:
        raise SourceError(f"columns {missing} are missing; found {names}")
    if repeated := [name for name in _TYPES if names.count(name) > 1]:
        raise SourceError(f"columns {repeated} occur twice; found {names}")
    columns = {}
    for name in set(names) & _TYPES.keys():
        with decoding(f"column {name}"):
            columns[name] = batch[name].cast(_wide(_TYPES[name]))
    whole = _whole_rows(columns)
    wrong = _wrong_columns(batch.schema)
    faults = {"schema": len(whole) * bool(wrong), "values": int((~whole).sum())}
    return Rows(columns if whole.all() else _filtered(columns, whole), faults, wrong)


def _wide(of: pa.DataType) -> pa.DataType:
    if pa.types.is_list(of):
        return pa.large_list(pa.int64())
    return pa.int64() if pa.types.is_integer(of) else pa.large_string()


def _whole_rows(columns: Columns) -> Bools:
    """Return bool (R,): which rows have all values, in agreement with each other."""
    whole = np.ones(len(columns["input_ids"]), bool)
    numbers: dict[str, Ints] = {}
    for name, column in columns.items():
        if name not in _OTHER_COLUMNS:
            whole &= _has_value(column)
        if pa.types.is_large_list(column.type):
            whole[pc.list_parent_indices(column).to_numpy()[~_has_value(column.flatten())]] = False
            numbers[name] = pc.list_value_length(column).fill_null(0).to_numpy()
        elif pa.types.is_integer(column.type):
            numbers[name] = column.fill_null(0).to_numpy()
    whole &= numbers["masked_lm_positions"] == numbers["masked_lm_labels"]
    for first, last in (
        ("first_sentence", "last_sentence"),
        ("other_first_sentence", "other_last_sentence"),
    ):
        if first in numbers and last in numbers:
            whole &= (numbers[first] >= 0) & (numbers[first] <= numbers[last])
    whole &= numbers.get("copy", np.zeros(1)) >= 0
    others = [_has_value(columns[name]) for name in _OTHER_COLUMNS if name in columns]
    for there in others:
        whole &= there == others[0]
    return whole


def _has_value(column: pa.Array) -> Bools:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _wrong_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return in words what ``schema`` has that EXAMPLE_SCHEMA has not, and the other way round."""
    found = {field.name: field.type for field in schema}
    has_others = not found.keys().isdisjoint(_OTHER_COLUMNS)
    wanted = _TYPES if has_others else {name: _TYPES[name] for name in EXAMPLE_SCHEMA.names}
    return (
        *(f"{name} is missing" for name in wanted if name not in found),
        *(f"{name!r} is unknown" for name in found if name not in wanted),
        *(
            f"{name} is {found[name]}, not {of}"
            for name, of in wanted.items()
            if found.get(name, of) != of
        ),
    )


def rows_of_records(records: Iterable[bytes], batch: int) -> Iterator[Rows]:
    """Yield the examples of serialised `tf.train.Example` records, ``batch`` at a time.

    Raises:
        SourceError: as `features_of`.
    """
    for features in cut_by_size(features_of(records), lambda _: 1, batch):
        yield _rows_of_features(
            {name: np.stack([each[name] for each in features]) for name in features[0]}
        )


def features_of(records: Iterable[bytes]) -> Iterator[Features]:
    """Yield the features of each record, all padded to the lengths of the first one's.

    Raises:
        SourceError: a record cannot be read, or its features are not those of an example or are
            not as long as the first record's.
    """
    expected: dict[str, int] = {}
    with decoding("no readable TFRecord file"):
        for number, record in enumerate(records):
            features = _features(number, record)
            lengths = _lengths(features)
            expected = expected or lengths
            if lengths != expected:
                raise SourceError(
                    f"record {number} has features of lengths {lengths}, the first one {expected}"
                )
            yield features


def _lengths(features: Features) -> dict[str, int]:
    return {name: len(values) for name, values in features.items()}


def _features(number: int, record: bytes) -> Features:
    """Return the features known here of a record whose features have lengths that fit."""
    with decoding(f"record {number} is no tf.train.Example"):
        given = TFExample.FromString(record).features.feature
    found: Features = {}
    for name in (*_FEATURES, _BOUNDARY_FEATURE):
        if name in given:
            is_float = name == "masked_lm_weights"
            values = (given[name].float_list if is_float else given[name].int64_list).value
            found[name] = np.fromiter(values, np.float64 if is_float else np.int64, len(values))
    lengths = _lengths(found)
    groups = ((*_PIECE_FEATURES, _BOUNDARY_FEATURE), _PREDICTION_FEATURES, (_ORDER_FEATURE,))
    of_groups = [{lengths[name] for name in group if name in lengths} for group in groups]
    is_complete = found.keys() >= set(_FEATURES) and 0 not in lengths.values()
    if not is_complete or any(len(of) > 1 for of in of_groups) or of_groups[-1] != {1}:
        raise SourceError(
            f"record {number} is no example: its features have lengths {lengths}, but "
            f"{_PIECE_FEATURES} must have one length, {_PREDICTION_FEATURES} one, and "
            f"{_ORDER_FEATURE} must have 1"
        )
    return found


def _rows_of_features(features: Features) -> Rows:
    """Return the examples of padded features, each (R, its length), (R, 1) at least.

    A row ends at its last piece that is not padding, and segment b begins where segment ids become
    1. Rows in which masks, segment ids, weights and padding contradict this are counted.
    """
    ids, segments, weights = (
        features[name] for name in ("input_ids", "segment_ids", "masked_lm_weights")
    )
    lanes = np.arange(ids.shape[1])
    lengths = ((ids != 0) * (lanes + 1)).max(axis=1)
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

    def lists(name: str, kept: Bools) -> pa.Array:
        ends = np.append(0, np.cumsum(kept.sum(axis=1)))
        return pa.LargeListArray.from_arrays(ends, features[name][kept])

    columns = {
        "input_ids": lists("input_ids", real),
        "segment_b_start": pa.array(b_starts),
        "masked_lm_positions": lists("masked_lm_positions", predicted),
        "masked_lm_labels": lists("masked_lm_ids", predicted),
        "sentence_order_label": pa.array(features[_ORDER_FEATURE][:, 0]),
    }
    if _BOUNDARY_FEATURE in features:
        columns[OPENS_WORD] = lists(_BOUNDARY_FEATURE, real)
    faults = {
        "padding": int(wrong_padding.sum()),
        "segment ids": int(wrong_segments.any(axis=1).sum()),
    }
    return Rows(columns, faults)
