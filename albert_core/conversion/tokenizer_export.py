"""A vocabulary as the files that `transformers.AutoTokenizer` reads, with the same piece ids.

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

import tokenizers
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from albert_core.contract.errors import VocabularyError
from albert_core.contract.records import SPECIAL_PIECES, UNK
from albert_core.contract.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer

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


def _removed_by_sentencepiece(tokenizer: Tokenizer) -> str:
    characters = (
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in _CONTROL
    )
    normalize = tokenizer.processor.normalize
    return "".join(c for c in characters if normalize(f"a{c}b") == f"{WORD_MARK}ab")


@cache
def _model_proto() -> Any:
    """Return the class of SentencePiece's `ModelProto`, with the fields that are read here."""
    file = text_format.Parse(_SPIECE_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("spiece.ModelProto"))
