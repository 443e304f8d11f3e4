"""Text to piece ids: ALBERT's normalisation, then SentencePiece; and which pieces start words."""

import threading
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import chain, count, pairwise, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sentencepiece
from numpy.typing import NDArray

from albert_core.stage import errors, manifest, storage
from albert_core.stage.results import VOCAB, ExamplesResult, VocabularyResult
from albert_core.text.records import SPECIAL_PIECES, Bools, Ints, SmallInts, begins_of

SPIECE_MODEL = "spiece.model"
WORD_MARK = "▁"
MAX_PIECES = 1 << 21
"""Capacity of a table of words: half a million words in 100 MB. A full table is emptied."""
_WORD_OF_ITS_OWN = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ASCII_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ASCII = bytes(range(0x80))
_FEW = 32
_CHANGES, _VANISHES = 1, 2
"""Roles of a character: NFKD changes it; it is an accent or a blank."""
_BLANKS = bytes.maketrans(b"\t\v\f\r\x1c\x1d\x1e\x1f", b" " * 8)
"""ASCII blanks other than space and line feed; all become spaces."""
_LOWER_CASE_AND_BLANKS = bytes(range(256)).lower().translate(_BLANKS)


def normalise_for_pieces(text: str, lower_case: bool, keep_accents: bool = False) -> str:
    """Return ``text`` as the vocabulary sees it: one line, NFKD without accents, lower-cased.

    With ``keep_accents`` it is NFKC and keeps the marks that Japanese, Hindi or Thai need.

    Source: google-research/albert `tokenization.py`, `preprocess_text`; `keep_accents` is as in
    the AlbertTokenizer of `transformers`.
    """
    text = (_composed if keep_accents else _decomposed)(" ".join(text.split()))
    return text.lower() if lower_case else text


def normalise_document(text: bytes, lower_case: bool, keep_accents: bool = False) -> bytes:
    """Return UTF-8 ``text`` with each line normalised as by `normalise_for_pieces`.

    Only blanks at the ends of lines and runs of blanks are kept.
    """
    if not text.isascii():
        text = (_composed if keep_accents else _decomposed)(text.decode()).encode()
        foreign = text.translate(None, _ASCII).decode()
        if lower_case and foreign != foreign.lower():
            text = text.decode().lower().encode()
    return text.translate(_LOWER_CASE_AND_BLANKS if lower_case else _BLANKS)


def _decomposed(text: str) -> str:
    """Return NFKD of ``text`` without combining characters, and with all blanks as spaces.

    Most texts have few distinct characters that change, and replacing them one by one is faster.
    """
    if text.isascii():
        return text
    foreign = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    found = _only(_CHANGES, foreign.decode("utf-8", "surrogatepass"))
    if len(found) > len(text) // 8 or len(frozenset(found)) > _FEW:
        text = unicodedata.normalize("NFKD", text)
        found = _only(_VANISHES, text)
    for character in frozenset(found):
        text = text.replace(character, _decomposed_character(character))
    return text


@cache
def _decomposed_character(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    gone = _accents_and_blanks()
    return "".join(c if c not in gone else " " if c.isspace() else "" for c in parts)


def _only(role: int, text: str) -> str:
    """Return the characters of ``text`` that have the role, and all above U+FFFF."""
    codes = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    found = codes[(_roles()[codes] & role) != 0]
    return str(found.tobytes(), "utf-16-le", "surrogatepass")


@cache
def _roles() -> NDArray[np.uint8]:
    """Return uint8 (0x10000,): what `_decomposed` does to each character of the basic plane."""
    roles = np.zeros(0x10000, np.uint8)
    for code, character in enumerate(map(chr, range(0x10000))):
        if unicodedata.normalize("NFKD", character) != character:
            roles[code] = _CHANGES
    roles[[ord(c) for c in _accents_and_blanks() if c <= "\uffff"]] |= _CHANGES | _VANISHES
    roles[0xD800:0xE000] = _CHANGES | _VANISHES  # halves of other characters
    return roles


def _composed(text: str) -> str:
    """Return NFKC of ``text`` with all blanks as spaces."""
    text = unicodedata.normalize("NFKC", text)
    for blank in filter(str.isspace, frozenset(_only(_VANISHES, text))):
        text = text.replace(blank, " ")
    return text


def num_needed_marks(text: str) -> int:
    """Count the combining marks of ``text`` that are not mere accents but change letters or words.

    Examples are the voicing of kana and the marks of Thai and of the scripts of India. Those of
    Arabic and Hebrew do not count, because they are seldom written.
    """
    if text.isascii():
        return 0
    text = unicodedata.normalize("NFD", text)
    return sum(map(text.count, _needed_marks().intersection(text)))


@cache
def _needed_marks() -> frozenset[str]:
    others = ("COMBINING", "ARABIC", "HEBREW", "SYRIAC")
    marks = filter(unicodedata.combining, _accents_and_blanks())
    named = {mark: unicodedata.name(mark, "COMBINING") for mark in marks}
    return frozenset(m for m, n in named.items() if not n.startswith(others) or "KATAKANA" in n)


@cache
def _accents_and_blanks() -> frozenset[str]:
    """Return all combining characters and the blanks beyond ASCII."""
    known = map(chr, range(0x80, 0x20000))  # the higher planes have none
    return frozenset(c for c in known if unicodedata.combining(c) or c.isspace())


def starts_word(piece: str) -> bool:
    """Return whether ``piece`` starts a new word for whole-word masking.

    Source: google-research/albert `create_pretraining_data.py`, `_is_start_piece_sp`.
    """
    if piece.startswith((WORD_MARK, "<")) or piece in _WORD_OF_ITS_OWN:
        return True
    return any(c not in _ASCII_LETTERS and c not in _WORD_OF_ITS_OWN for c in piece)


class WordTable:
    """Maps words to the ids of their pieces. Each word is split only when it first occurs.

    Any number of threads may share a table.

    Args:
        encode: returns the ids of each word in a list, which may depend only on the word. Words are
            bytes in UTF-8, which SentencePiece and Python's tables take faster than text.
    """

    def __init__(self, encode: Callable[[list[bytes]], list[list[int]]]) -> None:
        self._encode = encode
        self._adding = threading.Lock()  # guards numbers and table
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._table = _Table(np.zeros(0, np.int32), np.zeros(1, np.int64))

    def pieces_of(self, words: pa.Array) -> tuple[SmallInts, Ints]:
        """Return the pieces of W words, given as an array of strings.

        Returns:
            Piece ids, int32 (N,), concatenated; and the number of pieces of each word, int64 (W,),
            which sum to N.
        """
        distinct = words.cast(pa.large_binary()).dictionary_encode()
        with self._adding:
            numbers = self._number(distinct.dictionary.to_pylist())
            table = self._table
        begins = table.bounds[numbers]
        word = distinct.indices.to_numpy()
        lengths = (table.bounds[numbers + 1] - begins)[word]
        # Index i of the result is index i - shift of the table, where each word has its own shift.
        shifts = begins_of(lengths) - begins[word]
        return table.pieces[np.arange(lengths.sum()) - np.repeat(shifts, lengths)], lengths

    def _number(self, words: list[bytes]) -> Ints:
        """Return the table index of each word, after adding those that are missing."""
        if len(self._table.pieces) > MAX_PIECES:
            self._clear()
        numbers = np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int64, len(words))
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            numbers[unknown] = np.arange(len(unknown)) + len(self._table.bounds) - 1
            self._add([words[place] for place in unknown.tolist()])
        return numbers

    def _add(self, words: list[bytes]) -> None:
        encoded = self._encode(words)
        before = self._table
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        pieces = np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum()))
        # The numbers come last, so that even after an error every numbered word is in the table.
        self._table = _Table(
            np.append(before.pieces, pieces),
            np.append(before.bounds, before.bounds[-1] + np.cumsum(lengths)),
        )
        self._numbers.update(zip(words, count(len(before.bounds) - 1), strict=False))


class _Table(NamedTuple):
    """The pieces of all words, concatenated; never changed, only replaced."""

    pieces: SmallInts
    bounds: Ints
    """Word n has pieces[bounds[n] : bounds[n + 1]]."""


class Tokenizer:
    """A SentencePiece model with ALBERT's special pieces, which any number of threads may share.

    From Python 3.12 on, two threads may compute a `cached_property` twice; both get the same value.
    The growing table of words has a lock.

    Args:
        model: serialised SentencePiece model.
        lower_case: whether text is lower-cased before it is split.
        split_digit_commas: whether the comma of a piece like "1948," becomes its own piece, as in
            google-research/albert; SentencePiece and Hugging Face do not split it.
        keep_accents: whether combining marks are kept, which google-research/albert drops.

    Raises:
        IntegrityError: the model does not have ALBERT's special pieces at ids 0 to 4.
    """

    def __init__(
        self,
        model: bytes,
        lower_case: bool = True,
        split_digit_commas: bool = False,
        keep_accents: bool = False,
    ) -> None:
        self.model = model
        self.lower_case = lower_case
        self.keep_accents = keep_accents
        self.split_digit_commas = split_digit_commas
        # If two splits of a word are equally probable ("k", "kk" or "kk", "k"), SentencePiece's
        # choice depends on rounding in the rest of the sentence. The table makes it the choice for
        # the word alone. One sentence in 25,000 has such a word.
        self._words = WordTable(self._encode_words)
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            ids = list(range(self.vocab_size))
            self.pieces: list[str] = self.processor.id_to_piece(ids)
            """The V pieces, by id."""
        except (RuntimeError, UnicodeDecodeError) as error:  # the latter of a damaged piece
            raise errors.IntegrityError(
                f"the vocabulary is not a SentencePiece model ({error}). Train it again."
            ) from error
        found = tuple(self.pieces[: len(SPECIAL_PIECES)])
        if found != SPECIAL_PIECES:
            raise errors.IntegrityError(
                f"the vocabulary begins with {found}, expected {SPECIAL_PIECES}. "
                "Train it with this project, or use the published 30k-clean.model."
            )

    @classmethod
    def load(
        cls,
        folder: str,
        lower_case: bool = True,
        split_digit_commas: bool = False,
        keep_accents: bool = False,
    ) -> "Tokenizer":
        """Return the tokenizer of the vocabulary or model folder at ``folder`` (a URI).

        Raises:
            IntegrityError: the file changed since a stage wrote it, or is not such a model.
        """
        model = storage.read_bytes(manifest.checked(storage.join(folder, SPIECE_MODEL)))
        return cls(model, lower_case, split_digit_commas, keep_accents)

    @classmethod
    def of_examples(cls, examples: manifest.Manifest) -> "Tokenizer":
        """Return the tokenizer that the examples were made with."""
        uri = examples.input_manifests[VOCAB]
        made = manifest.read_manifest(uri).result_as(VocabularyResult)
        fidelity = examples.result_as(ExamplesResult).fidelity
        return cls.load(uri.rpartition("/")[0], *made.tokenizer_options(fidelity))

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes, bool, bool, bool]]:
        """Pickle as the bytes of the model."""
        settings = (self.lower_case, self.split_digit_commas, self.keep_accents)
        return Tokenizer, (self.model, *settings)

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces including special ones."""
        return int(self.processor.vocab_size())

    @cached_property
    def starts_word(self) -> Bools:
        """bool (V,): whether each piece starts a new word."""
        return np.array([starts_word(piece) for piece in self.pieces])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the piece ids of each text, without special pieces.

        Special pieces that are written out in a text, like "[MASK]", are split like other text.
        """
        how = (self.lower_case, self.keep_accents)
        lines = [normalise_for_pieces(text, *how) for text in texts]
        pieces, lengths = self._pieces_of(pa.array(lines, pa.large_string()))
        ids, bounds = pieces.tolist(), np.cumsum(lengths).tolist()
        return [ids[begin:end] for begin, end in pairwise([0, *bounds])]

    def encode_lines(self, texts: Sequence[bytes]) -> tuple[SmallInts, Ints, Ints]:
        """Return the piece ids of every line of every UTF-8 text, concatenated.

        Returns:
            Piece ids, int32 (N,), as `encode` gives for each line; the number of pieces of each
            line, int64 (L,), which sum to N; and the number of lines of each text, int64
            (len(texts),), which sum to L.
        """
        how = (self.lower_case, self.keep_accents)
        normalised = [normalise_document(text, *how) for text in texts]
        lines = pc.split_pattern(pa.array(normalised, pa.large_string()), "\n")
        pieces, lengths = self._pieces_of(lines.flatten())
        return pieces, lengths, pc.list_value_length(lines).to_numpy()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        return str(self.processor.decode(list(map(int, ids))))

    def _pieces_of(self, lines: pa.Array) -> tuple[SmallInts, Ints]:
        """Return the ids of all L lines, concatenated, and the number in each, int64 (L,)."""
        if not self.words_are_apart:
            return self._words.pieces_of(lines)
        words = pc.ascii_split_whitespace(lines)
        pieces, lengths = self._words.pieces_of(words.flatten())
        line_ends = np.append(0, np.cumsum(pc.list_value_length(words)))
        return pieces, np.diff(np.append(0, np.cumsum(lengths))[line_ends])

    @cached_property
    def words_are_apart(self) -> bool:
        """Whether the pieces of a line are those of its words in order.

        This holds unless the model was trained to keep blanks or to have pieces that span words.
        """
        blanks, *words = self.processor.encode([" a  a ", "a", "a"])
        return bool(blanks == list(chain(*words))) and not any(
            WORD_MARK in p[1:] for p in self.pieces
        )

    def _encode_words(self, words: list[bytes]) -> list[list[int]]:
        encoded: list[list[int]] = self.processor.encode(words, num_threads=1)
        if not self.split_digit_commas:
            return encoded
        split = self.digit_commas
        return [
            [part for piece in ids for part, _ in split.get(piece, [(piece, "")])]
            for ids in encoded
        ]

    @cached_property
    def digit_commas(self) -> dict[int, list[tuple[int, str]]]:
        """Each piece that ends in a digit and a comma -> ids and texts of the reference's pieces.

        The part before the comma is split again as a text of its own, so that a piece from inside
        a word gets the mark of a word's start: "1," becomes "▁1" and ",". The reference intends to
        remove that mark, but compares bytes with text.

        Source: google-research/albert `tokenization.py`, `encode_pieces`.
        """
        found = {}
        for number, piece in enumerate(self.pieces):
            if piece[-1:] == "," and piece[-2:-1].isdigit():
                before = piece[:-1].replace(WORD_MARK, "")
                parts = (self.processor.encode(before, out_type=kind) for kind in (int, str))
                comma = (self.processor.piece_to_id(","), ",")
                found[number] = [*zip(*parts, strict=True), comma]
        return found
