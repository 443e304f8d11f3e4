"""Model folders: weights, configuration and tokenizer, for this project and `transformers`.

A model folder has Hugging Face's layout, so `transformers` and this project read the same one:
config.json, model.safetensors, spiece.model, tokenizer.json, tokenizer_config.json and
special_tokens_map.json. Weights and configuration are in the form of the classes that hold the
model without copies: `BertForPreTraining` for a model of BERT's shape, else `AlbertForPreTraining`
(see `architecture_of`). `AutoModel`, `AutoModelForPreTraining` and `AutoTokenizer` take either.

The tokenizer's class is `PreTrainedTokenizerFast` in both: `BertTokenizer` is WordPiece, and
`AlbertTokenizer` has rules of its own.

The encoder alone in the form of Hugging Face's classes, whatever head stands on it there.

The classes of one family name the encoder's tensors alike: "albert." or "bert." and the rest.

A vocabulary as the files that `transformers.AutoTokenizer` reads, with the same piece ids.

The pieces and scores go into a Unigram model of the `tokenizers` library, the normalisation into
its rules. Three differences to `Tokenizer` remain:

* special pieces written out in a text, like "[MASK]", are recognised, as fill-mask needs it;
* of two splits with the same score the other one may be taken (SentencePiece adds its scores in
  float32, `tokenizers` in float64), in about one line of 20,000;
* `tokenizers` does not decompose about 15 characters that are newer than its Unicode table, and
  loses a mark of combining class 0 right after U+2581 or U+FFFD.
"""

import json
import sys
import unicodedata
from functools import cache
from typing import Any

import safetensors.torch
import tokenizers
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from safetensors import SafetensorError
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.conversion.huggingface import (
    SETTINGS_KEY,
    Architecture,
    architecture_of,
    empty_model,
    from_hf_state,
    hf_config,
    hf_names,
    own_state,
    read_hf_config,
    ties,
    to_hf_state,
)
from albert_core.conversion.model_files import CONFIG, TOKENIZER_CONFIG, WEIGHTS
from albert_core.conversion.tf_release import from_tf_variables, load_tf_release, tf_to_hf
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError, VocabularyError
from albert_core.text.records import SPECIAL_PIECES, UNK
from albert_core.text.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer

NORMAL, USER_DEFINED = 1, 4
"""Types of pieces in a SentencePiece model."""
UNIGRAM = 1

_SPIECE_PROTO = """
name: "spiece.proto" package: "spiece" syntax: "proto2"
message_type { name: "Piece"
  field { name: "piece" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "score" number: 2 label: LABEL_OPTIONAL type: TYPE_FLOAT }
  field { name: "type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 default_value: "1" }
}
message_type { name: "Trainer"
  field { name: "model_type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 default_value: "1" }
}
message_type { name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES }
}
message_type { name: "ModelProto"
  field { name: "pieces" number: 1 label: LABEL_REPEATED type_name: ".spiece.Piece" }
  field { name: "trainer" number: 2 label: LABEL_OPTIONAL type_name: ".spiece.Trainer" }
  field { name: "normalizer" number: 3 label: LABEL_OPTIONAL type_name: ".spiece.Normalizer" }
}
"""
"""The part of sentencepiece_model.proto that is read here; the module generated from the whole
cannot be imported beside protobuf 6."""

_SPECIAL_TOKENS = dict(
    zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        SPECIAL_PIECES,
        strict=True,
    )
)
_CONTROL = ("Cc", "Cf")
"""Unicode categories of the characters that a SentencePiece model may remove."""
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_INSIDE_SPECIAL_PIECE = r"(?<=<)(?=pad>|unk>)|(?<=\[)(?=CLS\]|SEP\]|MASK\])"


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
        "model_max_length": max_seq_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    return {
        SPIECE_MODEL: tokenizer.model,
        "tokenizer.json": fast_tokenizer(tokenizer).to_str().encode(),
        "tokenizer_config.json": json.dumps(config, indent=1).encode(),
        "special_tokens_map.json": json.dumps(_SPECIAL_TOKENS, indent=1).encode(),
    }


def fast_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return ``tokenizer`` as one of the `tokenizers` library.

    It makes [CLS] a [SEP] of one text and [CLS] a [SEP] b [SEP] of two.

    Raises:
        VocabularyError: the SentencePiece model is not a Unigram model.
    """
    proto = _model_proto().FromString(tokenizer.model)
    if proto.trainer.model_type != UNIGRAM:
        raise VocabularyError(
            f"the SentencePiece model has model_type {proto.trainer.model_type}, expected "
            f"{UNIGRAM} (Unigram). Train the vocabulary with model_type=unigram."
        )
    fast = tokenizers.Tokenizer(models.Unigram(_scored_pieces(proto), UNK, byte_fallback=False))
    charsmap = proto.normalizer.precompiled_charsmap
    fast.normalizer = _normalizer(tokenizer, charsmap)
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
    scores: list[float] = [piece.score for piece in proto.pieces if piece.type == NORMAL]
    lowest, highest = min(scores), max(scores)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:
            return max(len(piece.piece.encode()) * highest - 0.1, lowest)
        return float(piece.score)

    return [(piece.piece, score(piece)) for piece in proto.pieces]


def _normalizer(tokenizer: Tokenizer, charsmap: bytes) -> normalizers.Normalizer:
    """Return the rules of `normalise_for_pieces`, then those of the SentencePiece model.

    What is removed from the front of a text becomes a space instead, because `Metaspace` puts a
    word mark only before what stood at the front from the beginning.
    """
    combining = _combining_characters()
    removed_later = _removed_by_sentencepiece(tokenizer)
    rules = [
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
        normalizers.NFKD(),
        normalizers.Replace(Regex(rf"\A[{combining}{removed_later}]+"), " "),
        normalizers.Replace(Regex(f"[{combining}]"), ""),
    ]
    if tokenizer.lower_case:
        rules += [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if charsmap:  # `Precompiled` does not compose long sequences, like Hangul, so NFC does it
        rules += [normalizers.NFC(), normalizers.Precompiled(charsmap)]
    rules += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(rules)


@cache
def _combining_characters() -> str:
    characters = map(chr, range(sys.maxunicode + 1))
    return "".join(c for c in characters if unicodedata.combining(c))


@cache
def _control_characters() -> str:
    characters = map(chr, range(sys.maxunicode + 1))
    return "".join(c for c in characters if unicodedata.category(c) in _CONTROL)


def _removed_by_sentencepiece(tokenizer: Tokenizer) -> str:
    normalize = tokenizer.processor.normalize
    return "".join(c for c in _control_characters() if normalize(f"a{c}b") == f"{WORD_MARK}ab")


@cache
def _model_proto() -> Any:
    """Return the class of SentencePiece's `ModelProto`, with the fields that are read here."""
    file = text_format.Parse(_SPIECE_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("spiece.ModelProto"))


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
