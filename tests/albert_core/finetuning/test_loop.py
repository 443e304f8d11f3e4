"""The hyperparameters of a fine-tuning, its updates, and the best weights."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from albert_core.config import FinetuningSettings, TaskHyperparameters
from albert_core.finetuning.finetuning import PAPER, Finetuner, Hyperparameters, hyperparameters_of
from albert_core.model.albert import AlbertModel
from albert_core.stage.errors import ConfigError
from albert_core.tasks.problem import TARGET, Head, Inputs, PooledHead, Sequences
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
    """Return sequences of 3 to 12 pieces, of which the first tells the label: 7 or 8."""
    draws = np.random.default_rng(num_units)
    labels = np.arange(num_units * per_unit) % 2
    pairs = [
        ([7 + int(label), *draws.integers(10, 40, draws.integers(0, 9)).tolist()], None)
        for label in labels
    ]
    found = labels if targets is None else targets
    return Inputs(Sequences.of(pairs), {TARGET: found}, [], sequences_per_unit=per_unit)


def made_finetuner(
    head: Head | None = None, inputs: Inputs | None = None, wanted: Any = (), **settings: Any
) -> Finetuner:
    """Return one that has made no update, with the hyperparameters ``wanted`` and ``settings``."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "num_steps": 30,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "warmup_steps": 3,
        "encoder_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "max_seq_length": 40,
        "evaluation_steps": 10,
    }
    return Finetuner(
        AlbertModel(MODEL, 50),
        head or PooledHead(MODEL, 2, 0.0),
        inputs or made_inputs(48),
        Hyperparameters(**values | dict(wanted)),
        FinetuningSettings(**settings),
        seed=5,
        device=CPU,
    )


def trained(finetuner: Finetuner) -> Finetuner:
    while not finetuner.is_done:
        finetuner.update()
    return finetuner


def weights_of(finetuner: Finetuner) -> list[Tensor]:
    return [value.clone() for value in finetuner.model.state_dict().values()]


def note(finetuner: Finetuner, score: float, *of_halves: float) -> None:
    """Let dev's only output be the score."""
    outputs = {"score": np.array([score])}
    finetuner.note_scores([score, *(of_halves or (score, score))], outputs)


def test_outputs_come_in_the_order_of_the_units() -> None:
    finetuner, dev = made_finetuner(micro_batch_pieces=40), made_inputs(23)
    together = finetuner.outputs(dev)["logits"]
    for unit in range(23):
        with torch.no_grad():
            batch = dev.batch(np.array([unit]), CPU)
            alone = finetuner.head.outputs(finetuner.encoder, batch)["logits"]
        np.testing.assert_allclose(together[unit], alone[0], atol=1e-5)


def test_micro_batches_change_nothing_beyond_rounding() -> None:
    found = []
    for pieces in (16_384, 20):
        wanted = {"num_steps": 5, "warmup_steps": 0}
        finetuner = made_finetuner(wanted=wanted, micro_batch_pieces=pieces)
        finetuner.model.double()
        found.append(weights_of(trained(finetuner)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_it_ends_when_nothing_gets_better() -> None:
    finetuner = made_finetuner(patience=2)
    note(finetuner, 0.5)
    note(finetuner, 0.5)
    assert not finetuner.is_done
    note(finetuner, 0.1)
    assert finetuner.is_done


def test_the_best_weights_are_those_of_the_best_score() -> None:
    finetuner = made_finetuner(wanted={"encoder_dropout_prob": 0.1})
    finetuner.update()
    note(finetuner, 0.9)
    best = weights_of(finetuner)
    finetuner.update()
    note(finetuner, 0.8)
    assert not all(map(torch.equal, weights_of(finetuner), best))
    finetuner.take_best()
    assert all(map(torch.equal, weights_of(finetuner), best))
    assert (finetuner.best[0].step, finetuner.best[0].num_worse) == (1, 1)


def test_a_number_is_learned() -> None:
    targets = np.arange(48) % 2 * 2.0 - 1
    inputs = made_inputs(48, targets=targets)
    wanted = {"num_steps": 80, "learning_rate": 5e-3}
    finetuner = trained(made_finetuner(PooledHead(MODEL, 1, 0.0), inputs, wanted))
    assert np.abs(finetuner.outputs(inputs)["logits"][:, 0] - targets).mean() < 0.3


def test_the_right_option_is_learned_also_in_bfloat16() -> None:
    # The right one of two options is the one whose first piece is 8: each unit's second.
    inputs = made_inputs(40, per_unit=2, targets=np.ones(40, np.int64))
    head = PooledHead(MODEL, 1, 0.0, num_options=2)
    logits = trained(made_finetuner(head, inputs, precision="bfloat16")).outputs(inputs)["logits"]
    assert logits.shape == (40, 2)
    assert (logits.argmax(axis=1) == 1).mean() > 0.95


def test_each_half_keeps_the_outputs_that_are_best_on_it_also_over_a_restart() -> None:
    first = made_finetuner()
    for of_halves in ((0.1, 0.9), (0.8, 0.2)):
        note(first, sum(of_halves), *of_halves)
    again = made_finetuner()
    again.restore(first.state())
    note(again, 0.3, 0.7, 0.3)
    found = [(best.score, best.tensors["score"].item()) for best in again.best[1:]]
    assert found == [(0.8, 1.0), (0.9, 1.0)]
    assert again.num_evaluations == 3


def found(task: str, num_examples: int = 1000, positions: int = 512, **said: Any) -> dict[str, Any]:
    settings = FinetuningSettings(**said)
    return hyperparameters_of(task, settings, positions, num_examples).model_dump()


def test_without_settings_they_are_the_papers_and_complete() -> None:
    assert found("cola") == {
        "num_steps": 5336,
        "batch_size": 16,
        "learning_rate": 1e-5,
        "warmup_steps": 320,
        "encoder_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "max_seq_length": 512,
        "evaluation_steps": 100,
    }
    assert found("squad-1.1")["max_seq_length"] == 384
    assert all(set(found(task)) == set(Hyperparameters.model_fields) for task in PAPER)


def test_settings_for_the_task_override_those_for_all() -> None:
    per_task = {"rte": {"learning_rate": 7e-5}}
    both: dict[str, Any] = {"learning_rate": 5e-5, "batch_size": 8, "per_task": per_task}
    assert (found("rte", **both)["learning_rate"], found("rte", **both)["batch_size"]) == (7e-5, 8)
    assert found("wnli", **both)["learning_rate"] == 5e-5


def test_fewer_updates_have_the_papers_share_of_warm_up() -> None:
    assert found("sst-2", num_steps=1000)["warmup_steps"] == 1000 * 1256 // 20935
    assert found("sst-2", num_steps=1000, warmup_steps=7)["warmup_steps"] == 7


def test_epochs_replace_steps_and_steps_replace_epochs() -> None:
    assert found("mrpc", num_epochs=3, num_examples=3668)["num_steps"] == 3 * 3668 // 32
    assert found("mrpc", num_epochs=0.001, warmup_steps=0)["num_steps"] == 1
    per_task = {"mrpc": {"num_steps": 9}}
    assert found("mrpc", num_epochs=3, per_task=per_task)["num_steps"] == 9


def test_a_task_that_is_not_in_the_paper_has_five_epochs() -> None:
    own = found("tickets", num_examples=640)
    assert (own["num_steps"], own["warmup_steps"], own["batch_size"]) == (100, 10, 32)


def test_the_papers_length_is_cut_to_the_models_positions_but_a_set_one_is_refused() -> None:
    assert found("cola", positions=64)["max_seq_length"] == 64
    assert found("cola", positions=64, max_seq_length=64)["max_seq_length"] == 64
    with pytest.raises(ConfigError, match="max_seq_length is 128, but the model has 64 positions"):
        found("cola", positions=64, max_seq_length=128)


def test_a_warm_up_without_end_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be below num_steps"):
        TaskHyperparameters(num_steps=5, warmup_steps=5)
    with pytest.raises(ConfigError, match="warmup_steps is 5 for cola, but there are only 5"):
        found("cola", warmup_steps=5, per_task={"cola": {"num_steps": 5}})


def test_steps_and_epochs_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        TaskHyperparameters(num_steps=5, num_epochs=1)
