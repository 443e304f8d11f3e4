"""Examples of a shard as flat arrays, whoever wrote it and in whichever format."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage.errors import SourceError
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, MAX_VOCAB_SIZE, OTHER_DOCUMENT_FIELDS, Ints
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from pipelines.corpus.word_hashes import cut_by_size
from pipelines.examples.tfrecord import TFExample, read_tfrecord

Bools = NDArray[np.bool_]
Columns = dict[str, pa.Array]
Features = dict[str, NDArray[Any]]

OPENS_WORD = "opens_word"
"""Column of lists: 1 for each piece at which a word begins."""
_SCHEMAS = [EXAMPLE_SCHEMA, pa.schema([*EXAMPLE_SCHEMA, *pa.schema(OTHER_DOCUMENT_FIELDS)])]
_PIECE_FEATURES = ("input_ids", "input_mask", "segment_ids", "token_boundary")
_PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_FEATURES = {*_PIECE_FEATURES, *_PREDICTION_FEATURES, "next_sentence_labels"}
_ROWS_PER_BATCH = 8192
_RECORDS_PER_BATCH = 1024


class Rows:
    """R examples laid end to end: T pieces and M predictions in all, as the shard has them.

    Args:
        columns: those of EXAMPLE_SCHEMA up to the label, of any integers, without nulls, and
            `OPENS_WORD` if it is known; or all of an Arrow shard's.
        faults: check -> rows of the shard that break this rule of the format.
    """

    def __init__(self, columns: Columns, faults: dict[str, int] | None = None) -> None:
        self.columns = columns
        self.faults = faults or {}
        # (T,) after masking, and (R,); (M,) and (R,); (M,)
        self.ids, self.lengths = _lists(columns["input_ids"])
        self.positions, self.num_predictions = _lists(columns["masked_lm_positions"])
        self.labels, _ = _lists(columns["masked_lm_labels"])
        self.b_starts = _int64(columns["segment_b_start"])
        self.orders = _int64(columns["sentence_order_label"])

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def opens(self) -> Bools | None:
        """(T,) whether a word begins at each piece, if the shard says so."""
        column = self.columns.get(OPENS_WORD)
        return None if column is None else _lists(column)[0] == 1

    @cached_property
    def documents(self) -> UInt64s | None:
        """(R,) hashes of the documents' ids; None in a TFRecord shard, which does not name them."""
        column = self.columns.get("document_id")
        return None if column is None else _hashed(column, hash_of)

    def keys(self, seed: int) -> UInt64s:
        """(R,) of document, copy and first sentence: what a pair's draws under ``seed`` depend on.

        Only if the documents are known.
        """
        keys = _hashed(self.columns["document_id"], partial(derive_seed, seed, "examples"))
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
        hashes = np.add.reduceat(random_bits(self.ids.astype(np.uint64), self.at), self.starts)
        places = self.positions.astype(np.uint64)
        np.add.at(hashes, self.row_of_prediction, random_bits(places, self.labels + (1 << 40)))
        return hashes + random_bits(self.b_starts.astype(np.uint64), self.orders + (2 << 40))

    def only(self, keep: Bools) -> "Rows":
        """Return the rows where ``keep`` (R,) holds."""
        if keep.all():
            return self
        kept = pa.array(keep)
        return Rows({name: column.filter(kept) for name, column in self.columns.items()})


def _int64(column: pa.Array) -> Ints:
    return column.to_numpy().astype(np.int64)


def _lists(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the values of lists end to end, and the length of each (R,)."""
    return _int64(column.flatten()), _int64(pc.list_value_length(column))


def hash_of(name: str) -> int:
    """Return 64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _hashed(column: pa.Array, hashed: Callable[[str], int]) -> UInt64s:
    """Return uint64 (R,) hashes of strings; 0 for null."""
    encoded = column.dictionary_encode()
    hashes = np.array([hashed(name) for name in encoded.dictionary.to_pylist()] + [0], np.uint64)
    return hashes[encoded.indices.fill_null(-1).to_numpy()]


def read_batches(uri: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of an Arrow file, of which every offset and text is valid."""
    reader = open_arrow(uri)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        yield batch


def read_rows(uri: str) -> Iterator[Rows]:
    """Yield the examples of an Arrow or a TFRecord shard, some thousands at a time.

    Raises:
        SourceError: the file is neither; or as `rows_of_batch` and `_rows_of_features`.
        Exception: whatever a library raises on bytes that it cannot read; they promise nothing.
    """
    if uri.endswith(".tfrecord"):
        records = enumerate(read_tfrecord(uri))
        features = (_features(number, record) for number, record in records)
        for batch in cut_by_size(features, lambda _: 1, _RECORDS_PER_BATCH):
            yield _rows_of_features(batch)
    elif uri.endswith(".arrow"):
        for batch in read_batches(uri):
            for begin in range(0, batch.num_rows, _ROWS_PER_BATCH):
                yield rows_of_batch(batch.slice(begin, _ROWS_PER_BATCH))
    else:
        raise SourceError("is neither .arrow nor .tfrecord")


def rows_of_batch(batch: pa.RecordBatch) -> Rows:
    """Return the examples of an Arrow batch.

    Raises:
        SourceError: its columns are not those of EXAMPLE_SCHEMA, perhaps with
            `OTHER_DOCUMENT_FIELDS`, or a row lacks a value or has values that contradict others.
    """
    if not any(batch.schema.equals(schema) for schema in _SCHEMAS):
        found, wanted = (
            ", ".join(f"{field.name} {field.type}" for field in schema)
            for schema in (batch.schema, EXAMPLE_SCHEMA)
        )
        raise SourceError(f"the columns are {found}; expected {wanted}")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if wrong := _wrong_values(columns):
        raise SourceError(f"in a row, {wrong}")
    return Rows(columns)


def _wrong_values(columns: Columns) -> str:
    """Return which values contradict each other, or are not there; empty if none are."""
    lists = {name: columns[name] for name, of in columns.items() if pa.types.is_list(of.type)}
    lengths = {name: pc.list_value_length(column) for name, column in lists.items()}
    others = [columns[name] for name, _ in OTHER_DOCUMENT_FIELDS if name in columns]
    checks = {
        "a value is missing": any(columns[name].null_count for name in EXAMPLE_SCHEMA.names)
        or any(column.flatten().null_count for column in lists.values())
        or any(not each.is_valid().equals(others[0].is_valid()) for each in others),
        "there is no piece": pc.any(pc.equal(lengths["input_ids"], 0)).as_py(),
        "there are more positions than labels, or fewer": not lengths["masked_lm_positions"].equals(
            lengths["masked_lm_labels"]
        ),
        "the first sentence is after the last": any(
            pc.any(
                pc.greater(columns[f"{of}first_sentence"], columns[f"{of}last_sentence"])
            ).as_py()
            for of in ("", "other_")[: 1 + bool(others)]
        ),
    }
    return next((what for what, is_wrong in checks.items() if is_wrong), "")


def _features(number: int, record: bytes) -> Features:
    """Return the features known here of a record: int64 or, for weights, float64 (any,)."""
    given = TFExample.FromString(record).features.feature
    found: Features = {}
    for name in _FEATURES.intersection(given):
        is_float = name == "masked_lm_weights"
        values = (given[name].float_list if is_float else given[name].int64_list).value
        found[name] = np.fromiter(values, np.float64 if is_float else np.int64, len(values))
        if not is_float and found[name].astype(np.uint64).max(initial=0) >= MAX_VOCAB_SIZE:
            raise SourceError(f"record {number} has numbers outside 0..{MAX_VOCAB_SIZE - 1}")
    num_pieces, num_predictions = (len(found.get(n, ())) for n in ("input_ids", "masked_lm_ids"))
    expected = dict.fromkeys(_PIECE_FEATURES, num_pieces)
    expected |= dict.fromkeys(_PREDICTION_FEATURES, num_predictions) | {"next_sentence_labels": 1}
    lengths = {"token_boundary": num_pieces} | {name: len(each) for name, each in found.items()}
    if lengths != expected or not num_pieces or not num_predictions:
        raise SourceError(
            f"record {number} is no example: its features have lengths {lengths}, but "
            f"{_PIECE_FEATURES} must have one length, {_PREDICTION_FEATURES} one, and "
            "next_sentence_labels must have 1"
        )
    return found


def _rows_of_features(records: list[Features]) -> Rows:
    """Return the examples of padded records.

    A row ends at its last piece that is not padding, and segment b begins where segment ids become
    1. Rows in which masks, segment ids, weights and padding contradict this are counted.

    Raises:
        SourceError: the records have features of different lengths, or one has no piece.
    """
    shapes = {name: {len(each.get(name, ())) for each in records} for name in records[0]}
    if any(len(lengths) > 1 for lengths in shapes.values()):
        raise SourceError(f"the records' features are not of the same lengths: {shapes}")
    features = {name: np.stack([each[name] for each in records]) for name in records[0]}
    ids, segments, weights = (
        features[name] for name in ("input_ids", "segment_ids", "masked_lm_weights")
    )
    lanes = np.arange(ids.shape[1])
    lengths = ((ids != 0) * (lanes + 1)).max(axis=1)
    if not lengths.all():
        raise SourceError("a record has no piece but padding")
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
        "sentence_order_label": pa.array(features["next_sentence_labels"][:, 0]),
    }
    if "token_boundary" in features:
        columns[OPENS_WORD] = lists("token_boundary", real)
    faults = {
        "padding": int(wrong_padding.sum()),
        "segment ids": int(wrong_segments.any(axis=1).sum()),
    }
    return Rows(columns, faults)
