"""Answers are found in the pieces of their paragraph."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.span_inputs import NO_PIECE, ParagraphPieces, span_targets
from albert_core.tasks.span_report import main, recovered_answers, report
from albert_core.tasks.squad import read_squad
from albert_core.text.piece_offsets import encode_with_spans
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tasks.made_spans import made_questions, one_question
from tests.albert_core.tiny_vocab import tiny_vocab

SHARED = Path(__file__).parents[4] / "shared/data"
PUBLISHED = SHARED / "models/30k-clean.model"
SQUAD = [
    "squad-v1.1-articles-0-35.json",
    "squad-v2.0-articles-0-24.json",
    "train_prefix/train-v1.1.prefix_recovered.json",
]


def texts_of_targets(examples: SpanExamples, tokenizer: Tokenizer) -> list[str]:
    return [each.text for each in recovered_answers(examples, tokenizer)]


@pytest.mark.parametrize("name", SQUAD)
def test_the_answers_of_squad_are_recovered(name: str) -> None:
    path = SHARED / "tasks/squad" / name
    if not (PUBLISHED.exists() and path.exists()):
        pytest.skip(f"{path} or {PUBLISHED} is absent")
    examples = read_squad(str(path), has_answerless=True)
    found = recovered_answers(examples, Tokenizer(PUBLISHED.read_bytes()))
    assert len(found) == sum(map(bool, examples.answers))
    others = [each for each in found if not each.is_equal]
    assert len(others) <= 0.005 * len(found)
    for each in others:  # the annotated answer is a part of a word
        assert each.annotated in each.text
        assert each.cause.startswith("part of a piece")


def test_an_answer_is_all_pieces_that_have_any_of_its_characters() -> None:
    examples = made_questions(30, seed=1)
    assert texts_of_targets(examples, tiny_vocab()) == [a[0].text for a in examples.answers]


@settings(deadline=None)
@given(st.data())
def test_any_part_of_a_paragraph_is_within_the_pieces_that_cover_it(data: st.DataObject) -> None:
    paragraphs = ["bade 12 kolu.", "é ﬁ½ x", "", " mo  pi "]
    pieces = ParagraphPieces(paragraphs, encode_with_spans(tiny_vocab(), paragraphs))
    number = data.draw(st.integers(0, 3))
    text = paragraphs[number]
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    first, last = (
        int(each[0])
        for each in pieces.covering(np.array([number]), np.array([begin]), np.array([end]))
    )
    if last < first:
        assert not text[begin:end].strip()
        return
    found = pieces.characters(np.array([number]), np.array([first]), np.array([last]))
    left, right = int(found[0][0]), int(found[1][0])
    assert text[begin:left].strip() == text[right:end].strip() == ""
    assert 0 <= first <= last < pieces.spans.lengths[number]


def test_part_of_a_piece_becomes_the_piece() -> None:
    text = "bade (12)."
    [found] = recovered_answers(one_question(text, Answer("ad", 1)), tiny_vocab())
    assert found.text.startswith("ba")
    assert not found.moved
    assert "part of a piece" in found.cause


def test_a_slip_inside_a_piece_moves_to_the_nearest_place_where_the_text_stands_by_itself() -> None:
    text = "a ko bade a ba de"
    examples = one_question(text, Answer("a", text.index("ade")))
    pieces = ParagraphPieces([text], encode_with_spans(tiny_vocab(), [text]))
    targets = span_targets(examples, pieces)
    assert targets.moved.tolist() == [True]
    begin, end = pieces.characters(np.array([0]), targets.first, targets.last)
    assert (int(begin[0]), int(end[0])) == (10, 11)


def test_punctuation_in_an_answers_piece_moves_nothing() -> None:
    examples = one_question("bade 12. 12", Answer("12", 5))
    [found] = recovered_answers(examples, tiny_vocab())
    assert found.is_equal
    assert not found.moved


def test_questions_without_an_answer_or_without_its_pieces_have_no_target() -> None:
    text = "bade \u200b lo"
    for answers in ((), (Answer("\u200b", 5),), (Answer(" ", 4),)):
        examples = one_question(text, *answers)
        pieces = ParagraphPieces([text], encode_with_spans(tiny_vocab(), [text]))
        targets = span_targets(examples, pieces)
        assert targets.first.tolist() == targets.last.tolist() == [NO_PIECE]


def test_the_report_lists_what_is_not_recovered_and_why() -> None:
    examples = one_question("bade \u200b lo", Answer("\u200b", 5))
    found = recovered_answers(examples, tiny_vocab())
    said = report("x.json", examples, found)
    assert "1 with an answer; 0 recovered (0.00%)" in said
    assert "no piece has any of its characters" in said


def test_the_report_fails_in_words_on_a_file_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spiece.model").write_bytes(tiny_vocab().model)
    assert main([str(tmp_path / "x.json"), "--vocab", str(tmp_path)]) != 0
    assert "x.json" in caplog.text
