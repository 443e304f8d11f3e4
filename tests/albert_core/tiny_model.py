"""A model folder as pretraining writes it, with random weights and a tiny vocabulary."""

import torch

from albert_core.config import ModelSettings
from albert_core.conversion.model_folder import save_model_folder
from albert_core.model.albert import AlbertForPretraining
from tests.albert_core.tiny_vocab import tiny_vocab

MAX_POSITIONS = 48


def save_tiny_model(folder: str, seed: int = 0) -> AlbertForPretraining:
    """Write a model of a few thousand parameters to ``folder``; return it."""
    settings = ModelSettings(
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
    )
    torch.manual_seed(seed)
    model = AlbertForPretraining(settings, tiny_vocab().vocab_size).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1  # no bias is zero
    save_model_folder(model, tiny_vocab(), folder)
    return model
