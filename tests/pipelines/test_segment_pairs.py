import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from albert_core.contract.records import CLS, SEP
from pipelines.segment_pairs import SegmentPairs, assemble, cut_into_pairs

LENGTHS = st.lists(st.integers(1, 200), min_size=0, max_size=60)


def cut(lengths: list[int], seed: int, max_num_pieces: int, short: float = 0.1) -> SegmentPairs:
    opens_word = np.random.default_rng(seed).random(sum(lengths)) < 0.7
    return cut_into_pairs(np.array(lengths, np.int64), opens_word, seed, max_num_pieces, short)


@given(LENGTHS, st.integers(0, 2**32), st.integers(13, 509))
def test_chunks_follow_each_other_and_every_piece_is_kept_or_counted(
    lengths: list[int], seed: int, max_num_pieces: int
) -> None:
    pairs = cut(lengths, seed, max_num_pieces)
    assert (np.concatenate([[0], pairs.end])[: len(pairs.start)] == pairs.start).all()
    assert (pairs.end - pairs.start).sum() + pairs.num_dropped == sum(lengths)


@given(LENGTHS, st.integers(0, 2**32), st.integers(13, 509))
def test_both_segments_have_pieces_and_fit(
    lengths: list[int], seed: int, max_num_pieces: int
) -> None:
    pairs = cut(lengths, seed, max_num_pieces)
    assert (pairs.start < pairs.middle).all()
    assert (pairs.middle < pairs.end).all()
    assert (pairs.end - pairs.start <= max_num_pieces).all()


@given(LENGTHS, st.integers(0, 2**32))
def test_the_sentences_named_are_those_of_the_pieces(lengths: list[int], seed: int) -> None:
    pairs = cut(lengths, seed, 61)
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    assert (sentence_of[pairs.start] == pairs.first_sentence).all()
    assert (sentence_of[pairs.end - 1] == pairs.last_sentence).all()


def test_a_document_of_one_sentence_gives_no_pair() -> None:
    pairs = cut([20], seed=1, max_num_pieces=61)
    assert len(pairs.start) == 0
    assert pairs.num_dropped == 20


def test_without_short_targets_examples_are_full_but_for_the_last() -> None:
    pairs = cut([9, 14, 21, 8] * 50, seed=3, max_num_pieces=125, short=0.0)
    sizes = pairs.end - pairs.start
    assert (sizes[:-1] > 110).all()


def test_half_of_the_pairs_are_swapped() -> None:
    swapped = np.concatenate([cut([7] * 100, seed, 61).swapped for seed in range(200)])
    assert 0.47 < swapped.mean() < 0.53


def test_the_cut_falls_on_every_sentence_alike() -> None:
    middles = np.concatenate([cut([10] * 6, seed, 60, short=0.0).middle for seed in range(1000)])
    counts = np.bincount(middles // 10, minlength=6)[1:]
    assert (abs(counts / 1000 - 0.2) < 0.05).all()


def test_a_swapped_pair_begins_with_the_later_part() -> None:
    pieces = np.arange(10, 20)
    input_ids, lengths, b_starts = assemble(
        pieces, np.array([0, 5]), np.array([2, 6]), np.array([5, 10]), np.array([True, False])
    )
    assert input_ids.tolist() == [
        *[CLS, 12, 13, 14, SEP, 10, 11, SEP],
        *[CLS, 15, SEP, 16, 17, 18, 19, SEP],
    ]
    assert lengths.tolist() == [8, 8]
    assert b_starts.tolist() == [5, 3]
