"""Ranges of a file's bytes give, however it is cut, the documents of the whole file."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import READERS, Unreadable, read_documents
from tests.generated_text import document
from tests.pipelines.readers.examples import EXAMPLES, NAMED, Example
from tests.pipelines.readers.reading import (
    DUMP_END,
    DUMP_HEADER,
    Read,
    article,
    json_lines,
    outcomes,
)

URI = "memory://readers/ranges"
SPLITTABLE = [name for name, reader in READERS.items() if reader.boundary is not None]


def read_range(format: str, begin: int, end: int | None, uri: str = URI, **settings: Any) -> Read:
    return list(read_documents(uri, "f", SourceSettings(**settings), format, begin, end))


def read_cut(format: str, cuts: list[int], uri: str = URI, **settings: Any) -> Read:
    edges = [0, *sorted(cuts), None]
    return [
        record
        for begin, end in pairwise(edges)
        for record in read_range(format, begin or 0, end, uri, **settings)
    ]


def assert_cut_is_whole(format: str, content: bytes, cuts: list[int], **settings: Any) -> None:
    storage.write_bytes(URI, content)
    whole, cut = read_range(format, 0, None, **settings), read_cut(format, cuts, **settings)
    if format == "mediawiki-dump":
        whole, cut = list(map(_stripped, whole)), list(map(_stripped, cut))
    assert cut == whole


def _stripped(record: Document | Unreadable) -> Document | Unreadable:
    """Return ``record``; of a broken page without the blanks before the next one's first line."""
    if isinstance(record, Document):
        return record
    return replace(record, content=record.content.rstrip())


@pytest.mark.parametrize(
    ("declared", "example"), [(name, example) for name, example in NAMED if name in SPLITTABLE]
)
def test_a_cut_at_any_byte_gives_the_documents_of_the_whole(
    declared: SourceFormat, example: Example
) -> None:
    size = len(example.content) + 3
    for cut in range(0, size, 1 + size // (100 if declared == "mediawiki-dump" else 600)):
        assert_cut_is_whole(declared, example.content, [cut], **example.settings)
    assert_cut_is_whole(declared, example.content, list(range(0, size, 1 + size // 300)))


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(SPLITTABLE))
    if name == "mediawiki-dump":
        pages = [article(1, "[[Bildchen:a.png|thumb|b]]"), article(2), article(3, "&")]
        drawn = draw(st.lists(st.sampled_from(pages), max_size=8))
        return name, f"{DUMP_HEADER}{''.join(drawn)}{DUMP_END}".encode()
    examples = [e.content for e in EXAMPLES[name] if len(e.content) < 500]  # type: ignore[index]
    some = st.sampled_from(examples) | st.sampled_from([b"\n", b" \t\n", b"x" * 300])
    return name, b"".join(draw(st.lists(some | st.binary(max_size=4), max_size=20)))


@settings(max_examples=400, deadline=None)
@given(contents(), st.lists(st.integers(0, 2500), max_size=6), st.sampled_from([64, 0.0001]))
def test_any_cut_gives_the_documents_of_the_whole_also_where_some_are_too_large(
    format_and_content: tuple[str, bytes], cuts: list[int], max_document_mb: float
) -> None:
    assert_cut_is_whole(*format_and_content, cuts, max_document_mb=max_document_mb)


@pytest.mark.parametrize("declared", [name for name in SPLITTABLE if name != "mediawiki-dump"])
def test_lines_longer_than_what_is_looked_at_are_one_line(declared: str) -> None:
    long = b"x" * (3 << 16)
    content = long + b"\n\n" + long + b"\n \n" + b" " * (1 << 17) + b"\nend"
    cuts = [1, 1 << 16, (1 << 16) + 1, 3 << 16, (3 << 16) + 2, 6 << 16, len(content) - 2]
    assert_cut_is_whole(declared, content, cuts)


def test_a_range_has_the_records_that_begin_in_it() -> None:
    lines = [json_lines({"id": n, "text": "T."}) for n in range(4)]
    storage.write_bytes(URI, b"".join(lines))
    size = len(lines[0])
    expected = {
        (0, 1): ["#0"],
        (0, size): ["#0"],
        (0, size + 1): ["#0", "#1"],
        (1, size): [],
        (1, size + 1): ["#1"],
        (size, 2 * size): ["#1"],
        (3 * size + 1, None): [],
        (4 * size, None): [],
        (9 * size, None): [],
    }
    for (begin, end), ids in expected.items():
        assert [found for found, _ in outcomes(read_range("jsonl", begin, end))] == ids


def test_little_more_than_a_range_is_read() -> None:
    lines = json_lines(*({"text": document(n)} for n in range(2000)))
    storage.write_bytes(URI, lines * 4)
    fs, path = storage.filesystem(URI)
    counted = _count_bytes_read(fs, path)
    middle = len(lines) * 2
    assert len(read_range("jsonl", middle, middle + 1000)) >= 1
    assert sum(counted) < 1 << 18


def _count_bytes_read(fs: Any, path: str) -> list[int]:
    """Make the file in memory count what is read of it."""
    counted: list[int] = []
    file = fs.store[path]

    class Counting(type(file)):  # type: ignore[misc]
        def read(self, size: int = -1) -> bytes:
            data: bytes = super().read(size)
            counted.append(len(data))
            return data

    fs.store[path] = Counting(fs, path, file.getvalue())
    return counted
