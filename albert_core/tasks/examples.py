"""What a downstream task is, and its examples as read from its files.

Four kinds: a text or a pair of texts has a label (classification) or a number (regression); a
question about an article has several options, one of them right (choice); a question about a
paragraph is answered by a span of it (spans).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from albert_core.stage.errors import TaskError

Kind = Literal["classification", "regression", "choice", "spans"]
Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the examples of a task are and how they are scored; where they lie its reader knows."""

    name: str
    """As settings say it, e.g. "sst-2"."""
    title: str
    """As the paper's tables say it, e.g. "SST-2"."""
    kind: Kind
    labels: tuple[str, ...] = ()
    """Of classification and choice: as the files write them; the model predicts a label's index."""
    metrics: tuple[str, ...]
    """Names of the scores that are reported; models are compared by the first, the key metric."""
    has_answerless: bool = False
    """Of spans: whether some questions have no answer in their paragraph (SQuAD 2.0)."""


@dataclass(frozen=True, kw_only=True)
class TextExamples:
    """N texts or pairs of texts, in the order of the file."""

    ids: list[str]
    """As the task's submission file wants them."""
    texts_a: list[str]
    texts_b: list[str] | None
    """None if the task has one text an example."""
    targets: NDArray[np.int64] | NDArray[np.float64] | None
    """(N,): indices into `Task.labels` of classification, numbers of regression; None if the file
    has none, as test sets do."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many rows of the file are no examples, by reason."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class ChoiceExamples:
    """N questions, each about an article and with the same number of options."""

    ids: list[str]
    articles: list[str]
    """Each article once."""
    article_of: NDArray[np.int64]
    """(N,), index into ``articles``."""
    questions: list[str]
    options: list[tuple[str, ...]]
    targets: NDArray[np.int64] | None
    """(N,), index of the right option."""
    groups: list[str]
    """Which part of the set each is of; "middle" or "high" in RACE."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Answer:
    """A span of a paragraph."""

    text: str
    start: int
    """Of its first character in the paragraph."""


@dataclass(frozen=True, kw_only=True)
class SpanExamples:
    """N questions, each about a paragraph."""

    ids: list[str]
    paragraphs: list[str]
    """Each paragraph once."""
    paragraph_of: NDArray[np.int64]
    """(N,), index into ``paragraphs``."""
    questions: list[str]
    answers: list[tuple[Answer, ...]]
    """As the annotators gave them; none of a question without an answer."""
    is_labelled: bool = True
    """Whether ``answers`` are known: if not, they are all empty and nothing can be scored."""

    def __len__(self) -> int:
        return len(self.ids)


Examples = TextExamples | ChoiceExamples | SpanExamples


HIDDEN = frozenset({"-1", ""})
"""What stands in a test file's label column when the labels are kept back."""


def targets_of(
    task: Task, values: Sequence[str], lines: Sequence[int], uri: str
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return the targets of N examples: int64 (N,) of classification, float64 (N,) of regression.

    Args:
        task: whose labels they are.
        values: N labels or numbers, as the file writes them.
        lines: (N,), the line of each, for messages.
        uri: of the file, for messages.

    Raises:
        TaskError: one is no label of the task, or no number.
    """
    if task.kind == "regression":
        return np.array(
            [_number(value, line, uri) for value, line in zip(values, lines, strict=True)],
            np.float64,
        )
    index_of = {label: index for index, label in enumerate(task.labels)}
    targets = [index_of.get(value, -1) for value in values]
    if -1 in targets:
        row = targets.index(-1)
        raise TaskError(
            f"{uri}, line {lines[row]}: label {values[row]!r}, expected one of "
            f"{', '.join(task.labels)}. Correct or remove the line."
        )
    return np.array(targets, np.int64)


def are_hidden(values: Sequence[str]) -> bool:
    """Return whether the labels are kept back, as test files do."""
    return all(value in HIDDEN for value in values)


def _number(value: str, line: int, uri: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(
            f"{uri}, line {line}: score {value!r}, expected a number. Correct or remove the line."
        )
    return number
