"""Pieces of a text, and which characters of the text each of them stands for.

The offsets are carried through every step that lies between a text and its pieces: blanks made one
space, characters decomposed or composed, accents dropped, letters lower-cased
(`normalise_for_pieces`), then SentencePiece's own normaliser. Nothing is searched for or aligned
afterwards.

A text is taken word by word if its pieces are (`Tokenizer.words_are_apart`), and each distinct word
once. Otherwise a text is one unit.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import IntegrityError
from albert_core.text.records import Ints
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


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> PieceSpans:
    """Return the pieces of each text and where they stand in it.

    A span includes the accents that were dropped after its characters, and no blank at its ends.
    Pieces made of one character, like the three of "½", all have that character.

    Raises:
        IntegrityError: the vocabulary has pieces for single bytes of a character.
    """
    known: dict[str, list[tuple[int, int, int]]] = {}
    rows: list[tuple[int, int, int]] = []
    lengths = np.zeros(len(texts), np.int64)
    for number, text in enumerate(texts):
        words = [(word[0], word.start()) for word in _WORD.finditer(text)]
        for unit, place in words if tokenizer.words_are_apart else [(text, 0)]:
            if unit not in known:
                known[unit] = _pieces_of_unit(tokenizer, unit)
            rows += [(piece, begin + place, end + place) for piece, begin, end in known[unit]]
            lengths[number] += len(known[unit])
    ids, begins, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return PieceSpans(ids.astype(np.int32), begins, ends, lengths)


def _pieces_of_unit(tokenizer: Tokenizer, unit: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of the pieces of a unit."""
    normalised, spans = normalise_with_spans(unit, tokenizer.lower_case, tokenizer.keep_accents)
    words = [(word[0], word.start()) for word in _APART.finditer(normalised)]
    found, reach = [], 0
    for word, first in words if tokenizer.words_are_apart else [(normalised, 0)]:
        for piece, begin, end in _pieces_of_word(tokenizer, word):
            place, after = _in_text(spans, first + begin, first + end)
            # Where one character became several words, the mark of the second would end before it.
            reach = max(reach, after)
            found.append((piece, place, reach))
    return found


def _in_text(spans: list[Span], begin: int, end: int) -> Span:
    """Return where characters begin..end of the normalised text are in the text itself."""
    if begin == end:
        place = spans[begin][0] if begin < len(spans) else spans[-1][1]
        return place, place
    return spans[begin][0], spans[end - 1][1]


def normalise_with_spans(
    text: str, lower_case: bool, keep_accents: bool = False
) -> tuple[str, list[Span]]:
    """Return what `normalise_for_pieces` does, and where each of its characters is from.

    Dropped characters belong to the character before them in the word, and of characters that are
    composed all belong to each that comes of them. A space comes from all the blanks between two
    words.
    """
    characters: list[str] = []
    spans: list[Span] = []
    for number, word in enumerate(_WORD.finditer(text)):
        begin = word.start()
        if number:
            characters.append(" ")
            spans.append((spans[-1][1] if spans else 0, begin))
        first = len(spans)
        for place, end, kept in _composing(word[0]) if keep_accents else _alone(word[0]):
            characters.extend(kept)
            spans.extend([(begin + place, begin + end)] * len(kept))
            if not kept and len(spans) > first:
                spans[-1] = (spans[-1][0], begin + end)
    normalised = "".join(characters)
    if not lower_case:
        return normalised, spans
    # One letter, "İ", becomes two.
    longer = [span for c, span in zip(normalised, spans, strict=True) for _ in c.lower()]
    return normalised.lower(), longer


def _alone(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield each character's place in the word, the place after it, and what it becomes."""
    for place, character in enumerate(word):
        decomposed = unicodedata.normalize("NFKD", character)
        yield place, place + 1, "".join(c for c in decomposed if not unicodedata.combining(c))


def _composing(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield the same for characters that are composed together; marks that stay are alone."""
    begin = 0
    for end in range(1, len(word) + 1):
        together, after = word[begin:end], word[end : end + 1]
        composed = unicodedata.normalize("NFKC", together)
        alone = composed + unicodedata.normalize("NFKC", after)
        if after and (
            unicodedata.combining(after) or unicodedata.normalize("NFKC", together + after) != alone
        ):
            continue
        if composed == together:
            yield from ((begin + n, begin + n + 1, c) for n, c in enumerate(together))
        else:
            yield begin, end, composed
        begin = end


def _pieces_of_word(tokenizer: Tokenizer, word: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of the pieces of a word of normalised text.

    SentencePiece tells where in the word each character of its own normalised word is from; the
    pieces, without marks, are those characters in order.
    """
    processor = tokenizer.processor
    normalised, offsets = processor.normalize(word, with_offsets=True)
    spans: list[Span] = []
    end = offsets[-1]
    for place in range(len(normalised) - 1, -1, -1):
        # If one character became several, they all come from the same place.
        if offsets[place] < offsets[place + 1]:
            end = offsets[place + 1]
        if normalised[place] != WORD_MARK:
            spans.append((offsets[place], end))
    spans.reverse()
    both = (processor.encode(word, out_type=kind, num_threads=1) for kind in (int, str))
    pieces: list[tuple[int, str]] = list(zip(*both, strict=True))
    if tokenizer.split_digit_commas:
        pieces = [p for piece in pieces for p in tokenizer.digit_commas.get(piece[0], [piece])]
    bounds = [*accumulate((len(text) - text.count(WORD_MARK) for _, text in pieces), initial=0)]
    if bounds[-1] != len(spans):
        raise IntegrityError(
            f"the pieces {[text for _, text in pieces]} do not make up {normalised!r}, as the "
            f"vocabulary sees {word!r}: it has pieces for bytes. Train it without byte_fallback."
        )
    spans.append((offsets[-1], offsets[-1]))
    return [
        (piece, spans[first][0], spans[max(first, last - 1)][1 if last > first else 0])
        for (piece, _), first, last in zip(pieces, bounds, bounds[1:], strict=False)
    ]
