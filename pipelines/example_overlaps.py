"""Pure: which examples of a downstream set share words in a row with a corpus.

An example overlaps if one of its texts does; which texts it has depends on the kind of task.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.tasks.examples import ChoiceExamples, Examples, SpanExamples, TextExamples
from pipelines.decontamination import Overlap, TestNgrams, find_overlaps
from pipelines.word_hashes import batches, hash_words

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """One text of each of N examples; T different ones, which examples may share."""

    name: str
    """text_a or text_b, paragraph or article, question."""
    texts: list[str]
    """T."""
    text_of: Ints
    """(N,), index into ``texts``."""


@dataclass(frozen=True)
class PartOverlaps:
    """What the texts of a part share with the corpus."""

    part: Part
    overlaps: list[Overlap | None]
    """T."""
    num_long_enough: int
    """Texts that have as many words as an overlap takes; shorter ones can't be judged."""

    @property
    def of_example(self) -> Bools:
        """Bool (N,): whether the example's text overlaps."""
        has_any = np.array([overlap is not None for overlap in self.overlaps], bool)
        found: Bools = has_any[self.part.text_of]
        return found

    def counts(self) -> dict[str, int | float]:
        """Return how many texts there are, how many can be judged, and the share that overlap."""
        overlapping = sum(overlap is not None for overlap in self.overlaps)
        return {
            "texts": len(self.overlaps),
            "long_enough": self.num_long_enough,
            "overlapping": overlapping,
            "share": overlapping / len(self.overlaps),
        }


def parts_of(examples: Examples) -> list[Part]:
    """Return the texts of the examples.

    Of a pair, both; of SQuAD, paragraph and question; of RACE, article and the question with its
    options.
    """
    each = np.arange(len(examples))
    if isinstance(examples, TextExamples):
        second = [] if examples.texts_b is None else [Part("text_b", examples.texts_b, each)]
        return [Part("text_a", examples.texts_a, each), *second]
    if isinstance(examples, SpanExamples):
        paragraphs = Part("paragraph", examples.paragraphs, examples.paragraph_of)
        return [paragraphs, Part("question", examples.questions, each)]
    assert isinstance(examples, ChoiceExamples)
    questions = [
        "\n".join([question, *options])
        for question, options in zip(examples.questions, examples.options, strict=True)
    ]
    articles = Part("article", examples.articles, examples.article_of)
    return [articles, Part("question", questions, each)]


def overlaps_of(part: Part, shared: TestNgrams, n: int) -> PartOverlaps:
    """Return what the texts of ``part`` share with a corpus.

    Args:
        part: its texts.
        shared: the n-grams of the set's texts that stand in the corpus too.
        n: words in an n-gram.
    """
    return PartOverlaps(part, find_overlaps(part.texts, shared, n), _num_long(part.texts, n))


def _num_long(texts: Sequence[str], n: int) -> int:
    """Return how many of the texts have at least ``n`` words."""
    return sum(int((np.diff(hash_words(batch)[1]) >= n).sum()) for batch in batches(texts))
