"""Source files to documents: one reader a format, all with the same contract.

A reader is a function ``read(file: BinaryIO, settings: SourceSettings)`` that yields a `Record`
for each document in the file, in order, and a `Record` with a reason for what it could not read.
It holds one record at a time, raises nothing for bad content, and keeps nothing from one file for
the next, so that several threads may read at once. Where a file is one document, a function
``text_of(content: bytes, encoding: str)`` is enough. `format_of` tells which reader a file needs.
`read_documents` opens the file, or the records that begin in a range of its bytes, and makes
documents of what the reader yields.
"""

import codecs
import io
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, cast

from albert_core.text.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import (
    mail,
    markup,
    pandoc,
    pdf,
    plain_text,
    record,
    source_bytes,
    tables,
    web,
    wikipedia,
)
from pipelines.readers.record import Record

NOT_ASKED_FOR = frozenset(
    {
        *("other_namespace", "redirect", "not_wikitext", "not_html", "http_error", "not_text"),
        *("hidden_member", "special_member"),
    }
)
"""Reasons of records that are sound but were not asked for."""
WHAT_TO_DO = {
    "old_office": "are files of Word, Excel or Outlook in their format before 2007; convert them, "
    "for example with `soffice --headless --convert-to docx *.doc`",
    "other_archive": "are archives or packed files of a kind that is not read, or without its "
    "ending; unpack them",
    "archive_bomb": "are zip archives that unpack to 200 times their size; unpack them if you "
    "trust them",
    "encrypted_member": "are encrypted members of archives; unpack these",
    "nested_archive": "are archives in archives; unpack the outer ones",
    "no_text_field": "are rows or objects without a text under the name source.text_field; give it "
    "the name that the texts have",
    "no_text_layer": "are PDFs of pictures only, or of characters without names; recognise their "
    "text first, for example with `ocrmypdf`",
    "not_csv": "are lines of CSV behind a quote that nothing closes, or that text follows; double "
    "the quotes in quoted texts",
    "too_large": "are longer than source.max_document_mb; raise it, or read long files of plain "
    "text with source.format=paragraphs",
    "too_many_columns": "are rows with more columns than the header names; quote texts that have "
    "commas, semicolons or tabs",
    "unknown_markup": "are markup of no known kind; give source.xml_element",
}
"""What the records of a reason are, and how to make them readable."""

_HEAD_BYTES = 1 << 13
_WIDE_BYTES = 8
"""Show whether a file is in UTF-16."""
_Content = io.BufferedReader


@dataclass(frozen=True, slots=True)
class Reader:
    """How files of one format are detected and read."""

    read: Callable[[BinaryIO, SourceSettings], Iterator[Record]]
    endings: tuple[str, ...] = ()
    """Endings of file names, in lower case, without the ending of a compressed file."""
    begins: Callable[[bytes], object] = lambda _: False
    """Whether a file that begins so, byte order mark and blanks removed, has this format."""
    boundary: re.Pattern[bytes] | None = None
    """Matches the beginning of a line where a record may begin; None: a file is never split."""
    header_end: re.Pattern[bytes] | None = None
    """Matches the first line after a header, which any range needs; None: there is none."""
    is_one_document: bool = False
    """Whether a file is one document, with the file's name as its id."""
    decodes_lines: bool = False
    """Whether lines are cut before they are decoded; such a file in UTF-16 is recoded."""


def _document(
    text_of: Callable[[bytes, str], str],
    endings: tuple[str, ...] = (),
    begins: Callable[[bytes], object] = lambda _: False,
) -> Reader:
    """Return the reader of a format whose files are one document each."""

    def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
        yield record.whole_file(file, settings, text_of)

    return Reader(read, endings, begins, is_one_document=True)


def _begins(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(pattern).match


def _begins_with_json_object(head: bytes) -> bool:
    line, line_end, _ = head.partition(b"\n")
    if not line_end:  # the line is longer than the head
        return re.match(rb'\{[ \t]*"(?:[^"\\\n]|\\.){1,200}"[ \t]*:', line) is not None
    try:
        return isinstance(record.from_the_top(json.loads, line), dict)
    except (ValueError, RecursionError):
        return False


_XML = rb"(?:<\?xml[^>]*>\s*)?(?:<!--(?>.{0,4000}?-->)\s*+)*+"
PANDOC_FORMATS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "asciidoc": ((".adoc", ".asciidoc"), b""),
    "docbook": (
        (".dbk", ".docbook"),
        _XML + rb"(?:<!doctype[^>]{0,200}docbook"
        rb"|(?:<!doctype[^>]{0,200}>\s*)?<[a-z:]+[^>]{0,400}docbook\.org)",
    ),
    "docx": ((".docx",), rb"PK\x03\x04.*word/"),
    "epub": ((".epub",), rb"PK\x03\x04.{0,100}application/epub\+zip"),
    "fb2": ((".fb2",), _XML + rb"<FictionBook\b"),
    "ipynb": ((".ipynb",), b""),
    "jats": (
        (".nxml", ".jats"),
        _XML + rb"(?:<!doctype article[^>]{0,200}(?:jats|nlm)"
        rb"|<article\b[^>]{0,400}(?:article-type|dtd-version))",
    ),
    "latex": ((".tex", ".latex"), rb"(?:%[^\n]*\n|\s)*\\documentclass\b"),
    "markdown": ((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd", ".md.txt"), b""),
    "odt": ((".odt",), rb"PK\x03\x04.{0,100}application/vnd\.oasis\.opendocument\.text"),
    "org": ((".org",), b""),
    "pptx": ((".pptx",), rb"PK\x03\x04.*ppt/"),
    "rst": ((".rst", ".rest", ".rst.txt"), rb"(?:[^\0]{0,8000}?\n)?\.\. [a-z][a-z-]+::\s"),
    "rtf": ((".rtf",), rb"\{\\rtf"),
}
"""Endings and first bytes of the files of each format; no bytes: only the name identifies it."""

_BLANK_LINE = re.compile(rb"[ \t\r\f\v]*\n")
READERS: dict[str, Reader] = {
    "installed-python": _document(
        plain_text.documentation, (".py",), _begins(re.escape(plain_text.METADATA_FIRST_LINE))
    ),
    "mediawiki-dump": Reader(
        wikipedia.read_dump,
        begins=_begins(rb"(?:<\?xml[^>]*>\s*)?<mediawiki\b"),
        boundary=wikipedia.PAGE_LINE,
        header_end=wikipedia.FIRST_PAGE_LINE,
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
        (".jsonl", ".ndjson"),
        _begins_with_json_object,
        boundary=re.compile(b""),
        decodes_lines=True,
    ),
    "json": Reader(
        tables.read_json,
        (".json",),
        _begins(rb'\[\s*\{\s*["}]|\{[ \t]*\r?\n\s*"'),
        decodes_lines=True,
    ),
    "csv": Reader(tables.read_csv, (".csv", ".tsv"), decodes_lines=True),
    "parquet": Reader(tables.read_parquet, (".parquet",), _begins(rb"PAR1")),
    "arrow": Reader(tables.read_arrow, (".arrow", ".feather"), _begins(rb"ARROW1")),
    "warc": Reader(web.read_warc, (".warc", ".arc", ".wet"), _begins(rb"WARC/[01]\.|filedesc://")),
    "mail": Reader(
        mail.read_mail,
        (".eml", ".mbox", ".mht", ".mhtml"),
        _begins(
            rb"(?i)From \S+ .*\d:\d\d.*\d{4}\r?\n"
            rb"|(?:[\w-]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?message-id:"
        ),
    ),
    "pdf": _document(pdf.text_layer, (".pdf",), _begins(rb"%PDF-")),
    **{
        name: _document(
            partial(pandoc.by_pandoc, name), endings, _begins(b"(?is)" + (begin or b"(?!)"))
        )
        for name, (endings, begin) in PANDOC_FORMATS.items()
    },
    "archive": Reader(
        lambda file, settings: _read_archive(cast(_Content, file), settings),
        (".zip", ".tar"),
        _begins(rb"(?s).{257}ustar"),
    ),
    "binary": Reader(plain_text.leave_out, (".svg",), plain_text.BINARY.match),
    "html": _document(
        web.text_of_page,
        (".html", ".htm", ".xhtml"),
        _begins(b"(?i)" + _XML + rb"(?:<!doctype html|<(?:html|head|body|div|p)[\s>])"),
    ),
    "xml": Reader(
        markup.read_markup,
        (".tei", ".sgm", ".sgml"),
        _begins(
            rb"<(?:[?!]|/?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=|\s*/?>))"
            rb"|%!PS|\\input texinfo|['.]\\\"|\.(?:TH|Dd|SH|so)\s"
        ),
    ),
    "gutenberg": _document(plain_text.text_of_book, begins=plain_text.GUTENBERG.search),
    "paragraphs": Reader(plain_text.read_paragraphs, boundary=_BLANK_LINE, decodes_lines=True),
    # The input format of create_pretraining_data.py in google-research/albert
    "sentences": Reader(plain_text.read_paragraphs, boundary=_BLANK_LINE, decodes_lines=True),
    "text": _document(record.decode_file),
}
"""In the order in which the first bytes are compared: the words that begin a book may occur in any
format."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record, or the rest of a file, that could not be read."""

    uri: str
    """The file."""
    offset: int
    """Where it begins in the unpacked file, in bytes; in a table, the number of its row."""
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
    return _format(uri, lambda: source_bytes.read_head(uri, _HEAD_BYTES))


def _format(name: str, head: Callable[[], bytes]) -> str:
    told = _format_by_name(name)
    if told == "json":  # which lines of JSON are often called too
        return told if _format_by_head(head()) == told else "jsonl"
    return told or _format_by_head(head())


def _format_by_name(name: str) -> str:
    """Return the format that the ending of a name identifies, or an empty string."""
    name = name.lower().removesuffix(source_bytes.packed_ending(name))
    return next((told for told, reader in READERS.items() if name.endswith(reader.endings)), "")


def _format_by_head(head: bytes) -> str:
    if wide := record.wide_encoding(head):
        head = head.decode(wide, "replace").encode()
    head = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return next((told for told, reader in READERS.items() if reader.begins(head)), "text")


def can_split(uri: str, format: str) -> bool:  # noqa: A002 - as the settings call it
    """Return whether ranges of the file's bytes can be read, each without what comes before it."""
    return (
        READERS[format].boundary is not None
        and not source_bytes.packed_ending(uri)
        and source_bytes.has_random_access(uri)
        and not record.wide_encoding(source_bytes.read_head(uri, _WIDE_BYTES))
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
    can't be read is yielded as `Unreadable` and raises nothing: a truncated compressed file gives
    the documents before the break, then the reason.

    Args:
        uri: the file; gz, bz2, xz, lzma, zst, lz4 and br are decompressed by their ending.
        name: the file's name relative to the source. Document ids are ``name#key`` with a
            record's own id, or else ``name#@offset`` with its first byte in the unpacked file,
            and ``name`` alone where a file is one document.
        settings: how to read it.
        format: a key of `READERS`, as returned by `format_of`.
        begin: first byte of the range.
        end: one past its last byte; None: to the end of the file.

    Raises:
        ConfigError: the encoding is unknown, or can't be cut into lines where the format is.
    """
    reader = READERS[format]
    record.check_encoding(settings.encoding, by_lines=reader.decodes_lines)
    try:
        with source_bytes.open_range(uri, begin, end, reader.boundary, reader.header_end) as opened:
            start, content = opened
            for each in _records(content, reader, settings):
                offset = start + each.offset
                if each.unreadable:
                    member = f"#{each.key}" if format == "archive" and each.key else ""
                    yield Unreadable(uri + member, offset, each.unreadable, each.content)
                else:
                    record_id = _record_id(name, each.key, offset, reader)
                    yield Document(record_id, each.text, uri, format == "sentences")
    except source_bytes.BrokenFileError as error:
        yield Unreadable(uri, error.offset, error.reason, b"")


def _records(content: _Content, reader: Reader, settings: SourceSettings) -> Iterator[Record]:
    """Yield the reader's records; if it splits lines, UTF-16 is first converted to UTF-8."""
    wide = record.wide_encoding(content.peek(_WIDE_BYTES)) if reader.decodes_lines else ""
    with tempfile.TemporaryFile() if wide else nullcontext(content) as readable:
        if wide:  # on the disk: it may be large
            shutil.copyfileobj(codecs.EncodedFile(content, "utf-8", wide, "replace"), readable)
            readable.seek(0)
        yield from reader.read(readable, settings)


def _record_id(name: str, key: str, offset: int, reader: Reader) -> str:
    if reader.is_one_document:
        return name
    # Half a surrogate pair, as JSON may hold, can't be written.
    return f"{name}#{key.encode(errors='replace').decode()}" if key else f"{name}#@{offset}"


def _read_archive(content: _Content, settings: SourceSettings) -> Iterator[Record]:
    """Yield the records of all members; their offsets are the members' numbers.

    A broken member is "corrupt_archive", and the next one is read; of a tar archive, which has no
    index, all before the break are read.
    """
    number = 0
    try:
        for member in source_bytes.members_of(content):
            yield from _records_of_member(number, member, settings)
            number += 1
    except source_bytes.ARCHIVE_ERRORS:
        yield record.unreadable(source_bytes.CORRUPT, number)


def _records_of_member(
    number: int, member: source_bytes.Member, settings: SourceSettings
) -> Iterator[Record]:
    """Yield the records of a member by its own format, with its name before their own ids."""
    name = member.name
    left_out = partial(
        record.unreadable, offset=number, content=name.encode(errors="replace"), key=name
    )
    if member.skipped:
        yield left_out(member.skipped)
        return
    try:
        with source_bytes.open_member(member) as content:
            told = _format(name, lambda: content.peek(_HEAD_BYTES)[:_HEAD_BYTES])
            if told == "archive":
                yield left_out("nested_archive")
                return
            reader = READERS[told]
            for each in _records(content, reader, settings):
                key = _record_id(name, each.key, each.offset, reader)
                yield replace(each, key=name if each.unreadable else key, offset=number)
    except source_bytes.BrokenFileError as error:
        if error.reason == source_bytes.NOT_READABLE:
            raise
        yield left_out(error.reason)
    except source_bytes.ARCHIVE_ERRORS:  # a damaged header, or a compression unknown to Python
        yield left_out(source_bytes.CORRUPT)
