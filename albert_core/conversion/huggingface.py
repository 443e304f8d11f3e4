"""Model folders in Hugging Face's layout: weights, configuration and tokenizer, written and read.

`transformers` and this project read the same folder: config.json, model.safetensors, spiece.model,
tokenizer.json, tokenizer_config.json and special_tokens_map.json. Weights and configuration have
the form of the classes that hold the model without copies: `BertForPreTraining` for a model of
BERT's shape, else `AlbertForPreTraining` (see `architecture_of`). `AutoModel`,
`AutoModelForPreTraining` and `AutoTokenizer` read either.

Every model fits the ALBERT classes. Where its layers do not share everything, and where the
reference needs no projection (E = H), the folder holds copies and an identity, which are undone
when it is read.

The tokenizer's class is always `PreTrainedTokenizerFast`: `BertTokenizer` is WordPiece, and
`AlbertTokenizer` has rules of its own. The pieces and scores of the vocabulary become a Unigram
model of the `tokenizers` library, and its normalisation becomes rules. Four differences from
`Tokenizer` remain:

* special pieces that are written out in a text, like "[MASK]", are recognised; fill-mask needs it;
* of two splits with the same score, the other one may be chosen in about one line of 20,000
  (SentencePiece adds its scores in float32, `tokenizers` in float64);
* with `split_digit_commas`, a piece like "1," inside a word, which the published vocabulary lacks,
  becomes "▁1" and "," in `Tokenizer`, as in the reference, and other pieces here, such as "1" and
  ",": no rule of `tokenizers` splits the pieces of a Unigram model;
* `tokenizers` does not decompose about 15 characters that are newer than its Unicode table, and
  loses a mark of combining class 0 right after U+2581 or U+FFFD.

Source: `modeling_albert.py` and `modeling_bert.py` of transformers 5.23; `modeling.py` of
google-research/albert.
"""

import json
import logging
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any, Literal

import safetensors.torch
import tokenizers
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.conversion.model_files import CONFIG, TOKENIZER_CONFIG, WEIGHTS, missing
from albert_core.model.albert import (
    LAYER_NORM_EPSILON,
    AlbertForPretraining,
    AlbertModel,
    groups_of,
)
from albert_core.stage import manifest, storage
from albert_core.stage.errors import ConfigError, IntegrityError, VocabularyError
from albert_core.text.records import CLS, PAD, SEP, SPECIAL_PIECES, UNK
from albert_core.text.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer

Architecture = Literal["albert", "bert"]
"""Hugging Face's model_type: the family of classes that reads the weights."""
Naming = Architecture | Literal["release"]
"""Scheme of the tensors' names; "release" is google-research/albert, with dots for slashes."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "albert": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
    "bert": {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "sharing": "none",
    },
}
"""The configuration classes' defaults that are not ours. A config.json may omit any of them; those
of "albert" are also those of google-research/albert."""
OPTIONAL_PARTS = {
    "encoder.pooler": "pooler",
    "masked_lm": "masked LM head",
    "sentence_order": "sentence order head",
}
"""The modules that published weights may lack, and their names in messages."""
_OTHER_SHAPE = "Give settings of the shape that the weights have."
_SETTINGS_KEY = "albert_core"
"""Field of config.json with our `ModelSettings`: Hugging Face cannot express every sharing mode."""
_OURS_ALONE = ("sharing", "num_hidden_groups")
"""Settings that Hugging Face has no field for, or one that means another number."""

# Our modules, and their names in ALBERT, in BERT and, if it differs, in the release.
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_EMBEDDINGS = {
    "word": "word_embeddings",
    "token_type": "token_type_embeddings",
    "position": "position_embeddings",
    "norm": "LayerNorm",
}
_MODULES = {
    "encoder.projection": (_PROJECTION, "bert.encoder.embedding_hidden_mapping_in"),
    "encoder.pooler": ("albert.pooler", "bert.pooler.dense"),
    "masked_lm.dense": ("predictions.dense", "cls.predictions.transform.dense"),
    "masked_lm.norm": ("predictions.LayerNorm", "cls.predictions.transform.LayerNorm"),
    "masked_lm": ("predictions", "cls.predictions"),
    "sentence_order": ("sop_classifier.classifier", "cls.seq_relationship"),
}
_BLOCK: dict[Naming, str] = {
    "albert": "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    "bert": "bert.encoder.layer.{group}",
    "release": "bert.encoder.transformer.group_{group}.inner_group_{inner}",
}
_IN_BLOCK = {
    "attentions.{0}.query": ("attention.query", "attention.self.query", "attention_1.self.query"),
    "attentions.{0}.key": ("attention.key", "attention.self.key", "attention_1.self.key"),
    "attentions.{0}.value": ("attention.value", "attention.self.value", "attention_1.self.value"),
    "attentions.{0}.output": (
        "attention.dense",
        "attention.output.dense",
        "attention_1.output.dense",
    ),
    "attentions.{0}.norm": ("attention.LayerNorm", "attention.output.LayerNorm", "LayerNorm"),
    "feed_forwards.{1}.inner": ("ffn", "intermediate.dense", "ffn_1.intermediate.dense"),
    "feed_forwards.{1}.output": ("ffn_output", "output.dense", "ffn_1.intermediate.output.dense"),
    "feed_forwards.{1}.norm": ("full_layer_layer_norm", "output.LayerNorm", "LayerNorm_1"),
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Tensors of older versions of transformers that hold no weights."""
_OLD_LEAVES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of a layer norm's leaves in published BERT weights, and today's."""

_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_SPECIAL_TOKENS = dict(zip(_SPECIAL_NAMES, SPECIAL_PIECES, strict=True))
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_NEVER = 1e4
"""Taken from the score of a piece, it is more than any text of a sentence has."""
_INSIDE_SPECIAL_PIECE = r"(?<=<)(?=pad>|unk>)|(?<=\[)(?=CLS\]|SEP\]|MASK\])"

log = logging.getLogger(__name__)


def save_model_folder(
    model: AlbertForPretraining, tokenizer: Tokenizer, folder: str, has_masked_lm: bool = True
) -> None:
    """Write ``model`` and ``tokenizer`` to ``folder`` (a URI), for us and for `transformers`.

    Args:
        model: the model, on any device.
        tokenizer: the vocabulary that the model was trained with.
        folder: overwritten where it exists.
        has_masked_lm: whether the masked LM head is written too.

    Raises:
        IntegrityError: the model's vocabulary does not have the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    settings, vocab_size = model.encoder.settings, len(model.masked_lm.bias)
    check_vocabulary(vocab_size, tokenizer, "the model")
    twice = _ties(architecture_of(settings))
    state = {hf: t.cpu().clone() for hf, t in to_hf_state(model).items() if hf not in twice}
    if not has_masked_lm:
        left_out = {hf for hf, ours in hf_names(model).items() if ours.startswith("masked_lm.")}
        state = {hf: tensor for hf, tensor in state.items() if hf not in left_out}
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        **tokenizer_files(tokenizer, settings.max_position_embeddings),
        CONFIG: json.dumps(hf_config(settings, vocab_size), indent=1).encode(),
    }
    storage.remove(storage.join(folder, CONFIG))  # without which no reader takes what is left
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content)


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer, where: str) -> None:
    """Raise IntegrityError unless a model of ``vocab_size`` pieces fits ``tokenizer``."""
    if vocab_size != tokenizer.vocab_size:
        raise IntegrityError(
            f"{where} has {vocab_size} pieces, its tokenizer {tokenizer.vocab_size}. Use the "
            "vocabulary that the model was trained with."
        )


def load_encoder(folder: str) -> tuple[AlbertModel, Tokenizer]:
    """Return the encoder and the tokenizer of a model folder, pretrained or fine-tuned.

    Args:
        folder: URI of a folder in Hugging Face's layout. Its heads, if any, are ignored.

    Returns:
        The encoder, in float32 on the CPU, and its tokenizer.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file is missing or damaged, or does not fit the others.
    """
    encoder, _ = split_model_folder(folder)
    tokenizer = read_tokenizer(folder)
    check_vocabulary(len(encoder.embeddings.word.weight), tokenizer, f"the model in {folder}")
    return encoder, tokenizer


def split_model_folder(folder: str) -> tuple[AlbertModel, dict[str, Tensor]]:
    """Return the encoder in a model folder, and the tensors of its heads by their names there.

    Raises:
        ConfigError: config.json describes a model that this project does not have.
        IntegrityError: a file or a part of the encoder is missing or damaged.
    """
    state, settings, architecture = read_model_folder(folder)
    where, prefix = storage.join(folder, WEIGHTS), f"{architecture}."
    state = _canonical_state(state, prefix)
    heads = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
    of_encoder = {name: state[name] for name in state.keys() - heads.keys()}
    tensors = from_hf_state(of_encoder, settings, where, architecture)
    if "encoder.pooler.weight" not in tensors:
        raise IntegrityError(f"{where} has no pooler. `albert convert` writes one with a new one.")
    own = {name.removeprefix("encoder."): tensor for name, tensor in tensors.items()}
    with torch.device("meta"):
        encoder = AlbertModel(settings, len(own["embeddings.word.weight"]))
    encoder.load_state_dict(own, assign=True)
    return encoder, heads


def read_model_folder(folder: str) -> tuple[dict[str, Tensor], ModelSettings, Architecture]:
    """Return the tensors in ``folder`` by Hugging Face's names, their shape and architecture.

    Raises:
        IntegrityError: a file is missing or damaged.
        ConfigError: config.json describes a model that this project does not have.
    """
    config = read_object(folder, CONFIG)
    settings, architecture = _read_hf_config(config, storage.join(folder, CONFIG))
    try:
        state = safetensors.torch.load(_read(folder, WEIGHTS))
    except safetensors.SafetensorError as error:
        raise IntegrityError(
            f"{storage.join(folder, WEIGHTS)} is damaged ({error}). Copy or write it again."
        ) from error
    return state, settings, architecture


def read_tokenizer(folder: str) -> Tokenizer:
    """Return the tokenizer in the model folder ``folder`` (a URI).

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    config = read_object(folder, TOKENIZER_CONFIG)
    lower_case, keep_accents = config.get("do_lower_case", True), config.get("keep_accents", False)
    split = config.get("split_digit_commas", False)
    return Tokenizer(_read(folder, SPIECE_MODEL), lower_case, split, keep_accents)


def read_object(folder: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder.

    Raises:
        IntegrityError: the file is missing or damaged.
    """
    try:
        values: dict[str, Any] = json.loads(_read(folder, name))
        if not isinstance(values, dict):
            raise TypeError("it is no object")
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(
            f"{storage.join(folder, name)} is not a JSON object ({error}). Copy or write it again."
        ) from error
    return values


def _read(folder: str, name: str) -> bytes:
    uri = storage.join(folder, name)
    if not storage.exists(uri):
        raise missing(folder, name)
    return storage.read_bytes(manifest.checked(uri))


# Weights


def architecture_of(settings: ModelSettings) -> Architecture:
    """Return the classes of `transformers` that hold a model as it is, without copies.

    That is "bert" where E = H, nothing is shared and a layer is one block; else "albert".
    """
    is_projected = settings.embedding_size != settings.hidden_size
    is_bert = not is_projected and settings.sharing == "none" and settings.inner_group_num == 1
    return "bert" if is_bert else "albert"


def hf_names(model: AlbertForPretraining, naming: Naming | None = None) -> dict[str, str]:
    """Return the other scheme's name of each tensor -> the name of our parameter.

    Args:
        model: any of our models.
        naming: scheme of the names; by default that of its `architecture_of`.
    """
    settings, own = model.encoder.settings, model.state_dict()
    naming = naming or architecture_of(settings)
    prefix = "albert" if naming == "albert" else "bert"
    modules = {
        f"{prefix}.embeddings.{theirs}": f"encoder.embeddings.{ours}"
        for ours, theirs in _EMBEDDINGS.items()
    }
    for ours, (albert, bert) in _MODULES.items():
        modules[albert if naming == "albert" else bert] = ours
    modules.update(_block_modules(model, naming))
    named = {
        f"{theirs}.{leaf}": f"{ours}.{leaf}"
        for theirs, ours in modules.items()
        for leaf in ("weight", "bias")
    }
    return {theirs: ours for theirs, ours in named.items() if ours in own} | _ties(naming)


def _block_modules(model: AlbertForPretraining, naming: Naming) -> Iterator[tuple[str, str]]:
    settings, column = model.encoder.settings, list(_BLOCK).index(naming)
    groups = groups_of(settings) if naming == "release" else hf_groups(settings)
    places = product(groups, range(settings.inner_group_num))
    for (group, inner), blocks in zip(places, model.encoder.route, strict=True):
        block = _BLOCK[naming].format(group=group, inner=inner)
        for ours, theirs in _IN_BLOCK.items():
            yield f"{block}.{theirs[column]}", f"encoder.{ours.format(*blocks)}"


def _ties(naming: Naming) -> dict[str, str]:
    """Return the tensors that Hugging Face's model has twice: the second name -> our parameter."""
    decoder = "predictions.decoder" if naming == "albert" else "cls.predictions.decoder"
    return {
        f"{decoder}.weight": "encoder.embeddings.word.weight",
        f"{decoder}.bias": "masked_lm.bias",
    }


def hf_groups(settings: ModelSettings) -> list[int]:
    """Return the group of each layer in Hugging Face's model.

    Each layer is a group of its own, unless Hugging Face can share the layers as our model does.
    """
    num_layers, num_groups = settings.num_hidden_layers, settings.num_hidden_groups
    groups = [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]
    is_shared = settings.sharing == "all" and groups == groups_of(settings)
    return groups if is_shared else list(range(num_layers))


def to_hf_state(model: AlbertForPretraining) -> dict[str, Tensor]:
    """Return the state of Hugging Face's pretraining model that computes the same as ``model``.

    It has the names of the model's `architecture_of`. The tensors are those of ``model``, not
    copies.
    """
    state = model.state_dict()
    identity = _identity(model.encoder.settings, architecture_of(model.encoder.settings))
    return identity | {hf: state[ours] for hf, ours in hf_names(model).items()}


def encoder_to_hf_state(encoder: AlbertModel) -> dict[str, Tensor]:
    """Return the encoder's tensors, not copies, by the names of its `architecture_of` classes."""
    with torch.device("meta"):
        model = AlbertForPretraining(encoder.settings, len(encoder.embeddings.word.weight))
    model.encoder = encoder
    prefix = f"{architecture_of(encoder.settings)}."
    return {name: t for name, t in to_hf_state(model).items() if name.startswith(prefix)}


def from_hf_state(
    state: Mapping[str, Tensor], settings: ModelSettings, where: str, naming: Naming
) -> dict[str, Tensor]:
    """Return our tensors from the state of a model with other names: at least the encoder.

    An incomplete head or pooler is left out. Tensors that our model has no place for are left out
    with a warning.

    Args:
        state: tensors by name, with or without the prefix of the base model; the tied decoder may
            be missing.
        settings: the shape of the model.
        where: the file the state came from, for messages.
        naming: scheme of the tensors' names.

    Returns:
        float32 tensors on the CPU by the names of our parameters; they share no memory with
        ``state``.

    Raises:
        IntegrityError: a tensor of the encoder is missing or unknown, a tensor has another shape,
            or tensors differ that are one in our model.
    """
    encoder = "albert." if naming == "albert" else "bert."
    state, tied = _canonical_state(state, encoder), _ties(naming)
    words = state.get(f"{encoder}embeddings.word_embeddings.weight", [0])
    with torch.device("meta"):
        model = AlbertForPretraining(settings, len(words))
    names, identity = hf_names(model, naming), _identity(settings, naming)
    why = f"{where}: E = H, so the projection must be the identity"
    _check_same(state, identity, why, _OTHER_SHAPE)
    own = _own_tensors(state, names, model, where)
    stored_as_tie = {ours for hf, ours in tied.items() if hf in state}
    missing = [
        hf
        for hf, ours in sorted(names.items())
        if hf not in state and hf not in tied and ours not in stored_as_tie
    ]
    unknown = sorted(state.keys() - names.keys() - identity.keys())
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


def renamed(name: str, endings: Mapping[str, str]) -> str:
    """Return ``name`` with its ending replaced, if it has one of ``endings``."""
    old = next(filter(name.endswith, endings), "")
    return name.removesuffix(old) + endings.get(old, "")


def _canonical_state(state: Mapping[str, Tensor], encoder: str) -> dict[str, Tensor]:
    """Return ``state`` by the names of today's pretraining class, without buffers.

    Args:
        state: tensors of any class by name.
        encoder: the prefix of the base model in the pretraining class, with its dot.
    """
    is_bare = "embeddings.word_embeddings.weight" in state  # written by a base model, without heads
    return {
        renamed(f"{encoder}{name}" if is_bare else name, _OLD_LEAVES): tensor
        for name, tensor in state.items()
        if not name.endswith(_BUFFERS)
    }


def _identity(settings: ModelSettings, naming: Naming) -> dict[str, Tensor]:
    """Return the projection that Hugging Face's ALBERT has and ours lacks where E = H."""
    width = settings.hidden_size
    if naming != "albert" or settings.embedding_size != width:
        return {}
    return {f"{_PROJECTION}.weight": torch.eye(width), f"{_PROJECTION}.bias": torch.zeros(width)}


def _own_tensors(
    state: Mapping[str, Tensor], names: Mapping[str, str], model: AlbertForPretraining, where: str
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
        why, advice = "the layers share it", _OTHER_SHAPE
        if "predictions.decoder." in hf:
            why = "in this project the decoder is always tied to the word embeddings"
            advice = "Leave the masked LM head's weights out."
        _check_same({hf: tensor}, {hf: kept}, f"{where}: {why}", advice)
    return own


def _check_same(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], why: str, advice: str
) -> None:
    for name in state.keys() & expected.keys():
        if not torch.equal(state[name].to("cpu", torch.float32), expected[name]):
            raise IntegrityError(f"{why}, but {name} has other values. {advice}")


def _optional_part(name: str) -> str | None:
    """Return the module in `OPTIONAL_PARTS` that our parameter ``name`` is in, or None."""
    return next((part for part in OPTIONAL_PARTS if name.startswith(f"{part}.")), None)


# config.json


def hf_config(settings: ModelSettings, vocab_size: int) -> dict[str, Any]:
    """Return the config.json of a model: Hugging Face's fields, and our settings.

    Args:
        settings: the shape of the model.
        vocab_size: V.
    """
    architecture, ours = architecture_of(settings), settings.model_dump()
    fields = {name: value for name, value in ours.items() if name != "sharing"}
    if architecture == "bert":
        del fields["embedding_size"], fields["num_hidden_groups"], fields["inner_group_num"]
    else:
        num_groups = 1 + max(hf_groups(settings))
        fields |= {"num_hidden_groups": num_groups, "classifier_dropout_prob": 0.1}
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
        _SETTINGS_KEY: ours,
    }


def _read_hf_config(config: Mapping[str, Any], where: str) -> tuple[ModelSettings, Architecture]:
    """Return the shape and the architecture of the model that a config.json describes.

    Args:
        config: the parsed config.json, ours or Hugging Face's. Of our settings only those count
            that Hugging Face has no field for; the others may have been changed since.
        where: its URI, for messages.

    Raises:
        ConfigError: it describes a model that this project does not have.
    """
    architecture = config.get("model_type")
    epsilon = config.get("layer_norm_eps", LAYER_NORM_EPSILON)
    if architecture not in ("albert", "bert") or epsilon != LAYER_NORM_EPSILON:
        raise ConfigError(
            f"{where} has model_type {architecture!r} and layer_norm_eps {epsilon}, expected "
            f"'albert' or 'bert' and {LAYER_NORM_EPSILON}. Give the folder of an ALBERT or BERT "
            "model."
        )
    values, ours = {**DEFAULTS[architecture], **config}, config.get(_SETTINGS_KEY, {})
    if not isinstance(ours, dict):
        raise ConfigError(
            f"{where}: {_SETTINGS_KEY} is {ours!r}, expected an object. Copy it again."
        )
    values |= {name: ours[name] for name in _OURS_ALONE if name in ours}
    if architecture == "bert":
        values["embedding_size"] = values.get("hidden_size", ModelSettings().hidden_size)
    fields = {name: values[name] for name in ModelSettings.model_fields if name in values}
    return ModelSettings.read(fields, where), architecture


# The tokenizer


def tokenizer_files(tokenizer: Tokenizer, max_seq_length: int) -> dict[str, bytes]:
    """Return the tokenizer's files of a model folder, by name.

    Args:
        tokenizer: the vocabulary.
        max_seq_length: pieces that the model can read, special ones included.

    Raises:
        VocabularyError: the SentencePiece model is not a Unigram model.
    """
    config = _SPECIAL_TOKENS | {
        "tokenizer_class": "PreTrainedTokenizerFast",  # AlbertTokenizer makes rules of its own
        "do_lower_case": tokenizer.lower_case,
        "keep_accents": tokenizer.keep_accents,
        "split_digit_commas": tokenizer.split_digit_commas,
        "model_max_length": max_seq_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    return {
        SPIECE_MODEL: tokenizer.model,
        "tokenizer.json": fast_tokenizer(tokenizer).to_str().encode(),
        TOKENIZER_CONFIG: json.dumps(config, indent=1).encode(),
        "special_tokens_map.json": json.dumps(_SPECIAL_TOKENS, indent=1).encode(),
    }


def fast_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return ``tokenizer`` as one of the `tokenizers` library.

    It makes [CLS] a [SEP] of one text and [CLS] a [SEP] b [SEP] of two.

    Raises:
        VocabularyError: the SentencePiece model is not a Unigram model.
    """
    # The module of sentencepiece itself cannot be imported beside protobuf 6.
    from transformers.utils import sentencepiece_model_pb2_new as spiece

    proto = spiece.ModelProto.FromString(tokenizer.model)  # type: ignore[attr-defined]
    kind, unigram = proto.trainer_spec.model_type, proto.trainer_spec.UNIGRAM
    if kind != unigram:
        raise VocabularyError(
            f"the SentencePiece model has model_type {kind}, expected {unigram} (Unigram). Train "
            "the vocabulary with model_type=unigram."
        )
    fast = tokenizers.Tokenizer(
        models.Unigram(_scored_pieces(tokenizer, proto), UNK, byte_fallback=False)
    )
    fast.normalizer = _normalizer(tokenizer, proto.normalizer_spec.precompiled_charsmap)
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme="first", split=False),
            pre_tokenizers.Split(Regex(_INSIDE_SPECIAL_PIECE), "isolated"),
        ]
    )
    fast.decoder = decoders.Metaspace(WORD_MARK, prepend_scheme="first")
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(piece, i) for i, piece in enumerate(SPECIAL_PIECES)],
    )
    fast.add_special_tokens(
        [tokenizers.AddedToken(piece, normalized=False, special=True) for piece in SPECIAL_PIECES]
    )
    return fast


def _scored_pieces(tokenizer: Tokenizer, proto: Any) -> list[tuple[str, float]]:
    """Return every piece with the score that SentencePiece gives it when it splits a text.

    A piece whose comma becomes one of its own has a score with which it is never taken.
    """
    never = tokenizer.digit_commas if tokenizer.split_digit_commas else {}
    scores = [piece.score for piece in proto.pieces if piece.type == piece.NORMAL]
    lowest, highest = min(scores), max(scores)

    def score(number: int, piece: Any) -> float:
        if piece.type == piece.USER_DEFINED:
            return float(max(len(piece.piece.encode()) * highest - 0.1, lowest))
        return float(piece.score) - _NEVER * (number in never)

    return [(piece.piece, score(number, piece)) for number, piece in enumerate(proto.pieces)]


def _normalizer(tokenizer: Tokenizer, charsmap: bytes) -> normalizers.Normalizer:
    """Return the rules of `normalise_for_pieces`, then those of the SentencePiece model.

    Characters that are removed from the front of a text become a space instead, because `Metaspace`
    puts a word mark only before the original front of the text.
    """
    combining, controls = _special_characters()
    normalize = tokenizer.processor.normalize
    removed = "".join(c for c in controls if normalize(f"a{c}b") == f"{WORD_MARK}ab")
    dropped = "" if tokenizer.keep_accents else combining
    rules: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
        normalizers.NFKC() if tokenizer.keep_accents else normalizers.NFKD(),
    ]
    if dropped + removed:
        rules.append(normalizers.Replace(Regex(rf"\A[{dropped}{removed}]+"), " "))
    if dropped:
        rules.append(normalizers.Replace(Regex(f"[{dropped}]"), ""))
    if tokenizer.lower_case:
        rules += [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if charsmap:  # `Precompiled` does not compose long sequences, like Hangul, so NFC does it
        rules += [normalizers.NFC(), normalizers.Precompiled(charsmap)]
    rules += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(rules)


@cache
def _special_characters() -> tuple[str, str]:
    """Return the combining characters, and those that a SentencePiece model may remove."""
    characters = [chr(number) for number in range(sys.maxunicode + 1)]
    controls = (c for c in characters if unicodedata.category(c) in ("Cc", "Cf"))
    return "".join(filter(unicodedata.combining, characters)), "".join(controls)
