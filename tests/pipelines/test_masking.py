import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.contract.records import CLS, MASK, NUM_SPECIAL, SEP
from albert_core.contract.seeds import random_bits
from pipelines.masking import Masked, mask_examples, span_length_weights

VOCAB_SIZE = 100
OPENS_WORD = np.arange(VOCAB_SIZE) % 3 != 0
"""A third of the pieces go on with the word before."""


def rows(seed: int, num_rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    lengths = random.integers(7, length + 1, num_rows)
    b_starts = np.array([random.integers(3, n - 2) for n in lengths])
    ids = []
    for n, b in zip(lengths, b_starts, strict=True):
        row = random.integers(NUM_SPECIAL, VOCAB_SIZE, n)
        row[[0, b - 1, n - 1]] = CLS, SEP, SEP
        ids.append(row)
    return np.concatenate(ids), lengths, b_starts


def mask(ids: np.ndarray, lengths: np.ndarray, b_starts: np.ndarray, max_ngram: int = 3) -> Masked:
    seeds = random_bits(7, np.arange(len(lengths)))
    return mask_examples(ids, lengths, b_starts, OPENS_WORD, seeds, 0.15, max_ngram)


@given(st.integers(1, 10))
def test_weights_are_a_distribution_that_favours_short_spans(max_ngram: int) -> None:
    weights = span_length_weights(max_ngram)
    assert abs(weights.sum() - 1) < 1e-12
    assert (np.diff(weights) < 0).all()


@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(12, 200))
def test_labels_restore_the_example_and_special_pieces_are_never_masked(
    seed: int, num_rows: int, length: int
) -> None:
    ids, lengths, b_starts = rows(seed, num_rows, length)
    masked = mask(ids, lengths, b_starts)
    first = np.repeat(np.cumsum(lengths) - lengths, masked.num_predictions)
    restored = masked.input_ids.copy()
    restored[first + masked.positions] = masked.labels
    assert (restored == ids).all()
    assert (masked.labels >= NUM_SPECIAL).all()
    changed = masked.input_ids[first + masked.positions]
    assert ((changed >= NUM_SPECIAL) | (changed == MASK)).all()


@given(st.integers(0, 2**32), st.integers(12, 200))
def test_words_are_masked_whole(seed: int, length: int) -> None:
    ids, lengths, b_starts = rows(seed, 5, length)
    masked = mask(ids, lengths, b_starts)
    begins = np.cumsum(lengths) - lengths
    chosen = np.zeros(len(ids), bool)
    chosen[np.repeat(begins, masked.num_predictions) + masked.positions] = True
    special = np.isin(np.arange(len(ids)), [begins, begins + b_starts - 1, begins + lengths - 1])
    for i in range(1, len(ids)):
        if not OPENS_WORD[ids[i]] and not special[i] and not special[i - 1]:
            assert chosen[i] == chosen[i - 1]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_an_example_is_masked_alike_in_every_batch(seed: int, num_rows: int) -> None:
    ids, lengths, b_starts = rows(seed, num_rows, 60)
    seeds = random_bits(7, np.arange(num_rows))
    whole = mask(ids, lengths, b_starts)
    last = slice(num_rows - 1, None)
    alone = mask_examples(
        ids[-lengths[-1] :], lengths[last], b_starts[last], OPENS_WORD, seeds[last], 0.15, 3
    )
    assert (whole.input_ids[-lengths[-1] :] == alone.input_ids).all()


def test_fifteen_percent_of_the_pieces_are_predicted_at_every_length() -> None:
    for length in (128, 512):
        ids, lengths, b_starts = rows(1, 400, length)
        lengths_budget = np.rint(0.15 * lengths)
        masked = mask(ids, lengths, b_starts)
        assert (masked.num_predictions <= np.maximum(1, lengths_budget)).all()
        assert masked.num_predictions.sum() / lengths_budget.sum() > 0.98
    assert round(0.15 * 512) == 77


def test_eighty_ten_ten() -> None:
    ids, lengths, b_starts = rows(2, 4000, 128)
    masked = mask(ids, lengths, b_starts)
    where = np.repeat(np.cumsum(lengths) - lengths, masked.num_predictions) + masked.positions
    became = masked.input_ids[where]
    assert (became == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (became == masked.labels).mean() == pytest.approx(0.1 + 0.1 / 95, abs=0.01)


def test_span_lengths_follow_one_over_n_and_spans_stay_in_their_segment() -> None:
    words = np.arange(NUM_SPECIAL, VOCAB_SIZE)
    num_rows, length = 3000, 203
    random = np.random.default_rng(0)
    ids = random.choice(words[OPENS_WORD[words]], num_rows * length)
    ids = ids.reshape(num_rows, length)
    ids[:, [0, 101, 202]] = CLS, SEP, SEP
    lengths, b_starts = np.full(num_rows, length), np.full(num_rows, 102)
    seeds = random_bits(3, np.arange(num_rows))
    # A budget of one span shows the span itself: 3 of 203 pieces.
    masked = mask_examples(ids.ravel(), lengths, b_starts, OPENS_WORD, seeds, 3 / 203, 3)
    begins = np.cumsum(masked.num_predictions) - masked.num_predictions
    first_run = []
    for begin, count in zip(begins, masked.num_predictions, strict=True):
        gaps = np.diff(masked.positions[begin : begin + count])
        if count == 3 and (gaps == 1).all():
            first_run.append(3)
    assert masked.num_predictions.min() == 3
    assert len(first_run) / num_rows == pytest.approx(2 / 11, abs=0.03)
    crossing = np.isin(masked.positions, [101])
    assert not crossing.any()


def test_golden_masks() -> None:
    ids = (np.arange(40) * 7 + 11) % 95 + NUM_SPECIAL
    ids[[0, 17, 39]] = CLS, SEP, SEP
    masked = mask(ids, np.array([40]), np.array([18]))
    assert masked.positions.tolist() == GOLDEN_POSITIONS
    assert masked.input_ids[masked.positions].tolist() == GOLDEN_IDS


GOLDEN_POSITIONS = [18, 19, 35, 36, 37, 38]
GOLDEN_IDS = [47, 4, 4, 4, 4, 4]
