"""Scores of positions to answers: the best spans of each question over all its windows.

Source: REFERENCE.md D.3 (`accumulate_predictions_v1`, `_v2` and `write_predictions_v1`, `_v2` of
the reference). Other than there, a piece without characters, the mark of a word's start, is no
answer by itself; and a question for which no span is left has no answer instead of "empty".

Dimensions: W windows, N questions, K starts of a window, J ends for each, A answers of all
questions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.config import SpanSettings
from albert_core.contract.ragged import Ints
from albert_core.tasks.examples import SpanExamples
from albert_core.tasks.problem import Outputs
from albert_core.tasks.span_inputs import Windows

_WINDOWS_AT_ONCE = 4096
"""With 20 starts and 20 ends, 1.6 million pairs."""


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The best answers to N questions, A in all, those of a question beside each other."""

    texts: list[str]
    """A slices of paragraphs, different ones for a question, the best first."""
    begins: Ints
    """(A,), first character in the paragraph."""
    ends: Ints
    """(A,), the character after the last."""
    scores: NDArray[np.float64]
    """(A,), the start's and the end's, summed."""
    numbers: Ints
    """(N,), answers of each question, at most ``n_best``; 0 if no span is valid."""
    null_scores: NDArray[np.float64]
    """(N,), the least of the head's ``null_scores`` over the windows of the question."""

    @property
    def first(self) -> Ints:
        """(N,), where in A those of each question begin."""
        first: Ints = np.cumsum(self.numbers) - self.numbers
        return first


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Valid spans of all questions."""

    question: Ints
    begins: Ints
    ends: Ints
    scores: NDArray[np.float64]


def rank_answers(
    outputs: Outputs, windows: Windows, examples: SpanExamples, settings: SpanSettings
) -> RankedAnswers:
    """Return the best answers to each question.

    A span counts if it lies in the paragraph, begins where its window has the most context, ends
    no earlier than it begins, and has at most ``max_answer_length`` pieces. Of equal scores the
    one that begins and then ends first is better; of equal texts the better one stays.

    Args:
        outputs: of `StartEndHead` or `AnswerabilityHead` for the W windows: ``starts`` and
            ``start_scores`` (W, K), ``ends`` and ``end_scores`` (W, J), or (W, K, J) where they
            depend on the start, ``null_scores`` (W,).
        windows: W of them.
        examples: the N questions.
        settings: of the decoding.
    """
    parts = [
        _candidates(outputs, windows, slice(begin, begin + _WINDOWS_AT_ONCE), examples, settings)
        for begin in range(0, len(windows.first), _WINDOWS_AT_ONCE)
    ]
    question, begins, ends = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in ("question", "begins", "ends")
    )
    scores = np.concatenate([np.zeros(0), *(part.scores for part in parts)])
    order = np.lexsort((ends, begins, -scores, question))
    question, begins, ends = question[order], begins[order], ends[order]
    kept, texts = _different_texts(question, begins, ends, examples, settings.n_best)
    null_scores = np.full(len(examples), np.inf)
    np.minimum.at(null_scores, windows.question_of, outputs["null_scores"].astype(np.float64))
    return RankedAnswers(
        texts=texts,
        begins=begins[kept],
        ends=ends[kept],
        scores=scores[order][kept],
        numbers=np.bincount(question[kept], minlength=len(examples)),
        null_scores=null_scores,
    )


def _candidates(
    outputs: Outputs, windows: Windows, part: slice, examples: SpanExamples, settings: SpanSettings
) -> _Candidates:
    """Return the valid spans of the windows ``part``."""
    offsets, lengths = windows.offsets[part, None], windows.lengths[part, None]
    start = outputs["starts"][part] - offsets  # (W, K), counted in the window's paragraph
    start_scores = outputs["start_scores"][part].astype(np.float64)
    begins_here = (start >= 0) & (start < lengths) & np.isfinite(start_scores)
    in_all = (np.cumsum(windows.lengths) - windows.lengths)[part, None] + start
    begins_here[begins_here] = windows.is_max_context[in_all[begins_here]]
    ends, end_scores = outputs["ends"][part], outputs["end_scores"][part].astype(np.float64)
    if ends.ndim == 2:
        ends, end_scores = ends[:, None], end_scores[:, None]
    size = ends - offsets[:, :, None] - start[:, :, None] + 1  # (W, K, J), pieces of the span
    room = np.minimum(settings.max_answer_length, lengths - start)
    valid = begins_here[:, :, None] & (size >= 1) & (size <= room[:, :, None])
    valid &= np.isfinite(end_scores)
    window, rank, place = np.nonzero(valid)
    question = windows.question_of[part][window]
    first = windows.first[part][window] + start[window, rank]
    begins, after = windows.paragraphs.characters(
        examples.paragraph_of[question], first, first + size[window, rank, place] - 1
    )
    end_scores = np.broadcast_to(end_scores, size.shape)
    scores = start_scores[window, rank] + end_scores[window, rank, place]
    some = after > begins
    return _Candidates(question[some], begins[some], after[some], scores[some])


def _different_texts(
    question: Ints, begins: Ints, ends: Ints, examples: SpanExamples, n_best: int
) -> tuple[Ints, list[str]]:
    """Return the first ``n_best`` spans of each question whose texts differ, and the texts."""
    kept: list[int] = []
    texts: list[str] = []
    bounds = np.searchsorted(question, np.arange(len(examples) + 1)).tolist()
    spans = list(zip(begins.tolist(), ends.tolist(), strict=True))
    for row, paragraph in enumerate(examples.paragraph_of.tolist()):
        text, seen = examples.paragraphs[paragraph], dict[str, int]()
        for place in range(bounds[row], bounds[row + 1]):
            if len(seen) == n_best:
                break
            begin, end = spans[place]
            seen.setdefault(text[begin:end], place)
        kept.extend(seen.values())
        texts.extend(seen)
    return np.array(kept, np.int64), texts
