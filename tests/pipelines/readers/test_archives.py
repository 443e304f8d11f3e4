"""Packed files, whole and broken."""

import gzip
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.readers import Unreadable
from pipelines.readers.archives import PACKED_ENDINGS
from tests.generated_text import document
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
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
    assert set(PACKED_ENDINGS) == set(PACKERS)


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
    import tracemalloc

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
