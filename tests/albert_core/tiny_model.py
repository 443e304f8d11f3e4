"""Models of a few thousand random weights and a tiny vocabulary; a folder of one."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import save_model_folder
from albert_core.conversion.initial_weights import read_source
from albert_core.model.albert import AlbertForPretraining
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
