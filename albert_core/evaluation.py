"""A model on held-out examples: masked-LM loss and accuracy, sentence-order accuracy."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from albert_core.data import ExampleShards
from albert_core.metrics import Estimate, ratio_interval
from albert_core.model import AlbertForPretraining

_BATCH_SIZE = 64

Evaluation = dict[str, Estimate]


@torch.no_grad()
def evaluate(model: AlbertForPretraining, examples: ExampleShards, max_examples: int) -> Evaluation:
    """Return the model's scores on the first ``max_examples`` examples, without dropout.

    Returns:
        masked_lm_loss (nats per prediction), masked_lm_accuracy (share of the predictions),
        sentence_order_loss (nats per pair), sentence_order_accuracy (share of the pairs), each
        with its 95 % interval over documents, because the examples of one document are alike.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    count = min(len(examples), max_examples)
    per_example = [
        _score(model, examples, np.arange(begin, min(begin + _BATCH_SIZE, count)), device)
        for begin in range(0, count, _BATCH_SIZE)
    ]
    model.train(was_training)
    scores = {name: np.concatenate([part[name] for part in per_example]) for name in per_example[0]}
    _, documents = np.unique(examples.document_ids()[:count], return_inverse=True)
    predictions, pairs = scores.pop("num_predictions"), np.ones(count)
    return {
        name: ratio_interval(
            _by_document(values, documents),
            _by_document(predictions if name.startswith("masked") else pairs, documents),
        )
        for name, values in scores.items()
    }


def _score(
    model: AlbertForPretraining,
    examples: ExampleShards,
    indices: NDArray[np.int64],
    device: torch.device,
) -> dict[str, NDArray[np.float64]]:
    """Return sums over each example's predictions, (B,) each."""
    batch = examples.batch(indices).to(device)
    lm_logits, order_logits = model(
        batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.masked_lm_positions
    )
    nats = F.cross_entropy(
        lm_logits.float().flatten(0, 1), batch.masked_lm_labels.flatten(), reduction="none"
    ).view_as(batch.masked_lm_weights)
    right = (lm_logits.argmax(-1) == batch.masked_lm_labels) * batch.masked_lm_weights
    order_nats = F.cross_entropy(
        order_logits.float(), batch.sentence_order_labels, reduction="none"
    )
    order_right = order_logits.argmax(-1) == batch.sentence_order_labels
    sums = {
        "masked_lm_loss": (nats * batch.masked_lm_weights).sum(1),
        "masked_lm_accuracy": right.sum(1),
        "sentence_order_loss": order_nats,
        "sentence_order_accuracy": order_right,
        "num_predictions": batch.masked_lm_weights.sum(1),
    }
    return {name: values.double().cpu().numpy() for name, values in sums.items()}


def _by_document(values: NDArray[np.float64], documents: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.bincount(documents, weights=values).astype(np.float64)
