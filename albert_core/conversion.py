"""Weights to and from Hugging Face's `AlbertForPreTraining` and the TF release; model folders.

A model folder has Hugging Face's layout, so `transformers` and this project read the same one:
config.json, model.safetensors, spiece.model, tokenizer.json, tokenizer_config.json and
special_tokens_map.json.

Where the layers do not share all they have, and where the reference needs no projection (E = H),
Hugging Face's layout holds copies and an identity. They are undone on the way back.

Source: REFERENCE.md A.4 and E.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.contract import storage
from albert_core.contract.errors import ConfigError, IntegrityError
from albert_core.contract.records import CLS, PAD, SEP
from albert_core.contract.tokenizer import SPIECE_MODEL, Tokenizer
from albert_core.model import LAYER_NORM_EPSILON, AlbertForPretraining
from albert_core.tokenizer_export import tokenizer_files

CONFIG, WEIGHTS, TOKENIZER_CONFIG = "config.json", "model.safetensors", "tokenizer_config.json"
SETTINGS_KEY = "albert_core"
"""Where config.json has our `ModelSettings`; Hugging Face has no word for every sharing."""

_WORD_EMBEDDINGS = "albert.embeddings.word_embeddings.weight"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_TIES = {
    "predictions.decoder.weight": "encoder.embeddings.word.weight",
    "predictions.decoder.bias": "masked_lm.bias",
}
_MODULES = {
    "albert.embeddings.word_embeddings": "encoder.embeddings.word",
    "albert.embeddings.token_type_embeddings": "encoder.embeddings.token_type",
    "albert.embeddings.position_embeddings": "encoder.embeddings.position",
    "albert.embeddings.LayerNorm": "encoder.embeddings.norm",
    _PROJECTION: "encoder.projection",
    "albert.pooler": "encoder.pooler",
    "predictions.dense": "masked_lm.dense",
    "predictions.LayerNorm": "masked_lm.norm",
    "predictions": "masked_lm",
    "sop_classifier.classifier": "sentence_order",
}
_ATTENTION = {
    "attention.query": "query",
    "attention.key": "key",
    "attention.value": "value",
    "attention.dense": "output",
    "attention.LayerNorm": "norm",
}
_FEED_FORWARD = {"ffn": "inner", "ffn_output": "output", "full_layer_layer_norm": "norm"}
_HF_DEFAULTS = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
"""Those of `AlbertConfig` that are not ours: a config.json may leave out any default."""


def hf_names(model: AlbertForPretraining) -> dict[str, str]:
    """Return, for each tensor of Hugging Face's model, the name of the parameter it is in ours."""
    own = model.state_dict()
    modules = [*_MODULES.items(), *_block_modules(model)]
    named = {
        f"{hf}.{leaf}": f"{ours}.{leaf}" for hf, ours in modules for leaf in ("weight", "bias")
    }
    return {hf: ours for hf, ours in named.items() if ours in own} | _TIES


def to_hf_state(model: AlbertForPretraining) -> dict[str, Tensor]:
    """Return the state of a Hugging Face `AlbertForPreTraining` that computes what ``model`` does.

    The tensors are those of ``model``, not copies.
    """
    state = model.state_dict()
    return _identity(model) | {hf: state[ours] for hf, ours in hf_names(model).items()}


def from_hf_state(
    state: Mapping[str, Tensor], settings: ModelSettings, where: str = "the state"
) -> AlbertForPretraining:
    """Return a model, in float32, with the weights of a Hugging Face `AlbertForPreTraining`.

    Args:
        state: tensors by name; the tied decoder may be missing.
        settings: the shape of the model.
        where: the file the state came from, for the message.

    Raises:
        IntegrityError: a tensor is missing, unknown or of another shape, or tensors that
            ``settings`` say are one differ.
    """
    with torch.device("meta"):
        model = AlbertForPretraining(settings, len(state.get(_WORD_EMBEDDINGS, [0])))
    names, identity, shapes = hf_names(model), _identity(model), model.state_dict()
    _check_keys(set(state), names, identity, where)
    _check_same(state, identity, f"{where}: E = H, so the projection must be the identity")
    own: dict[str, Tensor] = {}
    for hf, ours in names.items():
        if hf not in state:
            continue
        if state[hf].shape != shapes[ours].shape:
            raise IntegrityError(
                f"{where}: {hf} is {tuple(state[hf].shape)}, expected {tuple(shapes[ours].shape)}. "
                "The weights and config.json are of different models."
            )
        tensor = state[hf].to("cpu", torch.float32, copy=True)
        _check_same(
            {hf: tensor}, {hf: own.setdefault(ours, tensor)}, f"{where}: the layers share it"
        )
    model.load_state_dict(own, assign=True)
    return model


def hf_config(settings: ModelSettings, vocab_size: int) -> dict[str, Any]:
    """Return the config.json of the model: Hugging Face's fields, and ours under `SETTINGS_KEY`."""
    ours = settings.model_dump()
    return {
        **{name: value for name, value in ours.items() if name != "sharing"},
        "num_hidden_groups": 1 + max(_hf_groups(settings)),
        "architectures": ["AlbertForPreTraining"],
        "model_type": "albert",
        "vocab_size": vocab_size,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "classifier_dropout_prob": 0.1,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "bos_token_id": CLS,
        "eos_token_id": SEP,
        "dtype": "float32",
        SETTINGS_KEY: ours,
    }


def save_model_folder(model: AlbertForPretraining, tokenizer: Tokenizer, folder: str) -> None:
    """Write ``model`` and ``tokenizer`` to ``folder`` (a URI), for us and for `transformers`.

    Raises:
        IntegrityError: the model's vocabulary is not of the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    settings, vocab_size = model.encoder.settings, len(model.masked_lm.bias)
    if vocab_size != tokenizer.vocab_size:
        raise IntegrityError(
            f"the model has {vocab_size} pieces, the tokenizer {tokenizer.vocab_size}. Save a "
            "model with the vocabulary it was trained with."
        )
    state = {hf: t.cpu().clone() for hf, t in to_hf_state(model).items() if hf not in _TIES}
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(hf_config(settings, vocab_size), indent=1).encode(),
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
    lower_case = json.loads(_read(folder, TOKENIZER_CONFIG)).get("do_lower_case", True)
    return load_model(folder), Tokenizer(_read(folder, SPIECE_MODEL), lower_case)


def load_model(folder: str) -> AlbertForPretraining:
    """Return the model in ``folder`` (a URI), ours or Hugging Face's, on the CPU in float32.

    Raises:
        IntegrityError: a file is missing, or its tensors are not those of an
            `AlbertForPreTraining` of the shape in config.json.
        ConfigError: config.json describes a model that this project does not have.
    """
    settings = _read_settings(folder)
    state = safetensors.torch.load(_read(folder, WEIGHTS))
    return from_hf_state(state, settings, storage.join(folder, WEIGHTS))


def _block_modules(model: AlbertForPretraining) -> Iterator[tuple[str, str]]:
    settings, route = model.encoder.settings, iter(model.encoder.route)
    for group in _hf_groups(settings):
        for inner in range(settings.inner_group_num):
            attention, feed_forward = next(route)
            block = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            for hf, ours in _ATTENTION.items():
                yield f"{block}.{hf}", f"encoder.attentions.{attention}.{ours}"
            for hf, ours in _FEED_FORWARD.items():
                yield f"{block}.{hf}", f"encoder.feed_forwards.{feed_forward}.{ours}"


def _hf_groups(settings: ModelSettings) -> list[int]:
    """Return the group of each layer in Hugging Face's model: its own unless it shares as ours."""
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]
    same = groups == [layer * num_groups // num_layers for layer in range(num_layers)]
    return groups if same and settings.sharing == "all" else list(range(num_layers))


def _identity(model: AlbertForPretraining) -> dict[str, Tensor]:
    """Return the projection that Hugging Face's model has and ours has not, where E = H."""
    if not isinstance(model.encoder.projection, nn.Identity):
        return {}
    width = model.encoder.settings.hidden_size
    return {f"{_PROJECTION}.weight": torch.eye(width), f"{_PROJECTION}.bias": torch.zeros(width)}


def _check_keys(
    found: set[str], names: Mapping[str, str], identity: Mapping[str, Tensor], where: str
) -> None:
    missing = names.keys() - _TIES.keys() - found
    unknown = found - names.keys() - identity.keys() - {"albert.embeddings.position_ids"}
    if missing or unknown:
        raise IntegrityError(
            f"{where} is not the whole of an AlbertForPreTraining of this shape: missing "
            f"{sorted(missing) or 'nothing'}, unknown {sorted(unknown) or 'nothing'}. Many "
            "published checkpoints lack the sentence order head (sop_classifier): convert the TF "
            "release with from_tf_variables instead."
        )


def _check_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    for name in state.keys() & expected.keys():
        if not torch.equal(state[name].to("cpu", torch.float32), expected[name]):
            raise IntegrityError(
                f"{where}, but {name} has other values. Give settings ({CONFIG}) of the shape "
                "that the weights have."
            )


def _read_settings(folder: str) -> ModelSettings:
    where = storage.join(folder, CONFIG)
    config = json.loads(_read(folder, CONFIG))
    if SETTINGS_KEY in config:
        return ModelSettings.read(config[SETTINGS_KEY], f"{where}, {SETTINGS_KEY}")
    epsilon = config.get("layer_norm_eps", LAYER_NORM_EPSILON)
    if config.get("model_type") != "albert" or epsilon != LAYER_NORM_EPSILON:
        raise ConfigError(
            f"{where} has model_type {config.get('model_type')!r} and layer_norm_eps {epsilon}, "
            f"expected 'albert' and {LAYER_NORM_EPSILON}. Give the folder of an ALBERT model."
        )
    config = _HF_DEFAULTS | config
    fields = {name: config[name] for name in ModelSettings.model_fields if name in config}
    return ModelSettings.read(fields, where)


def _read(folder: str, name: str) -> bytes:
    uri = storage.join(folder, name)
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing: a model folder has {CONFIG}, {WEIGHTS}, {SPIECE_MODEL} and "
            f"{TOKENIZER_CONFIG}. Write it with save_model_folder or copy the missing file there."
        )
    return storage.read_bytes(uri)


_TF_SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v")
_TF_TENSORS = {
    "bert/embeddings/word_embeddings": _WORD_EMBEDDINGS,
    "bert/embeddings/token_type_embeddings": "albert.embeddings.token_type_embeddings.weight",
    "bert/embeddings/position_embeddings": "albert.embeddings.position_embeddings.weight",
    "cls/predictions/output_bias": "predictions.bias",
    "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
    "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
}
_TF_MODULES = {
    "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
    "bert/encoder/embedding_hidden_mapping_in": _PROJECTION,
    "bert/pooler/dense": "albert.pooler",
    "cls/predictions/transform/dense": "predictions.dense",
    "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
}
_TF_BLOCK = re.compile(r"bert/encoder/transformer/group_(\d+)/inner_group_(\d+)/(.+)")
_TF_BLOCK_MODULES = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}
_TF_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def from_tf_variables(
    variables: Mapping[str, NDArray[np.float32]], settings: ModelSettings
) -> AlbertForPretraining:
    """Return a model with the weights of a checkpoint of google-research/albert.

    Args:
        variables: arrays by variable name; the global step and the optimizer's may be among them.
        settings: the shape of the model.

    Raises:
        IntegrityError: a variable is missing, unknown or of another shape.
    """
    return from_hf_state(tf_to_hf(variables), settings, "the TF checkpoint")


def tf_to_hf(variables: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """Return variables of google-research/albert as tensors of `AlbertForPreTraining`.

    Raises:
        IntegrityError: a variable is unknown.
    """
    state = {}
    for variable, value in variables.items():
        name = variable.removeprefix("module/").removesuffix(":0")
        if name != "global_step" and not name.endswith(_TF_SLOTS):
            transpose = name.endswith("/kernel")
            state[_hf_name_of_tf(name)] = torch.tensor(value.T if transpose else value)
    return state


def _hf_name_of_tf(name: str) -> str:
    if name in _TF_TENSORS:
        return _TF_TENSORS[name]
    module, _, leaf = name.rpartition("/")
    hf_module = _TF_MODULES.get(module)
    if block := _TF_BLOCK.fullmatch(module):
        group, inner, part = block.groups()
        prefix = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        hf_module = f"{prefix}.{_TF_BLOCK_MODULES[part]}" if part in _TF_BLOCK_MODULES else None
    if hf_module is None or leaf not in _TF_LEAVES:
        raise IntegrityError(
            f"the TF checkpoint has the variable {name}, which is none of ALBERT's pretraining "
            "model. Leave out the variables of fine-tuning heads."
        )
    return f"{hf_module}.{_TF_LEAVES[leaf]}"
