"""Checkpoints of google-research/albert: their variables, and their files.

A release is a folder with ``model.ckpt-best.index`` and ``.data-00000-of-00001``,
``albert_config.json`` and ``30k-clean.model``. Only reading its two checkpoint files takes
TensorFlow, which is not installed with this project.

Source: `modeling.py` of google-research/albert.
"""

import importlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import ALBERT_DEFAULTS, PROJECTION, from_hf_state
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.text.tokenizer import Tokenizer

TF_CONFIG, INDEX = "albert_config.json", ".index"

_SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v")
_TENSORS = {
    "bert/embeddings/word_embeddings": "albert.embeddings.word_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings.weight",
    "cls/predictions/output_bias": "predictions.bias",
    "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
}
_MODULES = {
    "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
    "bert/encoder/embedding_hidden_mapping_in": PROJECTION,
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
}
_BLOCK = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/(.+)")
_BLOCK_MODULES = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}
_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def is_tf_release(uri: str) -> bool:
    """Return whether ``uri`` is the folder of a release, or the prefix of a checkpoint."""
    return storage.exists(uri + INDEX) or any(
        name == TF_CONFIG or name.endswith(INDEX) for name in storage.list_names(uri)
    )


def read_tf_config(uri: str) -> ModelSettings:
    """Return the shape of the model of a release.

    The reference's "gelu" always means the tanh approximation, which is "gelu_new" here. Keys
    that the reference itself does not read are ignored.

    Args:
        uri: the release's folder, or the prefix of one checkpoint in it (``.../model.ckpt-best``).

    Raises:
        ConfigError: this project does not have such a model.
        IntegrityError: albert_config.json is missing.
    """
    where = storage.join(_folder(uri), TF_CONFIG)
    if not storage.exists(where):
        raise IntegrityError(
            f"{where} is missing: it says which shape the checkpoint has. Copy it from the "
            "release's archive."
        )
    config = ALBERT_DEFAULTS | json.loads(storage.read_bytes(where))
    fields = {name: config[name] for name in ModelSettings.model_fields if name in config}
    if fields.get("hidden_act") == "gelu":
        fields["hidden_act"] = "gelu_new"
    return ModelSettings.read(fields, where)


def read_tf_tokenizer(uri: str) -> Tokenizer:
    """Return the vocabulary of a release: the one SentencePiece model in its folder.

    It lower-cases texts, as the English releases do, and splits commas off digits, as the
    reference's `tokenization.py` does.

    Args:
        uri: see `read_tf_config`.

    Raises:
        IntegrityError: there is no SentencePiece model, or several.
    """
    folder = _folder(uri)
    models = [name for name in storage.list_names(folder) if name.endswith(".model")]
    if len(models) != 1:
        raise IntegrityError(
            f"{folder} has the SentencePiece models {models or 'none'}, expected one, as in "
            "30k-clean.model. Put the release's vocabulary there, and no other."
        )
    return Tokenizer(storage.read_bytes(storage.join(folder, models[0])), True, True)


def read_tf_variables(uri: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a release by the variables' names.

    The optimizer's slots and the global step are not read.

    Args:
        uri: see `read_tf_config`.

    Raises:
        ConfigError: TensorFlow is not installed.
        IntegrityError: a file is damaged.
        SourceError: the folder has no checkpoint, or several.
    """
    prefix = _prefix(uri)
    try:
        tensorflow: Any = importlib.import_module("tensorflow")
    except ImportError as error:
        raise ConfigError(
            f"{prefix} is a checkpoint of TensorFlow, which is not installed. Run "
            "`pip install tensorflow` (tensorflow-cpu will do) in this environment to read it."
        ) from error
    with _local_files(prefix) as path:
        try:
            reader = tensorflow.train.load_checkpoint(path)
            names = filter(_is_weight, reader.get_variable_to_shape_map())
            return {name: reader.get_tensor(name) for name in names}
        except tensorflow.errors.OpError as error:
            raise IntegrityError(
                f"{prefix}: TensorFlow cannot read it ({error.message}). Fetch it again."
            ) from error


def from_tf_variables(
    variables: Mapping[str, NDArray[np.float32]], settings: ModelSettings, where: str
) -> dict[str, Tensor]:
    """Return the weights of a checkpoint of google-research/albert, as `from_hf_state` does.

    Args:
        variables: arrays by variable name; the global step and the optimizer's may be among them.
        settings: the shape of the model.
        where: the file the variables came from, for messages.

    Raises:
        ConfigError: the reference divides the layers into groups in another way.
        IntegrityError: a variable of the encoder is missing, or one is unknown or of another
            shape.
    """
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / num_layers * num_groups) for layer in range(num_layers)]
    if groups != [layer * num_groups // num_layers for layer in range(num_layers)]:
        raise ConfigError(
            f"{where}: by a rounding error the reference divides {num_layers} layers into "
            f"{num_groups} groups unevenly: {groups}. This project has no such model."
        )
    return from_hf_state(tf_to_hf(variables), settings, where, "albert", groups)


def tf_to_hf(variables: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """Return variables of google-research/albert as tensors of `AlbertForPreTraining`.

    Raises:
        IntegrityError: a variable is unknown.
    """
    weights = {_bare(name): value for name, value in variables.items() if _is_weight(name)}
    return {
        _hf_name(name): torch.tensor(value.T if name.endswith("/kernel") else value)
        for name, value in weights.items()
    }


def _bare(variable: str) -> str:
    return variable.removeprefix("module/").removesuffix(":0")


def _is_weight(variable: str) -> bool:
    name = _bare(variable)
    return name != "global_step" and not name.endswith(_SLOTS)


def _hf_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    module, _, leaf = name.rpartition("/")
    hf_module = _MODULES.get(module)
    if block := _BLOCK.fullmatch(module):
        group, inner, part = block.groups()
        prefix = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        hf_module = f"{prefix}.{_BLOCK_MODULES[part]}" if part in _BLOCK_MODULES else None
    if hf_module is None or leaf not in _LEAVES:
        raise IntegrityError(
            f"the TF checkpoint has the variable {name}, which is none of ALBERT's pretraining "
            "model. Leave out the variables of fine-tuning heads."
        )
    return f"{hf_module}.{_LEAVES[leaf]}"


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0] or "." if storage.exists(uri + INDEX) else uri


def _prefix(uri: str) -> str:
    """Return the prefix of the checkpoint's files: ``uri``, or the only one in that folder."""
    if storage.exists(uri + INDEX):
        return uri
    found = [name.removesuffix(INDEX) for name in storage.list_names(uri) if name.endswith(INDEX)]
    if len(found) != 1:
        raise SourceError(
            f"{uri} has the TF checkpoints {found or 'none'}, expected one. Give the prefix of "
            "one: the path of its .index file without .index."
        )
    return storage.join(uri, found[0])


@contextmanager
def _local_files(prefix: str) -> Iterator[str]:
    """Give ``prefix`` as a local path; files elsewhere are copied here for as long as needed."""
    path = storage.local_path(prefix)
    if path is not None:
        yield str(path)
        return
    fs, remote = storage.filesystem(prefix)
    with tempfile.TemporaryDirectory() as here:
        fs.get(f"{remote}.*", f"{here}/")
        yield str(Path(here, prefix.rpartition("/")[2]))
