"""What fine-tuning needs from a task: inputs for the encoder, a head on it, predictions and scores.

A unit is what a batch counts and a loss is the mean of: a text, a question with all its options,
a window of a paragraph. Sequences of different lengths are laid end to end, without padding.

Dimensions: U units with Q input sequences each (Q = options of a choice, else 1), N = U * Q
sequences of a set, B sequences of a batch with T pieces in all.

A score is shown beside that of the best constant answer, which a model has to beat.
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
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_core.config import ModelSettings
from albert_core.metrics import Sample
from albert_core.model.albert import AlbertModel
from albert_core.model.attention import Runs
from albert_core.stage.manifest import Account
from albert_core.tasks.examples import ChoiceExamples, SpanExamples, Task, TextExamples
from albert_core.text.records import CLS, SEP, Ints, ranges
from albert_core.text.tokenizer import Tokenizer

Outputs = Mapping[str, NDArray[Any]]
"""What a head computes for each unit, by name: arrays whose first dimension is U."""
Bools = NDArray[np.bool_]
E = TypeVar("E", TextExamples, ChoiceExamples, SpanExamples)


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """B sequences laid end to end, those of equal length beside each other."""

    input_ids: Tensor
    """int64 (T,)."""
    token_type_ids: Tensor
    """int64 (T,), 0 in segment a, 1 in segment b."""
    runs: Runs
    """Number and length of the sequences that follow each other."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins, in the order in which they were asked for."""
    lengths: Tensor
    """int64 (B,), in the same order."""


@dataclass(frozen=True)
class Sequences:
    """N sequences, [CLS] a [SEP] or [CLS] a [SEP] b [SEP], not padded."""

    input_ids: NDArray[np.int32]
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
        begins: Ints = np.cumsum(self.lengths) - self.lengths
        return begins

    def batch(self, rows: Ints, device: torch.device) -> SequenceBatch:
        """Return the sequences ``rows``, int64 (B,), as a batch on ``device``."""
        by_length = np.argsort(self.lengths[rows], kind="stable")
        packed = rows[by_length]
        lengths = self.lengths[packed]
        pieces = ranges(self.begins[packed], lengths)
        starts = np.cumsum(lengths) - lengths
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
    """What the head's loss compares with, by name: arrays whose first dimension is U; empty if
    the split has no labels."""
    accounts: list[Account]
    """Pieces in = out + dropped, and whatever else was counted."""
    sequences_per_unit: int = 1
    """Q."""
    details: Any = field(default=None, repr=False)
    """What the problem itself needs to turn outputs into predictions."""

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
        """Return what the problem makes predictions of; the first dimension is units."""


@dataclass(frozen=True)
class Scored:
    """Predictions for a split, and how good they are."""

    predictions: pa.Table
    """A row per example, in the examples' order: id, the prediction with its score, and the right
    answer."""
    samples: Mapping[str, Sample]
    """By the names of `Task.metrics`; empty for a split without labels."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers worth keeping, such as a threshold that was searched."""


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
        self, outputs: Outputs, inputs: Inputs, examples: E, chosen_on: Bools | None = None
    ) -> Scored:
        """Return predictions and their scores from the head's outputs for all units.

        Args:
            outputs: of the head.
            inputs: what they were computed from.
            examples: N of them.
            chosen_on: bool (N,), the examples whose labels may be used to choose something, such
                as a threshold; None: all.
        """

    @abstractmethod
    def constant_scores(self, examples: E) -> dict[str, float]:
        """Return the scores of the best constant answer, by metric.

        Args:
            examples: with labels.
        """


def dense_layer(inputs: int, outputs: int, std: float, bias: bool = True) -> nn.Linear:
    """Return a dense layer initialised like those of the encoder."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def batches_by_length(lengths: Ints, max_pieces: int) -> list[Ints]:
    """Return the numbers 0..U-1 in batches of similar length and at most ``max_pieces`` pieces.

    Args:
        lengths: (U,).
        max_pieces: of a batch; a longer unit is a batch of its own.
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
        head: of the task.
        inputs: at least one unit.
        device: where to compute.
        micro_batch_pieces: pieces in one forward pass; units of similar length go together.
    """
    batches = batches_by_length(inputs.unit_lengths, micro_batch_pieces)
    parts = []
    for units in batches:
        outputs = head.outputs(encoder, inputs.batch(units, device))
        parts.append({name: values.cpu().numpy() for name, values in outputs.items()})
    order = np.argsort(np.concatenate(batches), kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
