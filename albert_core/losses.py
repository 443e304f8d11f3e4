"""The two losses of pretraining, each a part of one mean over the whole update."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_core.contract.errors import ShapeError

IGNORED = -100
"""The label of what is padding: it adds nothing to a loss, and no score can equal it."""


def masked_lm_loss(logits: Tensor, labels: Tensor, num_predictions: Tensor | float) -> Tensor:
    """Return the cross-entropy at the masked positions, in nats per prediction.

    Args:
        logits: float (M, V), unnormalised scores at the masked positions; any precision.
        labels: int64 (M,), the pieces that stood there before masking; `IGNORED` at padding.
        num_predictions: a number or float32 scalar, predictions in the whole update: every
            micro-batch, every rank; at least 1. Summed over those parts, the result is
            one mean over all predictions, however the batch was cut.

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
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(precise, labels, reduction="sum", ignore_index=IGNORED)
