"""Texts and pairs of texts with a label or a number, and questions with options; their heads.

Source: `run_classifier.py`, `classifier_utils.py` and `race_utils.py` of google-research/albert.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.metrics import METRICS
from albert_core.model.albert import AlbertModel
from albert_core.stage.manifest import Account
from albert_core.tasks.examples import ChoiceExamples, Task, TextExamples
from albert_core.tasks.problem import (
    Head,
    Inputs,
    Ints,
    Outputs,
    Problem,
    Scored,
    Scorer,
    constant_label_scores,
    constant_number_scores,
)
from albert_core.tasks.sequences import SequenceBatch, Sequences
from albert_core.text.tokenizer import Tokenizer

TARGET = "target"
"""Name of what is right, among a problem's targets."""
LOGITS = "logits"
"""Name of what these heads give."""


class PooledHead(Head):
    """Dropout and one dense layer on the pooled [CLS]."""

    def __init__(self, settings: ModelSettings, num_outputs: int, dropout_prob: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = nn.Linear(settings.hidden_size, num_outputs)
        std = settings.initializer_range
        nn.init.trunc_normal_(self.classifier.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.classifier.bias)

    def logits(self, encoder: AlbertModel, batch: SequenceBatch) -> Tensor:
        """Return (B, num_outputs); of the last layer only the [CLS] is computed."""
        first = encoder.encode(
            batch.input_ids, batch.token_type_ids, batch.runs, rows=batch.first_positions
        )
        pooled = torch.tanh(encoder.pooler(first))
        return self.classifier(self.dropout(pooled))  # type: ignore[no-any-return]

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits: float32 (B, num_outputs)."""
        return {LOGITS: self.logits(encoder, batch).float()}


class ClassificationHead(PooledHead):
    """A score for each label; the loss is their cross-entropy."""

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets int64 (B,)."""
        return F.cross_entropy(self.logits(encoder, batch).float(), targets[TARGET])


class RegressionHead(PooledHead):
    """One number; the loss is its squared error."""

    def __init__(self, settings: ModelSettings, dropout_prob: float) -> None:
        super().__init__(settings, 1, dropout_prob)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean squared error; targets float (B,)."""
        return F.mse_loss(self.logits(encoder, batch).squeeze(1).float(), targets[TARGET].float())


class ChoiceHead(PooledHead):
    """A score for each option of a question; the loss is their cross-entropy.

    Source: `race_utils.py`.
    """

    def __init__(self, settings: ModelSettings, num_options: int, dropout_prob: float) -> None:
        super().__init__(settings, 1, dropout_prob)
        self.num_options = num_options

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits: float32 (questions, options), of B = questions * options."""
        scores = self.logits(encoder, batch).float()
        return {LOGITS: scores.view(-1, self.num_options)}

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets int64 (questions,)."""
        return F.cross_entropy(self.outputs(encoder, batch)[LOGITS], targets[TARGET])


Pieces = list[int]


class TextProblem(Problem[TextExamples]):
    """What a text, or a pair of texts, is: one of some labels, or a number."""

    def inputs(
        self,
        examples: TextExamples,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ) -> Inputs:
        """Return [CLS] a [SEP], or [CLS] a [SEP] b [SEP]; what is too long loses its tail."""
        firsts = tokenizer.encode(examples.texts_a)
        if examples.texts_b is None:
            room = max_seq_length - 2
            sequences = Sequences.of([(a[:room], None) for a in firsts])
        else:
            seconds = tokenizer.encode(examples.texts_b)
            room = max_seq_length - 3
            pairs = (cut_pair(a, b, room) for a, b in zip(firsts, seconds, strict=True))
            sequences = Sequences.of(list(pairs))
            firsts = [*firsts, *seconds]
        return Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[
                _rows(examples),
                _pieces(firsts, sequences, 2 if examples.texts_b is None else 3),
            ],
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with a score for each label, or with one number."""
        if self.task.kind == "regression":
            return RegressionHead(settings, dropout_prob)
        return ClassificationHead(settings, len(self.task.labels), dropout_prob)

    def score(self, outputs: Outputs, inputs: Inputs, examples: TextExamples) -> Scored:
        """Return the most probable label of each text with all probabilities, or its number."""
        logits, targets = outputs[LOGITS], inputs.targets.get(TARGET)
        if self.task.kind == "regression":
            predictions = logits[:, 0].astype(np.float64)
            columns: dict[str, Any] = {"prediction": predictions}
            if targets is not None:
                columns["target"] = targets
        else:
            predictions = logits.argmax(axis=1)
            columns = label_columns(self.task.labels, predictions, targets, logits)
        table = pa.table({"id": pa.array(examples.ids, pa.string())} | columns)
        return Scored(table, scorers_of(self.task.metrics, targets, predictions))

    def constant_scores(self, examples: TextExamples) -> dict[str, float]:
        """Return what the most frequent label gets, or the mean of the numbers."""
        metrics, targets = self.task.metrics, examples.targets
        assert targets is not None
        if self.task.kind == "regression":
            return constant_number_scores(metrics, targets)
        return constant_label_scores(metrics, targets.astype(np.int64), len(self.task.labels))


def cut_pair(a: Pieces, b: Pieces, room: int) -> tuple[Pieces, Pieces]:
    """Return ``a`` and ``b`` with ``room`` pieces together: the longer loses its tail, then both.

    One piece at a time goes, from the longer; from ``b`` when they are equally long.

    >>> cut_pair([1, 2, 3, 4], [5, 6], 4)
    ([1, 2], [5, 6])
    >>> cut_pair([1, 2], [5, 6], 3)
    ([1, 2], [5])
    """
    if len(a) + len(b) <= room:
        return a, b
    half = room // 2
    if len(a) <= room - half:
        return a, b[: room - len(a)]
    if len(b) <= half:
        return a[: room - len(b)], b
    return a[: room - half], b[:half]


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the softmax over the last dimension."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float32] = shifted / shifted.sum(axis=-1, keepdims=True)
    return shares


def label_columns(
    labels: tuple[str, ...],
    predictions: Ints,
    targets: Ints | None,
    logits: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the columns that say what was predicted, and what was right where it is known.

    Args:
        labels: by their indices.
        predictions: (N,), indices.
        targets: (N,), indices; None where they are not known.
        logits: (N, labels), of which the probabilities are told.
    """
    names = pa.array(labels, pa.string())
    columns = {"prediction": names.take(pa.array(predictions))}
    if targets is not None:
        columns["target"] = names.take(pa.array(targets))
    return columns | {"probabilities": _lists(_probabilities(logits))}


def scorers_of(
    names: tuple[str, ...], targets: NDArray[Any] | None, predictions: NDArray[Any]
) -> Mapping[str, Scorer]:
    """Return the scorers called ``names`` of these predictions; none without targets."""
    if targets is None:
        return {}

    def scorer(name: str) -> Scorer:
        metric = METRICS[name]
        return lambda rows: metric(targets[rows], predictions[rows])

    return {name: scorer(name) for name in names}


def _rows(examples: TextExamples) -> Account:
    kept, skipped = len(examples), dict(examples.skipped)
    total = kept + sum(skipped.values())
    return Account(what="rows", total=total, kept=kept, dropped=skipped)


def _pieces(encoded: list[Pieces], sequences: Sequences, num_special: int) -> Account:
    total = sum(map(len, encoded))
    kept = len(sequences.input_ids) - num_special * len(sequences)
    return Account(what="pieces", total=total, kept=kept, dropped={"too_long": total - kept})


def _lists(rows: NDArray[np.float32]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]).cast(
        pa.list_(pa.float32())
    )


MAX_QUESTION_PIECES = 128
"""Of a question with an option. Source: `max_qa_length` of `race_utils.py`."""
ACCURACY = "accuracy"
_NUM_SPECIAL = 3
_BLANK = "_"


class ChoiceProblem(Problem[ChoiceExamples]):
    """Which option answers a question about an article."""

    def inputs(
        self,
        examples: ChoiceExamples,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ) -> Inputs:
        """Return [CLS] article [SEP] question and option [SEP] for each option.

        A question with an option keeps its last `MAX_QUESTION_PIECES` pieces; the article loses
        its tail.
        """
        articles = tokenizer.encode(examples.articles)
        asked = tokenizer.encode(
            [
                with_option(question, option)
                for question, options in zip(examples.questions, examples.options, strict=True)
                for option in options
            ]
        )
        num_options = len(examples.options[0])
        article_of = np.repeat(examples.article_of, num_options).tolist()
        room = max_seq_length - _NUM_SPECIAL
        longest = min(MAX_QUESTION_PIECES, room)
        sequences = Sequences.of(
            [
                (articles[article][: room - min(len(ids), longest)], ids[-longest:])
                for article, ids in zip(article_of, asked, strict=True)
            ]
        )
        total = sum(len(articles[article]) for article in article_of) + sum(map(len, asked))
        kept = len(sequences.input_ids) - _NUM_SPECIAL * len(sequences)
        return Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[
                Account(what="pieces", total=total, kept=kept, dropped={"too_long": total - kept})
            ],
            sequences_per_unit=num_options,
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with one score for each option."""
        return ChoiceHead(settings, len(self.task.labels), dropout_prob)

    def score(self, outputs: Outputs, inputs: Inputs, examples: ChoiceExamples) -> Scored:
        """Return the most probable option of each question, and its letter."""
        logits, targets = outputs[LOGITS], examples.targets
        predictions = logits.argmax(axis=1)
        columns = {
            "id": pa.array(examples.ids, pa.string()),
            "group": pa.array(examples.groups, pa.string()),
            **label_columns(self.task.labels, predictions, targets, logits),
        }
        scorers = _scorers(self.task, examples, predictions)
        return Scored(pa.table(columns), scorers, examples.article_of)

    def constant_scores(self, examples: ChoiceExamples) -> dict[str, float]:
        """Return what the most frequent option gets, over all questions."""
        assert examples.targets is not None
        return constant_label_scores([ACCURACY], examples.targets, len(self.task.labels))


def _scorers(task: Task, examples: ChoiceExamples, predictions: Ints) -> dict[str, Scorer]:
    """Return the accuracy over all questions, and over those of each group by itself."""
    if examples.targets is None:
        return {}
    is_right, groups = predictions == examples.targets, np.array(examples.groups)

    def accuracy_in(chosen: NDArray[np.bool_]) -> Scorer:
        def accuracy(rows: Ints) -> float:
            right = is_right[rows][chosen[rows]]
            return float(right.mean()) if len(right) else 0.0

        return accuracy

    names = {ACCURACY: np.ones(len(groups), bool)} | {
        f"{ACCURACY}_{group}": groups == group for group in np.unique(groups).tolist()
    }
    return {name: accuracy_in(names[name]) for name in task.metrics if name in names}


def with_option(question: str, option: str) -> str:
    """Return the question answered: its blanks filled, or the option behind it.

    >>> with_option("Tom is _ .", "tired")
    'Tom is tired .'
    >>> with_option("How is Tom?", "Tired.")
    'How is Tom? Tired.'
    """
    if _BLANK in question:
        return question.replace(_BLANK, option)
    return f"{question} {option}"
