import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import manifest, storage
from albert_core.stage.errors import ConfigError, IntegrityError, ShapeError, TrainingError
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, MASK, SEP
from albert_core.training import loader as shards_module
from albert_core.training.loader import (
    Batch,
    BatchShape,
    ExampleShards,
    Rows,
    UpdateBatch,
    UpdateLoader,
)
from albert_core.training.optimizer import build_optimizer
from albert_core.training.ranks import ALONE, Ranks
from albert_core.training.step import TrainState, train_step
from tests.albert_core import made_examples, tiny_model
from tests.albert_core.tiny_vocab import tiny_vocab
from tests.made_results import made_result
from tests.s3_server import serve_s3

LENGTH = 61


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
    return made_examples.write_examples(work, tables, {}, made_result("examples"), **options)


@pytest.fixture
def examples(tmp_path: Path) -> ExampleShards:
    """The examples above in three shards, one of them empty."""
    uri = write_examples(str(tmp_path), [EXAMPLES[:2], [], EXAMPLES[2:]])
    return ExampleShards(uri, "train")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    """Forty random examples in three shards."""
    uri = made_examples.made_examples(str(tmp_path_factory.mktemp("many")), 40, LENGTH)
    return ExampleShards(uri, "train")


# Packed batches


def test_examples_are_numbered_through_all_shards(examples: ExampleShards) -> None:
    assert len(examples) == 5
    for number, row in enumerate(EXAMPLES):
        assert examples.rows(np.array([number])).input_ids.tolist() == row["input_ids"]
    assert examples.document_ids() == ["d0", "d0", "d1", "d1", "d2"]


def test_sequences_lie_end_to_end(examples: ExampleShards) -> None:
    batch = examples.rows(np.array([1, 0, 0])).batch()
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


# Rows


@given(numbers=st.lists(st.integers(0, 39), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_rows_come_in_the_order_asked_for_from_all_shards(
    many: ExampleShards, numbers: list[int]
) -> None:
    one_by_one = Rows.join([many.rows(np.array([number])) for number in numbers])
    together = many.rows(np.array(numbers))
    made_examples.assert_equal(together.batch(), one_by_one.batch())
    lengths, num_predictions = many.sizes(np.array(numbers))
    assert lengths.tolist() == together.lengths.tolist()
    assert num_predictions.tolist() == together.num_predictions.tolist()


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
    other = ExampleShards(uri, "train").rows(numbers)
    made_examples.assert_equal(other.batch(), examples.rows(numbers).batch())


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the copies of shards that are not on this host."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shards_module, "_in_use", {})
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
    first, second = (write_examples(f"memory://{n}", [EXAMPLES[:n]]) for n in (2, 3))
    ExampleShards(first, "train")
    ExampleShards(second, "train")
    assert len(list(copies.glob("*/*.arrow"))) == 2
    for file in shards_module._in_use.values():
        os.close(file)
    monkeypatch.setattr(shards_module, "_in_use", {})
    ExampleShards(second, "train")
    [left] = copies.glob("*/*.arrow")
    assert left.stem == manifest.read_manifest(second).shards_of("train")[0].sha256
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(ConfigError, match=r"has room for 0\.0 GB, .* Set TMPDIR to a folder on"):
        ExampleShards(first, "train")


def test_a_shard_that_is_damaged_or_missing_in_the_store_is_refused(copies: Path) -> None:
    for name, message in (("damaged", "changed after it was written"), ("missing", "is missing")):
        uri = write_examples(f"memory://{name}", [EXAMPLES])
        shard = f"{uri.rpartition('/')[0]}/train-00000.arrow"
        storage.remove(shard)
        if name == "damaged":
            storage.write_bytes(shard, b"damaged")
        with pytest.raises(IntegrityError, match=f"memory://{name}.*arrow {message}"):
            ExampleShards(uri, "train")
    assert not list(copies.glob("*/*.arrow"))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
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
    made_examples.assert_equal(found.batch(), expected.batch())


def own_memory() -> int:
    """Return the bytes of this process's memory that are not of files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


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
    with pytest.raises(IntegrityError, match=r"train-00001.arrow changed after it was written"):
        ExampleShards(str(uri), "train")


# Padded batches


def updates(examples: ExampleShards, ranks: Ranks) -> list[UpdateBatch]:
    settings = TrainingSettings(batch_size=13, micro_batch_size=4, masks="fresh", seed=3)
    with UpdateLoader(examples, settings, ranks, first_example=0, num_updates=5) as loader:
        return [
            UpdateBatch(sizes=update.sizes, micro_batches=list(update.micro_batches))
            for update in loader
        ]


PADDING = Ranks(0, 1, torch.device("cpu"), num_chips=1)
"""One process whose device has a program for each shape."""


def gradients_of(batch: UpdateBatch) -> tuple[dict[str, float], dict[str, Tensor]]:
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
    unclipped = TrainingSettings(max_grad_norm=1e9)
    return train_step(state, batch, unclipped, ALONE).metrics, found


def test_padded_batches_have_the_losses_and_gradients_of_packed_ones(many: ExampleShards) -> None:
    both = (updates(many, ranks) for ranks in (ALONE, PADDING))
    for packed, padded in zip(*both, strict=True):
        assert padded.sizes == packed.sizes
        expected, expected_gradients = gradients_of(packed)
        found, gradients = gradients_of(padded)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-13)
        assert found == pytest.approx(expected, rel=1e-6)  # sums of float32


def test_all_padded_batches_have_one_shape_and_are_as_many_in_each_update(
    many: ExampleShards,
) -> None:
    shape = many.shape_for(PADDING, 4)
    assert shape is not None
    assert (shape.length, shape.num_predictions) == (64, round(0.15 * LENGTH))
    batches = [list(update.micro_batches) for update in updates(many, PADDING)]
    assert [len(update) for update in batches] == [4] * 5  # of 13, by fours

    def shapes(batch: Batch) -> tuple[Any, ...]:
        fields = (getattr(batch, name) for name in Batch.__dataclass_fields__)
        return tuple(tuple(each.shape) for each in fields if isinstance(each, Tensor))

    assert len({shapes(batch) for update in batches for batch in update}) == 1


def test_examples_that_the_shape_does_not_hold_are_refused(many: ExampleShards) -> None:
    shape = BatchShape(num_sequences=4, length=56, num_predictions=10)
    with pytest.raises(ShapeError, match="more than its shape holds"):
        many.rows(np.arange(4)).batch(shape)
