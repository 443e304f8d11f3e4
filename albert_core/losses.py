"""The two losses of pretraining, each a part of one mean over the whole update."""
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.contract.errors import ShapeError

IGNORED = -100
"""The label of what is padding: it adds nothing to a loss, and no score can equal it."""
EXTRA_PREDICTIONS = 1e-5
"""What the reference adds to the number of predictions of an update. Source: REFERENCE.md A.1."""
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
        return _summed_by_rows(logits, labels) / num_predictions
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


def _summed_by_rows(logits: Tensor, labels: Tensor) -> Tensor:
    is_real = labels != IGNORED
    if not is_real.all():
        logits, labels = logits[is_real], labels[is_real]
    total: Tensor = _CrossEntropy.apply(logits, labels)
    return total


class _CrossEntropy(torch.autograd.Function):
    """The sum over the rows of (M, V), a few at a time: of all, there is no copy in float32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        log_sums = [_at_least_float32(rows).logsumexp(1) for [rows] in _blocks(logits)]
        log_sum = torch.cat(log_sums)  # (M,)
        ctx.save_for_backward(logits, labels, log_sum)
        return (log_sum - logits.gather(1, labels[:, None])[:, 0]).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        logits, labels, log_sum = ctx.saved_tensors
        of_logits = torch.empty_like(logits)
        blocks = _blocks(logits, log_sum[:, None], labels[:, None], of_logits)
        for rows, log_sums, places, of_rows in blocks:
            shares = (_at_least_float32(rows) - log_sums).exp_()
            shares.scatter_add_(1, places, shares.new_tensor(-1).expand(places.shape))
            torch.mul(shares, gradient, out=of_rows)
        return of_logits, None


def _blocks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(1, _LOGITS_PER_BLOCK // logits.shape[1])
    return zip(*(x.split(rows) for x in (logits, *others)), strict=True)


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
