"""What fine-tuning asks of a task: inputs for the encoder, a head on it, predictions and scores.

A unit is what a batch counts and a loss is the mean of: a text, a question with all its options,
a window of a paragraph. U units; Q input sequences each (Q = options of a choice, else 1).

A score is shown beside that of the best constant answer, which a model has to beat.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.metrics import LOWER_IS_BETTER, METRICS
from albert_core.model.albert import AlbertModel
from albert_core.stage.manifest import Account
from albert_core.tasks.examples import ChoiceExamples, SpanExamples, Task, TextExamples
from albert_core.tasks.sequences import SequenceBatch, Sequences, batches_by_length
from albert_core.tasks.squad import score_answers
from albert_core.text.tokenizer import Tokenizer

_NUMBERS_OF_WORDS = (1, 2, 3, 5, 8, 12, 20, 30)


def constant_label_scores(
    metrics: Sequence[str], targets: NDArray[np.int64], num_labels: int
) -> dict[str, float]:
    """Return, by metric, the best score of giving the same label to every example.

    Args:
        metrics: names in `metrics.METRICS`.
        targets: (N,), the right labels, or of a choice the right options, from 0.
        num_labels: of which there are so many.
    """
    answers = [np.full_like(targets, label) for label in range(num_labels)]
    return {name: max(METRICS[name](targets, each) for each in answers) for name in metrics}


def constant_number_scores(metrics: Sequence[str], targets: NDArray[Any]) -> dict[str, float]:
    """Return, by metric, the score of giving the mean to every example; (N,) targets.

    No constant has a lower squared error, and none correlates with anything.
    """
    answers = np.full(len(targets), targets.mean())
    return {
        name: METRICS[name](targets, answers) if name in LOWER_IS_BETTER else 0.0
        for name in metrics
    }


def no_answer_scores(metrics: Sequence[str], has_none: NDArray[np.bool_]) -> dict[str, float]:
    """Return, by metric, the share that answering no question of (N,) gets: of those with none."""
    return dict.fromkeys(metrics, float(has_none.mean()))


def first_words_scores(
    paragraphs: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the best shares of answering each of N questions with the paragraph's first words.

    How many words is the same for all questions, and what is best for a metric.

    Args:
        paragraphs: of each question.
        answers: of each question, those that are right; at least one.
    """
    words = [paragraph.split() for paragraph in paragraphs]
    exact_match, f1 = [], []
    for number in _NUMBERS_OF_WORDS:
        said = [" ".join(each[:number]) for each in words]
        scores = score_answers(said, answers, has_answerless=False)
        exact_match.append(float(scores.exact_match.mean()))
        f1.append(float(scores.f1.mean()))
    return {"exact_match": max(exact_match), "f1": max(f1)}


Ints = NDArray[np.int64]
Outputs = Mapping[str, NDArray[Any]]
"""What a head gives for each unit, by name: arrays whose first dimension is U, in units' order."""
Scorer = Callable[[Ints], float]
"""The score of some of the examples: their numbers (M,), repeats allowed, -> score."""
E = TypeVar("E", TextExamples, ChoiceExamples, SpanExamples)


@dataclass(frozen=True)
class Inputs:
    """A split as the encoder and the head take it: U units of Q sequences each."""

    sequences: Sequences
    """U * Q of them, those of a unit beside each other."""
    targets: Mapping[str, NDArray[Any]]
    """What the head's loss compares with, by name: arrays whose first dimension is U; empty if
    the split has no labels."""
    accounts: list[Account]
    """Pieces in = out + dropped, and whatever else was counted."""
    sequences_per_unit: int = 1
    """Q."""
    details: Any = field(default=None, repr=False)
    """What the problem needs to turn outputs into predictions; its own affair."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.sequences) // self.sequences_per_unit


class Head(nn.Module, ABC):
    """What stands on the encoder for one kind of task."""

    @abstractmethod
    def loss(
        self, encoder: AlbertModel, batch: SequenceBatch, targets: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean loss, float32 (), over the units of the batch."""

    @abstractmethod
    def outputs(self, encoder: AlbertModel, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return what the problem's predictions are made of, first dimension units."""


@dataclass(frozen=True)
class Scored:
    """Predictions for a split, and how good they are."""

    predictions: pa.Table
    """A row an example, in the examples' order: id, what was predicted and with what score, and
    what was right."""
    scorers: Mapping[str, Scorer]
    """By the names of `Task.metrics`; empty for a split without labels."""
    groups: Ints | None = None
    """(N,), which examples share an article or a paragraph, so that their scores hang together;
    None where each stands by itself."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers worth keeping, such as a threshold that was searched."""


class Problem(ABC, Generic[E]):
    """One kind of task: how its examples become sequences, and outputs predictions."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def inputs(self, examples: E, tokenizer: Tokenizer, max_seq_length: int) -> Inputs:
        """Return ``examples`` as input sequences of at most ``max_seq_length`` pieces."""

    @abstractmethod
    def head(self, settings: ModelSettings, dropout_prob: float) -> Head:
        """Return a fresh head for an encoder of these settings."""

    @abstractmethod
    def score(self, outputs: Outputs, inputs: Inputs, examples: E) -> Scored:
        """Return predictions and scorers from the head's outputs for all units."""

    @abstractmethod
    def constant_scores(self, examples: E) -> dict[str, float]:
        """Return what the best constant answer gets, by metric: the score to beat.

        Args:
            examples: with labels.
        """


def unit_lengths(inputs: Inputs) -> Ints:
    """Return the pieces, (U,), of each unit's sequences together."""
    lengths: Ints = inputs.sequences.lengths.reshape(inputs.num_units, -1).sum(axis=1)
    return lengths


def batch_of_units(inputs: Inputs, units: Ints, device: torch.device) -> SequenceBatch:
    """Return the sequences of these units as a batch on ``device``."""
    each = inputs.sequences_per_unit
    rows = (units[:, None] * each + np.arange(each)).ravel()
    return inputs.sequences.batch(rows, device)


@torch.no_grad()
def outputs_of(
    encoder: AlbertModel,
    head: Head,
    inputs: Inputs,
    device: torch.device,
    micro_batch_pieces: int,
) -> dict[str, NDArray[Any]]:
    """Return what the head gives for each of the U units, in their order.

    Args:
        encoder: on ``device``, in evaluation mode, as is the head.
        head: of the task.
        inputs: at least one unit.
        device: where to compute.
        micro_batch_pieces: of one forward pass; units of similar length go together.
    """
    batches = batches_by_length(unit_lengths(inputs), micro_batch_pieces)
    parts = []
    for units in batches:
        outputs = head.outputs(encoder, batch_of_units(inputs, units, device))
        parts.append({name: values.cpu().numpy() for name, values in outputs.items()})
    order = np.argsort(np.concatenate(batches), kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
