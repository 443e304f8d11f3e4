"""Text to piece ids: ALBERT's normalisation, then SentencePiece; and which pieces start a word."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from albert_core.contract import storage
from albert_core.contract.errors import IntegrityError
from albert_core.contract.records import SPECIAL_PIECES

SPIECE_MODEL = "spiece.model"
WORD_MARK = "▁"
_WORD_OF_ITS_OWN = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ASCII_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SPACES = re.compile(r"\s+")


def normalise_for_pieces(text: str, lower_case: bool) -> str:
    """Return ``text`` as the vocabulary sees it: one line, NFKD without accents, lower-cased.

    Source: REFERENCE.md B.1 (`preprocess_text` of the reference).
    """
    text = _SPACES.sub(" ", text).strip()
    if not text.isascii():
        text = "".join(
            c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
        )
    return text.lower() if lower_case else text


def starts_word(piece: str) -> bool:
    """Return whether ``piece`` opens a new word for whole-word masking.

    Source: REFERENCE.md B.6 (`_is_start_piece_sp` of the reference).
    """
    if piece.startswith((WORD_MARK, "<")) or piece in _WORD_OF_ITS_OWN:
        return True
    return any(c not in _ASCII_LETTERS and c not in _WORD_OF_ITS_OWN for c in piece)


class Tokenizer:
    """A SentencePiece model with ALBERT's special pieces.

    Args:
        model: serialised SentencePiece model.
        lower_case: whether the text is lower-cased before it is split.

    Raises:
        IntegrityError: the model does not have ALBERT's special pieces at ids 0 to 4.
    """

    def __init__(self, model: bytes, lower_case: bool = True) -> None:
        self.model = model
        self.lower_case = lower_case
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise IntegrityError(
                f"the vocabulary is no SentencePiece model ({error}). Train it again."
            ) from error
        size = min(len(SPECIAL_PIECES), self.vocab_size)
        found = tuple(self.processor.id_to_piece(i) for i in range(size))
        if found != SPECIAL_PIECES:
            raise IntegrityError(
                f"the vocabulary begins with {found}, expected {SPECIAL_PIECES}. "
                "Train it with this project, or use the published 30k-clean.model."
            )

    @classmethod
    def load(cls, folder: str, lower_case: bool = True) -> "Tokenizer":
        """Return the tokenizer of the vocabulary or model folder at ``folder`` (a URI)."""
        return cls(storage.read_bytes(storage.join(folder, SPIECE_MODEL)), lower_case)

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes, bool]]:
        """Travel to worker processes as the model's bytes."""
        return Tokenizer, (self.model, self.lower_case)

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces, special ones included."""
        return int(self.processor.vocab_size())

    @cached_property
    def pieces(self) -> list[str]:
        """The V pieces, by id."""
        return [self.processor.id_to_piece(i) for i in range(self.vocab_size)]

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """bool (V,): whether each piece opens a new word."""
        return np.array([starts_word(piece) for piece in self.pieces])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the piece ids of each text, without special pieces.

        Special pieces written out in a text, like "[MASK]", are split as ordinary text.
        """
        return self.processor.encode(  # type: ignore[no-any-return]
            [normalise_for_pieces(text, self.lower_case) for text in texts], num_threads=1
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        return str(self.processor.decode(list(map(int, ids))))
