from collections import Counter
from dataclasses import fields
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.results import Objective
from albert_core.text.masking import Masked, span_length_weights
from albert_core.text.records import CLS, MASK, NUM_SPECIAL, SEP, Ints
from albert_core.text.seeds import random_bits
from pipelines.config import ExampleSettings
from pipelines.examples.pairs import (
    ALONE,
    BORROWED,
    CUT_BY,
    NO_OTHER,
    TRUNCATED,
    SegmentPairs,
    Sentences,
    assemble,
    count_lengths,
    cut_into_pairs,
    google_masks,
    join_pairs,
    length_only_accuracy,
    try_ngrams,
    words_of,
)

LENGTHS = st.lists(st.integers(1, 200), min_size=0, max_size=60)
DOCUMENTS = st.lists(LENGTHS, min_size=1, max_size=5)
OBJECTIVES = st.sampled_from(["sop", "nsp", "none"])
SEEDS = st.integers(0, 2**32)
SIZES = st.integers(13, 509)


def sentences_of(*documents: list[int]) -> Sentences:
    """Return documents with sentences of these lengths; each piece is numbered by its place."""
    lengths = [length for document in documents for length in document]
    bounds = np.cumsum([0, *lengths]).astype(np.int64)
    first = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    return Sentences(np.arange(bounds[-1], dtype=np.int32), bounds, first)


def rules(max_num_pieces: int, short: float = 0.1, objective: Objective = "sop") -> ExampleSettings:
    return ExampleSettings(
        max_seq_length=max_num_pieces + 3, short_seq_prob=short, objective=objective
    )


def cut_all(
    documents: list[list[int]],
    seed: int,
    max_num_pieces: int,
    short: float = 0.1,
    objective: Objective = "sop",
    by: str = "paper",
) -> tuple[SegmentPairs, Counter[str]]:
    """Return the pairs of all ``documents``, cut by these rules or by google's."""
    numbers = np.arange(len(documents))
    settings = rules(max_num_pieces, short, objective)
    return CUT_BY[by](sentences_of(*documents), numbers, random_bits(seed, numbers), settings)


google_cut = partial(cut_all, by="google")


def cut(lengths: list[int], seed: int, max_num_pieces: int, short: float = 0.1) -> SegmentPairs:
    return cut_all([lengths], seed, max_num_pieces, short)[0]


def first_and_second(pairs: SegmentPairs) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the segments in the order of the document."""
    a = list(zip(pairs.start_a.tolist(), pairs.end_a.tolist(), strict=True))
    b = list(zip(pairs.start_b.tolist(), pairs.end_b.tolist(), strict=True))
    swapped = pairs.label.astype(bool)
    first = [y if s else x for x, y, s in zip(a, b, swapped, strict=True)]
    second = [x if s else y for x, y, s in zip(a, b, swapped, strict=True)]
    return first, second


@pytest.mark.parametrize("by", CUT_BY)
@given(documents=DOCUMENTS, seed=SEEDS, max_num_pieces=SIZES, objective=OBJECTIVES)
def test_pairs_fit_and_every_piece_is_kept_or_counted(
    by: str, documents: list[list[int]], seed: int, max_num_pieces: int, objective: Objective
) -> None:
    pairs, counts = cut_all(documents, seed, max_num_pieces, objective=objective, by=by)
    total = sum(map(sum, documents)) + counts[BORROWED]
    assert pairs.num_pieces + counts[ALONE] + counts[TRUNCATED] == total
    sizes_a, sizes_b = pairs.end_a - pairs.start_a, pairs.end_b - pairs.start_b
    assert (sizes_a + sizes_b <= max_num_pieces).all()
    if by == "paper":
        assert (np.minimum(sizes_a, sizes_b) > 0).all()
    else:  # every sentence is in a pair
        assert counts[ALONE] == 0
        used = (pairs.last_sentence - pairs.first_sentence + 1).sum()
        assert used == sum(map(len, documents))


@given(LENGTHS, SEEDS)
def test_chunks_are_whole_sentences_that_follow_each_other(lengths: list[int], seed: int) -> None:
    pairs = cut(lengths, seed, 61)
    assert (pairs.last_sentence[:-1] + 1 == pairs.first_sentence[1:]).all()
    if len(pairs):
        assert pairs.first_sentence[0] == 0 or pairs.last_sentence[-1] == len(lengths) - 1
    bounds = np.cumsum([0, *lengths])
    firsts, seconds = first_and_second(pairs)
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        begin, end = bounds[pairs.first_sentence[i]], bounds[pairs.last_sentence[i] + 1]
        if end - begin <= 61:
            assert (first[0], second[1]) == (begin, end)
            assert first[1] == second[0]
            assert first[1] in bounds
        else:
            assert pairs.last_sentence[i] == pairs.first_sentence[i] + 1


@given(DOCUMENTS, SEEDS)
def test_a_document_is_cut_the_same_whatever_stands_beside_it(
    documents: list[list[int]], seed: int
) -> None:
    numbers = np.arange(len(documents))
    keys = random_bits(seed, numbers)
    sentences = sentences_of(*documents)
    together = cut_into_pairs(sentences, numbers, keys, rules(61))
    alone = [cut_into_pairs(sentences, numbers[[i]], keys[[i]], rules(61)) for i in numbers]
    joined = join_pairs([pairs for pairs, _ in alone])
    for field in fields(SegmentPairs):
        name = field.name
        np.testing.assert_array_equal(getattr(joined, name), getattr(together[0], name))
    assert sum((counts for _, counts in alone), Counter()) == +together[1]


def test_sentences_that_are_too_long_are_cut_at_every_end_alike() -> None:
    whole = 0, 50, 50, 100
    lost = np.zeros(4)
    for seed in range(2000):
        first, second = first_and_second(cut([50, 50], seed, 61))
        lost += abs(np.array([*first[0], *second[0]]) - whole)
    assert lost.sum() == 2000 * 39
    assert lost / 2000 == pytest.approx(np.full(4, 39 / 4), rel=0.05)


def test_the_last_sentence_is_not_left_alone_where_another_can_be_spared() -> None:
    pairs, counts = cut_all([[20, 20, 20, 20]], seed=1, max_num_pieces=61, short=0.0)
    assert pairs.last_sentence.tolist() == [1, 3]
    assert counts[ALONE] == 0


def test_without_short_targets_another_sentence_would_not_fit() -> None:
    lengths = np.random.default_rng(3).integers(3, 60, 200).tolist()
    bounds = np.cumsum([0, *lengths])
    packed_from_front = set()
    for seed in range(4):
        pairs = cut(lengths, seed, max_num_pieces=125, short=0.0)
        begin, stop = pairs.first_sentence[2:-2], pairs.last_sentence[2:-2] + 1
        no_room = np.array(
            [bounds[stop + 1] - bounds[begin] > 125, bounds[stop] - bounds[begin - 1] > 125]
        )
        assert no_room.all(axis=1).any()
        packed_from_front.add(bool(no_room[0].all()))
    assert packed_from_front == {True, False}


def length_only(pairs: SegmentPairs) -> float:
    half = len(pairs) // 2
    train, held_out = pairs.take(slice(half)), pairs.take(slice(half, None))
    return length_only_accuracy(count_lengths(train), count_lengths(held_out))


@pytest.mark.parametrize("max_num_pieces", [61, 125])
def test_lengths_tell_nothing_of_the_order(max_num_pieces: int) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(3, 60, 40).tolist() for _ in range(2000)]
    pairs, _ = cut_all(documents, 5, max_num_pieces)
    assert length_only(pairs) == pytest.approx(0.5, abs=1.5 / len(pairs) ** 0.5)


@pytest.mark.parametrize("max_num_pieces", [61, 253])
def test_lengths_tell_nothing_of_the_order_of_a_few_long_documents(max_num_pieces: int) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(3, 60, 20_000).tolist() for _ in range(6)]
    found = [length_only(cut_all(documents, seed, max_num_pieces)[0]) for seed in range(6)]
    assert np.mean(np.abs(np.array(found) - 0.5)) < 0.006


@pytest.mark.parametrize("max_num_pieces", [61, 125])
def test_lengths_hardly_tell_a_borrowed_segment_from_what_it_replaces(max_num_pieces: int) -> None:
    rng = np.random.default_rng(1)
    of_each = np.minimum(3 + rng.geometric(0.01, 1000), 400)
    documents = [rng.geometric(rng.uniform(0.02, 0.1), n).tolist() for n in of_each]
    pairs, _ = cut_all(documents, 5, max_num_pieces, objective="nsp")
    assert length_only(pairs) == pytest.approx(0.5, abs=2 / len(pairs) ** 0.5)
    is_full = pairs.end_a - pairs.start_a + pairs.end_b - pairs.start_b == max_num_pieces
    shares = [is_full[pairs.label == label].mean() for label in (0, 1)]
    assert shares[1] == pytest.approx(shares[0], abs=0.02)


def test_lengths_that_tell_the_order_are_found() -> None:
    documents = [[10, 30]] * 400
    pairs, _ = cut_all(documents, 5, max_num_pieces=61)
    assert length_only(pairs) == 1.0


@pytest.mark.parametrize(("objective", "share"), [("sop", 0.5), ("nsp", 0.5), ("none", 0.0)])
def test_half_of_the_pairs_have_label_1_where_there_is_something_to_learn(
    objective: Objective, share: float
) -> None:
    pairs, _ = cut_all([[7] * 100] * 200, 1, 61, objective=objective)
    assert pairs.label.mean() == pytest.approx(share, abs=0.03)


def test_without_an_objective_segment_b_follows_a() -> None:
    pairs, _ = cut_all([[7] * 30, [9] * 40], 1, 61, objective="none")
    assert (pairs.end_a == pairs.start_b).all()


def test_the_cut_falls_on_every_sentence_alike() -> None:
    middles = [
        first_and_second(cut([10] * 6, seed, 60, short=0.0))[1][0][0] for seed in range(1000)
    ]
    counts = np.bincount(np.array(middles) // 10, minlength=6)[1:]
    assert (abs(counts / 1000 - 0.2) < 0.05).all()


@given(st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=30), min_size=2, max_size=5))
def test_a_borrowed_segment_is_whole_sentences_of_another_document_and_what_it_replaces_follows(
    documents: list[list[int]],
) -> None:
    pairs, _ = cut_all(documents, 1, 61, objective="nsp")
    sentences = sentences_of(*documents)
    borrowed = pairs.take(np.flatnonzero(pairs.other_document >= 0))
    assert (borrowed.label == 1).all()
    assert (borrowed.other_document != borrowed.document).all()
    assert (borrowed.start_b == sentences.bounds[borrowed.other_first_sentence]).all()
    assert (borrowed.end_b == sentences.bounds[borrowed.other_last_sentence + 1]).all()
    own = np.searchsorted(sentences.first, borrowed.other_first_sentence, side="right") - 1
    assert (own == borrowed.other_document).all()
    assert (borrowed.other_last_sentence < sentences.first[borrowed.other_document + 1]).all()
    for document in range(len(documents)):  # the second part comes in the next pair
        of_one = pairs.take(np.flatnonzero(pairs.document == document))
        assert (of_one.last_sentence[:-1] + 1 == of_one.first_sentence[1:]).all()


def test_a_document_that_has_no_other_keeps_its_pairs_in_order() -> None:
    pairs, counts = cut_all([[7] * 200, []], 1, 61, objective="nsp")
    assert not pairs.label.any()
    assert (pairs.other_document == -1).all()
    assert 0 < counts[NO_OTHER] < len(pairs)


def test_a_swapped_pair_begins_with_the_later_part() -> None:
    pieces = np.array([*range(10, 20), CLS, SEP], np.uint16)
    ends = {"start_a": [2, 5], "end_a": [5, 6], "start_b": [0, 6], "end_b": [2, 10]}
    columns: dict[str, Any] = {field.name: np.zeros(2, np.int32) for field in fields(SegmentPairs)}
    columns |= {name: np.array(values, np.int32) for name, values in ends.items()}
    pairs = SegmentPairs(**columns)
    input_ids, lengths, b_starts = assemble(pieces, pairs)
    assert input_ids.tolist() == [
        *[CLS, 12, 13, 14, SEP, 10, 11, SEP],
        *[CLS, 15, SEP, 16, 17, 18, 19, SEP],
    ]
    assert lengths.tolist() == [8, 8]
    assert b_starts.tolist() == [5, 3]


def test_golden_pairs() -> None:
    pairs = cut([9, 14, 21, 8] * 3, seed=12345, max_num_pieces=61)
    assert pairs.start_a.tolist() == [0, 52, 148]
    assert pairs.end_b.tolist() == [44, 52, 148]
    assert pairs.label.tolist() == [0, 1, 1]


OPENS_WORD = np.arange(1000) % 2 == 0
"""Pieces with even ids open a word."""


def mask(ids: Ints, max_predictions: int = 77, seed: int = 1) -> Masked:
    return google_masks(
        ids.ravel(),
        np.full(len(ids), ids.shape[1]),
        np.zeros(0, np.int64),
        OPENS_WORD,
        random_bits(seed, np.arange(len(ids))),
        0.15,
        3,
        max_predictions,
    )


def rows(number: int, length: int) -> Ints:
    """Return examples of words of one piece, with [SEP] in the middle."""
    ids = np.full((number, length), NUM_SPECIAL + 1)  # 6 opens a word
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    return ids


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
