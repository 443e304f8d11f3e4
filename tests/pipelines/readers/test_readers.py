import gzip
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import READERS, Unreadable, can_split, format_of
from pipelines.readers.record import Record
from tests.pipelines.readers.reading import (
    CORPORA,
    PACKERS,
    WIKI,
    ids,
    json_lines,
    read,
    read_content,
    read_in_memory,
    reasons,
    split,
    texts,
)

# Every format, by hand and as it is packed


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    assert texts(read_content(tmp_path, "a.txt", mark + b"Text.")) == ["Text."]
    marked = mark + json_lines({"text": "Text."})
    assert texts(read_content(tmp_path, "a.jsonl", marked)) == ["Text."]
    assert len(texts(read_content(tmp_path, "wiki_00", mark + WIKI + mark + WIKI))) == 4
    for declared in ("sentences", "paragraphs"):
        found = read_content(tmp_path, "a", mark + b"Text.", declared)
        assert texts(found) == ["Text."]


MODULE = '''"""The module.

  Indented.
"""
import x  # "not this"

class A:
    """The class."""

    NAME = """nor this"""

    async def f(self):
        """The method."""
        def g():
            "The inner one."

def h(): ...
def i():
    """The last one."""
'''


def test_a_python_file_is_its_docstrings_in_order(tmp_path: Path) -> None:
    records = read_content(tmp_path, "m.py", MODULE.encode())
    assert texts(records) == [
        "The module.\n\nIndented.\n\nThe class.\n\nThe method.\n\nThe inner one.\n\nThe last one."
    ]
    assert ids(records) == ["m.py"]


def test_a_python_file_is_parsed_and_not_run(tmp_path: Path) -> None:
    source = b'"""Text."""\nraise SystemExit("run")\n'
    assert texts(read_content(tmp_path, "m.py", source)) == ["Text."]


def test_a_python_file_may_declare_its_encoding(tmp_path: Path) -> None:
    source = "# -*- coding: latin-1 -*-\n'''Größe.'''\n".encode("latin-1")
    assert texts(read_content(tmp_path, "m.py", source)) == ["Größe."]


METADATA = b"""Metadata-Version: 2.1
Name: x
Classifier: Operating System :: OS Independent

# The package

It is for gr\xc3\xb6\xc3\x9fe.
"""


@pytest.mark.parametrize("declared", ["installed-python", "auto"])
def test_a_packages_metadata_is_its_description(tmp_path: Path, declared: SourceFormat) -> None:
    records = read_content(tmp_path, "METADATA", METADATA, declared)
    assert texts(records) == ["# The package\n\nIt is for größe.\n"]


def test_a_file_in_memory_is_read_like_one_on_disk() -> None:
    storage.write_bytes("memory://readers/wiki_00.gz", gzip.compress(WIKI, mtime=0))
    assert ids(read("memory://readers/wiki_00.gz")) == ["wiki_00.gz#12", "wiki_00.gz#25"]


@pytest.mark.parametrize("declared", READERS)
def test_an_empty_file_ends_nothing(declared: SourceFormat) -> None:
    found, broken = split(read_in_memory(b"", declared))
    assert {document.text for document in found} <= {""}
    assert {each.reason for each in broken} <= {"not_parquet"}


def test_a_record_needs_no_more_than_its_text() -> None:
    assert Record("text") == Record("text", "", "", 0, b"", lines_are_sentences=False)


# What a file is, when nobody says so


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"", "jsonl"),
        ("a.JSON.gz", gzip.compress(b"", mtime=0), "jsonl"),
        ("a.ndjson.XZ", b"", "jsonl"),
        ("a.py", b"", "installed-python"),
        ("a.parquet", b"", "parquet"),
        ("a.warc.gz", b"", "warc"),
        ("a.warc.wet.gz", b"", "warc"),
        ("a.arc", b"", "warc"),
        ("METADATA", METADATA, "installed-python"),
        ("a.txt", b"T.", "text"),
        ("a.txt", b"\n\n" + WIKI, "wiki-extracted"),
        ("wiki_00.bz2", PACKERS[".bz2"](WIKI), "wiki-extracted"),
        ("wiki_00.zst", PACKERS[".zst"](WIKI), "wiki-extracted"),
        ("a.txt", b"<document>\nT.", "text"),
        ("no_ending", b'{"text": "T."}\n', "jsonl"),
        ("no_ending", b'{"text": "T."}', "jsonl"),
        ("no_ending", b'{"text": "' + b"T. " * 9999, "jsonl"),
        ("no_ending", b'{"text":\n "T."}', "text"),
        ("no_ending", b"{not json}\n", "text"),
        ("no_ending", b"PAR1...", "parquet"),
        ("no_ending", b"WARC/1.0\r\n", "warc"),
        ("no_ending", b"filedesc://x.arc 0.0.0.0 2008", "warc"),
        ("x.xml.bz2", PACKERS[".bz2"](b"<mediawiki xmlns=..."), "mediawiki-dump"),
        ("x.xml", b'<?xml version="1.0"?>\n<mediawiki xml:lang="en">', "mediawiki-dump"),
        ("x.xml", b"<?xml version='1.0'?>\n<html>", "text"),
        ("1.txt", b"The Project Gutenberg EBook of Emma, by Jane Austen", "gutenberg"),
        ("1.txt", b"\xef\xbb\xbfProject Gutenberg's Emma, by Jane Austen", "gutenberg"),
        ("1.txt", b"A\n\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***", "gutenberg"),
        ("1.txt", b"A\n***START**THE SMALL PRINT!**FOR PUBLIC", "gutenberg"),
        ("1.txt", b"We read of Project Gutenberg in the paper.", "text"),
        ("cut.txt.gz", gzip.compress(WIKI, mtime=0)[:90], "wiki-extracted"),
        ("not.txt.gz", b"plain", "text"),
    ],
)
def test_the_format_is_told_by_name_and_beginning(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert format_of(str(tmp_path / name), SourceSettings()) == expected


def test_a_declared_format_comes_before_what_the_name_tells(tmp_path: Path) -> None:
    content = json_lines({"text": "T."})
    assert texts(read_content(tmp_path, "a.jsonl", content, "text")) == [content.decode()]


def test_the_format_of_a_file_that_is_gone_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"gone\.txt"):
        format_of(str(tmp_path / "gone.txt"), SourceSettings())


@pytest.mark.parametrize(
    ("name", "format", "expected"),
    [
        ("a.jsonl", "jsonl", True),
        ("a", "wiki-extracted", True),
        ("a", "sentences", True),
        ("a", "paragraphs", True),
        ("a.jsonl.gz", "jsonl", False),
        ("a.zst", "wiki-extracted", False),
        ("a", "text", False),
        ("a", "parquet", False),
        ("a", "warc", False),
    ],
)
def test_files_of_lines_that_are_not_packed_can_be_split(
    tmp_path: Path, name: str, format: str, expected: bool
) -> None:
    (tmp_path / name).write_bytes(WIKI)
    assert can_split(str(tmp_path / name), format) is expected


# Bad records


@pytest.mark.parametrize(
    "source", [b'"""unclosed', b'print "two" """x"""', b'"""x"""\x00', b'"""x"""' + b"(" * 9999]
)
def test_a_file_that_is_no_python_is_reported(tmp_path: Path, source: bytes) -> None:
    uri = str(tmp_path / "a.py")
    assert read_content(tmp_path, "a.py", source) == [Unreadable(uri, 0, "not_python", source)]


@given(content=st.binary(max_size=200), declared=st.sampled_from(list(READERS)))
def test_no_content_ends_a_reader(content: bytes, declared: SourceFormat) -> None:
    for record in read_in_memory(content, declared):
        assert isinstance(record, Document) or record.reason


# Records too large to be held

KB = 0.001


@pytest.mark.parametrize(
    ("declared", "before", "large", "after"),
    [
        ("jsonl", b'{"text": "T."}\n', b'{"text": "' + b"x" * 5000 + b'"}\n', b'{"text": "T."}\n'),
        ("wiki-extracted", WIKI, b'<doc id="9">\n' + b"x y\n" * 999 + b"</doc>\n", WIKI),
        ("wiki-extracted", WIKI, b'<doc id="9">\n' + b"x" * 5000 + b"\n</doc>\n", WIKI),
        ("paragraphs", b"One.\n\n", b"x y\n" * 999 + b"\n", b"Two."),
        ("sentences", b"One.\n\n", b"x" * 5000 + b"\n\n", b"Two."),
        ("text", b"", b"x" * 5000, b""),
        ("gutenberg", b"", b"x" * 5000, b""),
        ("installed-python", b"", b"x" * 5000, b""),
    ],
)
def test_a_record_too_large_is_passed_over(
    declared: SourceFormat, before: bytes, large: bytes, after: bytes
) -> None:
    num_documents = len(read_in_memory(before, declared)) + len(read_in_memory(after, declared))
    good, [bad] = split(read_in_memory(before + large + after, declared, max_document_mb=KB))
    assert (bad.offset, bad.reason) == (len(before), "too_large")
    assert b"x" in bad.content
    if before:
        assert len(good) == num_documents


class Endless(io.RawIOBase):
    """Lines without end, of which one is far larger than may be held."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.parts = parts
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        self.rest = self.rest or next(self.parts, b"")
        length = min(len(buffer), len(self.rest))
        buffer[:length] = self.rest[:length]
        self.rest = self.rest[length:]
        return length


@pytest.mark.parametrize("declared", ["jsonl", "wiki-extracted", "sentences"])
def test_of_a_large_record_little_is_held(declared: str) -> None:
    import tracemalloc

    piece = b"x" * (1 << 20)
    parts = iter([b'<doc id="1">\n', *([piece] * 50), b"\n</doc>\n\n", b'{"text": "T."}\n'])
    settings = SourceSettings(max_document_mb=1)
    tracemalloc.start()
    with io.BufferedReader(cast(io.RawIOBase, Endless(parts))) as file:
        records = list(READERS[declared].read(file, settings))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "too_large" in [record.unreadable for record in records]
    assert peak < 12 << 20


# Ids


def test_ids_do_not_change_when_the_source_moves(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "here", tmp_path / "there"):
        (folder / "AA").mkdir(parents=True)
        (folder / "AA" / "wiki_00").write_bytes(WIKI)
        found.append(ids(read(folder / "AA" / "wiki_00", name="AA/wiki_00")))
    assert found[0] == found[1] == ["AA/wiki_00#12", "AA/wiki_00#25"]


def test_offsets_are_those_of_the_unpacked_file(tmp_path: Path) -> None:
    random = Random(0)
    lines = [{"text": random.randbytes(50).hex()} for _ in range(300)]
    content = json_lines(*lines)
    plain = read_content(tmp_path, "a.jsonl", content)
    packed = read(tmp_path / "a.jsonl", name="x")
    for ending, pack in PACKERS.items():
        (tmp_path / f"a.jsonl{ending}").write_bytes(pack(content))
        assert ids(read(tmp_path / f"a.jsonl{ending}", name="x")) == ids(packed)
    assert texts(plain) == [line["text"] for line in lines]


# Files that can't be read


def test_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    uri = str(tmp_path / "gone.txt")
    assert read(uri, "text") == [Unreadable(uri, 0, "not_readable", b"")]


def test_a_folder_is_reported(tmp_path: Path) -> None:
    assert reasons(read(tmp_path, "text")) == ["not_readable"]


@pytest.mark.parametrize("encoding", ["klingon", "base64", "rot13"])
def test_an_unknown_encoding_is_a_mistake_in_the_settings(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match=f"source.encoding '{encoding}' is no text encoding"):
        read_content(tmp_path, "a.txt", b"T.", encoding=encoding)


# Real files are read, to the byte, as they were when what was read was looked at

GOLDEN: list[tuple[str, SourceFormat, int, str]] = [
    ("wiki_extracted/enwiki2018/AA/wiki_00", "auto", 37, "fd798b92e543d168"),
    ("wiki_extracted/kowiki2022/AA/wiki_01", "auto", 139, "93542f9e61c2763a"),
    ("jsonl_dolma/000.json.gz", "auto", 10, "32e5c77469935bcf"),
    ("novels.jsonl.gz", "auto", 45, "ce2d0b9196f63c43"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "auto", 1, "eec150b27b2e9e7f"),
    ("gutenberg/Die-Verwandlung_22367/22367-8.txt", "text", 1, "a5f79b23c27160de"),
    (
        "gutenberg/The-Adventures-of-Sherlock-Holmes_1661/old__advsh12.txt",
        "auto",
        1,
        "ac363b50de0a81b4",
    ),
    ("gutenberg/Pride-and-Prejudice_1342/old__pandp10.txt", "auto", 1, "fc317e70c91a4361"),
    ("bert_sample/sample_text.txt", "sentences", 3, "4ae5d7937d85f040"),
    ("bert_sample/sample_text.txt", "paragraphs", 3, "4ae5d7937d85f040"),
]


@pytest.mark.parametrize(("name", "declared", "num_documents", "digest"), GOLDEN, ids=str)
def test_real_files_are_read_as_before(
    name: str, declared: SourceFormat, num_documents: int, digest: str
) -> None:
    if not (CORPORA / name).exists():
        pytest.skip(f"{CORPORA / name} is absent")
    documents = [each for each in read(CORPORA / name, declared) if isinstance(each, Document)]
    assert len(documents) == num_documents
    read_now = repr([(each.id, each.text) for each in documents]).encode()
    assert hashlib.sha256(read_now).hexdigest()[:16] == digest
