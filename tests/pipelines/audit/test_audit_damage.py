"""Shards damaged in every way that comes to mind: the auditor reports them and goes on."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import EXAMPLE_SCHEMA, OTHER_DOCUMENT_FIELDS
from flows.commands.main import main
from pipelines.audit import audit_examples
from pipelines.audit.checks import Finding
from pipelines.audit.rows import rows_of_table
from pipelines.examples.tfrecord import TFExample, read_tfrecord, write_tfrecord
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import EXAMPLES, Made, make

Values = dict[str, Any]
Bytes = bytes | bytearray
RowChange = Callable[[Values, Random], None]
RowsChange = Callable[[list[Values], Random], None]
TableChange = Callable[[pa.Table, Random], pa.Table]
RecordChange = Callable[[Any, Random], None]
BytesChange = Callable[[bytearray, Random], Bytes]
NUM_DAMAGES = 200
LENGTH = {"max_seq_length": EXAMPLES.max_seq_length}


@dataclass(frozen=True)
class Tiny:
    """The examples of a few documents: file name -> content, and what they were made of."""

    files: dict[str, bytes]
    corpus: str
    vocab: str

    @property
    def options(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "vocab": self.vocab, "sample": 20}

    def written(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder


@pytest.fixture(scope="module")
def tiny(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "source").mkdir()
    write_jsonl(folder / "source" / "0.jsonl", range(6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALBERT_WORKERS", "1")
        few = make(folder / "source", folder / "work", made)
    names = ("manifest.json", "*.arrow", "*.tfrecord")
    found = [path for name in names for path in Path(few.examples).parent.glob(name)]
    return Tiny({path.name: path.read_bytes() for path in found}, few.corpus, few.vocab)


@pytest.fixture(autouse=True)
def files_need_not_outlive_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def findings_of(path: str, expected: Any = None, **options: Any) -> list[Finding]:
    return audit_examples.audit(audit_examples.find_sources([path], expected=expected, **options))


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.ok is False}


ROWS: dict[str, RowChange] = {}
"""Changes of one row that break the format."""
TABLES: dict[str, TableChange] = {}
"""Changes of the columns that break the format."""
SILENT: dict[str, RowsChange] = {}
"""Changes of rows that leave good rows: a manifest's digest tells them, or the corpus."""
RECORDS: dict[str, RecordChange] = {}
"""Changes of a record's features that break the format."""
BYTES: dict[str, BytesChange] = {}
"""Changes of any file."""


def put(name: str, column: str, value: Callable[[Values, Random], Any]) -> None:
    def change(row: Values, random: Random) -> None:
        row[column] = value(row, random)

    ROWS[name] = change


def put_in(name: str, column: str, value: Callable[[Values, Random], Any]) -> None:
    def change(row: Values, random: Random) -> None:
        row[column][random.randrange(len(row[column]))] = value(row, random)

    ROWS[name] = change


for _column in EXAMPLE_SCHEMA.names:
    put(f"null {_column}", _column, lambda row, random: None)
for _column in ("input_ids", "masked_lm_positions", "masked_lm_labels"):
    put(f"empty {_column}", _column, lambda row, random: [])
    put_in(f"null in {_column}", _column, lambda row, random: None)
    put_in(f"negative in {_column}", _column, lambda row, random: -random.randint(1, 1 << 40))
    put_in(f"huge in {_column}", _column, lambda row, random: random.choice([1 << 31, 1 << 62]))
for _column in ("segment_b_start", "first_sentence", "last_sentence", "copy"):
    put(f"negative {_column}", _column, lambda row, random: -random.randint(1, 9))
put_in("id out of the vocabulary", "input_ids", lambda row, random: random.randint(150, 65535))
put_in("label out of the vocabulary", "masked_lm_labels", lambda row, random: 60_000)
put_in("position outside", "masked_lm_positions", lambda row, random: len(row["input_ids"]))
put_in("[SEP] somewhere", "masked_lm_positions", lambda row, random: 0)
put("positions reversed", "masked_lm_positions", lambda row, _: row["masked_lm_positions"][::-1])
put("a position less", "masked_lm_positions", lambda row, _: row["masked_lm_positions"][:-1])
put("a label more", "masked_lm_labels", lambda row, _: [*row["masked_lm_labels"], 9])
put("label 2", "sentence_order_label", lambda row, random: random.randint(2, 255))
put("label -1", "sentence_order_label", lambda row, random: -1)
put("b begins too early", "segment_b_start", lambda row, random: random.randint(0, 2))
put("b begins beyond", "segment_b_start", lambda row, random: len(row["input_ids"]) + 1)
put("first after last", "first_sentence", lambda row, random: row["last_sentence"] + 1)
put("one piece", "input_ids", lambda row, random: row["input_ids"][:1])
put("too long", "input_ids", lambda row, random: row["input_ids"] * random.randint(2, 2000))
put("padding", "input_ids", lambda row, random: [*row["input_ids"], 0])
put("no [CLS]", "input_ids", lambda row, random: [9, *row["input_ids"][1:]])
put("no [SEP]", "input_ids", lambda row, random: [*row["input_ids"][:-1], 9])


def table_change(change: TableChange) -> TableChange:
    TABLES[change.__name__] = change
    return change


def some(random: Random) -> int:
    return random.randrange(len(EXAMPLE_SCHEMA))


def with_column(table: pa.Table, at: int, column: pa.Array) -> pa.Table:
    return table.set_column(at, table.column_names[at], column)


@table_change
def dropped(table: pa.Table, random: Random) -> pa.Table:
    return table.remove_column(some(random))


@table_change
def renamed(table: pa.Table, random: Random) -> pa.Table:
    at = some(random)
    return table.rename_columns([n + "s" * (i == at) for i, n in enumerate(table.column_names)])


@table_change
def added(table: pa.Table, random: Random) -> pa.Table:
    return table.append_column(random.choice(["more", "\x1b", ""]), table[some(random)])


@table_change
def twice(table: pa.Table, random: Random) -> pa.Table:
    at = some(random)
    return table.append_column(table.column_names[at], table[at])


@table_change
def no_columns(table: pa.Table, random: Random) -> pa.Table:
    return table.select([])


@table_change
def of_strings(table: pa.Table, random: Random) -> pa.Table:
    at = random.choice([0, 1, 2, 3, 4, 6, 7, 8])
    return with_column(table, at, pa.array(map(str, table[at].to_pylist())))


@table_change
def of_floats(table: pa.Table, random: Random) -> pa.Table:
    at = random.choice([1, 4, 6, 7, 8])
    half = random.choice([0.0, 0.5, float("nan")])
    return with_column(table, at, pa.array([n + half for n in table[at].to_pylist()]))


@table_change
def of_wide_numbers(table: pa.Table, random: Random) -> pa.Table:
    at = random.choice([0, 1, 2, 3, 4, 6, 7, 8])
    is_list = pa.types.is_list(table[at].type)
    wide = random.choice([pa.int32(), pa.int64(), pa.uint64()])
    return with_column(table, at, table[at].cast(pa.list_(wide) if is_list else wide))


@table_change
def of_large_lists(table: pa.Table, random: Random) -> pa.Table:
    return with_column(table, 0, table[0].cast(pa.large_list(pa.uint16())))


@table_change
def nested(table: pa.Table, random: Random) -> pa.Table:
    at = some(random)
    return with_column(table, at, pa.array([[value] for value in table[at].to_pylist()]))


@table_change
def flattened(table: pa.Table, random: Random) -> pa.Table:
    at = random.choice([0, 2, 3])
    return with_column(table, at, pa.array([row[0] for row in table[at].to_pylist()]))


@table_change
def dictionary_encoded(table: pa.Table, random: Random) -> pa.Table:
    at = random.choice([1, 4, 5, 6, 7, 8])
    return with_column(table, at, table[at].dictionary_encode())


@table_change
def binary(table: pa.Table, random: Random) -> pa.Table:
    values = [random.choice([b"\xff", b"x"]) for _ in range(len(table))]
    return with_column(table, some(random), pa.array(values, pa.binary()))


@table_change
def nulls(table: pa.Table, random: Random) -> pa.Table:
    return with_column(table, some(random), pa.nulls(len(table)))


@table_change
def half_of_the_other_document(table: pa.Table, random: Random) -> pa.Table:
    name, of = random.choice(OTHER_DOCUMENT_FIELDS)
    return table.append_column(name, pa.nulls(len(table), of))


@table_change
def other_documents_without_sentences(table: pa.Table, random: Random) -> pa.Table:
    for name, of in OTHER_DOCUMENT_FIELDS:
        column = table["document_id"] if name == "other_document_id" else pa.nulls(len(table), of)
        table = table.append_column(name, column)
    return table


def silent(change: RowsChange) -> RowsChange:
    SILENT[change.__name__] = change
    return change


@silent
def rows_dropped(rows: list[Values], random: Random) -> None:
    del rows[: random.randint(1, 9)]


@silent
def rows_twice(rows: list[Values], random: Random) -> None:
    rows += rows[: random.randint(1, 9)]


@silent
def rows_in_another_order(rows: list[Values], random: Random) -> None:
    rows.reverse()


@silent
def no_rows(rows: list[Values], random: Random) -> None:
    rows.clear()


@silent
def sentences_that_are_not_there(rows: list[Values], random: Random) -> None:
    rows[0].update(first_sentence=900, last_sentence=901)


@silent
def document_that_is_not_there(rows: list[Values], random: Random) -> None:
    rows[0]["document_id"] = random.choice(["", "no such\x00document"])


@silent
def label_flipped(rows: list[Values], random: Random) -> None:
    rows[0]["sentence_order_label"] = 1 - rows[0]["sentence_order_label"]


@silent
def another_copy(rows: list[Values], random: Random) -> None:
    rows[0]["copy"] = 999


@silent
def another_piece(rows: list[Values], random: Random) -> None:
    ids = rows[0]["input_ids"]
    ids[5] = 40 + (ids[5] == 40)


def feature(change: RecordChange) -> RecordChange:
    RECORDS[change.__name__] = change
    return change


def ints(features: Any, name: str) -> Any:
    return features[name].int64_list.value


INT_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids")


@feature
def feature_gone(features: Any, random: Random) -> None:
    del features[random.choice([*INT_FEATURES, "masked_lm_weights", "next_sentence_labels"])]


@feature
def feature_empty(features: Any, random: Random) -> None:
    del ints(features, random.choice([*INT_FEATURES, "token_boundary", "next_sentence_labels"]))[:]


@feature
def feature_of_floats(features: Any, random: Random) -> None:
    values = ints(features, name := random.choice(INT_FEATURES))
    floats = list(map(float, values))
    features[name].Clear()
    features[name].float_list.value.extend(floats)


@feature
def feature_of_bytes(features: Any, random: Random) -> None:
    features[random.choice(INT_FEATURES)].ParseFromString(b"\x0a\x03\x0a\x01x")


@feature
def feature_shorter(features: Any, random: Random) -> None:
    ints(features, random.choice([*INT_FEATURES, "token_boundary"])).pop()


@feature
def feature_longer(features: Any, random: Random) -> None:
    ints(features, random.choice([*INT_FEATURES, "next_sentence_labels"])).append(1)


@feature
def feature_negative(features: Any, random: Random) -> None:
    values = ints(features, random.choice(INT_FEATURES))
    values[random.randrange(len(values))] = -random.randint(1, 1 << 62)


@feature
def feature_huge(features: Any, random: Random) -> None:
    values = ints(features, random.choice([*INT_FEATURES, "next_sentence_labels"]))
    values[random.randrange(len(values))] = random.choice([1 << 16, 1 << 31, (1 << 63) - 1])


@feature
def weights_of_no_number(features: Any, random: Random) -> None:
    features["masked_lm_weights"].float_list.value[0] = random.choice([float("nan"), -1.0, 1e38])


@feature
def all_zero(features: Any, random: Random) -> None:
    values = ints(features, "input_ids")
    values[:] = [0] * len(values)


def bytes_change(change: BytesChange) -> BytesChange:
    BYTES[change.__name__] = change
    return change


@bytes_change
def bits_flipped(content: bytearray, random: Random) -> Bytes:
    for _ in range(random.choice([1, 1, 1, 8, 100])):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return content


@bytes_change
def frame_flipped(content: bytearray, random: Random) -> Bytes:
    """Where an Arrow file has its schema, the places of its buffers and its footer."""
    for _ in range(random.randint(1, 3)):
        content[random.randint(-2500, 1500) % len(content)] ^= 1 << random.randrange(8)
    return content


@bytes_change
def truncated(content: bytearray, random: Random) -> Bytes:
    return content[: random.randrange(len(content))]


@bytes_change
def swapped(content: bytearray, random: Random) -> Bytes:
    middle = random.randrange(1, len(content))
    return content[middle:] + content[:middle]


@bytes_change
def zeros_inside(content: bytearray, random: Random) -> Bytes:
    begin = random.randrange(len(content))
    end = min(len(content), begin + random.choice([64, 4096]))
    content[begin:end] = bytes(end - begin)
    return content


@bytes_change
def cut_inside(content: bytearray, random: Random) -> Bytes:
    begin = random.randrange(len(content))
    return content[:begin] + content[begin + random.choice([1, 8, 4096]) :]


@bytes_change
def replaced(content: bytearray, random: Random) -> Bytes:
    others = [b"", b"\0", bytes(len(content)), random.randbytes(len(content)), b"ARROW1\0\0ARROW1"]
    return random.choice([*others, b"{}", b"[[[", "Text, und noch eins: ß\n".encode() * 99])


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


def spoil_row(path: Path, change: RowChange, random: Random) -> None:
    spoil_rows(path, lambda rows, random: change(random.choice(rows), random), random)


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


FORMAT_DAMAGES = [
    *((".arrow", spoil_row, change) for change in ROWS.values()),
    *((".arrow", spoil_table, change) for change in TABLES.values()),
    *((".tfrecord", spoil_record, change) for change in RECORDS.values()),
]
DAMAGES = [
    *FORMAT_DAMAGES,
    *((".arrow", spoil_rows, change) for change in SILENT.values()),
    *((of, spoil_bytes, change) for change in BYTES.values() for of in (".arrow", ".tfrecord") * 3),
]


def test_good_shards_pass(tiny: Tiny, tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "x")
    findings = findings_of(str(folder))
    assert failed(findings) == set()
    assert [finding for finding in findings if finding.ok is None] == []


def test_hundreds_of_damages_are_all_reported(tiny: Tiny, tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "x")
    missed = []
    for number in range(NUM_DAMAGES):
        random = Random(number)
        of, spoil, change = DAMAGES[number % len(DAMAGES)]
        path = folder / random.choice([name for name in sorted(tiny.files) if name.endswith(of)])
        spoil(path, change, random)
        if not failed(findings_of(str(folder), **tiny.options)):
            missed.append((number, path.name, change))
        path.write_bytes(tiny.files[path.name])
    assert missed == []


@pytest.mark.parametrize("number", range(len(FORMAT_DAMAGES)))
def test_what_breaks_the_format_is_reported_without_a_manifest(
    number: int, tiny: Tiny, tmp_path: Path
) -> None:
    of, spoil, change = FORMAT_DAMAGES[number]
    name = next(name for name in sorted(tiny.files) if name.endswith(of) and "train" in name)
    path = tmp_path / name
    path.write_bytes(tiny.files[name])
    spoil(path, change, Random(number))
    assert failed(findings_of(str(path), LENGTH, vocab=tiny.vocab)), change


def test_damaged_bytes_without_a_manifest_do_no_harm(tiny: Tiny, tmp_path: Path) -> None:
    for number, change in enumerate(list(BYTES.values()) * 5):
        folder = tiny.written(tmp_path / "x")
        (folder / "manifest.json").unlink()
        for path in sorted(folder.iterdir()):
            spoil_bytes(path, change, Random(number))
        assert findings_of(str(folder), LENGTH)


def arrow(folder: Path, kind: str = "train") -> Path:
    return next(folder.glob(f"{kind}*.arrow"))


def found(findings: list[Finding], check: str) -> str:
    """Return what the failed lines of ``check`` say."""
    return "\n".join(f.found for f in findings if f.check == check and f.ok is False)


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_audited(
    tiny: Tiny, tmp_path: Path
) -> None:
    folder = tiny.written(tmp_path / "x")
    arrow(folder).write_bytes(b"nothing")
    findings = findings_of(str(folder))
    assert f"{arrow(folder).name}: no readable Arrow file: ArrowInvalid" in found(findings, "files")
    assert next(f for f in findings if f.check == "layout").ok


def test_a_column_s_name_that_is_no_text_is_told(tiny: Tiny, tmp_path: Path) -> None:
    path = arrow(tiny.written(tmp_path / "x"))
    path.write_bytes(path.read_bytes().replace(b"sentence_order_label", b"sentence\xfforder_label"))
    assert "names of the columns: UnicodeDecodeError" in found(findings_of(str(path)), "files")


def test_rows_that_lack_a_value_are_counted_and_left_out(tiny: Tiny, tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "x")

    def spoil(rows: list[Values], _: Random) -> None:
        rows[0]["first_sentence"] = rows[1]["sentence_order_label"] = None
        rows[2]["input_ids"][3] = rows[3]["masked_lm_labels"] = None
        rows[4]["last_sentence"] = 0
        rows[4]["first_sentence"] = 1

    spoil_rows(arrow(folder), spoil, Random(0))
    findings = findings_of(str(folder))
    total = len(read_arrow(str(arrow(folder)))) + len(read_arrow(str(arrow(folder, "held_out"))))
    assert found(findings, "values").startswith(f"5 of {total} rows")
    assert failed(findings) == {"files", "values", "Arrow and TFRecord"}


def test_columns_of_another_width_are_read_alike_and_told(tiny: Tiny, tmp_path: Path) -> None:
    plain = read_arrow(str(arrow(tiny.written(tmp_path / "x"))))
    wide = plain.cast(
        pa.schema([(f.name, WIDE.get(f.type, f.type)) for f in EXAMPLE_SCHEMA]),
    ).combine_chunks()
    coded = wide.set_column(5, "document_id", wide["document_id"].dictionary_encode())
    before, after = rows_of_table(plain), rows_of_table(coded.slice(3))
    assert (after.hashes == before.hashes[3:]).all()
    assert before.documents is not None
    assert after.documents is not None
    assert np.array_equal(after.documents, before.documents[3:])
    assert "input_ids is large_list<item: int32>, not list<item: uint16>" in after.wrong_columns
    assert len(after.wrong_columns) == len(EXAMPLE_SCHEMA)
    assert before.wrong_columns == ()


WIDE = {
    pa.list_(pa.uint16()): pa.large_list(pa.int32()),
    pa.uint16(): pa.int64(),
    pa.uint8(): pa.int8(),
    pa.uint32(): pa.uint64(),
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["accounts"].clear(), "an account of them in the manifest"),
        (lambda m: m["shards"][0].update(kind="dev"), "is of an unknown kind, 'dev'"),
        (lambda m: m["shards"][0].update(path="x.arrow"), "x.arrow is missing"),
        (lambda m: m["shards"][0].update(path="x.txt"), "is neither .arrow nor .tfrecord"),
        (lambda m: m["shards"][0].update(num_rows=10**30), "rows, but manifest.json says"),
        (lambda m: m["facts"].update(max_seq_length="long"), "max_seq_length: Input should be"),
        (lambda m: m["facts"].update(max_predictions=-1), "max_predictions: Input should be gr"),
        (lambda m: m["facts"].update(objective=[]), "objective: Input should be 'sop', 'nsp'"),
        (lambda m: m.pop("shards"), "is not a manifest"),
        (lambda m: m["accounts"][0].update(total=-1), "came in, but"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_told(
    change: Callable[[Any], object], told: str, tiny: Tiny, tmp_path: Path
) -> None:
    folder = tiny.written(tmp_path / "x")
    manifest = json.loads(tiny.files["manifest.json"])
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    findings = findings_of(str(folder))
    assert any(told in f"{f.found}; {f.expected}" for f in findings if f.ok is False)
    assert next(f for f in findings if f.check == "layout").ok


def corpus_copy(tiny: Tiny, folder: Path) -> Path:
    shutil.copytree(Path(tiny.corpus).parent, folder)
    return next(folder.glob("*.arrow"))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"name": ["a"], "text": ["b"]}, "no readable Arrow file: KeyError"),
        ({"id": ["a", None], "text": ["b", "c"]}, "a document has no id or no text"),
        ({"id": ["a"], "text": pa.nulls(1)}, "a document has no id or no text"),
        ({"id": ["a"], "text": [["b"]]}, "id or text is no text"),
        ({"id": [b"\xff"], "text": ["b"]}, "id or text is no text"),
    ],
)
def test_a_shard_of_the_corpus_that_is_none_is_told(
    columns: dict[str, Any], told: str, tiny: Tiny, tmp_path: Path
) -> None:
    folder, corpus = tiny.written(tmp_path / "x"), corpus_copy(tiny, tmp_path / "corpus")
    write_arrow(pa.table(columns), str(corpus))
    findings = findings_of(str(folder), corpus=str(corpus.parent))
    assert f"{corpus}: {told}" in found(findings, "files")


def test_a_damaged_corpus_or_vocabulary_is_told(tiny: Tiny, tmp_path: Path) -> None:
    folder, corpus = tiny.written(tmp_path / "x"), corpus_copy(tiny, tmp_path / "corpus")
    (corpus.parent / "manifest.json").write_text("{}")
    (tmp_path / "spiece.model").write_bytes(b"no model")
    options = {"corpus": str(corpus.parent), "vocab": str(tmp_path)}
    told = found(findings_of(str(folder), **options), "files")
    assert "corpus/manifest.json is not a manifest" in told
    assert "the vocabulary is no SentencePiece model" in told
    told = found(findings_of(str(folder), corpus=str(folder)), "files")
    assert "has no shards of documents: it is no corpus" in told


def test_the_status_is_1_when_no_file_can_be_read(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(b"no records")
    assert main(["audit", str(tmp_path / "x.tfrecord")]) == 1
    (tmp_path / "manifest.json").write_text("")
    assert main(["audit", str(tmp_path)]) == 1
    (tmp_path / "x.tfrecord").write_bytes(b"")
    (tmp_path / "manifest.json").unlink()
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
    options: list[str], tiny: Tiny, tmp_path: Path
) -> None:
    folder = tiny.written(tmp_path / "x")
    (tmp_path / "empty").mkdir()
    named = [option.replace("EMPTY", str(tmp_path / "empty")) for option in options]
    assert main(["audit", str(folder), "--sample", "9"]) == 0
    assert main(["audit", str(folder), *named]) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--max-seq-length", "-1"],
        ["--objective", "nap"],
        ["--z", "nan"],
        ["--sample", "x"],
        ["--max-ngram", "999"],
    ],
)
def test_the_status_is_2_when_an_option_is_out_of_its_range(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path), *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_an_option_may_be_0(tiny: Tiny, tmp_path: Path) -> None:
    folder = str(tiny.written(tmp_path / "x"))
    assert failed(findings_of(folder, {"run_tolerance": 0, "z": 0}))
