"""The encoder alone in the form of Hugging Face's classes, whatever head stands on it there.

The classes of one family name the encoder's tensors alike: "albert." or "bert." and the rest.
"""

import torch
from torch import Tensor

from albert_core.contract import storage
from albert_core.contract.errors import IntegrityError
from albert_core.contract.tokenizer import Tokenizer
from albert_core.conversion.huggingface import (
    Architecture,
    architecture_of,
    empty_model,
    hf_names,
    own_state,
    to_hf_state,
)
from albert_core.conversion.model_folder import WEIGHTS, read_model_folder, read_tokenizer
from albert_core.model import AlbertForPretraining, AlbertModel

_OURS = "encoder."


def encoder_to_hf_state(encoder: AlbertModel) -> dict[str, Tensor]:
    """Return the encoder's tensors, not copies, by the names of its `architecture_of` classes."""
    architecture = architecture_of(encoder.settings)
    with torch.device("meta"):
        model = AlbertForPretraining(encoder.settings, len(encoder.embeddings.word.weight))
    model.encoder = encoder
    state = to_hf_state(model, architecture)
    return {name: tensor for name, tensor in state.items() if _is_encoder(name, architecture)}


def load_encoder(folder: str) -> tuple[AlbertModel, Tokenizer]:
    """Return the encoder and the tokenizer of a model folder, pretrained or fine-tuned.

    Args:
        folder: URI of a folder in Hugging Face's layout. Heads, if it has any, are passed over.

    Returns:
        The encoder, in float32 on the CPU, and its tokenizer.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged, or is not of one model with the others.
    """
    encoder, _ = split_model_folder(folder)
    tokenizer = read_tokenizer(folder)
    if len(encoder.embeddings.word.weight) != tokenizer.vocab_size:
        raise IntegrityError(
            f"{folder}: the model has {len(encoder.embeddings.word.weight)} pieces, the tokenizer "
            f"{tokenizer.vocab_size}. Give a model with the vocabulary it was trained with."
        )
    return encoder, tokenizer


def split_model_folder(folder: str) -> tuple[AlbertModel, dict[str, Tensor]]:
    """Return the encoder in a model folder, and the tensors that are not its.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged, or tensors of the encoder are.
    """
    state, settings, architecture = read_model_folder(folder)
    if "embeddings.word_embeddings.weight" in state:  # written by a base model, without heads
        state = {f"{architecture}.{name}": tensor for name, tensor in state.items()}
    of_encoder = {n: tensor for n, tensor in state.items() if _is_encoder(n, architecture)}
    model = empty_model(of_encoder, settings, architecture)
    names = {
        hf: ours
        for hf, ours in hf_names(model, architecture).items()
        if _is_encoder(hf, architecture)
    }
    where = storage.join(folder, WEIGHTS)
    found = own_state(of_encoder, model, names, where, architecture)
    if found.missing or found.unknown:
        raise IntegrityError(
            f"{where} does not hold the whole encoder of this shape, with its pooler: missing "
            f"{found.missing[:4] or 'nothing'}, unknown {found.unknown[:4] or 'nothing'}."
        )
    encoder = model.encoder
    tensors = {name.removeprefix(_OURS): tensor for name, tensor in found.tensors.items()}
    encoder.load_state_dict(tensors, assign=True)
    return encoder, {name: tensor for name, tensor in state.items() if name not in of_encoder}


def _is_encoder(name: str, architecture: Architecture) -> bool:
    return name.startswith(f"{architecture}.")
