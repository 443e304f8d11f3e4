import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.contract.records import CLS, SEP
from pipelines.segment_pairs import SegmentPairs, assemble, cut_into_pairs

LENGTHS = st.lists(st.integers(1, 200), min_size=0, max_size=60)


def cut(lengths: list[int], seed: int, max_num_pieces: int, short: float = 0.1) -> SegmentPairs:
    return cut_into_pairs(np.array(lengths, np.int64), seed, max_num_pieces, short)


@given(LENGTHS, st.integers(0, 2**32), st.integers(13, 509))
def test_every_piece_is_kept_or_counted(lengths: list[int], seed: int, max_num_pieces: int) -> None:
    pairs = cut(lengths, seed, max_num_pieces)
    kept = (pairs.first_end - pairs.first_start + pairs.second_end - pairs.second_start).sum()
    assert kept + pairs.num_alone + pairs.num_truncated == sum(lengths)


@given(LENGTHS, st.integers(0, 2**32), st.integers(13, 509))
def test_both_segments_have_pieces_and_fit(
    lengths: list[int], seed: int, max_num_pieces: int
) -> None:
    pairs = cut(lengths, seed, max_num_pieces)
    assert (pairs.first_start < pairs.first_end).all()
    assert (pairs.first_end <= pairs.second_start).all()
    assert (pairs.second_start < pairs.second_end).all()
    sizes = pairs.first_end - pairs.first_start + pairs.second_end - pairs.second_start
    assert (sizes <= max_num_pieces).all()


@given(LENGTHS, st.integers(0, 2**32))
def test_chunks_are_whole_sentences_that_follow_each_other(lengths: list[int], seed: int) -> None:
    pairs = cut(lengths, seed, 61)
    assert (np.concatenate([[-1], pairs.last_sentence])[:-1] + 1 == pairs.first_sentence).all()
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    for i in range(len(pairs.swapped)):
        first, last = int(pairs.first_sentence[i]), int(pairs.last_sentence[i])
        if bounds[last + 1] - bounds[first] <= 61:
            assert pairs.first_start[i] == bounds[first]
            assert pairs.first_end[i] == pairs.second_start[i]
            assert pairs.first_end[i] in bounds
            assert pairs.second_end[i] == bounds[last + 1]
        else:
            assert last == first + 1


def test_sentences_that_are_too_long_are_cut_at_every_end_alike() -> None:
    ends = {"first_start": 0, "first_end": 0, "second_start": 0, "second_end": 0}
    for seed in range(2000):
        pairs = cut([50, 50], seed, 61)
        whole = {"first_start": 0, "first_end": 50, "second_start": 50, "second_end": 100}
        for name, place in whole.items():
            ends[name] += abs(int(getattr(pairs, name)[0]) - place)
    mean = sum(ends.values()) / 4
    assert mean == 2000 * 39 / 4
    assert all(cut_off == pytest.approx(mean, rel=0.05) for cut_off in ends.values())


def test_neither_length_nor_place_of_a_cut_tells_the_order() -> None:
    first_is_longer = 0
    for seed in range(2000):
        pairs = cut([50, 50], seed, 61)
        sizes = pairs.first_end - pairs.first_start, pairs.second_end - pairs.second_start
        assert abs(int(sizes[0][0] - sizes[1][0])) == 1
        first_is_longer += int(sizes[0][0] > sizes[1][0])
    assert 900 < first_is_longer < 1100


def test_a_document_of_one_sentence_gives_no_pair() -> None:
    pairs = cut([20], seed=1, max_num_pieces=61)
    assert len(pairs.swapped) == 0
    assert pairs.num_alone == 20


def test_the_last_sentence_is_not_left_alone_where_another_can_be_spared() -> None:
    pairs = cut([20, 20, 20, 20], seed=1, max_num_pieces=61, short=0.0)
    assert pairs.last_sentence.tolist() == [1, 3]
    assert pairs.num_alone == 0


def test_without_short_targets_another_sentence_would_not_fit() -> None:
    lengths = [9, 14, 21, 8] * 50
    pairs = cut(lengths, seed=3, max_num_pieces=125, short=0.0)
    sizes = pairs.second_end - pairs.first_start
    following = np.array(lengths)[pairs.last_sentence[:-2] + 1]
    assert (sizes[:-2] + following > 125).all()


def test_half_of_the_pairs_are_swapped() -> None:
    swapped = np.concatenate([cut([7] * 100, seed, 61).swapped for seed in range(200)])
    assert 0.47 < swapped.mean() < 0.53


def test_the_cut_falls_on_every_sentence_alike() -> None:
    middles = np.concatenate(
        [cut([10] * 6, seed, 60, short=0.0).second_start for seed in range(1000)]
    )
    counts = np.bincount(middles // 10, minlength=6)[1:]
    assert (abs(counts / 1000 - 0.2) < 0.05).all()


def test_a_swapped_pair_begins_with_the_later_part() -> None:
    pieces = np.arange(10, 20)
    first = np.array([0, 5]), np.array([2, 6])
    second = np.array([2, 6]), np.array([5, 10])
    input_ids, lengths, b_starts = assemble(pieces, first, second, np.array([True, False]))
    assert input_ids.tolist() == [
        *[CLS, 12, 13, 14, SEP, 10, 11, SEP],
        *[CLS, 15, SEP, 16, 17, 18, 19, SEP],
    ]
    assert lengths.tolist() == [8, 8]
    assert b_starts.tolist() == [5, 3]
