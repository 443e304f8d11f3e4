from functools import partial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from albert_core.text.masking import Masked, span_length_weights
from albert_core.text.records import CLS, MASK, NUM_SPECIAL, SEP
from albert_core.text.seeds import random_bits
from pipelines.examples.google_fidelity import google_masks, google_pairs, try_ngrams, words_of
from pipelines.examples.pairs import ALONE, BORROWED, TRUNCATED, Objective
from tests.pipelines.examples.test_pairs import DOCUMENTS, OBJECTIVES, SEEDS, SIZES, cut_all

OPENS_WORD = np.arange(1000) % 2 == 0
"""Pieces with even ids open a word."""


google_cut = partial(cut_all, by=google_pairs)


def mask(ids: NDArray[np.int64], max_predictions: int = 77, seed: int = 1) -> Masked:
    return google_masks(
        ids.ravel(),
        np.full(len(ids), ids.shape[1]),
        OPENS_WORD,
        random_bits(seed, np.arange(len(ids))),
        0.15,
        3,
        max_predictions,
    )


def rows(number: int, length: int) -> NDArray[np.int64]:
    """Return examples of words of one piece, with [SEP] in the middle."""
    ids = np.full((number, length), NUM_SPECIAL + 1)  # 6 opens a word
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    return ids


@given(DOCUMENTS, SEEDS, SIZES, OBJECTIVES)
def test_pairs_fit_every_sentence_is_in_one_and_every_piece_is_counted(
    documents: list[list[int]], seed: int, max_num_pieces: int, objective: Objective
) -> None:
    pairs, counts = google_cut(documents, seed, max_num_pieces, objective=objective)
    total = sum(map(sum, documents)) + counts[BORROWED]
    assert (pairs.num_pieces + counts[TRUNCATED], counts[ALONE]) == (total, 0)
    sizes_a, sizes_b = pairs.end_a - pairs.start_a, pairs.end_b - pairs.start_b
    assert (sizes_a + sizes_b <= max_num_pieces).all()
    used = sum((pairs.last_sentence - pairs.first_sentence + 1).tolist())
    assert used == sum(map(len, documents))


def test_a_chunk_overshoots_and_loses_what_is_too_much() -> None:
    pairs, counts = google_cut([[40, 40]], seed=1, max_num_pieces=61, short=0.0)
    assert len(pairs) == 1
    assert counts[TRUNCATED] == 19


def test_a_sentence_alone_is_paired_with_a_random_document_and_labelled_1() -> None:
    pairs, counts = google_cut([[80], [10, 10, 10]], seed=1, max_num_pieces=61, short=0.0)
    assert pairs.label[0] == 1
    assert pairs.other_document[0] == 1
    assert counts[BORROWED] >= 10


def test_a_short_target_is_of_the_whole_document() -> None:
    pairs, _ = google_cut([[2] * 500 for _ in range(300)], seed=1, max_num_pieces=125)
    longest = [pairs.end_b[pairs.document == d].size for d in range(300)]
    chunks = np.array(longest)
    usual = np.bincount(chunks).argmax()
    assert np.mean(chunks == usual) == pytest.approx(0.9, abs=0.05)


def test_next_sentence_pairs_put_back_what_they_did_not_use() -> None:
    pairs, counts = google_cut([[10] * 50, [10] * 50], seed=1, max_num_pieces=61, objective="nsp")
    borrowed = pairs.other_document >= 0
    assert (pairs.label == borrowed).all()
    assert 0 < borrowed.mean() < 1
    assert counts[BORROWED] > 0


@given(st.lists(st.integers(1, 999), min_size=10, max_size=200), SEEDS)
def test_masks_can_be_undone_and_keep_to_the_budget(words: list[int], seed: int) -> None:
    ids = np.array([[CLS, *(w if w > MASK else w + NUM_SPECIAL for w in words), SEP, 10, SEP]])
    masked = mask(ids, max_predictions=20, seed=seed)
    restored = masked.input_ids.copy()
    restored[masked.positions] = masked.labels
    assert (restored == ids.ravel()).all()
    assert (np.diff(masked.positions) > 0).all()
    assert masked.num_predictions[0] <= min(20, max(1, round(0.15 * ids.size)))
    assert not np.isin(masked.labels, [CLS, SEP]).any()


@pytest.mark.parametrize(("length", "budget"), [(30, 4), (50, 8), (70, 10), (512, 20)])
def test_the_budget_is_rounded_to_even_and_bounded(length: int, budget: int) -> None:
    """15 % of 30, 50 and 70 is 4.5, 7.5 and 10.5."""
    assert mask(rows(20, length), max_predictions=20).num_predictions.tolist() == [budget] * 20


def test_pieces_are_replaced_80_10_10_by_any_piece_of_the_vocabulary() -> None:
    masked = mask(rows(1000, 200))
    made = masked.input_ids[masked.positions + np.repeat(np.arange(1000) * 200, 30)]
    assert np.mean(made == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(made == masked.labels) == pytest.approx(0.1, abs=0.01)
    others = made[(made != MASK) & (made != masked.labels)]
    assert others.min() < NUM_SPECIAL
    assert others.max() > 990


def test_ngrams_are_drawn_in_the_ratio_of_1_to_n_and_go_on_across_sep() -> None:
    words = words_of(rows(1, 200)[0], OPENS_WORD)
    cumulative = np.cumsum(span_length_weights(3)).tolist()
    tried = [each for n in range(300) for each in try_ngrams(words, 30, cumulative, Random(n))]
    drawn = np.bincount([n for n, *_ in tried])[1:]
    assert drawn / drawn.sum() == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)
    assert any(span[-1] - span[0] >= len(span) for _, span, is_taken in tried if is_taken)
    assert any(span and not is_taken for _, span, is_taken in tried)


def test_a_piece_that_goes_on_with_a_word_is_glued_to_it_even_across_sep() -> None:
    ids = np.array([[CLS, 6, 7, SEP, 7, 7, SEP]])
    masked = mask(np.repeat(ids, 50, axis=0))
    assert set(masked.num_predictions.tolist()) == {0}  # one word of 4 pieces, a budget of 1


def test_an_example_is_masked_the_same_whatever_stands_beside_it() -> None:
    random = Random(1)
    ids = np.array([[CLS, *(random.randrange(5, 1000) for _ in range(97)), SEP, SEP]] * 3)
    together = mask(ids)
    alone = mask(ids[:1])
    assert (together.input_ids[:100] == alone.input_ids).all()
