"""The loop of fine-tuning: updates, evaluation, and the state that both leave.

Which units an update sees, and its dropout, are pure functions of the seed and the step, so a run
that was killed ends as it would have.

U units (see `tasks.problem`).
"""

from collections.abc import Mapping
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
from albert_core.tasks.problem import Head, Inputs, Ints, batch_of_units, outputs_of, unit_lengths
from albert_core.tasks.sequences import batches_by_length
from albert_core.text.seeds import derive_seed
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.order import example_order


@dataclass
class Best:
    """The best evaluation so far, and what came after it."""

    step: int = 0
    score: float = -np.inf
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Of encoder and head, on the CPU."""
    num_worse: int = 0
    """Evaluations since then, none of which was better."""


class Finetuner:
    """Encoder and head, and what changes them.

    Args:
        encoder: as pretrained; its dropout is replaced by that of ``hyperparameters``.
        head: fresh.
        train: what to learn.
        hyperparameters: of this run.
        settings: what all runs have in common.
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
        self._lengths = unit_lengths(train)
        self.hyperparameters, self.settings = hyperparameters, settings
        self.optimizer = build_optimizer(
            self.model, settings.optimizer, hyperparameters.learning_rate, settings.weight_decay
        )
        self.step = 0
        """Updates done."""
        self.best = Best()

    @property
    def is_done(self) -> bool:
        """Whether all updates are done, or no better score came for too long."""
        gave_up = 0 < self.settings.patience <= self.best.num_worse
        return gave_up or self.step >= self.hyperparameters.num_steps

    @property
    def evaluation_is_due(self) -> bool:
        """Whether this step is one after which dev is scored."""
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
        for part in self._micro_batches(units):
            share = len(part) / len(units)
            with products_in(self.settings.precision, self.device):
                loss = self.head.loss(
                    self.encoder, batch_of_units(self.train, part, self.device), self._targets(part)
                )
            (loss * share).backward()
            total += loss.detach() * share
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(
                step,
                wanted.learning_rate,
                wanted.warmup_steps,
                wanted.num_steps,
                self.settings.schedule,
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        report_progress(self.step, self.hyperparameters.num_steps, "steps")
        return total

    def outputs(self, inputs: Inputs) -> dict[str, NDArray[Any]]:
        """Return what the head gives for each of the U units, in their order."""
        self.model.eval()
        pieces = self.settings.micro_batch_pieces
        with products_in(self.settings.precision, self.device):
            return outputs_of(self.encoder, self.head, inputs, self.device, pieces)

    def note_score(self, score: float) -> bool:
        """Note dev's key score of the weights as they are; return whether it is the best yet."""
        if score <= self.best.score:
            self.best.num_worse += 1
            return False
        weights = {name: _copy(value) for name, value in self.model.state_dict().items()}
        self.best = Best(self.step, score, weights)
        return True

    def take_best(self) -> None:
        """Go back to the weights of the best score."""
        self.model.load_state_dict(self.best.weights)

    def tensors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as tensors."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best.weights,
        }

    def numbers(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        best = {"step": self.best.step, "num_worse": self.best.num_worse}
        return {"step": self.step, "best": best, "best_score": repr(self.best.score)}

    def restore(self, tensors: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Become what `tensors` and `numbers` were of."""
        self.model.load_state_dict(tensors["model"])
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.step = numbers["step"]
        self.best = Best(
            score=float(numbers["best_score"]), weights=tensors["best"], **numbers["best"]
        )

    def _micro_batches(self, units: Ints) -> list[Ints]:
        parts = batches_by_length(self._lengths[units], self.settings.micro_batch_pieces)
        return [units[part] for part in parts]

    def _targets(self, units: Ints) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(values[units]).to(self.device)
            for name, values in self.train.targets.items()
        }


def with_dropout(encoder: AlbertModel, dropout_prob: float) -> AlbertModel:
    """Return a copy of ``encoder`` whose hidden and attention dropout is ``dropout_prob``."""
    settings = encoder.settings.model_copy(
        update={
            "hidden_dropout_prob": dropout_prob,
            "attention_probs_dropout_prob": dropout_prob,
        }
    )
    with torch.random.fork_rng(devices=[]):  # its own first weights are replaced at once
        copy = AlbertModel(settings, encoder.embeddings.word.num_embeddings)
    copy.load_state_dict(encoder.state_dict())
    return copy


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
