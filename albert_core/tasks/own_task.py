"""A user's own task: tables of one or two texts and a label or score, as settings describe them."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from albert_core.config import OwnTaskSettings
from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Split, Task, TextExamples
from albert_core.tasks.reading import (
    TextRow,
    check_fields,
    parse_object,
    read_file,
    read_lines,
    read_text,
    text_examples,
)

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Each row's line (in a parquet file its number), from 1, and its values by column."""
_MAX_CHARACTERS = 2**31 - 1
"""The longest field of a .csv; Python's own limit of 131,072 is less than a document may have."""
_OTHER_METRICS = {"classification": ("accuracy",), "regression": ("pearson", "spearman", "mse")}
"""What is reported beside the key metric."""


def own_task(settings: OwnTaskSettings) -> Task:
    """Return the task that ``settings`` describe.

    Labels that they do not name are those of the training file, sorted as texts.

    Raises:
        TaskError: the training file is missing or malformed, or has fewer than two labels.
    """
    labels = tuple(settings.labels)
    if settings.kind == "classification" and not labels:
        labels = tuple(sorted({row.label for row in _rows(settings, settings.train, "train")}))
        if len(labels) < 2:
            raise TaskError(
                f"{settings.train}: column {settings.label_column!r} has {len(labels)} different "
                "labels, expected at least 2. Give another label_column, or the labels."
            )
    if settings.key_metric == "f1" and len(labels) != 2:
        raise TaskError(
            f"task {settings.name!r} has {len(labels)} labels, but its metric f1 needs 2, the "
            "second of them the positive one. Give the labels in order, or another metric."
        )
    return Task(
        name=settings.name,
        title=settings.name,
        kind=settings.kind,
        labels=labels,
        metrics=tuple(dict.fromkeys((settings.key_metric, *_OTHER_METRICS[settings.kind]))),
    )


def read_own(settings: OwnTaskSettings, task: Task, uri: str, split: Split) -> TextExamples:
    """Return the examples in the file at ``uri``, in its order; their ids count rows from 0.

    Args:
        settings: which columns hold what.
        task: what ``own_task`` returns for these settings.
        uri: a .tsv, .csv, .jsonl or .parquet file. In a .tsv quotation marks mean nothing, in a
            .csv they do; both have a header.
        split: a "test" file needs no labels.

    Raises:
        TaskError: the file is missing, of another kind, or has a malformed row; naming its line.
    """
    return text_examples(_rows(settings, uri, split), task, split, uri, {})


def _rows(settings: OwnTaskSettings, uri: str, split: Split) -> Iterator[TextRow]:
    ending = uri.rpartition(".")[2].lower()
    if ending not in _READERS:
        raise TaskError(
            f"{uri}, {split} file of task {settings.name!r}: its name must end in "
            f"{', '.join(f'.{each}' for each in _READERS)}."
        )
    label, cluster = settings.label_column, settings.cluster_column
    needed = [*settings.text_columns, *([] if split == "test" else [label])]
    needed += [cluster] if cluster and split == "dev" else []
    line = 0
    for number, (line, row) in enumerate(_READERS[ending](uri)):
        where = f"{uri}, line {line}"
        if absent := [name for name in needed if name not in row]:
            raise TaskError(
                f"{where}: no column {absent[0]!r}; found {', '.join(row)}. Set text_columns, "
                f"label_column and cluster_column of task {settings.name!r}."
            )
        texts = [_text(row[name], name, where) for name in settings.text_columns]
        named, shared = (_text(row.get(name), name, where).strip() for name in (label, cluster))
        found = TextRow(line, str(number), texts, named, shared)
        if split != "test" and not found.label:
            raise TaskError(f"{where}: no label in column {label!r}. Give one, or remove the line.")
        yield found
    if not line:
        raise TaskError(f"{uri} has no rows.")


def _text(value: Any, name: str, where: str) -> str:
    """Return ``value`` as text; a number or a truth value as JSON writes it."""
    if value is None or value != value:  # pandas writes a missing value as NaN
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TaskError(
        f"{where}: column {name!r} is a {type(value).__name__}, expected a text or a number. "
        "Correct the line."
    )


def _tsv_rows(uri: str) -> Rows:
    return _named(((n, line.split("\t")) for n, line in enumerate(read_lines(uri), 1)), "tab", uri)


def _csv_rows(uri: str) -> Rows:
    csv.field_size_limit(_MAX_CHARACTERS)
    reader = csv.reader(io.StringIO(read_text(uri), newline=""), strict=True)
    try:
        yield from _named(((reader.line_num, row) for row in reader if row), "comma", uri)
    except csv.Error as error:
        raise TaskError(
            f"{uri}, line {reader.line_num}: not CSV ({error}). Correct the file."
        ) from error


def _jsonl_rows(uri: str) -> Rows:
    for number, line in enumerate(read_lines(uri), start=1):
        yield number, parse_object(line, f"{uri}, line {number}")


def _parquet_rows(uri: str) -> Rows:
    try:
        table = pq.read_table(pa.BufferReader(read_file(uri)))
    except pa.ArrowInvalid as error:
        raise TaskError(f"{uri} is not a parquet file: {error}") from error
    yield from enumerate(table.to_pylist(), start=1)


def _named(rows: Iterator[tuple[int, list[str]]], separator: str, uri: str) -> Rows:
    """Yield the fields of each row by the names in the first one."""
    _, columns = next(rows, (0, []))
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise TaskError(f"{uri}, line 1: two columns are called {twice!r}. Rename one.")
    for line, fields in rows:
        check_fields(fields, columns, separator, f"{uri}, line {line}")
        yield line, dict(zip(columns, fields, strict=True))


_READERS = {"tsv": _tsv_rows, "csv": _csv_rows, "jsonl": _jsonl_rows, "parquet": _parquet_rows}
