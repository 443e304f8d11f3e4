"""Pure: a task that asks which part of the source a passage is from, made of documents' ids.

An id is a path: folders, a file, a record in it. Documents whose paths begin alike are from the
same part of the source: a library, a site, an author's folder. The labels are the shortest
beginnings that differ in their words. If no two parts differ in their words, as in the numbered
files of a dump, the documents themselves are the labels.

All passages have the same number of words, and all labels the same number of passages, so that
neither length nor frequency reveals the label.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from albert_core.text.scripts import UNSPACED
from albert_core.text.seeds import derive_seed
from pipelines.config import TaskSettings

_MIN_DOCUMENTS = 3
"""Least number of documents in a part of the source."""
_MIN_DEV = 5
"""Least number of passages of a label in dev."""
_MIN_SKILL = 0.4
"""Least accuracy of a bag of words for labels to be worth learning: 0 is chance, 1 no error."""
_SEPARATOR = re.compile("[/#]")
_WORD = re.compile(f"[{UNSPACED}]{{1,2}} ?|[^ {UNSPACED}]+ ?")

Passages = Mapping[str, Sequence[str]]
"""The passages of each document, by its id."""
Split = tuple[list["Passage"], list["Passage"]]
"""The passages for train and for dev."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A row of the task."""

    text: str
    source: str
    """The label: the beginning of the document's id, or all of it."""
    document: str
    """Its document. Where that is the label, the passage itself: errors are shared by no others."""


@dataclass(frozen=True, slots=True)
class SourceTask:
    """Passages to train on and to score, equally many of each label."""

    train: list[Passage]
    dev: list[Passage]
    word_accuracy: float
    """Accuracy on dev of naive Bayes on words, 0..1."""


def words_of(text: str) -> list[str]:
    """Return the words, each with the blank after it; of scripts without blanks, two characters."""
    return _WORD.findall(text)


def passages_of(sentences: Sequence[str], num_words: int) -> Iterator[str]:
    """Yield passages of exactly ``num_words`` words; each begins with a sentence."""
    words: list[str] = []
    for sentence in sentences:
        words += words_of(f"{sentence} ")
        if len(words) >= num_words:
            yield "".join(words[:num_words]).rstrip()
            words = []


def source_task(passages: Passages, task: TaskSettings) -> SourceTask | None:
    """Return the task; None if there are no two labels that words can tell apart."""
    for by_label in _labellings(passages, task):
        if made := _balanced(by_label, task):
            chance = 1 / len({row.source for row in made.dev})
            if made.word_accuracy >= chance + _MIN_SKILL * (1 - chance):
                return made
    return None


def _labellings(passages: Passages, task: TaskSettings) -> Iterator[dict[str, Split]]:
    """Yield the passages of each label, the shortest beginnings of ids first, the ids last."""
    cuts = {name: [found.start() for found in _SEPARATOR.finditer(name)] for name in passages}
    for depth in range(max(map(len, cuts.values()), default=0)):
        documents = defaultdict(list)
        for name in passages:
            if len(cuts[name]) > depth:
                documents[name[: cuts[name][depth]]].append(name)
        yield {
            label: _by_documents(label, names, passages, task)
            for label, names in documents.items()
            if len(names) >= _MIN_DOCUMENTS
        }
    yield {name: _by_passages(name, texts, task) for name, texts in passages.items()}


def _by_documents(label: str, names: list[str], passages: Passages, task: TaskSettings) -> Split:
    """Return the passages of some documents for train, and those of the others for dev.

    Documents are assigned from the largest on, each to the side that lacks most passages.
    """
    total = sum(len(passages[name]) for name in names)
    lacking = [(1 - task.dev_share) * total, task.dev_share * total]
    sides: tuple[list[tuple[int, int, Passage]], ...] = ([], [])
    for name in sorted(names, key=lambda name: (-len(passages[name]), name)):
        side = lacking.index(max(lacking))
        lacking[side] -= len(passages[name])
        sides[side].extend(
            (number, derive_seed(task.seed, "passage", text), Passage(text, label, name))
            for number, text in enumerate(passages[name])
        )
    return _in_order(sides[0]), _in_order(sides[1])


def _in_order(rows: list[tuple[int, int, Passage]]) -> list[Passage]:
    """Return all first passages of documents, then the second ones, and so on."""
    return [row for *_, row in sorted(rows, key=lambda each: each[:2])]


def _by_passages(name: str, texts: Sequence[str], task: TaskSettings) -> Split:
    """Return some passages of a document for train, and the others for dev."""
    ordered = sorted(texts, key=lambda text: derive_seed(task.seed, "passage", text))
    rows = [Passage(text, name, f"{name} {number}") for number, text in enumerate(ordered)]
    num_dev = int(task.dev_share * len(rows))
    return rows[num_dev:], rows[:num_dev]


def _balanced(by_label: Mapping[str, Split], task: TaskSettings) -> SourceTask | None:
    """Return equally many passages of each label; the number of labels maximises the total."""
    sizes = {
        label: int(min(len(train) / (1 - task.dev_share), len(dev) / task.dev_share))
        for label, (train, dev) in by_label.items()
    }
    labels = sorted(sizes, key=lambda label: (-sizes[label], label))[: task.max_sources]
    each = [
        (number * size, number)
        for number in range(2, len(labels) + 1)
        if (size := min(sizes[labels[number - 1]], task.max_passages // number)) * task.dev_share
        >= _MIN_DEV
    ]
    if not each:
        return None
    total, number = max(each)
    num_dev = int(total / number * task.dev_share)
    num_train = total // number - num_dev
    chosen = [by_label[label] for label in labels[:number]]
    train = [row for rows, _ in chosen for row in rows[:num_train]]
    dev = [row for _, rows in chosen for row in rows[:num_dev]]
    return SourceTask(train, dev, _word_accuracy(train, dev))


def _word_accuracy(train: Sequence[Passage], dev: Sequence[Passage]) -> float:
    """Return the accuracy on dev of naive Bayes on words, with add-one smoothing."""
    labels = {label: n for n, label in enumerate(sorted({row.source for row in train}))}
    words = {row: words_of(f"{row.text.lower()} ") for row in [*train, *dev]}
    vocabulary = dict.fromkeys(word for row in train for word in words[row])
    numbers = {word: number for number, word in enumerate(vocabulary)}
    counts = np.ones((len(numbers), len(labels)))
    for row in train:
        np.add.at(counts, ([numbers[word] for word in words[row]], labels[row.source]), 1)
    weights = np.log(counts / counts.sum(0))
    right = 0
    for row in dev:
        known = [numbers[word] for word in words[row] if word in numbers]
        right += int(weights[known].sum(0).argmax()) == labels[row.source]
    return right / len(dev)
