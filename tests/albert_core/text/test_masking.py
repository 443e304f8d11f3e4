import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.text.masking import Masked, mask_examples, span_length_weights
from albert_core.text.records import CLS, MASK, NUM_SPECIAL, SEP
from albert_core.text.seeds import random_bits

VOCAB_SIZE = 100
OPENS_WORD = np.arange(VOCAB_SIZE) % 3 != 0
"""A third of the pieces continue the word before."""
SEEDS = st.integers(0, 2**32)


def rows(seed: int, num_rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    lengths = random.integers(7, length + 1, num_rows)
    b_starts = np.array([random.integers(3, n - 2) for n in lengths])
    ids = random.integers(NUM_SPECIAL, VOCAB_SIZE, lengths.sum())
    starts = np.cumsum(lengths) - lengths
    ids[starts], ids[starts + b_starts - 1], ids[starts + lengths - 1] = CLS, SEP, SEP
    return ids, lengths, b_starts


def mask(ids: np.ndarray, lengths: np.ndarray, b_starts: np.ndarray, max_ngram: int = 3) -> Masked:
    seeds = random_bits(7, np.arange(len(lengths)))
    return mask_examples(ids, lengths, b_starts, OPENS_WORD, seeds, 0.15, max_ngram)


def places(masked: Masked, lengths: np.ndarray) -> np.ndarray:
    """Return where the predictions are among all pieces."""
    return np.repeat(np.cumsum(lengths) - lengths, masked.num_predictions) + masked.positions


@given(SEEDS, st.integers(1, 20), st.integers(12, 200))
def test_whole_words_are_masked_and_labels_restore_the_example(
    seed: int, num_rows: int, length: int
) -> None:
    ids, lengths, b_starts = rows(seed, num_rows, length)
    masked = mask(ids, lengths, b_starts)
    where = places(masked, lengths)
    restored = masked.input_ids.copy()
    restored[where] = masked.labels
    assert (restored == ids).all()
    assert (masked.labels >= NUM_SPECIAL).all()
    changed = masked.input_ids[where]
    assert ((changed >= NUM_SPECIAL) | (changed == MASK)).all()
    begins = np.cumsum(lengths) - lengths
    chosen = np.zeros(len(ids), bool)
    chosen[where] = True
    special = np.isin(np.arange(len(ids)), [begins, begins + b_starts - 1, begins + lengths - 1])
    inside = ~OPENS_WORD[ids[1:]] & ~special[1:] & ~special[:-1]
    assert (chosen[1:] == chosen[:-1])[inside].all()


@given(SEEDS, st.integers(1, 20))
def test_an_example_is_masked_alike_in_every_batch(seed: int, num_rows: int) -> None:
    ids, lengths, b_starts = rows(seed, num_rows, 60)
    seeds = random_bits(7, np.arange(num_rows))
    whole = mask(ids, lengths, b_starts)
    last = slice(num_rows - 1, None)
    alone = mask_examples(
        ids[-lengths[-1] :], lengths[last], b_starts[last], OPENS_WORD, seeds[last], 0.15, 3
    )
    assert (whole.input_ids[-lengths[-1] :] == alone.input_ids).all()


@pytest.mark.parametrize(("length", "used"), [(128, 0.999), (512, 0.9999)])
def test_fifteen_percent_of_the_pieces_are_predicted_at_every_length(
    length: int, used: float
) -> None:
    ids, lengths, b_starts = rows(1, 2000, length)
    budgets = np.maximum(1, np.rint(0.15 * lengths))
    masked = mask(ids, lengths, b_starts)
    assert (masked.num_predictions <= budgets).all()
    assert masked.num_predictions.sum() / budgets.sum() > used


def test_of_the_chosen_pieces_eighty_percent_are_masked_and_ten_replaced() -> None:
    ids, lengths, b_starts = rows(2, 4000, 128)
    masked = mask(ids, lengths, b_starts)
    became = masked.input_ids[places(masked, lengths)]
    assert (became == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (became == masked.labels).mean() == pytest.approx(0.1 + 0.1 / 95, abs=0.01)


def test_an_example_can_have_its_predictions_bounded() -> None:
    ids, lengths, b_starts = rows(1, 50, 200)
    seeds = random_bits(7, np.arange(50))
    masked = mask_examples(ids, lengths, b_starts, OPENS_WORD, seeds, 0.15, 3, 20)
    assert (masked.num_predictions == np.minimum(20, np.rint(0.15 * lengths))).mean() > 0.95
    assert masked.num_predictions.max() == 20


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_the_type_of_the_pieces_changes_nothing_else(dtype: type) -> None:
    ids, lengths, b_starts = rows(4, 30, 100)
    wide, narrow = mask(ids, lengths, b_starts), mask(ids.astype(dtype), lengths, b_starts)
    assert narrow.input_ids.dtype == narrow.labels.dtype == dtype
    assert (narrow.input_ids == wide.input_ids).all()
    assert (narrow.positions == wide.positions).all()


@given(SEEDS, st.integers(2, 30))
def test_long_words_leave_no_room_that_another_word_would_fill(seed: int, longest: int) -> None:
    """Words of up to 30 pieces: the budget may stay unused, but only where nothing fits."""
    random = np.random.default_rng(seed)
    opens_word = np.zeros(VOCAB_SIZE, bool)
    opens_word[: VOCAB_SIZE // longest + NUM_SPECIAL + 1] = True
    length = int(random.integers(8, 200))
    ids = random.integers(NUM_SPECIAL, VOCAB_SIZE, length)
    middle = int(random.integers(2, length - 2))
    ids[[0, middle, length - 1]] = CLS, SEP, SEP
    masked = mask_examples(
        ids, np.array([length]), np.array([middle + 1]), opens_word, random_bits(seed, 0), 0.15, 3
    )
    left = max(1, round(0.15 * length)) - len(masked.positions)
    assert left >= 0
    opens = opens_word[ids]
    opens[[1, middle + 1]] = True
    opens[[0, middle, length - 1]] = True
    bounds = np.append(np.flatnonzero(opens), length)
    for begin, end in itertools.pairwise(bounds.tolist()):
        if begin not in (0, middle, length - 1, *masked.positions):
            assert end - begin > left


def test_a_segment_may_be_empty() -> None:
    ids = np.array([CLS, SEP, 10, 11, 13, SEP, CLS, 10, 11, 13, SEP, SEP])
    masked = mask(ids, np.array([6, 6]), np.array([2, 5]))
    assert masked.num_predictions.tolist() == [1, 1]
    assert set(masked.labels.tolist()) <= {10, 11, 13}


def one_span_a_row(num_rows: int, budget: int, max_ngram: int) -> np.ndarray:
    """Return (num_rows, budget) the positions masked, of rows with 100 one-piece words a segment.

    The words are so many that two chosen spans are seldom side by side.
    """
    words = np.arange(NUM_SPECIAL, VOCAB_SIZE)
    random = np.random.default_rng(0)
    ids = random.choice(words[OPENS_WORD[words]], (num_rows, 203))
    ids[:, [0, 101, 202]] = CLS, SEP, SEP
    lengths, b_starts = np.full(num_rows, 203), np.full(num_rows, 102)
    seeds = random_bits(3, np.arange(num_rows))
    masked = mask_examples(
        ids.ravel(), lengths, b_starts, OPENS_WORD, seeds, budget / 203, max_ngram
    )
    assert (masked.num_predictions == budget).all()
    return masked.positions.reshape(num_rows, budget)


@pytest.mark.parametrize("max_ngram", [2, 3, 4])
def test_span_lengths_follow_one_over_n_and_spans_are_spread_evenly_but_not_over_separators(
    max_ngram: int,
) -> None:
    weights = span_length_weights(max_ngram)
    assert weights * np.arange(1, max_ngram + 1) == pytest.approx(weights[0])
    # With a budget of the longest span, only rows that took such a span first have a run of that
    # length, except for two spans side by side, in one row of a hundred.
    positions = one_span_a_row(6000, max_ngram, max_ngram)
    longest = (np.diff(positions) == 1).all(axis=1).mean()
    assert longest == pytest.approx(weights[-1], abs=0.025)
    counts = np.bincount(positions.ravel(), minlength=203)
    assert counts[[0, 101, 202]].sum() == 0
    expected = 30 * max_ngram
    assert np.abs(np.delete(counts, [0, 101, 202]) - expected).max() < 5 * np.sqrt(expected)


def test_golden_masks() -> None:
    ids = (np.arange(40) * 7 + 11) % 95 + NUM_SPECIAL
    ids[[0, 17, 39]] = CLS, SEP, SEP
    masked = mask(ids, np.array([40]), np.array([18]))
    assert masked.positions.tolist() == [4, 5, 6, 10, 11, 14]
    assert masked.input_ids[masked.positions].tolist() == [MASK] * 6


def test_golden_masks_of_many_lengths() -> None:
    lengths = 30 + np.arange(60) * 7 % 90
    b_starts, ends = 2 + lengths // 3, np.cumsum(lengths)
    ids = np.arange(ends[-1]) ** 2 * 31 % 95 + NUM_SPECIAL
    ids[ends - lengths], ids[ends - lengths + b_starts - 1], ids[ends - 1] = CLS, SEP, SEP
    masked = mask(ids, lengths, b_starts)
    content = np.concatenate([masked.positions, masked.input_ids]).astype("<i8").tobytes()
    assert masked.num_predictions.sum() == 640
    assert hashlib.sha256(content).hexdigest()[:16] == "e480282e38104122"
