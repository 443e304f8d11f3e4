"""Shards damaged in every way that comes to mind: the auditor reports them and goes on."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS
from flows.commands.main import main
from pipelines.audit import audit_examples
from pipelines.audit.checks import Finding
from pipelines.audit.rows import rows_of_batch
from pipelines.examples.tfrecord import TFExample, read_tfrecord, write_tfrecord
from tests.generated_text import write_jsonl
from tests.pipelines.audit.planted_faults import Shards
from tests.pipelines.conftest import EXAMPLES, make

Values = dict[str, Any]
Bytes = bytes | bytearray
RowsChange = Callable[[list[Values], Random], object]
TableChange = Callable[[pa.Table, Random], pa.Table]
RecordChange = Callable[[Any, Random], object]
BytesChange = Callable[[bytearray, Random], Bytes]
NUM_DAMAGES = 200
LENGTH = {"max_seq_length": EXAMPLES.max_seq_length}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """The examples of a few documents."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "source").mkdir()
    write_jsonl(folder / "source" / "0.jsonl", range(6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        few = make(folder / "source", folder / "work")
    return Shards.of(few.examples, few.corpus, few.vocab)


@pytest.fixture
def copy(tiny: Shards, tmp_path: Path) -> Path:
    """The folder of a copy that a test may damage."""
    return tiny.copied(tmp_path / "copy").folder


@pytest.fixture(autouse=True)
def files_need_not_outlive_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def findings_of(path: Path, expected: Any = None, **options: Any) -> list[Finding]:
    return audit_examples.audit([str(path)], expected=expected, **options)


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is False}


def found(findings: list[Finding], check: str) -> str:
    """Return what the failed lines of ``check`` say."""
    return "\n".join(f.found for f in findings if f.check == check and f.ok is False)


# Changes of one row that break the format


def of_row(column: str, value: Callable[[Values, Random], Any]) -> RowsChange:
    def change(rows: list[Values], random: Random) -> None:
        row = random.choice(rows)
        row[column] = value(row, random)

    return change


def of_item(column: str, value: Callable[[Values, Random], Any]) -> RowsChange:
    def change(rows: list[Values], random: Random) -> None:
        row = random.choice(rows)
        row[column][random.randrange(len(row[column]))] = value(row, random)

    return change


LISTS = ("input_ids", "masked_lm_positions", "masked_lm_labels")
NUMBERS = ("segment_b_start", "first_sentence", "last_sentence", "copy")
ROWS: list[RowsChange] = [
    *(of_row(name, lambda row, random: None) for name in EXAMPLE_SCHEMA.names),
    *(of_row(name, lambda row, random: []) for name in LISTS),
    *(of_item(name, lambda row, random: None) for name in LISTS),
    *(of_item(name, lambda row, random: -random.randint(1, 1 << 40)) for name in LISTS),
    *(of_item(name, lambda row, random: random.choice([1 << 31, 1 << 62])) for name in LISTS),
    *(of_row(name, lambda row, random: -random.randint(1, 9)) for name in NUMBERS),
    of_item("input_ids", lambda row, random: random.randint(150, 65535)),
    of_item("masked_lm_labels", lambda row, random: 60_000),
    of_item("masked_lm_positions", lambda row, random: len(row["input_ids"])),
    of_item("masked_lm_positions", lambda row, random: 0),
    of_row("masked_lm_positions", lambda row, random: row["masked_lm_positions"][::-1]),
    of_row("masked_lm_positions", lambda row, random: row["masked_lm_positions"][:-1]),
    of_row("masked_lm_labels", lambda row, random: [*row["masked_lm_labels"], 9]),
    of_row("sentence_order_label", lambda row, random: random.randint(2, 255)),
    of_row("sentence_order_label", lambda row, random: -1),
    of_row("segment_b_start", lambda row, random: random.randint(0, 2)),
    of_row("segment_b_start", lambda row, random: len(row["input_ids"]) + 1),
    of_row("first_sentence", lambda row, random: row["last_sentence"] + 1),
    of_row("input_ids", lambda row, random: row["input_ids"][:1]),
    of_row("input_ids", lambda row, random: row["input_ids"] * random.randint(2, 2000)),
    of_row("input_ids", lambda row, random: [*row["input_ids"], 0]),
    of_row("input_ids", lambda row, random: [9, *row["input_ids"][1:]]),
    of_row("input_ids", lambda row, random: [*row["input_ids"][:-1], 9]),
]

# Changes of the columns that break the format


def some(random: Random) -> int:
    return random.randrange(len(EXAMPLE_SCHEMA))


def column(
    places: range | list[int], change: Callable[[pa.ChunkedArray, Random], Any]
) -> TableChange:
    """Return a change of one column, at one of these places."""

    def apply(table: pa.Table, random: Random) -> pa.Table:
        at = random.choice(places)
        return table.set_column(at, table.column_names[at], change(table[at], random))

    return apply


def of_wide_numbers(values: pa.ChunkedArray, random: Random) -> pa.ChunkedArray:
    wide = random.choice([pa.int32(), pa.int64(), pa.uint64()])
    return values.cast(pa.list_(wide) if pa.types.is_list(values.type) else wide)


def of_bytes(values: pa.ChunkedArray, random: Random) -> pa.Array:
    return pa.array([random.choice([b"\xff", b"x"]) for _ in values], pa.binary())


def of_floats(values: pa.ChunkedArray, random: Random) -> pa.Array:
    more = random.choice([0.0, 0.5, float("nan")])
    return pa.array([number + more for number in values.to_pylist()])


def renamed(table: pa.Table, random: Random) -> pa.Table:
    at = some(random)
    return table.rename_columns([n + "s" * (i == at) for i, n in enumerate(table.column_names)])


def twice(table: pa.Table, random: Random) -> pa.Table:
    at = some(random)
    return table.append_column(table.column_names[at], table[at])


def other_documents_without_sentences(table: pa.Table, random: Random) -> pa.Table:
    for name, of in OTHER_DOCUMENT_FIELDS:
        values = table["document_id"] if name == "other_document_id" else pa.nulls(len(table), of)
        table = table.append_column(name, values)
    return table


ANY, WITH_NUMBERS = range(9), [0, 1, 2, 3, 4, 6, 7, 8]
TABLES: list[TableChange] = [
    lambda table, random: table.remove_column(some(random)),
    lambda table, random: table.append_column(
        random.choice(["x", "\x1b", ""]), table[some(random)]
    ),
    lambda table, random: table.select([]),
    lambda table, random: table.append_column(
        (field := random.choice(OTHER_DOCUMENT_FIELDS))[0], pa.nulls(len(table), field[1])
    ),
    renamed,
    twice,
    other_documents_without_sentences,
    column(WITH_NUMBERS, lambda values, random: pa.array(map(str, values.to_pylist()))),
    column([1, 4, 6, 7, 8], of_floats),
    column(WITH_NUMBERS, of_wide_numbers),
    column([0], lambda values, random: values.cast(pa.large_list(pa.uint16()))),
    column(ANY, lambda values, random: pa.array([[value] for value in values.to_pylist()])),
    column([0, 2, 3], lambda values, random: pa.array([row[0] for row in values.to_pylist()])),
    column([1, 4, 5, 6, 7, 8], lambda values, random: values.dictionary_encode()),
    column(ANY, of_bytes),
    column(ANY, lambda values, random: pa.nulls(len(values))),
]

# Changes that leave good rows: a manifest's digest tells them, or the corpus

SILENT: list[RowsChange] = [
    lambda rows, random: rows.__delitem__(slice(random.randint(1, 9))),
    lambda rows, random: rows.extend(rows[: random.randint(1, 9)]),
    lambda rows, random: rows.reverse(),
    lambda rows, random: rows.clear(),
    lambda rows, random: rows[0].update(first_sentence=900, last_sentence=901),
    lambda rows, random: rows[0].update(document_id=random.choice(["", "no such\x00document"])),
    lambda rows, random: rows[0].update(sentence_order_label=1 - rows[0]["sentence_order_label"]),
    lambda rows, random: rows[0].update(copy=999),
    lambda rows, random: rows[0]["input_ids"].__setitem__(5, 40 + (rows[0]["input_ids"][5] == 40)),
]

# Changes of a record's features that break the format

INTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")


def feature(names: tuple[str, ...], change: Callable[[Any, Random], object]) -> RecordChange:
    """Return a change of the numbers of one of these features."""
    return lambda features, random: change(features[random.choice(names)].int64_list.value, random)


def of_a_number(value: Callable[[Random], int]) -> Callable[[Any, Random], None]:
    def change(values: Any, random: Random) -> None:
        values[random.randrange(len(values))] = value(random)

    return change


def feature_of_floats(features: Any, random: Random) -> None:
    name = random.choice(INTS)
    floats = list(map(float, features[name].int64_list.value))
    features[name].Clear()
    features[name].float_list.value.extend(floats)


RECORDS: list[RecordChange] = [
    lambda features, random: features.pop(
        random.choice([*INTS, "masked_lm_weights", "next_sentence_labels"])
    ),
    feature((*INTS, "token_boundary", "next_sentence_labels"), lambda v, random: v.clear()),
    feature_of_floats,
    lambda features, random: features[random.choice(INTS)].ParseFromString(b"\x0a\x03\x0a\x01x"),
    feature((*INTS, "token_boundary"), lambda values, random: values.pop()),
    feature((*INTS, "next_sentence_labels"), lambda values, random: values.append(1)),
    feature(INTS, of_a_number(lambda random: -random.randint(1, 1 << 62))),
    feature(
        (*INTS, "next_sentence_labels"),
        of_a_number(lambda random: random.choice([1 << 16, 1 << 31, (1 << 63) - 1])),
    ),
    lambda features, random: features["masked_lm_weights"].float_list.value.__setitem__(
        0, random.choice([float("nan"), -1.0, 1e38])
    ),
    feature(
        ("input_ids",), lambda values, random: values.__setitem__(slice(None), [0] * len(values))
    ),
]

# Changes of any file


def with_flipped(content: bytearray, places: list[int], random: Random) -> Bytes:
    for at in places:
        content[at % len(content)] ^= 1 << random.randrange(8)
    return content


def without(content: bytearray, length: int, random: Random, filling: bytes = b"") -> Bytes:
    begin = random.randrange(len(content))
    return content[:begin] + filling + content[begin + length :]


def swapped(content: bytearray, random: Random) -> Bytes:
    middle = random.randrange(1, len(content))
    return content[middle:] + content[:middle]


def replaced(content: bytearray, random: Random) -> Bytes:
    others = [b"", b"\0", bytes(len(content)), random.randbytes(len(content)), b"ARROW1\0\0ARROW1"]
    return random.choice([*others, b"{}", b"[[[", "Text, und noch eins: ß\n".encode() * 99])


BYTES: list[BytesChange] = [
    lambda content, random: with_flipped(
        content, random.choices(range(len(content)), k=random.choice([1, 1, 1, 8, 100])), random
    ),
    # Where an Arrow file has its schema, the places of its buffers and its footer.
    lambda content, random: with_flipped(
        content, random.choices(range(-2500, 1500), k=random.randint(1, 3)), random
    ),
    lambda content, random: content[: random.randrange(len(content))],
    swapped,
    lambda content, random: without(content, n := random.choice([64, 4096]), random, bytes(n)),
    lambda content, random: without(content, random.choice([1, 8, 4096]), random),
    replaced,
]


def table_of_rows(rows: list[Values]) -> pa.Table:
    """Return a table in EXAMPLE_SCHEMA, but for columns whose values do not fit their types."""
    columns = []
    for field in EXAMPLE_SCHEMA:
        values = [row[field.name] for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, OverflowError):
            columns.append(pa.array(values))
    return pa.table(columns, names=EXAMPLE_SCHEMA.names)


def spoil_rows(path: Path, change: RowsChange, random: Random) -> None:
    rows = read_arrow(str(path)).to_pylist()
    change(rows, random)
    write_arrow(table_of_rows(rows), str(path))


def spoil_table(path: Path, change: TableChange, random: Random) -> None:
    write_arrow(change(read_arrow(str(path)), random), str(path))


def spoil_record(path: Path, change: RecordChange, random: Random) -> None:
    records = list(read_tfrecord(str(path)))
    at = random.randrange(len(records)) if random.random() < 0.5 else 0
    example = TFExample.FromString(records[at])
    change(example.features.feature, random)
    records[at] = example.SerializeToString()
    write_tfrecord(records, str(path))


def spoil_bytes(path: Path, change: BytesChange, random: Random) -> None:
    before = path.read_bytes()
    while (after := bytes(change(bytearray(before), random))) == before:
        pass
    path.write_bytes(after)


FORMAT_DAMAGES: list[tuple[str, Any, Any]] = [
    *((".arrow", spoil_rows, change) for change in ROWS),
    *((".arrow", spoil_table, change) for change in TABLES),
    *((".tfrecord", spoil_record, change) for change in RECORDS),
]
DAMAGES = [
    *FORMAT_DAMAGES,
    *((".arrow", spoil_rows, change) for change in SILENT),
    *((of, spoil_bytes, change) for change in BYTES for of in (".arrow", ".tfrecord") * 3),
]


def test_good_shards_pass(tiny: Shards) -> None:
    assert {finding.ok for finding in findings_of(tiny.folder)} == {True}


def test_hundreds_of_damages_are_all_reported(tiny: Shards, copy: Path) -> None:
    missed = []
    for number in range(NUM_DAMAGES):
        random = Random(number)
        of, spoil, change = DAMAGES[number % len(DAMAGES)]
        path = copy / random.choice([name for name in tiny.files if name.endswith(of)])
        spoil(path, change, random)
        findings = findings_of(copy, corpus=tiny.corpus, vocab=tiny.vocab, sample=20)
        if not failed(findings):
            missed.append((number, path.name))
        path.write_bytes(tiny.files[path.name])
    assert missed == []


@pytest.mark.parametrize("number", range(len(FORMAT_DAMAGES)))
def test_what_breaks_the_format_is_reported_without_a_manifest(
    number: int, tiny: Shards, tmp_path: Path
) -> None:
    of, spoil, change = FORMAT_DAMAGES[number]
    name = next(name for name in tiny.files if name.endswith(of) and "train" in name)
    path = tmp_path / name
    path.write_bytes(tiny.files[name])
    spoil(path, change, Random(number))
    assert failed(findings_of(path, LENGTH, vocab=tiny.vocab))


def test_damaged_bytes_without_a_manifest_do_no_harm(tiny: Shards, tmp_path: Path) -> None:
    for number, change in enumerate(BYTES * 5):
        for name, content in tiny.files.items():
            if name != "manifest.json":
                (tmp_path / name).write_bytes(content)
                spoil_bytes(tmp_path / name, change, Random(number))
        assert findings_of(tmp_path, LENGTH)


def arrow(folder: Path, kind: str = "train") -> Path:
    return next(folder.glob(f"{kind}*.arrow"))


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_audited(copy: Path) -> None:
    arrow(copy).write_bytes(b"nothing")
    findings = findings_of(copy)
    assert f"{arrow(copy).name}: no readable Arrow file: ArrowInvalid" in found(findings, "files")
    assert next(f for f in findings if f.check == "layout").ok


def test_a_column_s_name_that_is_no_text_is_reported(copy: Path) -> None:
    path = arrow(copy)
    path.write_bytes(path.read_bytes().replace(b"sentence_order_label", b"sentence\xfforder_label"))
    assert "names of the columns: UnicodeDecodeError" in found(findings_of(path), "files")


def test_rows_that_lack_a_value_are_counted_and_left_out(copy: Path) -> None:
    def spoil(rows: list[Values], _: Random) -> None:
        rows[0]["first_sentence"] = rows[1]["sentence_order_label"] = None
        rows[2]["input_ids"][3] = rows[3]["masked_lm_labels"] = None
        rows[4]["last_sentence"] = 0
        rows[4]["first_sentence"] = 1

    spoil_rows(arrow(copy), spoil, Random(0))
    findings = findings_of(copy)
    total = len(read_arrow(str(arrow(copy)))) + len(read_arrow(str(arrow(copy, "held_out"))))
    assert found(findings, "values").startswith(f"5 of {total} rows")
    assert failed(findings) == {"files", "values", "Arrow and TFRecord"}


WIDE = {
    pa.list_(pa.uint16()): pa.large_list(pa.int32()),
    pa.uint16(): pa.int64(),
    pa.uint8(): pa.int8(),
    pa.uint32(): pa.uint64(),
}


def test_columns_of_another_width_are_read_alike_and_reported(copy: Path) -> None:
    plain = read_arrow(str(arrow(copy)))
    wide = plain.cast(pa.schema([(f.name, WIDE.get(f.type, f.type)) for f in EXAMPLE_SCHEMA]))
    coded = wide.set_column(5, "document_id", wide["document_id"].dictionary_encode())
    before, after = (
        rows_of_batch(each.combine_chunks().to_batches()[0]) for each in (plain, coded)
    )
    assert (after.hashes == before.hashes).all()
    assert before.documents is not None
    assert after.documents is not None
    assert before.documents.tolist() == after.documents.tolist()
    assert "input_ids is large_list<item: int32>, not list<item: uint16>" in after.wrong_columns
    assert len(after.wrong_columns) == len(EXAMPLE_SCHEMA)
    assert before.wrong_columns == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["accounts"].clear(), "an account of them in the manifest"),
        (lambda m: m["shards"][0].update(kind="dev"), "is of an unknown kind, 'dev'"),
        (lambda m: m["shards"][0].update(path="x.arrow"), "x.arrow is missing"),
        (lambda m: m["shards"][0].update(path="x.txt"), "is neither .arrow nor .tfrecord"),
        (lambda m: m["shards"][0].update(num_rows=10**30), "rows, but manifest.json says"),
        (lambda m: m["result"].update(max_seq_length="long"), "max_seq_length: Input should be"),
        (lambda m: m["result"].update(max_predictions=-1), "max_predictions: Input should be gr"),
        (lambda m: m["result"].update(objective=[]), "objective: Input should be 'sop', 'nsp'"),
        (lambda m: m.pop("shards"), "is not a manifest"),
        (lambda m: m["accounts"][0].update(total=-1), "came in, but"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_reported(
    change: Callable[[Any], object], told: str, copy: Path
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    del manifest["digest"]  # what changed is told even if somebody meant it
    (copy / "manifest.json").write_text(json.dumps(manifest))
    findings = findings_of(copy)
    assert any(told in f"{f.found}; {f.expected}" for f in findings if f.ok is False)
    assert next(f for f in findings if f.check == "layout").ok


@pytest.fixture
def corpus(tiny: Shards, tmp_path: Path) -> Path:
    """The folder of a copy of the corpus."""
    return shutil.copytree(Path(tiny.corpus).parent, tmp_path / "corpus")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"name": ["a"], "text": ["b"]}, "no readable Arrow file: KeyError"),
        ({"id": ["a", None], "text": ["b", "c"]}, "a document has no id or no text"),
        ({"id": ["a"], "text": pa.nulls(1)}, "a document has no id or no text"),
        ({"id": ["a"], "text": [["b"]]}, "id or text is not text"),
        ({"id": [b"\xff"], "text": ["b"]}, "id or text is not text"),
    ],
)
def test_a_shard_of_the_corpus_that_is_none_is_reported(
    columns: dict[str, Any], told: str, tiny: Shards, corpus: Path
) -> None:
    shard = next(corpus.glob("*.arrow"))
    write_arrow(pa.table(columns), str(shard))
    assert f"{shard}: {told}" in found(findings_of(tiny.folder, corpus=str(corpus)), "files")


def test_a_damaged_corpus_or_vocabulary_is_reported(
    tiny: Shards, corpus: Path, tmp_path: Path
) -> None:
    (corpus / "manifest.json").write_text("{}")
    (tmp_path / "spiece.model").write_bytes(b"no model")
    findings = findings_of(tiny.folder, corpus=str(corpus), vocab=str(tmp_path))
    assert "corpus/manifest.json is not a manifest" in found(findings, "files")
    assert "the vocabulary is no SentencePiece model" in found(findings, "files")
    findings = findings_of(tiny.folder, corpus=str(tiny.folder))
    assert "has no shards of documents: it is no corpus" in found(findings, "files")


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.tfrecord", b"no records"), ("x.tfrecord", b""), ("manifest.json", b"")],
)
def test_the_status_is_1_when_no_file_can_be_read(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["audit", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--corpus", "nowhere"],
        ["--vocab", "nowhere"],
        ["--vocab", "EMPTY"],
        ["--corpus", "s4://nowhere"],
        ["EMPTY"],
        ["nowhere.arrow"],
        ["nowhere/manifest.json"],
    ],
)
def test_the_status_is_2_when_what_is_named_is_not_there(
    options: list[str], tiny: Shards, tmp_path: Path
) -> None:
    named = [option.replace("EMPTY", str(tmp_path)) for option in options]
    assert main(["audit", str(tiny.folder), "--sample", "9"]) == 0
    assert main(["audit", str(tiny.folder), *named]) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--max-seq-length", "-1"],
        ["--objective", "nap"],
        ["--max-unknown-share", "nan"],
        ["--sample", "x"],
        ["--max-ngram", "999"],
    ],
)
def test_the_status_is_2_when_an_option_is_out_of_its_range(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path), *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_an_option_may_be_0(tiny: Shards) -> None:
    assert failed(findings_of(tiny.folder, {"masked_lm_prob": 0}))
