"""Questions and paragraphs as input sequences: windows of a long paragraph, and their targets.

A window is [CLS] question [SEP] part of the paragraph [SEP]. Windows of a question overlap, and a
piece counts in the window that gives it the most context on both sides. Each paragraph is encoded
once, and no question is left out.

An answer that begins or ends inside a piece gets the whole piece: "gold" in "golden" becomes
"golden". Most of these are mistakes of the annotation, and the same text occurs as a word of its
own elsewhere in the paragraph ("7" marked in "17"). The nearest such place is then the target.

Source: `convert_examples_to_features` in the reference's `squad_utils.py`, without its search that
aligned pieces with characters and gave up on some paragraphs.
"""

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from albert_core.config import SpanSettings
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Account
from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.problem import Inputs, Sequences
from albert_core.text.piece_offsets import PieceSpans, encode_with_spans
from albert_core.text.records import CLS, NUM_SPECIAL_IN_PAIR, SEP, Ints, ranges
from albert_core.text.tokenizer import Tokenizer

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
    """The pieces of P paragraphs, found by their characters.

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
    for row in rows[beyond].tolist():
        place = _whole_place(pieces, int(examples.paragraph_of[row]), answers[row])
        if place is not None:
            first[row], last[row], moved[row] = place
    first[none] = last[none] = NO_PIECE
    return SpanTargets(first, last, moved)


def _whole_place(
    pieces: ParagraphPieces, paragraph: int, answer: Answer
) -> tuple[int, int, bool] | None:
    """Return the pieces of the nearest place where no letter or digit adjoins the answer's text.

    Returns:
        First and last piece, and whether the place is another than the annotated one.
    """
    text, number = pieces.paragraphs[paragraph], np.array([paragraph])
    # A look-ahead, so that places may overlap.
    places = [place.start() for place in re.finditer(f"(?={re.escape(answer.text)})", text)]
    for begin in sorted(places, key=lambda place: (abs(place - answer.start), place)):
        end = begin + len(answer.text)
        first, last = pieces.covering(number, np.array([begin]), np.array([end]))
        left, right = pieces.characters(number, first, last)
        beyond = text[left[0] : begin] + text[end : right[0]]
        if first <= last and not any(map(str.isalnum, beyond)):
            return int(first[0]), int(last[0]), begin != answer.start
    return None


_LENGTH_BONUS = 0.01
"""Weight of a window's length beside that of a piece's context."""


@dataclass(frozen=True, slots=True)
class Windows:
    """W windows of the paragraphs of N questions, those of a question beside each other."""

    question_of: Ints
    """(W,), ascending."""
    first: Ints
    """(W,), the window's first piece, counted in the paragraph."""
    lengths: Ints
    """(W,), pieces of the paragraph in the window."""
    offsets: Ints
    """(W,), the position of the first of them in the input sequence."""
    is_max_context: NDArray[np.bool_]
    """For all windows' pieces, end to end: whether each has its most context in this window."""
    paragraphs: ParagraphPieces = field(repr=False)
    """The pieces of the paragraphs."""


def span_inputs(
    examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int, settings: SpanSettings
) -> Inputs:
    """Return a unit for each window.

    Targets, where the answers are known: ``start_positions`` and ``end_positions``, int64
    (W,), positions of the answer's first and last piece in the sequence; ``is_impossible``, bool
    (W,), whether the window does not contain a whole answer: both positions are then 0. As in the
    reference, such windows are kept. Details: `Windows`.

    Raises:
        ConfigError: a question leaves no room for its paragraph.
    """
    encoded = encode_with_spans(tokenizer, [*examples.paragraphs, *examples.questions])
    num_paragraphs = len(examples.paragraphs)
    query_lengths = np.minimum(encoded.lengths[num_paragraphs:], settings.max_query_length)
    query_begins = (np.cumsum(encoded.lengths) - encoded.lengths)[num_paragraphs:]
    paragraphs = ParagraphPieces(examples.paragraphs, encoded.of_first(num_paragraphs))
    room = max_seq_length - NUM_SPECIAL_IN_PAIR - query_lengths
    if room.min() < 1:
        raise ConfigError(
            f"max_seq_length is {max_seq_length}, which leaves no room for a paragraph beside a "
            f"question of {max_seq_length - NUM_SPECIAL_IN_PAIR - room.min()} pieces. Raise it "
            f"above {settings.max_query_length + NUM_SPECIAL_IN_PAIR}, or lower max_query_length."
        )
    windows = _windows(examples.paragraph_of, paragraphs, query_lengths, room, settings.doc_stride)
    of = windows.question_of
    sequences = _sequences(
        encoded.ids,
        (query_begins[of], query_lengths[of]),
        (paragraphs.first_pieces[examples.paragraph_of[of]] + windows.first, windows.lengths),
    )
    targets = _window_targets(windows, examples) if examples.is_labelled else {}
    total, kept = int(encoded.lengths[num_paragraphs:].sum()), int(query_lengths.sum())
    account = Account(
        what="question pieces", total=total, kept=kept, dropped={"too_long": total - kept}
    )
    return Inputs(sequences, targets, [account], details=windows)


def _window_targets(windows: Windows, examples: SpanExamples) -> dict[str, NDArray[np.generic]]:
    """Return the targets of `span_inputs` by name."""
    targets = span_targets(examples, windows.paragraphs)
    first, last = targets.first[windows.question_of], targets.last[windows.question_of]
    inside = (first >= windows.first) & (last < windows.first + windows.lengths)
    shift = windows.offsets - windows.first
    return {
        "start_positions": np.where(inside, first + shift, 0),
        "end_positions": np.where(inside, last + shift, 0),
        "is_impossible": ~inside,
    }


def _windows(
    paragraph_of: Ints, paragraphs: ParagraphPieces, query_lengths: Ints, room: Ints, stride: int
) -> Windows:
    """Return windows of at most ``room`` pieces, ``stride`` pieces, or less, after each other."""
    total = paragraphs.spans.lengths[paragraph_of]
    step = np.minimum(room, stride)
    numbers = 1 + np.maximum(0, -((room - total) // step))
    question_of = np.repeat(np.arange(len(paragraph_of)), numbers)
    first = ranges(np.zeros_like(numbers), numbers) * step[question_of]
    lengths = np.minimum(room[question_of], total[question_of] - first)
    return Windows(
        question_of=question_of,
        first=first,
        lengths=lengths,
        offsets=query_lengths[question_of] + 2,
        is_max_context=_is_max_context(question_of, numbers, first, lengths),
        paragraphs=paragraphs,
    )


def _is_max_context(
    question_of: Ints, numbers: Ints, first: Ints, lengths: Ints
) -> NDArray[np.bool_]:
    """Return, for all windows' pieces, whether no window of the question gives them more context.

    Of two windows that give the same, the earlier one counts.

    Source: `_check_is_max_context` of the reference.
    """
    found = np.ones(int(lengths.sum()), np.bool_)
    contested = np.flatnonzero(np.repeat(numbers[question_of] > 1, lengths))
    window = np.repeat(np.arange(len(first)), lengths)[contested]
    left = ranges(np.zeros_like(lengths), lengths)[contested]
    context = np.minimum(left, lengths[window] - 1 - left) + _LENGTH_BONUS * lengths[window]
    piece = first[window] + left
    order = np.lexsort((window, -context, piece, question_of[window]))
    same = (np.diff(piece[order]) == 0) & (np.diff(question_of[window][order]) == 0)
    found[contested[order[1:][same]]] = False
    return found


def _sequences(
    ids: NDArray[np.int32], query: tuple[Ints, Ints], part: tuple[Ints, Ints]
) -> Sequences:
    """Return [CLS] query [SEP] part [SEP] of ranges of ``ids``, given by begin and length."""
    (_, query_lengths), (_, part_lengths) = query, part
    lengths = query_lengths + part_lengths + NUM_SPECIAL_IN_PAIR
    starts = np.cumsum(lengths) - lengths
    b_starts = query_lengths + 2
    pieces = np.empty(int(lengths.sum()), np.int32)
    pieces[starts] = CLS
    pieces[starts + b_starts - 1] = pieces[starts + lengths - 1] = SEP
    pieces[ranges(starts + 1, query_lengths)] = ids[ranges(*query)]
    pieces[ranges(starts + b_starts, part_lengths)] = ids[ranges(*part)]
    return Sequences(pieces, lengths, b_starts)
