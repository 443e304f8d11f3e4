"""Heads that read the pooled [CLS]: a class or a number of a text, the right one of options."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.model import AlbertModel
from albert_core.tasks.problem import Head
from albert_core.tasks.sequences import SequenceBatch

TARGET = "target"
"""Name of what is right, among a problem's targets."""
LOGITS = "logits"
"""Name of what these heads give."""


class PooledHead(Head):
    """Dropout and one dense layer on the pooled [CLS]. Source: REFERENCE.md D.2."""

    def __init__(self, settings: ModelSettings, num_outputs: int, dropout_prob: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = nn.Linear(settings.hidden_size, num_outputs)
        std = settings.initializer_range
        nn.init.trunc_normal_(self.classifier.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.classifier.bias)

    def logits(self, encoder: AlbertModel, batch: SequenceBatch) -> Tensor:
        """Return (B, num_outputs); of the last layer only the [CLS] is computed."""
        first = encoder.encode(
            batch.input_ids, batch.token_type_ids, batch.runs, rows=batch.first_positions
        )
        pooled = torch.tanh(encoder.pooler(first))
        return self.classifier(self.dropout(pooled))  # type: ignore[no-any-return]

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits: float32 (B, num_outputs)."""
        return {LOGITS: self.logits(encoder, batch).float()}


class ClassificationHead(PooledHead):
    """A score for each label; the loss is their cross-entropy."""

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets int64 (B,)."""
        return F.cross_entropy(self.logits(encoder, batch).float(), targets[TARGET])


class RegressionHead(PooledHead):
    """One number; the loss is its squared error."""

    def __init__(self, settings: ModelSettings, dropout_prob: float) -> None:
        super().__init__(settings, 1, dropout_prob)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean squared error; targets float (B,)."""
        return F.mse_loss(self.logits(encoder, batch).squeeze(1).float(), targets[TARGET].float())


class ChoiceHead(PooledHead):
    """A score for each option of a question; the loss is their cross-entropy.

    Source: REFERENCE.md D.4.
    """

    def __init__(self, settings: ModelSettings, num_options: int, dropout_prob: float) -> None:
        super().__init__(settings, 1, dropout_prob)
        self.num_options = num_options

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits: float32 (questions, options), of B = questions * options."""
        scores = self.logits(encoder, batch).float()
        return {LOGITS: scores.view(-1, self.num_options)}

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets int64 (questions,)."""
        return F.cross_entropy(self.outputs(encoder, batch)[LOGITS], targets[TARGET])
