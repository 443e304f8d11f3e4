"""A user's own task: tables of one or two texts and a label or score, as settings describe them."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from albert_core.config import OwnTaskSettings
from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Split, Task, TextExamples, are_hidden, targets_of
from albert_core.tasks.text_lines import decode, read_file, read_lines


def own_task(settings: OwnTaskSettings) -> Task:
    """Return the task that ``settings`` describe.

    Labels that they do not name are those of the training file, sorted as texts.

    Raises:
        TaskError: the training file is missing or malformed, or has fewer than two labels.
    """
    labels = tuple(settings.labels)
    if settings.kind == "classification" and not labels:
        column = _read_columns(settings, settings.train, "train").labels
        labels = tuple(sorted(set(column or [])))
        if len(labels) < 2:
            raise TaskError(
                f"{settings.train}: column {settings.label_column!r} has {len(labels)} different "
                "labels, expected at least 2. Give another label_column, or the labels."
            )
    if settings.key_metric == "f1" and len(labels) != 2:
        raise TaskError(
            f"task {settings.name!r} has {len(labels)} labels, but its metric f1 is of 2, the "
            "second of them the positive one. Give the labels in order, or another metric."
        )
    others = {
        "classification": ("accuracy",),
        "regression": ("pearson", "spearman", "mse"),
    }[settings.kind]
    return Task(
        name=settings.name,
        title=settings.name,
        kind=settings.kind,
        labels=labels,
        metrics=tuple(dict.fromkeys((settings.key_metric, *others))),
    )


def read_own(settings: OwnTaskSettings, task: Task, uri: str, split: Split) -> TextExamples:
    """Return the examples in the file at ``uri``, in its order; their ids count rows from 0.

    Args:
        settings: which columns hold what.
        task: of ``own_task`` for these settings.
        uri: a .tsv, .csv, .jsonl or .parquet file. In a .tsv quotation marks mean nothing, in a
            .csv they do; both have a header.
        split: a "test" file needs no labels.

    Raises:
        TaskError: the file is missing, of another kind, or has a malformed row; naming its line.
    """
    columns = _read_columns(settings, uri, split)
    hidden = columns.labels is None or (split == "test" and are_hidden(columns.labels))
    return TextExamples(
        ids=[str(row) for row in range(len(columns.lines))],
        texts_a=columns.texts[0],
        texts_b=columns.texts[1] if len(columns.texts) > 1 else None,
        targets=None if hidden else targets_of(task, columns.labels or [], columns.lines, uri),
    )


@dataclass(frozen=True)
class _Columns:
    """What an own file holds, column by column."""

    lines: list[int]
    """Of a parquet file the numbers of the rows, from 1."""
    texts: list[list[str]]
    labels: list[str] | None


def _read_columns(settings: OwnTaskSettings, uri: str, split: Split) -> _Columns:
    ending = uri.rpartition(".")[2].lower()
    if ending not in _READERS:
        raise TaskError(
            f"{uri}, {split} file of task {settings.name!r}: its name must end in "
            f"{', '.join(f'.{each}' for each in _READERS)}."
        )
    rows = list(_READERS[ending](uri))
    if not rows:
        raise TaskError(f"{uri} has no rows.")
    names = [*settings.text_columns]
    if split != "test" or any(settings.label_column in row for _, row in rows):
        names.append(settings.label_column)
    for line, row in rows:
        if absent := [name for name in names if name not in row]:
            raise TaskError(
                f"{uri}, line {line}: no column {absent[0]!r}; found {', '.join(row)}. Set "
                f"text_columns and label_column of task {settings.name!r}."
            )
    lines = [line for line, _ in rows]
    texts = [[_text(row[name], name, line, uri) for line, row in rows] for name in names]
    labels = None
    if len(names) > len(settings.text_columns):
        labels = [label.strip() for label in texts.pop()]
        if split != "test" and "" in labels:
            raise TaskError(
                f"{uri}, line {lines[labels.index('')]}: no label in column "
                f"{settings.label_column!r}. Give one, or remove the line."
            )
    for line, of_row in zip(lines, zip(*texts, strict=True), strict=True):
        if not any(map(str.strip, of_row)):
            raise TaskError(f"{uri}, line {line}: no text. Remove the line.")
    return _Columns(lines, texts, labels)


def _text(value: Any, name: str, line: int, uri: str) -> str:
    """Return ``value`` as text: of a label that is a number or a truth value, as JSON has it."""
    if value is None or value != value:  # a missing value, of which pandas makes NaN
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TaskError(
        f"{uri}, line {line}: column {name!r} is a {type(value).__name__}, expected a text or a "
        "number. Correct the line."
    )


Rows = Iterator[tuple[int, dict[str, Any]]]
_MAX_CHARACTERS = 2**31 - 1
"""Of a field of a .csv; Python's own limit of 131,072 is less than a document may have."""


def _tsv_rows(uri: str) -> Rows:
    lines = read_lines(uri)
    header = _header(lines[0].split("\t") if lines else [], uri)
    for number, line in enumerate(lines[1:], start=2):
        yield number, _named(header, line.split("\t"), "tab", number, uri)


def _csv_rows(uri: str) -> Rows:
    reader = csv.reader(io.StringIO(decode(uri, read_file(uri)), newline=""), strict=True)
    csv.field_size_limit(_MAX_CHARACTERS)
    try:
        header = _header(next(reader, []), uri)
        for fields in reader:
            if fields:
                yield reader.line_num, _named(header, fields, "comma", reader.line_num, uri)
    except csv.Error as error:
        raise TaskError(
            f"{uri}, line {reader.line_num}: not CSV ({error}). Correct the file."
        ) from error


def _jsonl_rows(uri: str) -> Rows:
    for number, line in enumerate(read_lines(uri), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskError(
                f"{uri}, line {number}: not JSON ({error}). Correct the line."
            ) from None
        if not isinstance(row, dict):
            raise TaskError(f"{uri}, line {number}: found {line[:60]!r}, expected a JSON object.")
        yield number, row


def _parquet_rows(uri: str) -> Rows:
    try:
        table = pq.read_table(pa.BufferReader(read_file(uri)))
    except pa.ArrowInvalid as error:
        raise TaskError(f"{uri} is not a parquet file: {error}") from error
    yield from enumerate(table.to_pylist(), start=1)


_READERS = {"tsv": _tsv_rows, "csv": _csv_rows, "jsonl": _jsonl_rows, "parquet": _parquet_rows}


def _header(names: list[str], uri: str) -> list[str]:
    """Return ``names``, of which none may stand twice."""
    for name in names:
        if names.count(name) > 1:
            raise TaskError(f"{uri}, line 1: two columns are called {name!r}. Rename one.")
    return names


def _named(header: list[str], fields: list[str], by: str, line: int, uri: str) -> dict[str, Any]:
    if len(fields) != len(header):
        raise TaskError(
            f"{uri}, line {line}: {len(fields)} {by}-separated fields, expected {len(header)}: "
            f"{', '.join(header)}. Correct or remove the line."
        )
    return dict(zip(header, fields, strict=True))
