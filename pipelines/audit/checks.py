"""Pure: what examples must look like, as counts over shards and bounds on them.

`measure` adds the counts of some rows to a `Tally`; `judge` compares a tally with its bounds. A
share may differ by `z` standard errors from what the rules of masking and of segment pairs lead one
to expect, so that the bounds are tight for many examples and wide for few.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from albert_core.stage.settings import Settings
from albert_core.text.masking import MASK_SHARE, RANDOM_SHARE, mask_examples
from albert_core.text.records import (
    CLS,
    MASK,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL,
    PAD,
    SEP,
    UNK,
    Ints,
)
from albert_core.text.seeds import UInt64s, random_bits
from pipelines.audit.rows import Bools, Rows

NUM_BUCKETS = 5
"""Buckets of lengths: up to a quarter, half, three quarters of the longest, less than the longest,
and the longest."""
MAX_RUN = 12
"""Runs of masked words are counted up to this length."""
MAX_LENGTH = 1 << 16
"""Pieces of the longest row that is looked at: positions are stored as uint16."""
Floats = NDArray[np.float64]
_Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Multiple = Annotated[float, Field(ge=0, le=1e9)]


class Expected(Settings):
    """How the examples were made, as far as it is known, and which deviations are tolerated."""

    max_seq_length: _Length = 512
    max_predictions: _Length | None = None
    """None: no other limit than the share."""
    masked_lm_prob: _Share = 0.15
    max_ngram: int = Field(default=3, ge=1, le=MAX_RUN - 1)
    objective: Literal["sop", "nsp", "none"] = "sop"
    fidelity: Literal["paper", "google", "unknown"] = "paper"
    """Whose rules they follow; unknown: those of some other program."""
    vocab_size: int | None = Field(default=None, ge=1, le=MAX_VOCAB_SIZE)
    z: _Multiple = 4.5
    """Standard errors that a share may differ by; chance exceeds 4.5 once in 150,000 times."""
    min_budget_used: _Multiple = 0.9
    max_unknown_share: _Share = 0.01
    max_repeated_share: _Share = 0.005
    """Limit for rows equal to another row, and for pairs equal to another pair of the same copy."""
    run_tolerance: _Share | None = None
    """Tolerance for the share of runs of a length; None: 0.01 for our masks, 0.08 for others."""

    @property
    def prediction_limit(self) -> int:
        """Predictions that no row may exceed."""
        return self.max_predictions or self.max_seq_length

    @property
    def run_slack(self) -> float:
        """The tolerance for shares of runs, beyond chance.

        The reference takes spans that may lie anywhere but on each other; ours tile the words,
        so that more of them come to lie side by side. Unigrams only would be 0.3 away.
        """
        if self.run_tolerance is not None:
            return self.run_tolerance
        return 0.01 if self.fidelity == "paper" else 0.08

    @property
    def order_slack(self) -> float:
        """The tolerance for differences between the two labels, beyond chance.

        The last sentence of a chunk is one that fitted, so a little shorter than others, and of
        headings and lists more come last in a document: 0.02 in English Wikipedia. The reference
        cuts the sentence that overshoots, from the later segment more often: 0.05.
        """
        return 0.1 if self.fidelity == "google" else 0.03


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

    counts: Counter[str] = field(default_factory=Counter)
    """How often each rule without exceptions is broken, by check; and other counts."""
    arrays: dict[str, Floats] = field(default_factory=dict)
    hashes: dict[str, list[UInt64s]] = field(default_factory=dict)
    wrong_columns: dict[str, None] = field(default_factory=dict)
    """Deviations from the schema, in words, each once."""

    def add(self, name: str, values: ArrayLike) -> None:
        """Add ``values`` to the sums called ``name``."""
        self.arrays[name] = np.asarray(values, np.float64) + self.arrays.get(name, 0.0)

    def sums(self, name: str, *shape: int) -> Floats:
        """Return the sums called ``name``, zeros of ``shape`` where there are none."""
        return self.arrays.get(name, np.zeros(shape))

    def keep(self, name: str, values: UInt64s) -> None:
        """Keep hashes."""
        self.hashes.setdefault(name, []).append(values)


def measure(rows: Rows, expected: Expected, tally: Tally, opens_word: Bools | None = None) -> Rows:
    """Add what ``rows`` have to ``tally``; return those that could be looked at.

    Args:
        rows: some examples.
        expected: what they should be like.
        tally: is added to.
        opens_word: bool (V,), which pieces begin a word, if the vocabulary is known; for rows that
            do not say so themselves.
    """
    counts = tally.counts
    counts["rows"] += len(rows) + rows.left_out
    counts.update(rows.faults)
    tally.wrong_columns.update(dict.fromkeys(rows.wrong_columns))
    rows = rows.only(_measure_format(rows, expected, tally))
    if not len(rows):
        return rows
    if rows.opens is None and opens_word is not None:
        known = np.minimum(rows.unmasked, len(opens_word) - 1)
        rows = replace(rows, opens=opens_word[known])
    _measure_pieces(rows, tally)
    _measure_masks(rows, expected, tally)
    _measure_words(rows, expected, tally)
    _measure_order(rows, expected, tally)
    _measure_sets(rows, tally)
    return rows


def _measure_format(rows: Rows, expected: Expected, tally: Tally) -> Bools:
    """Count what breaks a rule of the format.

    Returns bool (R,): whether a row's numbers lie inside it and its ids are some vocabulary's, so
    that it can be looked at.
    """
    counts, lengths = tally.counts, rows.lengths

    def rows_with(wrong: Bools, row_of: Ints) -> Bools:
        return np.bincount(row_of[wrong], minlength=len(rows)) > 0

    wrong = (lengths > expected.max_seq_length) | (rows.num_predictions > expected.prediction_limit)
    wrong |= (rows.orders < 0) | (rows.orders > 1)
    counts["schema"] += int(wrong.sum())

    of_prediction = rows.row_of_prediction
    unsorted = np.zeros(len(rows.positions), bool)
    unsorted[1:] = (np.diff(of_prediction) == 0) & (rows.positions[1:] <= rows.positions[:-1])
    outside = (rows.positions < 0) | (rows.positions >= lengths[of_prediction])
    misplaced = rows_with(outside, of_prediction) | (rows.num_predictions > lengths)
    counts["positions"] += int((misplaced | rows_with(unsorted, of_prediction)).sum())

    # [CLS] a [SEP] b [SEP], with a piece in a and one in b.
    shaped = (rows.b_starts >= 3) & (rows.b_starts <= lengths - 2) & (lengths <= MAX_LENGTH)
    counts["layout"] += int((~shaped).sum())

    strange = np.zeros(len(rows), bool)
    for values, row_of in ((rows.ids, rows.row_of), (rows.labels, of_prediction)):
        above = values >= (expected.vocab_size or MAX_VOCAB_SIZE)
        counts["vocabulary"] += int((above | (values < 0)).sum())
        strange |= rows_with((values >= MAX_VOCAB_SIZE) | (values < 0), row_of)
    return shaped & ~misplaced & ~strange


def _measure_pieces(rows: Rows, tally: Tally) -> None:
    counts = tally.counts
    pieces = rows.unmasked
    counts["pieces"] += len(pieces)
    counts["unknown"] += int((pieces == UNK).sum())
    counts["highest id"] = max(counts["highest id"], int(rows.ids.max()), int(pieces.max()))
    counts["padding"] += int((pieces == PAD).sum())
    right = np.where(rows.at == 0, CLS, SEP)
    # A masked [CLS] or [SEP] is another check's finding.
    wrong = rows.special & (rows.ids != right) & ~rows.chosen
    wrong |= ~rows.special & ~rows.chosen & ((rows.ids == CLS) | (rows.ids == SEP))
    counts["layout"] += len(np.unique(rows.row_of[wrong]))
    counts["unpredicted masks"] += int(((rows.ids == MASK) & ~rows.chosen).sum())


def bucket_of(lengths: Ints, max_seq_length: int) -> Ints:
    """Return the bucket of each length, 0..NUM_BUCKETS-1."""
    bounds = [max_seq_length * quarter / 4 for quarter in (1, 2, 3, 4)]
    return np.searchsorted(bounds, lengths, side="right")


def _measure_masks(rows: Rows, expected: Expected, tally: Tally) -> None:
    counts, lengths, number = tally.counts, rows.lengths, rows.num_predictions
    budgets = np.maximum(1, np.rint(expected.masked_lm_prob * lengths))
    budgets = np.minimum(budgets, expected.prediction_limit)
    bucket = bucket_of(lengths, expected.max_seq_length)
    of_buckets = [np.bincount(bucket, each, NUM_BUCKETS) for each in (lengths, number, budgets)]
    tally.add("mask buckets", of_buckets)
    counts["rows below half the budget"] += int((number / budgets < 0.5).sum())
    counts["mask share: excess"] += int((number > budgets).sum())
    became, labels = rows.ids[rows.where], rows.labels
    forbidden = np.isin(labels, [PAD, CLS, SEP, MASK]) | rows.special[rows.where]
    counts["special pieces"] += int(forbidden.sum())
    is_mask, same = became == MASK, became == labels
    other = ~is_mask & ~same
    counts["predictions"] += len(labels)
    counts["masks"] += int(is_mask.sum())
    counts["kept"] += int((same & ~is_mask).sum())
    counts["replaced"] += int(other.sum())
    counts["special replacements"] += int((became[other] < NUM_SPECIAL).sum())
    counts["sum of replacements"] += int(became[other].sum())
    counts["sum of replaced"] += int(labels[other].sum())


def _measure_words(rows: Rows, expected: Expected, tally: Tally) -> None:
    if rows.opens is None:
        return
    chosen, opens, special = rows.chosen, rows.opens, rows.special
    goes_on = ~opens[1:] & ~special[1:] & ~special[:-1]
    tally.counts["words"] += int((opens & ~special).sum())
    tally.counts["whole words"] += int((goes_on & (chosen[1:] != chosen[:-1])).sum())
    ours = _our_masks(rows, opens, expected.max_ngram)
    tally.add("runs", [_word_runs(opens, special, masked) for masked in (chosen, ours)])


def _our_masks(rows: Rows, opens: Bools, max_ngram: int) -> Bools:
    """Return bool (T,): what `masking` chooses in these rows, as many pieces in each as here."""
    # Two pieces are enough of a vocabulary: one opens words and one does not.
    opens_word = np.arange(NUM_SPECIAL + 2) > NUM_SPECIAL
    masked = mask_examples(
        NUM_SPECIAL + opens.astype(np.int64),
        rows.lengths,
        rows.b_starts,
        opens_word,
        random_bits(rows.hashes, 0),
        0.999,
        max_ngram,
        np.maximum(1, rows.num_predictions),
    )
    chosen = np.zeros(len(rows.ids), bool)
    chosen[np.repeat(rows.starts, masked.num_predictions) + masked.positions] = True
    return chosen


def _word_runs(opens: Bools, special: Bools, chosen: Bools) -> Ints:
    """Return (MAX_RUN + 1,) how many runs of 0, 1, 2, ... chosen words there are."""
    begins_word = opens | special
    begins_word[1:] |= special[:-1]
    first = np.flatnonzero(begins_word)
    is_chosen = np.pad((chosen & ~special)[first], 1)
    begins = np.flatnonzero(is_chosen[1:] & ~is_chosen[:-1])
    ends = np.flatnonzero(~is_chosen[1:] & is_chosen[:-1])
    return np.bincount(np.minimum(ends - begins, MAX_RUN), minlength=MAX_RUN + 1)


def _measure_order(rows: Rows, expected: Expected, tally: Tally) -> None:
    counts = tally.counts
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
    bucket = bucket_of(length, expected.max_seq_length)
    of_buckets = [np.bincount(bucket, each, NUM_BUCKETS) for each in (np.ones_like(label), label)]
    tally.add("order buckets", of_buckets)
    width = expected.max_seq_length
    difference = np.clip((b_start - 2) - (length - b_start - 1), -width, width) + width
    for value in (0, 1):
        of_label = np.bincount(difference[label == value], minlength=2 * width + 1)
        tally.add(f"lengths {value}", of_label)
    _measure_edges(rows, label, drawn, tally)


def _measure_edges(rows: Rows, label: Ints, drawn: Bools, tally: Tally) -> None:
    """Count which pieces the segments begin and end with, by segment and label.

    The piece most frequent at the ends, a full stop in most corpora, tells whole sentences from
    cut ones; so do words that are begun in their middle.
    """
    starts, b_starts = rows.starts[drawn], (rows.starts + rows.b_starts)[drawn]
    ends = starts + rows.lengths[drawn]
    for segment, first, last in (("a", starts + 1, b_starts - 2), ("b", b_starts, ends - 2)):
        for value in (0, 1):
            of_label, name = label == value, f"{segment}{value}"
            tally.add(f"ends {name}", np.bincount(rows.unmasked[last[of_label]], minlength=1 << 16))
            if rows.opens is not None:
                whole = rows.opens[first[of_label]]
                tally.add(f"begins {name}", [whole.sum(), len(whole)])


def _measure_sets(rows: Rows, tally: Tally) -> None:
    tally.keep("rows", rows.hashes)
    if rows.copies is not None:
        tally.keep("pairs", rows.pair_hashes + random_bits(rows.copies.astype(np.uint64), 3 << 40))
    if rows.documents is not None:
        numbers = np.unique(rows.documents, return_counts=True)[1]
        neighbours = (rows.documents[1:] == rows.documents[:-1]).sum()
        tally.add("neighbours", [neighbours, (numbers * (numbers - 1)).sum() / len(rows)])


Judge = Callable[[Tally, Expected], Iterator[Finding]]


def judge(tally: Tally, expected: Expected) -> list[Finding]:
    """Return the findings of all checks of rows."""
    return [finding for check in _JUDGES for finding in check(tally, expected)]


_RULES = {
    "values": ("rows", "rows that lack a value, or with values that contradict each other"),
    "layout": ("rows", "rows are not [CLS] a [SEP] b [SEP]"),
    "padding": ("rows", "rows with padding inside, or marks of it that differ"),
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


def at_most(check: str, said: str, value: float, most: float, form: str) -> Finding:
    """Return the finding of a number that has an upper bound."""
    return Finding(check, said, f"at most {most:{form}}", bool(value <= most))


def between(
    check: str, said: str, values: ArrayLike, low: float, high: float, form: str
) -> Finding:
    """Return the finding of one or several numbers that have bounds."""
    lowest, highest = np.min(values), np.max(values)
    ok = bool(low <= lowest and highest <= high)
    return Finding(check, said, f"{low:{form}} to {high:{form}}", ok)


def share_in(
    check: str, number: float, total: float, share: float, expected: Expected, slack: float = 0.0
) -> Finding:
    """Return the finding of a share that is drawn: within z standard errors of ``share``."""
    if not total:
        return Finding(check, "nothing to count", f"{share:.4f}", None)
    room = expected.z * np.sqrt(share * (1 - share) / total) + 1 / total + slack
    low, high, found = max(0, share - room), min(1, share + room), number / total
    return between(check, f"{found:.4f} of {total:,.0f}", found, low, high, ".4f")


def _judge_format(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts, rows = tally.counts, tally.counts["rows"]
    what = (
        f"rows of wrong types, beyond {expected.max_seq_length} pieces or "
        f"{expected.max_predictions or 'any'} predictions, or with another label than 0 and 1"
    )
    yield none_of("schema", counts["schema"], rows, "; ".join([what, *tally.wrong_columns]))
    if expected.vocab_size is None and not counts["vocabulary"]:
        found = f"highest id {counts['highest id']}; no vocabulary given"
        yield Finding("vocabulary", found, "below its size", None)
    else:
        what = f"ids below 0, or at or above {expected.vocab_size or MAX_VOCAB_SIZE}"
        yield none_of("vocabulary", counts["vocabulary"], counts["pieces"], what)
    for check, (total, what) in _RULES.items():
        yield none_of(check, counts[check], counts[total], what)
    share = counts["unknown"] / max(1, counts["pieces"])
    said = f"{share:.4%} of {counts['pieces']:,} pieces"
    yield at_most("unknown pieces", said, share, expected.max_unknown_share, ".1%")


def _judge_masks(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    size = expected.vocab_size or counts["highest id"] + 1
    by_chance = RANDOM_SHARE / max(1, size - NUM_SPECIAL)
    for name, share in (
        ("masks", MASK_SHARE),
        ("kept", 1 - MASK_SHARE - RANDOM_SHARE + by_chance),
        ("replaced", RANDOM_SHARE - by_chance),
    ):
        check = f"80/10/10: {name}"
        yield share_in(check, counts[name], counts["predictions"], share, expected)
    number, special = counts["replaced"], counts["special replacements"]
    # The reference draws from all pieces; [MASK], so drawn, looks like any other [MASK].
    low = 0 if expected.fidelity == "google" else NUM_SPECIAL
    check = "random pieces: special"
    if expected.fidelity == "google":
        yield share_in(check, special, number, (NUM_SPECIAL - 1) / size, expected)
    else:
        yield none_of(check, special, number, "random pieces are special")
    check = "random pieces: evenly drawn"
    # Each is drawn from all ordinary pieces but the one that it replaces.
    if expected.vocab_size is None or number < 30 or size - low < 2:
        yield Finding(check, "no vocabulary given, or too few", "", None)
        return
    total = (low + size - 1) * (size - low) / 2
    mean = (total - counts["sum of replaced"] / number) / (size - low - 1)
    room = expected.z * (size - low) / np.sqrt(12 * number)
    found = counts["sum of replacements"] / number
    yield between(check, f"mean id {found:.0f}", found, mean - room, mean + room, ".0f")


def _judge_shares(tally: Tally, expected: Expected) -> Iterator[Finding]:
    sums = tally.sums("mask buckets", 3, NUM_BUCKETS)
    for name, (pieces, made, budget) in zip(_bucket_names(expected), sums.T.tolist(), strict=True):
        if pieces:
            most, found = budget / pieces, made / pieces
            low, said = most * expected.min_budget_used, f"{found:.4f} of {pieces:,.0f} pieces"
            yield between(f"mask share: {name}", said, found, low, most, ".4f")
    _, made, budget = sums.sum(axis=1).tolist()
    check, used = "mask share: budget used", made / max(1.0, budget)
    finding = between(check, f"{used:.4f}", used, expected.min_budget_used, 1, ".4f")
    yield finding if budget else replace(finding, ok=None)
    few, rows = tally.counts["rows below half the budget"], tally.counts["rows"]
    # A row of long words may find no word that fits.
    said = f"{few:,} of {rows:,} rows masked by less than half of what they should be"
    yield at_most("mask share: rows", said, few / max(1, rows), 0.01, ".0%")


def _bucket_names(expected: Expected) -> list[str]:
    longest = expected.max_seq_length
    bounds = [0, *(-(-longest * quarter // 4) for quarter in (1, 2, 3)), longest]
    return [f"{low} to {high - 1}" for low, high in pairwise(bounds)] + [f"{longest}"]


def _judge_words(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    if "runs" not in tally.arrays:
        yield Finding("whole words", "where words begin is not known: give --vocab", "", None)
        return
    yield none_of("whole words", counts["whole words"], counts["words"], "words masked in part")
    runs, ours = tally.arrays["runs"][:, 1:]
    if not ours.sum():
        return
    for length in range(1, expected.max_ngram + 2):
        beyond = length > expected.max_ngram
        lengths = slice(length - 1, None if beyond else length)
        share = ours[lengths].sum() / ours.sum()
        # The wanted share is drawn, too.
        room = expected.z * np.sqrt(share * (1 - share) / ours.sum())
        name = f"n-grams: runs of {length}{' or more' if beyond else ''} words"
        slack = expected.run_slack + room
        yield share_in(name, runs[lengths].sum(), runs.sum(), share, expected, slack)


def _judge_order(tally: Tally, expected: Expected) -> Iterator[Finding]:
    sums = tally.sums("order buckets", 2, NUM_BUCKETS)
    share = 0.0 if expected.objective == "none" else 0.5
    rows, swapped = sums.sum(axis=1).tolist()
    yield share_in("label balance: all", swapped, rows, share, expected)
    # A text borrowed from elsewhere is as long as it may be; the rest of a document is shorter.
    if expected.objective != "nsp":
        for name, (rows, swapped) in zip(_bucket_names(expected), sums.T.tolist(), strict=True):
            if rows:
                yield share_in(f"label balance: {name}", swapped, rows, share, expected)
    yield _judge_same_document(tally.counts, expected)
    if expected.objective == "sop":
        yield _judge_lengths(tally, expected)
        yield from _judge_edges(tally, expected)


def _judge_same_document(counts: Counter[str], expected: Expected) -> Finding:
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


def _judge_lengths(tally: Tally, expected: Expected) -> Finding:
    """Compare the distributions of len(a) - len(b) between labels (Kolmogorov and Smirnov)."""
    check = "order tell-tale: lengths"
    zero, one = (tally.sums(f"lengths {label}", 1) for label in (0, 1))
    if not zero.sum() or not one.sum():
        return Finding(check, "one label only", "", None)
    distance = np.abs(np.cumsum(zero) / zero.sum() - np.cumsum(one) / one.sum()).max()
    # 2 exp(-2 c^2) = 1e-5 at c = 2.47.
    room = 2.47 * np.sqrt(1 / zero.sum() + 1 / one.sum()) + expected.order_slack
    said = f"a minus b differs by {distance:.4f} between labels"
    return at_most(check, said, distance, room, ".4f")


def _judge_edges(tally: Tally, expected: Expected) -> Iterator[Finding]:
    names = ("a0", "a1", "b0", "b1")
    ends = np.stack([tally.sums(f"ends {name}", 1 << 16) for name in names])
    commonest = int(ends.sum(axis=0).argmax())
    check = "order tell-tale: ends of segments"
    yield _alike(check, ends[:, commonest], ends.sum(axis=1), expected)
    begins = np.stack([tally.sums(f"begins {name}", 2) for name in names])
    if begins.any():
        yield _alike("order tell-tale: begins of segments", begins[:, 0], begins[:, 1], expected)


def _alike(check: str, numbers: Floats, totals: Floats, expected: Expected) -> Finding:
    """Return whether four shares are draws of the same one."""
    if not totals.all():
        return Finding(check, "one label only", "", None)
    share, shares = numbers.sum() / totals.sum(), numbers / totals
    chance = expected.z * np.sqrt(share * (1 - share) / totals.min())
    room = chance + expected.order_slack
    said = "whole in a0, a1, b0, b1: " + ", ".join(f"{value:.3f}" for value in shares)
    return between(check, said, shares, max(0, share - room), min(1, share + room), ".3f")


def _judge_sets(tally: Tally, expected: Expected) -> Iterator[Finding]:
    for name, what in (("rows", "rows"), ("pairs", "pairs of the same copy")):
        if name not in tally.hashes:
            yield Finding(f"repeated {name}", "copies are not known", "", None)
            continue
        hashes = np.concatenate(tally.hashes[name])
        repeated = len(hashes) - len(np.unique(hashes))
        said, share = f"{repeated:,} of {len(hashes):,} {what}", repeated / len(hashes)
        yield at_most(f"repeated {name}", said, share, expected.max_repeated_share, ".1%")
    if "neighbours" not in tally.arrays:
        yield Finding("shuffle", "documents are not known", "", None)
        return
    number, chance = tally.arrays["neighbours"].tolist()
    most = chance + expected.z * np.sqrt(chance) + 3
    said = f"{number:,.0f} neighbours from the same document"
    yield at_most("shuffle", said, number, most, ".0f")


_JUDGES: tuple[Judge, ...] = (
    _judge_format,
    _judge_shares,
    _judge_masks,
    _judge_words,
    _judge_order,
    _judge_sets,
)

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Claim:
    """Where one row says that its segments come from."""

    a: Ints
    """(n,) pieces of segment a before masking."""
    b: Ints
    label: int
    document: str
    sentences: tuple[int, int]
    """First and last sentence, inclusive, by their lines in the document."""
    other: str | None = None
    """The document of segment b, where it is another one."""
    other_sentences: tuple[int, int] = (0, 0)


def fault_of(
    claim: Claim, texts: dict[str, str], encode: Encode, max_num_pieces: int, whole: bool
) -> str | None:
    """Return what is wrong with ``claim``, or None.

    Args:
        claim: one row's.
        texts: document -> its sentences, one a line; those of the claim at least.
        encode: sentences to pieces.
        max_num_pieces: of both segments of the longest example.
        whole: whether only examples of that length may have cut sentences.
    """
    if not {claim.document, claim.other} - {None} <= texts.keys():
        return "names no document of the corpus"
    of_a = of_b = _pieces(texts[claim.document], claim.sentences, encode)
    if claim.other is not None:
        of_b = _pieces(texts[claim.other], claim.other_sentences, encode)
    if not of_a or not of_b:
        return "names sentences that its document does not have"
    at_a, at_b = places(np.concatenate(of_a), claim.a), places(np.concatenate(of_b), claim.b)
    if not at_a or not at_b:
        return "is not in the sentences it names"
    if claim.other is not None:
        return None if claim.label == 1 else "has segment b from elsewhere and label 0"
    first, second = (at_a, at_b) if claim.label == 0 else (at_b, at_a)
    size = len(claim.a if claim.label == 0 else claim.b)
    if first[0] + size > second[-1]:
        return "is not in the order of its label"
    num_pieces = len(claim.a) + len(claim.b)
    bounds = np.cumsum([len(sentence) for sentence in of_a])
    is_cut = num_pieces != bounds[-1] or size not in bounds
    if whole and is_cut and num_pieces < max_num_pieces:
        return "cuts a sentence though there is room"
    return None


def _pieces(text: str, sentences: tuple[int, int], encode: Encode) -> list[Ints]:
    """Return the pieces of each of the ``sentences``; none unless all of them are in ``text``."""
    lines, (first, last) = text.split("\n"), sentences
    if not 0 <= first <= last < len(lines):
        return []
    return [np.array(ids, np.int64) for ids in encode(lines[first : last + 1])]


def places(text: Ints, part: Ints) -> list[int]:
    """Return where ``part`` stands in ``text``, ascending.

    >>> places(np.array([7, 8, 7, 8, 9]), np.array([7, 8]))
    [0, 2]
    """
    if not len(part):
        return list(range(len(text) + 1))
    candidates = np.flatnonzero(text[: max(0, len(text) - len(part) + 1)] == part[0])
    return [
        begin for begin in candidates.tolist() if (text[begin : begin + len(part)] == part).all()
    ]
