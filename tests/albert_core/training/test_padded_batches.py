from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.losses import IGNORED
from albert_core.stage.errors import ShapeError
from albert_core.training.loader import UpdateLoader
from albert_core.training.optimizer import build_optimizer
from albert_core.training.ranks import ALONE
from albert_core.training.shards import (
    Batch,
    BatchShape,
    ExampleShards,
    UpdateBatch,
    UpdateSizes,
    make_batch,
    shape_of,
)
from albert_core.training.step import TrainState, Update, train_step
from tests.albert_core.made_examples import made_examples
from tests.albert_core.tiny_model import tiny_settings
from tests.albert_core.tiny_vocab import tiny_vocab

LENGTH = 61
MODEL = tiny_settings(max_position_embeddings=64)
SETTINGS = TrainingSettings(max_grad_norm=1e9, learning_rate=1.0)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> ExampleShards:
    uri = made_examples(str(tmp_path_factory.mktemp("examples")), 40, LENGTH)
    return ExampleShards(uri, "train")


def updates(examples: ExampleShards, shape: BatchShape | None) -> list[list[Batch]]:
    options: dict[str, Any] = {"masks": "fresh", "pin_memory": False, "seed": 3}
    with UpdateLoader(
        examples,
        batch_size=13,
        micro_batch_size=4,
        rank=0,
        world_size=1,
        first_example=0,
        num_updates=5,
        shape=shape,
        **options,
    ) as loader:
        return [list(update.micro_batches) for update in loader]


def gradients_of(batches: list[Batch]) -> tuple[Update, dict[str, Tensor]]:
    """Return what an update says of itself, and its gradients, in float64."""
    torch.manual_seed(1)
    model = AlbertForPretraining(MODEL, tiny_vocab().vocab_size).double()
    state = TrainState(model=model, optimizer=build_optimizer(model, "adamw", 1.0, 0.0))
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: found.update({name: p.grad.clone()})
        )
    sizes = UpdateSizes(
        num_sequences=13,
        num_pieces=sum(batch.num_pieces for batch in batches),
        sum_of_squares=sum(batch.sum_of_squares for batch in batches),
        num_predictions=sum(batch.num_predictions for batch in batches),
    )
    whole = UpdateBatch(sizes=sizes, micro_batches=batches)
    return train_step(state, whole, SETTINGS, ALONE), found


def test_padded_batches_have_the_losses_and_gradients_of_packed_ones(
    examples: ExampleShards,
) -> None:
    shape = shape_of(examples, 4)
    for packed, padded in zip(updates(examples, None), updates(examples, shape), strict=True):
        expected, expected_gradients = gradients_of(packed)
        found, gradients = gradients_of(padded)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-13)
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-6)  # sums of float32
        for count in ("num_pieces", "sum_of_squares", "num_predictions"):
            of_packed, of_padded = (
                sum(getattr(b, count) for b in each) for each in (packed, padded)
            )
            assert of_padded == of_packed


def test_all_batches_have_one_shape_and_are_as_many_in_each_update(
    examples: ExampleShards,
) -> None:
    shape = shape_of(examples, 4)
    assert (shape.length, shape.num_predictions) == (64, round(0.15 * LENGTH))
    shapes = {
        tuple(
            (name, tuple(getattr(batch, name).shape))
            for name in (
                "input_ids",
                "token_type_ids",
                "first_positions",
                "masked_lm_positions",
                "masked_lm_labels",
                "sentence_order_labels",
                "key_mask",
            )
        )
        for update in updates(examples, shape)
        for batch in update
    }
    assert len(shapes) == 1
    assert [len(update) for update in updates(examples, shape)] == [4] * 5  # of 13, by fours


def test_a_row_without_an_example_has_no_label_and_sees_something(
    examples: ExampleShards,
) -> None:
    batch = make_batch(examples.rows(np.arange(2)), shape_of(examples, 3))
    assert batch.sentence_order_labels.tolist()[2] == IGNORED
    assert set(batch.masked_lm_labels.view(3, -1)[2].tolist()) == {IGNORED}
    assert batch.key_mask is not None
    assert batch.key_mask.any(-1).all()


def test_examples_that_the_shape_does_not_hold_are_refused(examples: ExampleShards) -> None:
    rows = examples.rows(np.arange(4))
    for values in (
        {"num_sequences": 3, "length": 64, "num_predictions": 10},
        {"num_sequences": 4, "length": 56, "num_predictions": 10},
        {"num_sequences": 4, "length": 64, "num_predictions": 8},
    ):
        with pytest.raises(ShapeError, match="more than its shape holds"):
            make_batch(rows, BatchShape(**values))
