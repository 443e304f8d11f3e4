"""SQuAD 1.1 and 2.0: one JSON file a split, as its site gives them out, and their scores.

The scores are those of the official evaluation, question by question.

The two versions differ where a text has no words left once articles and punctuation are gone.

N questions. Sources: Rajpurkar et al. 2016 (``evaluate-v1.1.py``) and Rajpurkar et al. 2018
(``evaluate-v2.0.py``), the scripts that SQuAD's site gives out.
"""

import json
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
from albert_core.tasks.text_lines import decode, read_file

_MAX_NAMED = 10
"""Moved answers that the log names one by one."""
_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_squad(uri: str, has_answerless: bool) -> SpanExamples:
    """Return the questions of the file at ``uri``, in its order.

    "plausible_answers" of questions without an answer mean nothing. An answer that does not stand
    where ``answer_start`` says is taken where its text stands nearest to it, and the log says so.

    Args:
        uri: the file, e.g. dev-v1.1.json.
        has_answerless: whether questions may be without an answer, as in 2.0.

    Raises:
        TaskError: the file is missing or cut off, lacks a field, names a question twice, or has
            an answer that is not in its paragraph; naming the JSON path and the question.
    """
    reading = _Reading(uri, has_answerless)
    reading.read()
    return reading.examples()


@dataclass(frozen=True)
class _Node:
    """A value in the file, and the path to it."""

    uri: str
    path: str
    value: Any

    def get(self, name: str, kind: type[T]) -> T:
        """Return field ``name``, which must be of ``kind``."""
        if not isinstance(self.value, dict) or not isinstance(self.value.get(name), kind):
            found = self.value.get(name) if isinstance(self.value, dict) else self.value
            raise self.error(f"found {repr(found)[:60]}, expected {_KINDS[kind]} as field {name!r}")
        field_value: T = self.value[name]
        return field_value

    def each(self, name: str) -> Iterator["_Node"]:
        """Yield the elements of the list in field ``name``."""
        for number, value in enumerate(self.get(name, list)):
            yield _Node(self.uri, f"{self.path}{'.' if self.path else ''}{name}[{number}]", value)

    def error(self, message: str) -> TaskError:
        """Return an error that says where."""
        return TaskError(f"{self.uri}, {self.path or 'at its top'}: {message}. Correct the file.")


@dataclass
class _Reading:
    uri: str
    has_answerless: bool
    ids: dict[str, str] = field(default_factory=dict)
    paragraphs: list[str] = field(default_factory=list)
    paragraph_of: list[int] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[tuple[Answer, ...]] = field(default_factory=list)
    num_moved: int = 0

    def read(self) -> None:
        for article in _Node(self.uri, "", _parse(self.uri)).each("data"):
            title = str(article.value.get("title", "")) if isinstance(article.value, dict) else ""
            for paragraph in article.each("paragraphs"):
                self.paragraphs.append(paragraph.get("context", str))
                for question in paragraph.each("qas"):
                    self._add(question, title)
        if self.num_moved:
            log.warning(
                "%s: %d answers do not stand where answer_start says; the nearest place with their "
                "text is used",
                self.uri,
                self.num_moved,
            )
        if not self.ids:
            raise TaskError(f"{self.uri} has no questions; expected SQuAD's data/paragraphs/qas.")

    def examples(self) -> SpanExamples:
        return SpanExamples(
            ids=list(self.ids),
            paragraphs=self.paragraphs,
            paragraph_of=np.array(self.paragraph_of, np.int64),
            questions=self.questions,
            answers=self.answers,
        )

    def _add(self, question: _Node, title: str) -> None:
        name = question.get("id", str)
        if name in self.ids:
            raise question.error(f"question id {name!r} is that of {self.ids[name]} too")
        self.ids[name] = question.path
        self.questions.append(question.get("question", str))
        self.paragraph_of.append(len(self.paragraphs) - 1)
        where = f"article {title!r}, question id {name!r}"
        self.answers.append(tuple(self._answers(question, where)))

    def _answers(self, question: _Node, where: str) -> Iterator[Answer]:
        is_impossible = question.value.get("is_impossible", False)
        if not isinstance(is_impossible, bool):
            raise question.error(f"is_impossible is {is_impossible!r}, expected true or false")
        answers = list(question.each("answers"))
        if is_impossible and answers:
            raise question.error(f"{where} is_impossible, but has {len(answers)} answers")
        if not answers and not is_impossible:
            raise question.error(f"{where} has no answer, but is not said to be impossible")
        if is_impossible and not self.has_answerless:
            raise question.error(
                f"{where} has no answer, which SQuAD 1.1 does not know; is this a file of 2.0?"
            )
        for answer in answers:
            yield self._placed(answer, where)

    def _placed(self, answer: _Node, where: str) -> Answer:
        """Return the answer where its text stands in the paragraph."""
        text, start = answer.get("text", str), answer.get("answer_start", int)
        paragraph = self.paragraphs[-1]
        if not text.strip():
            raise answer.error(f"the answer of {where} is blank")
        if start >= 0 and paragraph.startswith(text, start):
            return Answer(text, start)
        places = [
            at
            for at in (
                paragraph.rfind(text, 0, max(start, 0) + len(text)),
                paragraph.find(text, max(start, 0)),
            )
            if at >= 0
        ]
        if not places:
            raise answer.error(f"the answer {text[:60]!r} of {where} is not in its paragraph")
        nearest = min(places, key=lambda at: abs(at - start))
        self.num_moved += 1
        if self.num_moved <= _MAX_NAMED:
            log.warning(
                "%s, %s: answer_start %d of %s is not that of %r, which stands at %d",
                self.uri,
                answer.path,
                start,
                where,
                text[:60],
                nearest,
            )
        return Answer(text, nearest)


def _parse(uri: str) -> Any:
    text = decode(uri, read_file(uri))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        hint = "The file is cut off: fetch it again." if is_cut else "Correct the file."
        raise TaskError(
            f"{uri}, line {error.lineno}, column {error.colno} (character {error.pos:,} of "
            f"{len(text):,}): not JSON ({error.msg}). {hint}"
        ) from None


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_REMEMBERED_TEXTS = 1 << 16


@dataclass(frozen=True)
class AnswerScores:
    """How well each question is answered: the best over its annotated answers."""

    exact_match: Floats
    """(N,), 1 if the prediction is an answer but for case, articles, punctuation and blanks."""
    f1: Floats
    """(N,), of the words that prediction and answer have in common, 0..1."""


@dataclass(frozen=True)
class Threshold:
    """From which no-answer score on to give no answer."""

    total: float
    """Sum of all N scores when questions above ``value`` are left without an answer."""
    value: float
    """The highest no-answer score at which a prediction still stands."""


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
        predictions: the answers' texts; "" says that there is none.
        answers: of each question the annotated texts; none of a question without an answer.
        has_answerless: score by the rules of SQuAD 2.0, else by those of 1.1.

    Raises:
        ShapeError: there are not as many predictions as questions; or a question has no answer
            by the rules of 1.1, which know none.
    """
    if len(predictions) != len(answers):
        raise ShapeError(f"{len(predictions)} predictions for {len(answers)} questions")
    if not has_answerless and not all(answers):
        raise ShapeError(
            f"question {next(i for i, each in enumerate(answers) if not each)} has no answer; "
            "only SQuAD 2.0's rules score such"
        )
    exact_match, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (prediction, texts) in enumerate(zip(predictions, answers, strict=True)):
        said = normalise_answer(prediction)
        right = {normalise_answer(text) for text in texts}
        if has_answerless:
            right = right - {""} or {""}
        exact_match[row] = said in right
        f1[row] = max(_shared_words(said, text, has_answerless) for text in right)
    return AnswerScores(exact_match, f1)


def squad_1_scores(scores: AnswerScores) -> dict[str, float]:
    """Return what ``evaluate-v1.1.py`` prints, in percent."""
    return {"exact_match": _percent(scores.exact_match), "f1": _percent(scores.f1)}


def squad_2_scores(
    scores: AnswerScores,
    predictions: Sequence[str],
    has_answer: Bools,
    no_answer_scores: Floats | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Return what ``evaluate-v2.0.py`` prints, in percent: all, HasAns, NoAns, best threshold.

    Args:
        scores: of ``predictions``.
        predictions: N texts, "" where none is given.
        has_answer: (N,).
        no_answer_scores: (N,), higher where the model believes that there is no answer; without
            them nothing is said about the best threshold.
        threshold: a question with a higher no-answer score counts as left without an answer.
    """
    no_answer = np.zeros(len(has_answer)) if no_answer_scores is None else no_answer_scores
    exact = apply_threshold(scores.exact_match, no_answer, has_answer, threshold)
    f1 = apply_threshold(scores.f1, no_answer, has_answer, threshold)
    found: dict[str, float] = {}
    parts = {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}
    for prefix, rows in parts.items():
        if rows.any() or not prefix:
            found |= {
                f"{prefix}exact": _percent(exact[rows]),
                f"{prefix}f1": _percent(f1[rows]),
                f"{prefix}total": int(rows.sum()),
            }
    if no_answer_scores is not None:
        for name, raw in (("exact", scores.exact_match), ("f1", scores.f1)):
            best = best_threshold(raw, predictions, has_answer, no_answer)
            total = 100.0 * best.total / len(raw)
            found |= {f"best_{name}": total, f"best_{name}_thresh": best.value}
    return found


def apply_threshold(
    scores: Floats, no_answer_scores: Floats, has_answer: Bools, threshold: float
) -> Floats:
    """Return float64 (N,): ``scores`` when questions above ``threshold`` are left without answer.

    Args:
        scores: (N,) of the predictions as they stand.
        no_answer_scores: (N,).
        has_answer: (N,).
        threshold: see `Threshold.value`.
    """
    return np.where(no_answer_scores > threshold, ~has_answer, scores).astype(np.float64)


def best_threshold(
    scores: Floats, predictions: Sequence[str], has_answer: Bools, no_answer_scores: Floats
) -> Threshold:
    """Return the threshold with the best score, as the official evaluation searches it.

    Questions are answered one after the other, the surest first and of equal ones the first; the
    first best place to stop counts, so that a threshold may lie between questions of the same
    no-answer score. Before any is answered, each question without an answer is right, and the
    threshold is 0.

    Args:
        scores: (N,) of the predictions as they stand.
        predictions: N texts, "" where none is given.
        has_answer: (N,).
        no_answer_scores: (N,), finite.
    """
    gives_text = np.array([bool(text) for text in predictions], bool)
    order = np.argsort(no_answer_scores, kind="stable")
    gains = np.where(has_answer, scores, -gives_text.astype(np.float64))[order]
    unanswered = float((~has_answer).sum())
    # One after the other, as the official loop adds: the sums are equal to the last bit.
    sums = np.cumsum(np.concatenate([[unanswered], gains]))
    best = int(sums.argmax())
    value = 0.0 if best == 0 else float(no_answer_scores[order[best - 1]])
    return Threshold(float(sums[best]), value)


def _shared_words(prediction: str, answer: str, has_answerless: bool) -> float:
    """Return the F1 of the words of two normalised texts."""
    said, right = prediction.split(), answer.split()
    if has_answerless and not (said and right):
        return float(said == right)
    num_shared = sum((Counter(said) & Counter(right)).values())
    if not num_shared:
        return 0.0
    precision, recall = num_shared / len(said), num_shared / len(right)
    return (2 * precision * recall) / (precision + recall)


def _percent(scores: Floats) -> float:
    return 100.0 * float(scores.mean())
