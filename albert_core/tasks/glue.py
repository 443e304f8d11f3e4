"""GLUE's single-sentence tasks: CoLA and SST-2, as GLUE's own folders lay them out.

A field ends at a tab and a row at a line feed; quotation marks mean nothing.

Source: REFERENCE.md D.2 (`ColaProcessor` and `Sst2Processor` of the reference).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from albert_core.contract import storage
from albert_core.contract.errors import TaskError

Split = Literal["train", "dev"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task's files look like and how it is scored."""

    name: str
    """As `finetuning.task` says it."""
    folder: str
    """Name of its folder, as GLUE has it."""
    columns: tuple[str, ...]
    """Columns of train.tsv and dev.tsv, two of them named "sentence" and "label"."""
    has_header: bool
    labels: tuple[str, ...]
    """As the files write them; a label's index is what the model predicts."""
    metric: str
    """The key metric, by which models are compared; a name in `metrics.METRICS`."""


@dataclass(frozen=True)
class LabelledTexts:
    """One split of a task, in the order of its file."""

    texts: list[str]
    """N texts."""
    labels: NDArray[np.int64]
    """(N,), indices into `Task.labels`."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.texts)


TASKS = {
    task.name: task
    for task in (
        Task(
            name="cola",
            folder="CoLA",
            columns=("source", "label", "author_mark", "sentence"),
            has_header=False,
            labels=("0", "1"),
            metric="matthews",
        ),
        Task(
            name="sst-2",
            folder="SST-2",
            columns=("sentence", "label"),
            has_header=True,
            labels=("0", "1"),
            metric="accuracy",
        ),
    )
}


def split_uri(task: Task, task_folder: str, split: Split) -> str:
    """Return the URI of the file of ``split``.

    Args:
        task: whose file.
        task_folder: GLUE's folder, or the task's own folder in it.
        split: which file.

    Raises:
        TaskError: there is none.
    """
    places = [
        storage.join(task_folder, task.folder, f"{split}.tsv"),
        storage.join(task_folder, f"{split}.tsv"),
    ]
    for uri in places:
        if storage.exists(uri):
            return uri
    raise TaskError(
        f"{places[0]} is missing: the task {task.name!r} needs {task.folder}/train.tsv and "
        f"{task.folder}/dev.tsv, as GLUE lays them out, with the columns {_columns(task)}. "
        "Set task_folder to the folder that holds them."
    )


def read_split(task: Task, task_folder: str, split: Split) -> LabelledTexts:
    """Return the texts and labels of ``split``, in the order of the file.

    Raises:
        TaskError: the file is missing, has no rows, or has a malformed one; naming its line.
    """
    uri = split_uri(task, task_folder, split)
    rows = [_read_row(task, uri, number, line) for number, line in _lines(task, uri)]
    if not rows:
        raise TaskError(f"{uri} has no rows; expected lines of {_columns(task)}.")
    texts, labels = zip(*rows, strict=True)
    return LabelledTexts(list(texts), np.array(labels, dtype=np.int64))


def _lines(task: Task, uri: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the lines of the rows; the header is checked, not yielded."""
    content = storage.read_bytes(uri).removesuffix(b"\n")
    for number, line in enumerate(content.split(b"\n") if content else [], start=1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise TaskError(
                f"{uri}, line {number}: not UTF-8 ({error.reason} at byte {error.start} of the "
                "line). Convert the file to UTF-8."
            ) from None
        if task.has_header and number == 1:
            _check_header(task, uri, text)
        else:
            yield number, text


def _check_header(task: Task, uri: str, line: str) -> None:
    if tuple(line.split("\t")) != task.columns:
        raise TaskError(
            f"{uri}, line 1: found {line[:80]!r}, expected the header {_columns(task)}. Use the "
            f"file of GLUE's {task.folder}."
        )


def _read_row(task: Task, uri: str, number: int, line: str) -> tuple[str, int]:
    fields = line.split("\t")
    if len(fields) != len(task.columns):
        raise TaskError(
            f"{uri}, line {number}: {len(fields)} tab-separated fields, expected "
            f"{len(task.columns)}: {_columns(task)}. Correct or remove the line."
        )
    row = dict(zip(task.columns, fields, strict=True))
    if row["label"] not in task.labels:
        raise TaskError(
            f"{uri}, line {number}: label {row['label']!r}, expected one of "
            f"{', '.join(task.labels)}. Correct or remove the line."
        )
    if not row["sentence"].strip():
        raise TaskError(f"{uri}, line {number}: the sentence is empty. Remove the line.")
    return row["sentence"], task.labels.index(row["label"])


def _columns(task: Task) -> str:
    return "<tab>".join(task.columns)
