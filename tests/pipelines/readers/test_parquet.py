"""Parquet files, whole and broken."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.readers import Unreadable
from tests.generated_text import document
from tests.pipelines.readers.reading import documents, ids, read, reasons, split, texts

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
    import gzip

    path = write(tmp_path / "a.parquet", {"text": ["T."]})
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert reasons(read(tmp_path / "b.parquet.gz")) == ["not_parquet"]


def test_an_empty_table_has_no_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": pa.array([], pa.string())})
    assert documents(read(path)) == []
