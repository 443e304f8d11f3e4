"""The pieces of paragraphs, and which characters of the text each stands for."""

import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import numpy as np

from albert_core.stage.errors import IntegrityError
from albert_core.text.records import Ints, begins_of
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

_WORD = re.compile(r"\S+")
Span = tuple[int, int]
"""The first character, and the one after the last."""


class ParagraphPieces:
    """The pieces of P paragraphs, T in all, laid end to end, and the characters they stand for.

    A piece has the accents that were dropped after its characters, and no blank at its ends. Pieces
    made of one character, like the three of "½", all have that character. A piece that is only the
    mark of a word's start has none: its end is its begin, which is that of the next piece. Between
    words that were one character ("ﷺ"), however, it has that character.

    Offsets are carried through every step between a text and its pieces: blanks made one space,
    characters decomposed or composed, accents dropped, letters lower-cased
    (`normalise_for_pieces`), then SentencePiece's own normaliser. Nothing is aligned afterwards. A
    text is taken word by word if its pieces are (`Tokenizer.words_are_apart`), and each distinct
    word once; otherwise as a whole.

    Args:
        tokenizer: the tokenizer, whose `encode` gives the same pieces.
        paragraphs: the P texts.

    Raises:
        IntegrityError: the vocabulary has pieces for single bytes of a character.
    """

    def __init__(self, tokenizer: Tokenizer, paragraphs: list[str]) -> None:
        known: dict[str, list[tuple[int, int, int]]] = {}
        rows: list[tuple[int, int, int]] = []
        self.paragraphs = paragraphs
        self.lengths = np.zeros(len(paragraphs), np.int64)
        """(P,), pieces of each paragraph, which sum to T."""
        for number, text in enumerate(paragraphs):
            for unit, place in _units(tokenizer, text):
                if unit not in known:
                    known[unit] = _pieces_of_unit(tokenizer, unit)
                rows += [(piece, begin + place, end + place) for piece, begin, end in known[unit]]
                self.lengths[number] += len(known[unit])
        self.ids, self.begins, self.ends = np.array(rows, np.int64).reshape(-1, 3).T
        """(T,) each: the piece, its first character in its own text, and the one after its last;
        the characters never descend in a text."""
        self.first_pieces = begins_of(self.lengths)
        """(P,), where in all pieces those of each paragraph begin."""
        # All paragraphs as one text, a character between them: offsets then ascend throughout.
        self._shifts = begins_of(np.array([len(text) + 1 for text in paragraphs], np.int64))
        shifts = np.repeat(self._shifts, self.lengths)
        self._begins_in_all, self._ends_in_all = self.begins + shifts, self.ends + shifts

    def covering(self, paragraph: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the first and last piece that contain any of the characters begin..end.

        Args:
            paragraph: (N,), as are the next two: number of the paragraph.
            begin: the first character, in the paragraph.
            end: the character after the last.

        Returns:
            (N,) and (N,), counted in the paragraph; the last is before the first where no piece
            contains any of the characters.
        """
        shift, first_piece = self._shifts[paragraph], self.first_pieces[paragraph]
        first = np.searchsorted(self._ends_in_all, begin + shift, side="right")
        last = np.searchsorted(self._begins_in_all, end + shift, side="left") - 1
        return first - first_piece, last - first_piece

    def characters(self, paragraph: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the first character of piece ``first`` and the one after piece ``last``."""
        first_piece = self.first_pieces[paragraph]
        return self.begins[first + first_piece], self.ends[last + first_piece]


def _units(tokenizer: Tokenizer, text: str) -> list[tuple[str, int]]:
    """Return the parts of a text that are tokenized separately, and where each begins."""
    if not tokenizer.words_are_apart:
        return [(text, 0)]
    return [(found[0], found.start()) for found in _WORD.finditer(text)]


def _pieces_of_unit(tokenizer: Tokenizer, unit: str) -> list[tuple[int, int, int]]:
    """Return id, begin and end of the pieces of a unit.

    SentencePiece reports the origin of each character of the word as it normalises it; the pieces,
    without marks, are those characters in order.
    """
    processor, found, reach = tokenizer.processor, list[tuple[int, int, int]](), 0
    normalised, spans = normalise_with_spans(unit, tokenizer.lower_case, tokenizer.keep_accents)
    # Decomposition may have broken one word of the text into two.
    for word, first in _units(tokenizer, normalised):
        seen, offsets = processor.normalize(word, with_offsets=True)
        visible, end = [(spans[first + offsets[-1]][0],) * 2], offsets[-1]
        for place in reversed(range(len(seen))):
            # If one character became several, they all come from the same place.
            if offsets[place] < offsets[place + 1]:
                end = offsets[place + 1]
            if seen[place] != WORD_MARK:
                visible.append((spans[first + offsets[place]][0], spans[first + end - 1][1]))
        visible.reverse()
        both = (processor.encode(word, out_type=kind, num_threads=1) for kind in (int, str))
        pieces: list[tuple[int, str]] = list(zip(*both, strict=True))
        if tokenizer.split_digit_commas:
            pieces = [p for piece in pieces for p in tokenizer.digit_commas.get(piece[0], [piece])]
        bounds = [*accumulate((len(text.replace(WORD_MARK, "")) for _, text in pieces), initial=0)]
        if bounds[-1] != len(visible) - 1:
            raise IntegrityError(
                f"the pieces {[text for _, text in pieces]} do not make up {seen!r}, which is how "
                f"the vocabulary sees {word!r}: it has pieces for bytes. Train it without "
                "byte_fallback."
            )
        for (piece, _), begin, after in zip(pieces, bounds, bounds[1:], strict=False):
            place = visible[begin][0]
            last = visible[after - 1][1] if after > begin else place
            # Where one character became several words, the mark of the second would end before it.
            reach = max(reach, last)
            found.append((piece, place, reach))
    return found


def normalise_with_spans(text: str, lower_case: bool, keep_accents: bool) -> tuple[str, list[Span]]:
    """Return the text as `normalise_for_pieces` does, and the origin of each of its characters.

    A dropped character belongs to the one before it in the word, and the characters of a composed
    group belong to each character that it becomes. A space comes from all the blanks between two
    words. The last span is empty and marks the end.
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
    if lower_case:  # one letter, "İ", becomes two
        lowered = [each.lower() for each in characters]
        spans = [span for span, low in zip(spans, lowered, strict=True) for _ in low]
    normalised = "".join(characters)
    end = spans[-1][1] if spans else 0
    return normalised.lower() if lower_case else normalised, [*spans, (end, end)]


def _alone(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield the place of each character in the word, the place after it, and its normal form."""
    for place, character in enumerate(word):
        decomposed = unicodedata.normalize("NFKD", character)
        yield place, place + 1, "".join(c for c in decomposed if not unicodedata.combining(c))


def _composing(word: str) -> Iterator[tuple[int, int, str]]:
    """Yield the same for groups of characters that are composed; other marks stand alone."""
    begin, normal = 0, partial(unicodedata.normalize, "NFKC")
    for end in range(1, len(word) + 1):
        together, after = word[begin:end], word[end : end + 1]
        alone = normal(together) + normal(after)
        if after and (unicodedata.combining(after) or normal(together + after) != alone):
            continue
        if normal(together) == together:
            yield from ((begin + n, begin + n + 1, c) for n, c in enumerate(together))
        else:
            yield begin, end, normal(together)
        begin = end
