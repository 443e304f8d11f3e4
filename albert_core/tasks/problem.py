"""What fine-tuning needs from a task: inputs for the encoder, a head on it, predictions and scores.

The problems here are texts or pairs of texts with a label or a number, and questions with options;
`spans` has the questions that a span answers.

A unit is one element of a batch, and of the mean that is the loss: a text, a question with all its
options, a window of a paragraph. Sequences of different lengths are laid end to end, not padded.

Dimensions: U units with Q input sequences each (Q = options of a choice, else 1), N = U * Q
sequences of a set, B sequences of a batch with T pieces in all.

A score is shown beside that of the best constant answer, which a model has to beat.

Source: `run_classifier.py`, `classifier_utils.py` and `race_utils.py` of google-research/albert.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.metrics import METRICS, SHARE, Sample
from albert_core.model.albert import AlbertModel, initialise
from albert_core.model.attention import Runs
from albert_core.stage.manifest import Account
from albert_core.stage.results import is_error
from albert_core.tasks.examples import ChoiceExamples, SpanExamples, Task, TextExamples
from albert_core.text.records import (
    CLS,
    NUM_SPECIAL_IN_PAIR,
    SEP,
    Bools,
    Ints,
    SmallInts,
    begins_of,
    ranges,
)
from albert_core.text.tokenizer import Tokenizer

Outputs = Mapping[str, NDArray[Any]]
"""A head's outputs by name: arrays whose first dimension is U."""
Choosable = Bools | None
"""Bool (N,), the examples whose labels may be used to choose something, such as a threshold; None
means all of them."""
E = TypeVar("E", TextExamples, ChoiceExamples, SpanExamples)


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """B sequences laid end to end, those of equal length beside each other."""

    input_ids: Tensor
    """int64 (T,)."""
    token_type_ids: Tensor
    """int64 (T,), 0 in segment a, 1 in segment b."""
    runs: Runs
    """Number and length of the sequences in each run of equal lengths."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins, in the order in which they were asked for."""
    lengths: Tensor
    """int64 (B,), in the same order."""


@dataclass(frozen=True)
class Sequences:
    """N sequences, [CLS] a [SEP] or [CLS] a [SEP] b [SEP], not padded."""

    input_ids: SmallInts
    """All of them end to end."""
    lengths: Ints
    """(N,), special pieces included."""
    segment_b_starts: Ints
    """(N,), where in the sequence token type 1 begins; the length if there is no segment b."""

    @staticmethod
    def of(pairs: Sequence[tuple[Sequence[int], Sequence[int] | None]]) -> "Sequences":
        """Return the sequences of these segments a and b, piece ids without special pieces."""
        rows = [[CLS, *a, SEP] if b is None else [CLS, *a, SEP, *b, SEP] for a, b in pairs]
        return Sequences(
            input_ids=np.fromiter(chain.from_iterable(rows), np.int32),
            lengths=np.array([len(row) for row in rows], np.int64),
            segment_b_starts=np.array([len(a) + 2 for a, _ in pairs], np.int64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def begins(self) -> Ints:
        """(N,), where in ``input_ids`` each sequence begins."""
        return begins_of(self.lengths)

    def batch(self, rows: Ints, device: torch.device) -> SequenceBatch:
        """Return the sequences ``rows``, int64 (B,), as a batch on ``device``."""
        by_length = np.argsort(self.lengths[rows], kind="stable")
        packed = rows[by_length]
        lengths = self.lengths[packed]
        pieces = ranges(self.begins[packed], lengths)
        starts = begins_of(lengths)
        positions = np.arange(len(pieces)) - np.repeat(starts, lengths)
        token_types = positions >= np.repeat(self.segment_b_starts[packed], lengths)
        first = np.empty_like(starts)
        first[by_length] = starts
        of_length, number = np.unique(lengths, return_counts=True)
        tensors = (self.input_ids[pieces], token_types, first, self.lengths[rows])
        ids, types, firsts, asked = (
            torch.from_numpy(each.astype(np.int64)).to(device) for each in tensors
        )
        runs = list(zip(number.tolist(), of_length.tolist(), strict=True))
        return SequenceBatch(ids, types, runs, firsts, asked)


@dataclass(frozen=True)
class Inputs:
    """A split in the form that the encoder and the head take."""

    sequences: Sequences
    """N of them, those of a unit beside each other."""
    targets: Mapping[str, NDArray[Any]]
    """The right answers for the head's loss, by name: arrays whose first dimension is U; empty if
    the split has no labels."""
    accounts: list[Account]
    """Pieces in = out + dropped, and whatever else was counted."""
    sequences_per_unit: int = 1
    """Q."""
    details: Any = field(default=None, repr=False)
    """Whatever the problem needs to turn outputs into predictions."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.sequences) // self.sequences_per_unit

    @cached_property
    def unit_lengths(self) -> Ints:
        """(U,), the pieces of each unit's sequences together."""
        lengths: Ints = self.sequences.lengths.reshape(self.num_units, -1).sum(axis=1)
        return lengths

    def batch(self, units: Ints, device: torch.device) -> SequenceBatch:
        """Return the sequences of these units as a batch on ``device``."""
        rows = units[:, None] * self.sequences_per_unit + np.arange(self.sequences_per_unit)
        return self.sequences.batch(rows.ravel(), device)


class Head(nn.Module, ABC):
    """The layers on top of the encoder for one kind of task."""

    @abstractmethod
    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean loss, float32 (), over the units of the batch."""

    @abstractmethod
    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the outputs that predictions are made from; the first dimension is units."""

    def plain_state(self) -> dict[str, Tensor]:
        """Return the weights with which a new head gives the same outputs, by name."""
        return self.state_dict()


@dataclass(frozen=True)
class Scored:
    """Predictions for a split, and how good they are."""

    predictions: pa.Table
    """A row per example, in the examples' order: id, the prediction with its score, and the right
    answer."""
    samples: Mapping[str, Sample]
    """The scored examples by metric (`Task.metrics`); empty for a split without labels."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers to keep, such as a threshold found by search."""


class Problem(ABC, Generic[E]):
    """One kind of task: how examples become sequences, and outputs become predictions."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def inputs(self, examples: E, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return ``examples`` as input sequences of at most ``max_seq_length`` pieces."""

    @abstractmethod
    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a new head for an encoder with these settings."""

    @abstractmethod
    def score(
        self, outputs: Outputs, inputs: Inputs, examples: E, chosen_on: Choosable = None
    ) -> Scored:
        """Return predictions and their scores from the head's outputs for all units.

        Args:
            outputs: the head's outputs.
            inputs: the inputs that they were computed from.
            examples: the N examples.
            chosen_on: the examples whose labels may be used to choose something.
        """

    @abstractmethod
    def constant_scores(self, examples: E) -> dict[str, float]:
        """Return the scores of the best constant answer, by metric.

        Args:
            examples: with labels.
        """


def cut_pieces(what: str, total: int, kept: int) -> Account:
    """Return the account of ``total`` pieces, the rest of which was too long."""
    return Account(what=what, total=total, kept=kept, dropped={"too_long": total - kept})


def dense_layer(inputs: int, outputs: int, std: float, bias: bool = True) -> nn.Linear:
    """Return a dense layer initialised like those of the encoder."""
    layer = nn.Linear(inputs, outputs, bias)
    initialise(layer, std)
    return layer


def batches_by_length(lengths: Ints, max_pieces: int) -> list[Ints]:
    """Return the numbers 0..U-1 in batches of similar length and at most ``max_pieces`` pieces.

    Args:
        lengths: (U,), the pieces of each unit.
        max_pieces: the most pieces of a batch; a longer unit is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    found, begin, pieces = [], 0, 0
    for end, length in enumerate(lengths[order].tolist()):
        if pieces and pieces + length > max_pieces:
            found.append(order[begin:end])
            begin, pieces = end, 0
        pieces += length
    return [*found, order[begin:]] if len(order) else []


@torch.no_grad()
def outputs_of(
    encoder: AlbertModel, head: Head, inputs: Inputs, device: torch.device, micro_batch_pieces: int
) -> dict[str, NDArray[Any]]:
    """Return the outputs of the head for each of the U units, in their order.

    Args:
        encoder: on ``device``, in evaluation mode, as is the head.
        head: the task's head.
        inputs: at least one unit.
        device: the device to compute on.
        micro_batch_pieces: pieces in one forward pass; units of similar length go together.
    """
    batches = batches_by_length(inputs.unit_lengths, micro_batch_pieces)
    parts = []
    for units in batches:
        outputs = head.outputs(encoder, inputs.batch(units, device))
        parts.append({name: values.cpu().numpy() for name, values in outputs.items()})
    order = np.argsort(np.concatenate(batches), kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


TARGET, LOGITS = "target", "logits"
"""Name of the right answer among the targets, and of the one output of `PooledHead`."""
MAX_QUESTION_PIECES = 128
"""Pieces of a question with an option. Source: `max_qa_length` of `race_utils.py`."""

Pieces = list[int]


class PooledHead(Head):
    """Dropout and one dense layer on the pooled [CLS]: a score for each label or option.

    Args:
        settings: the encoder's settings.
        num_outputs: scores for each sequence.
        dropout_prob: dropout probability of the pooled [CLS].
        num_options: sequences of each unit, whose scores are compared with each other. If both
            numbers are 1, the score is a number, and the loss its squared error.

    A number is learned as the distance from ``mean`` in units of ``deviation``. They are 0 and 1,
    unless `learn_standardised` changes them.
    """

    def __init__(
        self, settings: ModelSettings, num_outputs: int, dropout_prob: float, num_options: int = 1
    ) -> None:
        super().__init__()
        self.num_options = num_options
        self.is_number = num_outputs == num_options == 1
        self.mean, self.deviation = 0.0, 1.0
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = dense_layer(settings.hidden_size, num_outputs, settings.initializer_range)

    def learn_standardised(self, numbers: NDArray[np.float64]) -> None:
        """Learn numbers that may be far from 0 or from each other, like ``numbers``, float64 (U,).

        The layer begins near 0 and moves slowly, so that it would never reach them.
        """
        self.mean, self.deviation = float(numbers.mean()), float(numbers.std()) or 1.0

    def plain_state(self) -> dict[str, Tensor]:
        """Return the weights; those of a number give it in its own units."""
        state = self.state_dict()
        if not self.is_number:
            return state
        weight, bias = state["classifier.weight"], state["classifier.bias"]
        return {
            "classifier.weight": weight * self.deviation,
            "classifier.bias": bias * self.deviation + self.mean,
        }

    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return the logits, float32 (units, labels or options), or numbers, float64 (units, 1).

        Float32 would round numbers that are far from 0 and near each other to the same one.
        """
        scores = self._scores(encoder, batch)
        return {LOGITS: scores.double() * self.deviation + self.mean if self.is_number else scores}

    def _scores(self, encoder: AlbertModel, batch: SequenceBatch) -> Tensor:
        """Return what the layer gives; of the encoder's last layer only [CLS] is computed."""
        first = encoder(
            batch.input_ids, batch.token_type_ids, batch.runs, rows=batch.first_positions
        )
        pooled = torch.tanh(encoder.pooler(first))
        logits: Tensor = self.classifier(self.dropout(pooled)).float()
        return logits.view(len(logits) // self.num_options, -1)

    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean cross-entropy, in nats; targets (units,) of labels or numbers."""
        scores, target = self._scores(encoder, batch), targets[TARGET]
        if self.is_number:
            wanted = (target - self.mean) / self.deviation
            return F.mse_loss(scores.squeeze(1), wanted.float())
        return F.cross_entropy(scores, target)


class TextProblem(Problem[TextExamples]):
    """A text, or a pair of texts, has one of some labels, or a number."""

    def inputs(self, examples: TextExamples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return [CLS] a [SEP], or [CLS] a [SEP] b [SEP]; long sequences are truncated."""
        firsts = tokenizer.encode(examples.texts_a)
        if examples.texts_b is None:
            room, num_pieces = max_seq_length - 2, _total(firsts)
            sequences = Sequences.of([(a[:room], None) for a in firsts])
        else:
            seconds = tokenizer.encode(examples.texts_b)
            room, num_pieces = max_seq_length - NUM_SPECIAL_IN_PAIR, _total(firsts + seconds)
            pairs = zip(firsts, seconds, strict=True)
            sequences = Sequences.of([cut_pair(a, b, room) for a, b in pairs])
        number, dropped = len(examples), dict(examples.skipped)
        total = number + sum(dropped.values())
        rows = Account(what="rows", total=total, kept=number, dropped=dropped)
        num_kept = len(sequences.input_ids) - (max_seq_length - room) * number
        accounts = [rows, cut_pieces("pieces", num_pieces, num_kept)]
        return Inputs(sequences, _targets(examples), accounts)

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with a score for each label, or with one number."""
        return PooledHead(settings, len(self.task.labels) or 1, dropout_prob)

    def score(
        self, outputs: Outputs, inputs: Inputs, examples: TextExamples, chosen_on: Choosable = None
    ) -> Scored:
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
        return Scored(pa.table(columns), samples)

    def constant_scores(self, examples: TextExamples) -> dict[str, float]:
        """Return the scores of the best label for each metric, or of the mean of the numbers.

        No constant has a lower squared error than the mean, and none correlates with anything.
        """
        metrics, targets = self.task.metrics, examples.targets
        assert targets is not None
        if self.task.kind == "classification":
            return _constant_label_scores(metrics, targets, len(self.task.labels))
        mean = np.full(len(targets), targets.mean())
        return {n: METRICS[n](targets, mean) if is_error(n) else 0.0 for n in metrics}


class ChoiceProblem(Problem[ChoiceExamples]):
    """One of several options answers a question about an article."""

    def inputs(self, examples: ChoiceExamples, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return [CLS] article [SEP] question and option [SEP] for each option.

        A question with an option keeps its last `MAX_QUESTION_PIECES` pieces; the article loses
        its tail.
        """
        num_options = len(examples.options[0])
        articles = tokenizer.encode(examples.articles)
        contexts = [articles[n] for n in np.repeat(examples.article_of, num_options).tolist()]
        questions = zip(examples.questions, examples.options, strict=True)
        asked = tokenizer.encode(
            [with_option(q, option) for q, of_q in questions for option in of_q]
        )
        room = max_seq_length - NUM_SPECIAL_IN_PAIR
        longest = min(MAX_QUESTION_PIECES, room)
        sequences = Sequences.of(
            [
                (context[: room - min(len(ids), longest)], ids[-longest:])
                for context, ids in zip(contexts, asked, strict=True)
            ]
        )
        num_kept = len(sequences.input_ids) - NUM_SPECIAL_IN_PAIR * len(sequences)
        accounts = [cut_pieces("pieces", _total(contexts + asked), num_kept)]
        return Inputs(sequences, _targets(examples), accounts, sequences_per_unit=num_options)

    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a head with one score for each option."""
        return PooledHead(settings, 1, dropout_prob, num_options=len(self.task.labels))

    def score(
        self,
        outputs: Outputs,
        inputs: Inputs,
        examples: ChoiceExamples,
        chosen_on: Choosable = None,
    ) -> Scored:
        """Return the most probable option of each question, and its letter.

        The accuracy is over all questions, and over those of each group by itself.
        """
        logits, targets = outputs[LOGITS], examples.targets
        predictions = logits.argmax(axis=1)
        columns = {
            "id": pa.array(examples.ids, pa.string()),
            "group": pa.array(examples.groups, pa.string()),
            **_label_columns(self.task.labels, predictions, targets, logits),
        }
        samples: dict[str, Sample] = {}
        if targets is not None:
            group_of = np.array(examples.groups)
            chosen = {f"accuracy_{group}": group_of == group for group in set(examples.groups)}
            chosen["accuracy"] = np.ones(len(examples), bool)
            samples = {
                name: SHARE.of((predictions == targets) & chosen[name], chosen[name])
                for name in self.task.metrics
                if name in chosen
            }
        return Scored(pa.table(columns), samples)

    def constant_scores(self, examples: ChoiceExamples) -> dict[str, float]:
        """Return the accuracy of the most frequent option, over all questions."""
        assert examples.targets is not None
        return _constant_label_scores(["accuracy"], examples.targets, len(self.task.labels))


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
    return question.replace("_", option) if "_" in question else f"{question} {option}"


def _total(encoded: Sequence[Pieces]) -> int:
    return sum(map(len, encoded))


def _targets(examples: TextExamples | ChoiceExamples) -> dict[str, NDArray[Any]]:
    return {} if examples.targets is None else {TARGET: examples.targets}


def _label_columns(
    labels: tuple[str, ...],
    predictions: Ints,
    targets: NDArray[Any] | None,
    logits: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the columns prediction, target if it is known, and probabilities.

    Args:
        labels: names of the labels, by index.
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
    """Return, by metric, the best score of giving the same label to all N examples.

    Args:
        metrics: names in `metrics.METRICS`.
        targets: (N,), the right labels, or the right options of a choice, from 0.
        num_labels: number of labels, or of options.
    """
    answers = [np.full_like(targets, label) for label in range(num_labels)]
    return {name: max(METRICS[name](targets, each) for each in answers) for name in metrics}
