from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.errors import IntegrityError, TrainingError
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, MASK, SEP
from albert_core.training.shards import ExampleShards, Rows
from tests.albert_core import made_examples
from tests.albert_core.made_examples import assert_equal


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


def write_examples(work: str, shards: Sequence[Sequence[dict[str, Any]]], **options: Any) -> str:
    """Write ``shards`` of training examples below ``work``; return their manifest's URI."""
    tables = [pa.Table.from_pylist(list(rows), schema=EXAMPLE_SCHEMA) for rows in shards]
    return made_examples.write_examples(work, tables, {}, {}, **options)


@pytest.fixture
def examples(tmp_path: Path) -> ExampleShards:
    """The examples above in three shards, one of them empty."""
    uri = write_examples(str(tmp_path), [EXAMPLES[:2], [], EXAMPLES[2:]])
    return ExampleShards(uri, "train")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    """Three hundred random examples in three shards."""
    uri = made_examples.made_examples(str(tmp_path_factory.mktemp("many")), 300, 40)
    return ExampleShards(uri, "train")


# Batches


def test_examples_are_numbered_through_all_shards(examples: ExampleShards) -> None:
    assert len(examples) == 5
    for number, row in enumerate(EXAMPLES):
        assert examples.batch(np.array([number])).input_ids.tolist() == row["input_ids"]


def test_sequences_lie_end_to_end(examples: ExampleShards) -> None:
    batch = examples.batch(np.array([1, 0, 0]))
    nine = [CLS, MASK, 11, 11, 11, 11, SEP, 9, SEP]
    six = [CLS, MASK, 10, SEP, 9, SEP]
    assert batch.input_ids.tolist() == nine + six + six
    assert batch.token_type_ids.tolist() == [0] * 7 + [1, 1] + ([0] * 4 + [1, 1]) * 2
    assert batch.runs == ((1, 9), (2, 6))
    assert batch.first_positions.tolist() == [0, 9, 15]
    assert batch.masked_lm_positions.tolist() == [1, 7, 10, 16]
    assert batch.masked_lm_labels.tolist() == [21, 9, 20, 20]
    assert batch.sentence_order_labels.tolist() == [1, 0, 0]
    assert batch.num_sequences == 3
    assert batch.num_pieces == 21
    assert batch.sum_of_squares == 81 + 36 + 36


def test_a_batch_has_the_types_it_says(examples: ExampleShards) -> None:
    batch = examples.batch(np.array([0, 1])).to(torch.device("cpu"))
    for ints in (
        *(batch.input_ids, batch.token_type_ids, batch.masked_lm_positions),
        *(batch.masked_lm_labels, batch.sentence_order_labels, batch.first_positions),
    ):
        assert ints.dtype == torch.int64


@given(numbers=st.lists(st.integers(0, 4), min_size=1, max_size=8))
@settings(max_examples=20)
def test_an_example_is_the_same_in_every_batch(numbers: list[int]) -> None:
    uri = write_examples("memory://data", [EXAMPLES[:3], EXAMPLES[3:]])
    examples = ExampleShards(uri, "train")
    together = examples.batch(np.array(numbers))
    begin = 0
    for number in numbers:
        alone = examples.batch(np.array([number]))
        end = begin + alone.num_pieces
        assert torch.equal(together.input_ids[begin:end], alone.input_ids)
        assert torch.equal(together.token_type_ids[begin:end], alone.token_type_ids)
        of_it = (together.masked_lm_positions >= begin) & (together.masked_lm_positions < end)
        assert torch.equal(together.masked_lm_positions[of_it] - begin, alone.masked_lm_positions)
        assert torch.equal(together.masked_lm_labels[of_it], alone.masked_lm_labels)
        begin = end
    assert begin == together.num_pieces


def test_every_example_knows_its_document(examples: ExampleShards) -> None:
    assert examples.document_ids() == ["d0", "d0", "d1", "d1", "d2"]


def test_sizes_are_known_without_the_rows(many: ExampleShards) -> None:
    numbers = np.random.default_rng(0).integers(0, len(many), 100)
    lengths, num_predictions = many.sizes(numbers)
    rows = many.rows(numbers)
    assert lengths.tolist() == rows.lengths.tolist()
    assert num_predictions.tolist() == rows.num_predictions.tolist()


# Rows


def test_rows_come_in_the_order_asked_for_from_all_shards(many: ExampleShards) -> None:
    numbers = np.random.default_rng(1).integers(0, len(many), 50)
    one_by_one = Rows.join([many.rows(numbers[i : i + 1]) for i in range(len(numbers))])
    assert_equal(many.rows(numbers).batch(), one_by_one.batch())


@given(cuts=st.lists(st.integers(0, 20), max_size=4))
@settings(max_examples=20)
def test_rows_that_were_split_join_to_what_they_were(many: ExampleShards, cuts: list[int]) -> None:
    rows = many.rows(np.arange(20))
    parts = list(rows.split([*sorted(cuts), 20]))
    assert [len(part) for part in parts] == np.diff([0, *sorted(cuts), 20]).tolist()
    assert_equal(Rows.join(parts).batch(), rows.batch())


@given(places=st.lists(st.integers(0, 19), min_size=1, max_size=30))
@settings(max_examples=20)
def test_rows_taken_of_rows_are_those_of_the_shards(many: ExampleShards, places: list[int]) -> None:
    taken = many.rows(np.arange(100, 120)).take(np.array(places))
    assert_equal(taken.batch(), many.batch(100 + np.array(places)))


def test_labels_put_back_give_the_pieces_before_masking(examples: ExampleShards) -> None:
    rows = examples.rows(np.array([1, 0]))
    assert rows.unmasked().tolist() == [
        *[CLS, 21, 11, 11, 11, 11, SEP, 9, SEP],
        *[CLS, 20, 10, SEP, 9, SEP],
    ]
    assert rows.input_ids[1] == MASK


# Shards


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"rows_per_batch": 2}])
def test_how_a_shard_is_written_does_not_change_its_examples(
    examples: ExampleShards, tmp_path: Path, options: dict[str, Any]
) -> None:
    uri = write_examples(str(tmp_path / "other"), [EXAMPLES], **options)
    numbers = np.array([4, 0, 3, 1, 2, 0])
    assert_equal(ExampleShards(uri, "train").batch(numbers), examples.batch(numbers))


@pytest.mark.parametrize(("compression", "is_mapped"), [(None, True), ("zstd", False)])
def test_shards_that_are_not_compressed_stay_mapped(
    tmp_path: Path, compression: str | None, is_mapped: bool
) -> None:
    uri = made_examples.made_examples(str(tmp_path), 3000, 100, compression=compression)
    before = pa.total_allocated_bytes()
    examples = ExampleShards(uri, "train")
    in_memory = pa.total_allocated_bytes() - before
    num_pieces = int(examples.sizes(np.arange(3000))[0].sum())
    assert (in_memory < 0.1 * 2 * num_pieces) == is_mapped


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
