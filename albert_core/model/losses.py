"""The two losses of pretraining, each a part of one mean over the whole update."""

from torch import Tensor

from albert_core.model.execution import cross_entropy, plain_cross_entropy
from albert_core.stage.errors import ShapeError

EXTRA_PREDICTIONS = 1e-5
"""What the reference's `run_pretraining.py` adds to the number of predictions of an update."""


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
    return cross_entropy(logits, labels, num_predictions)


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
    return plain_cross_entropy(logits, labels, num_sequences)
