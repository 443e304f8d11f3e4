"""SQuAD's scores against the official evaluation, and the search of the threshold."""

import json
import re
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import ShapeError
from albert_core.tasks.squad import (
    best_threshold,
    normalise_answer,
    score_answers,
    squad_1_scores,
    squad_2_scores,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/squad_evaluation.json").read_text())
CASES = GOLDEN["cases"]
CASES_2 = [case for case in CASES if case["version"] == "2.0"]
WORDS = st.sampled_from(
    [
        "the",
        "The",
        "an",
        "A",
        "cat",
        "cats",
        "U.S.",
        "$5",
        "5",
        "—",
        "...",
        "ÉTÉ",
        "日本",
        "İ",
        "a-b",
    ]
)
TEXTS = st.lists(WORDS, max_size=4).map(" ".join) | st.text(max_size=8)


def columns(case: dict[str, Any]) -> tuple[list[str], list[list[str]], Any]:
    questions = case["questions"]
    return (
        [each["prediction"] for each in questions],
        [each["answers"] for each in questions],
        np.array([each["no_answer_score"] for each in questions]),
    )


def test_scores_of_1_1_are_those_of_the_official_script() -> None:
    predictions, answers, _ = columns(CASES[0])
    found = squad_1_scores(score_answers(predictions, answers, has_answerless=False))
    assert found == pytest.approx(CASES[0]["scores"], abs=1e-9)


@pytest.mark.parametrize("case", CASES_2, ids=range(len(CASES_2)))
@pytest.mark.parametrize(("key", "threshold"), [("scores", 1.0), ("scores_at_threshold_0.4", 0.4)])
def test_scores_of_2_0_are_those_of_the_official_script(
    case: dict[str, Any], key: str, threshold: float
) -> None:
    predictions, answers, no_answer = columns(case)
    scores = score_answers(predictions, answers, has_answerless=True)
    assert scores.exact_match.tolist() == case["exact_match"]
    assert scores.f1.tolist() == case["f1"]
    has_answer = np.array([bool(each) for each in answers])
    found = squad_2_scores(scores, predictions, has_answer, no_answer, threshold)
    assert found == pytest.approx(case[key], abs=1e-9)
    for name in ("best_exact_thresh", "best_f1_thresh"):
        assert found[name] == case[key][name]


def test_without_no_answer_scores_there_is_no_best_threshold() -> None:
    predictions, answers, _ = columns(CASES_2[0])
    scores = score_answers(predictions, answers, has_answerless=True)
    found = squad_2_scores(scores, predictions, np.array([bool(each) for each in answers]))
    assert not any(name.startswith("best") for name in found)
    assert found["HasAns_total"] + found["NoAns_total"] == found["total"]


@given(st.text() | TEXTS)
def test_a_normalised_answer_has_no_case_articles_punctuation_or_blanks(text: str) -> None:
    found = normalise_answer(text)
    assert found == found.lower() == " ".join(found.split())
    assert not set(found) & set(string.punctuation)
    assert not re.findall(r"\b(a|an|the)\b", found)


def f1_by_pairing(said: list[str], right: list[str]) -> float:
    """The F1 of two bags of words, their common words crossed out one by one."""
    left = list(right)
    shared = 0
    for word in said:
        if word in left:
            left.remove(word)
            shared += 1
    return 2 * shared / (len(said) + len(right)) if shared else 0.0


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=6), st.booleans())
def test_the_best_of_several_answers_counts(
    prediction: str, answers: list[str], has_answerless: bool
) -> None:
    found = score_answers([prediction], [answers], has_answerless)
    said = normalise_answer(prediction)
    right = [normalise_answer(answer) for answer in answers]
    if has_answerless:
        right = [answer for answer in right if answer] or [""]
    assert found.exact_match[0] == (said in right)
    if has_answerless and (not said or right == [""]):
        assert found.f1[0] == (said in right)
    else:
        expected = max(f1_by_pairing(said.split(), each.split()) for each in right)
        assert found.f1[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "has_answerless", "expected"),
    [("", True, (1, 1)), ("the", True, (1, 1)), ("cat", True, (0, 0)), ("", False, (1, 0))],
)
def test_texts_without_words_are_equal_and_share_words_by_the_rules_of_2_0_only(
    prediction: str, has_answerless: bool, expected: tuple[int, int]
) -> None:
    found = score_answers([prediction], [["The!"]], has_answerless)
    assert (found.exact_match[0], found.f1[0]) == expected


QUESTIONS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.sampled_from(["", "text"]),
        st.sampled_from([-1.0, 0.0, 0.5, 2.0]) | st.floats(-3, 3),
    ),
    min_size=1,
    max_size=25,
)


def total_when_answering(first: Sequence[tuple[bool, float, str, float]], others: int) -> float:
    """The sum of scores when only ``first`` are answered, of the others ``others`` rightly not."""
    right = sum(score if has_answer else not text for has_answer, score, text, _ in first)
    return right + others


@given(QUESTIONS)
def test_no_other_place_to_stop_is_better_than_the_best_threshold(
    questions: list[tuple[bool, float, str, float]],
) -> None:
    surest_first = sorted(questions, key=lambda question: question[3])
    totals = [
        total_when_answering(surest_first[:stop], sum(not q[0] for q in surest_first[stop:]))
        for stop in range(len(questions) + 1)
    ]
    stop = totals.index(max(totals))
    has_answer, scores, predictions, no_answer = zip(*questions, strict=True)
    found = best_threshold(np.array(scores), predictions, np.array(has_answer), np.array(no_answer))
    assert found.total == pytest.approx(max(totals))
    assert found.value == (surest_first[stop - 1][3] if stop else 0.0)


def test_predictions_of_other_questions_are_refused() -> None:
    with pytest.raises(ShapeError, match="2 predictions for 1 questions"):
        score_answers(["a", "b"], [["a"]], has_answerless=False)
    with pytest.raises(ShapeError, match="question 1 has no answer"):
        score_answers(["a", "b"], [["a"], []], has_answerless=False)


def test_a_full_dev_set_is_scored_in_less_than_five_seconds() -> None:
    num_questions = 11_873
    answers = [
        [f"the answer {n} of {k} words, and more" for k in range(4)] for n in range(num_questions)
    ]
    predictions = [f"Answer {n} of 3 words" for n in range(num_questions)]
    has_answer = np.ones(num_questions, bool)
    began = time.process_time()
    scores = score_answers(predictions, answers, has_answerless=True)
    squad_2_scores(scores, predictions, has_answer, np.arange(num_questions) / num_questions)
    assert time.process_time() - began < 5
