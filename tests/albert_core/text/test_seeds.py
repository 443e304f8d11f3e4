import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from albert_core.text.seeds import derive_seed, random_bits, random_uniform, share_of

NAMES = st.lists(st.text() | st.integers(), max_size=4)
SEEDS = st.integers(0, 2**63 - 1)


@given(st.integers(0), NAMES)
def test_a_seed_fits_an_int64(root: int, names: list[str | int]) -> None:
    assert 0 <= derive_seed(root, *names) < 2**63


@given(st.integers(0), NAMES, NAMES)
def test_other_names_give_another_seed(
    root: int, names: list[str | int], others: list[str | int]
) -> None:
    assert (derive_seed(root, *names) == derive_seed(root, *others)) == (names == others)


def test_a_number_and_its_digits_are_different_names() -> None:
    assert derive_seed(7, "copy", 1) != derive_seed(7, "copy", "1")
    assert derive_seed(7, "a", "b") != derive_seed(7, "ab")


def test_a_seed_does_not_depend_on_the_process() -> None:
    code = "from albert_core.text.seeds import derive_seed as d; print(d(7, 'mask', 'wiki/12'))"
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert int(done.stdout) == derive_seed(7, "mask", "wiki/12")


def test_golden_seeds() -> None:
    assert [
        derive_seed(0),
        derive_seed(12345, "mask", "wiki/12", 0),
        derive_seed(7, "epoch", 3),
    ] == [
        2631537505891389924,
        388368058758176427,
        978687755993954585,
    ]


def test_bits_are_those_of_the_published_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert random_bits(0, np.arange(4)).tolist() == published


def test_golden_uniform_numbers() -> None:
    assert random_uniform(12345, np.arange(3)).tolist() == [
        0.1330796686614273,
        0.20481663336165912,
        0.11954258300911547,
    ]


@given(SEEDS, st.integers(0, 2**40), st.integers(1, 50))
def test_a_draw_depends_on_its_counter_and_not_on_its_neighbours(
    seed: int, first: int, count: int
) -> None:
    together = random_bits(seed, np.arange(first, first + count))
    alone = [int(random_bits(seed, first + i)[0]) for i in range(count)]
    assert together.tolist() == alone


def test_seeds_and_counters_broadcast() -> None:
    seeds = np.array([[3], [4]], np.uint64)
    bits = random_bits(seeds, np.arange(5))
    assert bits.shape == (2, 5)
    assert (bits[1] == random_bits(4, np.arange(5))).all()


@given(SEEDS)
def test_uniform_numbers_are_from_0_up_to_but_not_1(seed: int) -> None:
    numbers = random_uniform(seed, np.arange(100))
    assert numbers.dtype == np.float64
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_uniform_numbers_are_spread_evenly_and_do_not_follow_each_other() -> None:
    numbers = random_uniform(1, np.arange(100_000))
    counts = np.bincount((numbers * 10).astype(int), minlength=10)
    assert (abs(counts - 10_000) < 400).all()  # four standard deviations
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.013


def test_a_sample_has_about_the_share_asked_for_and_grows_with_it() -> None:
    names = [f"file.jsonl#{n}" for n in range(10_000)]
    tenth, fifth = (
        {name for name in names if share_of(12345, "held-out", name) < share}
        for share in (0.1, 0.2)
    )
    assert abs(len(tenth) - 1000) < 120
    assert tenth < fifth


def test_samples_for_two_purposes_are_independent() -> None:
    names = [f"file.jsonl#{n}" for n in range(10_000)]
    one, two = (
        {name for name in names if share_of(12345, purpose, name) < 0.5}
        for purpose in ("held-out", "sentences")
    )
    assert abs(len(one & two) - 2500) < 200
