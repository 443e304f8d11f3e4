"""Where in a paragraph's pieces the annotated answers stand.

An answer that begins or ends inside a piece gets the whole piece: "gold" in "golden" is "golden".
Most such places are slips of the annotation, where the same text stands by itself elsewhere in
the paragraph ("7" marked in "17"): the nearest such place is then the target.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.text.piece_offsets import PieceSpans
from albert_core.text.ragged import Ints

NO_PIECE = -1


@dataclass(frozen=True, slots=True)
class SpanTargets:
    """The pieces of the first answer to each of N questions."""

    first: Ints
    """(N,), the answer's first piece, counted in its paragraph; NO_PIECE if there is no answer,
    or none of it became a piece."""
    last: Ints
    """(N,), its last piece, which is not before the first."""
    moved: NDArray[np.bool_]
    """(N,), whether the target is another place of the same text than the annotated one."""


class ParagraphPieces:
    """The pieces of P paragraphs, found by the characters that they stand for.

    Args:
        paragraphs: P texts.
        spans: their pieces.
    """

    def __init__(self, paragraphs: list[str], spans: PieceSpans) -> None:
        self.paragraphs, self.spans = paragraphs, spans
        self.first_pieces = np.cumsum(spans.lengths) - spans.lengths
        """(P,), where in all pieces those of each paragraph begin."""
        # All paragraphs as one text, a character between them: offsets then ascend throughout.
        sizes = np.fromiter(map(len, paragraphs), np.int64, len(paragraphs)) + 1
        self._shifts = np.cumsum(sizes) - sizes
        shifts = np.repeat(self._shifts, spans.lengths)
        self._begins, self._ends = spans.begins + shifts, spans.ends + shifts

    def covering(self, paragraph: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the first and last piece that has any of the characters begin..end.

        Args:
            paragraph: (N,), as are the next two: number of the paragraph.
            begin: the first character, in the paragraph.
            end: the character after the last.

        Returns:
            (N,) and (N,), counted in the paragraph; the last is before the first where no piece
            has any of the characters.
        """
        shift, first_piece = self._shifts[paragraph], self.first_pieces[paragraph]
        first = np.searchsorted(self._ends, begin + shift, side="right")
        last = np.searchsorted(self._begins, end + shift, side="left") - 1
        return first - first_piece, last - first_piece

    def characters(self, paragraph: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the first character of piece ``first`` and the one after piece ``last``."""
        first_piece = self.first_pieces[paragraph]
        return self.spans.begins[first + first_piece], self.spans.ends[last + first_piece]


def span_targets(examples: SpanExamples, pieces: ParagraphPieces) -> SpanTargets:
    """Return the pieces of the first answer to each question."""
    size = len(examples)
    answers = [answers[0] if answers else Answer("", 0) for answers in examples.answers]
    begin = np.fromiter((answer.start for answer in answers), np.int64, size)
    end = begin + np.fromiter((len(answer.text) for answer in answers), np.int64, size)
    first, last = pieces.covering(examples.paragraph_of, begin, end)
    none = (end == begin) | (last < first)
    moved = np.zeros(size, np.bool_)
    rows = np.flatnonzero(~none)
    covered = pieces.characters(examples.paragraph_of[rows], first[rows], last[rows])
    beyond = (covered[0] < begin[rows]) | (covered[1] > end[rows])
    for row, *found in np.stack([rows, *covered], axis=1)[beyond].tolist():
        paragraph = int(examples.paragraph_of[row])
        text = pieces.paragraphs[paragraph]
        if not _is_more(text, found, (int(begin[row]), int(end[row]))):
            continue
        place = _whole_place(pieces, paragraph, answers[row])
        if place is not None:
            (first[row], last[row]), moved[row] = place, True
    first[none] = last[none] = NO_PIECE
    return SpanTargets(first, last, moved)


def _is_more(text: str, found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether ``found`` has a letter or digit beyond ``wanted``."""
    beyond = text[found[0] : wanted[0]] + text[wanted[1] : found[1]]
    return any(character.isalnum() for character in beyond)


def _whole_place(pieces: ParagraphPieces, paragraph: int, answer: Answer) -> tuple[int, int] | None:
    """Return the pieces of the answer's text where it stands by itself, nearest to its place."""
    text = pieces.paragraphs[paragraph]
    # Ahead, so that places may overlap.
    places = [place.start() for place in re.finditer(f"(?={re.escape(answer.text)})", text)]
    for begin in sorted(places, key=lambda place: (abs(place - answer.start), place)):
        end = begin + len(answer.text)
        number = np.array([paragraph])
        first, last = pieces.covering(number, np.array([begin]), np.array([end]))
        found = pieces.characters(number, first, last)
        if first <= last and not _is_more(text, np.concatenate(found).tolist(), (begin, end)):
            return int(first[0]), int(last[0])
    return None
