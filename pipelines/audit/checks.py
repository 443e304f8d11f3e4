"""Pure: what examples must look like, as counts over shards and bounds on them.

`measure` adds the counts of some rows to a `Tally`; `judge` compares a tally with its bounds. A
share may differ by `z` standard errors from what the rules of masking and of segment pairs lead one
to expect, so that the bounds are tight for many examples and wide for few.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from albert_core.stage.results import Objective
from albert_core.stage.settings import Settings
from albert_core.text.masking import MASK_SHARE, RANDOM_SHARE, mask_examples
from albert_core.text.records import (
    CLS,
    MASK,
    MAX_VOCAB_SIZE,
    NUM_SPECIAL,
    NUM_SPECIAL_IN_PAIR,
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
    objective: Objective = "sop"
    fidelity: Literal["paper", "google", "unknown"] = "paper"
    """Whose rules they follow; unknown: those of some other program."""
    vocab_size: int | None = Field(default=None, ge=1, le=MAX_VOCAB_SIZE)
    z: _Multiple = 4.5
    """Standard errors that a share may differ by; chance exceeds 4.5 once in 150,000 times."""
    min_budget_used: _Multiple = 0.9
    max_unknown_share: _Share = 0.01
    max_repeated_share: _Share = 0.005
    """Limit for rows equal to another row, and for pairs that the same sentences give twice in the
    same copy."""
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

        A text's sentence lengths have a trend of their own: up to 0.03 in English novels. The
        reference cuts the sentence that overshoots, from the later segment more often: 0.05.
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

    expected: Expected
    """What the rows should be like."""
    opens_word: Bools | None = None
    """(V,) which pieces begin a word, if the vocabulary is known; for rows that do not say so."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each rule without exceptions is broken, by check; and other counts."""
    sums: dict[str, Floats] = field(default_factory=dict)
    hashes: defaultdict[str, list[UInt64s]] = field(default_factory=lambda: defaultdict(list))
    wrong_columns: dict[str, None] = field(default_factory=dict)
    """Deviations from the schema, in words, each once."""

    def add(self, name: str, values: ArrayLike) -> None:
        """Add ``values`` to the sums called ``name``."""
        self.sums[name] = np.asarray(values, np.float64) + self.sums.get(name, 0.0)


def measure(rows: Rows, tally: Tally) -> Rows:
    """Add what ``rows`` have to ``tally``; return those that could be looked at."""
    tally.counts.update({"rows": len(rows) + rows.faults["values"], **rows.faults})
    tally.wrong_columns |= dict.fromkeys(rows.wrong_columns)
    rows = rows.only(_measure_format(rows, tally))
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


def _measure_format(rows: Rows, tally: Tally) -> Bools:
    """Count what breaks a rule of the format.

    Returns bool (R,): whether a row's numbers lie inside it and its ids are some vocabulary's, so
    that it can be looked at.
    """
    counts, expected, lengths = tally.counts, tally.expected, rows.lengths

    def rows_with(wrong: Bools, row_of: Ints) -> Bools:
        return np.bincount(row_of[wrong], minlength=len(rows)) > 0

    wrong = (lengths > expected.max_seq_length) | (rows.num_predictions > expected.prediction_limit)
    counts["schema"] += int((wrong | (rows.orders < 0) | (rows.orders > 1)).sum())

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
    counts, pieces, special = tally.counts, rows.unmasked, rows.special
    counts["pieces"] += len(pieces)
    counts["unknown"] += int((pieces == UNK).sum())
    counts["highest id"] = max(counts["highest id"], int(rows.ids.max()), int(pieces.max()))
    counts["padding"] += int((pieces == PAD).sum())
    right = np.where(rows.at == 0, CLS, SEP)
    # A masked [CLS] or [SEP] is another check's finding.
    wrong = np.where(special, rows.ids != right, np.isin(rows.ids, [CLS, SEP])) & ~rows.chosen
    counts["layout"] += len(np.unique(rows.row_of[wrong]))
    counts["unpredicted masks"] += int(((rows.ids == MASK) & ~rows.chosen).sum())


def bucket_of(lengths: Ints, max_seq_length: int) -> Ints:
    """Return the bucket of each length, 0..NUM_BUCKETS-1."""
    bounds = [max_seq_length * quarter / 4 for quarter in (1, 2, 3, 4)]
    return np.searchsorted(bounds, lengths, side="right")


def _by_bucket(lengths: Ints, expected: Expected, *weights: ArrayLike) -> list[Ints]:
    """Return the sum of each of ``weights`` (R,) in each bucket of lengths."""
    bucket = bucket_of(lengths, expected.max_seq_length)
    return [np.bincount(bucket, each, NUM_BUCKETS) for each in weights]


def _measure_masks(rows: Rows, tally: Tally) -> None:
    counts, expected = tally.counts, tally.expected
    lengths, number = rows.lengths, rows.num_predictions
    budgets = np.maximum(1, np.rint(expected.masked_lm_prob * lengths))
    budgets = np.minimum(budgets, expected.prediction_limit)
    tally.add("mask buckets", _by_bucket(lengths, expected, lengths, number, budgets))
    counts["rows below half the budget"] += int((number / budgets < 0.5).sum())
    counts["mask share: excess"] += int((number > budgets).sum())
    became, labels = rows.ids[rows.where], rows.labels
    forbidden = np.isin(labels, [PAD, CLS, SEP, MASK]) | rows.special[rows.where]
    counts["special pieces"] += int(forbidden.sum())
    is_mask = became == MASK
    other = ~is_mask & (became != labels)
    counts["predictions"] += len(labels)
    counts["masks"] += int(is_mask.sum())
    counts["replaced"] += int(other.sum())
    counts["special replacements"] += int((became[other] < NUM_SPECIAL).sum())
    counts["sum of replacements"] += int(became[other].sum())
    counts["sum of replaced"] += int(labels[other].sum())


def _measure_words(rows: Rows, opens: Bools, tally: Tally) -> None:
    chosen, special = rows.chosen, rows.special
    goes_on = ~opens[1:] & ~special[1:] & ~special[:-1]
    tally.counts["words"] += int((opens & ~special).sum())
    tally.counts["whole words"] += int((goes_on & (chosen[1:] != chosen[:-1])).sum())
    ours = _our_masks(rows, opens, tally.expected.max_ngram)
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
    tally.add("order buckets", _by_bucket(length, expected, np.ones_like(label), label))
    width = expected.max_seq_length
    difference = np.clip((b_start - 2) - (length - b_start - 1), -width, width) + width
    for value in (0, 1):
        of_label = np.bincount(difference[label == value], minlength=2 * width + 1)
        tally.add(f"lengths {value}", of_label)
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
    tally.hashes["rows"].append(rows.hashes)
    if rows.documents is not None and {"copy", "first_sentence"} <= rows.columns.keys():
        # A text may say the same twice, in one document or in two: that is no fault of a writer.
        place = rows.documents
        for name in ("copy", "first_sentence"):
            place = random_bits(place, rows.columns[name].to_numpy())
        tally.hashes["pairs"].append(rows.pair_hashes + place)
    if rows.documents is not None:
        numbers = np.unique(rows.documents, return_counts=True)[1]
        neighbours = (rows.documents[1:] == rows.documents[:-1]).sum()
        tally.add("neighbours", [neighbours, (numbers * (numbers - 1)).sum() / len(rows)])


def judge(tally: Tally) -> list[Finding]:
    """Return the findings of all checks of rows."""
    return [
        *_judge_format(tally),
        *_judge_shares(tally),
        *_judge_masks(tally),
        *_judge_words(tally),
        *_judge_order(tally),
        *_judge_sets(tally),
    ]


_RULES = {
    "values": ("rows", "rows that lack a value, or with values that contradict each other"),
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


def at_most(check: str, said: str, value: float, most: float, form: str) -> Finding:
    """Return the finding of a number that has an upper bound."""
    return Finding(check, said, f"at most {most:{form}}", bool(value <= most))


def between(
    check: str, said: str, values: ArrayLike, low: float, high: float, form: str
) -> Finding:
    """Return the finding of one or several numbers that have bounds."""
    ok = bool(low <= np.min(values) and np.max(values) <= high)
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


def _judge_format(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    what = (
        f"rows of wrong types, beyond {expected.max_seq_length} pieces or "
        f"{expected.max_predictions or 'any'} predictions, or with another label than 0 and 1"
    )
    said = "; ".join([what, *tally.wrong_columns])
    yield none_of("schema", counts["schema"], counts["rows"], said)
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


def _judge_masks(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    size = expected.vocab_size or counts["highest id"] + 1
    kept = counts["predictions"] - counts["masks"] - counts["replaced"]
    by_chance = RANDOM_SHARE / max(1, size - NUM_SPECIAL)
    for name, number, share in (
        ("masks", counts["masks"], MASK_SHARE),
        ("kept", kept, 1 - MASK_SHARE - RANDOM_SHARE + by_chance),
        ("replaced", counts["replaced"], RANDOM_SHARE - by_chance),
    ):
        yield share_in(f"80/10/10: {name}", number, counts["predictions"], share, expected)
    number, special = counts["replaced"], counts["special replacements"]
    check = "random pieces: special"
    # The reference draws from all pieces; [MASK], so drawn, looks like any other [MASK].
    if expected.fidelity == "google":
        low = 0
        yield share_in(check, special, number, (NUM_SPECIAL - 1) / size, expected)
    else:
        low = NUM_SPECIAL
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


def _buckets(name: str, tally: Tally) -> list[tuple[str, list[float]]]:
    """Return each bucket of lengths, in words, and its sums; those without rows are left out."""
    longest = tally.expected.max_seq_length
    bounds = [0, *(-(-longest * quarter // 4) for quarter in (1, 2, 3)), longest]
    names = [*(f"{low} to {high - 1}" for low, high in pairwise(bounds)), f"{longest}"]
    sums = tally.sums.get(name, np.zeros((3, NUM_BUCKETS))).T.tolist()
    return [(name, each) for name, each in zip(names, sums, strict=True) if each[0]]


def _judge_shares(tally: Tally) -> Iterator[Finding]:
    expected, total_made, total_budget = tally.expected, 0.0, 0.0
    for name, (pieces, made, budget) in _buckets("mask buckets", tally):
        most, found = budget / pieces, made / pieces
        low, said = most * expected.min_budget_used, f"{found:.4f} of {pieces:,.0f} pieces"
        yield between(f"mask share: {name}", said, found, low, most, ".4f")
        total_made, total_budget = total_made + made, total_budget + budget
    used = total_made / max(1.0, total_budget)
    finding = between(
        "mask share: budget used", f"{used:.4f}", used, expected.min_budget_used, 1, ".4f"
    )
    yield finding if total_budget else replace(finding, ok=None)
    few, rows = tally.counts["rows below half the budget"], tally.counts["rows"]
    # A row of long words may find no word that fits.
    said = f"{few:,} of {rows:,} rows masked by less than half of what they should be"
    yield at_most("mask share: rows", said, few / max(1, rows), 0.01, ".0%")


def _judge_words(tally: Tally) -> Iterator[Finding]:
    counts, expected = tally.counts, tally.expected
    if "runs" not in tally.sums:
        yield Finding("whole words", "where words begin is not known: give --vocab", "", None)
        return
    yield none_of("whole words", counts["whole words"], counts["words"], "words masked in part")
    runs, ours = tally.sums["runs"][:, 1:]
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


def _judge_order(tally: Tally) -> Iterator[Finding]:
    expected = tally.expected
    share = 0.0 if expected.objective == "none" else 0.5
    buckets = _buckets("order buckets", tally)
    rows, swapped = (sum(sums[number] for _, sums in buckets) for number in (0, 1))
    yield share_in("label balance: all", swapped, rows, share, expected)
    # A text borrowed from elsewhere is as long as it may be; the rest of a document is shorter.
    if expected.objective != "nsp":
        for name, (rows, swapped, *_) in buckets:
            yield share_in(f"label balance: {name}", swapped, rows, share, expected)
    yield _judge_same_document(tally)
    if expected.objective == "sop":
        yield _judge_lengths(tally)
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


def _judge_lengths(tally: Tally) -> Finding:
    """Compare the distributions of len(a) - len(b) between labels (Kolmogorov and Smirnov)."""
    check = "order tell-tale: lengths"
    zero, one = (tally.sums.get(f"lengths {label}", np.zeros(1)) for label in (0, 1))
    if not zero.sum() or not one.sum():
        return Finding(check, "one label only", "", None)
    distance = np.abs(np.cumsum(zero) / zero.sum() - np.cumsum(one) / one.sum()).max()
    # 2 exp(-2 c^2) = 1e-5 at c = 2.47.
    room = 2.47 * np.sqrt(1 / zero.sum() + 1 / one.sum()) + tally.expected.order_slack
    said = f"a minus b tells the label of {0.5 + distance / 2:.1%}: distance {distance:.4f}"
    return at_most(check, said, distance, room, ".4f")


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
    share, shares = numbers.sum() / totals.sum(), numbers / totals
    chance = expected.z * np.sqrt(share * (1 - share) / totals.min())
    room = chance + expected.order_slack
    said = "whole in a0, a1, b0, b1: " + ", ".join(f"{value:.3f}" for value in shares)
    return between(check, said, shares, max(0, share - room), min(1, share + room), ".3f")


def _judge_sets(tally: Tally) -> Iterator[Finding]:
    expected = tally.expected
    for name, what in (("rows", "rows"), ("pairs", "pairs of the same sentences and copy")):
        if name not in tally.hashes:
            yield Finding(f"repeated {name}", "copies are not known", "", None)
            continue
        hashes = np.concatenate(tally.hashes[name])
        repeated = len(hashes) - len(np.unique(hashes))
        said, share = f"{repeated:,} of {len(hashes):,} {what}", repeated / len(hashes)
        yield at_most(f"repeated {name}", said, share, expected.max_repeated_share, ".1%")
    if "neighbours" not in tally.sums:
        yield Finding("shuffle", "documents are not known", "", None)
        return
    number, chance = tally.sums["neighbours"].tolist()
    most = chance + expected.z * np.sqrt(chance) + 3
    said = f"{number:,.0f} neighbours from the same document"
    yield at_most("shuffle", said, number, most, ".0f")


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
    other = row.get("other_document_id")
    if not {row["document_id"], other} - {None} <= texts.keys():
        return "names no document of the corpus"
    of_a = of_b = _pieces(texts[row["document_id"]], row, "", encode)
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
    return None


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
