"""The loop of fine-tuning: updates, the best weights, and what a kill changes of them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from albert_core.config import FinetuningSettings
from albert_core.finetuning.hyperparameters import Hyperparameters
from albert_core.finetuning.loop import Finetuner
from albert_core.model.albert import AlbertModel
from albert_core.tasks.problem import Inputs
from albert_core.tasks.sequences import Sequences
from albert_core.tasks.texts import TARGET, ChoiceHead, ClassificationHead, RegressionHead
from tests.albert_core.tiny_model import tiny_settings

MODEL = tiny_settings(
    embedding_size=16,
    hidden_size=32,
    intermediate_size=64,
    max_position_embeddings=40,
    initializer_range=0.2,  # so wide a draw learns in a few updates
)
CPU = torch.device("cpu")


def made_inputs(num_units: int, per_unit: int = 1, targets: Any = None) -> Inputs:
    """Return sequences of 3 to 12 pieces, of which the first says the label: 7 or 8."""
    draws = np.random.default_rng(num_units)
    labels = np.arange(num_units * per_unit) % 2
    pairs = [
        ([7 + int(label), *draws.integers(10, 40, draws.integers(0, 9)).tolist()], None)
        for label in labels
    ]
    found = labels if targets is None else targets
    return Inputs(
        sequences=Sequences.of(pairs),
        targets={TARGET: found},
        accounts=[],
        sequences_per_unit=per_unit,
    )


def hyperparameters(**changes: Any) -> Hyperparameters:
    values: dict[str, Any] = {
        "num_steps": 30,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "warmup_steps": 3,
        "encoder_dropout_prob": 0.1,
        "classifier_dropout_prob": 0.1,
        "max_seq_length": 40,
        "evaluation_steps": 10,
    }
    return Hyperparameters(**values | changes)


def made_finetuner(
    wanted: Hyperparameters | None = None,
    settings: FinetuningSettings | None = None,
    inputs: Inputs | None = None,
) -> Finetuner:
    torch.manual_seed(0)
    encoder = AlbertModel(MODEL, 50)
    return Finetuner(
        encoder,
        ClassificationHead(MODEL, 2, 0.1),
        inputs or made_inputs(48),
        wanted or hyperparameters(),
        settings or FinetuningSettings(),
        seed=5,
        device=CPU,
    )


def weights_of(finetuner: Finetuner) -> list[Tensor]:
    return [value.clone() for value in finetuner.model.state_dict().values()]


def all_equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, ones, others))


def test_outputs_come_in_the_order_of_the_units() -> None:
    finetuner = made_finetuner(settings=FinetuningSettings(micro_batch_pieces=40))
    dev = made_inputs(23)
    together = finetuner.outputs(dev)["logits"]
    for unit in range(23):
        with torch.no_grad():
            batch = dev.sequences.batch(np.array([unit]), CPU)
            alone = finetuner.head.outputs(finetuner.encoder, batch)["logits"]
        np.testing.assert_allclose(together[unit], alone[0], atol=1e-5)


def test_micro_batches_change_nothing_beyond_rounding() -> None:
    wanted = hyperparameters(encoder_dropout_prob=0.0, num_steps=5, warmup_steps=0)

    def trained(micro_batch_pieces: int) -> list[Tensor]:
        settings = FinetuningSettings(micro_batch_pieces=micro_batch_pieces)
        finetuner = made_finetuner(wanted, settings)
        finetuner.head.dropout.p = 0.0  # type: ignore[union-attr]
        finetuner.model.double()
        while not finetuner.is_done:
            finetuner.update()
        return weights_of(finetuner)

    for one, other in zip(trained(16_384), trained(20), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_it_ends_when_nothing_gets_better() -> None:
    finetuner = made_finetuner(settings=FinetuningSettings(patience=2))
    assert finetuner.note_score(0.5)
    assert not finetuner.note_score(0.5)
    assert not finetuner.is_done
    finetuner.note_score(0.1)
    assert finetuner.is_done


def test_the_best_weights_are_those_of_the_best_score() -> None:
    finetuner = made_finetuner()
    finetuner.update()
    finetuner.note_score(0.9)
    best = weights_of(finetuner)
    finetuner.update()
    finetuner.note_score(0.8)
    assert not all_equal(weights_of(finetuner), best)
    finetuner.take_best()
    assert all_equal(weights_of(finetuner), best)


def test_a_number_is_learned() -> None:
    targets = np.arange(48) % 2 * 2.0 - 1
    inputs = made_inputs(48, targets=targets)
    torch.manual_seed(0)
    finetuner = Finetuner(
        AlbertModel(MODEL, 50),
        RegressionHead(MODEL, 0.0),
        inputs,
        hyperparameters(num_steps=80, encoder_dropout_prob=0.0, learning_rate=5e-3),
        FinetuningSettings(),
        seed=1,
        device=CPU,
    )
    while not finetuner.is_done:
        finetuner.update()
    found = finetuner.outputs(inputs)["logits"][:, 0]
    assert np.abs(found - targets).mean() < 0.3


def test_the_right_option_is_learned_also_in_bfloat16() -> None:
    # Of two options, the right one is the one whose first piece is 8: each unit's second.
    inputs = made_inputs(40, per_unit=2, targets=np.ones(40, np.int64))
    torch.manual_seed(0)
    finetuner = Finetuner(
        AlbertModel(MODEL, 50),
        ChoiceHead(MODEL, 2, 0.0),
        inputs,
        hyperparameters(encoder_dropout_prob=0.0),
        FinetuningSettings(precision="bfloat16"),
        seed=1,
        device=CPU,
    )
    while not finetuner.is_done:
        finetuner.update()
    logits = finetuner.outputs(inputs)["logits"]
    assert logits.shape == (40, 2)
    assert (logits.argmax(axis=1) == 1).mean() > 0.95
