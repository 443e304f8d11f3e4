"""The two losses of pretraining, each a part of one mean over the whole update."""
# mypy: disable-error-code="no-untyped-call"

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.stage.errors import ShapeError

IGNORED = -100
"""The label of what is padding: it adds nothing to a loss, and no score can equal it."""
EXTRA_PREDICTIONS = 1e-5
"""What the reference's `run_pretraining.py` adds to the number of predictions of an update."""
_LOGITS_PER_BLOCK = 1 << 19
"""About as many are worked on at once, few enough for a processor's cache."""


def masked_lm_loss(logits: Tensor, labels: Tensor, num_predictions: Tensor | float) -> Tensor:
    """Return the cross-entropy at the masked positions, in nats per prediction.

    Args:
        logits: float (M, V), unnormalised scores at the masked positions; any precision.
        labels: int64 (M,), the pieces that stood there before masking; `IGNORED` at padding.
        num_predictions: a number or float32 scalar, predictions in the whole update: every
            micro-batch, every rank; above 0. Summed over those parts, the result is
            one mean over all predictions, however the batch was cut. Training adds
            `EXTRA_PREDICTIONS` to it.

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
    if logits.device.type == "cpu":
        return _mean_by_rows(logits, labels, num_predictions)
    return _summed(logits, labels) / num_predictions


def sentence_order_loss(logits: Tensor, labels: Tensor, num_sequences: Tensor | float) -> Tensor:
    """Return the cross-entropy of the segments' order, in nats per sequence.

    It is that of next-sentence prediction too, where a segment b from elsewhere has label 1.

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
    return _summed(logits, labels) / num_sequences


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    precise = _at_least_float32(logits)
    return F.cross_entropy(precise, labels, reduction="sum", ignore_index=IGNORED)


def _mean_by_rows(logits: Tensor, labels: Tensor, number: Tensor | float) -> Tensor:
    is_real = labels != IGNORED
    if not is_real.all():
        logits, labels = logits[is_real], labels[is_real]
    mean: Tensor = _CrossEntropy.apply(logits, labels, number)
    return mean


class _CrossEntropy(torch.autograd.Function):
    """The sum over the rows of (M, V), divided by a number; a few rows at a time.

    There is no copy of all in float32, and the gradient is made on the way: so each exponential
    is computed once, while it is at hand.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, number: Tensor | float) -> Tensor:
        of_logits = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        rows = max(1, _LOGITS_PER_BLOCK // logits.shape[1])
        total = _at_least_float32(logits.new_zeros(()))
        for first in range(0, len(logits), rows):
            block = slice(first, first + rows)
            shares, places = logits[block].to(total.dtype, copy=True), labels[block, None]
            shares -= shares.amax(1, keepdim=True)
            of_label = shares.gather(1, places)
            sums = shares.exp_().sum(1, keepdim=True)
            total += (sums.log() - of_label).sum()
            if of_logits is not None:
                shares.div_(sums).scatter_add_(1, places, shares.new_tensor(-1).expand_as(places))
                of_logits[block] = shares.div_(number)
        ctx.save_for_backward(of_logits)
        return total / number

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        [of_logits] = ctx.saved_tensors
        return of_logits if gradient == 1 else of_logits * gradient, None, None


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
