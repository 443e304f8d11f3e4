"""Answers from scores, against the same in plain words, pair by pair."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.config import SpanSettings
from albert_core.tasks import span_heads
from albert_core.tasks.examples import SpanExamples
from albert_core.tasks.span_heads import rank_answers
from albert_core.tasks.span_inputs import Windows, span_inputs
from albert_core.text.piece_offsets import encode_with_spans
from tests.albert_core.tasks.made_spans import made_questions, one_question
from tests.albert_core.tiny_vocab import tiny_vocab

MAX_SEQ_LENGTH = 24


def made_outputs(inputs: Any, seed: int, number: int, beam: bool) -> dict[str, np.ndarray]:
    """Return the best ``number`` positions of each window, with scores that may be equal."""
    draw = np.random.default_rng(seed)
    size = inputs.num_units

    def some(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.zeros((size, *shape, number), np.int64)
        scores = np.full((size, *shape, number), -np.inf, np.float32)
        for unit, length in enumerate(inputs.sequences.lengths):
            for rank in np.ndindex(*shape):
                kept = min(number, int(length))
                places[(unit, *rank)][:kept] = draw.permutation(length)[:kept]
                scores[(unit, *rank)][:kept] = draw.integers(0, 60, kept) / 8
        return places, scores

    starts, start_scores = some()
    ends, end_scores = some(number) if beam else some()
    null = draw.normal(size=size).astype(np.float32)
    return {
        "starts": starts,
        "start_scores": start_scores,
        "ends": ends,
        "end_scores": end_scores,
        "null_scores": null,
    }


def plain_pairs(
    outputs: dict[str, np.ndarray], windows: Windows, unit: int, longest: int
) -> Iterator[tuple[int, int, float]]:
    """Yield first and last piece in the window, and score, of all pairs that are valid."""
    mark = int(windows.lengths[:unit].sum())
    for rank, start in enumerate(outputs["starts"][unit]):
        ends, scores = outputs["ends"][unit], outputs["end_scores"][unit]
        if ends.ndim == 2:
            ends, scores = ends[rank], scores[rank]
        for end, end_score in zip(ends, scores, strict=True):
            begin, last = start - windows.offsets[unit], end - windows.offsets[unit]
            if not 0 <= begin < windows.lengths[unit] or last >= windows.lengths[unit]:
                continue
            if not windows.is_max_context[mark + begin]:
                continue
            if last < begin or last - begin + 1 > longest:
                continue
            score = float(outputs["start_scores"][unit, rank]) + float(end_score)
            if np.isfinite(score):
                yield begin, last, score


def plain_answers(
    outputs: dict[str, np.ndarray], windows: Windows, examples: SpanExamples, chosen: SpanSettings
) -> list[list[tuple[str, float]]]:
    """Return texts and scores of each question as the reference finds them."""
    spans = encode_with_spans(tiny_vocab(), examples.paragraphs)
    firsts = np.cumsum(spans.lengths) - spans.lengths
    found: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for unit, row in enumerate(windows.question_of.tolist()):
        first_piece = firsts[examples.paragraph_of[row]] + windows.first[unit]
        for begin, last, score in plain_pairs(outputs, windows, unit, chosen.max_answer_length):
            left, right = spans.begins[first_piece + begin], spans.ends[first_piece + last]
            if left < right:
                found[row].append((-score, int(left), int(right)))
    answers = []
    for row in range(len(examples)):
        best: dict[str, float] = {}
        for score, left, right in sorted(found[row]):
            text = examples.paragraphs[examples.paragraph_of[row]][left:right]
            if len(best) < chosen.n_best:
                best.setdefault(text, -score)
        answers.append(list(best.items()))
    return answers


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 1000),
    st.integers(1, 20),
    st.integers(1, 6),
    st.integers(1, 12),
    st.booleans(),
    st.integers(1, 5),
)
def test_answers_are_those_of_the_reference(
    seed: int, number: int, n_best: int, max_answer_length: int, beam: bool, windows_at_once: int
) -> None:
    chosen = SpanSettings(n_best=n_best, max_answer_length=max_answer_length, doc_stride=5)
    examples = made_questions(3, seed, num_words=(1, 25), questions_each=2)
    inputs = span_inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH, chosen)
    number = min(number, 5) if beam else number
    outputs = made_outputs(inputs, seed, number, beam)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_heads, "_WINDOWS_AT_ONCE", windows_at_once)
        ranked = rank_answers(outputs, inputs.details, examples, chosen)
    found = list(zip(ranked.texts, ranked.scores.tolist(), strict=True))
    expected = plain_answers(outputs, inputs.details, examples, chosen)
    assert ranked.numbers.tolist() == list(map(len, expected))
    for row, answers in enumerate(expected):
        place = ranked.first[row]
        assert found[place : place + len(answers)] == answers
        null = outputs["null_scores"][inputs.details.question_of == row].min()
        assert ranked.null_scores[row] == pytest.approx(float(null))
    for text, begin, end, asked in zip(
        ranked.texts,
        ranked.begins,
        ranked.ends,
        np.repeat(np.arange(len(examples)), ranked.numbers),
        strict=True,
    ):
        assert examples.paragraphs[examples.paragraph_of[asked]][begin:end] == text


def test_a_question_with_no_valid_span_has_no_answer() -> None:
    examples = one_question("\u200b")
    inputs = span_inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH, SpanSettings())
    ranked = rank_answers(
        made_outputs(inputs, 0, 3, beam=False), inputs.details, examples, SpanSettings()
    )
    assert ranked.numbers.tolist() == [0]
    assert ranked.texts == []


def test_the_mark_of_a_words_start_is_no_answer_by_itself() -> None:
    examples = one_question("字")
    inputs = span_inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH, SpanSettings())
    offset = int(inputs.details.offsets[0])
    assert inputs.details.lengths.tolist() == [2]
    mark = np.array([[offset]])
    outputs = {
        "starts": mark,
        "start_scores": np.ones((1, 1), np.float32),
        "ends": np.array([[offset, offset + 1]]),
        "end_scores": np.array([[9.0, 1.0]], np.float32),
        "null_scores": np.zeros(1, np.float32),
    }
    assert rank_answers(outputs, inputs.details, examples, SpanSettings()).texts == ["字"]
