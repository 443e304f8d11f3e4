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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.reading import Record, parse_record, read_text
from albert_core.text.records import Bools

_MAX_NAMED = 10
"""Moved answers that are logged individually."""

log = logging.getLogger(__name__)


class _Answer(Record):
    text: str
    answer_start: int


class _Question(Record):
    id: str
    question: str
    answers: list[_Answer]
    is_impossible: bool = False


class _Paragraph(Record):
    context: str
    qas: list[_Question]


class _Article(Record):
    title: Any = ""
    paragraphs: list[_Paragraph]


class _File(Record):
    data: list[_Article]


def read_squad(uri: str, has_answerless: bool) -> SpanExamples:
    """Return the questions of the file at ``uri``, in its order.

    The "plausible_answers" of questions without an answer are ignored. An answer that is not where
    ``answer_start`` points is taken from the nearest place with its text, which is logged.

    Args:
        uri: the file, e.g. dev-v1.1.json.
        has_answerless: whether questions may be without an answer, as in 2.0.

    Raises:
        TaskError: the file is missing or cut off, lacks a field, has an id twice, or has an answer
            that is not in its paragraph; naming the JSON path or the question.
    """
    paragraphs: list[str] = []
    paragraph_of, clusters, questions = [], [], []
    answers: dict[str, tuple[Answer, ...]] = {}
    moved: list[str] = []
    for number, article in enumerate(parse_record(_File, read_text(uri), uri).data):
        for paragraph in article.paragraphs:
            for asked in paragraph.qas:
                where = f"{uri}, article {article.title!r}, question id {asked.id!r}"
                if asked.id in answers:
                    raise TaskError(f"{where}: two questions have this id. Correct the file.")
                _check_impossible(asked, has_answerless, where)
                found = tuple(_placed(each, paragraph.context, where) for each in asked.answers)
                answers[asked.id] = found
                moved += [
                    f"{where}: answer_start {said.answer_start} is not that of {said.text[:60]!r}, "
                    f"which is at {each.start}"
                    for said, each in zip(asked.answers, found, strict=True)
                    if said.answer_start != each.start
                ]
                questions.append(asked.question)
                paragraph_of.append(len(paragraphs))
                clusters.append(number)
            paragraphs.append(paragraph.context)
    if not answers:
        raise TaskError(f"{uri} has no questions; expected SQuAD's data/paragraphs/qas.")
    for message in moved[:_MAX_NAMED]:
        log.warning("%s", message)
    if moved:
        message = "%s: %d answers are not at their answer_start; the nearest same text is used"
        log.warning(message, uri, len(moved))
    return SpanExamples(
        ids=list(answers),
        paragraphs=paragraphs,
        paragraph_of=np.array(paragraph_of, np.int64),
        clusters=np.array(clusters, np.int64),
        questions=questions,
        answers=list(answers.values()),
    )


def _check_impossible(question: _Question, has_answerless: bool, where: str) -> None:
    if question.is_impossible == bool(question.answers):
        raise TaskError(
            f"{where}: is_impossible is {question.is_impossible}, but there are "
            f"{len(question.answers)} answers. Correct the file."
        )
    if question.is_impossible and not has_answerless:
        raise TaskError(
            f"{where} has no answer, which SQuAD 1.1 does not allow; is this a file of 2.0?"
        )


def _placed(answer: _Answer, paragraph: str, where: str) -> Answer:
    """Return the answer at the nearest place in the paragraph that has its text."""
    text, start = answer.text, max(answer.answer_start, 0)
    # The last match up to the stated place, and the first match from it on.
    before, after = paragraph.rfind(text, 0, start + len(text)), paragraph.find(text, start)
    places = [place for place in (before, after) if place >= 0]
    if not text.strip() or not places:
        raise TaskError(
            f"{where}: the answer {text[:60]!r} is blank, or not in its paragraph. Correct it."
        )
    return Answer(text, min(places, key=lambda place: abs(place - answer.answer_start)))


Floats = NDArray[np.float64]
AnswerScores = Mapping[str, Floats]
"""How well each question is answered, (N,) by metric: the best over its annotated answers.
"exact_match" is 1 if the prediction is an answer apart from case, articles, punctuation and blanks;
"f1", 0..1, is that of the words which prediction and answer have in common."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_REMEMBERED_TEXTS = 1 << 16


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
        answers: the annotated texts of each question; empty for a question without an answer,
            which only SQuAD 2.0 has.
        has_answerless: score by the rules of SQuAD 2.0, else by those of 1.1.
    """
    exact_match, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (prediction, texts) in enumerate(zip(predictions, answers, strict=True)):
        found = normalise_answer(prediction)
        right = {normalise_answer(text) for text in texts}
        if has_answerless:
            right = right - {""} or {""}
        exact_match[row] = found in right
        f1[row] = max(_shared_words(found, text, has_answerless) for text in right)
    return {"exact_match": exact_match, "f1": f1}


def squad_1_scores(scores: AnswerScores) -> dict[str, float]:
    """Return what ``evaluate-v1.1.py`` prints, in percent."""
    return {name: _percent(values) for name, values in scores.items()}


def squad_2_scores(
    scores: AnswerScores,
    predictions: Sequence[str],
    has_answer: Bools,
    no_answer_scores: Floats,
    threshold: float,
) -> dict[str, float]:
    """Return what ``evaluate-v2.0.py`` prints, in percent: all, HasAns, NoAns, best threshold.

    Args:
        scores: the scores of ``predictions``.
        predictions: N texts, "" where no answer is predicted.
        has_answer: (N,), whether each question has an answer.
        no_answer_scores: (N,), higher where the model believes that there is no answer.
        threshold: a question with a higher no-answer score counts as left without an answer.
    """
    applied = apply_threshold(scores, no_answer_scores, has_answer, threshold)
    found: dict[str, float] = {}
    parts = {"": np.ones_like(has_answer), "HasAns_": has_answer, "NoAns_": ~has_answer}
    names = {"exact_match": "exact", "f1": "f1"}
    for prefix, rows in parts.items():
        if rows.any():
            found |= {f"{prefix}{names[n]}": _percent(each[rows]) for n, each in applied.items()}
            found[f"{prefix}total"] = int(rows.sum())
    for name, each in scores.items():
        total, value = best_threshold(each, predictions, has_answer, no_answer_scores)
        found[f"best_{names[name]}"] = 100.0 * total / len(each)
        found[f"best_{names[name]}_thresh"] = value
    return found


def apply_threshold(
    scores: AnswerScores, no_answer_scores: Floats, has_answer: Bools, threshold: float
) -> AnswerScores:
    """Return ``scores`` when questions above ``threshold`` are left without an answer.

    Args:
        scores: the scores of the predictions as they are.
        no_answer_scores: (N,), higher where the model believes that there is no answer.
        has_answer: (N,), whether each question has an answer.
        threshold: the highest no-answer score at which a prediction is kept.
    """
    is_left = no_answer_scores > threshold
    return {name: np.where(is_left, ~has_answer, each) for name, each in scores.items()}


def best_threshold(
    scores: Floats, predictions: Sequence[str], has_answer: Bools, no_answer_scores: Floats
) -> tuple[float, float]:
    """Return the threshold with the best score, searched as in the official evaluation.

    Questions are answered one after the other, in the order of their no-answer scores and then of
    the file; the first best place to stop counts, so that a threshold may be between questions of
    equal no-answer score. Before any is answered, each question without an answer is right, and
    the threshold is 0.

    Args:
        scores: (N,), the scores of the predictions as they are.
        predictions: N texts, "" where no answer is predicted.
        has_answer: (N,), whether each question has an answer.
        no_answer_scores: (N,), finite.

    Returns:
        The sum of all N scores with this threshold; and the threshold, the highest no-answer score
        at which a prediction is still kept.
    """
    gives_text = np.array([bool(text) for text in predictions])
    order = np.argsort(no_answer_scores, kind="stable")
    gains = np.where(has_answer, scores, -gives_text.astype(np.float64))[order]
    # Added one after the other, as in the official loop, for equal sums to the last bit.
    sums = np.cumsum(np.concatenate([[float((~has_answer).sum())], gains]))
    best = int(sums.argmax())
    value = 0.0 if best == 0 else float(no_answer_scores[order[best - 1]])
    return float(sums[best]), value


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
