"""SQuAD as a problem: answers from scores, against the same in plain words, and their scores."""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.config import SpanSettings
from albert_core.stage.errors import ConfigError
from albert_core.tasks import catalogue, spans, squad
from albert_core.tasks.examples import Answer, SpanExamples, Task
from albert_core.tasks.paragraph_pieces import ParagraphPieces
from albert_core.tasks.problem import Inputs, Outputs, Scored
from albert_core.tasks.span_heads import AnswerabilityHead, StartEndHead
from albert_core.tasks.spans import SpanProblem, Windows, rank_answers, span_targets
from albert_core.text.records import CLS, SEP
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tasks.task_files import DATA
from tests.albert_core.tiny_model import tiny_settings
from tests.albert_core.tiny_vocab import SYLLABLES, tiny_vocab


def made_questions(
    num_paragraphs: int,
    seed: int = 0,
    num_words: tuple[int, int] = (5, 15),
    answerless_share: float = 0.0,
    questions_each: int = 1,
) -> SpanExamples:
    """Return questions about paragraphs of made-up words; a number, if there is one, answers them.

    ``num_words`` are the fewest and the most words of a paragraph beside the number.
    """
    draw = random.Random(seed)
    paragraphs, paragraph_of, questions, answers = [], [], [], []
    for paragraph in range(num_paragraphs):
        words = ["".join(draw.choices(SYLLABLES, k=2)) for _ in range(draw.randint(*num_words))]
        place = draw.randrange(len(words))
        start = sum(len(word) + 1 for word in words[:place])
        found: tuple[Answer, ...] = ()
        if draw.random() >= answerless_share:
            words.insert(place, str(draw.randint(0, 2000)))
            found = (Answer(words[place], start),)
        paragraphs.append(" ".join(words))
        for _ in range(questions_each):
            paragraph_of.append(paragraph)
            questions.append(" ".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))))
            answers.append(found)
    return SpanExamples(
        ids=[f"q{number}" for number in range(len(questions))],
        paragraphs=paragraphs,
        paragraph_of=np.array(paragraph_of, np.int64),
        clusters=np.array(paragraph_of, np.int64),
        questions=questions,
        answers=answers,
    )


def asked(paragraph: str, *answers: tuple[Answer, ...], question: str = "bade") -> SpanExamples:
    """Return a question about the paragraph for each tuple of answers."""
    number = len(answers)
    return SpanExamples(
        ids=[f"q{n}" for n in range(number)],
        paragraphs=[paragraph],
        paragraph_of=np.zeros(number, np.int64),
        clusters=np.zeros(number, np.int64),
        questions=[question] * number,
        answers=list(answers),
    )


def one_question(paragraph: str, *answers: Answer, question: str = "bade") -> SpanExamples:
    return asked(paragraph, answers, question=question)


SQUAD_1, SQUAD_2 = catalogue.TASKS["squad-1.1"], catalogue.TASKS["squad-2.0"]
MAX_SEQ_LENGTH = 48


def span_inputs(examples: SpanExamples, max_seq_length: int, **chosen: Any) -> Inputs:
    problem = SpanProblem(SQUAD_1, SpanSettings(**chosen))
    return problem.inputs(examples, tiny_vocab(), max_seq_length)


def named(
    starts: Any, start_scores: Any, ends: Any, end_scores: Any, null_scores: Any
) -> dict[str, np.ndarray]:
    names = ("starts", "start_scores", "ends", "end_scores", "null_scores")
    types = (np.int64, np.float32, np.int64, np.float32, np.float32)
    values = (starts, start_scores, ends, end_scores, null_scores)
    return {n: np.array(v, t) for n, v, t in zip(names, values, types, strict=True)}


def made_outputs(inputs: Any, seed: int, number: int, beam: bool) -> dict[str, np.ndarray]:
    """Return the best ``number`` positions of each window, with scores that may be equal."""
    draw = np.random.default_rng(seed)
    size = inputs.num_units

    def some(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.zeros((size, *shape, number), np.int64)
        scores = np.full((size, *shape, number), -np.inf)
        for unit, length in enumerate(inputs.sequences.lengths):
            for rank in np.ndindex(*shape):
                kept = min(number, int(length))
                places[(unit, *rank)][:kept] = draw.permutation(length)[:kept]
                scores[(unit, *rank)][:kept] = draw.integers(0, 60, kept) / 8
        return places, scores

    return named(*some(), *(some(number) if beam else some()), draw.normal(size=size))


def plain_pairs(
    outputs: Outputs, windows: Windows, unit: int, longest: int
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
    outputs: Outputs, windows: Windows, examples: SpanExamples, chosen: SpanSettings
) -> list[list[tuple[str, float]]]:
    """Return texts and scores of each question as the reference finds them."""
    pieces = ParagraphPieces(tiny_vocab(), examples.paragraphs)
    found: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for unit, row in enumerate(windows.question_of.tolist()):
        first_piece = pieces.first_pieces[examples.paragraph_of[row]] + windows.first[unit]
        for begin, last, score in plain_pairs(outputs, windows, unit, chosen.max_answer_length):
            left, right = pieces.begins[first_piece + begin], pieces.ends[first_piece + last]
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


@settings(max_examples=40)
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
    inputs = span_inputs(examples, 24, **chosen.model_dump())
    outputs = made_outputs(inputs, seed, min(number, 5) if beam else number, beam)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_WINDOWS_AT_ONCE", windows_at_once)
        lists, null_scores = rank_answers(outputs, inputs.details, examples, chosen)
    found = [[(each["text"], each["score"]) for each in spans] for spans in lists.to_pylist()]
    assert found == plain_answers(outputs, inputs.details, examples, chosen)
    for row, spans_of_row in enumerate(lists.to_pylist()):
        null = outputs["null_scores"][inputs.details.question_of == row].min()
        assert null_scores[row] == pytest.approx(float(null))
        paragraph = examples.paragraphs[examples.paragraph_of[row]]
        assert all(s["text"] == paragraph[s["start"] : s["end"]] for s in spans_of_row)


def test_the_mark_of_a_words_start_is_no_answer_by_itself() -> None:
    examples = one_question("字")
    inputs = span_inputs(examples, MAX_SEQ_LENGTH)
    offset = int(inputs.details.offsets[0])
    assert inputs.details.lengths.tolist() == [2]
    outputs = named([[offset]], [[1.0]], [[offset, offset + 1]], [[9.0, 1.0]], [0.0])
    n_best, _ = rank_answers(outputs, inputs.details, examples, SpanSettings())
    assert n_best.values.field("text").to_pylist() == ["字"]


THREE = asked("bade kolu", (Answer("bade", 0),), (Answer("kolu", 5),), ())
"""Questions that are answered by the first word, by the second, and by nothing."""


def scored(
    task: Task,
    examples: SpanExamples,
    words: list[int],
    scores: list[float],
    nulls: list[float],
    chosen_on: list[bool] | None = None,
    **chosen: Any,
) -> Scored:
    """Return the scored predictions of a head that gives word 0 or 1 of "bade kolu"."""
    size, total = (len(tiny_vocab().encode([text])[0]) for text in ("bade", "bade kolu"))
    places = [(0, size - 1), (size, total - 1), (-1, -1)]
    problem = SpanProblem(task, SpanSettings(**chosen))
    inputs = problem.inputs(examples, tiny_vocab(), MAX_SEQ_LENGTH)
    at = np.array([places[word] for word in words]) + inputs.details.offsets[:, None]
    halves = np.array(scores)[:, None] / 2
    outputs = named(at[:, :1], halves, at[:, 1:], halves, nulls)
    rows = None if chosen_on is None else np.array(chosen_on)
    return problem.score(outputs, inputs, examples, rows)


def test_a_prediction_has_its_place_and_its_scores() -> None:
    examples = one_question("bade kolu", Answer("kolu", 5), Answer("bade kolu", 0))
    found = scored(SQUAD_1, examples, [1], [3.0], [9.0])
    assert found.predictions.to_pylist() == [
        {
            "id": "q0",
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
    assert found.facts == {"official": {"exact_match": 100.0, "f1": 100.0}}


@pytest.mark.parametrize("head", ["simple", "answerability"])
def test_a_question_above_the_best_threshold_is_left_without_an_answer(head: str) -> None:
    # The second is wrong, and less sure that there is no answer than the third.
    given_scores = [4.0, 3.0, 3.0], [-2.0, 1.0, 2.0]
    found = scored(SQUAD_2, THREE, [0, 0, 1], *given_scores, answer_head=head)
    table = found.predictions
    assert table["prediction"].to_pylist() == ["bade", "", ""]
    assert table["start"].to_pylist() == [0, None, None]
    assert table["score"].to_pylist() == [4.0, 3.0, 3.0]
    nulls = [-6.0, -2.0, -1.0] if head == "simple" else [-2.0, 1.0, 2.0]
    assert table["null_score"].to_pylist() == nulls
    assert table["f1"].to_pylist() == table["exact_match"].to_pylist() == [1.0, 0.0, 1.0]
    assert {name: s.value for name, s in found.samples.items()} == pytest.approx(
        {"f1": 2 / 3, "exact_match": 2 / 3}
    )
    for sample in found.samples.values():
        assert sample.part(np.array([True, True, False])).value == 0.5
    assert found.facts["no_answer_threshold"] == pytest.approx(1 / (1 + np.exp(-nulls[0])))
    official = found.facts["official"]
    assert (official["f1"], official["best_f1"]) == pytest.approx((200 / 3, 200 / 3))
    assert (official["HasAns_f1"], official["NoAns_f1"]) == (50.0, 100.0)
    again = squad.score_answers(table["prediction"].to_pylist(), table["answers"].to_pylist(), True)
    assert again["f1"].tolist() == table["f1"].to_pylist()


def test_the_threshold_is_searched_only_where_it_may_be_chosen() -> None:
    given_scores = [0, 0, 1], [4.0, 3.0, 3.0], [-2.0, 1.0, 2.0]
    thresholds = [
        scored(SQUAD_2, THREE, *given_scores, rows).facts["no_answer_threshold"]
        for rows in ([True, False, False], [False, False, True])
    ]
    assert thresholds == [pytest.approx(1 / (1 + np.exp(2.0))), 0.0]


def test_where_no_answer_at_all_is_best_none_is_given() -> None:
    found = scored(SQUAD_2, THREE, [1, 0, 0], [1.0] * 3, [-3.0] * 3)
    assert found.predictions["prediction"].to_pylist() == ["", "", ""]
    assert found.samples["f1"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize(("task", "texts"), [(SQUAD_1, ["bade"] * 3), (SQUAD_2, ["bade", "", ""])])
def test_without_labels_answers_are_given_where_they_are_more_probable_than_none(
    task: Task, texts: list[str]
) -> None:
    unlabelled = replace(THREE, answers=[()] * 3, is_labelled=False)
    found = scored(task, unlabelled, [0] * 3, [1.0] * 3, [-0.1, 0.1, 5.0])
    assert found.predictions["prediction"].to_pylist() == texts
    assert not found.samples
    assert found.predictions["f1"].null_count == 3


@pytest.mark.parametrize("task", [SQUAD_1, SQUAD_2])
def test_a_question_without_any_valid_span_has_no_answer(task: Task) -> None:
    examples = one_question("bade kolu", Answer("bade", 0))
    table = scored(task, examples, [2], [1.0], [0.0]).predictions
    assert table["prediction"].to_pylist() == [""]
    assert table["score"].to_pylist() == [None]
    assert table["exact_match"].to_pylist() == [0.0]
    assert table["n_best"].to_pylist() == [[]]


@pytest.mark.parametrize(
    ("name", "task"),
    [("squad-v1.1-articles-0-35.json", SQUAD_1), ("squad-v2.0-articles-0-24.json", SQUAD_2)],
)
def test_a_model_that_knows_the_targets_is_nearly_always_right(name: str, task: Task) -> None:
    path, vocab = DATA / "squad" / name, DATA.parent / "models/30k-clean.model"
    if not (path.exists() and vocab.exists()):
        pytest.skip(f"{path} or {vocab} is absent")
    examples = squad.read_squad(str(path), task.has_answerless)
    problem = SpanProblem(task, SpanSettings())
    inputs = problem.inputs(examples, Tokenizer(vocab.read_bytes()), 384)
    starts, ends = (inputs.targets[f"{name}_positions"][:, None] for name in ("start", "end"))
    sure = np.where(inputs.targets["is_impossible"], -9.0, 9.0)[:, None]
    outputs = named(starts, sure, ends[:, None], sure[:, None], -sure[:, 0])
    samples = problem.score(outputs, inputs, examples).samples
    assert samples["exact_match"].value > 0.995
    assert samples["f1"].value > 0.995


def test_the_head_is_the_one_that_the_task_and_the_settings_name() -> None:
    simple = SpanSettings(answer_head="simple")
    assert isinstance(SpanProblem(SQUAD_1, SpanSettings()).head(tiny_settings(), 0.1), StartEndHead)
    assert isinstance(
        SpanProblem(SQUAD_2, SpanSettings()).head(tiny_settings(), 0.1), AnswerabilityHead
    )
    assert isinstance(SpanProblem(SQUAD_2, simple).head(tiny_settings(), 0.1), StartEndHead)


def test_the_score_to_beat_is_that_of_no_answer_or_of_the_first_words() -> None:
    found = SpanProblem(SQUAD_2, SpanSettings()).constant_scores(THREE)
    assert found == {"f1": pytest.approx(1 / 3), "exact_match": pytest.approx(1 / 3)}
    examples = one_question("In Rome it rained.", Answer("In Rome", 0))
    found = SpanProblem(SQUAD_1, SpanSettings()).constant_scores(examples)
    assert found == {"f1": 1.0, "exact_match": 1.0}
    # Two words are the whole of the first answer ("a" is an article), five all of the second.
    both = asked("a b c d e", (Answer("b", 2),), (Answer("b c d e", 2),))
    found = SpanProblem(SQUAD_1, SpanSettings()).constant_scores(both)
    assert found == {"exact_match": 0.5, "f1": pytest.approx((2 / 5 + 1) / 2)}


def plain_windows(
    examples: SpanExamples, max_seq_length: int, settings: SpanSettings
) -> list[dict[str, Any]]:
    """Return what `convert_examples_to_features` of the reference does, window by window.

    Only, windows overlap by half of their room at least.
    """
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
            begin += min(length, settings.doc_stride, max(1, room // 2))
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


@settings(max_examples=50)
@given(
    st.integers(0, 1000),
    st.integers(12, 60),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(0, 60),
)
def test_windows_are_those_of_the_reference_but_overlap_by_half_at_least(
    seed: int, max_seq_length: int, doc_stride: int, max_query_length: int, num_words: int
) -> None:
    examples = made_questions(3, seed, num_words=(1, 1 + num_words), questions_each=2)
    check_windows(examples, max_seq_length, doc_stride, max_query_length)


@pytest.mark.parametrize("max_seq_length", [384, 512])
@pytest.mark.parametrize("question", ["bade", "bade " * 99])
def test_at_the_papers_lengths_windows_are_as_far_apart_as_in_the_reference(
    max_seq_length: int, question: str
) -> None:
    examples = one_question("kolu nipo " * 600, question=question)
    first = span_inputs(examples, max_seq_length).details.first
    assert set(np.diff(first).tolist()) == {128}


@pytest.mark.parametrize("num_words", [100, 150, 190])
def test_a_last_window_much_shorter_has_less_context(num_words: int) -> None:
    examples = made_questions(1, num_words=(num_words, num_words))
    check_windows(examples, max_seq_length=440, doc_stride=200, max_query_length=64)


def check_windows(
    examples: SpanExamples, max_seq_length: int, doc_stride: int, max_query_length: int
) -> None:
    chosen = SpanSettings(doc_stride=doc_stride, max_query_length=max_query_length)
    inputs = span_inputs(examples, max_seq_length, **chosen.model_dump())
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


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(16, 60), st.integers(1, 40))
def test_targets_are_the_answers_pieces_or_none_of_the_window(
    seed: int, max_seq_length: int, doc_stride: int
) -> None:
    examples = made_questions(4, seed, num_words=(1, 60), answerless_share=0.3)
    chosen = SpanSettings(doc_stride=doc_stride)
    inputs = span_inputs(examples, max_seq_length, **chosen.model_dump())
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
    account = inputs.accounts[1]
    lost = {"in_no_window": len(with_answers - answered), "no_pieces": 0}
    assert (account.total, account.dropped) == (len(with_answers), lost)
    if max_seq_length >= 30:  # half of what the question leaves is more than an answer
        assert answered == with_answers


def test_windows_shorter_than_the_stride_contain_the_answers_too() -> None:
    account = span_inputs(made_questions(60, num_words=(40, 60)), 30).accounts[1]
    assert (account.total, account.kept) == (60, 60)


def test_an_answer_that_became_no_piece_is_counted_apart() -> None:
    paragraph = "bade \u200b kolu"
    answers = (Answer("bade", 0),), (Answer("\u200b", 5),), ()
    account = span_inputs(asked(paragraph, *answers), 32).accounts[1]
    assert str(account) == "answers: 2 in = 1 kept, 1 dropped (in_no_window 0, no_pieces 1)"


def test_a_paragraph_of_nothing_has_a_window_all_the_same() -> None:
    inputs = span_inputs(one_question("\u200b"), 32)
    assert inputs.num_units == 1
    assert inputs.details.lengths.tolist() == [0]
    assert inputs.sequences.input_ids[-2:].tolist() == [SEP, SEP]


def test_what_has_no_labels_has_no_targets() -> None:
    unlabelled = replace(one_question("bade"), is_labelled=False)
    assert not span_inputs(unlabelled, 32).targets
    for examples in (one_question("bade"), one_question("bade", Answer("bade", 0))):
        assert span_inputs(examples, 32).targets


def test_cut_questions_are_accounted_for_and_one_that_leaves_no_room_is_refused() -> None:
    examples = one_question("bade", question="bade kolu nipo " * 9)
    size = len(tiny_vocab().encode(examples.questions)[0])
    account, _ = span_inputs(examples, 16, max_query_length=2).accounts
    assert (account.total, account.kept, account.dropped) == (size, 2, {"too_long": size - 2})
    message = f"no room for a paragraph beside a question of {min(size, 64)} pieces"
    with pytest.raises(ConfigError, match=message):
        span_inputs(examples, 16)


def target_of(examples: SpanExamples, row: int = 0) -> tuple[int, int] | None:
    """Return the first character of a question's target and the one after its last, if any."""
    pieces = ParagraphPieces(tiny_vocab(), examples.paragraphs)
    first, last = span_targets(examples, pieces)
    if first[row] < 0:
        assert first[row] == last[row] == -1
        return None
    begin, end = pieces.characters(examples.paragraph_of[row], first[row], last[row])
    return int(begin), int(end)


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
