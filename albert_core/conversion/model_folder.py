"""Model folders: weights, configuration and tokenizer, for this project and `transformers`.

A model folder has Hugging Face's layout, so `transformers` and this project read the same one:
config.json, model.safetensors, spiece.model, tokenizer.json, tokenizer_config.json and
special_tokens_map.json. Weights and configuration are in the form of the classes that hold the
model without copies: `BertForPreTraining` for a model of BERT's shape, else `AlbertForPreTraining`
(see `architecture_of`). `AutoModel`, `AutoModelForPreTraining` and `AutoTokenizer` take either.

The tokenizer's class is `PreTrainedTokenizerFast` in both: `BertTokenizer` is WordPiece, and
`AlbertTokenizer` has rules of its own.
"""

import json
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.contract import storage
from albert_core.contract.errors import IntegrityError
from albert_core.contract.tokenizer import SPIECE_MODEL, Tokenizer
from albert_core.conversion.huggingface import (
    SETTINGS_KEY,
    Architecture,
    architecture_of,
    from_hf_state,
    hf_config,
    hf_names,
    read_hf_config,
    ties,
    to_hf_state,
)
from albert_core.conversion.tf_release import from_tf_variables, load_tf_release, tf_to_hf
from albert_core.conversion.tokenizer_export import tokenizer_files
from albert_core.model import AlbertForPretraining

__all__ = [
    "CONFIG",
    "SETTINGS_KEY",
    "TOKENIZER_CONFIG",
    "WEIGHTS",
    "from_hf_state",
    "from_tf_variables",
    "hf_config",
    "hf_names",
    "load_model",
    "load_model_folder",
    "load_tf_release",
    "read_model_folder",
    "read_tokenizer",
    "save_model_folder",
    "tf_to_hf",
    "to_hf_state",
]

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"


def save_model_folder(
    model: AlbertForPretraining,
    tokenizer: Tokenizer,
    folder: str,
    architecture: Architecture | None = None,
) -> None:
    """Write ``model`` and ``tokenizer`` to ``folder`` (a URI), for us and for `transformers`.

    Args:
        model: on any device.
        tokenizer: the vocabulary that the model was trained with.
        folder: written over where it exists.
        architecture: whose classes are to read it; by default those of `architecture_of`.

    Raises:
        ConfigError: ``architecture`` is "bert" and the model is not of BERT's shape.
        IntegrityError: the model's vocabulary is not of the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    settings, vocab_size = model.encoder.settings, len(model.masked_lm.bias)
    if vocab_size != tokenizer.vocab_size:
        raise IntegrityError(
            f"the model has {vocab_size} pieces, the tokenizer {tokenizer.vocab_size}. Save a "
            "model with the vocabulary it was trained with."
        )
    chosen = architecture or architecture_of(settings)
    stored = to_hf_state(model, chosen)
    state = {hf: t.cpu().clone() for hf, t in stored.items() if hf not in ties(chosen)}
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(hf_config(settings, vocab_size, chosen), indent=1).encode(),
        **tokenizer_files(tokenizer, settings.max_position_embeddings),
    }
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content)


def load_model_folder(folder: str) -> tuple[AlbertForPretraining, Tokenizer]:
    """Return the model and the tokenizer in ``folder`` (a URI), ours or Hugging Face's.

    Raises:
        IntegrityError: a file is missing, or see `load_model`.
        ConfigError: see `load_model`.
    """
    return load_model(folder), read_tokenizer(folder)


def load_model(folder: str) -> AlbertForPretraining:
    """Return the model in ``folder`` (a URI), ours or Hugging Face's, on the CPU in float32.

    Raises:
        IntegrityError: a file is missing, or its tensors are not those of an
            `AlbertForPreTraining` or `BertForPreTraining` of the shape in config.json.
        ConfigError: config.json describes a model that this project does not have.
    """
    state, settings, architecture = read_model_folder(folder)
    return from_hf_state(state, settings, storage.join(folder, WEIGHTS), architecture)


def read_model_folder(folder: str) -> tuple[dict[str, Tensor], ModelSettings, Architecture]:
    """Return the tensors in ``folder`` by Hugging Face's names, and what config.json says of them.

    Raises:
        IntegrityError: a file is missing or damaged.
        ConfigError: config.json describes a model that this project does not have.
    """
    settings, architecture = read_hf_config(
        _read_json(folder, CONFIG), storage.join(folder, CONFIG)
    )
    try:
        state = safetensors.torch.load(_read(folder, WEIGHTS))
    except SafetensorError as error:
        raise IntegrityError(
            f"{storage.join(folder, WEIGHTS)} is damaged ({error}). Copy or write it again."
        ) from error
    return state, settings, architecture


def read_tokenizer(folder: str) -> Tokenizer:
    """Return the tokenizer in the model folder ``folder`` (a URI).

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    lower_case = _read_json(folder, TOKENIZER_CONFIG).get("do_lower_case", True)
    return Tokenizer(_read(folder, SPIECE_MODEL), lower_case)


def _read_json(folder: str, name: str) -> dict[str, Any]:
    content = _read(folder, name)
    try:
        values: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise IntegrityError(
            f"{storage.join(folder, name)} is not JSON ({error}). Copy or write it again."
        ) from error
    return values


def _read(folder: str, name: str) -> bytes:
    uri = storage.join(folder, name)
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing: a model folder has {CONFIG}, {WEIGHTS}, {SPIECE_MODEL} and "
            f"{TOKENIZER_CONFIG}. Write it with save_model_folder or copy the missing file there."
        )
    return storage.read_bytes(uri)
