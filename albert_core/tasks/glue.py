"""Reads GLUE's files.

A field ends at a tab and a row at a line feed; quotation marks mean nothing. Columns are found by
their names in the header; a labelled file without one (CoLA's) has GLUE's columns in order. An
example's id is its number in the index column, else its row, counted from 0.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from albert_core.contract.errors import TaskError
from albert_core.tasks.examples import Split, Task, TextExamples
from albert_core.tasks.glue_files import GlueTask, Table
from albert_core.tasks.targets import are_hidden, targets_of
from albert_core.tasks.text_lines import read_lines

SHORT_ROW, LONG_ROW = "short_row", "long_row"
"""Why a row is skipped: fewer or more fields than the header."""
_INDICES = ("index", "id")
_PAIR_IDS = ("#1 ID", "#2 ID")

log = logging.getLogger(__name__)

Row = tuple[int, list[str]]
"""Its line, from 1, and its fields."""


def read_glue(glue_task: GlueTask, uris: Sequence[str], split: Split) -> TextExamples:
    """Return the examples of one split, in the order of the file.

    Args:
        glue_task: whose they are.
        uris: the file; and the file of the dev set's pairs, if it is one of Microsoft's.
        split: of a table for several, the part; files of "test" need no labels.

    Raises:
        TaskError: a file is missing, has no rows, or has a malformed one; naming its line.
    """
    table = _table_of(glue_task, uris, split)
    content = _Content(glue_task, table, uris[0], split)
    rows: Iterator[Row] = content.rows()
    if len(uris) > 1:
        rows = content.part(rows, uris[1])
    examples = content.examples(rows)
    for reason, number in content.skipped.items():
        log.warning("%s: %d rows skipped (%s)", uris[0], number, reason)
    return examples


def _table_of(glue_task: GlueTask, uris: Sequence[str], split: Split) -> Table:
    """Return the table with these files' names; the usual one if they are called otherwise."""
    if split not in glue_task.tables:
        raise TaskError(
            f"{uris[0]}: task {glue_task.task.name!r} has no {split} split; it has "
            f"{', '.join(glue_task.tables)}."
        )
    names = tuple(uri.rpartition("/")[2] for uri in uris)
    tables = glue_task.tables[split]
    return next((table for table in tables if table.names == names), tables[0])


@dataclass
class _Content:
    """One file, and where in its rows what stands."""

    glue_task: GlueTask
    table: Table
    uri: str
    split: Split

    def __post_init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.lines = read_lines(self.uri)
        if not self.lines:
            raise TaskError(f"{self.uri} has no rows; expected lines of {self._expected}.")
        found = tuple(self.lines[0].split("\t"))
        self.has_header = set(self._needed) <= set(found)
        if not self.has_header and (self.split == "test" or len(found) != len(self.table.columns)):
            raise TaskError(
                f"{self.uri}, line 1: found {self.lines[0][:80]!r}, expected the header "
                f"{self._expected}. Use the file of GLUE's {self.glue_task.folder_names[0]}."
            )
        self.columns = found if self.has_header else self.table.columns

    @property
    def task(self) -> Task:
        return self.glue_task.task

    @property
    def _needed(self) -> tuple[str, ...]:
        """Columns without which the first line is no header."""
        return self.table.texts if self.split == "test" else (*self.table.texts, self.table.label)

    @property
    def _expected(self) -> str:
        return "<tab>".join(self.table.columns)

    def rows(self) -> Iterator[Row]:
        """Yield the rows with as many fields as there are columns; others are errors or counted."""
        num_columns = len(self.columns)
        first = 1 if self.has_header else 0
        for number, line in enumerate(self.lines[first:], start=first + 1):
            fields = line.split("\t")
            if len(fields) == num_columns:
                yield number, fields
            elif self.glue_task.skips_odd_rows:
                self.skipped[SHORT_ROW if len(fields) < num_columns else LONG_ROW] += 1
            else:
                raise TaskError(
                    f"{self.uri}, line {number}: {len(fields)} tab-separated fields, expected "
                    f"{num_columns}: {'<tab>'.join(self.columns)}. Correct or remove the line."
                )

    def part(self, rows: Iterator[Row], pairs_uri: str) -> Iterator[Row]:
        """Yield the rows of dev, which are those with pairs of that file, or else the others."""
        dev_pairs = _read_pairs(pairs_uri)
        first, second = (self.columns.index(name) for name in _PAIR_IDS)
        found = set()
        for number, fields in rows:
            pair = (fields[first], fields[second])
            found.add(pair)
            if (pair in dev_pairs) == (self.split == "dev"):
                yield number, fields
        if absent := sorted(dev_pairs - found):
            raise TaskError(
                f"{pairs_uri}: {len(absent)} of its {len(dev_pairs)} pairs, such as "
                f"{' '.join(absent[0])}, are not in {self.uri}. Use the two files of one release."
            )

    def examples(self, rows: Iterator[Row]) -> TextExamples:
        """Return ``rows`` as examples."""
        index_of = self.columns.index
        text_at = [index_of(name) for name in self.table.texts]
        label_at = index_of(self.table.label) if self.table.label in self.columns else None
        id_at = next((index_of(name) for name in _INDICES if name in self.columns), None)
        first_line = 2 if self.has_header else 1
        ids, lines, labels = [], [], []
        texts: list[list[str]] = [[] for _ in text_at]
        for number, fields in rows:
            ids.append(str(number - first_line) if id_at is None else fields[id_at])
            lines.append(number)
            for column, at in zip(texts, text_at, strict=True):
                column.append(fields[at])
            if label_at is not None:
                labels.append(fields[label_at])
        self._check_texts(texts, lines)
        if self.split == "test":
            self._check_ids(ids, lines)
        hidden = label_at is None or (self.split == "test" and are_hidden(labels))
        return TextExamples(
            ids=ids,
            texts_a=texts[0],
            texts_b=texts[1] if len(texts) > 1 else None,
            targets=None if hidden else targets_of(self.task, labels, lines, self.uri),
            skipped=dict(self.skipped),
        )

    def _check_ids(self, ids: list[str], lines: list[int]) -> None:
        """Refuse an id that stands twice: the server wants one prediction of each."""
        line_of: dict[str, int] = {}
        for each, line in zip(ids, lines, strict=True):
            if each in line_of:
                raise TaskError(
                    f"{self.uri}, line {line}: id {each!r} is that of line {line_of[each]} too. "
                    "Use the file as GLUE distributes it."
                )
            line_of[each] = line

    def _check_texts(self, texts: list[list[str]], lines: list[int]) -> None:
        if not lines:
            raise TaskError(f"{self.uri} has no rows; expected lines of {self._expected}.")
        # Of a pair one may be empty: QQP has some such questions.
        for line, of_row in zip(lines, zip(*texts, strict=True), strict=True):
            if not any(map(str.strip, of_row)):
                what = "sentence is" if len(of_row) == 1 else "sentences are"
                raise TaskError(f"{self.uri}, line {line}: the {what} empty. Remove the line.")


def _read_pairs(uri: str) -> set[tuple[str, str]]:
    """Return the pairs of ids in Microsoft's list of the dev set."""
    pairs = set()
    for number, line in enumerate(read_lines(uri), start=1):
        first, *others = line.split("\t")
        if len(others) != 1:
            raise TaskError(
                f"{uri}, line {number}: {len(others) + 1} tab-separated fields, expected 2 ids. "
                "Correct or remove the line."
            )
        pairs.add((first, others[0]))
    return pairs
