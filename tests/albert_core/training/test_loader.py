import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from albert_core.config import TrainingSettings
from albert_core.model.execution import lengths_of
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.stage.manifest import read_manifest
from albert_core.text.masking import mask_examples
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.training import loader as loader_module
from albert_core.training.loader import (
    Batch,
    ExampleShards,
    FreshMasks,
    Rows,
    UpdateLoader,
    UpdateSizes,
)
from albert_core.training.order import example_order
from albert_core.training.ranks import Ranks
from tests.albert_core.made_examples import (
    MASKED_LM_PROB,
    MAX_NGRAM,
    assert_equal,
    made_examples,
)
from tests.albert_core.tiny_vocab import tiny_vocab

NUM_EXAMPLES, LENGTH = 101, 60
SEED = 5


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    uri = made_examples(str(tmp_path_factory.mktemp("examples")), NUM_EXAMPLES, LENGTH)
    return ExampleShards(uri, "train")


def updates(
    examples: ExampleShards,
    rank: int = 0,
    world_size: int = 1,
    first_example: int = 0,
    num_updates: int = 3,
    device: str = "cpu",
    **options: Any,
) -> UpdateLoader:
    settings: dict[str, Any] = {"batch_size": 16, "micro_batch_size": 4, "seed": SEED} | options
    ranks = Ranks(rank, world_size, torch.device(device))
    place = {"first_example": first_example, "num_updates": num_updates}
    return UpdateLoader(examples, TrainingSettings(**settings), ranks, **place)


class Taken(NamedTuple):
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


def keys_of(examples: ExampleShards, numbers: Ints) -> set[bytes]:
    """Return the pieces before masking of each example, as `masked_rows` has them."""
    rows = examples.rows(numbers)
    parts = np.split(rows.unmasked(), np.cumsum(rows.lengths)[:-1])
    return {part.astype(np.int64).tobytes() for part in parts}


MASKS = st.sampled_from(["shards", "fresh"])


@given(
    world_size=st.integers(1, 4),
    micro_batch_size=st.integers(1, 20),
    batch_size=st.integers(4, 40),
    first_step=st.integers(0, 30),
    masks=MASKS,
)
@settings(max_examples=40, deadline=None)
def test_however_it_is_cut_an_update_has_the_examples_of_its_place_and_each_rank_its_sizes(
    examples: ExampleShards,
    world_size: int,
    micro_batch_size: int,
    batch_size: int,
    first_step: int,
    masks: str,
) -> None:
    cut = {"micro_batch_size": micro_batch_size, "batch_size": batch_size, "masks": masks}
    place = {"first_example": first_step * batch_size, "num_updates": 2}
    found = take_ranks(examples, world_size, **cut, **place)
    assert len(found) == 2
    for step, ranks in enumerate(found, first_step):
        seed = derive_seed(SEED, "order")
        order = example_order(step * batch_size, batch_size, NUM_EXAMPLES, seed)
        assert set(masked_rows(ranks)) == keys_of(examples, order)
        batches = [batch for taken in ranks for batch in taken.batches]
        lengths = [n for batch in batches for n in lengths_of(batch.runs)]
        for taken in ranks:
            assert len(taken.batches) == len(ranks[0].batches)
            assert taken.sizes == UpdateSizes(
                num_sequences=len(lengths),
                num_pieces=sum(lengths),
                sum_of_squares=sum(length**2 for length in lengths),
                num_predictions=sum(len(batch.masked_lm_labels) for batch in batches),
            )
            assert taken.sizes.num_sequences == batch_size


@given(first_step=st.integers(0, 7), masks=MASKS)
@settings(max_examples=16, deadline=None)
def test_a_run_that_resumes_gets_the_batches_it_would_have_got(
    examples: ExampleShards, first_step: int, masks: str
) -> None:
    whole = take(examples, num_updates=8, masks=masks)
    resumed = take(examples, first_example=16 * first_step, num_updates=8 - first_step, masks=masks)
    for one, other in zip(whole[first_step:], resumed, strict=True):
        for a, b in zip(one.batches, other.batches, strict=True):
            assert_equal(a, b)


def test_fresh_masks_do_not_depend_on_ranks_and_micro_batches(examples: ExampleShards) -> None:
    alone = take_ranks(examples, 1, masks="fresh", micro_batch_size=16)
    together = take_ranks(examples, 3, masks="fresh", micro_batch_size=2)
    assert list(map(masked_rows, together)) == list(map(masked_rows, alone))


@pytest.mark.parametrize(("masks", "share_same"), [("shards", 1.0), ("fresh", 0.0)])
def test_masks_are_drawn_afresh_each_epoch_where_that_is_asked_for(
    examples: ExampleShards, masks: str, share_same: float
) -> None:
    epochs = take_ranks(examples, 1, batch_size=NUM_EXAMPLES, num_updates=2, masks=masks)
    first, second = (masked_rows(ranks) for ranks in epochs)
    long = [key for key in first if len(key) > 8 * 20]
    same = sum(first[key] == second[key] for key in long) / len(long)
    assert same == pytest.approx(share_same, abs=0.05)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_fresh_masks_predict_the_share_that_is_asked_for(
    examples: ExampleShards, share: float
) -> None:
    found = take(examples, masks="fresh", mask_share=share)
    pieces = sum(taken.sizes.num_pieces for taken in found)
    predictions = sum(taken.sizes.num_predictions for taken in found)
    assert predictions / pieces == pytest.approx(share, rel=0.15)
    assert predictions == sum(len(b.masked_lm_labels) for taken in found for b in taken.batches)


def test_a_share_of_masks_without_fresh_masks_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"mask_share 0\.3 needs masks = \"fresh\""):
        TrainingSettings(mask_share=0.3)


# The thread; a fixture of all tests checks that none is left


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


def test_an_error_of_the_consumer_ends_the_thread(examples: ExampleShards) -> None:
    def train() -> None:
        with updates(examples, num_updates=1_000_000) as loader:
            for update in loader:
                assert any(thread.name.startswith("examples") for thread in threading.enumerate())
                update.sizes.num_pieces // 0

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        train()
    assert time.monotonic() - began < 10


def test_the_thread_does_not_run_far_ahead(
    examples: ExampleShards, replace_rows: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            time.sleep(0.05)  # far longer than the thread needs
            assert num_read <= 16 * number + 16 + 4000 // 20
    assert num_read < 5 * 16 + 1000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
def test_batches_are_in_page_locked_memory_where_that_is_asked_for(
    examples: ExampleShards,
) -> None:
    for taken in take(examples, device="cuda"):
        for batch in taken.batches:
            assert batch.input_ids.is_pinned()
            assert batch.masked_lm_labels.is_pinned()
            on_gpu = batch.each(torch.Tensor.cuda)
            assert on_gpu.input_ids.sum().item() == batch.input_ids.sum().item()


# Fresh masks


NUM_MANY, LONG = 1500, 128
ALL = np.arange(NUM_MANY)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    uri = made_examples(str(tmp_path_factory.mktemp("many")), NUM_MANY, LONG)
    return ExampleShards(uri, "train")


def drawn(many: ExampleShards, numbers: Ints, epoch: int | Ints = 0, seed: int = 1) -> Rows:
    epochs = np.broadcast_to(epoch, numbers.shape)
    return FreshMasks(many.manifest, seed).draw(many.rows(numbers), numbers, epochs)


def places(rows: Rows) -> Ints:
    """Return where pieces are predicted, among all pieces."""
    starts = np.cumsum(rows.lengths) - rows.lengths
    return np.repeat(starts, rows.num_predictions) + rows.positions.astype(np.int64)


@given(
    numbers=st.lists(st.integers(0, NUM_MANY - 1), min_size=1, max_size=30),
    epochs=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
@settings(max_examples=30, deadline=None)
def test_a_mask_depends_on_example_and_epoch_alone(
    many: ExampleShards, numbers: list[int], epochs: list[int]
) -> None:
    indices, of_each = np.array(numbers), np.array(epochs[: len(numbers)])
    together = drawn(many, indices, of_each)
    count = FreshMasks(many.manifest, 1).count(many.rows(indices), indices, of_each)
    assert count == together.num_predictions.sum()
    rows = together.split(range(1, len(numbers) + 1))
    for row, number, epoch in zip(rows, numbers, of_each.tolist(), strict=True):
        alone = drawn(many, np.array([number]), epoch)
        assert row.input_ids.tolist() == alone.input_ids.tolist()
        assert row.positions.tolist() == alone.positions.tolist()


def test_blocks_of_any_size_give_the_same_masks(
    many: ExampleShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn(many, ALL)
    monkeypatch.setattr(loader_module, "_PIECES_PER_BLOCK", 1000)
    in_blocks = drawn(many, ALL)
    assert (in_blocks.input_ids == whole.input_ids).all()
    assert (in_blocks.positions == whole.positions).all()


def test_the_seed_of_a_mask_is_that_of_run_epoch_and_example(many: ExampleShards) -> None:
    numbers = np.array([5, 700, 3])
    rows = many.rows(numbers)
    expected = mask_examples(
        rows.unmasked(),
        rows.lengths,
        rows.segment_b_starts,
        tiny_vocab().starts_word,
        random_bits(derive_seed(1, "masks", 4), numbers),
        MASKED_LM_PROB,
        MAX_NGRAM,
        round(MASKED_LM_PROB * LONG),
    )
    found = drawn(many, numbers, 4)
    assert (found.input_ids == expected.input_ids).all()
    assert (found.positions == expected.positions).all()


def test_examples_masked_like_the_references_keep_their_masks(tmp_path: Path) -> None:
    manifest = read_manifest(made_examples(str(tmp_path), 10, 40, fidelity="google"))
    with pytest.raises(ConfigError, match=r"examples.fidelity 'google'.*Take training.masks"):
        FreshMasks(manifest, 1)
