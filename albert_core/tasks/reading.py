"""What the readers of task files share: text, JSON and tables as they are in files, and labels."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import checked
from albert_core.tasks.examples import Split, Task, TextExamples

READING_THREADS = 16
"""Files of a task that are read at the same time."""
HIDDEN = frozenset({"-1", ""})
"""The contents of a test file's label column when the labels are withheld."""


class TextRow(NamedTuple):
    """A row of a table of texts."""

    line: int
    """Its line in the file, from 1; in a parquet file its row."""
    id: str
    texts: Sequence[str]
    """One text, or the two of a pair."""
    label: str
    """As the file writes it; empty if there is none."""
    cluster: str = ""
    """What it shares with other rows, such as the document that it is from; empty: nothing."""


def read_file(uri: str) -> bytes:
    """Return the content of the file at ``uri``.

    Raises:
        IntegrityError: it changed after a stage wrote it.
        TaskError: there is none.
    """
    try:
        return storage.read_bytes(checked(uri))
    except FileNotFoundError:
        raise TaskError(f"{uri} is missing. Give the URI of an existing file.") from None


def read_text(uri: str) -> str:
    """Return the text of the UTF-8 file at ``uri``, without a byte order mark.

    Raises:
        TaskError: the file is missing, or not UTF-8; naming the line.
    """
    content = read_file(uri)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{uri}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of the file). "
            "Convert the file to UTF-8."
        ) from None


def read_lines(uri: str) -> list[str]:
    """Return the lines of the file at ``uri`` without their ends and without blank ones at its end.

    Only a line feed ends a line, so that number i is line i + 1 of any editor.

    Raises:
        TaskError: the file is missing, or not UTF-8; naming the line.
    """
    text = read_text(uri).rstrip("\r\n")
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is.

    Args:
        text: JSON.
        where: the file, and the line in it if it has several objects; for messages.

    Raises:
        TaskError: it is not JSON, or not an object.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        hint = "It is cut off: fetch the file again." if is_cut else "Correct the file."
        raise TaskError(
            f"{where}: not JSON ({error}, of {len(text):,} characters). {hint}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep lists
        raise TaskError(f"{where}: no JSON that can be read ({error}). Correct it.") from None
    if not isinstance(found, dict):
        raise TaskError(f"{where}: found {text[:60]!r}, expected a JSON object. Correct the file.")
    return found


def check_fields(fields: Sequence[str], columns: Sequence[str], separator: str, where: str) -> None:
    """Raise TaskError unless a row has a field for each column."""
    if len(fields) != len(columns):
        raise TaskError(
            f"{where}: {len(fields)} {separator}-separated fields, expected {len(columns)}: "
            f"{', '.join(columns)}. Correct or remove the line."
        )


def text_examples(
    rows: Iterable[TextRow], task: Task, split: Split, uri: str, skipped: Mapping[str, int]
) -> TextExamples:
    """Return ``rows`` as examples, in their order.

    Args:
        rows: of the file. Labels that are all hidden are no targets in a test file.
        task: whose labels they have.
        split: in a "test" file, ids must be unique: the server wants one prediction of each.
        uri: of the file, for messages.
        skipped: how many rows are no examples, by reason; may grow while ``rows`` are read.

    Raises:
        TaskError: there are no rows; or one has no text, an id that is taken, or a label that the
            task does not have; naming the line.
    """
    lines, ids, labels, clusters = [], [], [], []
    columns: list[list[str]] = [[], []]
    line_of: dict[str, int] = {}
    for row in rows:
        # One text of a pair may be empty: QQP has some such questions.
        if not any(map(str.strip, row.texts)):
            raise TaskError(f"{uri}, line {row.line}: no text. Remove the line.")
        if split == "test" and line_of.setdefault(row.id, row.line) != row.line:
            raise TaskError(
                f"{uri}, line {row.line}: id {row.id!r} is that of line {line_of[row.id]} too. "
                "Correct the file: ids of a test set are unique."
            )
        lines.append(row.line)
        ids.append(row.id)
        labels.append(row.label)
        clusters.append(row.cluster)
        for column, text in zip(columns, row.texts, strict=False):
            column.append(text)
    if not lines:
        raise TaskError(f"{uri} has no rows.")
    is_hidden = split == "test" and HIDDEN.issuperset(labels)
    return TextExamples(
        ids=ids,
        texts_a=columns[0],
        texts_b=columns[1] or None,
        targets=None if is_hidden else _targets(task, labels, lines, uri),
        clusters=np.unique(clusters, return_inverse=True)[1] if any(clusters) else None,
        skipped=dict(skipped),
    )


def _targets(
    task: Task, labels: Sequence[str], lines: Sequence[int], uri: str
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return indices of labels, int64 (N,), or the numbers of a regression, float64 (N,)."""
    is_number = task.kind == "regression"
    index_of = {label: index for index, label in enumerate(task.labels)}
    targets = [_finite(label) if is_number else index_of.get(label) for label in labels]
    if None in targets:
        row = targets.index(None)
        expected = "a number as score" if is_number else f"one of {', '.join(task.labels)} as label"
        raise TaskError(
            f"{uri}, line {lines[row]}: found {labels[row]!r}, expected {expected}. Correct or "
            "remove the line."
        )
    return np.array(targets, np.float64) if is_number else np.array(targets, np.int64)


def _finite(text: str) -> float | None:
    """Return the number that ``text`` is; None if it is none, or not finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
