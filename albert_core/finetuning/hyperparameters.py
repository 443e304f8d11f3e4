"""With what a model is fine-tuned on a task: the paper's table, and what a recipe changes of it."""

from typing import Any

from pydantic import Field

from albert_core.config import FinetuningSettings, TaskHyperparameters
from albert_core.stage.errors import ConfigError
from albert_core.stage.settings import Settings


def _of(
    learning_rate: float,
    batch_size: int,
    encoder_dropout_prob: float,
    num_steps: int,
    warmup_steps: int,
    max_seq_length: int,
    evaluation_steps: int,
) -> TaskHyperparameters:
    return TaskHyperparameters(
        learning_rate=learning_rate,
        batch_size=batch_size,
        encoder_dropout_prob=encoder_dropout_prob,
        classifier_dropout_prob=0.1,
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        max_seq_length=max_seq_length,
        evaluation_steps=evaluation_steps,
    )


PAPER = {
    "cola": _of(1e-5, 16, 0.0, 5336, 320, 512, 100),
    "sts-b": _of(2e-5, 16, 0.0, 3598, 214, 512, 100),
    "sst-2": _of(1e-5, 32, 0.0, 20935, 1256, 512, 100),
    "mnli": _of(3e-5, 128, 0.0, 10000, 1000, 512, 100),
    "qnli": _of(1e-5, 32, 0.0, 33112, 1986, 512, 200),
    "qqp": _of(5e-5, 128, 0.1, 14000, 1000, 512, 100),
    "rte": _of(3e-5, 32, 0.1, 800, 200, 512, 100),
    "mrpc": _of(2e-5, 32, 0.0, 800, 200, 512, 100),
    "wnli": _of(2e-5, 16, 0.1, 2000, 250, 512, 100),
    "squad-1.1": _of(5e-5, 48, 0.0, 3649, 365, 384, 1000),
    "squad-2.0": _of(3e-5, 48, 0.0, 8144, 814, 512, 1000),
    "race": _of(2e-5, 32, 0.1, 12000, 1000, 512, 1000),
}
"""Of xxlarge, version 1, by the task's name; evaluation_steps of SQuAD and RACE are ours.

Version 2 differs in RACE: learning rate 1e-5, no dropout in the encoder.

Source: Lan et al. 2020, Table 14.
"""

DEFAULT = TaskHyperparameters(
    learning_rate=2e-5,
    batch_size=32,
    encoder_dropout_prob=0.0,
    classifier_dropout_prob=0.1,
    num_epochs=5,
    max_seq_length=512,
    evaluation_steps=100,
)
"""Of a task that the paper has not: about what it has for tasks of that size."""
_DEFAULT_WARMUP_SHARE = 0.1


class Hyperparameters(Settings):
    """With what one fine-tuning is done: nothing is left open."""

    num_steps: int = Field(ge=1)
    batch_size: int
    learning_rate: float
    warmup_steps: int
    encoder_dropout_prob: float
    classifier_dropout_prob: float
    max_seq_length: int
    evaluation_steps: int


def hyperparameters_of(
    task: str, settings: FinetuningSettings, num_positions: int, num_examples: int
) -> Hyperparameters:
    """Return with what to fine-tune on ``task``.

    What the settings say for the task goes before what they say for all, and that before the
    paper's.

    Args:
        task: its name.
        settings: of the recipe.
        num_positions: of the model; they bound the length.
        num_examples: texts or questions to train on, of which num_epochs counts.

    Raises:
        ConfigError: max_seq_length was asked for and exceeds the model's positions, or the
            warm-up has no end.
    """
    paper = PAPER.get(task, DEFAULT)
    common = settings.model_dump(include=set(TaskHyperparameters.model_fields))
    own = settings.per_task.get(task, TaskHyperparameters()).model_dump()
    asked = _over(common, own)
    values = _over(paper.model_dump(), asked)
    length = asked["max_seq_length"]
    if length is not None and length > num_positions:
        raise ConfigError(
            f"finetuning.max_seq_length is {length}, but the model has {num_positions} positions. "
            f"Set it to {num_positions} or less, or leave it out."
        )
    values["max_seq_length"] = min(values["max_seq_length"], num_positions)
    epochs = values.pop("num_epochs")
    if values["num_steps"] is None:
        values["num_steps"] = max(1, int(epochs * num_examples / values["batch_size"]))
    if asked["warmup_steps"] is None:
        values["warmup_steps"] = int(values["num_steps"] * _warmup_share(paper))
    if values["warmup_steps"] >= values["num_steps"]:
        raise ConfigError(
            f"finetuning.warmup_steps is {values['warmup_steps']} for {task}, but there are only "
            f"{values['num_steps']} updates. Lower it, or leave it out."
        )
    return Hyperparameters(**values)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return ``below`` with what ``above`` has; num_steps and num_epochs replace each other."""
    if above["num_steps"] is not None or above["num_epochs"] is not None:
        below = below | {"num_steps": None, "num_epochs": None}
    return below | {name: value for name, value in above.items() if value is not None}


def _warmup_share(paper: TaskHyperparameters) -> float:
    if paper.num_steps is None or paper.warmup_steps is None:
        return _DEFAULT_WARMUP_SHARE
    return paper.warmup_steps / paper.num_steps
