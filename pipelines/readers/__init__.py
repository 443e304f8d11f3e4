"""Source files to documents: one reader a format, all with the same contract.

A reader is a function ``read(file: BinaryIO, settings: SourceSettings)`` that yields a `Record`
for each document in the file, in order, and a `Record` with a reason for what it could not read.
It holds one record at a time, keeps nothing from one file for the next, so that several threads may
read at once, and raises for no content. `read_documents` gives it a file, or the part of one whose
records begin in a range of bytes, and makes documents of what it yields.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from albert_core.text.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import (
    gutenberg,
    installed_python,
    jsonl,
    mediawiki_dump,
    parquet,
    text_blocks,
    warc,
    whole_text,
    wiki_extracted,
)
from pipelines.readers.encodings import check_encoding
from pipelines.readers.formats import format_of
from pipelines.readers.record import MAX_CONTENT_BYTES, BrokenFileError, Record
from pipelines.readers.source_bytes import (
    has_random_access,
    open_content,
    open_range,
    packed_ending,
)

__all__ = [
    "LEFT_OUT",
    "READERS",
    "Reader",
    "Unreadable",
    "can_split",
    "format_of",
    "read_documents",
]

_BLANK_LINE = re.compile(rb"[ \t\r\f\v]*\n")


@dataclass(frozen=True, slots=True)
class Reader:
    """How a format is read."""

    read: Callable[[BinaryIO, SourceSettings], Iterator[Record]]
    boundary: re.Pattern[bytes] | None
    """Matches the beginning of a line where a record may begin; None: a file is never split."""
    is_one_document: bool = False
    """Whether a file is one document, with the file's name as its id."""
    has_header: bool = False
    """Whether what comes before the first boundary is needed to read any range."""


READERS: dict[str, Reader] = {
    "installed-python": Reader(installed_python.read, None, is_one_document=True),
    "mediawiki-dump": Reader(mediawiki_dump.read, re.compile(rb"[ \t]*<page>"), has_header=True),
    "wiki-extracted": Reader(wiki_extracted.read, wiki_extracted.OPENING),
    "jsonl": Reader(jsonl.read, re.compile(b"")),
    "parquet": Reader(parquet.read, None),
    "text": Reader(whole_text.read, None, is_one_document=True),
    "paragraphs": Reader(text_blocks.read_paragraphs, _BLANK_LINE),
    "sentences": Reader(text_blocks.read_sentences, _BLANK_LINE),
    "gutenberg": Reader(gutenberg.read, None, is_one_document=True),
    "warc": Reader(warc.read, None),
}
_BY_LINES = ("wiki-extracted", "jsonl", "paragraphs", "sentences")

LEFT_OUT = frozenset(
    {"other_namespace", "redirect", "not_wikitext", warc.NOT_HTML, warc.HTTP_ERROR}
)
"""Reasons of records that are sound, but no texts that were asked for."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record, or the rest of a file, that could not be read."""

    uri: str
    """The file."""
    offset: int
    """Where it begins in the unpacked file, in bytes; parquet: the number of the row."""
    reason: str
    content: bytes
    """How it begins, raw; at most 64 KiB."""


def can_split(uri: str, format: str) -> bool:  # noqa: A002 - as the settings call it
    """Return whether ranges of the file's bytes can be read, each without what comes before."""
    splittable = READERS[format].boundary is not None and not packed_ending(uri)
    return splittable and has_random_access(uri)


def read_documents(
    uri: str,
    name: str,
    settings: SourceSettings,
    format: str,  # noqa: A002 - as the settings call it
    begin: int = 0,
    end: int | None = None,
) -> Iterator[Document | Unreadable]:
    """Yield every record of the file at ``uri`` that begins in a range of its bytes.

    The ranges of a file, however it is cut, give exactly the documents of the whole. What can't
    be read is yielded as such, nothing is raised for it: of a packed file that breaks off the
    documents before the break, then why it broke.

    Args:
        uri: the file; gz, bz2, xz, lzma and zst are unpacked by their ending.
        name: the file's name relative to the source. Document ids are ``name#key`` with a
            record's own id, or else ``name#@offset`` with its first byte in the unpacked file,
            and ``name`` alone where a file is one document.
        settings: how to read it.
        format: a key of `READERS`, as `format_of` tells.
        begin: first byte of the range.
        end: one past its last byte; None: to the end of the file.

    Raises:
        ConfigError: the encoding is unknown, or can't be cut into lines where the format is.
    """
    check_encoding(settings.encoding, by_lines=format in _BY_LINES)
    reader = READERS[format]
    try:
        with _open(uri, reader, begin, end) as (start, file):
            for record in reader.read(file, settings):
                offset = start + record.offset
                if record.unreadable:
                    content = record.content[:MAX_CONTENT_BYTES]
                    yield Unreadable(uri, offset, record.unreadable, content)
                else:
                    record_id = _record_id(name, record.key, offset, reader)
                    yield Document(record_id, record.text, uri, record.lines_are_sentences)
    except BrokenFileError as error:
        yield Unreadable(uri, error.offset, error.reason, b"")


@contextmanager
def _open(uri: str, reader: Reader, begin: int, end: int | None) -> Iterator[tuple[int, BinaryIO]]:
    """Open a range of the file; give its first byte in the file, and its content."""
    if begin == 0 and end is None:
        with open_content(uri) as file:
            yield 0, file
        return
    assert reader.boundary is not None, "a file that can't be split is read whole"
    with open_range(uri, begin, end, reader.boundary, reader.has_header) as (start, file):
        yield start, file


def _record_id(name: str, key: str, offset: int, reader: Reader) -> str:
    if reader.is_one_document:
        return name
    # Half a surrogate pair, as JSON may hold, can't be written.
    return f"{name}#{key.encode(errors='replace').decode()}" if key else f"{name}#@{offset}"
