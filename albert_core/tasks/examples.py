"""The definition of a downstream task, and its examples as read from its files.

Four kinds: a text or a pair of texts has a label (classification) or a number (regression); a
question about an article has several options, one of them correct (choice); a question about a
paragraph is answered by a span of it (spans).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from albert_core.text.records import Ints

Kind = Literal["classification", "regression", "choice", "spans"]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, kw_only=True)
class Task:
    """The kind of a task's examples, and how they are scored."""

    name: str
    """Name in settings, e.g. "sst-2"."""
    title: str
    """Name in the paper's tables, e.g. "SST-2"."""
    kind: Kind
    labels: tuple[str, ...] = ()
    """Labels of a classification or choice, as in the files; a model predicts the index."""
    metrics: tuple[str, ...]
    """Names of the scores that are reported; models are compared by the first, the key metric."""
    has_answerless: bool = False
    """Whether some questions have no answer in their paragraph (SQuAD 2.0)."""


@dataclass(frozen=True, kw_only=True)
class TextExamples:
    """N texts or pairs of texts, in the order of the file."""

    ids: list[str]
    """Ids for the task's submission file."""
    texts_a: list[str]
    texts_b: list[str] | None
    """None if each example is one text."""
    targets: Ints | NDArray[np.float64] | None
    """(N,): indices into `Task.labels`, or the numbers of a regression; None if the file has none,
    like many test sets."""
    clusters: Ints | None = None
    """(N,), number of the group of dependent examples, such as those of one document; None if
    unknown."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many rows of the file are not examples, by reason."""

    def num_in(self, others: "TextExamples") -> int:
        """Return how many examples have the texts of one of the ``others``, whatever its label."""
        mine, texts = (
            zip(each.texts_a, each.texts_b or each.texts_a, strict=True) for each in (self, others)
        )
        known = set(texts)
        return sum(pair in known for pair in mine)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class ChoiceExamples:
    """N questions, each about an article and with the same number of options."""

    ids: list[str]
    articles: list[str]
    """Each article once."""
    article_of: Ints
    """(N,), index into ``articles``."""
    questions: list[str]
    options: list[tuple[str, ...]]
    targets: Ints | None
    """(N,), index of the correct option."""
    groups: list[str]
    """The part of the set that each belongs to; "middle" or "high" in RACE."""

    @property
    def clusters(self) -> Ints:
        """(N,), as of `TextExamples`: the article."""
        return self.article_of

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Answer:
    """A span of a paragraph."""

    text: str
    start: int
    """Position of its first character in the paragraph."""


@dataclass(frozen=True, kw_only=True)
class SpanExamples:
    """N questions, each about a paragraph."""

    ids: list[str]
    paragraphs: list[str]
    """Each paragraph once."""
    paragraph_of: Ints
    """(N,), index into ``paragraphs``."""
    clusters: Ints
    """(N,), as of `TextExamples`: the number of the article that the paragraph is in."""
    questions: list[str]
    answers: list[tuple[Answer, ...]]
    """The annotators' answers; empty for a question without an answer."""
    is_labelled: bool = True
    """Whether ``answers`` are known: if not, they are all empty and nothing can be scored."""

    def __len__(self) -> int:
        return len(self.ids)


Examples = TextExamples | ChoiceExamples | SpanExamples
