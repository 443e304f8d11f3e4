from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.contract import storage
from albert_core.contract.errors import IntegrityError, TrainingError
from albert_core.contract.manifest import StagePlan, shard_of
from albert_core.contract.records import CLS, EXAMPLE_SCHEMA, MASK, SEP
from albert_core.data import ExampleShards, example_order, permute

SEEDS = st.integers(0, 2**63 - 1)
MAX_PREDICTIONS = 3


def example(number: int, num_pieces: int) -> dict[str, Any]:
    """Return a row of ``num_pieces`` pieces, whose content depends on ``number``."""
    input_ids = [CLS, MASK, *[10 + number] * (num_pieces - 5), SEP, 9, SEP]
    return {
        "input_ids": input_ids,
        "segment_b_start": num_pieces - 2,
        "masked_lm_positions": [1, num_pieces - 2][: 1 + number % 2],
        "masked_lm_labels": [20 + number, 9][: 1 + number % 2],
        "sentence_order_label": number % 2,
        "document_id": f"d{number // 2}",
        "first_sentence": 0,
        "last_sentence": 1,
        "copy": 0,
    }


EXAMPLES = [example(number, num_pieces) for number, num_pieces in enumerate([6, 9, 30, 16, 7])]


def write_examples(work: str, shards: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Write ``shards`` of training examples below ``work``; return their manifest's URI."""
    plan = StagePlan("examples", {}, {}, "code", {})
    folder = plan.folder(work)
    written = []
    for number, rows in enumerate(shards):
        uri = storage.join(folder, f"train-{number:05d}.arrow")
        table = pa.Table.from_pylist(list(rows), schema=EXAMPLE_SCHEMA)
        with storage.open_atomic(uri) as file, pa.ipc.new_file(file, EXAMPLE_SCHEMA) as writer:
            writer.write_table(table)
        written.append(shard_of(uri, folder, "train", len(rows)))
    return plan.write(work, written, [], {"max_predictions": MAX_PREDICTIONS})


@pytest.fixture
def examples(tmp_path: Path) -> ExampleShards:
    """The examples above in three shards, one of them empty."""
    uri = write_examples(str(tmp_path), [EXAMPLES[:2], [], EXAMPLES[2:]])
    return ExampleShards(uri, "train")


# Order


@given(st.integers(1, 3000), SEEDS)
def test_every_number_has_its_own_place(size: int, seed: int) -> None:
    places = permute(np.arange(size), size, seed)
    assert places.dtype == np.int64
    assert np.array_equal(np.sort(places), np.arange(size))


@pytest.mark.parametrize("size", [*range(1, 18), 255, 256, 257, 1023, 1024, 1025, 65_537])
def test_every_number_has_its_own_place_at_powers_of_two_and_next_to_them(size: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, 1)), np.arange(size))


@given(st.integers(1, 2**40), SEEDS, st.lists(st.integers(0), max_size=20))
def test_a_place_does_not_depend_on_what_else_is_asked(
    size: int, seed: int, numbers: list[int]
) -> None:
    indices = np.array([number % size for number in numbers], np.int64)
    together = permute(indices, size, seed)
    assert ((together >= 0) & (together < size)).all()
    alone = [int(permute(indices[i : i + 1], size, seed)[0]) for i in range(len(indices))]
    assert together.tolist() == alone


def test_every_place_is_as_likely_as_any_other() -> None:
    firsts = [int(permute(np.array([0]), 10, seed)[0]) for seed in range(2000)]
    counts = np.bincount(firsts, minlength=10)
    assert (abs(counts - 200) < 60).all()


def test_golden_permutation() -> None:
    assert permute(np.arange(10), 10, 7).tolist() == [7, 9, 2, 5, 6, 0, 8, 3, 4, 1]


def test_golden_order() -> None:
    assert example_order(0, 12, 10, 12345).tolist() == [8, 6, 9, 3, 7, 1, 5, 0, 4, 2, 9, 5]
    assert example_order(95, 10, 100, 12345).tolist() == [22, 51, 9, 3, 59, 60, 2, 14, 64, 80]


@given(st.integers(1, 50), st.integers(0, 5), SEEDS)
def test_every_epoch_visits_each_example_once(num_examples: int, epoch: int, seed: int) -> None:
    order = example_order(epoch * num_examples, num_examples, num_examples, seed)
    assert sorted(order.tolist()) == list(range(num_examples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(example_order(epoch * 100, 100, 100, seed)) for epoch in range(5) for seed in range(5)
    }
    assert len(orders) == 25


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


@given(st.integers(1, 40), st.integers(0, 10**12), st.integers(0, 100), SEEDS)
def test_anywhere_in_a_run_examples_are_visited_equally_often(
    num_examples: int, first: int, count: int, seed: int
) -> None:
    visits = Counter(example_order(first, count, num_examples, seed).tolist())
    most = max(visits.values(), default=0)
    assert most <= count // num_examples + 2
    assert sum(visits.values()) == count


# Batches


def test_examples_are_numbered_through_all_shards(examples: ExampleShards) -> None:
    assert len(examples) == 5
    for number, row in enumerate(EXAMPLES):
        batch = examples.batch(np.array([number]))
        size = len(row["input_ids"])
        assert batch.input_ids[0, :size].tolist() == row["input_ids"]


def test_a_batch_is_padded_to_a_multiple_of_eight(examples: ExampleShards) -> None:
    batch = examples.batch(np.array([1, 0]))
    assert batch.input_ids.tolist() == [
        [CLS, MASK, 11, 11, 11, 11, SEP, 9, SEP] + [0] * 7,
        [CLS, MASK, 10, SEP, 9, SEP] + [0] * 10,
    ]
    assert batch.attention_mask.tolist() == [
        [True] * 9 + [False] * 7,
        [True] * 6 + [False] * 10,
    ]
    assert batch.token_type_ids.tolist() == [
        [0] * 7 + [1] * 2 + [0] * 7,
        [0] * 4 + [1] * 2 + [0] * 10,
    ]
    assert batch.masked_lm_positions.tolist() == [[1, 7, 0], [1, 0, 0]]
    assert batch.masked_lm_labels.tolist() == [[21, 9, 0], [20, 0, 0]]
    assert batch.masked_lm_weights.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch.sentence_order_labels.tolist() == [1, 0]
    assert batch.num_pieces == 15


@pytest.mark.parametrize(("numbers", "length"), [([0], 8), ([3], 16), ([0, 2], 32)])
def test_a_batch_is_as_long_as_its_longest_example_needs(
    examples: ExampleShards, numbers: list[int], length: int
) -> None:
    assert examples.batch(np.array(numbers)).input_ids.shape == (len(numbers), length)


def test_a_batch_has_the_types_it_says(examples: ExampleShards) -> None:
    batch = examples.batch(np.array([0, 1])).to(torch.device("cpu"))
    for ints in (
        *(batch.input_ids, batch.token_type_ids, batch.masked_lm_positions),
        *(batch.masked_lm_labels, batch.sentence_order_labels),
    ):
        assert ints.dtype == torch.int64
    assert batch.attention_mask.dtype == torch.bool
    assert batch.masked_lm_weights.dtype == torch.float32


@given(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=8))
@settings(max_examples=20)
def test_an_example_is_the_same_in_every_batch(numbers: list[int]) -> None:
    uri = write_examples("memory://data", [EXAMPLES[:3], EXAMPLES[3:]])
    examples = ExampleShards(uri, "train")
    together = examples.batch(np.array(numbers))
    for row, number in enumerate(numbers):
        alone = examples.batch(np.array([number]))
        size = alone.input_ids.shape[1]
        assert torch.equal(together.input_ids[row, :size], alone.input_ids[0])
        assert not together.input_ids[row, size:].any()
        assert torch.equal(together.masked_lm_labels[row], alone.masked_lm_labels[0])


def test_every_example_knows_its_document(examples: ExampleShards) -> None:
    assert examples.document_ids() == ["d0", "d0", "d1", "d1", "d2"]


def test_a_relative_manifest_is_one_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(write_examples(str(tmp_path), [EXAMPLES])).parent)
    assert len(ExampleShards("manifest.json", "train")) == 5


def test_a_kind_without_examples_is_refused(tmp_path: Path) -> None:
    uri = write_examples(str(tmp_path), [EXAMPLES])
    with pytest.raises(TrainingError, match=r"has no held_out examples: give more text"):
        ExampleShards(uri, "held_out")
    with pytest.raises(TrainingError, match=r"has no train examples"):
        ExampleShards(write_examples(str(tmp_path / "empty"), [[]]), "train")


def test_a_corrupt_shard_is_refused(tmp_path: Path) -> None:
    uri = Path(write_examples(str(tmp_path), [EXAMPLES[:3], EXAMPLES[3:]]))
    shard = uri.with_name("train-00001.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"train-00001.arrow has sha256 .*it changed after"):
        ExampleShards(str(uri), "train")


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    uri = Path(write_examples(str(tmp_path), [EXAMPLES]))
    uri.with_name("train-00000.arrow").unlink()
    with pytest.raises(IntegrityError, match=r"train-00000.arrow is missing"):
        ExampleShards(str(uri), "train")


def test_examples_that_were_not_finished_are_refused(tmp_path: Path) -> None:
    uri = Path(write_examples(str(tmp_path), [EXAMPLES]))
    uri.unlink()
    with pytest.raises(IntegrityError, match=r"manifest.json is missing: the stage did not finish"):
        ExampleShards(str(uri), "train")
