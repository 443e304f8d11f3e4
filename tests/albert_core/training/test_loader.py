import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.attention import lengths_of
from albert_core.stage import errors, manifest, storage
from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, MASK, SEP, Ints, Sizes
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.training import batches, loader, shards
from albert_core.training.batches import Batch, Rows
from albert_core.training.loader import FreshMasks, UpdateBatch
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.shards import ExampleShards
from albert_core.training.step import TrainState, train_step
from tests.albert_core import made_examples, tiny_model
from tests.albert_core.made_examples import MASKED_LM_PROB, MAX_NGRAM, assert_equal, write_rows
from tests.albert_core.tiny_vocab import tiny_vocab
from tests.s3_server import serve_s3

NUM_EXAMPLES, LENGTH = 101, 60
SEED = 5
PADDING = Ranks(0, 1, torch.device("cpu"), num_chips=1)
"""One process whose device has a program for each shape."""


def example(number: int, num_pieces: int) -> dict[str, Any]:
    """Return a row of ``num_pieces`` pieces, whose content depends on ``number``."""
    return {
        "input_ids": [CLS, MASK, *[10 + number] * (num_pieces - 5), SEP, 9, SEP],
        "segment_b_start": num_pieces - 2,
        "masked_lm_positions": [1, num_pieces - 2][: 1 + number % 2],
        "masked_lm_labels": [20 + number, 9][: 1 + number % 2],
        "sentence_order_label": number % 2,
        "document_id": f"d{number // 2}",
    }


EXAMPLES = [example(number, num_pieces) for number, num_pieces in enumerate([6, 9, 30, 16, 7])]


@pytest.fixture
def few(tmp_path: Path) -> ExampleShards:
    """The examples above in three shards, one of them empty."""
    return ExampleShards(write_rows(str(tmp_path), [EXAMPLES[:2], [], EXAMPLES[2:]]), "train")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    """Random examples in three shards."""
    folder = str(tmp_path_factory.mktemp("examples"))
    return ExampleShards(made_examples.made_examples(folder, NUM_EXAMPLES, LENGTH), "train")


# Batches and rows


def test_examples_are_numbered_through_all_shards(few: ExampleShards) -> None:
    assert len(few) == 5
    for number, row in enumerate(EXAMPLES):
        assert few.rows(np.array([number])).input_ids.tolist() == row["input_ids"]
    assert few.document_ids() == ["d0", "d0", "d1", "d1", "d2"]


def test_sequences_lie_end_to_end(few: ExampleShards) -> None:
    batch = few.rows(np.array([1, 0, 0])).batch()
    nine = [CLS, MASK, 11, 11, 11, 11, SEP, 9, SEP]
    six = [CLS, MASK, 10, SEP, 9, SEP]
    assert batch.runs == ((1, 9), (2, 6))
    for found, expected in (
        (batch.input_ids, nine + six + six),
        (batch.token_type_ids, [0] * 7 + [1, 1] + ([0] * 4 + [1, 1]) * 2),
        (batch.first_positions, [0, 9, 15]),
        (batch.masked_lm_positions, [1, 7, 10, 16]),
        (batch.masked_lm_labels, [21, 9, 20, 20]),
        (batch.sentence_order_labels, [1, 0, 0]),
    ):
        assert found.dtype == torch.int64
        assert found.tolist() == expected


@given(numbers=st.lists(st.integers(0, NUM_EXAMPLES - 1), min_size=1, max_size=30))
@settings(max_examples=30)
def test_rows_come_in_the_order_asked_for_from_all_shards(
    many: ExampleShards, numbers: list[int]
) -> None:
    one_by_one = Rows.join([many.rows(np.array([number])) for number in numbers])
    together = many.rows(np.array(numbers))
    assert_equal(together.batch(), one_by_one.batch())
    lengths, num_predictions = many.sizes(np.array(numbers))
    assert lengths.tolist() == together.lengths.tolist()
    assert num_predictions.tolist() == together.num_predictions.tolist()


def test_labels_put_back_give_the_pieces_before_masking(few: ExampleShards) -> None:
    rows = few.rows(np.array([1, 0]))
    assert rows.unmasked().tolist() == [
        *[CLS, 21, 11, 11, 11, 11, SEP, 9, SEP],
        *[CLS, 20, 10, SEP, 9, SEP],
    ]
    assert rows.input_ids[1] == MASK


def gradients_of(batch: "Taken") -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the metrics of an update and its gradients, in float64."""
    torch.manual_seed(1)
    shape = tiny_model.tiny_settings(max_position_embeddings=64)
    model = AlbertForPretraining(shape, tiny_vocab().vocab_size).double()
    state = TrainState(model=model, optimizer=build_optimizer(model, "adamw", 1.0, 0.0))
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: found.update({name: p.grad.clone()})
        )
    update = UpdateBatch(sizes=batch.sizes, micro_batches=batch.batches)
    unclipped = TrainingSettings(max_grad_norm=1e9)
    return train_step(state, update, unclipped, ALONE).metrics, found


def test_padded_batches_of_one_shape_have_the_losses_and_gradients_of_packed_ones(
    many: ExampleShards,
) -> None:
    shape = many.shape_for(PADDING, 4)
    assert shape == (4, 64, round(MASKED_LM_PROB * LENGTH))
    of_three_chips = many.shape_for(replace(PADDING, num_chips=3), 4)
    assert of_three_chips == shape._replace(num_sequences=6)
    options = {"batch_size": 13, "num_updates": 5, "masks": "fresh"}
    both = (take(many, ranks=ranks, **options) for ranks in (ALONE, PADDING))
    for packed, padded in zip(*both, strict=True):
        assert padded.sizes == packed.sizes
        assert len(padded.batches) == 4  # 13 by fours
        assert {batch.masked_lm_labels.shape for batch in padded.batches} == {(4 * shape[2],)}
        assert {batch.input_ids.shape for batch in padded.batches} == {(4 * 64,)}
        assert {batch.sentence_order_labels.shape for batch in padded.batches} == {(4,)}
        expected, expected_gradients = gradients_of(packed)
        found, gradients = gradients_of(padded)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-13)
        assert found == pytest.approx(expected, rel=1e-6)  # sums of float32


def test_examples_that_the_shape_does_not_hold_are_refused(many: ExampleShards) -> None:
    shape = batches.BatchShape(num_sequences=4, length=56, num_predictions=10)
    with pytest.raises(errors.ShapeError, match="more than its shape holds"):
        many.rows(np.arange(4)).batch(shape)


# Shards


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"rows_per_batch": 2}])
def test_how_a_shard_is_written_does_not_change_its_examples(
    few: ExampleShards, tmp_path: Path, options: dict[str, Any]
) -> None:
    uri = write_rows(str(tmp_path / "other"), [EXAMPLES], **options)
    numbers = np.array([4, 0, 3, 1, 2, 0])
    other = ExampleShards(uri, "train").rows(numbers)
    assert_equal(other.batch(), few.rows(numbers).batch())


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the copies of shards that are not on this host."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shards, "_in_use", {})
    return tmp_path / f"albert-shards-{os.getuid()}"


def test_the_ranks_of_a_host_copy_each_shard_once_and_check_it_once_a_start(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = made_examples.made_examples("memory://once", 40, LENGTH)
    checked: list[str] = []
    digest = storage.sha256_of

    def noted(uri: str) -> str:
        checked.append(uri)
        return digest(uri)

    monkeypatch.setattr(storage, "sha256_of", noted)
    for launch in ("first", "second"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
        with ThreadPoolExecutor(4) as ranks:  # flock counts open files, not processes
            list(ranks.map(lambda _: ExampleShards(uri, "train"), range(4)))
        assert len(checked) == len(set(checked)) == 3
        checked.clear()
    files = sorted(copies.glob("*/*.arrow"))
    assert len(files) == 3
    files[0].write_bytes(b"damaged")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "third")
    assert len(ExampleShards(uri, "train")) == 40
    assert digest(str(files[0])) == files[0].stem


def test_copies_that_no_process_uses_make_room_for_others(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_rows(f"memory://{n}", [EXAMPLES[:n]]) for n in (2, 3))
    ExampleShards(first, "train")
    ExampleShards(second, "train")
    assert len(list(copies.glob("*/*.arrow"))) == 2
    for file in shards._in_use.values():
        os.close(file)
    monkeypatch.setattr(shards, "_in_use", {})
    ExampleShards(second, "train")
    [left] = copies.glob("*/*.arrow")
    assert left.stem == manifest.read_manifest(second).shards_of("train")[0].sha256
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(
        errors.ConfigError, match=r"has room for 0\.0 GB, .* Set TMPDIR to a folder on"
    ):
        ExampleShards(first, "train")


def test_a_shard_that_is_damaged_or_missing_in_the_store_is_refused(copies: Path) -> None:
    for name, message in (("damaged", "changed after it was written"), ("missing", "is missing")):
        uri = write_rows(f"memory://{name}", [EXAMPLES])
        shard = f"{uri.rpartition('/')[0]}/train-00000.arrow"
        storage.remove(shard)
        if name == "damaged":
            storage.write_bytes(shard, b"damaged")
        with pytest.raises(errors.IntegrityError, match=f"memory://{name}.*arrow {message}"):
            ExampleShards(uri, "train")
    assert not list(copies.glob("*/*.arrow"))


@pytest.mark.long
def test_the_memory_of_a_rank_does_not_grow_with_the_shards_in_a_store(
    copies: Path, tmp_path: Path
) -> None:
    local = made_examples.made_examples(str(tmp_path), 60_000, 512, num_shards=8)
    expected = ExampleShards(local, "train").rows(np.arange(0, 60_000, 1000))
    with serve_s3("albert"):
        folder = local.rpartition("/")[0]
        for file in [*Path(folder).iterdir()]:
            storage.write_bytes(f"s3://albert/examples/{file.name}", file.read_bytes())
        before = own_memory()
        shards = ExampleShards("s3://albert/examples/manifest.json", "train")
        assert sum(file.stat().st_size for file in copies.glob("*/*")) > 40e6
        assert own_memory() - before < 25e6
        found = shards.rows(np.arange(0, 60_000, 1000))
    assert_equal(found.batch(), expected.batch())


def own_memory() -> int:
    """Return the bytes of this process's memory that are not of files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def test_a_kind_without_examples_is_refused(tmp_path: Path) -> None:
    uri = write_rows(str(tmp_path), [EXAMPLES])
    with pytest.raises(errors.TrainingError, match=r"has no held_out examples: give more text"):
        ExampleShards(uri, "held_out")
    with pytest.raises(errors.TrainingError, match=r"has no train examples"):
        ExampleShards(write_rows(str(tmp_path / "empty"), [[]]), "train")


def test_a_corrupt_shard_is_refused(tmp_path: Path) -> None:
    uri = Path(write_rows(str(tmp_path), [EXAMPLES[:3], EXAMPLES[3:]]))
    shard = uri.with_name("train-00001.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(
        errors.IntegrityError, match=r"train-00001.arrow changed after it was written"
    ):
        ExampleShards(str(uri), "train")


# Updates


def updates(
    examples: ExampleShards,
    ranks: Ranks = ALONE,
    first_example: int = 0,
    num_updates: int = 3,
    **options: Any,
) -> loader.UpdateLoader:
    settings: dict[str, Any] = {"batch_size": 16, "micro_batch_size": 4, "seed": SEED} | options
    place = {"first_example": first_example, "num_updates": num_updates}
    return loader.UpdateLoader(examples, TrainingSettings(**settings), ranks, **place)


class Taken(NamedTuple):
    """One update as a rank got it, its micro-batches taken."""

    sizes: Sizes
    batches: list[Batch]


def take(examples: ExampleShards, **options: Any) -> list[Taken]:
    with updates(examples, **options) as given:
        return [Taken(update.sizes, list(update.micro_batches)) for update in given]


class Apart(Ranks):
    """One of several ranks, who never meet."""

    def total(self, number: int) -> int:
        return number


def take_ranks(examples: ExampleShards, world_size: int, **options: Any) -> list[list[Taken]]:
    """Return each update as all ranks got it; with fresh masks each knows its own predictions."""
    ranks = [Apart(rank, world_size, torch.device("cpu")) for rank in range(world_size)]
    taken = [take(examples, ranks=each, **options) for each in ranks]
    return [list(same_step) for same_step in zip(*taken, strict=True)]


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


def keys_of(many: ExampleShards, numbers: Ints) -> set[bytes]:
    """Return the pieces before masking of each example, as `masked_rows` has them."""
    rows = many.rows(numbers)
    parts = np.split(rows.unmasked(), np.cumsum(rows.lengths)[:-1])
    return {part.astype(np.int64).tobytes() for part in parts}


@given(
    world_size=st.integers(1, 4),
    micro_batch_size=st.integers(1, 20),
    batch_size=st.integers(4, 40),
    first_step=st.integers(0, 30),
    masks=st.sampled_from(["shards", "fresh"]),
)
@settings(max_examples=40)
def test_however_it_is_cut_an_update_has_the_examples_of_its_place_and_each_rank_its_sizes(
    many: ExampleShards,
    world_size: int,
    micro_batch_size: int,
    batch_size: int,
    first_step: int,
    masks: str,
) -> None:
    cut = {"micro_batch_size": micro_batch_size, "batch_size": batch_size, "masks": masks}
    place = {"first_example": first_step * batch_size, "num_updates": 2}
    found = take_ranks(many, world_size, **cut, **place)
    assert len(found) == 2
    for step, ranks in enumerate(found, first_step):
        seed = derive_seed(SEED, "order")
        order = example_order(step * batch_size, batch_size, NUM_EXAMPLES, seed)
        assert set(masked_rows(ranks)) == keys_of(many, order)
        batches = [batch for taken in ranks for batch in taken.batches]
        lengths = [n for batch in batches for n in lengths_of(batch.runs)]
        for taken in ranks:
            assert len(taken.batches) == len(ranks[0].batches)
            counted = taken.batches if masks == "fresh" else batches
            assert taken.sizes == Sizes(
                num_sequences=len(lengths),
                num_pieces=sum(lengths),
                sum_of_squares=sum(length**2 for length in lengths),
                num_predictions=sum(len(batch.masked_lm_labels) for batch in counted),
            )
            assert taken.sizes.num_sequences == batch_size


@pytest.mark.parametrize("masks", ["shards", "fresh"])
def test_a_run_that_resumes_gets_the_batches_it_would_have_got(
    many: ExampleShards, masks: str
) -> None:
    whole = take(many, num_updates=8, masks=masks)
    resumed = take(many, first_example=16 * 6, num_updates=2, masks=masks)
    for one, other in zip(whole[6:], resumed, strict=True):
        for a, b in zip(one.batches, other.batches, strict=True):
            assert_equal(a, b)


def test_fresh_masks_do_not_depend_on_ranks_and_micro_batches(many: ExampleShards) -> None:
    alone = take_ranks(many, 1, masks="fresh", micro_batch_size=16)
    together = take_ranks(many, 3, masks="fresh", micro_batch_size=2)
    assert list(map(masked_rows, together)) == list(map(masked_rows, alone))


@pytest.mark.parametrize(("masks", "share_same"), [("shards", 1.0), ("fresh", 0.0)])
def test_masks_are_drawn_afresh_each_epoch_where_that_is_asked_for(
    many: ExampleShards, masks: str, share_same: float
) -> None:
    epochs = take_ranks(many, 1, batch_size=NUM_EXAMPLES, num_updates=2, masks=masks)
    first, second = (masked_rows(ranks) for ranks in epochs)
    long = [key for key in first if len(key) > 8 * 20]
    same = sum(first[key] == second[key] for key in long) / len(long)
    assert same == pytest.approx(share_same, abs=0.05)


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_fresh_masks_predict_the_share_that_is_asked_for(many: ExampleShards, share: float) -> None:
    found = take(many, masks="fresh", mask_share=share)
    pieces = sum(taken.sizes.num_pieces for taken in found)
    predictions = sum(taken.sizes.num_predictions for taken in found)
    assert predictions / pieces == pytest.approx(share, rel=0.15)
    assert predictions == sum(len(b.masked_lm_labels) for taken in found for b in taken.batches)


def test_fresh_masks_hide_spans_of_at_most_as_many_words_as_is_asked_for(
    many: ExampleShards,
) -> None:
    beside = {}
    for words in (1, 3, None):
        taken = take(many, masks="fresh", max_ngram=words)
        gaps = [batch.masked_lm_positions.diff() for each in taken for batch in each.batches]
        beside[words] = float((torch.cat(gaps) == 1).double().mean())
    assert beside[1] < 0.9 * beside[3]
    assert beside[None] == beside[3]  # as the shards


@pytest.mark.parametrize("wrong", [{"mask_share": 0.3}, {"max_ngram": 1}])
def test_rules_of_fresh_masks_without_fresh_masks_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=rf"{min(wrong)} .* needs masks = \"fresh\""):
        TrainingSettings(**wrong)


# The thread; a fixture of all tests checks that none is left


Watch = Callable[[Callable[[Rows], Any]], None]


@pytest.fixture
def watch_rows(many: ExampleShards, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Let a function see all rows that are read."""
    read = many.rows

    def watch(look: Callable[[Rows], Any]) -> None:
        monkeypatch.setattr(many, "rows", lambda numbers: (rows := read(numbers), look(rows))[0])

    return watch


def test_an_error_in_the_thread_is_raised_where_its_batch_is_taken(
    many: ExampleShards, watch_rows: Watch
) -> None:
    reads = iter(range(10))

    def fail_at_the_third(_: Rows) -> None:
        if next(reads) == 2:
            raise errors.IntegrityError("the shard is gone")

    watch_rows(fail_at_the_third)
    with updates(many, num_updates=10, micro_batch_size=1000) as given:
        iterator = iter(given)
        next(iterator)
        next(iterator)
        with pytest.raises(errors.IntegrityError, match="the shard is gone"):
            next(iterator)


def test_an_error_of_the_consumer_ends_the_thread(many: ExampleShards) -> None:
    def train() -> None:
        with updates(many, num_updates=1_000_000) as given:
            next(iter(given))
            assert any(thread.name.startswith("examples") for thread in threading.enumerate())
            raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        train()
    assert time.monotonic() - began < 10


def test_the_thread_does_not_run_far_ahead(
    many: ExampleShards, watch_rows: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_PIECES_AHEAD", 4000)
    num_read: list[int] = []
    watch_rows(lambda rows: num_read.append(len(rows)))
    with updates(many, num_updates=1000) as given:
        iterator = iter(given)
        for number in range(5):
            next(iterator)
            time.sleep(0.05)  # far longer than the thread needs
            assert sum(num_read) <= 16 * number + 16 + 4000 // 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
def test_batches_are_in_page_locked_memory_where_that_is_asked_for(many: ExampleShards) -> None:
    for taken in take(many, ranks=Ranks(0, 1, torch.device("cuda"))):
        for batch in taken.batches:
            assert batch.input_ids.is_pinned()
            assert batch.masked_lm_labels.is_pinned()
            on_gpu = batch.each(Tensor.cuda)
            assert on_gpu.input_ids.sum().item() == batch.input_ids.sum().item()


# Fresh masks


def test_blocks_of_any_size_give_the_same_masks(
    many: ExampleShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, epochs = np.arange(NUM_EXAMPLES), np.zeros(NUM_EXAMPLES, np.int64)
    masks = FreshMasks(many.manifest, 1)
    whole = masks.draw(many.rows(numbers), numbers, epochs)
    monkeypatch.setattr(loader, "_PIECES_PER_BLOCK", 1000)
    in_blocks = masks.draw(many.rows(numbers), numbers, epochs)
    assert_equal(in_blocks.batch(), whole.batch())


def test_the_seed_of_a_mask_is_that_of_run_epoch_and_example(many: ExampleShards) -> None:
    numbers, epochs = np.array([5, 70, 3]), np.array([4, 0, 4])
    rows = many.rows(numbers)
    seeds = [
        random_bits(derive_seed(1, "masks", epoch), np.array([number]))
        for number, epoch in zip(numbers.tolist(), epochs.tolist(), strict=True)
    ]
    expected = mask_examples(
        rows.unmasked(),
        rows.lengths,
        rows.segment_b_starts,
        tiny_vocab().starts_word,
        np.concatenate(seeds),
        MASKED_LM_PROB,
        MAX_NGRAM,
        round(MASKED_LM_PROB * LENGTH),
    )
    found = FreshMasks(many.manifest, 1).draw(rows, numbers, epochs)
    assert (found.input_ids == expected.input_ids).all()
    assert (found.positions == expected.positions).all()


def test_examples_masked_like_the_references_keep_their_masks(tmp_path: Path) -> None:
    uri = made_examples.made_examples(str(tmp_path), 10, 40, fidelity="google")
    with pytest.raises(errors.ConfigError, match=r"fidelity is 'google'.*Take training.masks"):
        FreshMasks(manifest.read_manifest(uri), 1)
