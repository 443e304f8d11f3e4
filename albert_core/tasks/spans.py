"""SQuAD: questions that a span of a paragraph answers; in 2.0 some have no answer.

A unit is a window, [CLS] question [SEP] part of the paragraph [SEP]. Windows of a question overlap,
and a piece counts in the window that gives it the most context on both sides. Unlike in the
reference, they overlap by half at least, also where ``doc_stride`` is more than half of the room
that the question leaves; with the paper's lengths and stride it never is. Each paragraph is encoded
once, and no question is left out. One whose answer is whole in no window counts in training as one
without an answer.

An answer that begins or ends inside a piece is widened to the whole piece: "gold" in "golden"
becomes "golden". Most of these are annotation errors, and the same text occurs as a word of its own
elsewhere in the paragraph ("7" marked in "17"). The nearest such place is then the target.

The best spans of a question are those with the highest scores over all its windows. Unlike in the
reference, a piece without characters, the mark of a word's start, is no answer by itself; and a
question for which no span is valid has no answer instead of "empty".

In SQuAD 2.0, a question is left without an answer if the model's belief that it has none exceeds a
threshold. The threshold with the best F1 is searched, as in the official evaluation, on the
questions that the caller allows; the exact matches reported are those of the same predictions. The
reference also leaves a question without an answer if its logit is above 1, a slip that is not
repeated here.

Source: `squad_utils.py` of google-research/albert (`convert_examples_to_features`,
`accumulate_predictions_v1`, `_v2` and `write_predictions_v1`, `_v2`), without its search that
aligns pieces with characters and gives up on some paragraphs.

Dimensions: P paragraphs, W windows, N questions, K starts of a window, J ends for each.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.config import ModelSettings, SpanSettings
from albert_core.metrics import SHARE, Floats
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Account
from albert_core.tasks import problem, squad
from albert_core.tasks.examples import Answer, SpanExamples, Task
from albert_core.tasks.paragraph_pieces import ParagraphPieces
from albert_core.tasks.span_heads import AnswerabilityHead, StartEndHead
from albert_core.text.records import NUM_SPECIAL_IN_PAIR, Bools, Ints, begins_of, ranges
from albert_core.text.tokenizer import Tokenizer

_SPAN_FIELDS = ("text", "start", "end", "score")
UNSEARCHED_THRESHOLD = 0.5
"""Probability of no answer above which a question has none, if there are no labels to search it."""
_LOGIT_WITHOUT_SPAN = 1e6
"""The logit of no answer if no span is valid. `squad_utils.py` gives the span -1e6."""
_WINDOWS_AT_ONCE = 4096
"""Windows decoded at once: with 20 starts and 20 ends, 1.6 million pairs."""
IN_NO_WINDOW = "in_no_window"
"""The reason for which an answer is no target: no window contains all of it."""
_NUMBERS_OF_WORDS = (1, 2, 3, 5, 8, 12, 20, 30)
_LENGTH_BONUS = 0.01
"""Weight of a window's length beside that of a piece's context."""


def span_targets(examples: SpanExamples, pieces: ParagraphPieces) -> tuple[Ints, Ints]:
    """Return the first and the last piece of the first answer to each question.

    Returns:
        (N,) and (N,), counted in the paragraph; both -1 if there is no answer, or none of it
        became a piece.
    """
    answers = [answers[0] if answers else Answer("", 0) for answers in examples.answers]
    begin = np.array([answer.start for answer in answers], np.int64)
    end = begin + np.array([len(answer.text) for answer in answers], np.int64)
    first, last = pieces.covering(examples.paragraph_of, begin, end)
    none = (end == begin) | (last < first)
    rows = np.flatnonzero(~none)
    left, right = pieces.characters(examples.paragraph_of[rows], first[rows], last[rows])
    for row in rows[(left < begin[rows]) | (right > end[rows])].tolist():
        place = _whole_place(pieces, int(examples.paragraph_of[row]), answers[row])
        if place is not None:
            first[row], last[row] = place
    first[none] = last[none] = -1
    return first, last


def _whole_place(pieces: ParagraphPieces, paragraph: int, answer: Answer) -> tuple[int, int] | None:
    """Return the pieces of the nearest place where no letter or digit adjoins the answer's text."""
    text, number = pieces.paragraphs[paragraph], np.array([paragraph])
    # A look-ahead, so that matches may overlap.
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
    is_max_context: Bools
    """For the pieces of all windows, end to end: whether this window gives it the most context."""
    paragraphs: ParagraphPieces = field(repr=False)


def _windows(
    paragraph_of: Ints, paragraphs: ParagraphPieces, query_lengths: Ints, room: Ints, stride: int
) -> Windows:
    """Return windows of at most ``room`` pieces, ``stride`` or half the room after each other."""
    total = paragraphs.lengths[paragraph_of]
    step = np.minimum(stride, np.maximum(1, room // 2))
    numbers = 1 + np.maximum(0, -((room - total) // step))
    question_of = np.repeat(np.arange(len(paragraph_of)), numbers)
    first = ranges(np.zeros_like(numbers), numbers) * step[question_of]
    lengths = np.minimum(room[question_of], total[question_of] - first)
    is_max_context = _is_max_context(question_of, numbers, first, lengths)
    offsets = query_lengths[question_of] + 2
    return Windows(question_of, first, lengths, offsets, is_max_context, paragraphs)


def _is_max_context(question_of: Ints, numbers: Ints, first: Ints, lengths: Ints) -> Bools:
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


class SpanProblem(problem.Problem[SpanExamples]):
    """SQuAD.

    The columns of `Scored.predictions`:

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

    def inputs(
        self, examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int
    ) -> problem.Inputs:
        """Return a unit for each window, in the same way for training and for prediction.

        Targets, where the answers are known: ``start_positions`` and ``end_positions``, int64
        (W,), positions of the answer's first and last piece in the sequence; ``is_impossible``,
        bool (W,), whether the window does not contain a whole answer: both positions are then 0.
        As in the reference, such windows are kept. Details: `Windows`.

        Raises:
            ConfigError: a question leaves no room for its paragraph.
        """
        paragraphs = ParagraphPieces(tokenizer, examples.paragraphs)
        questions, longest = tokenizer.encode(examples.questions), self.settings.max_query_length
        queries = [ids[:longest] for ids in questions]
        query_lengths = np.array([len(query) for query in queries])
        room = max_seq_length - NUM_SPECIAL_IN_PAIR - query_lengths
        if room.min() < 1:
            raise ConfigError(
                f"max_seq_length is {max_seq_length}, which leaves no room for a paragraph beside "
                f"a question of {query_lengths.max()} pieces. Raise it above "
                f"{longest + NUM_SPECIAL_IN_PAIR}, or lower max_query_length."
            )
        stride = self.settings.doc_stride
        windows = _windows(examples.paragraph_of, paragraphs, query_lengths, room, stride)
        question_of, pieces = windows.question_of, paragraphs.ids.tolist()
        begins = paragraphs.first_pieces[examples.paragraph_of[question_of]] + windows.first
        parts = np.stack([question_of, begins, begins + windows.lengths], axis=1).tolist()
        sequences = problem.Sequences.of(
            [(queries[question], pieces[begin:end]) for question, begin, end in parts]
        )
        targets: dict[str, NDArray[Any]] = {}
        cut = problem.cut_pieces(
            "question pieces", sum(map(len, questions)), int(query_lengths.sum())
        )
        accounts = [cut]
        if examples.is_labelled:
            first, last = (each[question_of] for each in span_targets(examples, paragraphs))
            inside = (first >= windows.first) & (last < windows.first + windows.lengths)
            accounts.append(_account_of_answers(examples, question_of, first, inside))
            shift = windows.offsets - windows.first
            targets = {
                "start_positions": np.where(inside, first + shift, 0),
                "end_positions": np.where(inside, last + shift, 0),
                "is_impossible": ~inside,
            }
        return problem.Inputs(sequences, targets, accounts, details=windows)

    def head(self, settings: ModelSettings, dropout_prob: float) -> problem.Head:
        """Return the head of SQuAD 1.1, or for 2.0 the one that ``answer_head`` names."""
        if self.has_answerability:
            return AnswerabilityHead(settings, dropout_prob)
        return StartEndHead(settings, self.settings.n_best)

    def score(
        self,
        outputs: problem.Outputs,
        inputs: problem.Inputs,
        examples: SpanExamples,
        chosen_on: problem.Choosable = None,
    ) -> problem.Scored:
        """Return predictions, and ``exact_match`` and ``f1`` as shares, 0..1.

        Facts: ``official``, the output of the official evaluation for the spans, in percent; in
        2.0 also ``no_answer_threshold``, a probability.
        """
        n_best, null_scores = rank_answers(outputs, inputs.details, examples, self.settings)
        numbers = n_best.value_lengths().to_numpy()
        best = n_best.values.take(pa.array(begins_of(numbers), mask=numbers == 0))
        text, start, end, score = (pc.struct_field(best, name) for name in _SPAN_FIELDS)
        texts, is_answered = text.fill_null("").to_pylist(), numbers > 0
        has_answerless, answers = self.task.has_answerless, _texts_of_answers(examples)
        scores: squad.AnswerScores = {}
        facts: dict[str, Any] = {}
        if examples.is_labelled:
            scores = squad.score_answers(texts, answers, has_answerless)
        if has_answerless:
            if not self.has_answerability:
                # How much higher [CLS] scores than the best span. Source: Devlin et al. 2019, 4.3.
                null_scores = null_scores - score.to_numpy(zero_copy_only=False)
            null_scores = np.where(is_answered, null_scores, _LOGIT_WITHOUT_SPAN)
            no_answer, threshold = squad.no_answer_probability(null_scores), UNSEARCHED_THRESHOLD
            if scores:
                has_answer = np.array([bool(of_one) for of_one in answers])
                rows = np.arange(len(texts)) if chosen_on is None else np.flatnonzero(chosen_on)
                some = [texts[row] for row in rows]
                _, threshold = squad.best_threshold(
                    scores["f1"][rows], some, has_answer[rows], no_answer[rows]
                )
                given = (scores, texts, has_answer, no_answer, threshold)
                facts["official"] = squad.squad_2_scores(*given)
                scores = squad.apply_threshold(scores, no_answer, has_answer, threshold)
            is_answered = is_answered & (no_answer <= threshold)
            facts["no_answer_threshold"] = threshold
        elif scores:
            facts["official"] = squad.squad_1_scores(scores)
        shown, unknown = pa.array(is_answered), pa.nulls(len(texts), pa.float64())
        table = pa.table(
            {
                "id": pa.array(examples.ids, pa.string()),
                "prediction": pc.if_else(shown, text, ""),
                "start": pc.if_else(shown, start, None),
                "end": pc.if_else(shown, end, None),
                "score": score,
                "null_score": null_scores if has_answerless else unknown,
                "answers": pa.array(answers, pa.list_(pa.string())),
                "exact_match": scores.get("exact_match", unknown),
                "f1": scores.get("f1", unknown),
                "n_best": n_best,
            }
        )
        ones = np.ones(len(texts))
        samples = {n: SHARE.of(scores[n], ones) for n in self.task.metrics if n in scores}
        return problem.Scored(table, samples, facts)

    def constant_scores(self, examples: SpanExamples) -> dict[str, float]:
        """Return the scores of no answer where there may be none, else of the first words.

        Leaving every question without an answer scores the share of those that have none. The
        number of first words is the same for all questions, and the best for each metric.
        """
        answers = _texts_of_answers(examples)
        if self.task.has_answerless:
            share = float(np.mean([not of_one for of_one in answers]))
            return dict.fromkeys(self.task.metrics, share)
        words = [examples.paragraphs[number].split() for number in examples.paragraph_of]
        tried = [
            squad.score_answers([" ".join(each[:number]) for each in words], answers, False)
            for number in _NUMBERS_OF_WORDS
        ]
        return {name: max(float(each[name].mean()) for each in tried) for name in self.task.metrics}


def rank_answers(
    outputs: problem.Outputs, windows: Windows, examples: SpanExamples, settings: SpanSettings
) -> tuple[pa.ListArray, Floats]:
    """Return the best answers to each question, and the score of no answer.

    A span counts if it is in the paragraph, begins where its window has the most context, ends
    no earlier than it begins, and has at most ``max_answer_length`` pieces. Of equal scores the
    one that begins and then ends first is better; of equal texts the better one is kept.

    Args:
        outputs: outputs of the head for the W windows: ``starts`` and
            ``start_scores`` (W, K), ``ends`` and ``end_scores`` (W, J), or (W, K, J) where they
            depend on the start, ``null_scores`` (W,).
        windows: the W windows, at least one.
        examples: the N questions.
        settings: the settings of the decoding.

    Returns:
        Lists (N,) of at most ``n_best`` spans of different texts, the best first: the text, a slice
        of the paragraph; its first character and the one after its last; the summed scores of start
        and end. Then (N,), the least of ``null_scores`` over the windows of the question.
    """
    parts = [
        _candidates(outputs, windows, slice(begin, begin + _WINDOWS_AT_ONCE), examples, settings)
        for begin in range(0, len(windows.first), _WINDOWS_AT_ONCE)
    ]
    question, begins, ends, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((ends, begins, -scores, question))
    question, begins, ends, scores = (each[order] for each in (question, begins, ends, scores))
    kept, texts = _different_texts(question, begins, ends, examples, settings.n_best)
    columns = [
        pa.array(texts, pa.string()),
        *map(pa.array, (begins[kept], ends[kept], scores[kept])),
    ]
    spans = pa.StructArray.from_arrays(columns, names=_SPAN_FIELDS)
    numbers = np.bincount(question[kept], minlength=len(examples))
    bounds = pa.array(np.append(0, np.cumsum(numbers)), pa.int32())
    null_scores = np.full(len(examples), np.inf)
    np.minimum.at(null_scores, windows.question_of, outputs["null_scores"].astype(np.float64))
    return pa.ListArray.from_arrays(bounds, spans), null_scores


def _candidates(
    outputs: problem.Outputs,
    windows: Windows,
    part: slice,
    examples: SpanExamples,
    settings: SpanSettings,
) -> tuple[Ints, Ints, Ints, Floats]:
    """Return the valid spans of the windows ``part``: question, first and last character, score."""
    offsets, lengths = windows.offsets[part, None], windows.lengths[part, None]
    start = outputs["starts"][part] - offsets  # (W, K), counted in the window's paragraph
    start_scores = outputs["start_scores"][part].astype(np.float64)
    begins_here = (start >= 0) & (start < lengths) & np.isfinite(start_scores)
    in_all = begins_of(windows.lengths)[part, None] + start
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


def _account_of_answers(
    examples: SpanExamples, question_of: Ints, first: Ints, inside: Bools
) -> Account:
    """Return how many questions with an answer have it as the target of a window.

    Args:
        examples: the N questions.
        question_of: (W,), the question of each window, as are the next two.
        first: the first piece of the question's answer; -1 if there is none.
        inside: whether the window contains the answer.
    """
    has_pieces, is_target = (len(np.unique(question_of[which])) for which in (first >= 0, inside))
    total = sum(map(bool, examples.answers))
    dropped = {"no_pieces": total - has_pieces, IN_NO_WINDOW: has_pieces - is_target}
    return Account(what="answers", total=total, kept=is_target, dropped=dropped)


def _texts_of_answers(examples: SpanExamples) -> list[tuple[str, ...]]:
    return [tuple(answer.text for answer in of_one) for of_one in examples.answers]
