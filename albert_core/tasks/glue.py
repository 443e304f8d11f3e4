"""GLUE: how its nine tasks and its diagnostic set are laid out in files, and their reader.

MNLI's mismatched sets are a task of their own, "mnli-mm", and so is the diagnostic set, "ax":
neither has training data, and the model of "mnli" predicts them.

A field ends at a tab and a row at a line feed; quotation marks mean nothing. Columns are found by
their names in the header, which only CoLA's labelled files lack.

Sources: Wang et al. 2019, "GLUE"; `classifier_utils.py` of google-research/albert for columns,
labels and their order.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import SPLITS, Split, Task, TextExamples
from albert_core.tasks.tables import Columns, Rows, named_rows, tab_separated, text_examples

_IDS = ("index", "id")
_COLA_HEADER = ("source", "label", "author_mark", "sentence")
_DIAGNOSTIC = Columns(("Premise", "Hypothesis"), "Label")
"""Of the diagnostic set's labelled file; its test file has other names."""

log = logging.getLogger(__name__)

Files = Mapping[Split, Sequence[Sequence[str]]]
"""The alternatives for each split, of each the names; the first whose files exist is read."""


@dataclass(frozen=True)
class GlueTask:
    """A task, the names of its files and of their columns."""

    task: Task
    columns: Columns
    files: Files
    folder_names: Sequence[str]


def _glue(
    title: str,
    labels: Sequence[str],
    metrics: Sequence[str],
    texts: Sequence[str],
    label: str = "label",
    files: Files | None = None,
    folder_names: Sequence[str] = (),
) -> GlueTask:
    """Return a task with GLUE's usual names, unless others are given."""
    task = Task(
        name=title.lower(),
        title=title,
        kind="classification" if labels else "regression",
        labels=tuple(labels),
        metrics=tuple(metrics),
    )
    usual: Files = {split: [(f"{split}.tsv",)] for split in SPLITS}
    return GlueTask(task, Columns(texts, label, ids=_IDS), files or usual, folder_names or (title,))


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("contradiction", "entailment", "neutral")
_PAIR = ("sentence1", "sentence2")
_MATCHED: Files = {
    "train": [("train.tsv",)],
    "dev": [("dev_matched.tsv",)],
    "test": [("test_matched.tsv",)],
}
_MISMATCHED: Files = {"dev": [("dev_mismatched.tsv",)], "test": [("test_mismatched.tsv",)]}
_LABELLED_AX: Files = {
    "dev": [("diagnostic-full.tsv",)],
    "test": [("diagnostic.tsv",), ("AX.tsv",)],
}
# Microsoft's own files, from which GLUE's script makes its own; a list has the pairs of dev.
_MICROSOFTS = ("msr_paraphrase_train.txt", "dev_ids.tsv")
_MRPC: Files = {
    "train": [("train.tsv",), _MICROSOFTS],
    "dev": [("dev.tsv",), _MICROSOFTS],
    "test": [("test.tsv",), ("msr_paraphrase_test.txt",)],
}

GLUE = {
    each.task.name: each
    for each in (
        _glue("CoLA", _BINARY, ["matthews", "accuracy"], ["sentence"]),
        _glue("SST-2", _BINARY, ["accuracy"], ["sentence"]),
        _glue("MRPC", _BINARY, ["accuracy", "f1"], ["#1 String", "#2 String"], "Quality", _MRPC),
        _glue("STS-B", (), ["pearson", "spearman", "mse"], _PAIR, "score"),
        _glue("QQP", _BINARY, ["accuracy", "f1"], ["question1", "question2"], "is_duplicate"),
        _glue("MNLI", _MNLI, ["accuracy"], _PAIR, "gold_label", _MATCHED),
        _glue("MNLI-mm", _MNLI, ["accuracy"], _PAIR, "gold_label", _MISMATCHED, ["MNLI"]),
        _glue("QNLI", _ENTAILMENT, ["accuracy"], ["question", "sentence"]),
        _glue("RTE", _ENTAILMENT, ["accuracy"], _PAIR),
        _glue("WNLI", _BINARY, ["accuracy"], _PAIR),
        _glue(
            "AX",
            _MNLI,
            ["matthews", "accuracy"],
            _PAIR,
            files=_LABELLED_AX,
            folder_names=["diagnostic", "AX", "MNLI"],
        ),
    )
}
"""By the task's name."""


def read_glue(glue_task: GlueTask, uris: Sequence[str], split: Split) -> TextExamples:
    """Return the examples of one split, in the order of the file.

    Args:
        glue_task: the task.
        uris: the file; and, for Microsoft's MRPC, the list of the pairs of dev.
        split: files of "test" need no labels.

    Raises:
        TaskError: a file is missing, has no rows, or has a malformed one; naming its line.
    """
    task, columns = glue_task.task, glue_task.columns
    lines = tab_separated(uris[0])
    first = lines[0][1] if lines else []
    has_no_header = task.name == "cola" and split != "test" and columns.label not in first
    # The rows of QQP that have too few or too many fields are passed over, as usual.
    skipped = Counter[str]() if task.name == "qqp" else None
    rows = named_rows(lines, "tab", uris[0], _COLA_HEADER if has_no_header else (), skipped)
    if len(uris) > 1:
        rows = _rows_of_split(rows, uris[0], uris[1], split)
    if set(_DIAGNOSTIC.texts) <= set(first):
        columns = _DIAGNOSTIC
    examples = text_examples(rows, columns, task, split, uris[0], skipped)
    for reason, number in examples.skipped.items():
        log.warning("%s: %d rows skipped (%s)", uris[0], number, reason)
    return examples


def _rows_of_split(rows: Rows, uri: str, pairs_uri: str, split: Split) -> Rows:
    """Yield those of Microsoft's rows that are in dev, or in train, by the list of dev's pairs."""
    names = ("#1 ID", "#2 ID")
    listed = named_rows(tab_separated(pairs_uri), "tab", pairs_uri, names)
    dev_pairs = {tuple(row.values()) for _, row in listed}
    found = set()
    for number, row in rows:
        pair = tuple(row.get(name) for name in names)
        found.add(pair)
        if (pair in dev_pairs) == (split == "dev"):
            yield number, row
    if absent := sorted(dev_pairs - found):
        raise TaskError(
            f"{pairs_uri}: {len(absent)} of its {len(dev_pairs)} pairs, such as "
            f"{' '.join(absent[0])}, are not in {uri}. Use the two files of one release."
        )
