"""The hyperparameters of a fine-tuning: the paper's table, and what overrides it."""

from typing import Any

import pytest
from pydantic import ValidationError

from albert_core.config import FinetuningSettings, TaskHyperparameters
from albert_core.finetuning.loop import PAPER, Hyperparameters, hyperparameters_of
from albert_core.stage.errors import ConfigError


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
