"""Tables of one or two texts and a label or a number: a user's own task, and those of GLUE.

GLUE has nine tasks and a diagnostic set. MNLI's mismatched sets are a task of their own, "mnli-mm",
and so is the diagnostic set, "ax": neither has training data, and the model of "mnli" predicts
them. A field ends at a tab and a row at a line feed; quotation marks mean nothing. Columns are
found by their names in the header, which only CoLA's labelled files lack.

Sources: Wang et al. 2019, "GLUE"; `classifier_utils.py` of google-research/albert for columns,
labels and their order.
"""

import csv
import io
import json
import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from albert_core.config import OwnTaskSettings
from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import SPLITS, Kind, Split, Task, TextExamples
from albert_core.tasks.reading import parse_object, read_file, read_lines, read_text
from albert_core.text.records import Ints

Rows = Iterator[tuple[int, dict[str, Any]]]
"""Each row's line (in a parquet file its number), from 1, and its values by column."""
Files = Mapping[Split, Sequence[str]]
"""Alternative file names of each split; the first that exists is read. Two files that are needed
together are separated by a blank."""
_HIDDEN = frozenset({"-1", ""})
"""The contents of a test file's label column when the labels are withheld."""
_MAX_CHARACTERS = 2**31 - 1
"""The longest field of a .csv; Python's own limit of 131,072 is less than a document may have."""
_FEW_LABELS = 10
"""So many labels, or columns, are shown; and may have a row each."""
_LARGEST = 1e30
"""The largest number of a regression, so that weights and squares of squared errors are finite."""
_OTHER_METRICS = {"classification": ("accuracy",), "regression": ("pearson", "spearman", "mse")}
"""Metrics that are reported beside the key metric."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Columns:
    """The meaning of the columns of a table."""

    texts: Sequence[str]
    """One text, or the two of a pair."""
    label: str
    """A test file may lack it."""
    cluster: str = ""
    """Names the group of dependent rows of dev, such as their document; empty: none."""
    ids: Sequence[str] = ()
    """The first of these columns that exists has the id; without one it is the row, from 0."""


def own_task(settings: OwnTaskSettings) -> Task:
    """Return the task that ``settings`` describe.

    Labels that they do not name are those of the training file, in the order of whole numbers if
    all are, and otherwise of texts.

    Raises:
        TaskError: the training file is missing or malformed, or has fewer than two labels.
    """
    labels = tuple(settings.labels)
    if settings.kind == "classification" and not labels:
        rows = _text_rows(_rows_of(settings.train), _columns(settings), "train", settings.train)
        counts = Counter(row.label for row in rows)
        if not counts:
            raise TaskError(f"{settings.train} has no rows.")
        labels = _in_order(counts)
        if len(labels) > max(_FEW_LABELS, counts.total() / 2):
            raise TaskError(
                f"{settings.train}: column {settings.label_column!r} has {len(labels):,} different "
                f"labels in {counts.total():,} rows: most are of one row. Give another "
                "label_column, or the labels."
            )
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


def _in_order(labels: Iterable[str]) -> tuple[str, ...]:
    texts = sorted(labels)
    try:
        return tuple(sorted(texts, key=int))
    except ValueError:
        return tuple(texts)


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
            Or all its numbers are the same, or too large or too near for a model in float32.
    """
    examples = text_examples(_rows_of(uri), _columns(settings), task, split, uri)
    if task.kind == "regression" and examples.targets is not None:
        low, high = float(examples.targets.min()), float(examples.targets.max())
        if low == high and split != "test":
            raise TaskError(
                f"{uri}: all numbers in column {settings.label_column!r} are {low:g}, "
                "expected different ones. Give another label_column, or another file."
            )
        if max(-low, high) > _LARGEST or 0 < high - low < 1 / _LARGEST:
            raise TaskError(
                f"{uri}: the numbers in column {settings.label_column!r} are from {low!r} to "
                f"{high!r}, expected at most {_LARGEST:g}, and {1 / _LARGEST:g} between the least "
                "and the greatest. Give them in another unit."
            )
    return examples


def _columns(settings: OwnTaskSettings) -> Columns:
    return Columns(settings.text_columns, settings.label_column, settings.cluster_column)


def text_examples(
    rows: Rows,
    columns: Columns,
    task: Task,
    split: Split,
    uri: str,
    skipped: Counter[str] | None = None,
) -> TextExamples:
    """Return ``rows`` as examples, in their order.

    Args:
        rows: of the file. Labels that are all hidden are no targets in a test file.
        columns: of the rows.
        task: names the labels.
        split: in a "test" file, ids must be unique: the server wants one prediction of each.
        uri: of the file, for messages.
        skipped: how many rows are no examples, by reason; may grow while ``rows`` are read.

    Raises:
        TaskError: there are no rows; or one has no text, an id that is taken, or a label that the
            task does not have; naming the line.
    """
    found = list(_text_rows(rows, columns, split, uri))
    if not found:
        raise TaskError(f"{uri} has no rows.")
    lines, ids, texts, labels, clusters = zip(*found, strict=True)
    line_of: dict[str, int] = {}
    for row in found if split == "test" else ():
        if line_of.setdefault(row.id, row.line) != row.line:
            raise TaskError(
                f"{uri}, line {row.line}: id {row.id!r} is that of line {line_of[row.id]} too. "
                "Correct the file: ids of a test set are unique."
            )
    is_hidden = split == "test" and _HIDDEN.issuperset(labels)
    return TextExamples(
        ids=list(ids),
        texts_a=[first for first, *_ in texts],
        texts_b=[second for _, second in texts] if len(columns.texts) > 1 else None,
        targets=None if is_hidden else _targets(task, labels, lines, uri),
        clusters=_numbered(clusters) if any(clusters) else None,
        skipped=dict(skipped or {}),
    )


def _numbered(clusters: Sequence[str]) -> Ints:
    """Return the number of each row's cluster; a row that names none is one by itself."""
    named = [name or f"\n{row}" for row, name in enumerate(clusters)]
    return np.unique(named, return_inverse=True)[1]


class _TextRow(NamedTuple):
    line: int
    id: str
    texts: list[str]
    label: str
    """As in the file; empty if there is none."""
    cluster: str


def _text_rows(rows: Rows, columns: Columns, split: Split, uri: str) -> Iterator[_TextRow]:
    needed = [*columns.texts, *([] if split == "test" else [columns.label])]
    needed += [columns.cluster] if columns.cluster and split == "dev" else []
    for number, (line, row) in enumerate(rows):
        where = f"{uri}, line {line}"
        if absent := next((name for name in needed if name not in row), None):
            raise TaskError(
                f"{where}: no column {absent!r}; found {_some(row)}. Correct the file, or the "
                "names of the columns in the task's settings."
            )
        texts = [_text(row[name], name, where) for name in columns.texts]
        # One text of a pair may be empty: QQP has some such questions.
        if not any(map(str.strip, texts)):
            raise TaskError(f"{where}: no text. Remove the line.")
        label, cluster = (  # a column may have no name
            _text(row.get(name) if name else None, name, where).strip()
            for name in (columns.label, columns.cluster)
        )
        if split != "test" and not label:
            raise TaskError(
                f"{where}: no label in column {columns.label!r}. Give one, or remove the line."
            )
        key = next((str(row[name]) for name in columns.ids if name in row), str(number))
        yield _TextRow(line, key, texts, label, cluster)


def _text(value: Any, name: str, where: str) -> str:
    """Return ``value`` as text; a number or a truth value as JSON writes it, 1.0 as 1."""
    if isinstance(value, str):
        return value
    if value is None or value != value:  # pandas writes a missing value as NaN
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
    raise TaskError(
        f"{where}: column {name!r} is a {type(value).__name__}, expected a text or a number. "
        "Correct the line."
    )


def _targets(
    task: Task, labels: Sequence[str], lines: Sequence[int], uri: str
) -> Ints | NDArray[np.float64]:
    """Return indices of labels, int64 (N,), or the numbers of a regression, float64 (N,)."""
    is_number = task.kind == "regression"
    index_of = {label: index for index, label in enumerate(task.labels)}
    targets = [_finite(label) if is_number else index_of.get(label) for label in labels]
    if None in targets:
        row = targets.index(None)
        expected = "a number as score" if is_number else f"one of {_some(task.labels)} as label"
        raise TaskError(
            f"{uri}, line {lines[row]}: found {labels[row]!r}, expected {expected}. Correct or "
            "remove the line; if all lines are like it, give the column the type that train's has."
        )
    return np.array(targets, np.float64) if is_number else np.array(targets, np.int64)


def _some(names: Collection[str]) -> str:
    """Return the first names as Python writes them, and how many there are if these are not all."""
    shown = ", ".join(map(repr, islice(names, _FEW_LABELS)))
    return shown if len(names) <= _FEW_LABELS else f"{shown}, ... ({len(names):,} in all)"


def _finite(text: str) -> float | None:
    """Return ``text`` as a finite number, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def named_rows(
    rows: Iterable[tuple[int, Sequence[str]]],
    separator: str,
    uri: str,
    header: Sequence[str] = (),
    skipped: Counter[str] | None = None,
) -> Rows:
    """Yield the fields of each row by the names of their columns.

    Args:
        rows: line and fields of each.
        separator: of the fields, in words, for messages.
        uri: of the file, for messages.
        header: the names; empty: the first row has them.
        skipped: counts rows with too few or too many fields; None: they are errors.
    """
    rows = iter(rows)
    columns = header or next(rows, (0, []))[1]
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise TaskError(f"{uri}, line 1: two columns are called {twice!r}. Rename one.")
    for line, fields in rows:
        if len(fields) == len(columns):
            yield line, dict(zip(columns, fields, strict=True))
        elif skipped is not None:
            skipped["short_row" if len(fields) < len(columns) else "long_row"] += 1
        else:
            raise TaskError(
                f"{uri}, line {line}: {len(fields)} {separator}-separated fields, expected "
                f"{len(columns)}: {', '.join(columns)}. Correct or remove the line."
            )


def tab_separated(uri: str) -> list[tuple[int, list[str]]]:
    """Return the number of each line, from 1, and its fields."""
    return [(number, line.split("\t")) for number, line in enumerate(read_lines(uri), start=1)]


def _rows_of(uri: str) -> Rows:
    """Yield the rows of a user's file, in the format that its ending names."""
    match uri.rpartition(".")[2].lower():
        case "tsv":
            yield from named_rows(tab_separated(uri), "tab", uri)
        case "csv":
            yield from _csv_rows(uri)
        case "jsonl":
            for number, line in enumerate(read_lines(uri), start=1):
                yield number, parse_object(line, f"{uri}, line {number}")
        case "parquet":
            content = read_file(uri)
            try:
                rows = pq.read_table(pa.BufferReader(content)).to_pylist()
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                raise TaskError(f"{uri} is not a parquet file: {error}") from error
            yield from enumerate(rows, start=1)
        case _:
            raise TaskError(f"{uri}: its name must end in .tsv, .csv, .jsonl or .parquet.")


def _csv_rows(uri: str) -> Rows:
    csv.field_size_limit(_MAX_CHARACTERS)
    reader = csv.reader(io.StringIO(read_text(uri), newline=""), strict=True)
    try:
        yield from named_rows(((reader.line_num, row) for row in reader if row), "comma", uri)
    except csv.Error as error:
        raise TaskError(
            f"{uri}, line {reader.line_num}: not CSV ({error}). Correct the file."
        ) from error


_IDS = ("index", "id")
_COLA_HEADER = ("source", "label", "author_mark", "sentence")
_DIAGNOSTIC = Columns(("Premise", "Hypothesis"), "Label")
"""Columns of the diagnostic set's labelled file; its test file has other names."""


@dataclass(frozen=True)
class PublicTask:
    """A task whose files have known names."""

    task: Task
    files: Files
    folder_names: Sequence[str] = ()
    """Names that the folder of the files may have; empty: any."""
    columns: Columns = Columns((), "")
    """Columns of a table; files of other kinds have none."""


def _glue(
    title: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    texts: Sequence[str],
    label: str = "label",
    files: Files | None = None,
    folder_names: Sequence[str] = (),
) -> PublicTask:
    kind: Kind = "classification" if labels else "regression"
    task = Task(name=title.lower(), title=title, kind=kind, labels=labels, metrics=metrics)
    files = files or {split: [f"{split}.tsv"] for split in SPLITS}
    return PublicTask(task, files, folder_names or (title,), Columns(texts, label, ids=_IDS))


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("contradiction", "entailment", "neutral")
_PAIR = ("sentence1", "sentence2")
_ACCURACY, _WITH_F1, _WITH_MATTHEWS = ("accuracy",), ("accuracy", "f1"), ("matthews", "accuracy")
_MATCHED: Files = {"train": ["train.tsv"], "dev": ["dev_matched.tsv"], "test": ["test_matched.tsv"]}
_MISMATCHED: Files = {"dev": ["dev_mismatched.tsv"], "test": ["test_mismatched.tsv"]}
_LABELLED_AX: Files = {"dev": ["diagnostic-full.tsv"], "test": ["diagnostic.tsv", "AX.tsv"]}
# Microsoft's own files, from which GLUE's script makes its own; a list has the pairs of dev.
_MICROSOFTS = "msr_paraphrase_train.txt dev_ids.tsv"
_MRPC: Files = {
    "train": ["train.tsv", _MICROSOFTS],
    "dev": ["dev.tsv", _MICROSOFTS],
    "test": ["test.tsv", "msr_paraphrase_test.txt"],
}
_AX_FOLDERS = ("diagnostic", "AX", "MNLI")

GLUE = {
    each.task.name: each
    for each in (
        _glue("CoLA", _BINARY, _WITH_MATTHEWS, ["sentence"]),
        _glue("SST-2", _BINARY, _ACCURACY, ["sentence"]),
        _glue("MRPC", _BINARY, _WITH_F1, ["#1 String", "#2 String"], "Quality", _MRPC),
        _glue("STS-B", (), ("pearson", "spearman", "mse"), _PAIR, "score"),
        _glue("QQP", _BINARY, _WITH_F1, ["question1", "question2"], "is_duplicate"),
        _glue("MNLI", _MNLI, _ACCURACY, _PAIR, "gold_label", _MATCHED),
        _glue("MNLI-mm", _MNLI, _ACCURACY, _PAIR, "gold_label", _MISMATCHED, ["MNLI"]),
        _glue("QNLI", _ENTAILMENT, _ACCURACY, ["question", "sentence"]),
        _glue("RTE", _ENTAILMENT, _ACCURACY, _PAIR),
        _glue("WNLI", _BINARY, _ACCURACY, _PAIR),
        _glue("AX", _MNLI, _WITH_MATTHEWS, _PAIR, "label", _LABELLED_AX, _AX_FOLDERS),
    )
}
"""GLUE's tasks by name."""


def read_glue(name: str, uris: Sequence[str], split: Split) -> TextExamples:
    """Return the examples of one split, in the order of the file.

    Args:
        name: a key of `GLUE`.
        uris: the file; and, for Microsoft's MRPC, the list of the pairs of dev.
        split: files of "test" need no labels.

    Raises:
        TaskError: a file is missing, has no rows, or has a malformed one; naming its line.
    """
    task, columns = GLUE[name].task, GLUE[name].columns
    lines = tab_separated(uris[0])
    first = lines[0][1] if lines else []
    has_no_header = name == "cola" and split != "test" and columns.label not in first
    # The rows of QQP that have too few or too many fields are passed over, as usual. Of a test
    # file GLUE's server wants a prediction of each row.
    skipped = Counter[str]() if name == "qqp" and split != "test" else None
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
    """Yield the rows of Microsoft's file that are in ``split`` by the list of dev pairs."""
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
