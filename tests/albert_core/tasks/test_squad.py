"""The reader of SQuAD, and its scores against the official evaluation."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import TaskError
from albert_core.tasks import squad
from albert_core.tasks.examples import Answer
from tests.albert_core.tasks.task_files import DATA, squad_question, write, write_squad

SQUAD = DATA / "squad"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")


@needs_data
@pytest.mark.parametrize(
    ("name", "has_answerless", "num_questions"),
    [
        ("squad-v1.1-articles-0-35.json", False, 8123),
        ("squad-v2.0-articles-0-24.json", True, 8017),
        ("train_prefix/train-v1.1.prefix_recovered.json", False, 4370),
    ],
)
def test_the_published_files_are_read_whole_and_answers_are_where_they_say(
    name: str, has_answerless: bool, num_questions: int, caplog: pytest.LogCaptureFixture
) -> None:
    examples = squad.read_squad(str(SQUAD / name), has_answerless)
    assert len(examples) == len(examples.questions) == num_questions
    assert examples.paragraph_of.max() == len(examples.paragraphs) - 1
    for row, answers in enumerate(examples.answers):
        paragraph = examples.paragraphs[examples.paragraph_of[row]]
        assert all(paragraph.startswith(answer.text, answer.start) for answer in answers)
    assert any(not answers for answers in examples.answers) == has_answerless
    assert not caplog.records


@needs_data
def test_a_file_that_is_cut_off_is_refused_with_where() -> None:
    name = SQUAD / "train_prefix/train-v1.1.truncated_at_1280000.json"
    with pytest.raises(TaskError, match=r"char 1280000\), of 1,280,000 .* cut off"):
        squad.read_squad(str(name), has_answerless=False)


def test_questions_know_their_paragraph_and_keep_all_their_answers(tmp_path: Path) -> None:
    questions = [squad_question("q1", ("A 𝔘t", 0), ("𝔘t", 2)), squad_question("q2", ("sat", 5))]
    path = write_squad(tmp_path / "dev.json", questions, context="A 𝔘t sat.")
    found = squad.read_squad(path, has_answerless=False)
    assert (found.ids, found.paragraphs) == (["q1", "q2"], ["A 𝔘t sat."])
    assert found.paragraph_of.tolist() == [0, 0]
    assert found.answers == [(Answer("A 𝔘t", 0), Answer("𝔘t", 2)), (Answer("sat", 5),)]


def test_plausible_answers_are_ignored(tmp_path: Path) -> None:
    plausible = [{"text": "sat", "answer_start": 6}]
    questions = [squad_question("q1", is_impossible=True, plausible_answers=plausible)]
    found = squad.read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=True)
    assert found.answers == [()]


@pytest.mark.parametrize(("said", "start"), [(-5, 0), (1, 0), (3, 4), (4, 4), (7, 8), (99, 8)])
def test_an_answer_that_is_elsewhere_is_taken_from_the_nearest_place_and_logged(
    tmp_path: Path, said: int, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [squad_question("q7", ("cat", said))]
    path = write_squad(tmp_path / "dev.json", questions, context="cat cat cat")
    with caplog.at_level(logging.WARNING):
        found = squad.read_squad(path, has_answerless=False)
    assert found.answers == [(Answer("cat", start),)]
    if said != start:
        assert f"{path}, article 'Cats', question id 'q7': answer_start {said}" in caplog.text
        assert "1 answers are not at their" in caplog.text


def test_the_log_names_ten_moved_answers_and_counts_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [squad_question(f"q{number}", ("cat", 1)) for number in range(12)]
    squad.read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=False)
    assert len(caplog.records) == 11
    assert "12 answers" in caplog.text


QAS = r"dev\.json, data\[0\]\.paragraphs\[0\]\.qas"
WITHOUT_START = {"id": "q1", "question": "Who?", "answers": [{"text": "cat"}]}
CAT = ("cat", 2)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        (
            [squad_question("q1", ("dog", 2))],
            r"dev\.json, article 'Cats', question id 'q1': the answer 'dog' is .*not in its paragr",
        ),
        ([squad_question("q1", CAT)] * 2, "question id 'q1': two questions have this id"),
        ([squad_question("q1")], "question id 'q1': is_impossible is False, but there are 0 answ"),
        ([squad_question("q1", is_impossible=True)], r"has no answer, which SQuAD 1\.1 does not"),
        (
            [squad_question("q1", CAT, is_impossible=True)],
            "is_impossible is True, .* are 1 answers",
        ),
        ([squad_question("q1", CAT, is_impossible="no")], "is_impossible: .* boolean, found 'no'"),
        ([squad_question("q1", (" ", 1))], r"the answer ' ' is blank"),
        ([WITHOUT_START], rf"{QAS}\[0\]\.answers\[0\]\.answer_start: Field required"),
        (["?"], rf"{QAS}\[0\]: Input should be a valid dictionary .* found '\?'"),
        ([], r"has no questions"),
    ],
)
def test_a_malformed_question_is_refused_with_its_path(
    tmp_path: Path, questions: list[Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        squad.read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"found nothing, expected a JSON object"),
        ('{"data": [}', r"not JSON .*line 1 column 11 .* Correct the file"),
        ("[1]", r"dev\.json: found '\[1\]', expected a JSON object"),
        (json.dumps({"data": [{"paragraphs": 3}]}), r"data\[0\]\.paragraphs: .* list, found 3"),
        (b'{"data": "\xff"}', r"line 1: not UTF-8"),
        (None, r"dev\.json is missing"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    if content is not None:
        write(tmp_path / "dev.json", content)
    with pytest.raises(TaskError, match=message):
        squad.read_squad(str(tmp_path / "dev.json"), has_answerless=False)


GOLDEN = json.loads((Path(__file__).parents[2] / "golden/squad_evaluation.json").read_text())
CASES = GOLDEN["cases"]
CASES_2 = [case for case in CASES if case["version"] == "2.0"]


def columns(case: dict[str, Any]) -> tuple[list[str], list[list[str]], Any]:
    names = ("prediction", "answers", "no_answer_score")
    predictions, answers, scores = ([each[n] for each in case["questions"]] for n in names)
    return predictions, answers, np.array(scores)


def test_scores_of_1_1_are_those_of_the_official_script() -> None:
    predictions, answers, _ = columns(CASES[0])
    found = squad.squad_1_scores(squad.score_answers(predictions, answers, has_answerless=False))
    assert found == pytest.approx(CASES[0]["scores"], abs=1e-9)


@pytest.mark.parametrize("case", CASES_2, ids=range(len(CASES_2)))
@pytest.mark.parametrize(("key", "threshold"), [("scores", 1.0), ("scores_at_threshold_0.4", 0.4)])
def test_scores_of_2_0_are_those_of_the_official_script(
    case: dict[str, Any], key: str, threshold: float
) -> None:
    predictions, answers, no_answer = columns(case)
    scores = squad.score_answers(predictions, answers, has_answerless=True)
    assert scores["exact_match"].tolist() == case["exact_match"]
    assert scores["f1"].tolist() == case["f1"]
    has_answer = np.array([bool(each) for each in answers])
    found = squad.squad_2_scores(scores, predictions, has_answer, no_answer, threshold)
    assert found == pytest.approx(case[key], abs=1e-9)
    for name in ("best_exact_thresh", "best_f1_thresh"):
        assert found[name] == case[key][name]


@pytest.mark.parametrize(
    ("prediction", "has_answerless", "expected"),
    [("", True, (1, 1)), ("the", True, (1, 1)), ("cat", True, (0, 0)), ("", False, (1, 0))],
)
def test_texts_without_words_are_equal_and_share_words_by_the_rules_of_2_0_only(
    prediction: str, has_answerless: bool, expected: tuple[int, int]
) -> None:
    found = squad.score_answers([prediction], [["The!"]], has_answerless)
    assert (found["exact_match"][0], found["f1"][0]) == expected


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


@given(QUESTIONS)
def test_no_other_place_to_stop_is_better_than_the_best_threshold(
    questions: list[tuple[bool, float, str, float]],
) -> None:
    surest_first = sorted(questions, key=lambda question: question[3])
    totals = [
        sum(score if has_answer else not text for has_answer, score, text, _ in surest_first[:stop])
        + sum(not has_answer for has_answer, *_ in surest_first[stop:])
        for stop in range(len(questions) + 1)
    ]
    stop = totals.index(max(totals))
    has_answer, scores, predictions, no_answer = zip(*questions, strict=True)
    columns = (np.array(scores), predictions, np.array(has_answer), np.array(no_answer))
    total, value = squad.best_threshold(*columns)
    assert total == pytest.approx(max(totals))
    assert value == (surest_first[stop - 1][3] if stop else 0.0)
