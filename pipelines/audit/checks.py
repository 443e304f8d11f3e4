"""Pure: rows of example shards, and the checks of what is in them.

`measure` adds the counts of some rows to a `Tally`; `judge` compares a tally with what is expected.

Violations of a strict rule are counted. Random draws are tested exactly, for any number of rows: a
check fails if correct examples would deviate as far with a probability below `ALARM`. Masks are
compared with masks that the same rules draw in the same rows.

Dimensions: R rows laid end to end, with T pieces and M predictions in all.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.stats import binom, binomtest, fisher_exact, kstwo, poisson

from albert_core.stage.results import Objective
from albert_core.stage.settings import Settings
from albert_core.text.masking import MASK_SHARE, RANDOM_SHARE
from albert_core.text.records import (
    CLS,
    MASK,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL,
    NUM_SPECIAL_IN_PAIR,
    PAD,
    SEP,
    UNK,
    Bools,
    Ints,
    begins_of,
)
from albert_core.text.seeds import UInt64s, derive_seed, random_bits, random_uniform
from pipelines.examples.pairs import LABEL, MASK_BY

ALARM = 2e-5
"""Probability below which a check of random draws fails. An audit of correct examples has at most
50 such checks, so fewer than 1 audit in 1,000 fails."""
ORDER_SLACK, GOOGLE_ORDER_SLACK = 0.03, 0.1
"""Tolerance for differences between the two labels, beyond chance. A text's sentence lengths have a
trend of their own: up to 0.03 in English novels. The reference cuts the sentence that overshoots,
from the later segment more often: 0.05."""
MAX_REPEATED_SHARE = 0.005
"""Share of rows that may equal another row, where the documents are not known."""
GOOGLE_ROWS = 500
"""Rows of a batch whose masks are drawn again by the reference's rules, which is slow."""
MAX_RUN = 12
"""Runs of masked words are counted up to this length."""
MAX_LENGTH = 1 << 16
"""Longest row that is examined, in pieces: positions are stored as uint16."""
OPENS_WORD = "opens_word"
"""Column of lists: 1 for each piece at which a word begins."""

Floats = NDArray[np.float64]
Columns = dict[str, pa.Array]
Encode = Callable[[Sequence[str]], list[list[int]]]
_Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
_Share = Annotated[float, Field(ge=0, le=1)]


class Rows:
    """R examples laid end to end, with the values that the shard has.

    Args:
        columns: those of EXAMPLE_SCHEMA up to the label, as integers of any type without nulls, and
            `OPENS_WORD` if it is known; or all columns of an Arrow shard.
        faults: name of a check -> rows of the shard that break this rule of the format.
    """

    def __init__(self, columns: Columns, faults: dict[str, int] | None = None) -> None:
        self.columns = columns
        self.faults = faults or {}
        self.ids, self.lengths = _lists(columns["input_ids"])
        """(T,) after masking, and (R,)"""
        self.positions, self.num_predictions = _lists(columns["masked_lm_positions"])
        """(M,) and (R,)"""
        self.labels, _ = _lists(columns["masked_lm_labels"])
        self.b_starts = _int64(columns["segment_b_start"])
        self.orders = _int64(columns["sentence_order_label"])
        self.starts = begins_of(self.lengths)
        """(R,) index of each row's first piece."""
        self.row_of = np.repeat(np.arange(len(self)), self.lengths)
        """(T,) row of each piece."""
        self.row_of_prediction = np.repeat(np.arange(len(self)), self.num_predictions)
        """(M,)"""
        self.at = np.arange(len(self.ids)) - self.starts[self.row_of]
        """(T,) position of each piece in its row."""

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
        return self._hashed("document_id")

    @cached_property
    def others(self) -> UInt64s | None:
        """(R,) hash of the id of the document of segment b, 0 where it is that of segment a."""
        return self._hashed("other_document_id")

    @cached_property
    def where(self) -> Ints:
        """(M,) index of each prediction among all pieces; rows must be sound."""
        return self.starts[self.row_of_prediction] + self.positions

    @cached_property
    def chosen(self) -> Bools:
        """(T,) whether a piece is to be predicted."""
        return _marked(len(self.ids), self.where)

    @cached_property
    def unmasked(self) -> Ints:
        """(T,) the pieces before masking."""
        unmasked = self.ids.copy()
        unmasked[self.where] = self.labels
        return unmasked

    @cached_property
    def special(self) -> Bools:
        """(T,) whether the layout has [CLS] or [SEP] there."""
        ends = np.stack([np.ones_like(self.lengths), self.b_starts, self.lengths])
        return _marked(len(self.ids), self.starts + ends - 1)

    @cached_property
    def hashes(self) -> UInt64s:
        """(R,) hash of all that both formats hold of a row."""
        hashes = np.add.reduceat(random_bits(self.ids.astype(np.uint64), self.at), self.starts)
        places = self.positions.astype(np.uint64)
        np.add.at(hashes, self.row_of_prediction, random_bits(places, self.labels + (1 << 40)))
        return hashes + random_bits(self.b_starts.astype(np.uint64), self.orders + (2 << 40))

    def only(self, keep: Bools) -> "Rows":
        """Return the rows where ``keep`` (R,) holds."""
        if keep.all():
            return self
        return Rows({name: column.filter(pa.array(keep)) for name, column in self.columns.items()})

    def _hashed(self, name: str) -> UInt64s | None:
        """Return (R,) hashes of a column of strings, 0 for null; None without the column."""
        if name not in self.columns:
            return None
        encoded = self.columns[name].dictionary_encode()
        hashes = np.array([*map(hash_of, encoded.dictionary.to_pylist()), 0], np.uint64)
        return hashes[encoded.indices.fill_null(-1).to_numpy()]


def _int64(column: pa.Array) -> Ints:
    return column.to_numpy().astype(np.int64)


def _lists(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the values of lists end to end, and the length of each (R,)."""
    return _int64(column.flatten()), _int64(pc.list_value_length(column))


def _marked(size: int, places: Ints) -> Bools:
    """Return (size,) whether a number is one of ``places``."""
    marked = np.zeros(size, bool)
    marked[places] = True
    return marked


def hash_of(name: str) -> int:
    """Return 64 bits of ``name``."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


# Rows to a tally


class Expected(Settings):
    """How the examples were made, as far as it is known, and which deviations are tolerated."""

    max_seq_length: _Length = 512
    max_predictions: _Length | None = None
    """None: only the share limits them."""
    masked_lm_prob: _Share = 0.15
    max_ngram: int = Field(default=3, ge=1, le=MAX_RUN - 1)
    objective: Objective = "sop"
    fidelity: Literal["paper", "google", "unknown"] = "paper"
    """Whose rules they follow; for an unknown program no masks can be drawn to compare with."""
    vocab_size: int | None = Field(default=None, ge=1, le=MAX_VOCAB_SIZE)
    seed: int | None = None
    """Seed of this project's examples, from which their labels are known too."""
    max_unknown_share: _Share = 0.01

    @property
    def lowest_random(self) -> int:
        """Lowest id of a random piece; the reference draws from all pieces."""
        return 0 if self.fidelity == "google" else NUM_SPECIAL

    @property
    def prediction_limit(self) -> int:
        """Predictions that no row may exceed."""
        return self.max_predictions or self.max_seq_length

    @property
    def order_slack(self) -> float:
        """Tolerated difference between the two labels."""
        return GOOGLE_ORDER_SLACK if self.fidelity == "google" else ORDER_SLACK


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    found: str
    expected: str
    ok: bool | None
    """None: it could not be checked; ``found`` says why."""


@dataclass
class Tally:
    """Sums over rows, and hashes of them."""

    expected: Expected
    opens_word: Bools | None = None
    """(V,) which pieces begin a word, if the vocabulary is known; for rows that do not say so."""
    counts: Counter[str] = field(default_factory=Counter)
    """Violations of each strict rule, by check; and other counts."""
    sums: dict[str, Floats] = field(default_factory=dict)
    """Sums over the sound rows; empty if there are none."""
    hashes: defaultdict[str, list[UInt64s]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, values: ArrayLike) -> None:
        """Add ``values`` to the sums called ``name``."""
        self.sums[name] = np.asarray(values, np.float64) + self.sums.get(name, 0.0)


def measure(rows: Rows, tally: Tally) -> Rows:
    """Add what ``rows`` have to ``tally``; return the sound ones."""
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
    """Count violations of the format.

    Returns bool (R,): whether a row's positions lie inside it, so that it can be measured.
    """
    counts, expected, lengths = tally.counts, tally.expected, rows.lengths

    def rows_with(wrong: Bools) -> Bools:
        return np.bincount(rows.row_of_prediction[wrong], minlength=len(rows)) > 0

    wrong_size = (lengths > expected.max_seq_length) | (rows.orders > 1)
    wrong_size |= rows.num_predictions > expected.prediction_limit
    is_same_row = np.diff(rows.row_of_prediction, prepend=-1) == 0
    unsorted = is_same_row & (np.diff(rows.positions, prepend=-1) <= 0)
    misplaced = rows_with(rows.positions >= lengths[rows.row_of_prediction])
    misplaced |= rows.num_predictions > lengths
    # [CLS] a [SEP] b [SEP], with a piece in a and one in b.
    shaped = (rows.b_starts >= 3) & (rows.b_starts <= lengths - 2)
    size = expected.vocab_size or MAX_VOCAB_SIZE
    counts["size"] += int(wrong_size.sum())
    counts["positions"] += int((misplaced | rows_with(unsorted)).sum())
    counts["layout"] += int((~shaped).sum())
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
    counts["random pieces: special"] += int((became < NUM_SPECIAL).sum())
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
    mask = MASK_BY[expected.fidelity]
    masked = mask(pieces, rows.lengths, rows.b_starts, opens_word, seeds, *rules)
    where = np.repeat(rows.starts, masked.num_predictions) + masked.positions
    return _marked(len(pieces), where), masked.num_predictions


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
    segments = (start + 1, start + b_start - 2), (start + b_start, start + length - 2)
    edges = [np.stack(pair)[:, label == n] for pair, n in product(segments, (0, 1))]
    ends = [np.bincount(rows.unmasked[last], minlength=MAX_VOCAB_SIZE) for _, last in edges]
    tally.add("ends", ends)
    if opens is not None:
        tally.add("begins", [(opens[first].sum(), len(first)) for first, _ in edges])


def _measure_sets(rows: Rows, tally: Tally) -> None:
    if rows.documents is None:
        tally.hashes["rows"].append(rows.hashes)
        return
    # A text may say the same twice, in one document or in two: that is no fault of a writer.
    keys = rows.documents
    for name in ("copy", "first_sentence"):
        keys = random_bits(keys, rows.columns[name].to_numpy())
    tally.hashes["places"].append(keys)
    numbers = np.unique(rows.documents, return_counts=True)[1]
    neighbours = (rows.documents[1:] == rows.documents[:-1]).sum()
    tally.add("neighbours", [neighbours, (numbers * (numbers - 1)).sum() / len(rows)])


# A tally to findings


_RULES = {
    "size": (
        "rows",
        "rows beyond {0.max_seq_length} pieces, {0.prediction_limit} predictions or label 1",
    ),
    "vocabulary": ("pieces", "ids at or above {0.vocab_size}"),
    "layout": ("rows", "rows are not [CLS] a [SEP] b [SEP]"),
    "padding": ("rows", "rows with padding inside, or whose padding mask is wrong"),
    "segment ids": ("rows", "rows not 0 to [SEP] and 1 from b on"),
    "positions": ("rows", "rows with positions twice, unsorted or outside"),
    "special pieces": ("predictions", "predictions of or at special pieces"),
    "unpredicted masks": ("pieces", "[MASK] pieces without a prediction"),
    "mask share: excess": ("rows", "rows masked by more than they should be"),
    "random pieces: special": ("replaced", "random pieces are special"),
    "whole words": ("words", "words masked in part"),
}
"""Strict rules: check -> name of the count that is its total, and description of violations."""


def judge(tally: Tally) -> list[Finding]:
    """Return the findings of all checks of rows."""
    findings = [*_judge_rules(tally)]
    if tally.sums:
        findings += [*_judge_masks(tally), *_judge_order(tally), *_judge_sets(tally)]
    return findings


def none_of(check: str, number: int, total: int, what: str) -> Finding:
    """Return the finding of a strict rule."""
    return Finding(check, f"{number:,} of {total:,} {what}", "none", number == 0)


def drawn(
    check: str, number: float, total: float, share: float, *, or_more: bool = False
) -> Finding:
    """Return the finding of a share that is drawn, perhaps ``or_more``: a binomial test."""
    said = f"{number / max(1, total):.4f} of {total:,.0f}"
    probability = tails(number, total, share, 1.0 if or_more else share)
    return by_chance(check, said, f"{share:.4f}{' or more' * or_more}", probability)


def tails(number: float, total: float, low: float, high: float | None = None) -> float:
    """Return the two-sided probability of ``number`` or a less likely one, of ``total``.

    It is twice the smaller tail of a share from ``low`` to ``high``, or of ``low`` alone, and may
    exceed 1.
    """
    high = low if high is None else high
    return 2.0 * float(min(binom.cdf(number, total, low), binom.sf(number - 1, total, high)))


def by_chance(check: str, said: str, expected: str, probability: float) -> Finding:
    """Return the finding of a random draw, given the probability of such a deviation."""
    said = f"{said} (p = {min(1, probability):.2g})"
    return Finding(check, said, expected, bool(probability >= ALARM))


def _judge_rules(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    unknown = {}
    if expected.vocab_size is None:
        unknown["vocabulary"] = f"highest id {counts['highest id']}; no vocabulary given"
    if not counts["words"]:
        unknown["whole words"] = "where words begin is not known: give --vocab"
    for check, (total, what) in _RULES.items():
        if check in unknown:
            yield Finding(check, unknown[check], "", None)
        elif check == "random pieces: special" and not expected.lowest_random:
            # The reference draws from all pieces; [MASK], so drawn, looks like any other [MASK].
            share = (NUM_SPECIAL - 1) / _vocab_size(tally)
            yield drawn(check, counts[check], counts[total], share)
        else:
            yield none_of(check, counts[check], counts[total], what.format(expected))


def _vocab_size(tally: Tally) -> int:
    """Return the size of the vocabulary, or a lower bound of it."""
    return tally.expected.vocab_size or tally.counts["highest id"] + 1


def _judge_masks(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    # A text lacks a character throughout: the rows vary, not the pieces.
    rows = int(tally.sums["unknown"])
    said = f"{counts['unknown'] / max(1, counts['pieces']):.4%} of {counts['pieces']:,} pieces"
    most = expected.max_unknown_share
    p_value = tails(rows, counts["rows"], 0, most)
    yield by_chance("unknown pieces", said, f"at most {most:.1%}", p_value)
    size = _vocab_size(tally)
    replaced = counts["replaced"]
    kept = counts["predictions"] - counts["masks"] - replaced
    same = RANDOM_SHARE / max(1, size - NUM_SPECIAL)
    for name, number, share in (
        ("masks", counts["masks"], MASK_SHARE),
        ("kept", kept, 1 - MASK_SHARE - RANDOM_SHARE + same),
        ("replaced", replaced, RANDOM_SHARE - same),
    ):
        yield drawn(f"80/10/10: {name}", number, counts["predictions"], share)
    check = "random pieces: evenly drawn"
    places = tally.sums["replacements"]
    number = int(places.sum())
    if expected.vocab_size is None or not number:
        yield Finding(check, "no vocabulary given, or nothing to count", "", None)
    else:
        # Each is drawn from the pieces from the lowest on but the one that it replaces, and [MASK].
        num_others = size - 1 - (expected.lowest_random or 1)
        even = np.minimum(np.arange(1, len(places) + 1) / num_others, 1)
        distance = float(np.abs(np.cumsum(places) / number - even).max())
        said = f"distance {distance:.4f} of {number:,} from even (Kolmogorov and Smirnov)"
        yield by_chance(check, said, "even", kstwo.sf(distance, number))
    if "runs" in tally.sums:
        yield from _judge_words(tally)
    elif counts["words"]:
        for check in ("mask share: predictions", "n-grams"):
            yield Finding(check, "whose rules they follow is not known: give --fidelity", "", None)


def _judge_words(tally: Tally) -> Iterator[Finding]:
    """Compare the masks with those that the rules draw in the same rows."""
    rows, fewer, more = tally.sums["predictions"].astype(int).tolist()
    said = f"{fewer:,} of {rows:,} rows have fewer than the rules draw there, {more:,} more"
    p_value = binomtest(fewer, fewer + more).pvalue if fewer + more else 1.0
    yield by_chance("mask share: predictions", said, "none, or as many with more", p_value)
    runs = tally.sums["runs"][:, 1:].astype(int)
    longest = tally.expected.max_ngram
    totals = runs.sum(axis=1)
    for length in range(1, longest + 2):
        numbers = runs[:, length - 1 : length if length <= longest else None].sum(axis=1)
        p_value = fisher_exact(np.column_stack([numbers, totals - numbers])).pvalue
        found, wanted = numbers / np.maximum(1, totals)
        check = f"n-grams: runs of {length}{' or more' * (length > longest)} words"
        said = f"{found:.4f} of {totals[0]:,}"
        yield by_chance(check, said, f"{wanted:.4f}, as drawn there", p_value)


def _judge_order(tally: Tally) -> Iterator[Finding]:
    sums, expected = tally.sums, tally.expected
    swapped, rows = sums["swapped"].tolist()
    share = 0.0 if expected.objective == "none" else 0.5
    # Where a document has one sentence left, the reference borrows without a draw.
    or_more = expected.fidelity == "google" and expected.objective == "nsp"
    yield drawn("label balance", swapped, rows, share, or_more=or_more)
    check, slack = "order tell-tale: {}", expected.order_slack
    is_borrowed = expected.objective == "nsp"
    # The reference's borrowed text is as long as it may be; the rest of a document is shorter.
    if not is_borrowed or expected.fidelity == "paper":
        of_length = slack if is_borrowed else 0.0
        yield _tell_tale("label balance: by length", "the length", sums["lengths"], of_length)
        if expected.objective != "none":
            yield _tell_tale(check.format("lengths"), "a minus b", sums["differences"], slack)
    yield _judge_same_document(tally)
    if expected.objective != "sop":
        return
    commonest = sums["ends"][:, sums["ends"].sum(axis=0).argmax()]
    edges = {"ends": np.stack([commonest, sums["ends"].sum(axis=1)], axis=1)}
    if "begins" in sums:
        edges["begins"] = sums["begins"]
    for name, counted in edges.items():
        yield _alike(check.format(f"{name} of segments"), counted, slack)


def _judge_same_document(tally: Tally) -> Finding:
    counts, expected = tally.counts, tally.expected
    others, total = counts["other document"], counts["rows"]
    wrong, what = others, "rows with segment b from another document"
    if expected.objective == "nsp":
        wrong = counts["other document, label 0"] + counts["own document, label 1"]
        wrong += counts["other document is the same"]
        what = "rows whose label and documents contradict each other"
    elif expected.fidelity == "google":
        wrong, total = counts["other document, label 0"] * (expected.objective == "sop"), others
        what = "rows with b from elsewhere labelled as in order"
    return none_of("same document", wrong, total, what)


def _tell_tale(check: str, what: str, of_labels: Floats, slack: float) -> Finding:
    """Compare the distributions (2, N) of the two labels (Kolmogorov and Smirnov).

    Source: Wei and Dudley 2012, "Two-sample Dvoretzky-Kiefer-Wolfowitz inequalities".
    """
    totals = of_labels.sum(axis=1)
    if not totals.all():
        return Finding(check, "one label only", "", None)
    distance = np.abs(np.diff(np.cumsum(of_labels, axis=1) / totals[:, None], axis=0)).max()
    excess = max(0.0, distance - slack)
    probability = np.e * np.exp(-2 * totals.prod() / totals.sum() * excess**2)
    said = f"{what} tells the label of {0.5 + distance / 2:.1%}: distance {distance:.4f}"
    return by_chance(check, said, f"at most {slack} beyond chance", probability)


def _alike(check: str, counted: Floats, slack: float) -> Finding:
    """Return whether four shares, (4, 2) numbers and totals, are draws of one share."""
    if not counted[:, 1].all():
        return Finding(check, "one label only", "", None)
    intervals = [
        binomtest(number, total).proportion_ci(1 - ALARM / len(counted))
        for number, total in counted.astype(int).tolist()
    ]
    apart = max(each.low for each in intervals) - min(each.high for each in intervals)
    shares = ", ".join(f"{share:.3f}" for share in counted[:, 0] / counted[:, 1])
    said = f"whole in a0, a1, b0, b1: {shares}"
    return Finding(check, said, f"at most {slack} apart beyond chance", bool(apart <= slack))


def _judge_sets(tally: Tally) -> Iterator[Finding]:
    check = "repeated rows"
    for name, parts in tally.hashes.items():
        hashes = np.concatenate(parts)
        repeated = len(hashes) - len(np.unique(hashes))
        if name == "rows":
            said = f"{repeated:,} of {len(hashes):,} rows"
            p_value = tails(repeated, len(hashes), 0, MAX_REPEATED_SHARE)
            yield by_chance(check, said, f"at most {MAX_REPEATED_SHARE:.1%}", p_value)
        else:
            what = "rows with the document, copy and first sentence of another"
            yield none_of(check, repeated, len(hashes), what)
    if "neighbours" not in tally.sums:
        yield Finding("shuffle", "documents are not known", "", None)
        return
    number, chance = tally.sums["neighbours"].tolist()
    said = f"{number:,.0f} neighbours from the same document"
    yield by_chance("shuffle", said, f"{chance:,.1f} by chance", poisson.sf(number - 1, chance))


# A row beside its text


def fault_of(
    row: dict[str, Any], texts: dict[str, str], encode: Encode, expected: Expected
) -> str | None:
    """Return what is wrong with where a row says that its segments come from, or None.

    Args:
        row: by the columns of EXAMPLE_SCHEMA; and `OTHER_DOCUMENT_FIELDS`, if there are any.
        texts: document -> its sentences, one a line; at least those of the row.
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
        is_right = label == (expected.objective != "none")
        return None if is_right else f"has segment b from elsewhere and label {label}"
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
    """Yield the label that the row's seed draws, or both labels where it is not known.

    It depends on the number of the first sentence, which is its line unless a line before it has
    no piece.
    """
    rules = expected.fidelity, expected.objective
    if expected.seed is None or "copy" not in row or rules != ("paper", "sop"):
        yield from (0, 1)
        return
    key = random_bits(derive_seed(expected.seed, "examples", row["document_id"]), row["copy"])
    line = row["first_sentence"]
    yield int(random_uniform(random_bits(key, line), LABEL)[0] < 0.5)
    number = sum(map(bool, encode(text.split("\n")[:line])))
    yield int(random_uniform(random_bits(key, number), LABEL)[0] < 0.5)


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
