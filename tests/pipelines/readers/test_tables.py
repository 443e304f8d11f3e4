"""JSON lines and Parquet files, whole and broken."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_core.text.records import Document
from pipelines.readers import Unreadable
from pipelines.readers.record import MAX_CONTENT_BYTES
from tests.generated_text import document
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    documents,
    ids,
    json_lines,
    needs,
    read,
    read_content,
    reasons,
    split,
    texts,
)

# JSON lines


@pytest.mark.parametrize("ending", ["", *PACKERS])
def test_json_lines_are_documents_by_their_ids(tmp_path: Path, ending: str) -> None:
    content = json_lines({"id": "a", "text": "One."}, {"id": 7, "text": "Two.", "url": "x"})
    packed = PACKERS[ending](content) if ending else content
    records = read_content(tmp_path, f"d.jsonl{ending}", packed)
    uri = str(tmp_path / f"d.jsonl{ending}")
    assert records == [
        Document(f"d.jsonl{ending}#a", "One.", uri),
        Document(f"d.jsonl{ending}#7", "Two.", uri),
    ]


def test_another_field_can_hold_the_text_and_another_the_id(tmp_path: Path) -> None:
    content = json_lines({"content": "One.", "url": "u/1", "text": "no"})
    records = read_content(tmp_path, "a.jsonl", content, text_field="content", id_field="url")
    assert ids(records) == ["a.jsonl#u/1"]
    assert texts(records) == ["One."]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{broken", "not_json"),
        (b'{"text": "\xff"}', "not_utf8"),
        (b'{"text": "\xed\xa0\x80"}', "not_utf8"),
        (b'{"title": "no text"}', "no_text_field"),
        (b'{"text": 5}', "no_text_field"),
        (b'{"text": null}', "no_text_field"),
        (b'["text"]', "no_text_field"),
        (b"[" * 100_000, "not_json"),
        (b'{"text": "T.", "n": ' + b"1" * 5000 + b"}", "not_json"),
        (b"\x00\x01", "not_json"),
    ],
    ids=lambda value: value[:12] if isinstance(value, bytes) else value,
)
def test_a_bad_line_is_reported_with_its_place_and_ends_nothing(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    before = json_lines({"text": "Before."})
    content = before + line + b"\n" + json_lines({"text": "After."})
    first, bad, last = read_content(tmp_path, "a.jsonl", content)
    assert texts([first, last]) == ["Before.", "After."]
    kept = (line + b"\n")[:MAX_CONTENT_BYTES]
    assert bad == Unreadable(str(tmp_path / "a.jsonl"), len(before), reason, kept)


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    content = b"\n" + json_lines({"text": "One."}) + b"  \r\n" + json_lines({"text": "Two."})
    records = read_content(tmp_path, "a.jsonl", content + b"\n")
    assert ids(records) == ["a.jsonl#@1", "a.jsonl#@22"]


def test_a_last_line_without_an_end_is_a_record(tmp_path: Path) -> None:
    content = json_lines({"text": "One."}, {"text": "Two."}).rstrip()
    assert texts(read_content(tmp_path, "a.jsonl", content)) == ["One.", "Two."]


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    content = b'{"id": "\\ud800", "text": "a\\ud800 \\ud83d\\ude00"}\n'
    [record] = read_content(tmp_path, "x.jsonl", content)
    assert record == Document("x.jsonl#?", "a? 😀", str(tmp_path / "x.jsonl"))


def test_repeated_ids_are_left_to_others(tmp_path: Path) -> None:
    content = json_lines(*({"id": key, "text": "T."} for key in "aba"))
    assert ids(read_content(tmp_path, "x.jsonl", content)) == [f"x.jsonl#{key}" for key in "aba"]


def test_zero_is_an_id_like_any_other(tmp_path: Path) -> None:
    content = json_lines({"id": 5, "text": "T."}, {"id": 0, "text": "T."})
    assert ids(read_content(tmp_path, "x.jsonl", content)) == ["x.jsonl#5", "x.jsonl#0"]


def test_an_empty_id_is_none(tmp_path: Path) -> None:
    content = json_lines({"id": "", "text": "T."}, {"id": None, "text": "T."})
    assert ids(read_content(tmp_path, "x.jsonl", content)) == ["x.jsonl#@0", "x.jsonl#@25"]


@needs("jsonl_dolma")
@pytest.mark.parametrize("name", ["cc_en_head-0091.jsonl", "cc_en_head-0174.jsonl"])
def test_a_packed_file_of_dolma_holds_the_documents_of_the_plain_one(name: str) -> None:
    plain, packed = (
        read(CORPORA / "jsonl_dolma" / file, name=name) for file in (name, f"{name}.gz")
    )
    assert texts(plain) == texts(packed)
    assert ids(plain) == ids(packed)
    assert plain


# Parquet

TEXTS = [document(number) for number in range(300)]


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_rows_are_documents_by_their_ids(tmp_path: Path, compression: str) -> None:
    columns = {"id": [f"d{n}" for n in range(300)], "text": TEXTS, "other": [{"a": 1}] * 300}
    path = write(tmp_path / "a.parquet", columns, compression=compression, row_group_size=70)
    records = read(path)
    assert texts(records) == TEXTS
    assert ids(records) == [f"a.parquet#d{n}" for n in range(300)]


def test_rows_without_an_id_are_known_by_their_number(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.parquet", {"text": TEXTS}, row_group_size=70))
    assert ids(records) == [f"a.parquet#row-{n}" for n in range(300)]
    mixed = write(tmp_path / "b.parquet", {"text": TEXTS[:3], "id": [7, None, 9]})
    assert ids(read(mixed)) == ["b.parquet#7", "b.parquet#row-1", "b.parquet#9"]


def test_other_columns_can_hold_the_text_and_the_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"content": ["One."], "url": ["u/1"], "text": ["no"]})
    records = read(path, text_field="content", id_field="url")
    assert (ids(records), texts(records)) == (["a.parquet#u/1"], ["One."])
    same = read(path, text_field="content", id_field="content")
    assert ids(same) == ["a.parquet#One."]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_can_be_any_kind_of_string(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["Größe.", "Two.", "Two."]).cast(kind)
    records = read(write(tmp_path / "a.parquet", {"text": column}))
    assert texts(records) == ["Größe.", "Two.", "Two."]


@pytest.mark.parametrize("columns", [{"body": ["T."]}, {"text": [5]}, {"text": [["T."]]}])
def test_a_file_without_a_text_column_is_reported_once(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    path = write(tmp_path / "a.parquet", columns)
    assert read(path) == [Unreadable(str(path), 0, "no_text_field", b"")]


def test_bad_rows_are_reported_and_end_nothing(tmp_path: Path) -> None:
    column = pa.array([b"One.", None, b"\xff", b"x" * 2000, b"Two."])
    path = write(tmp_path / "a.parquet", {"text": column})
    good, bad = split(read(path, max_document_mb=0.001))
    assert [each.id for each in good] == ["a.parquet#row-0", "a.parquet#row-4"]
    assert [(each.offset, each.reason, each.content) for each in bad] == [
        (1, "no_text_field", b""),
        (2, "not_utf8", b"\xff"),
        (3, "too_large", b"x" * 2000),
    ]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_reported(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "a.parquet", {"text": TEXTS})
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert read(path) == [Unreadable(str(path), 0, "not_parquet", b"")]


def test_of_a_damaged_file_the_rows_before_the_damage_are_read(tmp_path: Path) -> None:
    columns = {"text": TEXTS}
    path = write(tmp_path / "a.parquet", columns, row_group_size=50, use_dictionary=False)
    content = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(3).column(0).data_page_offset
    content[middle : middle + 3000] = b"\xff" * 3000
    path.write_bytes(content)
    records = read(path)
    assert texts(records[:150]) == TEXTS[:150]
    assert [(r.reason, r.offset) for r in records[150:] if isinstance(r, Unreadable)] == [
        ("not_parquet", 150)
    ]


def test_a_file_that_is_no_parquet_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"{}\n" * 100)
    assert reasons(read(tmp_path / "a.parquet")) == ["not_parquet"]


def test_a_packed_file_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["T."]})
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert reasons(read(tmp_path / "b.parquet.gz")) == ["not_parquet"]


def test_an_empty_table_has_no_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": pa.array([], pa.string())})
    assert documents(read(path)) == []
