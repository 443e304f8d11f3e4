"""GLUE: how its nine tasks and its diagnostic set are laid out in files, and their reader.

MNLI's mismatched sets are a task of their own, "mnli-mm", and so is the diagnostic set, "ax":
neither has training data, and the model of "mnli" predicts them.

A field ends at a tab and a row at a line feed; quotation marks mean nothing. Columns are found by
their names in the header; a labelled file without one (CoLA's) has GLUE's columns in order. An
example's id is its number in the index column, else its row, counted from 0.

Sources: Wang et al. 2019, "GLUE"; `classifier_utils.py` of google-research/albert for columns,
labels and their order.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import SPLITS, Split, Task, TextExamples
from albert_core.tasks.reading import TextRow, check_fields, read_lines, text_examples

SHORT_ROW, LONG_ROW = "short_row", "long_row"
"""Why a row is skipped: fewer or more fields than the header."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """What one file of a task looks like."""

    names: tuple[str, ...]
    """Its name; and, for Microsoft's MRPC, that of the file that lists the pairs of dev."""
    columns: tuple[str, ...]
    """In order, of a labelled file without a header."""
    texts: tuple[str, ...]
    """The columns with the texts, one or two."""
    label: str
    """The column with the label; a test file may lack it."""


Tables = Mapping[Split, tuple[Table, ...]]


@dataclass(frozen=True)
class GlueTask:
    """A task and the names of its files."""

    task: Task
    folder_names: tuple[str, ...]
    tables: Tables
    """The alternatives for each split; the first whose files exist is read."""
    skips_odd_rows: bool
    """Whether rows with too few or too many fields are counted and skipped, not errors."""


def _table(names: str, columns: str, texts: str, label: str) -> Table:
    """Return a table; "|" separates names."""
    name, column, text = (tuple(each.split("|")) for each in (names, columns, texts))
    return Table(name, column, text, label)


def _tables(columns: str, texts: str, label: str = "label") -> Tables:
    """Return the tables of a task whose files have GLUE's usual names."""
    return {split: (_table(f"{split}.tsv", columns, texts, label),) for split in SPLITS}


def _pairs(texts: str) -> Tables:
    return _tables(f"index|{texts}|label", texts)


def _mrpc() -> Tables:
    """Return GLUE's tables, and Microsoft's own, from which GLUE's script makes them."""
    texts = "#1 String|#2 String"
    columns = f"Quality|#1 ID|#2 ID|{texts}"
    train = _table("msr_paraphrase_train.txt|dev_ids.tsv", columns, texts, "Quality")
    test = _table("msr_paraphrase_test.txt", columns, texts, "Quality")
    raw = {"train": train, "dev": train, "test": test}
    glue = _tables(columns, texts, "Quality")
    return {split: (*tables, raw[split]) for split, tables in glue.items()}


def _mnli(**names: str) -> Tables:
    """Return the tables of MNLI's files; ``names`` by split, without their ending."""
    texts = "sentence1|sentence2"
    parses = "sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
    columns = f"index|promptID|pairID|genre|{parses}|{texts}|label1|gold_label"
    table = {name: _table(f"{name}.tsv", columns, texts, "gold_label") for name in names.values()}
    return {split: (table[names[split]],) for split in SPLITS if split in names}


def _diagnostic() -> Tables:
    """Return the tables of the diagnostic set: "dev" is the file with labels."""
    linguistics = "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain"
    labelled, texts = "Premise|Hypothesis", "sentence1|sentence2"
    return {
        "dev": (
            _table("diagnostic-full.tsv", f"{linguistics}|{labelled}|Label", labelled, "Label"),
        ),
        "test": tuple(
            _table(f"{name}.tsv", f"index|{texts}", texts, "label") for name in ("diagnostic", "AX")
        ),
    }


def _glue(
    title: str,
    labels: Sequence[str],
    metrics: Sequence[str],
    tables: Tables,
    folder_names: Sequence[str] = (),
    skips_odd_rows: bool = False,
) -> GlueTask:
    """Return a task whose name is its title in lower case, as is, unless named, its folder."""
    task = Task(
        name=title.lower(),
        title=title,
        kind="classification" if labels else "regression",
        labels=tuple(labels),
        metrics=tuple(metrics),
    )
    return GlueTask(task, tuple(folder_names) or (title,), tables, skips_odd_rows)


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("contradiction", "entailment", "neutral")
_COLA = _tables("source|label|author_mark|sentence", "sentence")
_STS_B = _tables(
    "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
    "sentence1|sentence2",
    "score",
)
_QQP = _tables(
    "id|qid1|qid2|question1|question2|is_duplicate", "question1|question2", "is_duplicate"
)
_MATCHED = _mnli(train="train", dev="dev_matched", test="test_matched")
_MISMATCHED = _mnli(dev="dev_mismatched", test="test_mismatched")

GLUE = {
    each.task.name: each
    for each in (
        _glue("CoLA", _BINARY, ["matthews", "accuracy"], _COLA),
        _glue("SST-2", _BINARY, ["accuracy"], _tables("sentence|label", "sentence")),
        _glue("MRPC", _BINARY, ["accuracy", "f1"], _mrpc()),
        _glue("STS-B", (), ["pearson", "spearman", "mse"], _STS_B),
        _glue("QQP", _BINARY, ["accuracy", "f1"], _QQP, skips_odd_rows=True),
        _glue("MNLI", _MNLI, ["accuracy"], _MATCHED),
        _glue("MNLI-mm", _MNLI, ["accuracy"], _MISMATCHED, ["MNLI"]),
        _glue("QNLI", _ENTAILMENT, ["accuracy"], _pairs("question|sentence")),
        _glue("RTE", _ENTAILMENT, ["accuracy"], _pairs("sentence1|sentence2")),
        _glue("WNLI", _BINARY, ["accuracy"], _pairs("sentence1|sentence2")),
        _glue("AX", _MNLI, ["matthews", "accuracy"], _diagnostic(), ["diagnostic", "AX", "MNLI"]),
    )
}
"""By the task's name."""

Row = tuple[int, list[str]]
"""Its line, from 1, and its fields."""


def read_glue(glue_task: GlueTask, uris: Sequence[str], split: Split) -> TextExamples:
    """Return the examples of one split, in the order of the file.

    Args:
        glue_task: the task.
        uris: the file; and, for Microsoft's MRPC, the list of the pairs of dev.
        split: files of "test" need no labels.

    Raises:
        TaskError: a file is missing, has no rows, or has a malformed one; naming its line.
    """
    table = _table_of(glue_task, uris, split)
    uri, lines = uris[0], read_lines(uris[0])
    columns, num_headers = _columns(lines, uri, table, split)
    skipped = Counter[str]()
    rows = _rows(lines, columns, num_headers, uri, skipped if glue_task.skips_odd_rows else None)
    if len(uris) > 1:
        rows = _rows_of_split(rows, columns, uri, uris[1], split)
    texts = [columns.index(name) for name in table.texts]
    label = columns.index(table.label) if table.label in columns else None
    index = next((columns.index(name) for name in ("index", "id") if name in columns), None)
    examples = text_examples(
        (
            TextRow(
                number,
                str(number - num_headers - 1) if index is None else fields[index],
                [fields[text] for text in texts],
                "" if label is None else fields[label],
            )
            for number, fields in rows
        ),
        glue_task.task,
        split,
        uri,
        skipped,
    )
    for reason, number in skipped.items():
        log.warning("%s: %d rows skipped (%s)", uri, number, reason)
    return examples


def _table_of(glue_task: GlueTask, uris: Sequence[str], split: Split) -> Table:
    """Return the table whose files have these names, or the first one."""
    names = tuple(uri.rpartition("/")[2] for uri in uris)
    tables = glue_task.tables[split]
    return next((table for table in tables if table.names == names), tables[0])


def _columns(lines: list[str], uri: str, table: Table, split: Split) -> tuple[list[str], int]:
    """Return the columns of a file, and how many of its lines are the header: 0 or 1."""
    if not lines:
        raise TaskError(f"{uri} has no rows.")
    found = lines[0].split("\t")
    needed = table.texts if split == "test" else (*table.texts, table.label)
    if set(needed) <= set(found):
        return found, 1
    if split == "test" or len(found) != len(table.columns):
        raise TaskError(
            f"{uri}, line 1: found {lines[0][:80]!r}, expected the header "
            f"{'<tab>'.join(needed if split == 'test' else table.columns)}. Use GLUE's own file."
        )
    return list(table.columns), 0


def _rows(
    lines: list[str], columns: list[str], num_headers: int, uri: str, skipped: Counter[str] | None
) -> Iterator[Row]:
    """Yield the rows with a field for each column; others are counted, or errors if None."""
    for number, line in enumerate(lines[num_headers:], start=num_headers + 1):
        fields = line.split("\t")
        if skipped is None:
            check_fields(fields, columns, "tab", f"{uri}, line {number}")
        elif len(fields) != len(columns):
            skipped[SHORT_ROW if len(fields) < len(columns) else LONG_ROW] += 1
            continue
        yield number, fields


def _rows_of_split(
    rows: Iterator[Row], columns: list[str], uri: str, pairs_uri: str, split: Split
) -> Iterator[Row]:
    """Yield those of Microsoft's rows that are in dev, or in train, by the list of dev's pairs."""
    dev_pairs = set[tuple[str, ...]]()
    for number, line in enumerate(read_lines(pairs_uri), start=1):
        pair = tuple(line.split("\t"))
        check_fields(pair, ("#1 ID", "#2 ID"), "tab", f"{pairs_uri}, line {number}")
        dev_pairs.add(pair)
    first, second = columns.index("#1 ID"), columns.index("#2 ID")
    found = set()
    for number, fields in rows:
        pair = (fields[first], fields[second])
        found.add(pair)
        if (pair in dev_pairs) == (split == "dev"):
            yield number, fields
    if absent := sorted(dev_pairs - found):
        raise TaskError(
            f"{pairs_uri}: {len(absent)} of its {len(dev_pairs)} pairs, such as "
            f"{' '.join(absent[0])}, are not in {uri}. Use the two files of one release."
        )
