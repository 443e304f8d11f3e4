"""Models of a few thousand random weights and a tiny vocabulary; a folder of one."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import save_model_folder
from albert_core.conversion.initial_weights import read_source
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from tests.albert_core.tiny_vocab import tiny_vocab

MAX_POSITIONS = 48
SAVED_SIZES: dict[str, Any] = {
    "embedding_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_POSITIONS,
}
"""Of the model that `save_tiny_model` writes."""
VOCAB_SIZE = 200
"""Of `tiny_vocab`."""
BERT_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
"""Those that a configuration of `transformers` has under the same names."""


def tiny_settings(**changes: Any) -> ModelSettings:
    """Return the shape of a tiny model, with ``changes``."""
    return ModelSettings.read({"embedding_size": 8} | BERT_SIZES | changes, "test")


def spread(module: nn.Module, by: float = 0.1) -> None:
    """Move all weights of ``module`` so far that no bias is zero."""
    for parameter in module.parameters():
        parameter.data += torch.randn_like(parameter) * by


def random_model(
    seed: int = 0, vocab_size: int = VOCAB_SIZE, **changes: Any
) -> AlbertForPretraining:
    """Return a tiny model, its shape with ``changes``, that does not train."""
    torch.manual_seed(seed)
    model = AlbertForPretraining(tiny_settings(**changes), vocab_size).eval()
    spread(model)
    return model


def save_tiny_model(folder: str, seed: int = 0) -> AlbertForPretraining:
    """Write a model as pretraining does to ``folder``; return it."""
    model = random_model(seed, **SAVED_SIZES)
    save_model_folder(model, tiny_vocab(), folder)
    return model


def load_model(folder: str | Path) -> AlbertForPretraining:
    """Return the model in ``folder`` in its own shape."""
    source = read_source(str(folder))
    return source.start(source.settings)


def encoded(
    encoder: AlbertModel, input_ids: Tensor, mask: Tensor | None, token_types: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the last layer (B, S, H), and the pooled [CLS] (B, H), of a padded batch.

    Args:
        encoder: the encoder.
        input_ids: int64 (B, S).
        mask: (B, S), true at real pieces; None where nothing is padded.
        token_types: int64 (B, S).
    """
    num_sequences, length = input_ids.shape
    key_mask = None if mask is None else mask.bool()[:, None, None]
    runs = [(num_sequences, length)]
    x = encoder(input_ids.flatten(), token_types.flatten(), runs, key_mask)
    x = x.unflatten(0, (num_sequences, length))
    return x, torch.tanh(encoder.pooler(x[:, 0]))


def logits_of(
    model: AlbertForPretraining,
    input_ids: Tensor,
    mask: Tensor | None,
    token_types: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the logits (B, P, V) at ``positions``, int64 (B, P), and (B, 2) of the order.

    All rows of the last layer are computed. The other arguments are those of `encoded`.
    """
    x, pooled = encoded(model.encoder, input_ids, mask, token_types)
    masked = x.take_along_dim(positions[:, :, None], dim=1)
    lm_logits = model.masked_lm(masked, model.encoder.embeddings.word.weight)
    return lm_logits, model.sentence_order(pooled)
