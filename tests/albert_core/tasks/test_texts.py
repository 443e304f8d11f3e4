"""Texts and pairs of texts as input sequences, and what is predicted of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.tasks.examples import Task, TextExamples
from albert_core.tasks.texts import TextProblem, cut_pair
from albert_core.text.records import CLS, SEP
from tests.albert_core.tiny_vocab import tiny_vocab

SENTIMENT = Task(
    name="sentiment",
    title="Sentiment",
    kind="classification",
    labels=("bad", "good"),
    metrics=("accuracy", "f1"),
)
SIMILARITY = Task(
    name="similarity", title="Similarity", kind="regression", metrics=("pearson", "spearman")
)


def examples(texts_b: list[str] | None = None, targets: list[float] | None = None) -> TextExamples:
    texts = ["bado kelu", "bado " * 50, "kelu"]
    return TextExamples(
        ids=["0", "1", "2"],
        texts_a=texts,
        texts_b=texts_b,
        targets=None if targets is None else np.array(targets),
    )


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_a_pair_is_cut_as_the_reference_cuts_it(a: int, b: int, room: int) -> None:
    ones, others = list(range(a)), list(range(100, 100 + b))
    expected_a, expected_b = list(ones), list(others)
    while len(expected_a) + len(expected_b) > room:
        (expected_a if len(expected_a) > len(expected_b) else expected_b).pop()
    assert cut_pair(ones, others, room) == (expected_a, expected_b)


def test_a_long_text_loses_its_tail_and_the_pieces_add_up() -> None:
    inputs = TextProblem(SENTIMENT).inputs(examples(), tiny_vocab(), 16)
    whole = tiny_vocab().encode(examples().texts_a)
    ends = np.cumsum(inputs.sequences.lengths)
    assert inputs.sequences.input_ids[: ends[0]].tolist() == [CLS, *whole[0], SEP]
    second = inputs.sequences.input_ids[ends[0] : ends[1]]
    assert second.tolist() == [CLS, *whole[1][:14], SEP]
    rows, pieces = inputs.accounts
    assert (rows.total, rows.kept) == (3, 3)
    assert pieces.dropped == {"too_long": len(whole[1]) - 14}
    assert inputs.targets == {}


def test_a_pair_has_the_second_text_as_segment_b() -> None:
    pair = examples(["kelu", "bado", "bado kelu"])
    inputs = TextProblem(SENTIMENT).inputs(pair, tiny_vocab(), 32)
    (a,), (b,) = tiny_vocab().encode(["bado kelu"]), tiny_vocab().encode(["kelu"])
    first = inputs.sequences.input_ids[: inputs.sequences.lengths[0]]
    assert first.tolist() == [CLS, *a, SEP, *b, SEP]
    assert inputs.sequences.segment_b_starts[0] == len(a) + 2


def test_the_most_probable_label_is_predicted_and_scored() -> None:
    problem, labelled = TextProblem(SENTIMENT), examples(targets=[0, 1, 1])
    labelled = TextExamples(
        ids=labelled.ids, texts_a=labelled.texts_a, texts_b=None, targets=np.array([0, 1, 1])
    )
    inputs = problem.inputs(labelled, tiny_vocab(), 16)
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], np.float32)
    scored = problem.score({"logits": logits}, inputs, labelled)
    rows = scored.predictions.to_pylist()
    assert [row["prediction"] for row in rows] == ["bad", "good", "bad"]
    assert [row["target"] for row in rows] == ["bad", "good", "good"]
    assert rows[0]["probabilities"] == pytest.approx([0.8808, 0.1192], abs=1e-4)
    assert scored.scorers["accuracy"](np.arange(3)) == pytest.approx(2 / 3)
    assert scored.scorers["accuracy"](np.array([0, 0])) == 1
    assert scored.scorers["f1"](np.arange(3)) == pytest.approx(2 / 3)


def test_a_number_is_predicted_as_it_is() -> None:
    problem, graded = TextProblem(SIMILARITY), examples(targets=[0.5, 2.5, 5.0])
    inputs = problem.inputs(graded, tiny_vocab(), 16)
    scored = problem.score({"logits": np.array([[1.0], [3.0], [4.0]])}, inputs, graded)
    assert scored.predictions["prediction"].to_pylist() == [1.0, 3.0, 4.0]
    assert scored.predictions["target"].to_pylist() == [0.5, 2.5, 5.0]
    assert scored.scorers["spearman"](np.arange(3)) == pytest.approx(1)


def test_a_split_without_labels_is_predicted_and_not_scored() -> None:
    problem = TextProblem(SENTIMENT)
    inputs = problem.inputs(examples(), tiny_vocab(), 16)
    scored = problem.score({"logits": np.eye(3, 2, dtype=np.float32)}, inputs, examples())
    assert scored.scorers == {}
    assert "target" not in scored.predictions.column_names


def test_rows_that_were_skipped_are_accounted_for() -> None:
    skipping = TextExamples(
        ids=["0"], texts_a=["bado"], texts_b=None, targets=None, skipped={"short_row": 2}
    )
    inputs = TextProblem(SENTIMENT).inputs(skipping, tiny_vocab(), 16)
    rows, _ = inputs.accounts
    assert (rows.total, rows.kept, rows.dropped) == (3, 1, {"short_row": 2})
