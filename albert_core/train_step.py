"""One update: the gradient of a whole batch, however it is cut, and the step that it gives.

The device is waited for once an update, to learn whether the update is worth making.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from albert_core.config import TrainingSettings
from albert_core.contract.errors import IntegrityError
from albert_core.data import Batch
from albert_core.distributed import Ranks
from albert_core.losses import masked_lm_loss, sentence_order_loss
from albert_core.model import AlbertForPretraining
from albert_core.optimizer import AdamW
from albert_core.preemption import NEVER, StopRequest
from albert_core.update_batch import UpdateBatch, UpdateSizes
from albert_core.update_guard import Reason, UpdateGuard

PAIR_TASKS: dict[str, str | None] = {
    "sop": "sentence_order",
    "nsp": "next_sentence",
    "none": None,
}
"""The examples' objective -> what is learnt from a pair of segments, as metrics call it."""

_NUM_SCORES = 4
"""Loss and accuracy of masked LM and of the pairs."""


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
    """Those of them that were in updates not made."""
    guard: UpdateGuard = field(default_factory=UpdateGuard)
    history: list[dict[str, float]] = field(default_factory=list)
    """One point for each progress line."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """One point for each evaluation on held-out examples."""

    def tensors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as tensors: they are the state's own, not copies."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def numbers(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        return {
            "step": self.step,
            "examples_taken": self.examples_taken,
            "examples_skipped": self.examples_skipped,
            "guard": asdict(self.guard),
            "history": list(self.history),
            "evaluations": list(self.evaluations),
        }

    def restore(self, tensors: dict[str, Any], numbers: dict[str, Any], where: str) -> None:
        """Become the state that `tensors` and `numbers` were of.

        The optimizer takes over its moments, but keeps its own settings.

        Raises:
            IntegrityError: a number or tensor is missing, or has another shape.
        """
        optimizer = self.optimizer.state_dict()
        try:
            optimizer["state"] = tensors["optimizer"]["state"]
            self.model.load_state_dict(tensors["model"])
            self.optimizer.load_state_dict(optimizer)
            self.step, self.examples_taken = numbers["step"], numbers["examples_taken"]
            self.examples_skipped = numbers["examples_skipped"]
            self.guard = UpdateGuard.restored(numbers["guard"])
            self.history, self.evaluations = numbers["history"], numbers["evaluations"]
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"{where} does not fit this model: {error}. Give a checkpoint of a model with "
                "the same shapes, written by this version."
            ) from error


@dataclass(frozen=True, kw_only=True)
class Update:
    """What came of one update; the same on every rank."""

    metrics: dict[str, float]
    """Over the whole batch: losses in nats, accuracies as shares, grad_norm before clipping."""
    skipped: Reason | None
    """Why the update was not made, or None if it was."""
    must_stop: bool
    """Whether any rank was told to stop."""


def train_step(
    state: TrainState,
    batch: UpdateBatch,
    settings: TrainingSettings,
    ranks: Ranks,
    pair_task: str | None = "sentence_order",
    stop: StopRequest = NEVER,
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
        pair_task: what is learnt from pairs, a value of `PAIR_TASKS`; None for nothing.
        stop: whether this rank was told to stop, for all to know.
    """
    sizes = batch.sizes
    scores = torch.zeros(_NUM_SCORES, device=ranks.device)
    for micro_batch in batch.micro_batches:
        scores += _backward(state.model, micro_batch, sizes, settings, ranks.device, pair_task)
    told_to_stop = torch.full((1,), float(stop.arrived), device=ranks.device)
    sums = ranks.sum_gradients(state.model, torch.cat([scores, told_to_stop]))
    parameters = [p for p in state.model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    grad_norm, lm, lm_right, pair, pair_right, stops = torch.cat(
        [norm.to(sums.dtype)[None], sums]
    ).tolist()  # here the device is waited for
    skipped = state.guard.judge(lm + pair, grad_norm, settings.spike_factor)
    if skipped is None:
        nn.utils.clip_grads_with_norm_(parameters, settings.max_grad_norm, norm)
        state.optimizer.step()
    else:
        state.examples_skipped += sizes.num_sequences
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.examples_taken += sizes.num_sequences
    metrics = {"masked_lm_loss": lm, "masked_lm_accuracy": lm_right}
    if pair_task is not None:
        metrics |= {f"{pair_task}_loss": pair, f"{pair_task}_accuracy": pair_right}
    metrics["grad_norm"] = grad_norm
    return Update(metrics=metrics, skipped=skipped, must_stop=stops > 0)


def _backward(
    model: AlbertForPretraining,
    batch: Batch,
    sizes: UpdateSizes,
    settings: TrainingSettings,
    device: torch.device,
    pair_task: str | None,
) -> Tensor:
    """Add the gradient of one micro-batch; return its part of losses and accuracies, (4,).

    All that it made but these and the gradient is gone when it returns, so that the next
    micro-batch has its room.
    """
    with _autocast(settings, device):
        lm_logits, pair_logits = model.forward_packed(**batch.model_inputs)  # (M, V), (B, 2)
    lm = masked_lm_loss(lm_logits, batch.masked_lm_labels, sizes.num_predictions)
    lm_right = (lm_logits.detach().argmax(-1) == batch.masked_lm_labels).sum()
    pair, pair_right = torch.zeros_like(lm), torch.zeros_like(lm)
    if pair_task is not None:
        labels = batch.sentence_order_labels
        pair = sentence_order_loss(pair_logits, labels, sizes.num_sequences)
        pair_right = (pair_logits.argmax(-1) == labels).sum() / sizes.num_sequences
    (lm + pair).backward()
    return torch.stack([lm, lm_right / sizes.num_predictions, pair, pair_right]).detach()


def _autocast(settings: TrainingSettings, device: torch.device) -> AbstractContextManager[Any]:
    if settings.precision == "float32":
        return nullcontext()
    # Without the cache each use of a shared weight has its own cast, so that autograd sums the
    # uses' gradients in float32.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
