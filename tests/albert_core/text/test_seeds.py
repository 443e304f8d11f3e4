import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.text.seeds import derive_seed, random_bits, random_uniform, share_of

NAMES = st.lists(st.text() | st.integers(), max_size=4)
SEEDS = st.integers(0, 2**63 - 1)
FILES = [f"file.jsonl#{n}" for n in range(10_000)]


@given(st.integers(0), NAMES, NAMES)
def test_other_names_give_another_seed_that_fits_an_int64(
    root: int, names: list[str | int], others: list[str | int]
) -> None:
    seed = derive_seed(root, *names)
    assert (seed == derive_seed(root, *others)) == (names == others)
    assert 0 <= seed < 2**63


def test_golden_seeds_do_not_depend_on_the_process() -> None:
    calls = "[d(0), d(12345, 'mask', 'wiki/12', 0), d(7, 'epoch', 3)]"
    code = f"from albert_core.text.seeds import derive_seed as d; print({calls})"
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        )
        assert done.stdout.strip() == (
            "[2631537505891389924, 388368058758176427, 978687755993954585]"
        )


def test_bits_are_those_of_the_published_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert random_bits(0, np.arange(4)).tolist() == published


@given(SEEDS, st.integers(0, 2**40), st.integers(1, 50))
def test_a_draw_depends_on_its_counter_and_not_on_its_neighbours(
    seed: int, first: int, count: int
) -> None:
    together = random_bits(seed, np.arange(first, first + count))
    alone = [int(random_bits(seed, first + i)[0]) for i in range(count)]
    assert together.tolist() == alone


def test_uniform_numbers_are_spread_evenly_and_do_not_follow_each_other() -> None:
    golden = [0.1330796686614273, 0.20481663336165912, 0.11954258300911547]
    assert random_uniform(12345, np.arange(3)).tolist() == golden
    numbers = random_uniform(1, np.arange(100_000))
    counts = np.bincount((numbers * 10).astype(int), minlength=10)
    assert (abs(counts - 10_000) < 400).all()  # four standard deviations
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.013


def sample(purpose: str, share: float) -> set[str]:
    return {name for name in FILES if share_of(12345, purpose, name) < share}


def test_a_sample_grows_with_the_share_asked_for_and_depends_on_its_purpose() -> None:
    tenth, fifth = sample("held-out", 0.1), sample("held-out", 0.2)
    assert len(tenth) == pytest.approx(1000, abs=120)
    assert tenth < fifth
    both = sample("held-out", 0.5) & sample("sentences", 0.5)
    assert len(both) == pytest.approx(2500, abs=200)
