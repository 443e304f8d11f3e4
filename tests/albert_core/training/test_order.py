from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from albert_core.text.records import Ints
from albert_core.training.order import deal_update, example_order, padded_length, permute

SEEDS = st.integers(0, 2**63 - 1)


def test_golden_permutation() -> None:
    assert permute(np.arange(10), 10, 7).tolist() == [7, 9, 2, 5, 6, 0, 8, 3, 4, 1]


def test_golden_order() -> None:
    assert example_order(0, 12, 10, 12345).tolist() == [8, 6, 9, 3, 7, 1, 5, 0, 4, 2, 9, 5]
    assert example_order(95, 10, 100, 12345).tolist() == [22, 51, 9, 3, 59, 60, 2, 14, 64, 80]


@given(st.integers(1, 50), st.integers(0, 5), SEEDS)
def test_every_epoch_visits_each_example_once(num_examples: int, epoch: int, seed: int) -> None:
    order = example_order(epoch * num_examples, num_examples, num_examples, seed)
    assert sorted(order.tolist()) == list(range(num_examples))


@given(st.integers(1, 40), st.lists(st.integers(0, 30), max_size=8), SEEDS)
def test_slices_of_any_size_make_one_sequence(
    num_examples: int, sizes: list[int], seed: int
) -> None:
    begins = np.cumsum([0, *sizes])
    parts = [
        example_order(int(begin), size, num_examples, seed)
        for begin, size in zip(begins[:-1], sizes, strict=True)
    ]
    whole = example_order(0, int(begins[-1]), num_examples, seed)
    assert np.concatenate([np.empty(0, np.int64), *parts]).tolist() == whole.tolist()


# An update's examples, dealt to ranks and micro-batches

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=80)
WORLD_SIZES, BUDGETS = st.integers(1, 9), st.integers(512, 5000)


def deal(lengths: list[int], world_size: int, max_padded_pieces: int) -> list[list[Ints]]:
    """Return the micro-batches of each rank; there are as many ranks as there can be, at most."""
    world_size = min(world_size, len(lengths))
    return [
        deal_update(np.array(lengths), rank, world_size, max_padded_pieces)
        for rank in range(world_size)
    ]


@given(LENGTHS, WORLD_SIZES, BUDGETS)
def test_every_example_is_dealt_once_and_ranks_have_nearly_equal_parts(
    lengths: list[int], world_size: int, budget: int
) -> None:
    ranks = deal(lengths, world_size, budget)
    dealt = [np.concatenate(parts) for parts in ranks]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(lengths)))
    counts = [len(places) for places in dealt]
    pieces = [int(np.array(lengths)[places].sum()) for places in dealt]
    assert max(counts) - min(counts) <= 1
    assert max(pieces) - min(pieces) <= max(lengths)
    assert len({len(parts) for parts in ranks}) == 1
    for same_place in zip(*ranks, strict=True):
        sizes = [len(part) for part in same_place]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


@given(LENGTHS, WORLD_SIZES, BUDGETS)
def test_a_micro_batch_keeps_to_its_budget_unless_it_cannot_be_smaller(
    lengths: list[int], world_size: int, budget: int
) -> None:
    ranks = deal(lengths, world_size, budget)
    last_round_is_whole = len(lengths) % len(ranks) == 0
    for parts in ranks:
        for number, part in enumerate(parts):
            padded = len(part) * padded_length(max(lengths[i] for i in part))
            is_last = number == len(parts) - 1
            smallest = 2 if is_last and not last_round_is_whole else 1
            assert padded <= budget or len(part) <= smallest


@given(LENGTHS, BUDGETS)
def test_the_longest_come_first_and_equals_in_their_order(lengths: list[int], budget: int) -> None:
    [parts] = deal(lengths, 1, budget)
    dealt = np.concatenate(parts).tolist()
    assert dealt == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


@given(LENGTHS, BUDGETS)
def test_no_two_neighbouring_micro_batches_fit_into_one(lengths: list[int], budget: int) -> None:
    [parts] = deal(lengths, 1, budget)
    for one, other in pairwise(parts):
        assert (len(one) + len(other)) * padded_length(lengths[one[0]]) > budget


def test_short_sequences_make_larger_micro_batches() -> None:
    [parts] = deal([512] * 2 + [64] * 16, 1, 2 * 512)
    assert [len(part) for part in parts] == [2, 16]


def test_an_incomplete_last_round_is_not_cut_off_even_if_only_one_example_fits() -> None:
    ranks = deal([512] * 5, 2, 512)
    assert [[part.tolist() for part in parts] for parts in ranks] == [[[0], [3, 4]], [[1], [2]]]
