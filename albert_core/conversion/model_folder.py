"""Model folders: weights, configuration and tokenizer, for this project and `transformers`.

A model folder has Hugging Face's layout, so that `transformers` and this project read the same one:
config.json, model.safetensors, spiece.model, tokenizer.json, tokenizer_config.json and
special_tokens_map.json. Weights and configuration are in the form of the classes that hold the
model without copies: `BertForPreTraining` for a model of BERT's shape, else `AlbertForPreTraining`
(see `architecture_of`). `AutoModel`, `AutoModelForPreTraining` and `AutoTokenizer` read either.

The tokenizer's class is `PreTrainedTokenizerFast` in both: `BertTokenizer` is WordPiece, and
`AlbertTokenizer` has rules of its own. The pieces and scores of the vocabulary become a Unigram
model of the `tokenizers` library, its normalisation becomes rules. Three differences to
`Tokenizer` remain:

* special pieces written out in a text, like "[MASK]", are recognised, as fill-mask needs it;
* of two splits with the same score the other one may be chosen (SentencePiece adds its scores in
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
from safetensors import SafetensorError
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from albert_core.config import ModelSettings
from albert_core.conversion import huggingface
from albert_core.conversion.model_files import CONFIG, TOKENIZER_CONFIG, WEIGHTS
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.stage import manifest, storage
from albert_core.stage.errors import IntegrityError, VocabularyError
from albert_core.text.records import SPECIAL_PIECES, UNK
from albert_core.text.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer

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
    twice = huggingface.ties(huggingface.architecture_of(settings))
    state = {
        hf: t.cpu().clone() for hf, t in huggingface.to_hf_state(model).items() if hf not in twice
    }
    files = {
        WEIGHTS: safetensors.torch.save(state, metadata={"format": "pt"}),
        CONFIG: json.dumps(huggingface.hf_config(settings, vocab_size), indent=1).encode(),
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
    prefix = f"{huggingface.architecture_of(encoder.settings)}."
    return {
        name: t for name, t in huggingface.to_hf_state(model).items() if name.startswith(prefix)
    }


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
    state = huggingface.canonical_state(state, architecture)
    heads = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
    of_encoder = {name: state[name] for name in state.keys() - heads.keys()}
    tensors = huggingface.from_hf_state(of_encoder, settings, where, architecture)
    if "encoder.pooler.weight" not in tensors:
        raise IntegrityError(f"{where} has no pooler. `albert convert` writes one with a new one.")
    own = {name.removeprefix("encoder."): tensor for name, tensor in tensors.items()}
    with torch.device("meta"):
        encoder = AlbertModel(settings, len(own["embeddings.word.weight"]))
    encoder.load_state_dict(own, assign=True)
    return encoder, heads


def read_model_folder(
    folder: str,
) -> tuple[dict[str, Tensor], ModelSettings, huggingface.Architecture]:
    """Return the tensors in ``folder`` by Hugging Face's names, and what config.json describes.

    Raises:
        IntegrityError: a file is missing or damaged.
        ConfigError: config.json describes a model that this project does not have.
    """
    config = _read_json(folder, CONFIG)
    settings, architecture = huggingface.read_hf_config(config, storage.join(folder, CONFIG))
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
