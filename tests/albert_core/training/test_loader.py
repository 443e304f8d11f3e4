import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.model.attention import lengths_of
from albert_core.stage.errors import IntegrityError
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed
from albert_core.training import loader as loader_module
from albert_core.training.loader import UpdateLoader
from albert_core.training.order import example_order, padded_length
from albert_core.training.shards import Batch, ExampleShards, Rows, UpdateSizes
from tests.albert_core.made_examples import assert_equal, made_examples

NUM_EXAMPLES, LENGTH = 101, 60
SEED = 5


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    uri = made_examples(str(tmp_path_factory.mktemp("examples")), NUM_EXAMPLES, LENGTH)
    return ExampleShards(uri, "train")


def updates(examples: ExampleShards, **options: Any) -> UpdateLoader:
    defaults: dict[str, Any] = {
        "batch_size": 16,
        "micro_batch_size": 4,
        "seed": SEED,
        "rank": 0,
        "world_size": 1,
        "first_example": 0,
        "num_updates": 3,
        "masks": "shards",
        "pin_memory": False,
    }
    return UpdateLoader(examples, **defaults | options)


@dataclass
class Taken:
    """One update as a rank got it, its micro-batches taken."""

    sizes: UpdateSizes
    batches: list[Batch]


def take(examples: ExampleShards, **options: Any) -> list[Taken]:
    with updates(examples, **options) as loader:
        return [Taken(update.sizes, list(update.micro_batches)) for update in loader]


def take_ranks(examples: ExampleShards, world_size: int, **options: Any) -> list[list[Taken]]:
    """Return each update as all ranks got it."""
    ranks = [
        take(examples, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    return [list(same_step) for same_step in zip(*ranks, strict=True)]


def masked_rows(ranks: list[Taken]) -> dict[bytes, tuple[int, ...]]:
    """Return the examples of an update, by their pieces before masking: as they are after it."""
    rows = {}
    for batch in (batch for taken in ranks for batch in taken.batches):
        before = batch.input_ids.clone()
        before[batch.masked_lm_positions] = batch.masked_lm_labels
        lengths = lengths_of(batch.runs)
        for key, after in zip(before.split(lengths), batch.input_ids.split(lengths), strict=True):
            rows[key.numpy().tobytes()] = tuple(after.tolist())
    return rows


def keys_of(examples: ExampleShards, numbers: Ints) -> list[bytes]:
    """Return the pieces before masking of each example, as `masked_rows` has them."""
    rows = examples.rows(numbers)
    ends = np.cumsum(rows.lengths)
    return [part.astype(np.int64).tobytes() for part in np.split(rows.unmasked(), ends[:-1])]


MASKS = st.sampled_from(["shards", "fresh"])
LAYOUTS: dict[str, Any] = {
    "world_size": st.integers(1, 4),
    "micro_batch_size": st.integers(1, 20),
    "batch_size": st.integers(4, 40),
}


@given(**LAYOUTS, first_step=st.integers(0, 30), masks=MASKS)
@settings(max_examples=40, deadline=None)
def test_every_layout_gives_an_update_the_examples_of_its_place_in_the_order(
    examples: ExampleShards,
    world_size: int,
    micro_batch_size: int,
    batch_size: int,
    first_step: int,
    masks: str,
) -> None:
    found = take_ranks(
        examples,
        world_size,
        micro_batch_size=micro_batch_size,
        batch_size=batch_size,
        first_example=first_step * batch_size,
        num_updates=2,
        masks=masks,
    )
    assert len(found) == 2
    for step, ranks in enumerate(found, first_step):
        order = example_order(
            step * batch_size, batch_size, NUM_EXAMPLES, derive_seed(SEED, "order")
        )
        assert set(masked_rows(ranks)) == set(keys_of(examples, order))
        batches = [batch for taken in ranks for batch in taken.batches]
        assert sum(batch.num_sequences for batch in batches) == batch_size


@given(**LAYOUTS, masks=MASKS)
@settings(max_examples=40, deadline=None)
def test_every_rank_knows_what_all_ranks_have_together(
    examples: ExampleShards, world_size: int, micro_batch_size: int, batch_size: int, masks: str
) -> None:
    options = {"micro_batch_size": micro_batch_size, "batch_size": batch_size, "masks": masks}
    for ranks in take_ranks(examples, world_size, **options):
        batches = [batch for taken in ranks for batch in taken.batches]
        for taken in ranks:
            assert len(taken.batches) == len(ranks[0].batches)
            assert taken.sizes == UpdateSizes(
                num_sequences=batch_size,
                num_pieces=sum(batch.num_pieces for batch in batches),
                sum_of_squares=sum(batch.sum_of_squares for batch in batches),
                num_predictions=sum(len(batch.masked_lm_labels) for batch in batches),
            )


@given(first_step=st.integers(0, 7), masks=MASKS)
@settings(max_examples=16, deadline=None)
def test_a_run_that_resumes_gets_the_batches_it_would_have_got(
    examples: ExampleShards, first_step: int, masks: str
) -> None:
    whole = take(examples, num_updates=8, masks=masks)
    resumed = take(examples, first_example=16 * first_step, num_updates=8 - first_step, masks=masks)
    assert len(resumed) == 8 - first_step
    for one, other in zip(whole[first_step:], resumed, strict=True):
        for a, b in zip(one.batches, other.batches, strict=True):
            assert_equal(a, b)


def test_fresh_masks_do_not_depend_on_ranks_and_micro_batches(examples: ExampleShards) -> None:
    alone = take_ranks(examples, 1, masks="fresh", micro_batch_size=16)
    together = take_ranks(examples, 3, masks="fresh", micro_batch_size=2)
    for one, other in zip(alone, together, strict=True):
        assert masked_rows(one) == masked_rows(other)


@pytest.mark.parametrize(("masks", "share_same"), [("shards", 1.0), ("fresh", 0.0)])
def test_masks_are_drawn_afresh_each_epoch_where_that_is_asked_for(
    examples: ExampleShards, masks: str, share_same: float
) -> None:
    epochs = take_ranks(examples, 1, batch_size=NUM_EXAMPLES, num_updates=2, masks=masks)
    first, second = (masked_rows(ranks) for ranks in epochs)
    long = [key for key in first if len(key) > 8 * 20]
    same = sum(first[key] == second[key] for key in long) / len(long)
    assert same == pytest.approx(share_same, abs=0.05)


def test_micro_batches_are_sorted_and_keep_to_their_budget(examples: ExampleShards) -> None:
    for taken in take(examples, batch_size=64):
        lengths = [n for batch in taken.batches for n in lengths_of(batch.runs)]
        assert lengths == sorted(lengths, reverse=True)
        for batch in taken.batches:
            assert batch.num_pieces <= 4 * padded_length(LENGTH)
        assert max(batch.num_sequences for batch in taken.batches) > 4
        assert len(taken.batches[1].runs) == 1  # a third of the examples has full length


def test_micro_batches_that_are_not_taken_are_passed_over(examples: ExampleShards) -> None:
    expected = take(examples)
    with updates(examples) as loader:
        for update, taken in zip(loader, expected, strict=True):
            assert len(taken.batches) >= 2
            assert_equal(next(iter(update.micro_batches)), taken.batches[0])


def test_no_updates_are_left_at_the_end_of_a_run(examples: ExampleShards) -> None:
    assert take(examples, num_updates=0) == []


# The thread: that none is left, a fixture of all tests checks


Replace = Callable[[Callable[[Rows], Rows]], None]


@pytest.fixture
def replace_rows(examples: ExampleShards, monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Let a function see, and change, all rows that are read."""
    read = examples.rows

    def replace(change: Callable[[Rows], Rows]) -> None:
        monkeypatch.setattr(examples, "rows", lambda numbers: change(read(numbers)))

    return replace


def test_an_error_in_the_thread_is_raised_where_its_batch_is_taken(
    examples: ExampleShards, replace_rows: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_PIECES_PER_CALL", 1)
    num_read = 0

    def fail_at_the_third(rows: Rows) -> Rows:
        nonlocal num_read
        num_read += 1
        if num_read == 3:
            raise IntegrityError("the shard is gone")
        return rows

    replace_rows(fail_at_the_third)
    with updates(examples, num_updates=10, micro_batch_size=1000) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(IntegrityError, match="the shard is gone"):
            next(iterator)


def test_leaving_early_ends_the_thread(examples: ExampleShards) -> None:
    began = time.monotonic()
    with updates(examples, num_updates=1_000_000, micro_batch_size=1000) as loader:
        next(iter(loader))
        assert any(thread.name.startswith("examples") for thread in threading.enumerate())
    assert time.monotonic() - began < 10


def test_an_error_of_the_consumer_ends_the_thread(examples: ExampleShards) -> None:
    def train() -> None:
        with updates(examples, num_updates=1_000_000) as loader:
            for update in loader:
                update.sizes.num_pieces // 0

    with pytest.raises(ZeroDivisionError):
        train()


def test_the_thread_does_not_run_far_ahead(
    examples: ExampleShards, replace_rows: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_PIECES_PER_CALL", 1000)
    monkeypatch.setattr(loader_module, "_PIECES_AHEAD", 4000)
    num_read = 0

    def count(rows: Rows) -> Rows:
        nonlocal num_read
        num_read += len(rows)
        return rows

    replace_rows(count)
    with updates(examples, num_updates=1000) as loader:
        iterator = iter(loader)
        for number in range(5):
            next(iterator)
            time.sleep(0.2)  # far longer than the thread needs
            assert num_read <= 16 * number + 16 + (4000 + 5 * 1000) // 20
    assert num_read < 5 * 16 + 1000


def test_only_time_spent_waiting_counts_as_waiting(
    examples: ExampleShards, replace_rows: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with updates(examples, num_updates=2) as loader:
        time.sleep(0.5)  # the thread makes all there is
        assert len(list(loader)) == 2
        assert loader.waited_seconds < 0.1

    def slowly(rows: Rows) -> Rows:
        time.sleep(1)  # from before the loader is asked
        return rows

    replace_rows(slowly)
    monkeypatch.setattr(loader_module, "_PIECES_PER_CALL", 1)
    with updates(examples, num_updates=2) as loader:
        assert len(list(loader)) == 2
        assert 0.5 < loader.waited_seconds < 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
def test_batches_are_in_page_locked_memory_where_that_is_asked_for(
    examples: ExampleShards,
) -> None:
    for taken in take(examples, pin_memory=True):
        for batch in taken.batches:
            assert batch.input_ids.is_pinned()
            assert batch.masked_lm_labels.is_pinned()
            on_gpu = batch.to(torch.device("cuda"))
            assert on_gpu.input_ids.sum().item() == batch.input_ids.sum().item()
