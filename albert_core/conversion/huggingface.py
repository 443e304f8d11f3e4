"""Weights and config.json in the form of Hugging Face's ALBERT and BERT classes, and back.

`AlbertForPreTraining` and `BertForPreTraining` have different names for the tensors of one model;
a `_Layout` lists those of a class. Every model fits the ALBERT classes: where its layers do not
share everything, and where the reference needs no projection (E = H), that layout holds copies and
an identity, which are undone when it is read. A model of BERT's shape fits the BERT classes as is.

Source: `modeling_albert.py` and `modeling_bert.py` of transformers 5.23.
"""

import json
import logging
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import safetensors.torch
import tokenizers
import torch
from safetensors import SafetensorError
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.conversion.model_files import CONFIG, TOKENIZER_CONFIG, WEIGHTS
from albert_core.model.albert import LAYER_NORM_EPSILON, AlbertForPretraining, AlbertModel
from albert_core.stage import manifest, storage
from albert_core.stage.errors import ConfigError, IntegrityError, VocabularyError
from albert_core.text.records import CLS, PAD, SEP, SPECIAL_PIECES, UNK
from albert_core.text.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer

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


_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_SPECIAL_TOKENS = dict(zip(_SPECIAL_NAMES, SPECIAL_PIECES, strict=True))
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_INSIDE_SPECIAL_PIECE = r"(?<=<)(?=pad>|unk>)|(?<=\[)(?=CLS\]|SEP\]|MASK\])"


def save_model_folder(model: AlbertForPretraining, tokenizer: Tokenizer, folder: str) -> None:
    """Write ``model`` and ``tokenizer`` to ``folder`` (a URI), for us and for `transformers`.

    Args:
        model: on any device.
        tokenizer: the vocabulary that the model was trained with.
        folder: overwritten where it exists.

    Raises:
        IntegrityError: the model's vocabulary does not have the tokenizer's size.
        VocabularyError: the tokenizer is not a Unigram model.
    """
    settings, vocab_size = model.encoder.settings, len(model.masked_lm.bias)
    check_vocabulary(vocab_size, tokenizer, "the model")
    twice = ties(architecture_of(settings))
    state = {hf: t.cpu().clone() for hf, t in to_hf_state(model).items() if hf not in twice}
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(hf_config(settings, vocab_size), indent=1).encode(),
        **tokenizer_files(tokenizer, settings.max_position_embeddings),
    }
    for name, content in files.items():
        storage.write_bytes(storage.join(folder, name), content)


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer, where: str) -> None:
    """Raise IntegrityError unless a model of ``vocab_size`` pieces fits ``tokenizer``."""
    if vocab_size != tokenizer.vocab_size:
        raise IntegrityError(
            f"{where} has {vocab_size} pieces, its tokenizer {tokenizer.vocab_size}. Use the "
            "vocabulary that the model was trained with."
        )


def encoder_to_hf_state(encoder: AlbertModel) -> dict[str, Tensor]:
    """Return the encoder's tensors, not copies, by the names of its `architecture_of` classes."""
    with torch.device("meta"):
        model = AlbertForPretraining(encoder.settings, len(encoder.embeddings.word.weight))
    model.encoder = encoder
    prefix = f"{architecture_of(encoder.settings)}."
    return {name: t for name, t in to_hf_state(model).items() if name.startswith(prefix)}


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
    state = canonical_state(state, architecture)
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


def read_model_folder(
    folder: str,
) -> tuple[dict[str, Tensor], ModelSettings, Architecture]:
    """Return the tensors in ``folder`` by Hugging Face's names, and what config.json describes.

    Raises:
        IntegrityError: a file is missing or damaged.
        ConfigError: config.json describes a model that this project does not have.
    """
    config = _read_json(folder, CONFIG)
    settings, architecture = read_hf_config(config, storage.join(folder, CONFIG))
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
    config = _read_json(folder, TOKENIZER_CONFIG)
    lower_case, keep_accents = config.get("do_lower_case", True), config.get("keep_accents", False)
    return Tokenizer(_read(folder, SPIECE_MODEL), lower_case, keep_accents=keep_accents)


def _read_json(folder: str, name: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(_read(folder, name))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{storage.join(folder, name)} is not JSON ({error}). Copy or write it again."
        ) from error
    return values


def _read(folder: str, name: str) -> bytes:
    uri = storage.join(folder, name)
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing: a model folder has {CONFIG}, {WEIGHTS}, {SPIECE_MODEL} and "
            f"{TOKENIZER_CONFIG}. Copy the missing file there."
        )
    return storage.read_bytes(manifest.checked(uri))


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
    fast = tokenizers.Tokenizer(models.Unigram(_scored_pieces(proto), UNK, byte_fallback=False))
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


def _scored_pieces(proto: Any) -> list[tuple[str, float]]:
    """Return every piece with the score that SentencePiece gives it when it splits a text."""
    scores: list[float] = [piece.score for piece in proto.pieces if piece.type == piece.NORMAL]
    lowest, highest = min(scores), max(scores)

    def score(piece: Any) -> float:
        if piece.type == piece.USER_DEFINED:
            return max(len(piece.piece.encode()) * highest - 0.1, lowest)
        return float(piece.score)

    return [(piece.piece, score(piece)) for piece in proto.pieces]


def _normalizer(tokenizer: Tokenizer, charsmap: bytes) -> normalizers.Normalizer:
    """Return the rules of `normalise_for_pieces`, then those of the SentencePiece model.

    What is removed from the front of a text becomes a space instead, because `Metaspace` puts a
    word mark only before what stood at the front from the beginning.
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
