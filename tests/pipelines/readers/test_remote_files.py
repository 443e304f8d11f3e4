"""Files on S3 and HTTP servers that run."""

import gzip
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_core.stage import storage
from pipelines.config import SourceSettings
from pipelines.readers import can_split, format_of, read_documents
from tests.generated_text import document
from tests.pipelines.readers.conftest import RangeHandler
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    Read,
    ids,
    json_lines,
    needs,
    read,
    reasons,
    split,
    texts,
)

TEXTS = [document(number) for number in range(3000)]
LINES = json_lines(*({"id": n, "text": text} for n, text in enumerate(TEXTS)))
"""Some 5 MB."""


def read_cut(uri: str, cuts: list[int]) -> Read:
    edges: list[int | None] = [0, *cuts, None]
    return [
        record
        for begin, end in pairwise(edges)
        for record in read_documents(uri, "x", SourceSettings(), "jsonl", begin or 0, end)
    ]


def test_lines_on_s3_are_read_whole_and_in_ranges(s3: str) -> None:
    storage.write_bytes(f"{s3}/a.jsonl", LINES)
    assert texts(read(f"{s3}/a.jsonl")) == TEXTS
    assert can_split(f"{s3}/a.jsonl", "jsonl")
    cut = read_cut(f"{s3}/a.jsonl", [1, 1_000_000, 1_000_001, 4_000_000, 99_000_000])
    assert cut == read(f"{s3}/a.jsonl", name="x")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_packed_files_on_s3_are_read(s3: str, ending: str) -> None:
    storage.write_bytes(f"{s3}/a.jsonl{ending}", PACKERS[ending](LINES))
    assert texts(read(f"{s3}/a.jsonl{ending}")) == TEXTS
    assert not can_split(f"{s3}/a.jsonl{ending}", "jsonl")


def test_a_truncated_file_on_s3_gives_what_comes_before(s3: str) -> None:
    packed = gzip.compress(LINES)
    storage.write_bytes(f"{s3}/cut.jsonl.gz", packed[: len(packed) // 2])
    good, [bad] = split(read(f"{s3}/cut.jsonl.gz"))
    assert [each.text for each in good] == TEXTS[: len(good)]
    assert len(good) > 1000
    assert bad.reason == "truncated_archive"


def test_parquet_on_s3_is_read(s3: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=500)
    storage.write_bytes(f"{s3}/a.parquet", (tmp_path / "a.parquet").read_bytes())
    assert texts(read(f"{s3}/a.parquet")) == TEXTS


def test_an_object_that_is_gone_is_reported(s3: str) -> None:
    assert reasons(read(f"{s3}/gone.txt", "text")) == ["not_readable"]
    with pytest.raises(OSError, match=r"gone|exist|Not Found"):
        format_of(f"{s3}/gone.txt", SourceSettings())


@needs("wiki_extracted")
@needs("warc")
def test_real_files_on_s3_are_read_as_on_disk(s3: str) -> None:
    for name in ("wiki_extracted/kowiki2022/AA/wiki_00", "novels.jsonl.gz"):
        storage.write_bytes(f"{s3}/{name}", (CORPORA / name).read_bytes())
        assert texts(read(f"{s3}/{name}")) == texts(read(CORPORA / name))


def test_a_server_with_ranges_gives_whole_files_and_ranges(
    http_ranges: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    uri = f"{http_ranges}/a.jsonl"
    assert can_split(uri, "jsonl")
    assert texts(read(uri)) == TEXTS
    assert read_cut(uri, [1, 1_000_000, 4_000_000]) == read(uri, name="x")


def test_of_a_range_on_a_server_little_more_is_asked_for(http_ranges: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES * 4)
    RangeHandler.num_bytes_sent = 0
    begin = len(LINES) * 2 + 1000
    uri = f"{http_ranges}/a.jsonl"
    assert list(read_documents(uri, "x", SourceSettings(), "jsonl", begin, begin + 100_000))
    assert RangeHandler.num_bytes_sent < 8 << 20


def test_a_server_without_ranges_gives_whole_files_only(http_plain: str, tmp_path: Path) -> None:
    content = LINES * 2  # more than is fetched at a time
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    assert not can_split(f"{http_plain}/a.jsonl", "jsonl")
    assert texts(read(f"{http_plain}/a.jsonl")) == TEXTS * 2
    assert texts(read(f"{http_plain}/a.jsonl.gz")) == TEXTS * 2
    (tmp_path / "a.txt").write_bytes(b"Some text.")
    assert format_of(f"{http_plain}/a.txt", SourceSettings()) == "text"
    assert ids(read(f"{http_plain}/a.txt")) == ["a.txt"]


def test_parquet_needs_ranges(http_plain: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    assert reasons(read(f"{http_plain}/a.parquet")) == ["not_readable"]


def test_parquet_on_a_server_with_ranges_is_read(http_ranges: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    assert texts(read(f"{http_ranges}/a.parquet")) == TEXTS


def test_a_page_that_is_gone_is_reported(http_plain: str) -> None:
    assert reasons(read(f"{http_plain}/gone.txt", "text")) == ["not_readable"]


def test_a_server_that_breaks_off_is_reported_after_the_documents_before(
    http_stopping: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES * 2)
    good, [bad] = split(read(f"{http_stopping}/a.jsonl"))
    assert [each.text for each in good] == (TEXTS * 2)[: len(good)]
    assert len(good) > 1500
    assert bad.reason == "not_readable"
