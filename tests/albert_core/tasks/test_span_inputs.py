"""Windows of paragraphs, against the same in plain words, and the pieces of their answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.config import SpanSettings
from albert_core.stage.errors import ConfigError
from albert_core.tasks.examples import Answer, SpanExamples
from albert_core.tasks.spans import ParagraphPieces, span_inputs, span_targets
from albert_core.text.piece_offsets import encode_with_spans
from albert_core.text.records import CLS, SEP
from tests.albert_core.tasks.made_spans import made_questions, one_question
from tests.albert_core.tiny_vocab import tiny_vocab


def plain_windows(
    examples: SpanExamples, max_seq_length: int, settings: SpanSettings
) -> list[dict[str, Any]]:
    """Return what `convert_examples_to_features` of the reference does, window by window."""
    found = []
    for row, question in enumerate(examples.questions):
        query = tiny_vocab().encode([question])[0][: settings.max_query_length]
        pieces = tiny_vocab().encode([examples.paragraphs[examples.paragraph_of[row]]])[0]
        room = max_seq_length - len(query) - 3
        spans, begin = [], 0
        while True:
            length = min(room, len(pieces) - begin)
            spans.append((begin, length))
            if begin + length == len(pieces):
                break
            begin += min(length, settings.doc_stride)
        for number, (begin, length) in enumerate(spans):
            ids = [CLS, *query, SEP, *pieces[begin : begin + length], SEP]
            places = range(begin, begin + length)
            context = [number == most_context(spans, place) for place in places]
            found.append({"row": row, "ids": ids, "first": begin, "context": context})
    return found


def most_context(spans: list[tuple[int, int]], place: int) -> int:
    scores = [
        (min(place - begin, begin + length - 1 - place) + 0.01 * length, -number)
        for number, (begin, length) in enumerate(spans)
        if begin <= place < begin + length
    ]
    return -max(scores)[1]


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 1000),
    st.integers(12, 60),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(0, 60),
)
def test_windows_are_those_of_the_reference(
    seed: int, max_seq_length: int, doc_stride: int, max_query_length: int, num_words: int
) -> None:
    examples = made_questions(3, seed, num_words=(1, 1 + num_words), questions_each=2)
    check_windows(examples, max_seq_length, doc_stride, max_query_length)


@pytest.mark.parametrize("num_words", [150, 170, 190])
def test_a_last_window_much_shorter_has_less_context(num_words: int) -> None:
    examples = made_questions(1, num_words=(num_words, num_words))
    check_windows(examples, max_seq_length=280, doc_stride=200, max_query_length=64)


def check_windows(
    examples: SpanExamples, max_seq_length: int, doc_stride: int, max_query_length: int
) -> None:
    chosen = SpanSettings(doc_stride=doc_stride, max_query_length=max_query_length)
    inputs = span_inputs(examples, tiny_vocab(), max_seq_length, chosen)
    windows, sequences = inputs.details, inputs.sequences
    expected = plain_windows(examples, max_seq_length, chosen)
    assert inputs.num_units == len(expected)
    assert windows.question_of.tolist() == [each["row"] for each in expected]
    assert windows.first.tolist() == [each["first"] for each in expected]
    assert sequences.input_ids.tolist() == [piece for each in expected for piece in each["ids"]]
    assert sequences.lengths.tolist() == [len(each["ids"]) for each in expected]
    assert sequences.lengths.max() <= max_seq_length
    assert windows.offsets.tolist() == [each["ids"].index(SEP) + 1 for each in expected]
    assert sequences.segment_b_starts.tolist() == windows.offsets.tolist()
    context = [mark for each in expected for mark in each["context"]]
    assert windows.is_max_context.tolist() == context


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(16, 60), st.integers(1, 40))
def test_targets_are_the_answers_pieces_or_none_of_the_window(
    seed: int, max_seq_length: int, doc_stride: int
) -> None:
    examples = made_questions(4, seed, num_words=(1, 60), answerless_share=0.3)
    chosen = SpanSettings(doc_stride=doc_stride)
    inputs = span_inputs(examples, tiny_vocab(), max_seq_length, chosen)
    names = ("start_positions", "end_positions", "is_impossible")
    starts, ends, impossible = (inputs.targets[name] for name in names)
    answered = set()
    for unit, row in enumerate(inputs.details.question_of):
        if impossible[unit]:
            assert starts[unit] == ends[unit] == 0
            continue
        begin = inputs.sequences.begins[unit]
        ids = inputs.sequences.input_ids[begin + starts[unit] : begin + ends[unit] + 1]
        assert tiny_vocab().decode(ids.tolist()) == examples.answers[row][0].text
        answered.add(int(row))
    with_answers = {row for row, answers in enumerate(examples.answers) if answers}
    assert answered <= with_answers
    if doc_stride <= max_seq_length - 20:  # windows overlap by more than an answer
        assert answered == with_answers


def test_a_paragraph_of_nothing_has_a_window_all_the_same() -> None:
    inputs = span_inputs(one_question("\u200b"), tiny_vocab(), 32, SpanSettings())
    assert inputs.num_units == 1
    assert inputs.details.lengths.tolist() == [0]
    assert inputs.sequences.input_ids[-2:].tolist() == [SEP, SEP]


def test_what_has_no_labels_has_no_targets() -> None:
    unlabelled = replace(one_question("bade"), is_labelled=False)
    assert not span_inputs(unlabelled, tiny_vocab(), 32, SpanSettings()).targets
    for examples in (one_question("bade"), one_question("bade", Answer("bade", 0))):
        assert span_inputs(examples, tiny_vocab(), 32, SpanSettings()).targets


def test_cut_questions_are_accounted_for_and_one_that_leaves_no_room_is_refused() -> None:
    examples = one_question("bade", question="bade kolu nipo " * 9)
    size = len(tiny_vocab().encode(examples.questions)[0])
    [account] = span_inputs(examples, tiny_vocab(), 16, SpanSettings(max_query_length=2)).accounts
    assert (account.total, account.kept, account.dropped) == (size, 2, {"too_long": size - 2})
    message = f"no room for a paragraph beside a question of {min(size, 64)} pieces"
    with pytest.raises(ConfigError, match=message):
        span_inputs(examples, tiny_vocab(), 16, SpanSettings())


def target_of(examples: SpanExamples, row: int = 0) -> tuple[int, int] | None:
    """Return the first character of a question's target and the one after its last, if any."""
    pieces = ParagraphPieces(
        examples.paragraphs, encode_with_spans(tiny_vocab(), examples.paragraphs)
    )
    first, last = span_targets(examples, pieces)
    if first[row] < 0:
        assert first[row] == last[row] == -1
        return None
    begin, end = pieces.characters(examples.paragraph_of[row], first[row], last[row])
    return int(begin), int(end)


@settings(deadline=None)
@given(st.data())
def test_any_part_of_a_paragraph_is_within_the_pieces_that_cover_it(data: st.DataObject) -> None:
    paragraphs = ["bade 12 kolu.", "é ﬁ½ x", "", " mo  pi "]
    pieces = ParagraphPieces(paragraphs, encode_with_spans(tiny_vocab(), paragraphs))
    number = data.draw(st.integers(0, 3))
    text, paragraph = paragraphs[number], np.array([number])
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    first, last = pieces.covering(paragraph, np.array([begin]), np.array([end]))
    if last < first:
        assert not text[begin:end].strip()
        return
    left, right = (int(each[0]) for each in pieces.characters(paragraph, first, last))
    assert text[begin:left].strip() == text[right:end].strip() == ""
    assert 0 <= first <= last < pieces.spans.lengths[number]


@pytest.mark.parametrize(
    ("paragraph", "answer", "target"),
    [
        ("a ko bade a ba de", Answer("a", 6), (10, 11)),  # the nearest whole word
        ("a ko bade ba de a", Answer("a", 6), (0, 1)),
        ("bade 12. 12", Answer("12", 5), (5, 7)),
        ("bade lo", Answer("ad", 1), (0, 3)),  # part of a piece becomes the piece
        ("bade \u200b lo", Answer("\u200b", 5), None),
        ("bade lo", Answer(" ", 4), None),
        ("bade lo", None, None),
    ],
)
def test_an_answer_inside_a_piece_gets_the_nearest_whole_place_or_the_piece(
    paragraph: str, answer: Answer | None, target: tuple[int, int] | None
) -> None:
    assert target_of(one_question(paragraph, *filter(None, [answer]))) == target
