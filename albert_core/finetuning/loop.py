"""The updates of a fine-tuning, its best weights, and the state that a checkpoint keeps.

The units of an update, and its dropout, are pure functions of the seed and the step, so a run that
was killed ends as it would have.

U units (see `tasks.problem`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from albert_core.config import FinetuningSettings, TaskHyperparameters
from albert_core.model.albert import AlbertModel
from albert_core.model.execution import products_in
from albert_core.stage.errors import ConfigError
from albert_core.stage.log import report_progress
from albert_core.stage.settings import Settings
from albert_core.tasks.problem import Head, Inputs, batches_by_length, outputs_of
from albert_core.text.seeds import derive_seed
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.order import example_order

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


@dataclass
class Best:
    """The best evaluation so far, and how many came after it."""

    step: int = 0
    score: float = -np.inf
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The weights of encoder and head, on the CPU; or the outputs for dev."""
    num_worse: int = 0
    """Evaluations since then, none of which was better; of a half they are not counted."""


class Finetuner:
    """Encoder and head, and their training.

    Args:
        encoder: as pretrained; its dropout is replaced by that of ``hyperparameters``.
        head: newly initialised.
        train: the training set.
        hyperparameters: of this run.
        settings: those that all runs have in common.
        seed: of order and dropout.
        device: where to compute.
    """

    def __init__(
        self,
        encoder: AlbertModel,
        head: Head,
        train: Inputs,
        hyperparameters: Hyperparameters,
        settings: FinetuningSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        self.encoder = with_dropout(encoder, hyperparameters.encoder_dropout_prob)
        self.head = head
        self.model = nn.ModuleDict({"encoder": self.encoder, "head": head}).to(device)
        self.train, self.seed, self.device = train, seed, device
        self.hyperparameters, self.settings = hyperparameters, settings
        self.optimizer = build_optimizer(
            self.model, settings.optimizer, hyperparameters.learning_rate, settings.weight_decay
        )
        self.step = 0
        """Updates done."""
        self.best = Best()
        """By the score on all of dev, with weights."""
        self.best_of_halves = [Best(), Best()]
        """By the score on either half of dev, with the outputs for all of it."""
        self.num_evaluations = 0

    @property
    def is_done(self) -> bool:
        """Whether all updates are done, or no better score was found for too long."""
        gave_up = 0 < self.settings.patience <= self.best.num_worse
        return gave_up or self.step >= self.hyperparameters.num_steps

    @property
    def evaluation_is_due(self) -> bool:
        """Whether dev is to be scored after this step."""
        every, last = self.hyperparameters.evaluation_steps, self.hyperparameters.num_steps
        return self.step % every == 0 or self.step == last

    def update(self) -> Tensor:
        """Do the next update; return its mean loss, float32 (), on the device."""
        step, wanted = self.step, self.hyperparameters
        size = wanted.batch_size
        units = example_order(step * size, size, self.train.num_units, self.seed)
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        self.model.train()
        total = torch.zeros((), device=self.device)
        lengths, most = self.train.unit_lengths[units], self.settings.micro_batch_pieces
        for places in batches_by_length(lengths, most):
            part, share = units[places], len(places) / len(units)
            targets = {
                name: torch.from_numpy(values[part]).to(self.device)
                for name, values in self.train.targets.items()
            }
            batch = self.train.batch(part, self.device)
            with products_in(self.settings.precision, self.device):
                loss = self.head.loss(self.encoder, batch, targets)
            (loss * share).backward()
            total += loss.detach() * share
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        rate = learning_rate_at(
            step,
            wanted.learning_rate,
            wanted.warmup_steps,
            wanted.num_steps,
            self.settings.schedule,
        )
        self.optimizer.set_rate(rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        report_progress(self.step, wanted.num_steps, "steps")
        return total

    def outputs(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        """Return the outputs of the head for each of the U units, in their order."""
        self.model.eval()
        pieces = self.settings.micro_batch_pieces
        with products_in(self.settings.precision, self.device):
            return outputs_of(self.encoder, self.head, inputs, self.device, pieces)

    def note_scores(
        self, score: float, of_halves: Sequence[float], outputs: Mapping[str, NDArray[Any]]
    ) -> None:
        """Take note of dev's key score, and of its halves', with the current weights.

        Args:
            score: on all of dev.
            of_halves: on each of its two halves.
            outputs: of the head, for all of dev.
        """
        self.num_evaluations += 1
        self.best.num_worse += 1
        if score > self.best.score:
            weights = {
                name: value.detach().to("cpu", copy=True)
                for name, value in self.model.state_dict().items()
            }
            self.best = Best(self.step, score, weights)
        for half, found in enumerate(of_halves):
            if found > self.best_of_halves[half].score:
                tensors = {name: torch.from_numpy(values) for name, values in outputs.items()}
                self.best_of_halves[half] = Best(self.step, found, tensors)

    def take_best(self) -> None:
        """Restore the weights with the best score."""
        self.model.load_state_dict(self.best.tensors)

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": [best.tensors for best in self._all_best],
        }

    def numbers(self) -> dict[str, Any]:
        """Return the JSON values of a checkpoint."""
        names = ("step", "score", "num_worse")
        best = [{name: getattr(each, name) for name in names} for each in self._all_best]
        return {"step": self.step, "num_evaluations": self.num_evaluations, "best": best}

    def restore(self, tensors: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Restore the state from which `tensors` and `numbers` were taken."""
        self.model.load_state_dict(tensors["model"])
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.step, self.num_evaluations = numbers["step"], numbers["num_evaluations"]
        self.best, *self.best_of_halves = (
            Best(tensors=found, **about)
            for found, about in zip(tensors["best"], numbers["best"], strict=True)
        )

    @property
    def _all_best(self) -> list[Best]:
        return [self.best, *self.best_of_halves]


def with_dropout(encoder: AlbertModel, dropout_prob: float) -> AlbertModel:
    """Return a copy of ``encoder`` whose hidden and attention dropout is ``dropout_prob``."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    settings = encoder.settings.model_copy(update=dict.fromkeys(names, dropout_prob))
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced immediately
        copy = AlbertModel(settings, encoder.embeddings.word.num_embeddings)
    copy.load_state_dict(encoder.state_dict())
    return copy
