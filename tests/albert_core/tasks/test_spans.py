"""SQuAD as a problem: from questions to scores, and a model that learns to answer."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albert_core.config import ModelSettings, SpanSettings
from albert_core.model.albert import AlbertModel
from albert_core.tasks.examples import Answer, SpanExamples, Task
from albert_core.tasks.problem import Head, Inputs, Outputs
from albert_core.tasks.sequences import batches_by_length
from albert_core.tasks.span_heads import AnswerabilityHead, StartEndHead
from albert_core.tasks.spans import SpanProblem
from albert_core.tasks.squad import read_squad, score_answers
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tasks.made_spans import made_questions, one_question
from tests.albert_core.tiny_vocab import tiny_vocab

SQUAD_1 = Task(name="squad-1.1", title="SQuAD 1.1", kind="spans", metrics=("f1", "exact_match"))
SQUAD_2 = Task(
    name="squad-2.0",
    title="SQuAD 2.0",
    kind="spans",
    metrics=("f1", "exact_match"),
    has_answerless=True,
)
CPU = torch.device("cpu")
SHARED = Path(__file__).parents[4] / "shared/data"
MAX_SEQ_LENGTH = 48
TINY = ModelSettings(
    embedding_size=32,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=MAX_SEQ_LENGTH,
    initializer_range=0.05,
)


def outputs_that_say(
    inputs: Inputs, spans: list[tuple[int, int]], scores: list[float], nulls: list[float]
) -> Outputs:
    """Return a head's outputs with one span a window, in pieces of its paragraph."""
    places = np.array(spans) + inputs.details.offsets[:, None]
    values = np.array(scores, np.float32)[:, None] / 2
    return {
        "starts": places[:, :1],
        "start_scores": values,
        "ends": places[:, 1:],
        "end_scores": values,
        "null_scores": np.array(nulls, np.float32),
    }


def three_questions() -> SpanExamples:
    """Return questions about "bade kolu": answered by its first word, by its second, by nothing."""
    return SpanExamples(
        ids=["a", "b", "c"],
        paragraphs=["bade kolu"],
        paragraph_of=np.zeros(3, np.int64),
        questions=["ba", "de", "ko"],
        answers=[(Answer("bade", 0),), (Answer("kolu", 5),), ()],
    )


def words() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return first and last piece of the two words of `three_questions`."""
    size = len(tiny_vocab().encode(["bade"])[0])
    total = len(tiny_vocab().encode(["bade kolu"])[0])
    return (0, size - 1), (size, total - 1)


def test_a_prediction_is_told_with_its_place_and_its_scores() -> None:
    examples = one_question("bade kolu", Answer("kolu", 5), Answer("bade kolu", 0))
    problem = SpanProblem(SQUAD_1, SpanSettings())
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    scored = problem.score(outputs_that_say(inputs, [words()[1]], [3.0], [9.0]), inputs, examples)
    assert scored.predictions.to_pylist() == [
        {
            "id": "q",
            "prediction": "kolu",
            "start": 5,
            "end": 9,
            "score": 3.0,
            "null_score": None,
            "answers": ["kolu", "bade kolu"],
            "exact_match": 1.0,
            "f1": 1.0,
            "n_best": [{"text": "kolu", "start": 5, "end": 9, "score": 3.0}],
        }
    ]
    assert scored.facts == {"official": {"exact_match": 100.0, "f1": 100.0}}


def test_scores_are_means_over_the_questions_asked_for() -> None:
    examples = made_questions(2, num_words=(3, 5))
    problem = SpanProblem(SQUAD_1, SpanSettings())
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    starts, ends = (
        inputs.targets[f"{name}_positions"] - inputs.details.offsets for name in ("start", "end")
    )
    right, wrong = (int(starts[0]), int(ends[0])), (int(ends[1]) + 1, int(ends[1]) + 1)
    said = outputs_that_say(inputs, [right, wrong], [1.0, 1.0], [0.0, 0.0])
    scored = problem.score(said, inputs, examples)
    assert set(scored.scorers) == set(SQUAD_1.metrics)
    for scorer in scored.scorers.values():
        assert scorer(np.array([0, 1])) == 0.5
        assert scorer(np.array([0, 0, 0, 1])) == 0.75


@pytest.mark.parametrize("head", ["simple", "answerability"])
def test_a_question_above_the_best_threshold_is_left_without_an_answer(head: str) -> None:
    examples = three_questions()
    problem = SpanProblem(SQUAD_2, SpanSettings(answer_head=head))  # type: ignore[arg-type]
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    # The second is wrong, and less sure that there is no answer than the third.
    said = outputs_that_say(
        inputs, [words()[0], words()[0], words()[1]], [4.0, 3.0, 3.0], [-2.0, 1.0, 2.0]
    )
    scored = problem.score(said, inputs, examples)
    table = scored.predictions
    assert table["prediction"].to_pylist() == ["bade", "", ""]
    assert table["start"].to_pylist() == [0, None, None]
    assert table["score"].to_pylist() == [4.0, 3.0, 3.0]
    nulls = [-6.0, -2.0, -1.0] if head == "simple" else [-2.0, 1.0, 2.0]
    assert table["null_score"].to_pylist() == nulls
    assert table["f1"].to_pylist() == [1.0, 0.0, 1.0]
    assert scored.facts["no_answer_threshold"] == pytest.approx(1 / (1 + np.exp(-nulls[0])))
    official = scored.facts["official"]
    assert (official["f1"], official["best_f1"]) == pytest.approx((200 / 3, 200 / 3))
    assert (official["HasAns_f1"], official["NoAns_f1"]) == (50.0, 100.0)
    again = score_answers(
        table["prediction"].to_pylist(), table["answers"].to_pylist(), has_answerless=True
    )
    assert again.f1.tolist() == table["f1"].to_pylist()


def test_where_saying_nothing_is_best_nothing_is_said() -> None:
    examples = three_questions()
    problem = SpanProblem(SQUAD_2, SpanSettings())
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    said = outputs_that_say(inputs, [words()[1], words()[0], words()[0]], [1.0] * 3, [-3.0] * 3)
    scored = problem.score(said, inputs, examples)
    assert scored.predictions["prediction"].to_pylist() == ["", "", ""]
    assert scored.scorers["f1"](np.arange(3)) == pytest.approx(1 / 3)


def test_without_labels_answers_are_given_where_they_are_more_probable_than_none() -> None:
    examples = three_questions()
    unlabelled = SpanExamples(**{**vars(examples), "answers": [(), (), ()], "is_labelled": False})
    problem = SpanProblem(SQUAD_2, SpanSettings())
    inputs = problem.inputs(unlabelled, tiny_vocab(), MAX_SEQ_LENGTH)
    said = outputs_that_say(inputs, [words()[0]] * 3, [1.0] * 3, [-0.1, 0.1, 5.0])
    scored = problem.score(said, inputs, unlabelled)
    assert scored.predictions["prediction"].to_pylist() == ["bade", "", ""]
    assert not scored.scorers
    assert scored.predictions["f1"].null_count == 3


@pytest.mark.parametrize(
    ("name", "task"),
    [("squad-v1.1-articles-0-35.json", SQUAD_1), ("squad-v2.0-articles-0-24.json", SQUAD_2)],
)
def test_a_model_that_knows_the_targets_is_nearly_always_right(name: str, task: Task) -> None:
    path, vocab = SHARED / "tasks/squad" / name, SHARED / "models/30k-clean.model"
    if not (path.exists() and vocab.exists()):
        pytest.skip(f"{path} or {vocab} is absent")
    examples = read_squad(str(path), task.has_answerless)
    problem = SpanProblem(task, SpanSettings())
    inputs = problem.inputs(examples, Tokenizer(vocab.read_bytes()), 384)
    impossible = inputs.targets["is_impossible"]
    sure = np.where(impossible, -9.0, 9.0).astype(np.float32)[:, None]
    said = {
        "starts": inputs.targets["start_positions"][:, None],
        "start_scores": sure,
        "ends": inputs.targets["end_positions"][:, None, None],
        "end_scores": sure[:, None],
        "null_scores": -sure[:, 0],
    }
    scored = problem.score(said, inputs, examples)
    rows = np.arange(len(examples))
    assert scored.scorers["exact_match"](rows) > 0.99
    assert scored.scorers["f1"](rows) > 0.995


def test_a_question_without_any_valid_span_is_no_failure() -> None:
    for task in (SQUAD_1, SQUAD_2):
        examples = one_question("bade", Answer("bade", 0))
        problem = SpanProblem(task, SpanSettings())
        inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
        said = outputs_that_say(inputs, [(-1, -1)], [1.0], [0.0])
        table = problem.score(said, inputs, examples).predictions
        assert table["prediction"].to_pylist() == [""]
        assert table["score"].to_pylist() == [None]
        assert table["exact_match"].to_pylist() == [0.0]
        assert table["n_best"].to_pylist() == [[]]


def test_the_head_is_the_one_that_the_task_and_the_settings_name() -> None:
    simple = SpanSettings(answer_head="simple")
    assert isinstance(SpanProblem(SQUAD_1, SpanSettings()).head(TINY, 0.1), StartEndHead)
    assert isinstance(SpanProblem(SQUAD_2, SpanSettings()).head(TINY, 0.1), AnswerabilityHead)
    assert isinstance(SpanProblem(SQUAD_2, simple).head(TINY, 0.1), StartEndHead)


def best_constant_f1(examples: SpanExamples, has_answerless: bool) -> float:
    """Return the F1 of the best strategy that does not look at the words."""
    answers = [tuple(answer.text for answer in of_one) for of_one in examples.answers]
    commonest = Counter(text for texts in answers for text in texts).most_common(1)[0][0]
    paragraphs = [examples.paragraphs[number] for number in examples.paragraph_of]
    strategies = [
        [commonest] * len(examples),
        paragraphs,
        *([text.split()[place] for text in paragraphs] for place in range(-5, 5)),
        *([[""] * len(examples)] if has_answerless else []),
    ]
    return max(float(score_answers(each, answers, has_answerless).f1.mean()) for each in strategies)


def learn(problem: SpanProblem, examples: SpanExamples, num_steps: int) -> tuple[AlbertModel, Head]:
    """Return a tiny model trained on ``examples`` by a plain loop."""
    torch.manual_seed(0)
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    encoder = AlbertModel(TINY, tiny_vocab().vocab_size)
    head = problem.head(TINY, 0.1)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=4e-3)
    draw = np.random.default_rng(0)
    for _ in range(num_steps):
        rows = draw.choice(inputs.num_units, 16, replace=False)
        targets = {name: torch.from_numpy(values[rows]) for name, values in inputs.targets.items()}
        loss = head.loss(encoder, inputs.sequences.batch(rows, CPU), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder.eval(), head.eval()


@torch.no_grad()
def run(encoder: AlbertModel, head: Head, inputs: Inputs) -> Outputs:
    """Return the head's outputs for all units, from batches by length."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for rows in batches_by_length(inputs.sequences.lengths, 2000):
        for name, values in head.outputs(encoder, inputs.sequences.batch(rows, CPU)).items():
            whole = found.setdefault(
                name, np.zeros((inputs.num_units, *values.shape[1:]), values.numpy().dtype)
            )
            whole[rows] = values.numpy()
    return found


@pytest.mark.parametrize(
    ("task", "head"),
    [(SQUAD_1, "simple"), (SQUAD_2, "simple"), (SQUAD_2, "answerability")],
)
def test_a_model_learns_to_find_the_number_in_a_text(task: Task, head: str) -> None:
    problem = SpanProblem(task, SpanSettings(doc_stride=16, answer_head=head))  # type: ignore[arg-type]
    share = 0.4 if task.has_answerless else 0.0
    train, dev = (
        made_questions(size, seed, num_words=(5, 25), answerless_share=share, largest=9)
        for size, seed in ((400, 1), (100, 2))
    )
    encoder, trained = learn(problem, train, num_steps=100)
    inputs = problem.inputs(dev, tiny_vocab(), MAX_SEQ_LENGTH)
    assert inputs.num_units > len(dev)  # some paragraphs have several windows
    scored = problem.score(run(encoder, trained, inputs), inputs, dev)
    f1 = scored.scorers["f1"](np.arange(len(dev)))
    constant = best_constant_f1(dev, task.has_answerless)
    assert f1 > constant + 0.6 * (1 - constant)
    exact = scored.scorers["exact_match"](np.arange(len(dev)))
    assert exact <= f1
