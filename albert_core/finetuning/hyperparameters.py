"""The hyperparameters of a fine-tuning: the paper's table, and what a recipe changes."""

from typing import Any

from pydantic import Field

from albert_core.config import FinetuningSettings, TaskHyperparameters
from albert_core.stage.errors import ConfigError
from albert_core.stage.settings import Settings

_COLUMNS = (
    "learning_rate",
    "batch_size",
    "encoder_dropout_prob",
    "num_steps",
    "warmup_steps",
    "max_seq_length",
    "evaluation_steps",
)
_TABLE = {
    "cola": (1e-5, 16, 0.0, 5336, 320, 512, 100),
    "sts-b": (2e-5, 16, 0.0, 3598, 214, 512, 100),
    "sst-2": (1e-5, 32, 0.0, 20935, 1256, 512, 100),
    "mnli": (3e-5, 128, 0.0, 10000, 1000, 512, 100),
    "qnli": (1e-5, 32, 0.0, 33112, 1986, 512, 200),
    "qqp": (5e-5, 128, 0.1, 14000, 1000, 512, 100),
    "rte": (3e-5, 32, 0.1, 800, 200, 512, 100),
    "mrpc": (2e-5, 32, 0.0, 800, 200, 512, 100),
    "wnli": (2e-5, 16, 0.1, 2000, 250, 512, 100),
    "squad-1.1": (5e-5, 48, 0.0, 3649, 365, 384, 1000),
    "squad-2.0": (3e-5, 48, 0.0, 8144, 814, 512, 1000),
    "race": (2e-5, 32, 0.1, 12000, 1000, 512, 1000),
}
_CLASSIFIER_DROPOUT_PROB = 0.1

PAPER = {
    task: TaskHyperparameters.model_validate(
        dict(zip(_COLUMNS, row, strict=True), classifier_dropout_prob=_CLASSIFIER_DROPOUT_PROB)
    )
    for task, row in _TABLE.items()
}
"""Those of xxlarge, version 1, by the task's name; evaluation_steps of SQuAD and RACE are ours.

Version 2 differs in RACE: learning rate 1e-5, no dropout in the encoder.

Source: Lan et al. 2020, Table 14.
"""

DEFAULT = TaskHyperparameters(
    learning_rate=2e-5,
    batch_size=32,
    encoder_dropout_prob=0.0,
    classifier_dropout_prob=_CLASSIFIER_DROPOUT_PROB,
    num_epochs=5,
    max_seq_length=512,
    evaluation_steps=100,
)
"""For a task that is not in the paper: about what the paper uses for tasks of the same size."""
_DEFAULT_WARMUP_SHARE = 0.1


class Hyperparameters(Settings):
    """The hyperparameters of one fine-tuning, all of them resolved."""

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
    """Return the hyperparameters of fine-tuning on ``task``.

    Settings for the task override settings for all tasks, and these override the paper's.

    Args:
        task: its name.
        settings: of the recipe.
        num_positions: of the model; the most pieces of a sequence.
        num_examples: texts or questions to train on, to which num_epochs refers.

    Raises:
        ConfigError: max_seq_length was set and exceeds the model's positions, or the warm-up is
            not shorter than the training.
    """
    paper = PAPER.get(task, DEFAULT)
    common = settings.model_dump(include=set(TaskHyperparameters.model_fields))
    own = settings.per_task.get(task, TaskHyperparameters()).model_dump()
    chosen = _overridden(common, own)
    values = _overridden(paper.model_dump(), chosen)
    if (chosen["max_seq_length"] or 0) > num_positions:
        raise ConfigError(
            f"finetuning.max_seq_length is {chosen['max_seq_length']}, but the model has "
            f"{num_positions} positions. Set it to {num_positions} or less, or leave it out."
        )
    values["max_seq_length"] = min(values["max_seq_length"], num_positions)
    epochs = values.pop("num_epochs")
    if values["num_steps"] is None:
        values["num_steps"] = max(1, int(epochs * num_examples / values["batch_size"]))
    if chosen["warmup_steps"] is None:
        share = _DEFAULT_WARMUP_SHARE
        if paper.num_steps and paper.warmup_steps:
            share = paper.warmup_steps / paper.num_steps
        values["warmup_steps"] = int(values["num_steps"] * share)
    if values["warmup_steps"] >= values["num_steps"]:
        raise ConfigError(
            f"finetuning.warmup_steps is {values['warmup_steps']} for {task}, but there are only "
            f"{values['num_steps']} updates. Lower it, or leave it out."
        )
    return Hyperparameters(**values)


def _overridden(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return ``below`` with the values set in ``above``; steps and epochs replace each other."""
    if above["num_steps"] is not None or above["num_epochs"] is not None:
        below = below | {"num_steps": None, "num_epochs": None}
    return below | {name: value for name, value in above.items() if value is not None}
