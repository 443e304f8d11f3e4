"""Pure: what examples must look like, as counts over shards and bounds on them.

`measure` adds the counts of some rows to a `Tally`; `judge` compares a tally with what is expected.
What must never occur is counted. What is drawn is tested exactly, at any number of rows: a check
fails if its deviation, or a larger one, has a probability below `ALARM` in correct examples. Masks
are compared with masks that the same rules draw in the same rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.stats import binom, binomtest, fisher_exact, kstwo, poisson

from albert_core.stage.errors import SourceError
from albert_core.stage.results import Objective
from albert_core.stage.settings import Settings
from albert_core.text.arrow_files import open_arrow
from albert_core.text.masking import MASK_SHARE, RANDOM_SHARE, mask_examples
from albert_core.text.records import (
    CLS,
    EXAMPLE_SCHEMA,
    MASK,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL,
    NUM_SPECIAL_IN_PAIR,
    OTHER_DOCUMENT_FIELDS,
    PAD,
    SEP,
    UNK,
    Ints,
)
from albert_core.text.seeds import UInt64s, derive_seed, random_bits, random_uniform
from pipelines.corpus import cut_by_size
from pipelines.examples.pairs import LABEL, google_masks
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


ALARM = 2e-5
"""Probability at which a check of what is drawn fails: so of an audit of correct examples, with at
most 50 such checks, less than 1 in 1,000 fails."""
ORDER_SLACK, GOOGLE_ORDER_SLACK = 0.03, 0.1
"""Tolerance for differences between the two labels, beyond chance. A text's sentence lengths have a
trend of their own: up to 0.03 in English novels. The reference cuts the sentence that overshoots,
from the later segment more often: 0.05."""
MAX_REPEATED_SHARE = 0.005
"""Of rows equal to another row, where it isn't known what they were made of."""
GOOGLE_ROWS = 500
"""Rows of a batch in which the reference's masks, slow to draw, are drawn again."""
MAX_RUN = 12
"""Runs of masked words are counted up to this length."""
MAX_LENGTH = 1 << 16
"""Pieces of the longest row that is looked at: positions are stored as uint16."""
Floats = NDArray[np.float64]
_Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
_Share = Annotated[float, Field(ge=0, le=1)]


class Expected(Settings):
    """How the examples were made, as far as it is known, and which deviations are tolerated."""

    max_seq_length: _Length = 512
    max_predictions: _Length | None = None
    """None: no other limit than the share."""
    masked_lm_prob: _Share = 0.15
    max_ngram: int = Field(default=3, ge=1, le=MAX_RUN - 1)
    objective: Objective = "sop"
    fidelity: Literal["paper", "google", "unknown"] = "paper"
    """Whose rules they follow; unknown: those of some other program, so that no masks can be drawn
    to compare with."""
    vocab_size: int | None = Field(default=None, ge=1, le=MAX_VOCAB_SIZE)
    seed: int | None = None
    """Of this project's examples: their labels are known from it, too."""
    max_unknown_share: _Share = 0.01

    @property
    def lowest_random(self) -> int:
        """The lowest id of a random piece: the reference draws from all pieces."""
        return 0 if self.fidelity == "google" else NUM_SPECIAL

    @property
    def prediction_limit(self) -> int:
        """Predictions that no row may exceed."""
        return self.max_predictions or self.max_seq_length


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    found: str
    expected: str
    ok: bool | None
    """None: it could not be looked at; ``found`` says why."""


@dataclass
class Tally:
    """Sums over rows, and hashes of them."""

    expected: Expected
    """What the rows should be like."""
    opens_word: Bools | None = None
    """(V,) which pieces begin a word, if the vocabulary is known; for rows that do not say so."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each rule without exceptions is broken, by check; and other counts."""
    sums: dict[str, Floats] = field(default_factory=dict)
    hashes: defaultdict[str, list[UInt64s]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, values: ArrayLike) -> None:
        """Add ``values`` to the sums called ``name``."""
        self.sums[name] = np.asarray(values, np.float64) + self.sums.get(name, 0.0)


def measure(rows: Rows, tally: Tally) -> Rows:
    """Add what ``rows`` have to ``tally``; return those that could be looked at."""
    tally.counts.update({"rows": len(rows), **rows.faults})
    rows = rows.only(_sound_rows(rows, tally))
    if not len(rows):
        return rows
    opens = rows.opens
    if opens is None and tally.opens_word is not None:
        opens = tally.opens_word[np.minimum(rows.unmasked, len(tally.opens_word) - 1)]
    _measure_pieces(rows, tally)
    _measure_masks(rows, tally)
    if opens is not None:
        _measure_words(rows, opens, tally)
    _measure_order(rows, opens, tally)
    _measure_sets(rows, tally)
    return rows


def _sound_rows(rows: Rows, tally: Tally) -> Bools:
    """Count what breaks a rule of the format.

    Returns bool (R,): whether a row's numbers lie inside it, so that it can be looked at.
    """
    counts, expected, lengths = tally.counts, tally.expected, rows.lengths

    def rows_with(wrong: Bools) -> Bools:
        return np.bincount(rows.row_of_prediction[wrong], minlength=len(rows)) > 0

    too_large = (lengths > expected.max_seq_length) | (
        rows.num_predictions > expected.prediction_limit
    )
    counts["size"] += int((too_large | (rows.orders > 1)).sum())
    unsorted = np.zeros(len(rows.positions), bool)
    unsorted[1:] = (np.diff(rows.row_of_prediction) == 0) & (np.diff(rows.positions) <= 0)
    misplaced = rows_with(rows.positions >= lengths[rows.row_of_prediction])
    misplaced |= rows.num_predictions > lengths
    counts["positions"] += int((misplaced | rows_with(unsorted)).sum())
    # [CLS] a [SEP] b [SEP], with a piece in a and one in b.
    shaped = (rows.b_starts >= 3) & (rows.b_starts <= lengths - 2)
    counts["layout"] += int((~shaped).sum())
    size = expected.vocab_size or MAX_VOCAB_SIZE
    counts["vocabulary"] += int((rows.ids >= size).sum() + (rows.labels >= size).sum())
    return shaped & ~misplaced


def _measure_pieces(rows: Rows, tally: Tally) -> None:
    counts, pieces, special = tally.counts, rows.unmasked, rows.special
    counts["pieces"] += len(pieces)
    counts["unknown"] += int((pieces == UNK).sum())
    unknown = np.bincount(rows.row_of, pieces == UNK, len(rows))
    tally.add("unknown", (unknown / rows.lengths).sum())
    counts["highest id"] = max(counts["highest id"], int(rows.ids.max()), int(pieces.max()))
    counts["padding"] += int((pieces == PAD).sum())
    right = np.where(rows.at == 0, CLS, SEP)
    # A masked [CLS] or [SEP] is another check's finding.
    wrong = np.where(special, rows.ids != right, np.isin(rows.ids, [CLS, SEP])) & ~rows.chosen
    counts["layout"] += len(np.unique(rows.row_of[wrong]))
    counts["unpredicted masks"] += int(((rows.ids == MASK) & ~rows.chosen).sum())


def _measure_masks(rows: Rows, tally: Tally) -> None:
    counts, expected = tally.counts, tally.expected
    budgets = np.maximum(1, np.rint(expected.masked_lm_prob * rows.lengths))
    counts["mask share: excess"] += int((rows.num_predictions > budgets).sum())
    became, labels = rows.ids[rows.where], rows.labels
    forbidden = np.isin(labels, [PAD, CLS, SEP, MASK]) | rows.special[rows.where]
    counts["special pieces"] += int(forbidden.sum())
    is_mask = became == MASK
    other = ~is_mask & (became != labels)
    became, labels = became[other], labels[other]
    counts["predictions"] += len(is_mask)
    counts["masks"] += int(is_mask.sum())
    counts["replaced"] += len(became)
    counts["special replacements"] += int((became < NUM_SPECIAL).sum())
    # Its place among the pieces that may replace the label: all but itself, and but [MASK].
    low = expected.lowest_random
    there = (became >= low) & (labels >= low)
    place = (became - low - (became > labels) - (became > MASK) * (low <= MASK))[there]
    size = expected.vocab_size or MAX_VOCAB_SIZE
    tally.add("replacements", np.bincount(np.minimum(place, size), minlength=size + 1))


def _measure_words(rows: Rows, opens: Bools, tally: Tally) -> None:
    chosen, special = rows.chosen, rows.special
    goes_on = ~opens[1:] & ~special[1:] & ~special[:-1]
    tally.counts["words"] += int((opens & ~special).sum())
    tally.counts["whole words"] += int((goes_on & (chosen[1:] != chosen[:-1])).sum())
    if tally.expected.fidelity == "unknown":
        return
    few = np.arange(len(rows)) < (GOOGLE_ROWS if tally.expected.fidelity == "google" else len(rows))
    pieces = few[rows.row_of]
    drawn, number = _draw_masks(rows.only(few), opens[pieces], tally.expected)
    masks = chosen[pieces], drawn
    tally.add("runs", [_word_runs(opens[pieces], special[pieces], each) for each in masks])
    difference = rows.num_predictions[few] - number
    tally.add("predictions", [len(number), (difference < 0).sum(), (difference > 0).sum()])


def _draw_masks(rows: Rows, opens: Bools, expected: Expected) -> tuple[Bools, Ints]:
    """Return which pieces (T,) the rules choose in these rows, and how many in each (R,)."""
    # Two pieces are enough of a vocabulary: one opens words and one does not.
    pieces = np.where(rows.special, SEP, NUM_SPECIAL + opens)
    opens_word = np.arange(NUM_SPECIAL + 2) > NUM_SPECIAL
    seeds = random_bits(rows.hashes, 0)
    rules = expected.masked_lm_prob, expected.max_ngram, expected.prediction_limit
    if expected.fidelity == "google":
        masked = google_masks(pieces, rows.lengths, opens_word, seeds, *rules)
    else:
        masked = mask_examples(pieces, rows.lengths, rows.b_starts, opens_word, seeds, *rules)
    chosen = np.zeros(len(rows.ids), bool)
    chosen[np.repeat(rows.starts, masked.num_predictions) + masked.positions] = True
    return chosen, masked.num_predictions


def _word_runs(opens: Bools, special: Bools, chosen: Bools) -> Ints:
    """Return (MAX_RUN + 1,) how many runs of 0, 1, 2, ... chosen words there are."""
    begins_word = opens | special
    begins_word[1:] |= special[:-1]
    words = np.pad((chosen & ~special)[begins_word], 1)
    edges = np.flatnonzero(words[1:] != words[:-1])
    return np.bincount(np.minimum(np.diff(edges)[::2], MAX_RUN), minlength=MAX_RUN + 1)


def _measure_order(rows: Rows, opens: Bools | None, tally: Tally) -> None:
    counts, expected = tally.counts, tally.expected
    own = np.ones(len(rows), bool) if rows.others is None else rows.others == 0
    label = np.clip(rows.orders, 0, 1)
    counts["other document"] += int((~own).sum())
    counts["other document, label 0"] += int((~own & (label == 0)).sum())
    counts["own document, label 1"] += int((own & (label == 1)).sum())
    if rows.others is not None and rows.documents is not None:
        counts["other document is the same"] += int((rows.others == rows.documents).sum())
    # Where b from elsewhere is an accident, only the other rows' labels are drawn.
    drawn = own if expected.objective == "sop" else np.ones(len(rows), bool)
    label, length, b_start = label[drawn], rows.lengths[drawn], rows.b_starts[drawn]
    tally.add("swapped", [label.sum(), len(label)])
    width = expected.max_seq_length
    difference = (b_start - 2) - (length - b_start - 1)
    for name, values in (("lengths", length), ("differences", difference)):
        places = np.clip(values, -width, width) + width
        of_labels = [np.bincount(places[label == n], minlength=2 * width + 1) for n in (0, 1)]
        tally.add(name, of_labels)
    # Which pieces the segments begin and end with. The piece most frequent at the ends, a full stop
    # in most corpora, tells whole sentences from cut ones; so do words begun in their middle.
    start = rows.starts[drawn]
    segments = {"a": (start + 1, start + b_start - 2), "b": (start + b_start, start + length - 2)}
    for (name, (first, last)), value in product(segments.items(), (0, 1)):
        of_label = label == value
        ends = np.bincount(rows.unmasked[last[of_label]], minlength=MAX_VOCAB_SIZE)
        tally.add(f"ends {name}{value}", ends)
        if opens is not None:
            whole = opens[first[of_label]]
            tally.add(f"begins {name}{value}", [whole.sum(), len(whole)])


def _measure_sets(rows: Rows, tally: Tally) -> None:
    if rows.documents is None:
        tally.hashes["rows"].append(rows.hashes)
    else:
        # A text may say the same twice, in one document or in two: that is no fault of a writer.
        tally.hashes["places"].append(rows.keys(tally.expected.seed or 0))
        numbers = np.unique(rows.documents, return_counts=True)[1]
        neighbours = (rows.documents[1:] == rows.documents[:-1]).sum()
        tally.add("neighbours", [neighbours, (numbers * (numbers - 1)).sum() / len(rows)])


def judge(tally: Tally) -> list[Finding]:
    """Return the findings of all checks of rows."""
    return [
        *_judge_format(tally),
        *_judge_masks(tally),
        *_judge_words(tally),
        *_judge_order(tally),
        *_judge_sets(tally),
    ]


_RULES = {
    "layout": ("rows", "rows are not [CLS] a [SEP] b [SEP]"),
    "padding": ("rows", "rows with padding inside, or whose padding mask is wrong"),
    "segment ids": ("rows", "rows not 0 to [SEP] and 1 from b on"),
    "positions": ("rows", "rows with positions twice, unsorted or outside"),
    "special pieces": ("predictions", "predictions of or at special pieces"),
    "unpredicted masks": ("pieces", "[MASK] pieces that nothing is to be predicted for"),
    "mask share: excess": ("rows", "rows masked by more than they should be"),
}
"""Check of a rule without exceptions -> the count of its total, and what its own count counts."""


def none_of(check: str, number: int, total: int, what: str) -> Finding:
    """Return the finding of a rule without exceptions."""
    return Finding(check, f"{number:,} of {total:,} {what}", "none", number == 0)


def drawn(
    check: str, number: float, total: float, low: float, high: float | None = None
) -> Finding:
    """Return the finding of a share that is drawn: a binomial test of ``low`` to ``high``."""
    expected = f"{low:.4f}" if high is None else f"{low:.4f} to {high:.4f}"
    said = f"{number / max(1, total):.4f} of {total:,.0f}"
    return by_chance(check, said, expected, tails(number, total, low, high))


def tails(number: float, total: float, low: float, high: float | None = None) -> float:
    """Return the probability of so many of ``total``, or more unlikely ones, at a share.

    It is twice the smaller tail, and may exceed 1. A share between ``low`` and ``high`` gives at
    least as much.
    """
    high = low if high is None else high
    return 2.0 * float(min(binom.cdf(number, total, low), binom.sf(number - 1, total, high)))


def by_chance(check: str, said: str, expected: str, probability: float) -> Finding:
    """Return the finding of what is drawn, given the probability of such a deviation."""
    said = f"{said} (p = {min(1, probability):.2g})"
    return Finding(check, said, expected, bool(probability >= ALARM))


def _judge_format(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    what = (
        f"rows beyond {expected.max_seq_length} pieces or "
        f"{expected.max_predictions or 'any'} predictions, or with another label than 0 and 1"
    )
    yield none_of("size", counts["size"], counts["rows"], what)
    if expected.vocab_size is None:
        found = f"highest id {counts['highest id']}; no vocabulary given"
        yield Finding("vocabulary", found, "below its size", None)
    else:
        what = f"ids at or above {expected.vocab_size}"
        yield none_of("vocabulary", counts["vocabulary"], counts["pieces"], what)
    for check, (total, what) in _RULES.items():
        yield none_of(check, counts[check], counts[total], what)
    # A text lacks a character throughout: the rows vary, not the pieces.
    rows = np.floor(tally.sums.get("unknown", np.zeros(1)).sum())
    said = f"{counts['unknown'] / max(1, counts['pieces']):.4%} of {counts['pieces']:,} pieces"
    most = expected.max_unknown_share
    yield by_chance(
        "unknown pieces", said, f"at most {most:.1%}", tails(rows, counts["rows"], 0, most)
    )


def _judge_masks(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    size = expected.vocab_size or counts["highest id"] + 1
    kept = counts["predictions"] - counts["masks"] - counts["replaced"]
    same = RANDOM_SHARE / max(1, size - NUM_SPECIAL)
    for name, number, share in (
        ("masks", counts["masks"], MASK_SHARE),
        ("kept", kept, 1 - MASK_SHARE - RANDOM_SHARE + same),
        ("replaced", counts["replaced"], RANDOM_SHARE - same),
    ):
        yield drawn(f"80/10/10: {name}", number, counts["predictions"], share)
    number, special = counts["replaced"], counts["special replacements"]
    check = "random pieces: special"
    # The reference draws from all pieces; [MASK], so drawn, looks like any other [MASK].
    if expected.lowest_random:
        yield none_of(check, special, number, "random pieces are special")
    else:
        yield drawn(check, special, number, (NUM_SPECIAL - 1) / size)
    check = "random pieces: evenly drawn"
    places = tally.sums.get("replacements", np.zeros(1))
    number = int(places.sum())
    if expected.vocab_size is None or not number:
        yield Finding(check, "no vocabulary given, or nothing to count", "", None)
        return
    # Each is drawn from the pieces from the lowest on but the one that it replaces, and [MASK].
    num_others = size - 1 - (expected.lowest_random or 1)
    even = np.minimum(np.arange(1, len(places) + 1) / num_others, 1)
    distance = float(np.abs(np.cumsum(places) / number - even).max())
    said = f"distance {distance:.4f} of {number:,} from even (Kolmogorov and Smirnov)"
    yield by_chance(check, said, "even", kstwo.sf(distance, number))


def _judge_words(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    if not counts["words"]:
        yield Finding("whole words", "where words begin is not known: give --vocab", "", None)
        return
    yield none_of("whole words", counts["whole words"], counts["words"], "words masked in part")
    if expected.fidelity == "unknown":
        for check in ("mask share: predictions", "n-grams"):
            yield Finding(check, "whose rules they follow is not known: give --fidelity", "", None)
        return
    rows, fewer, more = tally.sums["predictions"].tolist()
    said = (
        f"{fewer:,.0f} of {rows:,.0f} rows have fewer than the rules draw there, {more:,.0f} more"
    )
    p_value = binomtest(int(fewer), int(fewer + more)).pvalue if fewer + more else 1.0
    yield by_chance("mask share: predictions", said, "none, or as many with more", p_value)
    found, ours = tally.sums["runs"][:, 1:].astype(int)
    for length in range(1, expected.max_ngram + 2):
        beyond = length > expected.max_ngram
        lengths = slice(length - 1, None if beyond else length)
        counts_of = [[each[lengths].sum(), each.sum()] for each in (found, ours)]
        (number, total), (wanted, drawn_runs) = counts_of
        p_value = fisher_exact([[n, all_of - n] for n, all_of in counts_of]).pvalue
        check = f"n-grams: runs of {length}{' or more' if beyond else ''} words"
        said = f"{number / max(1, total):.4f} of {total:,}"
        yield by_chance(check, said, f"{wanted / max(1, drawn_runs):.4f}, as drawn there", p_value)


def _judge_order(tally: Tally) -> Iterator[Finding]:
    expected = tally.expected
    share = 0.0 if expected.objective == "none" else 0.5
    swapped, rows = tally.sums.get("swapped", np.zeros(2)).tolist()
    yield drawn("label balance", swapped, rows, share)
    # A text borrowed from elsewhere is as long as it may be; the rest of a document is shorter.
    if expected.objective != "nsp":
        yield _tell_tale("label balance: by length", "the length", tally.sums.get("lengths"), 0.0)
    yield _judge_same_document(tally)
    if expected.objective == "sop":
        slack = _order_slack(expected)
        differences = tally.sums.get("differences")
        yield _tell_tale("order tell-tale: lengths", "a minus b", differences, slack)
        yield from _judge_edges(tally)


def _judge_same_document(tally: Tally) -> Finding:
    counts, expected = tally.counts, tally.expected
    others, rows = counts["other document"], counts["rows"]
    check = "same document"
    if expected.objective == "nsp":
        wrong = counts["other document, label 0"] + counts["other document is the same"]
        wrong += counts["own document, label 1"]
        what = "rows whose label and documents contradict each other"
        return none_of(check, wrong, rows, what)
    if expected.fidelity == "google":
        what = "rows with b from elsewhere labelled as in order"
        return none_of(check, counts["other document, label 0"], others, what)
    return none_of(check, others, rows, "rows with segment b from another document")


def _tell_tale(check: str, what: str, of_labels: Floats | None, slack: float) -> Finding:
    """Compare the distributions (2, N) of the two labels (Kolmogorov and Smirnov)."""
    if of_labels is None or not of_labels.any(axis=1).all():
        return Finding(check, "one label only", "", None)
    totals = of_labels.sum(axis=1)
    distance = np.abs(np.diff(np.cumsum(of_labels, axis=1) / totals[:, None], axis=0)).max()
    # Wei and Dudley 2012, "Two-sample Dvoretzky-Kiefer-Wolfowitz inequalities".
    excess = max(0.0, distance - slack)
    probability = np.e * np.exp(-2 * totals.prod() / totals.sum() * excess**2)
    said = f"{what} tells the label of {0.5 + distance / 2:.1%}: distance {distance:.4f}"
    return by_chance(check, said, f"at most {slack} beyond chance", probability)


def _order_slack(expected: Expected) -> float:
    return GOOGLE_ORDER_SLACK if expected.fidelity == "google" else ORDER_SLACK


def _judge_edges(tally: Tally) -> Iterator[Finding]:
    names = ("a0", "a1", "b0", "b1")
    ends = np.stack([tally.sums.get(f"ends {name}", np.zeros(1)) for name in names])
    commonest = ends[:, ends.sum(axis=0).argmax()]
    check = "order tell-tale: {} of segments"
    yield _alike(check.format("ends"), commonest, ends.sum(axis=1), tally.expected)
    if "begins a0" in tally.sums:
        begins = np.stack([tally.sums[f"begins {name}"] for name in names])
        yield _alike(check.format("begins"), begins[:, 0], begins[:, 1], tally.expected)


def _alike(check: str, numbers: Floats, totals: Floats, expected: Expected) -> Finding:
    """Return whether four shares are draws of the same one."""
    if not totals.all():
        return Finding(check, "one label only", "", None)
    intervals = [
        binomtest(int(number), int(total)).proportion_ci(1 - ALARM / len(numbers))
        for number, total in zip(numbers, totals, strict=True)
    ]
    apart = max(each.low for each in intervals) - min(each.high for each in intervals)
    slack = _order_slack(expected)
    said = "whole in a0, a1, b0, b1: " + ", ".join(f"{n:.3f}" for n in numbers / totals)
    return Finding(check, said, f"at most {slack} apart beyond chance", bool(apart <= slack))


def _judge_sets(tally: Tally) -> Iterator[Finding]:
    check = "repeated rows"
    for name, hashed in tally.hashes.items():
        hashes = np.concatenate(hashed)
        repeated = len(hashes) - len(np.unique(hashes))
        if name == "rows":
            yield drawn(check, repeated, len(hashes), 0, MAX_REPEATED_SHARE)
        else:
            what = "rows with the document, copy and first sentence of another"
            yield none_of(check, repeated, len(hashes), what)
    if "neighbours" not in tally.sums:
        yield Finding("shuffle", "documents are not known", "", None)
        return
    number, chance = tally.sums["neighbours"].tolist()
    said = f"{number:,.0f} neighbours from the same document"
    yield by_chance("shuffle", said, f"{chance:,.1f} by chance", poisson.sf(number - 1, chance))


Encode = Callable[[Sequence[str]], list[list[int]]]


def fault_of(
    row: dict[str, Any], texts: dict[str, str], encode: Encode, expected: Expected
) -> str | None:
    """Return what is wrong with where a row says that its segments come from, or None.

    Args:
        row: by the columns of EXAMPLE_SCHEMA; and `OTHER_DOCUMENT_FIELDS`, if there are any.
        texts: document -> its sentences, one a line; those of the row at least.
        encode: sentences to pieces.
        expected: by the paper's rules only examples of the full length may have cut sentences.
    """
    of = row["document_id"]
    other = row.get("other_document_id")
    if not {of, other} - {None} <= texts.keys():
        return "names no document of the corpus"
    of_a = of_b = _pieces(texts[of], row, "", encode)
    if other is not None:
        of_b = _pieces(texts[other], row, "other_", encode)
    if not of_a or not of_b:
        return "names sentences that its document does not have"
    ids, b_start = np.array(row["input_ids"]), row["segment_b_start"]
    ids[np.array(row["masked_lm_positions"], int)] = row["masked_lm_labels"]
    a, b, label = ids[1 : b_start - 1], ids[b_start:-1], row["sentence_order_label"]
    at_a, at_b = places(np.concatenate(of_a), a), places(np.concatenate(of_b), b)
    if not at_a or not at_b:
        return "is not in the sentences it names"
    if other is not None:
        return None if label == 1 else "has segment b from elsewhere and label 0"
    (first, second), size = ((at_a, at_b), len(a)) if label == 0 else ((at_b, at_a), len(b))
    if first[0] + size > second[-1]:
        return "is not in the order of its label"
    num_pieces, bounds = len(a) + len(b), np.cumsum([len(sentence) for sentence in of_a])
    is_cut = num_pieces != bounds[-1] or size not in bounds
    has_room = num_pieces < expected.max_seq_length - NUM_SPECIAL_IN_PAIR
    if expected.fidelity == "paper" and is_cut and has_room:
        return "cuts a sentence though there is room"
    if label not in _labels_drawn(row, texts[of], encode, expected):
        return "has another label than its seed draws"
    return None


def _labels_drawn(
    row: dict[str, Any], text: str, encode: Encode, expected: Expected
) -> Iterator[int]:
    """Yield the label that the row's seed draws; both labels where it does not tell.

    It depends on the number of the first sentence, which is its line unless a line before it has
    no piece.
    """
    rules = expected.fidelity, expected.objective
    if expected.seed is None or "copy" not in row or rules != ("paper", "sop"):
        yield from (0, 1)
        return
    key = random_bits(derive_seed(expected.seed, "examples", row["document_id"]), row["copy"])
    first = row["first_sentence"]
    yield int(random_uniform(random_bits(key, first), LABEL)[0] < 0.5)
    first = sum(map(bool, encode(text.split("\n")[:first])))
    yield int(random_uniform(random_bits(key, first), LABEL)[0] < 0.5)


def _pieces(text: str, row: dict[str, Any], prefix: str, encode: Encode) -> list[Ints]:
    """Return the pieces of each of the row's sentences; none unless all of them are in ``text``."""
    lines = text.split("\n")
    first, last = (row.get(f"{prefix}{end}_sentence") or 0 for end in ("first", "last"))
    if not 0 <= first <= last < len(lines):
        return []
    return [np.array(ids, np.int64) for ids in encode(lines[first : last + 1])]


def places(text: Ints, part: Ints) -> list[int]:
    """Return where ``part`` occurs in ``text``, ascending.

    >>> places(np.array([7, 8, 7, 8, 9]), np.array([7, 8]))
    [0, 2]
    """
    if not 0 < len(part) <= len(text):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(text, len(part))
    return np.flatnonzero((windows == part).all(axis=1)).tolist()
