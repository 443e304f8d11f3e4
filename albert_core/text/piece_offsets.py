"""Pieces of a text, and which characters of the text each of them stands for.

The offsets are carried through every step that lies between a text and its pieces: blanks made one
space, characters decomposed, accents dropped, letters lower-cased (`normalise_for_pieces`), then
SentencePiece's own normaliser. Nothing is searched for or aligned afterwards.

A text is taken word by word if its pieces are (`Tokenizer.words_are_apart`), and each distinct word
once. Otherwise a text is one unit.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import IntegrityError
from albert_core.text.records import Ints, ranges
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

Span = tuple[int, int]
"""The first character, and the one after the last."""

_WORD = re.compile(r"\S+")
_APART = re.compile("[^ ]+")
"""A word for the tokenizer: decomposition may have broken one word of the text into two."""


@dataclass(frozen=True, slots=True)
class PieceSpans:
    """The pieces of N texts, T in all, laid end to end."""

    ids: NDArray[np.int32]
    """(T,), those of `Tokenizer.encode`."""
    begins: Ints
    """(T,), the first character of each piece in its own text; never descending in a text."""
    ends: Ints
    """(T,), the character after its last; never descending in a text. A piece that is only the
    mark of a word's start has no character: its end is its begin, which is that of the next piece.
    Between words that were one character ("ﷺ"), however, it has that character."""
    lengths: Ints
    """(N,), pieces of each text, which sum to T."""

    def of_first(self, num_texts: int) -> "PieceSpans":
        """Return the pieces of the first ``num_texts`` texts."""
        lengths = self.lengths[:num_texts]
        end = int(lengths.sum())
        return PieceSpans(self.ids[:end], self.begins[:end], self.ends[:end], lengths)


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> PieceSpans:
    """Return the pieces of each text and where they stand in it.

    A span includes the accents that were dropped after its characters, and no blank at its ends.
    Pieces made of one character, like the three of "½", all have that character.

    Raises:
        IntegrityError: the vocabulary has pieces for single bytes of a character.
    """
    units, unit_begins, num_units = _units(texts, tokenizer.words_are_apart)
    numbers_by_unit: dict[str, int] = {}
    numbers = np.fromiter(
        (numbers_by_unit.setdefault(unit, len(numbers_by_unit)) for unit in units),
        np.int64,
        len(units),
    )
    found = _pieces_of_units(tokenizer, list(numbers_by_unit))
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    table = np.array(list(chain.from_iterable(found)), np.int64).reshape(-1, 3)
    of_units = lengths[numbers]
    rows = ranges((np.cumsum(lengths) - lengths)[numbers], of_units)
    shifts = np.repeat(unit_begins, of_units)
    bounds = np.append(0, np.cumsum(of_units))[np.append(0, np.cumsum(num_units))]
    return PieceSpans(
        ids=table[rows, 0].astype(np.int32),
        begins=table[rows, 1] + shifts,
        ends=table[rows, 2] + shifts,
        lengths=np.diff(bounds),
    )


def _units(texts: Sequence[str], words_are_apart: bool) -> tuple[list[str], Ints, Ints]:
    """Return the units to encode, where each begins in its text, and the units of each text."""
    if not words_are_apart:
        return list(texts), np.zeros(len(texts), np.int64), np.ones(len(texts), np.int64)
    words = [[*_WORD.finditer(text)] for text in texts]
    counts = np.fromiter(map(len, words), np.int64, len(words))
    begins = (word.start() for word in chain.from_iterable(words))
    return (
        [word[0] for word in chain.from_iterable(words)],
        np.fromiter(begins, np.int64, int(counts.sum())),
        counts,
    )


def _pieces_of_units(tokenizer: Tokenizer, units: list[str]) -> list[list[tuple[int, int, int]]]:
    """Return id, begin and end of the pieces of each unit."""
    normalised = [normalise_with_spans(unit, tokenizer.lower_case) for unit in units]
    words_of = [
        [(word[0], word.start()) for word in _APART.finditer(text)]
        if tokenizer.words_are_apart
        else [(text, 0)]
        for text, _ in normalised
    ]
    distinct = list(dict.fromkeys(word for words in words_of for word, _ in words))
    pieces_of = dict(zip(distinct, _pieces_of_words(tokenizer, distinct), strict=True))
    return [
        _ascending(
            (piece, *_in_text(spans, first + begin, first + end))
            for word, first in words
            for piece, begin, end in pieces_of[word]
        )
        for words, (_, spans) in zip(words_of, normalised, strict=True)
    ]


def _ascending(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return ``pieces`` with no end before an earlier one.

    Where one character became several words, the mark of the second word's start would have one.
    """
    found, reach = [], 0
    for piece, begin, end in pieces:
        reach = max(reach, end)
        found.append((piece, begin, reach))
    return found


def _in_text(spans: list[Span], begin: int, end: int) -> Span:
    """Return where characters begin..end of the normalised text are in the text itself."""
    if begin == end:
        place = spans[begin][0] if begin < len(spans) else spans[-1][1]
        return place, place
    return spans[begin][0], spans[end - 1][1]


def normalise_with_spans(text: str, lower_case: bool) -> tuple[str, list[Span]]:
    """Return what `normalise_for_pieces` does, and where each of its characters is from.

    Dropped characters belong to the character before them in the word. A space comes from all the
    blanks between two words.
    """
    characters: list[str] = []
    spans: list[Span] = []
    for number, word in enumerate(_WORD.finditer(text)):
        begin, end = word.span()
        if number:
            characters.append(" ")
            spans.append((spans[-1][1] if spans else 0, begin))
        if word[0].isascii():
            characters.append(word[0])
            spans.extend((place, place + 1) for place in range(begin, end))
        else:
            _decompose(word[0], begin, characters, spans)
    normalised = "".join(characters)
    # After decomposition, lower-casing changes no length: the one letter that has two ("İ") is
    # an I with an accent.
    return (normalised.lower() if lower_case else normalised), spans


def _decompose(word: str, begin: int, characters: list[str], spans: list[Span]) -> None:
    """Append NFKD of ``word`` without combining characters, and where its characters are from."""
    first = len(spans)
    for place, character in enumerate(word, start=begin):
        kept = [c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c)]
        if kept:
            characters.extend(kept)
            spans.extend([(place, place + 1)] * len(kept))
        elif len(spans) > first:
            spans[-1] = (spans[-1][0], place + 1)


def _pieces_of_words(tokenizer: Tokenizer, words: list[str]) -> list[list[tuple[int, int, int]]]:
    """Return id, begin and end of the pieces of each word of normalised text.

    SentencePiece tells where in the word each character of its own normalised word is from; the
    pieces, without marks, are those characters in order.
    """
    processor = tokenizer.processor
    ids: list[list[int]] = processor.encode(words, num_threads=1)
    texts: list[list[str]] = processor.encode(words, out_type=str, num_threads=1)
    if tokenizer.split_digit_commas:
        ids, texts = _with_digit_commas_split(tokenizer, ids, texts)
    return [
        _placed(word, of_word, pieces, *processor.normalize(word, with_offsets=True))
        for word, of_word, pieces in zip(words, ids, texts, strict=True)
    ]


def _placed(
    word: str, ids: list[int], pieces: list[str], normalised: str, offsets: list[int]
) -> list[tuple[int, int, int]]:
    spans: list[Span] = []
    end = offsets[-1]
    for place in range(len(normalised) - 1, -1, -1):
        # If one character became several, they all come from the same place.
        if offsets[place] < offsets[place + 1]:
            end = offsets[place + 1]
        if normalised[place] != WORD_MARK:
            spans.append((offsets[place], end))
    spans.reverse()
    bounds = [*accumulate((len(p) - p.count(WORD_MARK) for p in pieces), initial=0)]
    if bounds[-1] != len(spans):
        raise IntegrityError(
            f"the pieces {pieces} do not make up {normalised!r}, as the vocabulary sees "
            f"{word!r}: it has pieces for bytes. Train it without byte_fallback."
        )
    spans.append((offsets[-1], offsets[-1]))
    return [
        (piece, spans[first][0], spans[max(first, last - 1)][1 if last > first else 0])
        for piece, first, last in zip(ids, bounds, bounds[1:], strict=False)
    ]


def _with_digit_commas_split(
    tokenizer: Tokenizer, ids: list[list[int]], texts: list[list[str]]
) -> tuple[list[list[int]], list[list[str]]]:
    """Return the pieces as `Tokenizer.digit_commas` has them, and their texts."""
    split = tokenizer.digit_commas
    numbers = {piece for of_word in ids for piece in of_word if piece in split}
    parts = {
        piece: [
            *tokenizer.processor.encode(
                tokenizer.pieces[piece][:-1].replace(WORD_MARK, ""), out_type=str
            ),
            ",",
        ]
        for piece in numbers
    }
    return (
        [[part for piece in of_word for part in split.get(piece, (piece,))] for of_word in ids],
        [
            [part for piece, text in zip(*pair, strict=True) for part in parts.get(piece, (text,))]
            for pair in zip(ids, texts, strict=True)
        ],
    )
