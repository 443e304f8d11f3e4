"""Packed files, whole and broken, and files on S3 and HTTP servers that run."""

import gzip
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import Unreadable, can_split, format_of, read_documents, source_bytes
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
    read_content,
    reasons,
    split,
    texts,
)


def lines_of(num_documents: int = 200) -> bytes:
    random = Random(0)
    rows = ({"text": document(n) + random.randbytes(99).hex()} for n in range(num_documents))
    return json_lines(*rows)


CONTENT = lines_of()


def test_every_ending_is_tested() -> None:
    assert set(source_bytes._MEMBERS) == set(PACKERS)


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.9, 0.9999])
@pytest.mark.parametrize("ending", PACKERS)
def test_of_a_truncated_file_the_documents_before_the_break_are_read(
    tmp_path: Path, ending: str, share: float
) -> None:
    packed = PACKERS[ending](CONTENT)
    cut = packed[: max(1, int(len(packed) * share))]
    good, [broken] = split(read_content(tmp_path, f"a.jsonl{ending}", cut))
    uri = str(tmp_path / f"a.jsonl{ending}")
    assert broken == Unreadable(uri, broken.offset, "truncated_archive", b"")
    whole = texts(read_content(tmp_path, "a.jsonl", CONTENT))
    assert [each.text for each in good] == whole[: len(good)]
    assert CONTENT.count(b"\n", 0, broken.offset) == len(good)
    if share > 0.8 and ending in (".gz", ".zst"):
        assert len(good) > 100  # not in blocks of 900 kB


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("ending", PACKERS)
def test_of_a_damaged_file_the_documents_before_the_break_are_read(
    tmp_path: Path, ending: str, at: float
) -> None:
    packed = bytearray(PACKERS[ending](CONTENT))
    begin = int(len(packed) * at)
    packed[begin : begin + 64] = b"\xff" * 64
    good, bad = split(read_content(tmp_path, f"a.jsonl{ending}", bytes(packed)))
    assert bad[-1].reason in ("corrupt_archive", "truncated_archive")
    # gzip checks at the end only, and may give some damaged text before that.
    whole = texts(read_content(tmp_path, "a.jsonl", CONTENT))
    num_sound = sum(each.text in whole for each in good)
    assert num_sound == len(good) or ending == ".gz"


@pytest.mark.parametrize("ending", PACKERS)
def test_a_file_that_is_not_packed_as_its_name_says_is_reported(
    tmp_path: Path, ending: str
) -> None:
    records = read_content(tmp_path, f"a.txt{ending}", b"plain text, and some more of it")
    assert reasons(records) == ["corrupt_archive"]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_an_archive_may_have_several_members_and_zeros_between(tmp_path: Path, ending: str) -> None:
    pack = PACKERS[ending]
    half = CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    packed = pack(CONTENT[:half]) + b"\x00" * 512 + pack(CONTENT[half:]) + b"\x00" * 8
    assert len(texts(read_content(tmp_path, f"a.jsonl{ending}", packed))) == 200


@pytest.mark.parametrize("ending", PACKERS)
def test_what_follows_an_archive_and_is_none_is_reported(tmp_path: Path, ending: str) -> None:
    packed = PACKERS[ending](CONTENT) + b"something else, of some length"
    good, bad = split(read_content(tmp_path, f"a.jsonl{ending}", packed))
    assert len(good) == 200
    assert [(each.offset, each.reason) for each in bad] == [(len(CONTENT), "corrupt_archive")]


def test_a_wrong_check_sum_is_reported_after_the_documents(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CONTENT))
    packed[-8:-4] = zlib.crc32(b"other").to_bytes(4, "little")
    good, [bad] = split(read_content(tmp_path, "a.jsonl.gz", bytes(packed)))
    assert bad.reason == "corrupt_archive"
    assert len(good) > 150  # the last 64 KiB are not given, as their sum is wrong


@pytest.mark.parametrize("ending", PACKERS)
def test_a_packed_text_that_breaks_off_is_no_document(tmp_path: Path, ending: str) -> None:
    packed = PACKERS[ending](document(1).encode())
    records = read_content(tmp_path, f"a.txt{ending}", packed[: len(packed) // 2])
    assert reasons(records) == ["truncated_archive"]
    assert len(records) == 1


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_a_file_a_thousand_times_its_packed_size_is_read_in_bounded_memory(
    tmp_path: Path, ending: str
) -> None:
    packed = PACKERS[ending](b" " * (1 << 20) * 64 + b"\n" + json_lines({"text": "T."}))
    tracemalloc.start()
    good, _ = split(read_content(tmp_path, f"a.jsonl{ending}", packed, max_document_mb=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.text for each in good] == ["T."]
    assert peak < 64 << 20


@given(
    content=st.binary(max_size=500),
    ending=st.sampled_from(list(PACKERS)),
    cut=st.integers(0, 600),
    damage=st.binary(max_size=3),
)
def test_no_archive_ends_a_reader(content: bytes, ending: str, cut: int, damage: bytes) -> None:
    packed = PACKERS[ending](content)
    packed = packed[:cut] + damage + packed[cut + len(damage) :]
    storage.write_bytes(f"memory://readers/any{ending}", packed)
    for record in read(f"memory://readers/any{ending}", "sentences"):
        assert isinstance(record, Document) or record.reason


@given(st.binary(max_size=2000), st.sampled_from(list(PACKERS)))
def test_what_was_packed_is_unpacked(content: bytes, ending: str) -> None:
    storage.write_bytes(f"memory://readers/same{ending}", PACKERS[ending](content))
    storage.write_bytes("memory://readers/same", content)
    packed, plain = (
        split(read(f"memory://readers/same{end}", "paragraphs", name="x")) for end in (ending, "")
    )
    assert [(d.id, d.text) for d in packed[0]] == [(d.id, d.text) for d in plain[0]]
    assert [(b.offset, b.content) for b in packed[1]] == [(b.offset, b.content) for b in plain[1]]


@needs("novels.jsonl.gz")
def test_of_novels_cut_in_the_middle_half_are_read(tmp_path: Path) -> None:
    whole = (CORPORA / "novels.jsonl.gz").read_bytes()
    good, [bad] = split(read_content(tmp_path, "novels.jsonl.gz", whole[: len(whole) // 2]))
    assert 15 < len(good) < 30
    assert bad.reason == "truncated_archive"


# Servers

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
