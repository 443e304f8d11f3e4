"""Input sequences, their batches without padding, and the outputs of a head for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from albert_core.tasks.catalogue import TASKS
from albert_core.tasks.examples import ChoiceExamples, TextExamples
from albert_core.tasks.problem import (
    MAX_QUESTION_PIECES,
    ChoiceProblem,
    Inputs,
    Sequences,
    TextProblem,
    batches_by_length,
    cut_pair,
)
from albert_core.text.records import CLS, SEP
from tests.albert_core.tiny_vocab import tiny_vocab

CPU = torch.device("cpu")
_SEGMENTS = st.lists(st.integers(5, 30_000), max_size=9)
_PAIRS = st.lists(st.tuples(_SEGMENTS, st.none() | _SEGMENTS), min_size=1, max_size=12)


@given(_PAIRS, st.data())
def test_a_batch_has_each_sequence_that_was_asked_for(
    pairs: list[tuple[list[int], list[int] | None]], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=20))
    batch = Sequences.of(pairs).batch(np.array(rows), CPU)
    assert sum(number * length for number, length in batch.runs) == len(batch.input_ids)
    for row, first, length in zip(rows, batch.first_positions, batch.lengths, strict=True):
        a, b = pairs[row]
        ids = [CLS, *a, SEP] if b is None else [CLS, *a, SEP, *b, SEP]
        types = [0] * (len(a) + 2) + ([] if b is None else [1] * (len(b) + 1))
        assert batch.input_ids[first : first + length].tolist() == ids
        assert batch.token_type_ids[first : first + length].tolist() == types


def test_sequences_of_one_length_are_one_run_also_if_asked_for_twice() -> None:
    sequences = Sequences.of([([7, 8], None), ([9], [10, 11]), ([12, 13], None)])
    batch = sequences.batch(np.array([0, 1, 2, 0]), CPU)
    assert batch.runs == [(3, 4), (1, 6)]
    assert batch.lengths.tolist() == [4, 6, 4, 4]


@given(st.lists(st.integers(2, 50), max_size=40), st.integers(1, 200))
def test_batches_by_length_have_every_row_once_and_no_more_pieces_than_allowed(
    lengths: list[int], max_pieces: int
) -> None:
    of = np.array(lengths, dtype=np.int64)
    batches = batches_by_length(of, max_pieces)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(of)))
    assert all(of[batch].sum() <= max_pieces or len(batch) == 1 for batch in batches)


def test_batches_by_length_are_of_similar_lengths_and_full() -> None:
    batches = batches_by_length(np.array([2, 9, 2, 9]), max_pieces=18)
    assert [sorted(batch.tolist()) for batch in batches] == [[1, 3], [0, 2]]


MRPC, STS_B, RACE = TASKS["mrpc"], TASKS["sts-b"], TASKS["race"]
ARTICLE = "bado kelu vowa zati " * 20


def texts(
    texts_b: list[str] | None = None, targets: list[Any] | None = None, **skipped: int
) -> TextExamples:
    found = None if targets is None else np.array(targets)
    first = ["bado kelu", "bado " * 50, "kelu"]
    return TextExamples(
        ids=["0", "1", "2"], texts_a=first, texts_b=texts_b, targets=found, skipped=skipped
    )


def questions(first: str = "kelu _", targets: Any = (1, 3)) -> ChoiceExamples:
    return ChoiceExamples(
        ids=["high1.txt-0", "middle1.txt-0"],
        articles=[ARTICLE],
        article_of=np.array([0, 0]),
        questions=[first, "bado ?"],
        options=[("bado", "kelu", "vowa", "zati")] * 2,
        targets=None if targets is None else np.array(targets),
        groups=["high", "middle"],
    )


def sequence(inputs: Inputs, number: int) -> list[int]:
    begin = inputs.sequences.begins[number]
    ids = inputs.sequences.input_ids[begin : begin + inputs.sequences.lengths[number]]
    return list(ids.tolist())


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_a_pair_is_cut_as_the_reference_cuts_it(a: int, b: int, room: int) -> None:
    ones, others = list(range(a)), list(range(100, 100 + b))
    expected_a, expected_b = list(ones), list(others)
    while len(expected_a) + len(expected_b) > room:
        (expected_a if len(expected_a) > len(expected_b) else expected_b).pop()
    assert cut_pair(ones, others, room) == (expected_a, expected_b)


def test_a_long_text_loses_its_tail_and_rows_and_pieces_add_up() -> None:
    inputs = TextProblem(MRPC).inputs(texts(short_row=2), tiny_vocab(), 16)
    whole = tiny_vocab().encode(texts().texts_a)
    assert sequence(inputs, 0) == [CLS, *whole[0], SEP]
    assert sequence(inputs, 1) == [CLS, *whole[1][:14], SEP]
    rows, pieces = inputs.accounts
    assert (rows.total, rows.kept, rows.dropped) == (5, 3, {"short_row": 2})
    assert pieces.dropped == {"too_long": len(whole[1]) - 14}
    assert inputs.targets == {}


def test_a_pair_has_the_second_text_as_segment_b() -> None:
    pair = texts(["kelu", "bado", "bado kelu"])
    inputs = TextProblem(MRPC).inputs(pair, tiny_vocab(), 32)
    (a,), (b,) = tiny_vocab().encode(["bado kelu"]), tiny_vocab().encode(["kelu"])
    assert sequence(inputs, 0) == [CLS, *a, SEP, *b, SEP]
    assert inputs.sequences.segment_b_starts[0] == len(a) + 2
    assert inputs.sequences.lengths.max() == 32
    _, pieces = inputs.accounts
    total = sum(map(len, tiny_vocab().encode([*pair.texts_a, *(pair.texts_b or ())])))
    assert (pieces.total, pieces.kept) == (total, int(inputs.sequences.lengths.sum()) - 9)


def test_the_most_probable_label_is_predicted_and_scored() -> None:
    problem, labelled = TextProblem(MRPC), texts(targets=[0, 1, 1])
    inputs = problem.inputs(labelled, tiny_vocab(), 16)
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], np.float32)
    scored = problem.score({"logits": logits}, inputs, labelled)
    rows = scored.predictions.to_pylist()
    assert [row["prediction"] for row in rows] == ["0", "1", "0"]
    assert [row["target"] for row in rows] == ["0", "1", "1"]
    assert rows[0]["probabilities"] == pytest.approx([0.8808, 0.1192], abs=1e-4)
    assert scored.samples["accuracy"].value == pytest.approx(2 / 3)
    assert scored.samples["f1"].value == pytest.approx(2 / 3)


def test_a_number_is_predicted_as_it_is() -> None:
    problem, graded = TextProblem(STS_B), texts(targets=[0.5, 2.5, 5.0])
    inputs = problem.inputs(graded, tiny_vocab(), 16)
    scored = problem.score({"logits": np.array([[1.0], [3.0], [4.0]])}, inputs, graded)
    assert scored.predictions["prediction"].to_pylist() == [1.0, 3.0, 4.0]
    assert scored.predictions["target"].to_pylist() == [0.5, 2.5, 5.0]
    assert scored.samples["spearman"].value == pytest.approx(1)


@pytest.mark.parametrize(
    ("problem", "examples"),
    [
        (TextProblem(MRPC), texts()),
        (TextProblem(STS_B), texts()),
        (ChoiceProblem(RACE), questions(targets=None)),
    ],
)
def test_a_split_without_labels_is_predicted_and_not_scored(problem: Any, examples: Any) -> None:
    inputs = problem.inputs(examples, tiny_vocab(), 16)
    logits = np.eye(len(examples), len(problem.task.labels) or 1, dtype=np.float32)
    scored = problem.score({"logits": logits}, inputs, examples)
    assert (inputs.targets, scored.samples) == ({}, {})
    assert "target" not in scored.predictions.column_names


def test_each_option_is_a_sequence_after_the_article_and_fills_every_blank() -> None:
    inputs = ChoiceProblem(RACE).inputs(questions("_ kelu _"), tiny_vocab(), 32)
    assert (len(inputs.sequences), inputs.num_units) == (8, 2)
    article, asked, other = tiny_vocab().encode([ARTICLE, "vowa kelu vowa", "bado ? zati"])
    assert sequence(inputs, 2) == [CLS, *article[: 29 - len(asked)], SEP, *asked, SEP]
    assert sequence(inputs, 7) == [CLS, *article[: 29 - len(other)], SEP, *other, SEP]
    assert (inputs.unit_lengths == 4 * 32).all()


def test_a_long_question_keeps_its_end_and_the_pieces_add_up() -> None:
    long = "bado " * 200
    inputs = ChoiceProblem(RACE).inputs(questions(f"{long}_"), tiny_vocab(), 512)
    options = questions().options[0]
    asked = tiny_vocab().encode([before + o for before in (long, "bado ? ") for o in options])
    end = [*asked[3][-MAX_QUESTION_PIECES:], SEP]
    assert sequence(inputs, 3)[-len(end) - 1 :] == [SEP, *end]
    (pieces,) = inputs.accounts
    (article,) = tiny_vocab().encode([ARTICLE])
    assert pieces.total == 8 * len(article) + sum(map(len, asked))
    assert pieces.kept == int(inputs.sequences.lengths.sum()) - 3 * 8


def test_the_most_probable_option_is_chosen_and_scored_also_by_group() -> None:
    problem = ChoiceProblem(RACE)
    inputs = problem.inputs(questions(), tiny_vocab(), 32)
    logits = np.array([[0, 3, 0, 0], [1, 0, 0, 0]], np.float32)
    scored = problem.score({"logits": logits}, inputs, questions())
    rows = scored.predictions.to_pylist()
    assert [row["prediction"] for row in rows] == ["B", "A"]
    assert [row["target"] for row in rows] == ["B", "D"]
    assert [row["group"] for row in rows] == ["high", "middle"]
    assert sum(rows[0]["probabilities"]) == pytest.approx(1)
    found = {name: sample.value for name, sample in scored.samples.items()}
    assert found == {"accuracy": 0.5, "accuracy_middle": 0.0, "accuracy_high": 1.0}
    of_one = replace(questions(), groups=["high", "high"])
    some = problem.score({"logits": logits}, inputs, of_one).samples
    assert some.keys() == {"accuracy", "accuracy_high"}
    assert questions().clusters.tolist() == [0, 0]


def test_the_score_to_beat_is_that_of_the_best_constant() -> None:
    found = TextProblem(TASKS["cola"]).constant_scores(texts(targets=[0, 1, 1]))
    assert found == {"matthews": 0.0, "accuracy": pytest.approx(2 / 3)}
    found = TextProblem(MRPC).constant_scores(texts(targets=[0, 0, 1]))
    assert found == {"accuracy": pytest.approx(2 / 3), "f1": 0.5}
    found = TextProblem(STS_B).constant_scores(texts(targets=[1.0, 2.0, 6.0]))
    assert found == {"pearson": 0.0, "spearman": 0.0, "mse": pytest.approx(14 / 3)}
    found = ChoiceProblem(RACE).constant_scores(questions(targets=(0, 3, 3, 1)))
    assert found == {"accuracy": 0.5}
