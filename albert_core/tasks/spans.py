"""SQuAD: questions that a span of a paragraph answers; in 2.0 some have no answer.

A unit is a window, [CLS] question [SEP] part of the paragraph [SEP]. Windows of a question overlap,
and a piece counts in the window that gives it the most context on both sides. Each paragraph is
encoded once, and no question is left out.

An answer that begins or ends inside a piece gets the whole piece: "gold" in "golden" becomes
"golden". Most of these are mistakes of the annotation, and the same text occurs as a word of its
own elsewhere in the paragraph ("7" marked in "17"). The nearest such place is then the target.

The best spans of a question are those with the highest scores over all its windows. Other than in
the reference, a piece without characters, the mark of a word's start, is no answer by itself; and a
question for which no span is left has no answer instead of "empty".

In SQuAD 2.0, a question is left without an answer if the model's belief that it has none exceeds a
threshold. It is searched for the best F1, as the official evaluation does, on the questions that
the caller allows; the exact matches reported are those of the same predictions. The reference then
also leaves without an answer what has a logit above 1, a slip that is not repeated here.

Source: `squad_utils.py` (`convert_examples_to_features`, `accumulate_predictions_v1`, `_v2` and
`write_predictions_v1`, `_v2`) of the reference, without its search that aligned pieces with
characters and gave up on some paragraphs.

Dimensions: P paragraphs, W windows, N questions, K starts of a window, J ends for each, A answers
to all questions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.config import ModelSettings, SpanSettings
from albert_core.metrics import SHARE
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Account
from albert_core.tasks import span_heads, squad
from albert_core.tasks.examples import Answer, SpanExamples, Task
from albert_core.tasks.problem import Bools, Head, Inputs, Outputs, Problem, Scored, Sequences
from albert_core.text.piece_offsets import PieceSpans, encode_with_spans
from albert_core.text.records import NUM_SPECIAL_IN_PAIR, Ints, ranges
from albert_core.text.tokenizer import Tokenizer

UNSEARCHED_THRESHOLD = 0.5
"""Probability of no answer above which a question has none, if there are no labels to search it."""
_LOGIT_WITHOUT_SPAN = 1e6
"""The logit of no answer if no span is valid. `squad_utils.py` gives the span -1e6."""
_WINDOWS_AT_ONCE = 4096
"""With 20 starts and 20 ends, 1.6 million pairs."""
_NUMBERS_OF_WORDS = (1, 2, 3, 5, 8, 12, 20, 30)
_LENGTH_BONUS = 0.01
"""Weight of a window's length beside that of a piece's context."""


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


def span_targets(examples: SpanExamples, pieces: ParagraphPieces) -> tuple[Ints, Ints]:
    """Return the first and the last piece of the first answer to each question.

    Returns:
        (N,) and (N,), counted in the paragraph; both -1 if there is no answer, or none of it
        became a piece.
    """
    size = len(examples)
    answers = [answers[0] if answers else Answer("", 0) for answers in examples.answers]
    begin = np.fromiter((answer.start for answer in answers), np.int64, size)
    end = begin + np.fromiter((len(answer.text) for answer in answers), np.int64, size)
    first, last = pieces.covering(examples.paragraph_of, begin, end)
    none = (end == begin) | (last < first)
    rows = np.flatnonzero(~none)
    covered = pieces.characters(examples.paragraph_of[rows], first[rows], last[rows])
    beyond = (covered[0] < begin[rows]) | (covered[1] > end[rows])
    for row in rows[beyond].tolist():
        place = _whole_place(pieces, int(examples.paragraph_of[row]), answers[row])
        if place is not None:
            first[row], last[row] = place
    first[none] = last[none] = -1
    return first, last


def _whole_place(pieces: ParagraphPieces, paragraph: int, answer: Answer) -> tuple[int, int] | None:
    """Return the pieces of the nearest place where no letter or digit adjoins the answer's text."""
    text, number = pieces.paragraphs[paragraph], np.array([paragraph])
    # A look-ahead, so that places may overlap.
    places = [place.start() for place in re.finditer(f"(?={re.escape(answer.text)})", text)]
    for begin in sorted(places, key=lambda place: (abs(place - answer.start), place)):
        end = begin + len(answer.text)
        first, last = pieces.covering(number, np.array([begin]), np.array([end]))
        left, right = pieces.characters(number, first, last)
        beyond = text[left[0] : begin] + text[end : right[0]]
        if first <= last and not any(map(str.isalnum, beyond)):
            return int(first[0]), int(last[0])
    return None


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
    paragraphs = ParagraphPieces(
        examples.paragraphs, encode_with_spans(tokenizer, examples.paragraphs)
    )
    questions = tokenizer.encode(examples.questions)
    queries = [ids[: settings.max_query_length] for ids in questions]
    query_lengths = np.fromiter(map(len, queries), np.int64, len(queries))
    room = max_seq_length - NUM_SPECIAL_IN_PAIR - query_lengths
    if room.min() < 1:
        raise ConfigError(
            f"max_seq_length is {max_seq_length}, which leaves no room for a paragraph beside a "
            f"question of {query_lengths.max()} pieces. Raise it above "
            f"{settings.max_query_length + NUM_SPECIAL_IN_PAIR}, or lower max_query_length."
        )
    windows = _windows(examples.paragraph_of, paragraphs, query_lengths, room, settings.doc_stride)
    pieces = paragraphs.spans.ids.tolist()
    begins = paragraphs.first_pieces[examples.paragraph_of[windows.question_of]] + windows.first
    parts = zip(begins.tolist(), (begins + windows.lengths).tolist(), strict=True)
    sequences = Sequences.of(
        [
            (queries[question], pieces[begin:end])
            for question, (begin, end) in zip(windows.question_of.tolist(), parts, strict=True)
        ]
    )
    targets: dict[str, NDArray[Any]] = {}
    if examples.is_labelled:
        first, last = (each[windows.question_of] for each in span_targets(examples, paragraphs))
        inside = (first >= windows.first) & (last < windows.first + windows.lengths)
        shift = windows.offsets - windows.first
        targets = {
            "start_positions": np.where(inside, first + shift, 0),
            "end_positions": np.where(inside, last + shift, 0),
            "is_impossible": ~inside,
        }
    total, kept = sum(map(len, questions)), int(query_lengths.sum())
    account = Account(
        what="question pieces", total=total, kept=kept, dropped={"too_long": total - kept}
    )
    return Inputs(sequences, targets, [account], details=windows)


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


class SpanProblem(Problem[SpanExamples]):
    """SQuAD.

    A unit is a window of a paragraph. The columns of `Scored.predictions`:

        id            as in the file
        prediction    a slice of the paragraph; "" if the question is left without an answer
        start, end    its first character in the paragraph and the one after its last; or null
        score         of the best span, predicted or not; null if no span is valid
        null_score    logit of no answer; null if all questions have one
        answers       right texts; empty if there is none
        exact_match   0 or 1; null without labels
        f1            0..1; null without labels
        n_best        list of text, start, end, score: spans of different texts, the best first
    """

    def __init__(self, task: Task, settings: SpanSettings) -> None:
        super().__init__(task)
        self.settings = settings
        self.has_answerability = task.has_answerless and settings.answer_head == "answerability"

    def inputs(self, examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return the windows; see `span_inputs`. They are the same in training and out of it."""
        return span_inputs(examples, tokenizer, max_seq_length, self.settings)

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return the head of SQuAD 1.1, or the one that ``answer_head`` names for 2.0."""
        if self.has_answerability:
            return span_heads.AnswerabilityHead(settings, dropout_prob)
        return span_heads.StartEndHead(settings, self.settings.n_best)

    def score(
        self,
        outputs: Outputs,
        inputs: Inputs,
        examples: SpanExamples,
        chosen_on: Bools | None = None,
    ) -> Scored:
        """Return predictions, and ``exact_match`` and ``f1`` as shares, 0..1.

        Facts: ``official``, the output of the official evaluation for the spans, in percent; in
        2.0 also ``no_answer_threshold``, a probability.
        """
        ranked = rank_answers(outputs, inputs.details, examples, self.settings)
        has_answerless, answers = self.task.has_answerless, _texts_of_answers(examples)
        texts, is_answered = ranked.best_texts, ranked.numbers > 0
        scores, null_scores, facts = None, None, dict[str, Any]()
        if examples.is_labelled:
            scores = squad.score_answers(texts, answers, has_answerless)
        if has_answerless:
            null_scores = self._null_scores(ranked)
            no_answer, threshold = squad.no_answer_probability(null_scores), UNSEARCHED_THRESHOLD
            if scores is not None:
                has_answer = np.array([bool(of_one) for of_one in answers])
                rows = np.arange(len(texts)) if chosen_on is None else np.flatnonzero(chosen_on)
                some = [texts[row] for row in rows]
                _, threshold = squad.best_threshold(
                    scores.f1[rows], some, has_answer[rows], no_answer[rows]
                )
                given = (scores, texts, has_answer, no_answer, threshold)
                facts["official"] = squad.squad_2_scores(*given)
                scores = squad.apply_threshold(scores, no_answer, has_answer, threshold)
            is_answered &= no_answer <= threshold
            facts["no_answer_threshold"] = threshold
        elif scores is not None:
            facts["official"] = squad.squad_1_scores(scores)
        table = _table(examples, answers, ranked, is_answered, null_scores, scores)
        samples = {}
        if scores is not None:
            ones = np.ones(len(examples))
            samples = {n: SHARE.of(getattr(scores, n), ones) for n in self.task.metrics}
        return Scored(table, samples, facts)

    def constant_scores(self, examples: SpanExamples) -> dict[str, float]:
        """Return the scores of no answer where there may be none, else of the first words.

        Leaving every question without an answer scores the share of those that have none.
        """
        answers = _texts_of_answers(examples)
        if self.task.has_answerless:
            share = float(np.mean([not of_one for of_one in answers]))
            return dict.fromkeys(self.task.metrics, share)
        paragraphs = [examples.paragraphs[number] for number in examples.paragraph_of]
        return first_words_scores(paragraphs, answers)

    def _null_scores(self, ranked: "RankedAnswers") -> squad.Floats:
        """Return the logit (N,) that a question has no answer."""
        has_span = ranked.numbers > 0
        logits = ranked.null_scores.copy()
        if not self.has_answerability:
            # How much higher [CLS] scores than the best span. Source: Devlin et al. 2019, 4.3.
            logits[has_span] -= ranked.scores[ranked.first[has_span]]
        logits[~has_span] = _LOGIT_WITHOUT_SPAN
        return logits


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The best answers to N questions, A in all, those of a question beside each other."""

    texts: list[str]
    """A slices of paragraphs, different ones for a question, the best first."""
    begins: Ints
    """(A,), first character in the paragraph."""
    ends: Ints
    """(A,), the character after the last."""
    scores: squad.Floats
    """(A,), those of start and end, summed."""
    numbers: Ints
    """(N,), answers to each question, at most ``n_best``; 0 if no span is valid."""
    null_scores: squad.Floats
    """(N,), the least of the head's ``null_scores`` over the windows of the question."""

    @property
    def first(self) -> Ints:
        """(N,), where in A those of each question begin."""
        first: Ints = np.cumsum(self.numbers) - self.numbers
        return first

    @property
    def best_texts(self) -> list[str]:
        """The best text for each question, "" where no span is valid."""
        pairs = zip(self.first.tolist(), self.numbers.tolist(), strict=True)
        return [self.texts[first] if number else "" for first, number in pairs]


def rank_answers(
    outputs: Outputs, windows: Windows, examples: SpanExamples, settings: SpanSettings
) -> RankedAnswers:
    """Return the best answers to each question.

    A span counts if it is in the paragraph, begins where its window has the most context, ends
    no earlier than it begins, and has at most ``max_answer_length`` pieces. Of equal scores the
    one that begins and then ends first is better; of equal texts the better one is kept.

    Args:
        outputs: of `StartEndHead` or `AnswerabilityHead` for the W windows: ``starts`` and
            ``start_scores`` (W, K), ``ends`` and ``end_scores`` (W, J), or (W, K, J) where they
            depend on the start, ``null_scores`` (W,).
        windows: W of them, at least one.
        examples: the N questions.
        settings: of the decoding.
    """
    parts = [
        _candidates(outputs, windows, slice(begin, begin + _WINDOWS_AT_ONCE), examples, settings)
        for begin in range(0, len(windows.first), _WINDOWS_AT_ONCE)
    ]
    question, begins, ends, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
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


def first_words_scores(
    paragraphs: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the best scores of answering each of N questions with the paragraph's first words.

    The number of words is the same for all questions, and the best for each metric.

    Args:
        paragraphs: that of each question.
        answers: the right ones of each question; at least one.
    """
    words = [paragraph.split() for paragraph in paragraphs]
    tried = [
        squad.score_answers(
            [" ".join(each[:number]) for each in words], answers, has_answerless=False
        )
        for number in _NUMBERS_OF_WORDS
    ]
    return {
        "exact_match": max(float(scores.exact_match.mean()) for scores in tried),
        "f1": max(float(scores.f1.mean()) for scores in tried),
    }


def _candidates(
    outputs: Outputs, windows: Windows, part: slice, examples: SpanExamples, settings: SpanSettings
) -> tuple[Ints, Ints, Ints, squad.Floats]:
    """Return the valid spans of the windows ``part``: question, first and last character, score."""
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
    return question[some], begins[some], after[some], scores[some]


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


def _texts_of_answers(examples: SpanExamples) -> list[tuple[str, ...]]:
    return [tuple(answer.text for answer in of_one) for of_one in examples.answers]


def _table(
    examples: SpanExamples,
    answers: list[tuple[str, ...]],
    ranked: RankedAnswers,
    is_answered: Bools,
    null_scores: squad.Floats | None,
    scores: squad.AnswerScores | None,
) -> pa.Table:
    """Return the table that `SpanProblem` describes."""
    has_span, size = ranked.numbers > 0, len(examples)

    def of_best(values: NDArray[Any], shown: Bools) -> pa.Array:
        column = np.zeros(size, values.dtype)
        column[has_span] = values[ranked.first[has_span]]
        return pa.array(column, mask=~shown)

    unknown = pa.nulls(size, pa.float64())
    best_texts = zip(ranked.best_texts, is_answered, strict=True)
    n_best = pa.StructArray.from_arrays(
        [
            pa.array(ranked.texts, pa.string()),
            *map(pa.array, (ranked.begins, ranked.ends, ranked.scores)),
        ],
        names=["text", "start", "end", "score"],
    )
    bounds = pa.array(np.append(0, np.cumsum(ranked.numbers)), pa.int32())
    return pa.table(
        {
            "id": pa.array(examples.ids, pa.string()),
            "prediction": [text if is_given else "" for text, is_given in best_texts],
            "start": of_best(ranked.begins, is_answered),
            "end": of_best(ranked.ends, is_answered),
            "score": of_best(ranked.scores, has_span),
            "null_score": unknown if null_scores is None else null_scores,
            "answers": pa.array(answers, pa.list_(pa.string())),
            "exact_match": unknown if scores is None else scores.exact_match,
            "f1": unknown if scores is None else scores.f1,
            "n_best": pa.ListArray.from_arrays(bounds, n_best),
        }
    )
