"""Reads GLUE's files.

A field ends at a tab and a row at a line feed; quotation marks mean nothing. Columns are found by
their names in the header; a labelled file without one (CoLA's) has GLUE's columns in order. An
example's id is its number in the index column, else its row, counted from 0.

How GLUE lays out its nine tasks and its diagnostic set: folders, files, columns, labels.

MNLI's mismatched sets are a task of their own, "mnli-mm", and so is the diagnostic set, "ax":
both have no training data and are predicted by the model of "mnli".

Sources: Wang et al. 2019, "GLUE"; `classifier_utils.py` of google-research/albert for columns,
labels and their order.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Split, Task, TextExamples, are_hidden, targets_of
from albert_core.tasks.text_lines import read_lines

_TRAIN, _DEV, _TEST = "train.tsv", "dev.tsv", "test.tsv"
_BINARY = ("0", "1")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_NLI_LABELS = ("entailment", "not_entailment")
_MNLI_COLUMNS = (
    "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|"
    "sentence1_parse|sentence2_parse|sentence1|sentence2"
)


@dataclass(frozen=True)
class Table:
    """What one file of a task looks like."""

    names: tuple[str, ...]
    """Its name; and the name of a file that says which of its rows are the dev set's, if any."""
    columns: tuple[str, ...]
    """In order; where the file has no header, it must have these."""
    texts: tuple[str, ...]
    """The columns with the texts, one or two."""
    label: str
    """The column with the label; a test file may lack it."""


Tables = Mapping[Split, tuple[Table, ...]]


@dataclass(frozen=True)
class GlueTask:
    """A task and where its files lie."""

    task: Task
    folder_names: tuple[str, ...]
    tables: Tables
    """Of each split the files that will do; the first one that is there is used."""
    skips_odd_rows: bool = False
    """Whether rows with too few or too many fields are counted and skipped, not errors."""


def _table(names: str, columns: str, texts: str, label: str) -> Table:
    """Return a table whose names are given with "|" between them."""
    name, column, text = (tuple(each.split("|")) for each in (names, columns, texts))
    return Table(name, column, text, label)


def _tables(columns: str, test_columns: str, texts: str, label: str) -> Tables:
    return {
        "train": (_table(_TRAIN, columns, texts, label),),
        "dev": (_table(_DEV, columns, texts, label),),
        "test": (_table(_TEST, test_columns, texts, label),),
    }


def _pair_tables(texts: str) -> Tables:
    return _tables(f"index|{texts}|label", f"index|{texts}", texts, "label")


def _mrpc_tables() -> Tables:
    """Return GLUE's tables, and Microsoft's own files, of which GLUE's script makes those."""
    texts, ids = "#1 String|#2 String", "#1 ID|#2 ID"
    columns = f"Quality|{ids}|{texts}"
    raw = _table("msr_paraphrase_train.txt|dev_ids.tsv", columns, texts, "Quality")
    return {
        "train": (_table(_TRAIN, columns, texts, "Quality"), raw),
        "dev": (_table(_DEV, columns, texts, "Quality"), raw),
        "test": (
            _table(_TEST, f"index|{ids}|{texts}", texts, "Quality"),
            _table("msr_paraphrase_test.txt", columns, texts, "Quality"),
        ),
    }


def _mnli_tables(genres: str) -> Tables:
    columns, texts, label = (
        f"{_MNLI_COLUMNS}|label1|gold_label",
        "sentence1|sentence2",
        "gold_label",
    )
    return {
        "dev": (_table(f"dev_{genres}.tsv", columns, texts, label),),
        "test": (_table(f"test_{genres}.tsv", _MNLI_COLUMNS, texts, label),),
    }


def _diagnostic_tables() -> Tables:
    linguistics = "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain"
    texts, labelled = "sentence1|sentence2", "Premise|Hypothesis"
    return {
        "dev": (
            _table("diagnostic-full.tsv", f"{linguistics}|{labelled}|Label", labelled, "Label"),
        ),
        "test": tuple(
            _table(name, f"index|{texts}", texts, "label") for name in ("diagnostic.tsv", "AX.tsv")
        ),
    }


def _task(name: str, title: str, labels: tuple[str, ...], *metrics: str) -> Task:
    return Task(name=name, title=title, kind="classification", labels=labels, metrics=metrics)


_STS_B = Task(
    name="sts-b", title="STS-B", kind="regression", metrics=("pearson", "spearman", "mse")
)
_STS_B_COLUMNS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
_MNLI_TRAIN = _table(
    _TRAIN, f"{_MNLI_COLUMNS}|label1|gold_label", "sentence1|sentence2", "gold_label"
)

GLUE = {
    each.task.name: each
    for each in (
        GlueTask(
            _task("cola", "CoLA", _BINARY, "matthews", "accuracy"),
            ("CoLA",),
            _tables("source|label|author_mark|sentence", "index|sentence", "sentence", "label"),
        ),
        GlueTask(
            _task("sst-2", "SST-2", _BINARY, "accuracy"),
            ("SST-2",),
            _tables("sentence|label", "index|sentence", "sentence", "label"),
        ),
        GlueTask(_task("mrpc", "MRPC", _BINARY, "accuracy", "f1"), ("MRPC",), _mrpc_tables()),
        GlueTask(
            _STS_B,
            ("STS-B",),
            _tables(f"{_STS_B_COLUMNS}|score", _STS_B_COLUMNS, "sentence1|sentence2", "score"),
        ),
        GlueTask(
            _task("qqp", "QQP", _BINARY, "accuracy", "f1"),
            ("QQP",),
            _tables(
                "id|qid1|qid2|question1|question2|is_duplicate",
                "id|question1|question2",
                "question1|question2",
                "is_duplicate",
            ),
            skips_odd_rows=True,
        ),
        GlueTask(
            _task("mnli", "MNLI", _MNLI_LABELS, "accuracy"),
            ("MNLI",),
            {"train": (_MNLI_TRAIN,), **_mnli_tables("matched")},
        ),
        GlueTask(
            _task("mnli-mm", "MNLI-mm", _MNLI_LABELS, "accuracy"),
            ("MNLI",),
            _mnli_tables("mismatched"),
        ),
        GlueTask(
            _task("qnli", "QNLI", _NLI_LABELS, "accuracy"),
            ("QNLI",),
            _pair_tables("question|sentence"),
        ),
        GlueTask(
            _task("rte", "RTE", _NLI_LABELS, "accuracy"),
            ("RTE",),
            _pair_tables("sentence1|sentence2"),
        ),
        GlueTask(
            _task("wnli", "WNLI", _BINARY, "accuracy"),
            ("WNLI",),
            _pair_tables("sentence1|sentence2"),
        ),
        GlueTask(
            _task("ax", "AX", _MNLI_LABELS, "matthews", "accuracy"),
            ("diagnostic", "AX", "MNLI"),
            _diagnostic_tables(),
        ),
    )
}
"""By the task's name."""

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
