"""Questions that a span of a paragraph answers: SQuAD 1.1, and 2.0 with its answerless ones.

In SQuAD 2.0, a question gets no answer if the model's belief that it has none exceeds a
threshold. It is searched on the scored split itself for the best F1, as the official evaluation
does; the exact matches reported are those of the same predictions. The reference goes on to leave
without an answer what has a logit above 1, a slip that is not repeated here.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.config import ModelSettings, SpanSettings
from albert_core.tasks.examples import SpanExamples, Task
from albert_core.tasks.problem import (
    Head,
    Inputs,
    Outputs,
    Problem,
    Scored,
    Scorer,
    first_words_scores,
    no_answer_scores,
)
from albert_core.tasks.span_heads import (
    AnswerabilityHead,
    RankedAnswers,
    StartEndHead,
    rank_answers,
)
from albert_core.tasks.span_inputs import span_inputs
from albert_core.tasks.squad import (
    AnswerScores,
    apply_threshold,
    best_threshold,
    score_answers,
    squad_1_scores,
    squad_2_scores,
)
from albert_core.text.tokenizer import Tokenizer

Floats = NDArray[np.float64]
UNSEARCHED_THRESHOLD = 0.5
"""Probability of no answer above which a question has none, where no labels tell a better one."""
_LOGIT_WITHOUT_ANSWER = 1e6
"""Of a question for which no span is valid. `squad_utils.py` gives the span -1e6."""


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """What is predicted for each of N questions, and how good it is."""

    texts: list[str]
    is_answered: NDArray[np.bool_]
    null_scores: Floats | None = None
    scores: AnswerScores | None = None
    """None without labels."""
    facts: dict[str, Any] = field(default_factory=dict)


class SpanProblem(Problem[SpanExamples]):
    """SQuAD.

    A unit is a window of a paragraph. The columns of `Scored.predictions`:

        id            as the file has it
        prediction    a slice of the paragraph; "" if the question is left without an answer
        start, end    its first character in the paragraph and the one after its last; or null
        score         of the best span, predicted or not; null if no span is valid
        null_score    logit of no answer; null if all questions have one
        answers       texts that are right; empty if there is none
        exact_match   0 or 1; null without labels
        f1            0..1; null without labels
        n_best        list of text, start, end, score: spans of different texts, the best first
    """

    def __init__(self, task: Task, settings: SpanSettings) -> None:
        super().__init__(task)
        self.settings = settings

    def inputs(self, examples: SpanExamples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return the windows; see `span_inputs`. They are the same in training and out of it."""
        return span_inputs(examples, tokenizer, max_seq_length, self.settings)

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return the head of SQuAD 1.1, or the one that ``answer_head`` names for 2.0."""
        if self._has_answerability:
            return AnswerabilityHead(settings, dropout_prob)
        return StartEndHead(settings, self.settings.n_best)

    def score(self, outputs: Outputs, inputs: Inputs, examples: SpanExamples) -> Scored:
        """Return predictions, and ``exact_match`` and ``f1`` as shares, 0..1.

        Facts: ``official``, what the official evaluation prints for the spans, in percent; of
        2.0 with ``no_answer_threshold``, a probability.
        """
        ranked = rank_answers(outputs, inputs.details, examples, self.settings)
        answers = [tuple(answer.text for answer in of_one) for of_one in examples.answers]
        judge = self._judge_with_threshold if self.task.has_answerless else self._judge
        judged = judge(_best_texts(ranked), answers if examples.is_labelled else None, ranked)
        scorers = {} if judged.scores is None else self._scorers(judged.scores)
        table = _table(examples, answers, judged, ranked)
        return Scored(table, scorers, examples.paragraph_of, judged.facts)

    def constant_scores(self, examples: SpanExamples) -> dict[str, float]:
        """Return what no answer gets where that may be right, else the paragraph's first words."""
        answers = [tuple(answer.text for answer in of_one) for of_one in examples.answers]
        if self.task.has_answerless:
            return no_answer_scores(self.task.metrics, np.array([not each for each in answers]))
        paragraphs = [examples.paragraphs[number] for number in examples.paragraph_of]
        return first_words_scores(paragraphs, answers)

    def _judge(
        self, texts: list[str], answers: list[tuple[str, ...]] | None, ranked: RankedAnswers
    ) -> "_Judged":
        """Return what is predicted where each question has an answer, and how good it is."""
        judged = _Judged(texts=texts, is_answered=ranked.numbers > 0)
        if answers is None:
            return judged
        scores = score_answers(texts, answers, has_answerless=False)
        return replace(judged, scores=scores, facts={"official": squad_1_scores(scores)})

    def _judge_with_threshold(
        self, texts: list[str], answers: list[tuple[str, ...]] | None, ranked: RankedAnswers
    ) -> "_Judged":
        """Return what is predicted with the best threshold, and how good it is."""
        null_scores = self._null_scores(ranked)
        no_answer_probs = _sigmoid(null_scores)
        threshold, scores, facts = UNSEARCHED_THRESHOLD, None, dict[str, Any]()
        if answers is not None:
            has_answer = np.array([bool(of_one) for of_one in answers], np.bool_)
            raw = score_answers(texts, answers, has_answerless=True)
            threshold = best_threshold(raw.f1, texts, has_answer, no_answer_probs).value
            scores = AnswerScores(
                apply_threshold(raw.exact_match, no_answer_probs, has_answer, threshold),
                apply_threshold(raw.f1, no_answer_probs, has_answer, threshold),
            )
            facts["official"] = squad_2_scores(raw, texts, has_answer, no_answer_probs, threshold)
        is_answered = (ranked.numbers > 0) & (no_answer_probs <= threshold)
        return _Judged(
            texts=[text if said else "" for text, said in zip(texts, is_answered, strict=True)],
            is_answered=is_answered,
            null_scores=null_scores,
            scores=scores,
            facts={**facts, "no_answer_threshold": threshold},
        )

    @property
    def _has_answerability(self) -> bool:
        return self.task.has_answerless and self.settings.answer_head == "answerability"

    def _null_scores(self, ranked: RankedAnswers) -> Floats:
        """Return the logit (N,) that a question has no answer."""
        has_span = ranked.numbers > 0
        logits = ranked.null_scores.copy()
        if not self._has_answerability:
            # How much more [CLS] scores than the best span. Source: Devlin et al. 2019, 4.3.
            logits[has_span] -= ranked.scores[ranked.first[has_span]]
        logits[~has_span] = _LOGIT_WITHOUT_ANSWER
        return logits

    def _scorers(self, scores: AnswerScores) -> dict[str, Scorer]:
        values = {"exact_match": scores.exact_match, "f1": scores.f1}

        def mean_of(name: str) -> Scorer:
            return lambda rows: float(values[name][rows].mean())

        return {name: mean_of(name) for name in self.task.metrics}


def _sigmoid(logits: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -logits))


def _best_texts(ranked: RankedAnswers) -> list[str]:
    """Return the best text of each question, "" where no span is valid."""
    pairs = zip(ranked.first.tolist(), ranked.numbers.tolist(), strict=True)
    return [ranked.texts[first] if number else "" for first, number in pairs]


def _table(
    examples: SpanExamples,
    answers: list[tuple[str, ...]],
    judged: _Judged,
    ranked: RankedAnswers,
) -> pa.Table:
    """Return the table that `SpanProblem` describes."""
    has_span = ranked.numbers > 0

    def of_best(values: NDArray[Any], shown: NDArray[np.bool_]) -> pa.Array:
        column = np.zeros(len(examples), values.dtype)
        column[has_span] = values[ranked.first[has_span]]
        return pa.array(column, mask=~shown)

    def floats(values: Floats | None) -> pa.Array:
        return pa.nulls(len(examples), pa.float64()) if values is None else pa.array(values)

    spans = [ranked.begins, ranked.ends, ranked.scores]
    n_best = pa.StructArray.from_arrays(
        [pa.array(ranked.texts, pa.string()), *map(pa.array, spans)],
        names=["text", "start", "end", "score"],
    )
    bounds = pa.array(np.append(0, np.cumsum(ranked.numbers)), pa.int32())
    scores = judged.scores
    return pa.table(
        {
            "id": pa.array(examples.ids, pa.string()),
            "prediction": pa.array(judged.texts, pa.string()),
            "start": of_best(ranked.begins, judged.is_answered),
            "end": of_best(ranked.ends, judged.is_answered),
            "score": of_best(ranked.scores, has_span),
            "null_score": floats(judged.null_scores),
            "answers": pa.array(answers, pa.list_(pa.string())),
            "exact_match": floats(None if scores is None else scores.exact_match),
            "f1": floats(None if scores is None else scores.f1),
            "n_best": pa.ListArray.from_arrays(bounds, n_best),
        }
    )
