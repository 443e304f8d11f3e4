"""Weights and config.json in the form of Hugging Face's ALBERT and BERT classes, and back.

`AlbertForPreTraining` and `BertForPreTraining` have different names for the tensors of one model;
a `_Layout` lists those of a class. Every model fits the ALBERT classes: where its layers do not
share everything, and where the reference needs no projection (E = H), that layout holds copies and
an identity, which are undone when it is read. A model of BERT's shape fits the BERT classes as is.

Source: `modeling_albert.py` and `modeling_bert.py` of transformers 5.23.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.model.albert import LAYER_NORM_EPSILON, AlbertForPretraining
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.text.records import CLS, PAD, SEP

Architecture = Literal["albert", "bert"]
"""Hugging Face's model_type: which family of classes reads the weights."""
SETTINGS_KEY = "albert_core"
"""Where config.json has our `ModelSettings`; Hugging Face cannot express every sharing mode."""
ALBERT_DEFAULTS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
}
"""The defaults of `AlbertConfig`, here and in google-research/albert, that are not ours."""
PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
OPTIONAL_PARTS = {
    "encoder.pooler": "pooler",
    "masked_lm": "masked LM head",
    "sentence_order": "sentence order head",
}
"""The modules that published weights may lack, and their names in messages."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The names that one of Hugging Face's pretraining classes has for the parts of our model."""

    modules: Mapping[str, str]
    """Hugging Face's module -> ours, outside the embeddings and the layers."""
    block: str
    attention: Mapping[str, str]
    feed_forward: Mapping[str, str]
    defaults: Mapping[str, Any]
    """The config class's defaults that are not ours: a config.json may omit any of them."""


_EMBEDDINGS = {
    "word_embeddings": "word",
    "token_type_embeddings": "token_type",
    "position_embeddings": "position",
    "LayerNorm": "norm",
}
_LAYOUTS: dict[Architecture, _Layout] = {
    "albert": _Layout(
        modules={
            PROJECTION: "encoder.projection",
            "albert.pooler": "encoder.pooler",
            "predictions.dense": "masked_lm.dense",
            "predictions.LayerNorm": "masked_lm.norm",
            "predictions": "masked_lm",
            "sop_classifier.classifier": "sentence_order",
        },
        block="albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}",
        attention={
            "attention.query": "query",
            "attention.key": "key",
            "attention.value": "value",
            "attention.dense": "output",
            "attention.LayerNorm": "norm",
        },
        feed_forward={"ffn": "inner", "ffn_output": "output", "full_layer_layer_norm": "norm"},
        defaults=ALBERT_DEFAULTS,
    ),
    "bert": _Layout(
        modules={
            "bert.pooler.dense": "encoder.pooler",
            "cls.predictions.transform.dense": "masked_lm.dense",
            "cls.predictions.transform.LayerNorm": "masked_lm.norm",
            "cls.predictions": "masked_lm",
            "cls.seq_relationship": "sentence_order",
        },
        block="bert.encoder.layer.{group}",
        attention={
            "attention.self.query": "query",
            "attention.self.key": "key",
            "attention.self.value": "value",
            "attention.output.dense": "output",
            "attention.output.LayerNorm": "norm",
        },
        feed_forward={
            "intermediate.dense": "inner",
            "output.dense": "output",
            "output.LayerNorm": "norm",
        },
        defaults={
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "sharing": "none",
        },
    ),
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Tensors of older versions of transformers that hold no weights."""
_OLD_LEAVES = {".gamma": ".weight", ".beta": ".bias"}
"""What published BERT weights still call the leaves of a layer norm."""


def architecture_of(settings: ModelSettings) -> Architecture:
    """Return the classes of `transformers` that hold a model as it is, without copies.

    That is "bert" where E = H, nothing is shared and a layer is one block; else "albert".
    """
    fits = (
        settings.embedding_size == settings.hidden_size
        and settings.sharing == "none"
        and settings.inner_group_num == 1
    )
    return "bert" if fits else "albert"


def hf_names(
    model: AlbertForPretraining,
    architecture: Architecture | None = None,
    groups: Sequence[int] | None = None,
) -> dict[str, str]:
    """Return Hugging Face's name of each tensor -> the name of our parameter.

    Args:
        model: any of our models.
        architecture: whose names; by default those of `architecture_of`.
        groups: the group of each layer; by default `hf_groups`.
    """
    settings = model.encoder.settings
    architecture = architecture or architecture_of(settings)
    layout, own = _LAYOUTS[architecture], model.state_dict()
    modules = {
        f"{architecture}.embeddings.{hf}": f"encoder.embeddings.{ours}"
        for hf, ours in _EMBEDDINGS.items()
    }
    modules.update(layout.modules)
    modules.update(_block_modules(model, groups or hf_groups(settings), layout))
    named = {
        f"{hf}.{leaf}": f"{ours}.{leaf}"
        for hf, ours in modules.items()
        for leaf in ("weight", "bias")
    }
    return {hf: ours for hf, ours in named.items() if ours in own} | ties(architecture)


def ties(architecture: Architecture) -> dict[str, str]:
    """Return the tensors that Hugging Face's model has twice: the second name -> our parameter."""
    decoder = "predictions.decoder" if architecture == "albert" else "cls.predictions.decoder"
    return {
        f"{decoder}.weight": "encoder.embeddings.word.weight",
        f"{decoder}.bias": "masked_lm.bias",
    }


def to_hf_state(model: AlbertForPretraining) -> dict[str, Tensor]:
    """Return the state of Hugging Face's pretraining model that computes what ``model`` does.

    It has the names of the model's `architecture_of`. The tensors are those of ``model``, not
    copies.
    """
    state = model.state_dict()
    identity = _identity(model.encoder.settings, architecture_of(model.encoder.settings))
    return identity | {hf: state[ours] for hf, ours in hf_names(model).items()}


def from_hf_state(
    state: Mapping[str, Tensor],
    settings: ModelSettings,
    where: str,
    architecture: Architecture,
    groups: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Return what a state of one of Hugging Face's models holds of ours: at least the encoder.

    A head or pooler that is incomplete is left out, and so is, with a warning, what our model has
    no place for.

    Args:
        state: tensors by name, with or without the prefix of the base model; the tied decoder may
            be missing.
        settings: the shape of the model.
        where: the file the state came from, for messages.
        architecture: whose names the tensors have.
        groups: the group of each layer; by default `hf_groups`.

    Returns:
        float32 tensors on the CPU by the names of our parameters; they share no memory with
        ``state``.

    Raises:
        IntegrityError: a tensor of the encoder is missing or unknown, a tensor has another shape,
            or tensors differ that are one in our model.
    """
    state, tied = canonical_state(state, architecture), ties(architecture)
    words = state.get(f"{architecture}.embeddings.word_embeddings.weight", [0])
    with torch.device("meta"):
        model = AlbertForPretraining(settings, len(words))
    names, identity = hf_names(model, architecture, groups), _identity(settings, architecture)
    _check_same(state, identity, f"{where}: E = H, so the projection must be the identity")
    own = _own_tensors(state, names, model, where)
    stored_as_tie = {ours for hf, ours in tied.items() if hf in state}
    missing = [
        hf
        for hf, ours in sorted(names.items())
        if hf not in state and hf not in tied and ours not in stored_as_tie
    ]
    unknown = sorted(state.keys() - names.keys() - identity.keys())
    encoder = f"{architecture}."
    lacking = [hf for hf in missing if _optional_part(names[hf]) is None]
    strange = [hf for hf in unknown if hf.startswith(encoder)]
    if lacking or strange:
        raise IntegrityError(
            f"{where} does not hold the whole encoder of this shape: missing "
            f"{lacking[:4] or 'nothing'}, unknown {strange[:4] or 'nothing'}. Copy it again."
        )
    if unknown:
        log.warning("%s: left out, because this model has no place for it: %s", where, unknown)
    incomplete = {_optional_part(names[hf]) for hf in missing}
    return {name: t for name, t in own.items() if _optional_part(name) not in incomplete}


def canonical_state(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return ``state`` by the names of today's pretraining class, without buffers."""
    is_bare = "embeddings.word_embeddings.weight" in state  # written by a base model, without heads
    found = {}
    for name, tensor in state.items():
        full = f"{architecture}.{name}" if is_bare else name
        for old, leaf in _OLD_LEAVES.items():
            if full.endswith(old):
                full = full.removesuffix(old) + leaf
        if not full.endswith(_BUFFERS):
            found[full] = tensor
    return found


def hf_config(
    settings: ModelSettings, vocab_size: int, architecture: Architecture | None = None
) -> dict[str, Any]:
    """Return the config.json of a model: Hugging Face's fields, and ours under `SETTINGS_KEY`.

    Args:
        settings: the shape of the model.
        vocab_size: V.
        architecture: whose fields; by default those of `architecture_of`.
    """
    architecture = architecture or architecture_of(settings)
    ours = settings.model_dump()
    fields = {name: value for name, value in ours.items() if name != "sharing"}
    if architecture == "bert":
        for albert_only in ("embedding_size", "num_hidden_groups", "inner_group_num"):
            del fields[albert_only]
    else:
        fields |= {
            "num_hidden_groups": 1 + max(hf_groups(settings)),
            "classifier_dropout_prob": 0.1,
        }
    return {
        **fields,
        "architectures": [f"{architecture.capitalize()}ForPreTraining"],
        "model_type": architecture,
        "vocab_size": vocab_size,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "bos_token_id": CLS,
        "eos_token_id": SEP,
        "dtype": "float32",
        SETTINGS_KEY: ours,
    }


def read_hf_config(config: Mapping[str, Any], where: str) -> tuple[ModelSettings, Architecture]:
    """Return the shape of the model that a config.json describes, and whose names it uses.

    Args:
        config: the parsed config.json, ours or Hugging Face's.
        where: its URI, for messages.

    Raises:
        ConfigError: it describes a model that this project does not have.
    """
    architecture = config.get("model_type")
    epsilon = config.get("layer_norm_eps", LAYER_NORM_EPSILON)
    if architecture not in _LAYOUTS or epsilon != LAYER_NORM_EPSILON:
        raise ConfigError(
            f"{where} has model_type {architecture!r} and layer_norm_eps {epsilon}, expected "
            f"{' or '.join(map(repr, _LAYOUTS))} and {LAYER_NORM_EPSILON}. Give the folder of an "
            "ALBERT or BERT model."
        )
    fields = ModelSettings.model_fields
    if SETTINGS_KEY in config:
        ours = ModelSettings.read(config[SETTINGS_KEY], f"{where}, {SETTINGS_KEY}")
        written = hf_config(ours, config.get("vocab_size", 0), architecture)
        changed = [
            name for name in fields if config.get(name, written.get(name)) != written.get(name)
        ]
        if not changed:
            return ours, architecture
        log.warning(
            "%s: %s changed since %s was written, so Hugging Face's fields are read",
            where,
            ", ".join(changed),
            SETTINGS_KEY,
        )
    values = {**_LAYOUTS[architecture].defaults, **config}
    if architecture == "bert":
        values["embedding_size"] = values.get("hidden_size", ModelSettings().hidden_size)
    return ModelSettings.read({n: values[n] for n in fields if n in values}, where), architecture


def hf_groups(settings: ModelSettings) -> list[int]:
    """Return the group of each layer in Hugging Face's model: its own unless it shares as ours."""
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]
    same = groups == [layer * num_groups // num_layers for layer in range(num_layers)]
    return groups if same and settings.sharing == "all" else list(range(num_layers))


def _block_modules(
    model: AlbertForPretraining, groups: Sequence[int], layout: _Layout
) -> Iterator[tuple[str, str]]:
    route = iter(model.encoder.route)
    for group in groups:
        for inner in range(model.encoder.settings.inner_group_num):
            attention, feed_forward = next(route)
            block = layout.block.format(group=group, inner=inner)
            for hf, ours in layout.attention.items():
                yield f"{block}.{hf}", f"encoder.attentions.{attention}.{ours}"
            for hf, ours in layout.feed_forward.items():
                yield f"{block}.{hf}", f"encoder.feed_forwards.{feed_forward}.{ours}"


def _identity(settings: ModelSettings, architecture: Architecture) -> dict[str, Tensor]:
    """Return the projection that Hugging Face's ALBERT has and ours lacks where E = H."""
    width = settings.hidden_size
    if architecture == "bert" or settings.embedding_size != width:
        return {}
    return {f"{PROJECTION}.weight": torch.eye(width), f"{PROJECTION}.bias": torch.zeros(width)}


def _own_tensors(
    state: Mapping[str, Tensor], names: Mapping[str, str], model: nn.Module, where: str
) -> dict[str, Tensor]:
    """Return the tensors of ``state`` that ``model`` has, by its names."""
    own: dict[str, Tensor] = {}
    shapes = model.state_dict()
    for hf in filter(state.__contains__, names):
        ours, tensor = names[hf], state[hf]
        if tensor.shape != shapes[ours].shape:
            raise IntegrityError(
                f"{where}: {hf} is {tuple(tensor.shape)}, expected {tuple(shapes[ours].shape)}. "
                "The weights and the configuration beside them are of different models."
            )
        kept = own.setdefault(ours, tensor.to("cpu", torch.float32, copy=True))
        _check_same({hf: tensor}, {hf: kept}, f"{where}: the layers share it")
    return own


def _check_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    for name in state.keys() & expected.keys():
        if not torch.equal(state[name].to("cpu", torch.float32), expected[name]):
            raise IntegrityError(
                f"{where}, but {name} has other values. Give settings of the shape "
                "that the weights have."
            )


def _optional_part(name: str) -> str | None:
    """Return the module in `OPTIONAL_PARTS` that our parameter ``name`` is in, or None."""
    return next((part for part in OPTIONAL_PARTS if name.startswith(f"{part}.")), None)
