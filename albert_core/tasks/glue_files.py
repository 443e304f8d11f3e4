"""How GLUE lays out its nine tasks and its diagnostic set: folders, files, columns, labels.

MNLI's mismatched sets are a task of their own, "mnli-mm", and so is the diagnostic set, "ax":
both have no training data and are predicted by the model of "mnli".

Sources: Wang et al. 2019, "GLUE"; REFERENCE.md D.2 (columns, labels and their order).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from albert_core.tasks.examples import Split, Task

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
