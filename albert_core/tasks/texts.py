"""Texts and pairs of texts with a label or a number, and questions with options; their heads.

Source: `run_classifier.py`, `classifier_utils.py` and `race_utils.py` of google-research/albert.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.metrics import LOWER_IS_BETTER, METRICS, SHARE, Sample
from albert_core.model.albert import AlbertModel
from albert_core.stage.manifest import Account
from albert_core.tasks import problem
from albert_core.tasks.examples import ChoiceExamples, TextExamples
from albert_core.text.records import NUM_SPECIAL_IN_PAIR, Ints
from albert_core.text.tokenizer import Tokenizer

TARGET = "target"
"""Name of the right answer among a problem's targets."""
LOGITS = "logits"
"""Name of the output of these heads."""
MAX_QUESTION_PIECES = 128
"""Pieces of a question with an option. Source: `max_qa_length` of `race_utils.py`."""
ACCURACY = "accuracy"
_BLANK = "_"

Pieces = list[int]


class PooledHead(problem.Head):
    """Dropout and one dense layer on the pooled [CLS]: a score for each label or option.

    Args:
        settings: of the encoder.
        num_outputs: scores for each sequence.
        dropout_prob: of the pooled [CLS].
        num_options: sequences of each unit, whose scores are compared with each other. If both
            numbers are 1, the score is a number, and the loss its squared error.
    """

    def __init__(
        self, settings: ModelSettings, num_outputs: int, dropout_prob: float, num_options: int = 1
    ) -> None:
        super().__init__()
        self.num_options = num_options
        self.is_number = num_outputs == num_options == 1
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = problem.dense_layer(
            settings.hidden_size, num_outputs, settings.initializer_range
        )

    def outputs(self, encoder: AlbertModel, batch: problem.SequenceBatch) -> dict[str, Tensor]:
        """Return the logits, float32 (units, labels or options); of the last layer only [CLS]."""
        first = encoder.encode(
            batch.input_ids, batch.token_type_ids, batch.runs, rows=batch.first_positions
        )
        pooled = torch.tanh(encoder.pooler(first))
        logits = self.classifier(self.dropout(pooled)).float()
        return {LOGITS: logits.view(len(logits) // self.num_options, -1)}

    def loss(
        self, encoder: AlbertModel, batch: problem.SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets (units,) of labels or numbers."""
        logits, target = self.outputs(encoder, batch)[LOGITS], targets[TARGET]
        if self.is_number:
            return F.mse_loss(logits.squeeze(1), target.float())
        return F.cross_entropy(logits, target)


class TextProblem(problem.Problem[TextExamples]):
    """A text, or a pair of texts, has one of some labels, or a number."""

    def inputs(
        self, examples: TextExamples, tokenizer: Tokenizer, max_seq_length: int
    ) -> problem.Inputs:
        """Return [CLS] a [SEP], or [CLS] a [SEP] b [SEP]; what is too long loses its tail."""
        firsts = tokenizer.encode(examples.texts_a)
        if examples.texts_b is None:
            room, num_pieces = max_seq_length - 2, _total(firsts)
            sequences = problem.Sequences.of([(a[:room], None) for a in firsts])
        else:
            seconds = tokenizer.encode(examples.texts_b)
            room, num_pieces = max_seq_length - NUM_SPECIAL_IN_PAIR, _total(firsts + seconds)
            pairs = zip(firsts, seconds, strict=True)
            sequences = problem.Sequences.of([cut_pair(a, b, room) for a, b in pairs])
        num_skipped = sum(examples.skipped.values())
        rows = Account(
            what="rows",
            total=len(examples) + num_skipped,
            kept=len(examples),
            dropped=dict(examples.skipped),
        )
        return problem.Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[rows, _pieces(num_pieces, sequences, max_seq_length - room)],
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> problem.Head:
        """Return a head with a score for each label, or with one number."""
        return PooledHead(settings, len(self.task.labels) or 1, dropout_prob)

    def score(
        self,
        outputs: problem.Outputs,
        inputs: problem.Inputs,
        examples: TextExamples,
        chosen_on: problem.Bools | None = None,
    ) -> problem.Scored:
        """Return the most probable label of each text with all probabilities, or its number."""
        logits, targets = outputs[LOGITS], examples.targets
        columns: dict[str, Any] = {"id": pa.array(examples.ids, pa.string())}
        if self.task.kind == "regression":
            predictions = logits[:, 0].astype(np.float64)
            columns["prediction"] = predictions
            if targets is not None:
                columns["target"] = targets
        else:
            predictions = logits.argmax(axis=1)
            columns |= _label_columns(self.task.labels, predictions, targets, logits)
        samples = {}
        if targets is not None:
            samples = {name: METRICS[name].of(targets, predictions) for name in self.task.metrics}
        return problem.Scored(pa.table(columns), samples)

    def constant_scores(self, examples: TextExamples) -> dict[str, float]:
        """Return the scores of the best label for each metric, or of the mean of the numbers.

        No constant has a lower squared error than the mean, and none correlates with anything.
        """
        metrics, targets = self.task.metrics, examples.targets
        assert targets is not None
        if self.task.kind == "classification":
            return _constant_label_scores(metrics, targets, len(self.task.labels))
        mean = np.full(len(targets), targets.mean())
        return {
            name: METRICS[name](targets, mean) if name in LOWER_IS_BETTER else 0.0
            for name in metrics
        }


class ChoiceProblem(problem.Problem[ChoiceExamples]):
    """One of several options answers a question about an article."""

    def inputs(
        self, examples: ChoiceExamples, tokenizer: Tokenizer, max_seq_length: int
    ) -> problem.Inputs:
        """Return [CLS] article [SEP] question and option [SEP] for each option.

        A question with an option keeps its last `MAX_QUESTION_PIECES` pieces; the article loses
        its tail.
        """
        num_options = len(examples.options[0])
        articles = tokenizer.encode(examples.articles)
        contexts = [
            articles[article] for article in np.repeat(examples.article_of, num_options).tolist()
        ]
        asked = tokenizer.encode(
            [
                with_option(question, option)
                for question, options in zip(examples.questions, examples.options, strict=True)
                for option in options
            ]
        )
        room = max_seq_length - NUM_SPECIAL_IN_PAIR
        longest = min(MAX_QUESTION_PIECES, room)
        sequences = problem.Sequences.of(
            [
                (context[: room - min(len(ids), longest)], ids[-longest:])
                for context, ids in zip(contexts, asked, strict=True)
            ]
        )
        return problem.Inputs(
            sequences=sequences,
            targets={} if examples.targets is None else {TARGET: examples.targets},
            accounts=[_pieces(_total(contexts + asked), sequences, NUM_SPECIAL_IN_PAIR)],
            sequences_per_unit=num_options,
        )

    def head(self, settings: ModelSettings, dropout_prob: float) -> problem.Head:
        """Return a head with one score for each option."""
        return PooledHead(settings, 1, dropout_prob, num_options=len(self.task.labels))

    def score(
        self,
        outputs: problem.Outputs,
        inputs: problem.Inputs,
        examples: ChoiceExamples,
        chosen_on: problem.Bools | None = None,
    ) -> problem.Scored:
        """Return the most probable option of each question, and its letter."""
        logits, targets = outputs[LOGITS], examples.targets
        predictions = logits.argmax(axis=1)
        columns = {
            "id": pa.array(examples.ids, pa.string()),
            "group": pa.array(examples.groups, pa.string()),
            **_label_columns(self.task.labels, predictions, targets, logits),
        }
        samples = {} if targets is None else self._samples(predictions == targets, examples.groups)
        return problem.Scored(pa.table(columns), samples)

    def _samples(self, is_right: problem.Bools, groups: list[str]) -> dict[str, Sample]:
        """Return the accuracy over all questions, and over those of each group by itself."""
        group_of = np.array(groups)
        chosen = {f"{ACCURACY}_{group}": group_of == group for group in dict.fromkeys(groups)}
        chosen[ACCURACY] = np.ones(len(groups), bool)
        return {
            name: SHARE.of(is_right & chosen[name], chosen[name])
            for name in self.task.metrics
            if name in chosen
        }

    def constant_scores(self, examples: ChoiceExamples) -> dict[str, float]:
        """Return the accuracy of the most frequent option, over all questions."""
        assert examples.targets is not None
        return _constant_label_scores([ACCURACY], examples.targets, len(self.task.labels))


def cut_pair(a: Pieces, b: Pieces, room: int) -> tuple[Pieces, Pieces]:
    """Return ``a`` and ``b`` with ``room`` pieces together: the longer loses its tail, then both.

    Pieces are removed one at a time from the longer; from ``b`` when they are equally long.

    >>> cut_pair([1, 2, 3, 4], [5, 6], 4)
    ([1, 2], [5, 6])
    >>> cut_pair([1, 2], [5, 6], 3)
    ([1, 2], [5])
    """
    half = room // 2
    if len(a) <= room - half:
        return a, b[: room - len(a)]
    if len(b) <= half:
        return a[: room - len(b)], b
    return a[: room - half], b[:half]


def with_option(question: str, option: str) -> str:
    """Return the question with its blanks filled, or else with the option after it.

    >>> with_option("Tom is _ .", "tired")
    'Tom is tired .'
    >>> with_option("How is Tom?", "Tired.")
    'How is Tom? Tired.'
    """
    if _BLANK in question:
        return question.replace(_BLANK, option)
    return f"{question} {option}"


def _total(encoded: Sequence[Pieces]) -> int:
    return sum(map(len, encoded))


def _pieces(total: int, sequences: problem.Sequences, num_special: int) -> Account:
    """Return the account of ``total`` pieces; sequences have ``num_special`` ones besides."""
    kept = len(sequences.input_ids) - num_special * len(sequences)
    return Account(what="pieces", total=total, kept=kept, dropped={"too_long": total - kept})


def _label_columns(
    labels: tuple[str, ...],
    predictions: Ints,
    targets: NDArray[Any] | None,
    logits: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the columns prediction, target if it is known, and probabilities.

    Args:
        labels: by their indices.
        predictions: (N,), indices.
        targets: (N,), indices; None where they are not known.
        logits: (N, labels).
    """
    names = pa.array(labels, pa.string())
    columns = {"prediction": names.take(pa.array(predictions))}
    if targets is not None:
        columns["target"] = names.take(pa.array(targets))
    probabilities = torch.from_numpy(logits).softmax(dim=1).numpy()
    return columns | {"probabilities": pa.array(list(probabilities), pa.list_(pa.float32()))}


def _constant_label_scores(
    metrics: Sequence[str], targets: NDArray[Any], num_labels: int
) -> dict[str, float]:
    """Return, by metric, the best score of giving the same label to every example.

    Args:
        metrics: names in `metrics.METRICS`.
        targets: (N,), the right labels, or the right options of a choice, from 0.
        num_labels: number of labels, or of options.
    """
    answers = [np.full_like(targets, label) for label in range(num_labels)]
    return {name: max(METRICS[name](targets, each) for each in answers) for name in metrics}
