"""One update: its losses, the gradient of a whole batch, however it is cut, and the step it gives.

A loss is a part of one mean over the whole update.

An update that is not finite is skipped. A GPU decides that itself, by numbers that are the same on
every rank, so nothing waits for it before the outcome is asked for.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from albert_core.config import TrainingSettings, layer_growth
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import products_in
from albert_core.model.losses import cross_entropy, num_right, summed_cross_entropy
from albert_core.stage.errors import IntegrityError, ShapeError
from albert_core.text.records import Sizes
from albert_core.training import sharding
from albert_core.training.batches import Batch
from albert_core.training.loader import UpdateBatch
from albert_core.training.optimizer import AdamW, clip, norms_of
from albert_core.training.ranks import Ranks

EXTRA_PREDICTIONS = 1e-5
"""Added to the number of predictions of an update by the reference's `run_pretraining.py`."""
_CHECKED = 3
"""Numbers of an outcome that are finite where an update is made: the first, norm and losses."""
PAIR_TASKS: dict[str, str | None] = {"sop": "sentence_order", "nsp": "next_sentence", "none": None}
"""The examples' objective -> what is learned from a pair of segments, as metrics call it."""


@dataclass(kw_only=True)
class TrainState:
    """Everything that an update changes, so everything that a checkpoint saves."""

    model: AlbertForPretraining
    optimizer: AdamW
    step: int = 0
    """Updates done, skipped ones included, so that the order of the data goes on."""
    examples_taken: int = 0
    """Examples taken of the present data set: the place in its order."""
    examples_skipped: int = 0
    """How many of them were in skipped updates."""
    num_skipped: int = 0
    """Updates skipped, because their loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    """Updates skipped since the last that was made."""
    unreported: list[dict[str, float]] = field(default_factory=list)
    """Metrics of the updates made since the last progress line."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One point for each progress line: what was computed, and not how fast."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """One point for each evaluation on held-out examples."""

    def tensors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as tensors: they are the state's own, not copies.

        If they are sharded, every rank must call this.
        """
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return sharding.whole(tensors)  # type: ignore[no-any-return]

    def whole_model(self) -> AlbertForPretraining:
        """Return the model; a sharded one gathered, on the CPU of every rank."""
        if not sharding.is_sharded(self.model):
            return self.model
        encoder, vocab_size = self.model.encoder, len(self.model.masked_lm.bias)
        with torch.device("meta"):
            model = AlbertForPretraining(encoder.settings, vocab_size)
        model.load_state_dict(sharding.whole(self.model.state_dict()), assign=True)
        return model

    def count(self, update: "Update") -> None:
        """Take note of the outcome of an update, once and in their order."""
        self.examples_skipped += update.skipped * update.num_sequences
        self.num_skipped += update.skipped
        self.skipped_in_a_row = (self.skipped_in_a_row + 1) * update.skipped

    def numbers(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON: all but what has `tensors`."""
        return {name: copy(getattr(self, name)) for name in self._names_of_numbers()}

    def _names_of_numbers(self) -> list[str]:
        return [each.name for each in fields(self) if each.name not in ("model", "optimizer")]

    def has_weights_like(self, moments: dict[int, dict[str, Tensor]]) -> bool:
        """Return whether each weight of the optimizer has the shape of its ``moments``."""
        weights = self._optimized()
        return all(
            number < len(weights) and moment.shape == weights[number].shape
            for number, of_weight in moments.items()
            for moment in of_weight.values()
        )

    def _optimized(self) -> list[Tensor]:
        """Return the weights by the number that the optimizer's state has for them."""
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]

    def restore(self, tensors: dict[str, Any], numbers: dict[str, Any], where: str) -> None:
        """Take over what `tensors` and `numbers` returned; the optimizer keeps its own settings.

        Raises:
            IntegrityError: a number or tensor is missing, or has another shape.
        """
        optimizer, own = self.optimizer.state_dict(), self.model.state_dict()
        weights = self._optimized()
        try:
            optimizer["state"] = {
                number: {
                    name: sharding.part_like(each, weights[number])
                    for name, each in moments.items()
                }
                for number, moments in tensors["optimizer"]["state"].items()
            }
            model = {
                n: sharding.part_like(each, own.get(n, each))
                for n, each in tensors["model"].items()
            }
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            for name in self._names_of_numbers():
                setattr(self, name, numbers[name])
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"{where} does not fit this model: {error}. Give a checkpoint of a model with "
                "the same shapes, written by this version."
            ) from error


class Asked(NamedTuple):
    """The requests of a rank after an update; all ranks do what one of them requests."""

    stop: bool = False
    evaluation: bool = False
    checkpoint: bool = False


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update that the device was given; its outcome, the same on every rank, is waited for."""

    step: int
    """Updates done with it."""
    num_sequences: int
    """Examples in it, of all ranks."""
    pair_task: str | None
    """What is learned from pairs."""
    read: Callable[[], list[float]]
    """Waits for grad_norm, losses and accuracies of masked LM and of the pairs, and `Asked`."""

    @cached_property
    def _outcome(self) -> list[float]:
        return self.read()

    @property
    def metrics(self) -> dict[str, float]:
        """Over the whole batch: losses in nats, accuracies as shares, grad_norm before clipping.

        For masked LM the label's score may be the highest with others, unlike on held-out examples.
        """
        grad_norm, lm, pair, lm_right, pair_right, *_ = self._outcome
        metrics = {"masked_lm_loss": lm, "masked_lm_accuracy": lm_right}
        if self.pair_task is not None:
            metrics |= {f"{self.pair_task}_loss": pair, f"{self.pair_task}_accuracy": pair_right}
        return metrics | {"grad_norm": grad_norm}

    @property
    def skipped(self) -> bool:
        """Whether its loss or gradient was not finite, so that nothing was changed."""
        return not all(map(math.isfinite, self._outcome[:_CHECKED]))

    @property
    def asked(self) -> Asked:
        """The requests of any rank."""
        return Asked(*(number > 0 for number in self._outcome[5:]))


def layers_at(step: int, num_steps: int, shallow_share: float, num_layers: int) -> int:
    """Return how many layers update ``step``, counted from 0, computes: see `layer_growth`."""
    growth = layer_growth(num_steps, shallow_share, num_layers)
    return max(layers for first_step, layers in growth if first_step <= step)


def train_step(
    state: TrainState,
    batch: UpdateBatch,
    settings: TrainingSettings,
    ranks: Ranks,
    pair_task: str | None = "sentence_order",
    ask: Callable[[], Asked] = Asked,
) -> Update:
    """Do one update over the micro-batches of every rank, or skip it.

    How the batch was cut into micro-batches and ranks does not change the update, up to rounding.
    A skipped update leaves weights and optimizer as they were, but counts as a step. The caller
    sets the learning rate.

    Args:
        state: changed in place.
        batch: this rank's part, of at least one sequence, on the device.
        settings: of the run.
        ranks: those that do the update together.
        pair_task: what is learned from pairs, a value of `PAIR_TASKS`; None for nothing.
        ask: what this rank asks for, which all ranks learn here; called when its gradients are
            computed.
    """
    sizes = batch.sizes
    model, device = state.model, ranks.device
    scores = torch.zeros(4, device=device)  # losses and accuracies of masked LM and of the pairs
    with sharding.gathered(model, ranks):
        for micro_batch, is_last in _with_last(batch.micro_batches):
            with sharding.backward_pass(model, ranks, is_last):
                scores += _backward(model, micro_batch, sizes, settings, device, pair_task)
    # Sent as data that nothing waits for: XLA would compile a graph for each constant.
    mine = torch.tensor(ask(), dtype=scores.dtype).to(device, non_blocking=True)
    sums = ranks.sum_gradients(model, torch.cat([scores, mine]))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    parts = sharding.parts_of(gradients)
    norm = torch.linalg.vector_norm(norms_of(parts, of=gradients))
    outcome = torch.cat([norm.to(sums.dtype)[None], sums])
    update = Update(
        step=state.step + 1,
        num_sequences=sizes.num_sequences,
        pair_task=pair_task,
        read=ranks.on_its_way(outcome),
    )
    if ranks.runs_ahead or not update.skipped:
        clip(parts, norm, settings.max_grad_norm)
        made = outcome[:_CHECKED].isfinite().all() if ranks.runs_ahead else None
        state.optimizer.step(made)
    state.optimizer.zero_grad(set_to_none=True)
    ranks.begin_pending()
    state.step += 1
    state.examples_taken += sizes.num_sequences
    return update


def masked_lm_loss(
    logits: Tensor, labels: Tensor, num_predictions: Tensor | float, compiled: bool = False
) -> Tensor:
    """Return the cross-entropy at the masked positions, in nats per prediction.

    Args:
        logits: float (M, V), unnormalised scores at the masked positions; any precision.
        labels: int64 (M,), the pieces that stood there before masking; `IGNORED` at padding.
        num_predictions: a number or float32 scalar, predictions in the whole update: every
            micro-batch, every rank; above 0. Summed over those parts, the result is
            one mean over all predictions, however the batch was cut. Training adds
            `EXTRA_PREDICTIONS` to it.
        compiled: by `torch.compile`, where there is no faster path.

    Returns:
        float32 scalar, >= 0; float64 for float64 logits.

    Raises:
        ShapeError: logits are not (M, V), or labels are not (M,).

    Source: Devlin et al. 2019, section 3.1.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ShapeError(
            f"labels {tuple(labels.shape)} must be (M,), the first dimension of the logits "
            f"(M, V) {tuple(logits.shape)}"
        )
    return cross_entropy(logits, labels, num_predictions, compiled)


def sentence_order_loss(logits: Tensor, labels: Tensor, num_sequences: Tensor | float) -> Tensor:
    """Return the cross-entropy of the order of the segments, in nats per sequence.

    For next-sentence prediction, label 1 is a segment b from elsewhere.

    Args:
        logits: float (B, 2), unnormalised scores of in order and swapped; any precision.
        labels: int64 (B,), 0 in document order, 1 swapped; `IGNORED` at padding.
        num_sequences: sequences in the whole update, counted as ``num_predictions`` is in
            `masked_lm_loss`; at least 1.

    Returns:
        float32 scalar, >= 0; float64 for float64 logits.

    Raises:
        ShapeError: logits are not (B, 2), or labels are not (B,).

    Source: Lan et al. 2020, section 3.1.
    """
    if logits.shape != (*labels.shape, 2) or labels.ndim != 1:
        raise ShapeError(
            f"labels {tuple(labels.shape)} must be (B,) and logits {tuple(logits.shape)} (B, 2)"
        )
    return summed_cross_entropy(logits, labels) / num_sequences


def _backward(
    model: AlbertForPretraining,
    batch: Batch,
    sizes: Sizes,
    settings: TrainingSettings,
    device: torch.device,
    pair_task: str | None,
) -> Tensor:
    """Add the gradient of one micro-batch; return its part of losses, then accuracies, (4,).

    All else that it made is freed when it returns, so that the next micro-batch has the room.
    """
    with products_in(settings.precision, device):
        lm_logits, pair_logits = model(**batch.model_inputs)  # (M, V), (B, 2)
    num_predictions = sizes.num_predictions + EXTRA_PREDICTIONS
    lm = masked_lm_loss(lm_logits, batch.masked_lm_labels, num_predictions, settings.compile)
    lm_right = num_right(lm_logits.detach(), batch.masked_lm_labels)
    pair, pair_right = torch.zeros_like(lm), torch.zeros_like(lm)
    if pair_task is not None:
        labels = batch.sentence_order_labels
        pair = sentence_order_loss(pair_logits, labels, sizes.num_sequences)
        pair_right = (pair_logits.argmax(-1) == labels).sum() / sizes.num_sequences
    (lm + pair).backward()
    return torch.stack([lm, pair, lm_right / sizes.num_predictions, pair_right]).detach()


def _with_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each of ``batches`` and whether it is the last, by taking one ahead."""
    ahead = iter(batches)
    batch = next(ahead)
    for following in ahead:
        yield batch, False
        batch = following
    yield batch, True
