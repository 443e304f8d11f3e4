"""Weights and config.json in the form of Hugging Face's ALBERT and BERT classes, and back.

`AlbertForPreTraining` and `BertForPreTraining` name the tensors of one model each in its own way,
and a `_Layout` says how. Every model fits the ALBERT classes: where the layers do not share all
they have, and where the reference needs no projection (E = H), that layout holds copies and an
identity, which are undone on the way back. A model of BERT's shape fits the BERT classes as it is.

Source: `modeling_albert.py` and `modeling_bert.py` of transformers 5.23.
"""

import logging
from collections.abc import Iterator, Mapping
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
"""Where config.json has our `ModelSettings`; Hugging Face has no word for every sharing."""

log = logging.getLogger(__name__)

PROJECTION = "albert.encoder.embedding_hidden_mapping_in"


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How one of Hugging Face's pretraining classes names what our model has."""

    class_name: str
    word_embeddings: str
    modules: Mapping[str, str]
    """Hugging Face's module -> ours, outside the layers."""
    block: str
    attention: Mapping[str, str]
    feed_forward: Mapping[str, str]
    ties: Mapping[str, str]
    """Tensors that Hugging Face has twice: the second name -> our parameter."""
    defaults: Mapping[str, Any]
    """Those of the config class that are not ours: a config.json may leave out any default."""


_ALBERT = _Layout(
    class_name="AlbertForPreTraining",
    word_embeddings="albert.embeddings.word_embeddings.weight",
    modules={
        "albert.embeddings.word_embeddings": "encoder.embeddings.word",
        "albert.embeddings.token_type_embeddings": "encoder.embeddings.token_type",
        "albert.embeddings.position_embeddings": "encoder.embeddings.position",
        "albert.embeddings.LayerNorm": "encoder.embeddings.norm",
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
    ties={
        "predictions.decoder.weight": "encoder.embeddings.word.weight",
        "predictions.decoder.bias": "masked_lm.bias",
    },
    defaults={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
)
_BERT = _Layout(
    class_name="BertForPreTraining",
    word_embeddings="bert.embeddings.word_embeddings.weight",
    modules={
        "bert.embeddings.word_embeddings": "encoder.embeddings.word",
        "bert.embeddings.token_type_embeddings": "encoder.embeddings.token_type",
        "bert.embeddings.position_embeddings": "encoder.embeddings.position",
        "bert.embeddings.LayerNorm": "encoder.embeddings.norm",
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
    ties={
        "cls.predictions.decoder.weight": "encoder.embeddings.word.weight",
        "cls.predictions.decoder.bias": "masked_lm.bias",
    },
    defaults={
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "sharing": "none",
    },
)
_LAYOUTS: dict[Architecture, _Layout] = {"albert": _ALBERT, "bert": _BERT}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Tensors of older versions of transformers that hold no weights."""
_LEAVES_BEFORE = {".gamma": ".weight", ".beta": ".bias"}
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


def hf_names(model: AlbertForPretraining, architecture: Architecture = "albert") -> dict[str, str]:
    """Return, for each tensor of Hugging Face's model, the name of the parameter it is in ours."""
    return names_by_group(model, hf_groups(model.encoder.settings), architecture)


def names_by_group(
    model: AlbertForPretraining, groups: list[int], architecture: Architecture = "albert"
) -> dict[str, str]:
    """Return `hf_names` of a model whose layers are in ``groups``: the group of each layer."""
    layout, own = _LAYOUTS[architecture], model.state_dict()
    modules = [*layout.modules.items(), *_block_modules(model, groups, layout)]
    named = {
        f"{hf}.{leaf}": f"{ours}.{leaf}" for hf, ours in modules for leaf in ("weight", "bias")
    }
    return {hf: ours for hf, ours in named.items() if ours in own} | dict(layout.ties)


def ties(architecture: Architecture = "albert") -> frozenset[str]:
    """Return the tensors that Hugging Face's model holds a second time and need not be stored."""
    return frozenset(_LAYOUTS[architecture].ties)


def to_hf_state(
    model: AlbertForPretraining, architecture: Architecture = "albert"
) -> dict[str, Tensor]:
    """Return the state of Hugging Face's pretraining model that computes what ``model`` does.

    The tensors are those of ``model``, not copies.

    Raises:
        ConfigError: ``architecture`` is "bert" and the model is not of BERT's shape.
    """
    settings = model.encoder.settings
    if architecture == "bert" and architecture_of(settings) != "bert":
        raise ConfigError(
            f"a model with embedding_size {settings.embedding_size}, hidden_size "
            f"{settings.hidden_size}, sharing {settings.sharing!r} and inner_group_num "
            f"{settings.inner_group_num} is no BERT, which has equal sizes, sharing 'none' and "
            "inner_group_num 1. Write it with architecture 'albert'."
        )
    state = model.state_dict()
    names = hf_names(model, architecture)
    return _identity(model, architecture) | {hf: state[ours] for hf, ours in names.items()}


def from_hf_state(
    state: Mapping[str, Tensor],
    settings: ModelSettings,
    where: str = "the state",
    architecture: Architecture = "albert",
) -> AlbertForPretraining:
    """Return a model, in float32, with the weights of one of Hugging Face's pretraining models.

    Args:
        state: tensors by name; the tied decoder may be missing.
        settings: the shape of the model.
        where: the file the state came from, for the message.
        architecture: whose names the tensors have.

    Raises:
        IntegrityError: a tensor is missing, unknown or of another shape, or tensors that
            ``settings`` say are one differ.
    """
    model = empty_model(state, settings, architecture)
    names = hf_names(model, architecture)
    found = own_state(state, model, names, where, architecture)
    check_whole(found, where, architecture)
    model.load_state_dict(found.tensors, assign=True)
    return model


def empty_model(
    state: Mapping[str, Tensor], settings: ModelSettings, architecture: Architecture = "albert"
) -> AlbertForPretraining:
    """Return a model on the meta device with a vocabulary as large as that of ``state``."""
    words = _canonical(state, architecture).get(_LAYOUTS[architecture].word_embeddings, [0])
    with torch.device("meta"):
        return AlbertForPretraining(settings, len(words))


@dataclass(frozen=True)
class OwnState:
    """What a state of Hugging Face's holds of our model."""

    tensors: dict[str, Tensor]
    """float32 on the CPU, by the names of our parameters."""
    missing: list[str]
    """Hugging Face's names of the tensors that are not there and that nothing else stands for."""
    unknown: list[str]
    """Hugging Face's names of the tensors that our model has no place for."""


def own_state(
    state: Mapping[str, Tensor],
    model: AlbertForPretraining,
    names: Mapping[str, str],
    where: str,
    architecture: Architecture = "albert",
) -> OwnState:
    """Return what ``state`` holds of ``model``, which may be less than all of it.

    Args:
        state: tensors by Hugging Face's names, with or without the prefix of the base model.
        model: gives the shapes.
        names: Hugging Face's name -> ours.
        where: the file the state came from, for the message.
        architecture: whose names the tensors have.

    Raises:
        IntegrityError: a tensor is of another shape, or tensors that are one in ``model`` differ.
    """
    state = _canonical(state, architecture)
    identity, shapes = _identity(model, architecture), model.state_dict()
    _check_same(state, identity, f"{where}: E = H, so the projection must be the identity")
    own: dict[str, Tensor] = {}
    for hf, ours in names.items():
        if hf not in state:
            continue
        if state[hf].shape != shapes[ours].shape:
            raise IntegrityError(
                f"{where}: {hf} is {tuple(state[hf].shape)}, expected {tuple(shapes[ours].shape)}. "
                "The weights and the configuration beside them are of different models."
            )
        tensor = state[hf].to("cpu", torch.float32, copy=True)
        _check_same(
            {hf: tensor}, {hf: own.setdefault(ours, tensor)}, f"{where}: the layers share it"
        )
    stored_as_tie = {ours for hf, ours in _LAYOUTS[architecture].ties.items() if hf in state}
    return OwnState(
        own,
        missing=sorted(
            hf
            for hf, ours in names.items()
            if hf not in state and hf not in ties(architecture) and ours not in stored_as_tie
        ),
        unknown=sorted(state.keys() - names.keys() - identity.keys()),
    )


def check_whole(found: OwnState, where: str, architecture: Architecture = "albert") -> None:
    """Raise IntegrityError unless ``found`` is all of a model and nothing else."""
    if found.missing or found.unknown:
        raise IntegrityError(
            f"{where} is not the whole of a {_LAYOUTS[architecture].class_name} of this shape: "
            f"missing {_some(found.missing)}, unknown {_some(found.unknown)}. Many published "
            "checkpoints lack the sentence order head (sop_classifier): start from them with "
            "load_initial_weights, which makes a new one."
        )


def hf_config(
    settings: ModelSettings, vocab_size: int, architecture: Architecture = "albert"
) -> dict[str, Any]:
    """Return the config.json of the model: Hugging Face's fields, and ours under `SETTINGS_KEY`."""
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
        "architectures": [_LAYOUTS[architecture].class_name],
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
        where: its URI, for the message.

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
    if SETTINGS_KEY in config:
        ours = ModelSettings.read(config[SETTINGS_KEY], f"{where}, {SETTINGS_KEY}")
        written = hf_config(ours, config.get("vocab_size", 0), architecture)
        changed = [
            name
            for name in ModelSettings.model_fields
            if config.get(name, written.get(name)) != written.get(name)
        ]
        if not changed:
            return ours, architecture
        log.warning(
            "%s: %s is not what %s was written with: somebody changed it since, so Hugging Face's "
            "fields are read",
            where,
            ", ".join(changed),
            SETTINGS_KEY,
        )
    values = dict(_LAYOUTS[architecture].defaults) | dict(config)
    if architecture == "bert":
        values["embedding_size"] = values.get("hidden_size", ModelSettings().hidden_size)
    fields = {name: values[name] for name in ModelSettings.model_fields if name in values}
    return ModelSettings.read(fields, where), architecture


def hf_groups(settings: ModelSettings) -> list[int]:
    """Return the group of each layer in Hugging Face's model: its own unless it shares as ours."""
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]
    same = groups == [layer * num_groups // num_layers for layer in range(num_layers)]
    return groups if same and settings.sharing == "all" else list(range(num_layers))


def _block_modules(
    model: AlbertForPretraining, groups: list[int], layout: _Layout
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


def _canonical(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return ``state`` by the names of today's pretraining class, without buffers."""
    bare = "embeddings.word_embeddings.weight" in state  # written by a base model, without heads
    found = {}
    for name, tensor in state.items():
        full = f"{architecture}.{name}" if bare else name
        for before, leaf in _LEAVES_BEFORE.items():
            if full.endswith(before):
                full = full.removesuffix(before) + leaf
        if not full.endswith(_BUFFERS):
            found[full] = tensor
    return found


def _identity(model: AlbertForPretraining, architecture: Architecture) -> dict[str, Tensor]:
    """Return the projection that Hugging Face's ALBERT has and ours has not, where E = H."""
    if architecture == "bert" or not isinstance(model.encoder.projection, nn.Identity):
        return {}
    width = model.encoder.settings.hidden_size
    return {f"{PROJECTION}.weight": torch.eye(width), f"{PROJECTION}.bias": torch.zeros(width)}


def _some(names: list[str]) -> str:
    """Return ``names`` for a message: the first few, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{names[:4]}{more}" if names else "nothing"


def _check_same(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    for name in state.keys() & expected.keys():
        if not torch.equal(state[name].to("cpu", torch.float32), expected[name]):
            raise IntegrityError(
                f"{where}, but {name} has other values. Give settings of the shape "
                "that the weights have."
            )
