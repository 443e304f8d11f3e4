"""SQuAD 1.1 and 2.0: the reader of their JSON files, and their scores.

The scores are those of the official evaluation, question by question. The two versions differ
where a text has no words left once articles and punctuation are removed.

N questions. Sources: Rajpurkar et al. 2016 (``evaluate-v1.1.py``) and Rajpurkar et al. 2018
(``evaluate-v2.0.py``), the scripts that SQuAD's site offers.
"""

import logging
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import ShapeError, TaskError
from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.reading import parse_object, read_text

_MAX_NAMED = 10
"""Moved answers that the log names one by one."""
_KINDS = {str: "a text", int: "a whole number", list: "a list"}

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_squad(uri: str, has_answerless: bool) -> SpanExamples:
    """Return the questions of the file at ``uri``, in its order.

    The "plausible_answers" of questions without an answer are ignored. An answer that is not where
    ``answer_start`` points is taken from the nearest place with its text, which is logged.

    Args:
        uri: the file, e.g. dev-v1.1.json.
        has_answerless: whether questions may be without an answer, as in 2.0.

    Raises:
        TaskError: the file is missing or cut off, lacks a field, has an id twice, or has an answer
            that is not in its paragraph; naming the JSON path and the question.
    """
    reading = _Reading(uri, has_answerless)
    for number, article in enumerate(
        _Node(uri, "", parse_object(read_text(uri), uri)).each("data")
    ):
        for paragraph in article.each("paragraphs"):
            reading.paragraphs.append(paragraph.get("context", str))
            for question in paragraph.each("qas"):
                reading.add(question, str(article.value.get("title", "")))
                reading.article_of.append(number)
    if reading.num_moved:
        message = "%s: %d answers are not at their answer_start; the nearest same text is used"
        log.warning(message, uri, reading.num_moved)
    if not reading.ids:
        raise TaskError(f"{uri} has no questions; expected SQuAD's data/paragraphs/qas.")
    return SpanExamples(
        ids=list(reading.ids),
        paragraphs=reading.paragraphs,
        paragraph_of=np.array(reading.paragraph_of, np.int64),
        clusters=np.array(reading.article_of, np.int64),
        questions=reading.questions,
        answers=reading.answers,
    )


@dataclass(frozen=True)
class _Node:
    """A value in the file, and the path to it."""

    uri: str
    path: str
    value: Any

    def get(self, name: str, kind: type[T]) -> T:
        """Return field ``name``, which must be of ``kind``."""
        found = self.value.get(name) if isinstance(self.value, dict) else self.value
        if not isinstance(self.value, dict) or not isinstance(found, kind):
            raise self.error(f"found {repr(found)[:60]}, expected {_KINDS[kind]} as field {name!r}")
        return found

    def each(self, name: str) -> Iterator["_Node"]:
        """Yield the elements of the list in field ``name``."""
        for number, value in enumerate(self.get(name, list)):
            yield _Node(self.uri, f"{self.path}.{name}[{number}]".lstrip("."), value)

    def error(self, message: str) -> TaskError:
        """Return an error that names the place."""
        return TaskError(f"{self.uri}, {self.path or 'at its top'}: {message}. Correct the file.")


@dataclass
class _Reading:
    """What was read of a file so far."""

    uri: str
    has_answerless: bool
    ids: dict[str, str] = field(default_factory=dict)
    """The id of each question, and the path to it."""
    paragraphs: list[str] = field(default_factory=list)
    paragraph_of: list[int] = field(default_factory=list)
    article_of: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[tuple[Answer, ...]] = field(default_factory=list)
    num_moved: int = 0

    def add(self, question: _Node, title: str) -> None:
        """Add a question about the last paragraph, which is in the article called ``title``."""
        name = question.get("id", str)
        if name in self.ids:
            raise question.error(f"question id {name!r} is that of {self.ids[name]} too")
        self.ids[name] = question.path
        self.questions.append(question.get("question", str))
        self.paragraph_of.append(len(self.paragraphs) - 1)
        where = f"article {title!r}, question id {name!r}"
        answers = list(question.each("answers"))
        self._check_impossible(question, len(answers), where)
        self.answers.append(tuple(self._placed(answer, where) for answer in answers))

    def _check_impossible(self, question: _Node, num_answers: int, where: str) -> None:
        is_impossible = question.value.get("is_impossible", False)
        if not isinstance(is_impossible, bool):
            raise question.error(f"is_impossible is {is_impossible!r}, expected true or false")
        if is_impossible and num_answers:
            raise question.error(f"{where} is_impossible, but has {num_answers} answers")
        if not num_answers and not is_impossible:
            raise question.error(f"{where} has no answer, but is not marked as impossible")
        if is_impossible and not self.has_answerless:
            raise question.error(
                f"{where} has no answer, which SQuAD 1.1 does not allow; is this a file of 2.0?"
            )

    def _placed(self, answer: _Node, where: str) -> Answer:
        """Return the answer at a place in the paragraph that has its text."""
        text, start = answer.get("text", str), answer.get("answer_start", int)
        paragraph = self.paragraphs[-1]
        if not text.strip():
            raise answer.error(f"the answer of {where} is blank")
        if start >= 0 and paragraph.startswith(text, start):
            return Answer(text, start)
        first = max(start, 0)
        before, after = paragraph.rfind(text, 0, first + len(text)), paragraph.find(text, first)
        places = [place for place in (before, after) if place >= 0]
        if not places:
            raise answer.error(f"the answer {text[:60]!r} of {where} is not in its paragraph")
        nearest = min(places, key=lambda place: abs(place - start))
        self.num_moved += 1
        if self.num_moved <= _MAX_NAMED:
            log.warning(
                "%s, %s: answer_start %d of %s is not that of %r, which is at %d",
                self.uri,
                answer.path,
                start,
                where,
                text[:60],
                nearest,
            )
        return Answer(text, nearest)


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_REMEMBERED_TEXTS = 1 << 16


@dataclass(frozen=True)
class AnswerScores:
    """How well each question is answered: the best over its annotated answers."""

    exact_match: Floats
    """(N,), 1 if the prediction is an answer apart from case, articles, punctuation and blanks."""
    f1: Floats
    """(N,), F1 of the words that prediction and answer have in common, 0..1."""


@dataclass(frozen=True)
class Threshold:
    """The no-answer score above which a question is left without an answer."""

    total: float
    """Sum of all N scores with this threshold."""
    value: float
    """The highest no-answer score at which a prediction is still kept."""


@lru_cache(_REMEMBERED_TEXTS)
def normalise_answer(text: str) -> str:
    """Return ``text`` in lower case without ASCII punctuation, articles and needless blanks."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def score_answers(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], has_answerless: bool
) -> AnswerScores:
    """Return the scores of N predictions.

    Args:
        predictions: the predicted texts; "" predicts that there is no answer.
        answers: the annotated texts of each question; empty for a question without an answer.
        has_answerless: score by the rules of SQuAD 2.0, else by those of 1.1.

    Raises:
        ShapeError: there are not as many predictions as questions; or a question has no answer
            by the rules of 1.1, where each has one.
    """
    if len(predictions) != len(answers):
        raise ShapeError(f"{len(predictions)} predictions for {len(answers)} questions")
    exact_match, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (prediction, texts) in enumerate(zip(predictions, answers, strict=True)):
        if not texts and not has_answerless:
            raise ShapeError(f"question {row} has no answer; only SQuAD 2.0's rules allow that")
        found = normalise_answer(prediction)
        right = {normalise_answer(text) for text in texts}
        if has_answerless:
            right = right - {""} or {""}
        exact_match[row] = found in right
        f1[row] = max(_shared_words(found, text, has_answerless) for text in right)
    return AnswerScores(exact_match, f1)


def squad_1_scores(scores: AnswerScores) -> dict[str, float]:
    """Return what ``evaluate-v1.1.py`` prints, in percent."""
    return {"exact_match": _percent(scores.exact_match), "f1": _percent(scores.f1)}


def squad_2_scores(
    scores: AnswerScores,
    predictions: Sequence[str],
    has_answer: Bools,
    no_answer_scores: Floats,
    threshold: float,
) -> dict[str, float]:
    """Return what ``evaluate-v2.0.py`` prints, in percent: all, HasAns, NoAns, best threshold.

    Args:
        scores: of ``predictions``.
        predictions: N texts, "" where no answer is predicted.
        has_answer: (N,).
        no_answer_scores: (N,), higher where the model believes that there is no answer.
        threshold: a question with a higher no-answer score counts as left without an answer.
    """
    applied = apply_threshold(scores, no_answer_scores, has_answer, threshold)
    found: dict[str, float] = {}
    parts = {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}
    for prefix, rows in parts.items():
        if rows.any():
            found |= {
                f"{prefix}exact": _percent(applied.exact_match[rows]),
                f"{prefix}f1": _percent(applied.f1[rows]),
                f"{prefix}total": int(rows.sum()),
            }
    for name, raw in (("exact", scores.exact_match), ("f1", scores.f1)):
        best = best_threshold(raw, predictions, has_answer, no_answer_scores)
        found[f"best_{name}"] = 100.0 * best.total / len(raw)
        found[f"best_{name}_thresh"] = best.value
    return found


def apply_threshold(
    scores: AnswerScores, no_answer_scores: Floats, has_answer: Bools, threshold: float
) -> AnswerScores:
    """Return ``scores`` when questions above ``threshold`` are left without an answer.

    Args:
        scores: of the predictions as they are.
        no_answer_scores: (N,).
        has_answer: (N,).
        threshold: see `Threshold.value`.
    """
    is_left = no_answer_scores > threshold
    exact_match, f1 = (
        np.where(is_left, ~has_answer, values).astype(np.float64)
        for values in (scores.exact_match, scores.f1)
    )
    return AnswerScores(exact_match, f1)


def best_threshold(
    scores: Floats, predictions: Sequence[str], has_answer: Bools, no_answer_scores: Floats
) -> Threshold:
    """Return the threshold with the best score, searched as in the official evaluation.

    Questions are answered one after the other, in the order of their no-answer scores and then of
    the file; the first best place to stop counts, so that a threshold may be between questions of
    equal no-answer score. Before any is answered, each question without an answer is right, and
    the threshold is 0.

    Args:
        scores: (N,), of the predictions as they are.
        predictions: N texts, "" where no answer is predicted.
        has_answer: (N,).
        no_answer_scores: (N,), finite.
    """
    gives_text = np.array([bool(text) for text in predictions])
    order = np.argsort(no_answer_scores, kind="stable")
    gains = np.where(has_answer, scores, -gives_text.astype(np.float64))[order]
    # Added one after the other, as in the official loop: the sums are equal to the last bit.
    sums = np.cumsum(np.concatenate([[float((~has_answer).sum())], gains]))
    best = int(sums.argmax())
    value = 0.0 if best == 0 else float(no_answer_scores[order[best - 1]])
    return Threshold(float(sums[best]), value)


def no_answer_probability(logits: Floats) -> Floats:
    """Return the probability that a question has no answer, from the logit of that."""
    return np.exp(-np.logaddexp(0.0, -logits))


def _shared_words(prediction: str, answer: str, has_answerless: bool) -> float:
    """Return the F1 of the words of two normalised texts."""
    found, right = prediction.split(), answer.split()
    if has_answerless and not (found and right):
        return float(found == right)
    num_shared = sum((Counter(found) & Counter(right)).values())
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(found), num_shared / len(right)
    return (2 * precision * recall) / (precision + recall)


def _percent(scores: Floats) -> float:
    return 100.0 * float(scores.mean())
