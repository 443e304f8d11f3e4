"""Source files to documents: one reader a format, all with the same contract.

A reader is a function ``read(file: BinaryIO, settings: SourceSettings)`` that yields a `Record`
for each document in the file, in order, and a `Record` with a reason for what it could not read.
It holds one record at a time, raises nothing for bad content, and keeps nothing from one file for
the next, so that several threads may read at once. `format_of` tells which reader a file needs.
`read_documents` opens the file, or the records that begin in a range of its bytes, and makes
documents of what the reader yields.
"""

import codecs
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import IO, BinaryIO

from albert_core.text.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import documents, plain_text, source_bytes, tables, wikipedia
from pipelines.readers.record import Record, check_encoding, from_the_top, unreadable

LEFT_OUT = frozenset(
    {
        wikipedia.OTHER_NAMESPACE,
        wikipedia.REDIRECT,
        wikipedia.NOT_WIKITEXT,
        documents.NOT_HTML,
        documents.HTTP_ERROR,
        plain_text.NOT_TEXT,
        source_bytes.HIDDEN_MEMBER,
        source_bytes.SPECIAL_MEMBER,
    }
)
"""Reasons of records that are sound, but were not asked for."""
NESTED_ARCHIVE = "nested_archive"
WHAT_TO_DO = {
    plain_text.OLD_OFFICE: "are files of Word, Excel or Outlook in their format before 2007; "
    "convert them, for example with `soffice --headless --convert-to docx *.doc`",
    plain_text.OTHER_ARCHIVE: "are archives or packed files of a kind that is not read, or without "
    "its ending; unpack them",
    source_bytes.BOMB: "are zip archives that unpack to 200 times their size; unpack them if you trust "
    "them",
    source_bytes.ENCRYPTED: "are encrypted members of archives; unpack these",
    NESTED_ARCHIVE: "are archives in archives; unpack the outer ones",
    documents.NO_TEXT_LAYER: "are PDFs of pictures only; recognise their text first, for example "
    "with `ocrmypdf`",
    documents.UNKNOWN_MARKUP: "are markup of no known kind; give source.xml_element",
}
"""For a reason what its records are, and how they can be read."""

_HEAD_BYTES = 1 << 13
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLANK_LINE = re.compile(rb"[ \t\r\f\v]*\n")
_OBJECT_BEGINS = re.compile(rb'\{[ \t]*"(?:[^"\\\n]|\\.){1,200}"[ \t]*:')
_GUTENBERG = re.compile(
    rb"\*\*\* ?START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    rb"|\*START\*\*THE SMALL PRINT!"
    rb"|\A\W*(?:The )?Project Gutenberg(?:'s|\xe2\x80\x99s|\x92s)? ",
    re.IGNORECASE,
)


def _begins_with_json_object(head: bytes) -> bool:
    line, line_end, _ = head.partition(b"\n")
    if not line_end:  # the line is longer than the head
        return _OBJECT_BEGINS.match(line) is not None
    try:
        return isinstance(from_the_top(json.loads, line), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Reader:
    """How files of one format are detected and read."""

    read: Callable[[BinaryIO, SourceSettings], Iterator[Record]]
    endings: tuple[str, ...] = ()
    """Endings of such files' names, in lower case, without the ending of a packed file."""
    begins: Callable[[bytes], object] = lambda _: False
    """Whether a file with this beginning, without byte order mark and blanks, has this format."""
    boundary: re.Pattern[bytes] | None = None
    """Matches the beginning of a line where a record may begin; None: a file is never split."""
    has_header: bool = False
    """Whether what comes before the first boundary is needed to read any range."""
    is_one_document: bool = False
    """Whether a file is one document, with the file's name as its id."""
    decodes_lines: bool = False
    """Whether lines are cut before they are decoded; such a file in UTF-16 is recoded."""


_XML = rb"(?:<\?xml[^>]*>\s*)?(?:<!--.{0,4000}?-->\s*)*"
_PANDOC: list[tuple[str, tuple[str, ...], bytes]] = [
    ("asciidoc", (".adoc", ".asciidoc"), b""),
    (
        "docbook",
        (".dbk", ".docbook"),
        _XML + rb"(?:<!doctype[^>]{0,200}docbook"
        rb"|(?:<!doctype[^>]{0,200}>\s*)?<[a-z:]+[^>]{0,400}docbook\.org)",
    ),
    ("docx", (".docx",), rb"PK\x03\x04.*word/"),
    ("epub", (".epub",), rb"PK\x03\x04.{0,100}application/epub\+zip"),
    ("fb2", (".fb2",), _XML + rb"<FictionBook\b"),
    ("ipynb", (".ipynb",), b""),
    (
        "jats",
        (".nxml", ".jats"),
        _XML + rb"(?:<!doctype article[^>]{0,200}(?:jats|nlm)"
        rb"|<article\b[^>]{0,400}(?:article-type|dtd-version))",
    ),
    ("latex", (".tex", ".latex"), rb"(?:%[^\n]*\n|\s)*\\documentclass\b"),
    ("markdown", (".md", ".markdown"), b""),
    ("odt", (".odt",), rb"PK\x03\x04.{0,100}application/vnd\.oasis\.opendocument\.text"),
    ("org", (".org",), b""),
    ("pptx", (".pptx",), rb"PK\x03\x04.*ppt/"),
    ("rst", (".rst",), b""),
    ("rtf", (".rtf",), rb"\{\\rtf"),
]
"""Format, endings, and how a file begins; empty: only its name tells it."""

READERS: dict[str, Reader] = {
    "installed-python": Reader(
        plain_text.read_installed_python,
        endings=(".py",),
        begins=re.compile(re.escape(plain_text.METADATA_FIRST_LINE)).match,
        is_one_document=True,
    ),
    "mediawiki-dump": Reader(
        wikipedia.read_dump,
        begins=re.compile(rb"(?:<\?xml[^>]*>\s*)?<mediawiki\b").match,
        boundary=wikipedia.PAGE_LINE,
        has_header=True,
        decodes_lines=True,
    ),
    "wiki-extracted": Reader(
        wikipedia.read_extracted,
        begins=wikipedia.DOC_LINE.match,
        boundary=wikipedia.DOC_LINE,
        decodes_lines=True,
    ),
    "jsonl": Reader(
        tables.read_jsonl,
        endings=(".jsonl", ".ndjson", ".json"),
        begins=_begins_with_json_object,
        boundary=re.compile(b""),
        decodes_lines=True,
    ),
    "csv": Reader(tables.read_csv, endings=(".csv", ".tsv"), decodes_lines=True),
    "parquet": Reader(
        tables.read_parquet, endings=(".parquet",), begins=re.compile(rb"PAR1").match
    ),
    "arrow": Reader(
        tables.read_arrow, endings=(".arrow", ".feather"), begins=re.compile(rb"ARROW1").match
    ),
    "warc": Reader(
        documents.read_warc,
        endings=(".warc", ".arc", ".wet"),
        begins=re.compile(rb"WARC/[01]\.|filedesc://").match,
    ),
    "mail": Reader(
        documents.read_mail,
        endings=(".eml", ".mbox"),
        begins=re.compile(
            rb"From \S+ .*\d{4}\r?\n|(?:[\w-]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?message-id:",
            re.IGNORECASE,
        ).match,
    ),
    "pdf": Reader(
        documents.read_pdf,
        endings=(".pdf",),
        begins=re.compile(rb"%PDF-").match,
        is_one_document=True,
    ),
    **{
        name: Reader(
            documents.pandoc_reader(name),
            endings=endings,
            begins=re.compile(begins or rb"(?!)", re.IGNORECASE | re.DOTALL).match,
            is_one_document=True,
        )
        for name, endings, begins in _PANDOC
    },
    "archive": Reader(
        lambda file, settings: source_bytes.read_archive(file, settings, _read_member),
        endings=(".zip", ".tar"),
        begins=re.compile(rb".{257}ustar", re.DOTALL).match,
    ),
    "binary": Reader(plain_text.leave_out, begins=plain_text.BINARY.match),
    "html": Reader(
        documents.read_html,
        endings=(".html", ".htm", ".xhtml"),
        begins=re.compile(
            _XML + rb"(?:<!doctype html|<(?:html|head|body|div|p)[\s>])", re.IGNORECASE
        ).match,
        is_one_document=True,
    ),
    "xml": Reader(
        documents.read_markup,
        endings=(".tei", ".sgm", ".sgml"),
        begins=re.compile(rb"<(?:[?!]|/?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=|\s*/?>))").match,
    ),
    "gutenberg": Reader(plain_text.read_gutenberg, begins=_GUTENBERG.search, is_one_document=True),
    "paragraphs": Reader(plain_text.read_paragraphs, boundary=_BLANK_LINE, decodes_lines=True),
    "sentences": Reader(plain_text.read_sentences, boundary=_BLANK_LINE, decodes_lines=True),
    "text": Reader(plain_text.read_text, is_one_document=True),
}
"""In the order in which beginnings are compared: the words that begin a book may occur in any
format."""


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


def format_of(uri: str, settings: SourceSettings) -> str:
    """Return the format of the file at ``uri``, a key of `READERS`.

    The declared format comes first, then the ending of the name, then the beginning of the file. A
    file that none of these identifies is "text".

    Raises:
        OSError: the file can't be read.
    """
    if settings.format != "auto":
        return settings.format
    return _format_by_name(uri) or _format_by_head(source_bytes.read_head(uri, _HEAD_BYTES))


def _format_by_name(name: str) -> str:
    """Return the format that the ending of a name tells, or an empty string."""
    name = name.lower().removesuffix(source_bytes.packed_ending(name))
    return next((told for told, reader in READERS.items() if name.endswith(reader.endings)), "")


def _format_by_head(head: bytes) -> str:
    if head.startswith(_UTF16):
        head = head.decode("utf-16", "replace").encode()
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return next((told for told, reader in READERS.items() if reader.begins(head)), "text")


def can_split(uri: str, format: str) -> bool:  # noqa: A002 - as the settings call it
    """Return whether ranges of the file's bytes can be read, each without what comes before."""
    splittable = READERS[format].boundary is not None and not source_bytes.packed_ending(uri)
    return (
        splittable
        and source_bytes.has_random_access(uri)
        and not source_bytes.read_head(uri, 2).startswith(_UTF16)
    )


def read_documents(
    uri: str,
    name: str,
    settings: SourceSettings,
    format: str,  # noqa: A002 - as the settings call it
    begin: int = 0,
    end: int | None = None,
) -> Iterator[Document | Unreadable]:
    """Yield every record of the file at ``uri`` that begins in a range of its bytes.

    The ranges of a file, however it is cut, give exactly the documents of the whole. Content that
    can't be read is yielded as `Unreadable` and raises nothing: a packed file that breaks off gives
    the documents before the break, then the reason.

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
    reader = READERS[format]
    check_encoding(settings.encoding, by_lines=reader.decodes_lines)
    opened = source_bytes.open_range(uri, begin, end, reader.boundary, reader.has_header)
    try:
        with opened as (start, file):
            is_recoded = reader.decodes_lines and file.peek(2).startswith(_UTF16)
            with _recoded(file) if is_recoded else nullcontext(file) as content:
                for record in reader.read(content, settings):
                    offset = start + record.offset
                    if record.unreadable:
                        member = f"#{record.key}" if format == "archive" and record.key else ""
                        yield Unreadable(uri + member, offset, record.unreadable, record.content)
                    else:
                        record_id = _record_id(name, record.key, offset, reader)
                        yield Document(record_id, record.text, uri, record.lines_are_sentences)
    except source_bytes.BrokenFileError as error:
        yield Unreadable(uri, error.offset, error.reason, b"")


def _read_member(name: str, file: IO[bytes], settings: SourceSettings) -> Iterator[Record]:
    """Yield the records of an archive's member, with its name before their own ids."""
    settings = settings.model_copy(update={"format": "auto"})
    with source_bytes.open_member(name, file) as content:
        told = _format_by_name(name) or _format_by_head(content.peek(_HEAD_BYTES)[:_HEAD_BYTES])
        if told == "archive":
            yield unreadable(NESTED_ARCHIVE, 0, name.encode(errors="replace"), name)
            return
        reader = READERS[told]
        is_recoded = reader.decodes_lines and content.peek(2).startswith(_UTF16)
        with _recoded(content) if is_recoded else nullcontext(content) as readable:
            for record in reader.read(readable, settings):
                key = _record_id(name, record.key, record.offset, reader)
                yield replace(record, key=name if record.unreadable else key)


@contextmanager
def _recoded(file: BinaryIO) -> Iterator[BinaryIO]:
    """Return a file in UTF-16 as one in UTF-8, on the disk: it may be large."""
    with tempfile.TemporaryFile() as recoded:
        shutil.copyfileobj(codecs.EncodedFile(file, "utf-8", "utf-16", "replace"), recoded)
        recoded.seek(0)
        yield recoded


def _record_id(name: str, key: str, offset: int, reader: Reader) -> str:
    if reader.is_one_document:
        return name
    # Half a surrogate pair, as JSON may hold, can't be written.
    return f"{name}#{key.encode(errors='replace').decode()}" if key else f"{name}#@{offset}"
