"""The reader of SQuAD."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Answer
from albert_core.tasks.squad import read_squad
from tests.albert_core.tasks.task_files import DATA, squad_question, write, write_squad

SQUAD = DATA / "squad"


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
@pytest.mark.parametrize(
    ("name", "has_answerless", "num_questions"),
    [
        ("squad-v1.1-articles-0-35.json", False, 8123),
        ("squad-v2.0-articles-0-24.json", True, 8017),
        ("train_prefix/train-v1.1.prefix_recovered.json", False, 4370),
    ],
)
def test_the_published_files_are_read_whole_and_answers_stand_where_they_say(
    name: str, has_answerless: bool, num_questions: int, caplog: pytest.LogCaptureFixture
) -> None:
    examples = read_squad(str(SQUAD / name), has_answerless)
    assert len(examples) == len(examples.questions) == num_questions
    assert examples.paragraph_of.max() == len(examples.paragraphs) - 1
    for row, answers in enumerate(examples.answers):
        paragraph = examples.paragraphs[examples.paragraph_of[row]]
        assert all(paragraph.startswith(answer.text, answer.start) for answer in answers)
    assert any(not answers for answers in examples.answers) == has_answerless
    assert not caplog.records


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_a_file_that_is_cut_off_is_refused_with_where() -> None:
    name = SQUAD / "train_prefix/train-v1.1.truncated_at_1280000.json"
    with pytest.raises(TaskError, match=r"character 1,280,000 of 1,280,000.* cut off"):
        read_squad(str(name), has_answerless=False)


def test_questions_know_their_paragraph_and_keep_all_their_answers(tmp_path: Path) -> None:
    questions = [squad_question("q1", ("A cat", 0), ("cat", 2)), squad_question("q2", ("sat", 6))]
    found = read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=False)
    assert (found.ids, found.paragraphs) == (["q1", "q2"], ["A cat sat."])
    assert found.paragraph_of.tolist() == [0, 0]
    assert found.answers == [(Answer("A cat", 0), Answer("cat", 2)), (Answer("sat", 6),)]


def test_plausible_answers_mean_nothing(tmp_path: Path) -> None:
    plausible = [{"text": "sat", "answer_start": 6}]
    questions = [squad_question("q1", is_impossible=True, plausible_answers=plausible)]
    found = read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=True)
    assert found.answers == [()]


def test_offsets_count_characters_also_beyond_the_basic_plane(tmp_path: Path) -> None:
    questions = [squad_question("q1", ("𝔘b", 2))]
    path = write_squad(tmp_path / "dev.json", questions, context="𝔘 𝔘b")
    assert read_squad(path, has_answerless=False).answers == [(Answer("𝔘b", 2),)]


@pytest.mark.parametrize(
    ("said", "start"), [(-5, 0), (1, 0), (3, 4), (4, 4), (6, 4), (7, 8), (99, 8)]
)
def test_an_answer_that_stands_elsewhere_is_moved_to_the_nearest_place_and_said(
    tmp_path: Path, said: int, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_squad(
        tmp_path / "dev.json", [squad_question("q7", ("cat", said))], context="cat cat cat"
    )
    with caplog.at_level(logging.WARNING):
        found = read_squad(path, has_answerless=False)
    assert found.answers == [(Answer("cat", start),)]
    if said != start:
        assert f"{path}, data[0].paragraphs[0].qas[0].answers[0]" in caplog.text
        assert "article 'Cats', question id 'q7'" in caplog.text
        assert "1 answers do not stand where" in caplog.text


QAS = r"dev\.json, data\[0\]\.paragraphs\[0\]\.qas"
WITHOUT_START = {"id": "q1", "question": "Who?", "answers": [{"text": "cat"}]}
CAT = ("cat", 2)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        (
            [squad_question("q1", ("dog", 2))],
            rf"{QAS}\[0\]\.answers\[0\]: the answer 'dog' of article 'Cats', question id 'q1' is ",
        ),
        ([squad_question("q1", CAT)] * 2, rf"{QAS}\[1\]: question id 'q1' is that of .*\[0\] too"),
        ([squad_question("q1")], r"question id 'q1' has no answer, but is not said to be"),
        ([squad_question("q1", is_impossible=True)], r"has no answer, which SQuAD 1\.1 does not"),
        ([squad_question("q1", CAT, is_impossible=True)], r"is_impossible, but has 1 answers"),
        ([squad_question("q1", CAT, is_impossible="no")], r"is_impossible is 'no'"),
        ([squad_question("q1", (" ", 1))], r"the answer of article 'Cats', .* is blank"),
        ([{"id": "q1", "answers": []}], r"\[0\]: found None, expected a text as field 'question'"),
        ([{"question": "Who?"}], r"expected a text as field 'id'"),
        ([{"id": "q1", "question": "Who?"}], r"expected a list as field 'answers'"),
        ([WITHOUT_START], r"answers\[0\]: .* expected a whole number as field 'answer_start'"),
        (["?"], r"qas\[0\]: found '\?', expected a text as field 'id'"),
        ([], r"has no questions"),
    ],
)
def test_a_malformed_question_is_refused_with_its_path(
    tmp_path: Path, questions: list[Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_squad(write_squad(tmp_path / "dev.json", questions), has_answerless=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"character 0 of 0\): not JSON"),
        ('{"data": [}', r"line 1, column 11 .*: not JSON .* Correct the file"),
        ("[1]", r"at its top: found \[1\], expected a list as field 'data'"),
        (json.dumps({"data": [{"paragraphs": 3}]}), r"data\[0\]: found 3, expected a list"),
        (b'{"data": "\xff"}', r"line 1: not UTF-8"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_squad(write(tmp_path / "dev.json", content), has_answerless=False)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"dev\.json is missing"):
        read_squad(str(tmp_path / "dev.json"), has_answerless=False)
