"""Ranges of a file's bytes give, however it is cut, the documents of the whole file."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import READERS, Unreadable, read_documents
from tests.pipelines.readers.examples import NAMED, Example
from tests.pipelines.readers.reading import Read, json_lines, outcomes

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


def assert_cuts_are_whole(
    format: str, content: bytes, several: Iterable[list[int]], **settings: Any
) -> None:
    storage.write_bytes(URI, content)
    of_format = _stripped if format == "mediawiki-dump" else lambda record: record
    whole = list(map(of_format, read_range(format, 0, None, **settings)))
    for cuts in several:
        assert list(map(of_format, read_cut(format, cuts, **settings))) == whole


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
    step = 1 + size // (100 if declared == "mediawiki-dump" else 600)
    one = ([cut] for cut in range(0, size, step))
    many = list(range(0, size, 1 + size // 300))
    assert_cuts_are_whole(declared, example.content, [*one, many], **example.settings)


@pytest.mark.parametrize("declared", [name for name in SPLITTABLE if name != "mediawiki-dump"])
def test_lines_longer_than_what_is_looked_at_are_one_line(declared: str) -> None:
    long = b"x" * (3 << 16)
    content = long + b"\n\n" + long + b"\n \n" + b" " * (1 << 17) + b"\nend"
    cuts = [1, 1 << 16, (1 << 16) + 1, 3 << 16, (3 << 16) + 2, 6 << 16, len(content) - 2]
    assert_cuts_are_whole(declared, content, [cuts])


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
