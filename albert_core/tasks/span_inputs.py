"""Questions and paragraphs as input sequences: windows of a long paragraph, and their targets.

A window is [CLS] question [SEP] part of the paragraph [SEP]. Windows of a question overlap; a
piece counts in the one that has the most context on both sides of it. Each paragraph is encoded
once, and no question is left out.

Source: `convert_examples_to_features` of the reference's `squad_utils.py`, but for the search
that aligned pieces and characters there, and gave up one paragraph or another.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from albert_core.config import SpanSettings
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Account
from albert_core.tasks.examples import SpanExamples
from albert_core.tasks.problem import Inputs
from albert_core.tasks.sequences import Sequences
from albert_core.tasks.span_targets import ParagraphPieces, SpanTargets, span_targets
from albert_core.text.piece_offsets import encode_with_spans
from albert_core.text.ragged import Ints, ranges
from albert_core.text.records import CLS, NUM_SPECIAL_IN_PAIR, SEP
from albert_core.text.tokenizer import Tokenizer

_LENGTH_BONUS = 0.01
"""What a piece of a window's length counts beside a piece of context."""


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
    """(W,), where in the input sequence the first of them stands."""
    is_max_context: NDArray[np.bool_]
    """All windows' pieces end to end: whether each has its most context in this window."""
    paragraphs: ParagraphPieces = field(repr=False)
    """What windows are of."""


def span_inputs(
    examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int, settings: SpanSettings
) -> Inputs:
    """Return a unit for each window.

    Targets, where the answers are known: ``start_positions`` and ``end_positions``, int64
    (W,), positions of the answer's first and last piece in the sequence; ``is_impossible``, bool
    (W,), whether the window has no answer or not the whole of it: both positions are then 0.
    Details: `Windows`.

    Raises:
        ConfigError: a question leaves no room for its paragraph.
    """
    encoded = encode_with_spans(tokenizer, [*examples.paragraphs, *examples.questions])
    num_paragraphs = len(examples.paragraphs)
    query_lengths = np.minimum(encoded.lengths[num_paragraphs:], settings.max_query_length)
    query_begins = (np.cumsum(encoded.lengths) - encoded.lengths)[num_paragraphs:]
    paragraphs = ParagraphPieces(examples.paragraphs, encoded.of_first(num_paragraphs))
    room = max_seq_length - NUM_SPECIAL_IN_PAIR - query_lengths
    _check_room(room, max_seq_length, settings)
    windows = _windows(examples.paragraph_of, paragraphs, query_lengths, room, settings.doc_stride)
    of = windows.question_of
    sequences = _sequences(
        encoded.ids,
        (query_begins[of], query_lengths[of]),
        (paragraphs.first_pieces[examples.paragraph_of[of]] + windows.first, windows.lengths),
    )
    targets: dict[str, NDArray[np.generic]] = {}
    if examples.is_labelled:
        targets = window_targets(windows, span_targets(examples, paragraphs))
    total, kept = int(encoded.lengths[num_paragraphs:].sum()), int(query_lengths.sum())
    account = Account(
        what="question pieces", total=total, kept=kept, dropped={"too_long": total - kept}
    )
    return Inputs(sequences, targets, [account], details=windows)


def window_targets(windows: Windows, targets: SpanTargets) -> dict[str, NDArray[np.generic]]:
    """Return the targets of `span_inputs` by name.

    As in the reference, windows without the answer are kept, as impossible.
    """
    first, last = targets.first[windows.question_of], targets.last[windows.question_of]
    inside = (first >= windows.first) & (last < windows.first + windows.lengths)
    shift = windows.offsets - windows.first
    return {
        "start_positions": np.where(inside, first + shift, 0),
        "end_positions": np.where(inside, last + shift, 0),
        "is_impossible": ~inside,
    }


def _check_room(room: Ints, max_seq_length: int, settings: SpanSettings) -> None:
    if len(room) and room.min() < 1:
        raise ConfigError(
            f"max_seq_length is {max_seq_length}, which leaves no room for a paragraph beside a "
            f"question of {max_seq_length - NUM_SPECIAL_IN_PAIR - room.min()} pieces. Raise it "
            f"above {settings.max_query_length + NUM_SPECIAL_IN_PAIR}, or lower max_query_length."
        )


def _windows(
    paragraph_of: Ints, paragraphs: ParagraphPieces, query_lengths: Ints, room: Ints, stride: int
) -> Windows:
    """Return windows of at most ``room`` pieces, from one to the next ``stride`` or a whole one."""
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
    """Return, for all windows' pieces, whether no window of the question has more context.

    Of two with the same, the earlier one has it.

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
