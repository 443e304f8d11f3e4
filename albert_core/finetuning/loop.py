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
from torch import Tensor, nn

from albert_core.config import FinetuningSettings
from albert_core.finetuning.hyperparameters import Hyperparameters
from albert_core.model.albert import AlbertModel
from albert_core.model.execution import products_in
from albert_core.stage.log import report_progress
from albert_core.tasks.problem import Head, Inputs, batches_by_length, outputs_of
from albert_core.text.seeds import derive_seed
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.order import example_order


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
