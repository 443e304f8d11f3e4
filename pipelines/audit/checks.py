"""Pure: what examples must look like, as counts over shards and bounds on them.

`measure` adds what it sees in some rows to a `Tally`; `judge` says of a tally what is out of
bounds. A share is held against what the rules of `masking` and `segment_pairs` lead one to expect,
give or take `z` standard errors of that many draws, so that the bounds are tight where there are
many examples and wide where there are few.

Source: DESIGN.md section 6 for the rules; PEERS.md section 6 for what goes wrong elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from albert_core.text.masking import MASK_SHARE, RANDOM_SHARE, mask_examples
from albert_core.text.ragged import Ints
from albert_core.text.records import CLS, MASK, MAX_VOCAB_SIZE, NUM_SPECIAL, PAD, SEP, UNK
from albert_core.text.seeds import UInt64s, random_bits
from pipelines.audit.rows import Bools, Rows

NUM_BUCKETS = 5
"""Lengths below a quarter, half, three quarters of the longest, below it, and the longest."""
MAX_RUN = 12
"""Runs of masked words are counted up to this length."""
MAX_LENGTH = 1 << 16
"""Pieces of the longest row that is looked at: positions are stored as uint16."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of how the examples were made, and what is let pass."""

    max_seq_length: int
    max_predictions: int | None = None
    """None: as many as the share asks for."""
    masked_lm_prob: float = 0.15
    max_ngram: int = 3
    objective: str = "sop"
    fidelity: str = "paper"
    """paper, google, or unknown: some other program's."""
    vocab_size: int | None = None
    z: float = 4.5
    """Standard errors that a share may be away; chance alone goes beyond 4.5 once in 150,000."""
    min_budget_used: float = 0.9
    max_unknown_share: float = 0.01
    max_repeated_share: float = 0.005
    """Of rows like another row, and of pairs like another pair of the same copy."""
    run_tolerance: float | None = None
    """Of the share of runs of a length; None: 0.01 for our masks, 0.08 for other ones."""

    @property
    def run_slack(self) -> float:
        """How far shares of runs may be from our masks' beyond chance.

        The reference takes spans that may lie anywhere but on each other; ours tile the words,
        so that more of them come to lie side by side. Unigrams only would be 0.3 away.
        """
        if self.run_tolerance is not None:
            return self.run_tolerance
        return 0.01 if self.fidelity == "paper" else 0.08

    @property
    def order_slack(self) -> float:
        """How much the distributions of the two labels may differ beyond chance.

        The last sentence of a chunk is one that fitted, so a little shorter than others, and of
        headings and lists more come last in a document: 0.02 in English Wikipedia. The reference
        cuts the sentence that overshoots, from the later segment more often: 0.05.
        """
        return 0.1 if self.fidelity == "google" else 0.03


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    found: str
    expected: str
    ok: bool | None
    """None: it could not be looked at; ``found`` says why."""


@dataclass
class Tally:
    """Sums over rows, and hashes of them."""

    counts: Counter[str] = field(default_factory=Counter)
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    hashes: dict[str, list[UInt64s]] = field(default_factory=dict)
    wrong_columns: dict[str, None] = field(default_factory=dict)
    """What is not as the schema has it, in words, each once."""

    def add(self, name: str, values: NDArray[np.generic]) -> None:
        """Add ``values`` to the sums called ``name``."""
        before = self.arrays.get(name)
        self.arrays[name] = values.astype(np.float64) + (0 if before is None else before)

    def keep(self, name: str, values: UInt64s) -> None:
        """Keep hashes."""
        self.hashes.setdefault(name, []).append(values)

    def all_hashes(self, name: str) -> UInt64s:
        """Return all the hashes called ``name``."""
        return np.concatenate(self.hashes.get(name, [np.zeros(0, np.uint64)]))


def measure(rows: Rows, expected: Expected, tally: Tally) -> Rows:
    """Add what ``rows`` have to ``tally``; return those that could be looked at."""
    counts = tally.counts
    counts["rows"] += len(rows) + rows.left_out
    counts.update(rows.faults)
    tally.wrong_columns.update(dict.fromkeys(rows.wrong_columns))
    rows = rows.only(_measure_format(rows, expected, tally))
    if not len(rows):
        return rows
    _measure_pieces(rows, expected, tally)
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
    limit = expected.max_predictions or expected.max_seq_length
    wrong = (lengths > expected.max_seq_length) | (rows.num_predictions > limit)
    wrong |= (rows.orders < 0) | (rows.orders > 1)
    counts["schema"] += int(wrong.sum())

    of_prediction = np.repeat(np.arange(len(rows)), rows.num_predictions)

    def rows_with(wrong: Bools, row_of: Ints) -> Bools:
        return np.bincount(row_of[wrong], minlength=len(rows)) > 0

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


def _measure_pieces(rows: Rows, expected: Expected, tally: Tally) -> None:
    counts = tally.counts
    pieces = rows.unmasked
    counts["pieces"] += len(pieces)
    counts["unknown"] += int((pieces == UNK).sum())
    counts["highest id"] = max(counts["highest id"], int(rows.ids.max()), int(pieces.max()))
    counts["pad pieces"] += int((pieces == PAD).sum())
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


def _budgets(lengths: Ints, expected: Expected) -> NDArray[np.float64]:
    budgets = np.maximum(1, np.rint(expected.masked_lm_prob * lengths))
    return np.minimum(budgets, expected.max_predictions or expected.max_seq_length)


def _measure_masks(rows: Rows, expected: Expected, tally: Tally) -> None:
    counts = tally.counts
    bucket = bucket_of(rows.lengths, expected.max_seq_length)

    def by_bucket(name: str, values: NDArray[np.generic]) -> None:
        tally.add(name, np.bincount(bucket, values, NUM_BUCKETS))

    by_bucket("bucket pieces", rows.lengths)
    by_bucket("bucket predictions", rows.num_predictions)
    by_bucket("bucket budgets", _budgets(rows.lengths, expected))
    share = rows.num_predictions / _budgets(rows.lengths, expected)
    counts["rows below half the budget"] += int((share < 0.5).sum())
    counts["rows above the budget"] += int((share > 1).sum())
    became, labels = rows.ids[rows.where], rows.labels
    forbidden = np.isin(labels, [PAD, CLS, SEP, MASK]) | rows.special[rows.where]
    counts["special predicted"] += int(forbidden.sum())
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
        tally.counts["rows without words"] += len(rows)
        return
    chosen = rows.chosen
    goes_on = ~rows.opens[1:] & ~rows.special[1:] & ~rows.special[:-1]
    tally.counts["words"] += int((rows.opens & ~rows.special).sum())
    broken = goes_on & (chosen[1:] != chosen[:-1])
    tally.counts["broken words"] += int(broken.sum())
    tally.add("runs", _word_runs(rows, chosen))
    tally.add("expected runs", _word_runs(rows, _our_masks(rows, expected.max_ngram)))


def _our_masks(rows: Rows, max_ngram: int) -> NDArray[np.bool_]:
    """Return bool (T,): what `masking` chooses in these rows, as many pieces in each as here."""
    assert rows.opens is not None
    # Two pieces are enough of a vocabulary: one opens words and one does not.
    opens_word = np.arange(NUM_SPECIAL + 2) > NUM_SPECIAL
    masked = mask_examples(
        NUM_SPECIAL + rows.opens.astype(np.int64),
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


def _word_runs(rows: Rows, chosen: NDArray[np.bool_]) -> Ints:
    """Return (MAX_RUN + 1,) how many runs of 0, 1, 2, ... chosen words there are."""
    assert rows.opens is not None
    opens = rows.opens.copy()
    opens[1:] |= rows.special[:-1]
    of_words = (opens & ~rows.special) | rows.special
    first = np.flatnonzero(of_words)
    is_chosen = np.append(np.append(False, chosen[first] & ~rows.special[first]), False)
    begins = np.flatnonzero(is_chosen[1:] & ~is_chosen[:-1])
    ends = np.flatnonzero(~is_chosen[1:] & is_chosen[:-1])
    return np.bincount(np.minimum(ends - begins, MAX_RUN), minlength=MAX_RUN + 1)


def _measure_order(rows: Rows, expected: Expected, tally: Tally) -> None:
    counts = tally.counts
    bucket = bucket_of(rows.lengths, expected.max_seq_length)
    own = np.ones(len(rows), bool) if rows.others is None else rows.others == 0
    label = np.clip(rows.orders, 0, 1)
    counts["other document"] += int((~own).sum())
    counts["other document, label 0"] += int((~own & (label == 0)).sum())
    if rows.others is not None and rows.documents is not None:
        counts["other document is the same"] += int((rows.others == rows.documents).sum())
    counts["own document, label 1"] += int((own & (label == 1)).sum())
    # Where b from elsewhere is an accident, only the other rows' labels are drawn.
    drawn = own if expected.objective == "sop" else np.ones(len(rows), bool)
    tally.add("bucket rows", np.bincount(bucket[drawn], minlength=NUM_BUCKETS))
    tally.add("bucket swapped", np.bincount(bucket[drawn], label[drawn], NUM_BUCKETS))
    if expected.objective == "sop":
        width = expected.max_seq_length
        length_a, length_b = rows.b_starts - 2, rows.lengths - rows.b_starts - 1
        difference = np.clip(length_a - length_b, -width, width) + width
        for value in (0, 1):
            of_label = difference[drawn & (label == value)]
            tally.add(f"lengths {value}", np.bincount(of_label, minlength=2 * width + 1))
    _measure_edges(rows, label, drawn, tally)


def _measure_edges(rows: Rows, label: Ints, drawn: NDArray[np.bool_], tally: Tally) -> None:
    """Count which pieces the segments begin and end with, by label and segment.

    The piece most frequent at the ends, a full stop in most corpora, tells whole sentences from
    cut ones; so do words that are begun in their middle.
    """
    last = np.stack(
        [
            rows.unmasked[rows.starts + rows.b_starts - 2],
            rows.unmasked[rows.starts + rows.lengths - 2],
        ]
    )  # (2, R)
    for value in (0, 1):
        of_label = drawn & (label == value)
        for segment in (0, 1):
            pieces = np.minimum(last[segment, of_label], (1 << 16) - 1)
            tally.add(f"ends {segment} {value}", np.bincount(pieces, minlength=1 << 16))
    if rows.opens is None:
        return
    first = np.stack([rows.opens[rows.starts + 1], rows.opens[rows.starts + rows.b_starts]])
    for value in (0, 1):
        of_label = drawn & (label == value)
        whole = first[:, of_label].sum(axis=1)
        tally.add(f"begins {value}", np.append(whole, of_label.sum()))


def _measure_sets(rows: Rows, tally: Tally) -> None:
    tally.keep("rows", rows.hashes)
    if rows.copies is not None:
        tally.keep("pairs", rows.pair_hashes + random_bits(rows.copies.astype(np.uint64), 3 << 40))
    if rows.documents is not None:
        tally.keep("documents", np.unique(rows.documents))
        numbers = np.unique(rows.documents, return_counts=True)[1]
        tally.counts["neighbours"] += int((rows.documents[1:] == rows.documents[:-1]).sum())
        tally.arrays.setdefault("chance neighbours", np.zeros(1))[0] += float(
            (numbers * (numbers - 1)).sum() / len(rows)
        )


Judge = Callable[[Tally, Expected], Iterator[Finding]]


def judge(tally: Tally, expected: Expected) -> list[Finding]:
    """Return what each check of rows says of ``tally``."""
    return [finding for check in _JUDGES for finding in check(tally, expected)]


def none_of(check: str, number: int, total: int, what: str) -> Finding:
    """Return the finding of a rule that has no exception."""
    return Finding(check, f"{number:,} of {total:,} {what}", "none", number == 0)


def share_in(
    check: str, number: float, total: float, share: float, expected: Expected, slack: float = 0.0
) -> Finding:
    """Return the finding of a share that is drawn: within z standard errors of ``share``."""
    if not total:
        return Finding(check, "nothing to count", f"{share:.4f}", None)
    room = expected.z * np.sqrt(share * (1 - share) / total) + 1 / total + slack
    found = number / total
    return Finding(
        check,
        f"{found:.4f} of {total:,.0f}",
        f"{max(0, share - room):.4f} to {min(1, share + room):.4f}",
        bool(abs(found - share) <= room),
    )


def _judge_format(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts, rows = tally.counts, tally.counts["rows"]
    limit = expected.max_predictions or "any"
    yield none_of(
        "schema",
        counts["schema"],
        rows,
        f"rows of wrong types, beyond {expected.max_seq_length} pieces or {limit} predictions, "
        "or with another label than 0 and 1"
        + "".join(f"; {wrong}" for wrong in tally.wrong_columns),
    )
    what = "rows that lack a value, or with values that contradict each other"
    yield none_of("values", counts["values"], rows, what)
    if expected.vocab_size is None and not counts["vocabulary"]:
        found = f"highest id {counts['highest id']}; no vocabulary given"
        yield Finding("vocabulary", found, "below its size", None)
    else:
        what = f"ids below 0, or at or above {expected.vocab_size or MAX_VOCAB_SIZE}"
        yield none_of("vocabulary", counts["vocabulary"], counts["pieces"], what)
    yield none_of("layout", counts["layout"], rows, "rows are not [CLS] a [SEP] b [SEP]")
    wrong = counts["padding"] + counts["pad pieces"]
    yield none_of("padding", wrong, rows, "rows with padding inside, or marks of it that differ")
    yield none_of("segment ids", counts["segment ids"], rows, "rows not 0 to [SEP] and 1 from b on")
    what = "rows with positions twice, unsorted or outside"
    yield none_of("positions", counts["positions"], rows, what)


def _judge_masks(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    yield from _judge_shares(tally, expected)
    predictions = counts["predictions"]
    what = "predictions of or at special pieces"
    yield none_of("special pieces", counts["special predicted"], predictions, what)
    what = "[MASK] pieces that nothing is to be predicted for"
    yield none_of("unpredicted masks", counts["unpredicted masks"], counts["pieces"], what)
    size = expected.vocab_size or counts["highest id"] + 1
    by_chance = RANDOM_SHARE / max(1, size - NUM_SPECIAL)
    for name, number, share in (
        ("masks", counts["masks"], MASK_SHARE),
        ("kept", counts["kept"], 1 - MASK_SHARE - RANDOM_SHARE + by_chance),
        ("replaced", counts["replaced"], RANDOM_SHARE - by_chance),
    ):
        yield share_in(f"80/10/10: {name}", number, predictions, share, expected)
    yield from _judge_replacements(tally, expected, size)


def _judge_replacements(tally: Tally, expected: Expected, size: int) -> Iterator[Finding]:
    counts = tally.counts
    number = counts["replaced"]
    check = "random pieces: special"
    if expected.fidelity == "google":
        # [MASK], drawn as a random piece, looks like any other [MASK].
        share = (NUM_SPECIAL - 1) / size
        yield share_in(check, counts["special replacements"], number, share, expected)
    else:
        yield none_of(check, counts["special replacements"], number, "random pieces are special")
    check = "random pieces: evenly drawn"
    # Each is drawn from all ordinary pieces but the one that it replaces.
    low = 0 if expected.fidelity == "google" else NUM_SPECIAL
    if expected.vocab_size is None or number < 30 or size - low < 2:
        yield Finding(check, "no vocabulary given, or too few", "", None)
        return
    total = (low + size - 1) * (size - low) / 2
    mean = (total - counts["sum of replaced"] / number) / (size - low - 1)
    room = expected.z * (size - low) / np.sqrt(12 * number)
    found = counts["sum of replacements"] / number
    bounds = f"{mean - room:.0f} to {mean + room:.0f}"
    yield Finding(check, f"mean id {found:.0f}", bounds, bool(abs(found - mean) <= room))


def _judge_shares(tally: Tally, expected: Expected) -> Iterator[Finding]:
    pieces = tally.arrays.get("bucket pieces", np.zeros(NUM_BUCKETS))
    made = tally.arrays.get("bucket predictions", np.zeros(NUM_BUCKETS))
    budget = tally.arrays.get("bucket budgets", np.zeros(NUM_BUCKETS))
    for bucket, name in enumerate(_bucket_names(expected.max_seq_length)):
        if pieces[bucket]:
            wanted = budget[bucket] / pieces[bucket]
            found = made[bucket] / pieces[bucket]
            low = wanted * expected.min_budget_used
            yield Finding(
                f"mask share: {name}",
                f"{found:.4f} of {pieces[bucket]:,.0f} pieces",
                f"{low:.4f} to {wanted:.4f}",
                bool(low <= found <= wanted + 1e-9),
            )
    used = made.sum() / max(1.0, budget.sum())
    low = expected.min_budget_used
    yield Finding(
        "mask share: budget used",
        f"{used:.4f}",
        f"{low:.4f} to 1",
        bool(low <= used <= 1) if budget.any() else None,
    )
    counts, rows = tally.counts, tally.counts["rows"]
    few = counts["rows below half the budget"]
    # A row of long words may find no word that fits.
    what = "rows masked by less than half of what they should be"
    yield Finding(
        "mask share: rows", f"{few:,} of {rows:,} {what}", "at most 1 %", few <= rows / 100
    )
    what = "rows masked by more than they should be"
    yield none_of("mask share: excess", counts["rows above the budget"], rows, what)


def _bucket_names(max_seq_length: int) -> list[str]:
    bounds = [0, *(-(-max_seq_length * quarter // 4) for quarter in (1, 2, 3)), max_seq_length]
    return [f"{low} to {high - 1}" for low, high in pairwise(bounds)] + [f"{max_seq_length}"]


def _judge_words(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    if "runs" not in tally.arrays:
        yield Finding("whole words", "where words begin is not known: give --vocab", "", None)
        return
    yield none_of("whole words", counts["broken words"], counts["words"], "words masked in part")
    runs, ours = tally.arrays["runs"][1:], tally.arrays["expected runs"][1:]
    for length in range(1, expected.max_ngram + 2):
        beyond = length > expected.max_ngram
        number, wanted = (
            (a[length - 1 :].sum() if beyond else a[length - 1]) for a in (runs, ours)
        )
        if not ours.sum():
            continue
        share = wanted / ours.sum()
        # The wanted share is drawn, too.
        room = expected.z * np.sqrt(share * (1 - share) / ours.sum())
        name = f"n-grams: runs of {length}{' or more' if beyond else ''} words"
        yield share_in(name, number, runs.sum(), share, expected, expected.run_slack + room)


def _judge_order(tally: Tally, expected: Expected) -> Iterator[Finding]:
    arrays = tally.arrays
    rows = arrays.get("bucket rows", np.zeros(NUM_BUCKETS))
    swapped = arrays.get("bucket swapped", np.zeros(NUM_BUCKETS))
    share = 0.0 if expected.objective == "none" else 0.5
    yield share_in("label balance: all", swapped.sum(), rows.sum(), share, expected)
    # A text borrowed from elsewhere is as long as it may be; the rest of a document is shorter.
    names = _bucket_names(expected.max_seq_length) if expected.objective != "nsp" else []
    for bucket, name in enumerate(names):
        if rows[bucket]:
            check = f"label balance: {name}"
            yield share_in(check, swapped[bucket], rows[bucket], share, expected)
    yield from _judge_same_document(tally, expected)
    if expected.objective == "sop":
        yield _judge_lengths(tally, expected)
        yield from _judge_edges(tally, expected)


def _judge_same_document(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    others, rows = counts["other document"], counts["rows"]
    check = "same document"
    if expected.objective == "nsp":
        wrong = counts["other document, label 0"] + counts["other document is the same"]
        wrong += counts["own document, label 1"]
        yield none_of(check, wrong, rows, "rows whose label and documents contradict each other")
    elif expected.fidelity == "google":
        wrong = counts["other document, label 0"]
        what = f"of the {others:,} rows with b from elsewhere labelled as in order"
        yield none_of(check, wrong, others, what)
    else:
        yield none_of(check, others, rows, "rows with segment b from another document")


def _judge_lengths(tally: Tally, expected: Expected) -> Finding:
    """Compare the distributions of len(a) - len(b) between labels (Kolmogorov and Smirnov)."""
    check = "order tell-tale: lengths"
    width = 2 * expected.max_seq_length + 1
    zero = tally.arrays.get("lengths 0", np.zeros(width))
    one = tally.arrays.get("lengths 1", np.zeros(width))
    if not zero.sum() or not one.sum():
        return Finding(check, "one label only", "", None)
    distance = np.abs(np.cumsum(zero) / zero.sum() - np.cumsum(one) / one.sum()).max()
    # 2 exp(-2 c^2) = 1e-5 at c = 2.47.
    room = 2.47 * np.sqrt(1 / zero.sum() + 1 / one.sum()) + expected.order_slack
    return Finding(
        check,
        f"a minus b differs by {distance:.4f} between labels",
        f"at most {room:.4f}",
        bool(distance <= room),
    )


def _judge_edges(tally: Tally, expected: Expected) -> Iterator[Finding]:
    ends = np.array(
        [
            [tally.arrays.get(f"ends {segment} {label}", np.zeros(1 << 16)) for label in (0, 1)]
            for segment in (0, 1)
        ]
    ).reshape(4, -1)  # a and b with label 0 and 1, in the order a0, a1, b0, b1
    commonest = int(ends.sum(axis=0).argmax())
    check = "order tell-tale: ends of segments"
    yield _alike(check, ends[:, commonest], ends.sum(axis=1), expected)
    if "begins 0" in tally.arrays and "begins 1" in tally.arrays:
        begins = [tally.arrays[f"begins {label}"] for label in (0, 1)]
        whole = np.array([begins[0][0], begins[1][0], begins[0][1], begins[1][1]])
        totals = np.array([begins[0][2], begins[1][2]] * 2)
        yield _alike("order tell-tale: begins of segments", whole, totals, expected)


def _alike(
    check: str, numbers: NDArray[np.float64], totals: NDArray[np.float64], expected: Expected
) -> Finding:
    """Return whether four shares are draws of the same one."""
    if not totals.all():
        return Finding(check, "one label only", "", None)
    share, shares = numbers.sum() / totals.sum(), numbers / totals
    chance = expected.z * np.sqrt(share * (1 - share) / totals.min())
    room = chance + expected.order_slack
    listed = ", ".join(f"{value:.3f}" for value in shares)
    return Finding(
        check,
        f"whole in a0, a1, b0, b1: {listed}",
        f"{max(0, share - room):.3f} to {min(1, share + room):.3f}",
        bool(np.abs(shares - share).max() <= room),
    )


def _judge_sets(tally: Tally, expected: Expected) -> Iterator[Finding]:
    for name, what in (("rows", "rows"), ("pairs", "pairs of the same copy")):
        hashes = tally.all_hashes(name)
        if not len(hashes):
            yield Finding(f"repeated {name}", "copies are not known", "", None)
            continue
        repeated = len(hashes) - len(np.unique(hashes))
        yield Finding(
            f"repeated {name}",
            f"{repeated:,} of {len(hashes):,} {what}",
            f"at most {expected.max_repeated_share:.1%}",
            repeated <= expected.max_repeated_share * len(hashes),
        )
    if "chance neighbours" in tally.arrays:
        number, chance = tally.counts["neighbours"], tally.arrays["chance neighbours"][0]
        most = chance + expected.z * np.sqrt(chance) + 3
        found = f"{number:,} neighbours from the same document"
        yield Finding("shuffle", found, f"at most {most:.0f}", bool(number <= most))
    else:
        yield Finding("shuffle", "documents are not known", "", None)


def _judge_unknown(tally: Tally, expected: Expected) -> Iterator[Finding]:
    counts = tally.counts
    share = counts["unknown"] / max(1, counts["pieces"])
    yield Finding(
        "unknown pieces",
        f"{share:.4%} of {counts['pieces']:,} pieces",
        f"at most {expected.max_unknown_share:.1%}",
        share <= expected.max_unknown_share,
    )


_JUDGES: tuple[Judge, ...] = (
    _judge_format,
    _judge_unknown,
    _judge_masks,
    _judge_words,
    _judge_order,
    _judge_sets,
)

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Claim:
    """What one row says of its segments."""

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
    if claim.document not in texts or (claim.other is not None and claim.other not in texts):
        return "names no document of the corpus"
    sentences = _pieces(texts[claim.document], claim.sentences, encode)
    if not sentences:
        return "names sentences that its document does not have"
    text = np.concatenate(sentences)
    if claim.other is not None:
        other = _pieces(texts[claim.other], claim.other_sentences, encode)
        if not other:
            return "names sentences that its document does not have"
        other_text = np.concatenate(other)
        if not places(text, claim.a) or not places(other_text, claim.b):
            return "is not in the sentences it names"
        return None if claim.label == 1 else "has segment b from elsewhere and label 0"
    at_a, at_b = places(text, claim.a), places(text, claim.b)
    if not at_a or not at_b:
        return "is not in the sentences it names"
    first, second = (at_a, at_b) if claim.label == 0 else (at_b, at_a)
    size = len(claim.a if claim.label == 0 else claim.b)
    if first[0] + size > second[-1]:
        return "is not in the order of its label"
    is_full = len(claim.a) + len(claim.b) >= max_num_pieces
    if whole and not is_full:
        bounds = np.cumsum([len(sentence) for sentence in sentences])
        if len(claim.a) + len(claim.b) != len(text) or size not in bounds:
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
