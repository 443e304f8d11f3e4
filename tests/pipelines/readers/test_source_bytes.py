"""Packed files, whole and broken, and files on S3 and HTTP servers that run."""

import gzip
import hashlib
import tracemalloc
from pathlib import Path
from random import Random

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.stage.errors import explained, is_transient
from pipelines.config import SourceSettings
from pipelines.readers import Unreadable, can_split, format_of, source_bytes
from pipelines.source_files import check_unchanged, list_source
from tests.generated_text import document
from tests.pipelines.readers.conftest import RangeHandler
from tests.pipelines.readers.examples import NAMED
from tests.pipelines.readers.reading import (
    PACKERS,
    archive,
    json_lines,
    outcomes,
    parquet,
    read,
    read_content,
    split,
    texts,
)
from tests.pipelines.readers.test_ranges import read_cut, read_range

SEVERAL_MEMBERS = [ending for ending in PACKERS if ending not in (".lzma", ".br")]
RANDOM = Random(0)
ROWS = [{"text": document(number) + RANDOM.randbytes(99).hex()} for number in range(200)]
CONTENT = json_lines(*ROWS)
WHOLE = [row["text"] for row in ROWS]
TO_PACK = [
    (declared, example) for declared, example in NAMED if declared not in ("parquet", "archive")
]


def test_every_ending_is_tested() -> None:
    assert set(source_bytes._DECOMPRESSORS) == set(PACKERS)


@pytest.mark.parametrize(("number", "ending"), list(enumerate(PACKERS)))
def test_packed_files_give_the_same_records_by_the_same_offsets(number: int, ending: str) -> None:
    for declared, example in TO_PACK[number :: len(PACKERS)]:
        packed = PACKERS[ending](example.content)
        records = read_content(packed, declared, f"f{ending}", **example.settings)
        assert outcomes(records, f"f{ending}") == example.outcomes


def test_zstd_files_of_the_largest_window_are_read() -> None:
    how = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=how).compressobj()
    packed = packer.compress(CONTENT) + packer.flush()  # of a stream, whose size is not known
    assert texts(read_content(packed, name="a.jsonl.zst")) == WHOLE


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.9, 0.9999])
@pytest.mark.parametrize("ending", PACKERS)
def test_of_a_truncated_file_the_documents_before_the_break_are_read(
    ending: str, share: float
) -> None:
    packed = PACKERS[ending](CONTENT)
    name = f"a.jsonl{ending}"
    good, [broken] = split(read_content(packed[: max(1, int(len(packed) * share))], name=name))
    uri = f"memory://readers/{name}"
    assert broken == Unreadable(uri, broken.offset, "truncated_archive", b"")
    assert [each.text for each in good] == WHOLE[: len(good)]
    assert CONTENT.count(b"\n", 0, broken.offset) == len(good)
    if share > 0.8 and ending in (".gz", ".zst"):
        assert len(good) > 100  # not in blocks of 900 kB


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("ending", PACKERS)
def test_of_a_damaged_file_the_documents_before_the_break_are_read(ending: str, at: float) -> None:
    packed = bytearray(PACKERS[ending](CONTENT))
    begin = int(len(packed) * at)
    packed[begin : begin + 64] = b"\xff" * 64
    good, bad = split(read_content(bytes(packed), name=f"a.jsonl{ending}"))
    assert bad[-1].reason in ("corrupt_archive", "truncated_archive")
    # gzip checks at the end only, and may give some damaged text before that.
    assert ending in (".gz", ".tgz") or [each.text for each in good] == WHOLE[: len(good)]


@pytest.mark.parametrize("ending", SEVERAL_MEMBERS)
def test_an_archive_may_have_several_members_and_zeros_between(ending: str) -> None:
    pack = PACKERS[ending]
    half = CONTENT.index(b"\n", len(CONTENT) // 2) + 1
    packed = pack(CONTENT[:half]) + b"\x00" * 512 + pack(CONTENT[half:]) + b"\x00" * 8
    assert texts(read_content(packed, name=f"a.jsonl{ending}")) == WHOLE


@pytest.mark.parametrize("ending", [ending for ending in PACKERS if ending != ".br"])
def test_what_follows_an_archive_and_is_none_is_reported(ending: str) -> None:
    packed = PACKERS[ending](CONTENT) + b"something else, of some length"
    good, bad = split(read_content(packed, name=f"a.jsonl{ending}"))
    assert len(good) == 200
    assert [(each.offset, each.reason) for each in bad] == [(len(CONTENT), "corrupt_archive")]


@pytest.mark.parametrize("ending", [*SEVERAL_MEMBERS, ".br"])
def test_a_file_a_thousand_times_its_packed_size_is_read_in_bounded_memory(ending: str) -> None:
    packed = PACKERS[ending](b" " * (1 << 20) * 64 + b"\n" + json_lines({"text": "T."}))
    tracemalloc.start()
    good, _ = split(read_content(packed, name=f"a.jsonl{ending}", max_document_mb=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.text for each in good] == ["T."]
    assert peak < 64 << 20


@given(st.binary(max_size=500), st.integers(0, 600), st.binary(max_size=3))
def test_no_archive_ends_a_reader(content: bytes, cut: int, damage: bytes) -> None:
    for ending, pack in PACKERS.items():
        packed = pack(content)
        damaged = packed[:cut] + damage + packed[cut + len(damage) :]
        for found, told in outcomes(read_content(damaged, "sentences", f"f{ending}"), f"f{ending}"):
            assert isinstance(found, str) or told


# Servers

_SOME = [document(number) for number in range(50)]
TEXTS = [f"{number}. {_SOME[number % len(_SOME)]}" for number in range(3000)]
LINES = json_lines(*({"id": n, "text": text} for n, text in enumerate(TEXTS)))
"""Some 5 MB."""
CUTS = [1, 1_000_000, 1_000_001, 4_000_000, 99_000_000]


@pytest.mark.parametrize("server", ["s3", "http_ranges"])
def test_a_server_with_ranges_gives_whole_files_ranges_and_packed_files(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = request.getfixturevalue(server)
    uri, place = f"{address}/a.jsonl", address if server == "s3" else tmp_path
    storage.write_bytes(f"{place}/a.jsonl", LINES)
    assert texts(read(uri)) == TEXTS
    assert can_split(uri, "jsonl")
    assert read_cut("jsonl", CUTS, uri) == read(uri, name="f")
    for ending in (".gz", ".bz2", ".zst"):
        storage.write_bytes(f"{place}/a.jsonl{ending}", PACKERS[ending](LINES))
        assert texts(read(uri + ending)) == TEXTS
    storage.write_bytes(f"{place}/a.parquet", parquet({"text": TEXTS}, row_group_size=500))
    assert texts(read(f"{address}/a.parquet")) == TEXTS


def test_an_object_or_page_that_is_gone_is_reported(s3: str, http_plain: str) -> None:
    for server in (s3, http_plain):
        assert outcomes(read(f"{server}/gone.txt", "text")) == [(0, "not_readable")]
        with pytest.raises(OSError, match=r"gone|exist|Not Found"):
            format_of(f"{server}/gone.txt", SourceSettings())


@pytest.mark.parametrize("uri", ["s3://absent-bucket", "s3://absent-bucket/a.txt"])
def test_a_source_in_a_bucket_that_is_not_there_is_a_missing_bucket(uri: str, s3: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        list_source(SourceSettings(uri=uri))
    assert "no such bucket (absent-bucket)" in explained(raised.value)


def test_of_a_range_on_a_server_little_more_is_asked_for(http_ranges: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES * 4)
    RangeHandler.num_bytes_sent = 0
    begin = len(LINES) * 2 + 1000
    assert read_range("jsonl", begin, begin + 100_000, f"{http_ranges}/a.jsonl")
    assert RangeHandler.num_bytes_sent < 4 << 20


def test_a_zip_archive_that_is_shorter_than_its_index_is_read_or_corrupt(
    http_ranges: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.zip").write_bytes(archive({}))
    (tmp_path / "cut.zip").write_bytes(archive({"a.txt": b"x"})[:11])
    for folder in (str(tmp_path), http_ranges):
        assert outcomes(read(f"{folder}/empty.zip")) == []
        assert outcomes(read(f"{folder}/cut.zip")) == [(0, "corrupt_archive")]


def test_a_server_without_ranges_gives_whole_files_only(http_plain: str, tmp_path: Path) -> None:
    content = LINES * 2  # more than is fetched at a time
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    assert not can_split(f"{http_plain}/a.jsonl", "jsonl")
    [listed] = list_source(SourceSettings(uri=f"{http_plain}/a.jsonl")).files
    assert listed.sha256 == hashlib.sha256(content).hexdigest()
    assert texts(read(f"{http_plain}/a.jsonl")) == TEXTS * 2
    assert texts(read(f"{http_plain}/a.jsonl.gz")) == TEXTS * 2
    (tmp_path / "f.txt").write_bytes(b"Some text.")
    assert outcomes(read(f"{http_plain}/f.txt")) == [(".txt", "Some text.")]
    (tmp_path / "a.parquet").write_bytes(parquet({"text": TEXTS}))
    assert outcomes(read(f"{http_plain}/a.parquet")) == [(0, "not_readable")]


def test_a_server_that_would_pack_what_it_sends_is_asked_not_to(
    http_packing: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    [listed] = list_source(SourceSettings(uri=f"{http_packing}/a.jsonl")).files
    assert (listed.num_bytes, listed.sha256) == (len(LINES), hashlib.sha256(LINES).hexdigest())
    assert texts(read(f"{http_packing}/a.jsonl")) == TEXTS


def test_a_server_that_breaks_off_is_reported_after_the_documents_before(
    http_stopping: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES * 2)
    good, [bad] = split(read(f"{http_stopping}/a.jsonl"))
    assert [each.text for each in good] == (TEXTS * 2)[: len(good)]
    assert len(good) > 1500
    assert bad.reason == "not_readable"
    with pytest.raises(aiohttp.ClientPayloadError) as failed:
        list_source(SourceSettings(uri=f"{http_stopping}/a.jsonl"))
    assert is_transient(failed.value)


# Tables


def test_of_a_damaged_table_the_rows_before_the_damage_are_read() -> None:
    columns = {"text": TEXTS[:300]}
    content = bytearray(parquet(columns, row_group_size=50, use_dictionary=False))
    metadata = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata
    begin = metadata.row_group(3).column(0).data_page_offset
    content[begin : begin + 3000] = b"\xff" * 3000
    found = outcomes(read_content(bytes(content), "parquet"))
    assert found == [*((f"#row-{n}", TEXTS[n]) for n in range(150)), (150, "not_parquet")]


def test_a_page_of_links_is_a_source_whose_files_are_unchanged(
    tmp_path: Path, http_plain: str
) -> None:
    (tmp_path / "0.txt").write_text("Text.")
    [file] = list_source(SourceSettings(uri=f"{http_plain}/")).files
    assert (file.name, file.num_bytes) == ("0.txt", 5)
    check_unchanged(file)
