"""Wikipedia: MediaWiki's XML dumps, and the output of WikiExtractor.

A dump (pages-articles) gives a document for each article, without its markup. The file is a whole
dump, or a range of its bytes that begins at a ``<page>`` and ends before another one, perhaps with
the dump's header before it. Text in a dump is escaped, so that ``<page>`` and ``</page>`` are never
part of an article: the bytes are cut there, and a broken page does not harm the next one.

WikiExtractor writes ``<doc id="12" url="..." title="...">``, the article, ``</doc>``.
"""

import codecs
import html
import re
from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree as ET

from pipelines.config import SourceSettings
from pipelines.corpus.wikitext import LEFT_OUT, plain_text
from pipelines.readers import record
from pipelines.readers.record import Record

PAGE_LINE = re.compile(rb"[ \t]*<page>")
"""The beginning of a line where a page of a dump begins."""
FIRST_PAGE_LINE = re.compile(rb"[^\n]*?<page>")
"""The first line after a dump's header, in which a page begins somewhere."""
# Titles are not escaped and may hold quotes and angles, so the end of the tag cannot be found.
DOC_LINE = re.compile(rb'(?:\xef\xbb\xbf)?<doc\b[^\n]{0,4000}?\bid="([^"\n]{0,4000})"')
"""The beginning of a line where an article of WikiExtractor begins."""

_BEGIN = b"<page>"
_END = b"</page>"
_BLOCK_BYTES = 1 << 20
_BETWEEN = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:</mediawiki>\s*)?(?:<\?xml[^>]*>\s*)?"
    rb"(?:<mediawiki\b[^>]*>\s*(?:<siteinfo>.*?</siteinfo>\s*)?)?(?:</mediawiki>\s*)?",
    re.DOTALL,
)
"""The header and the end of dumps, which a file may contain besides pages."""
_NAMESPACE_NAME = re.compile(rb'<namespace key="(-?\d+)"[^>]*>([^<]+)</namespace>')
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_MAX_NAMESPACE_DIGITS = 10
"""Python refuses to read numbers of thousands of digits."""
_ID = re.compile(rb"<id>\s*(\d+)\s*</id>")
_UNSEEN_NAMESPACES = (b"6", b"14")
"""Namespaces of files and categories, to which links show no text."""


def read_dump(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each article, and a reason for each page that is left out.

    What the settings or the page itself leave out is ``other_namespace``, ``redirect`` or
    ``not_wikitext``; what can't be read is ``broken_xml`` or ``too_large``. A page without
    ``<ns>``, as in dumps before 2012, counts as an article. Of a page's revisions the last counts,
    and of several dumps in a file the header of the first.

    Raises:
        Exception: whatever reading ``file`` raises, after the pages before.
    """
    left_out = LEFT_OUT
    for offset, piece in _pieces(file, settings.max_document_bytes):
        before, *pages = piece.split(_BEGIN)
        if offset == 0:  # a later header is not seen by a range after it
            left_out = LEFT_OUT | _unseen_names(before)
        position = offset + len(before)
        for page in pages:
            yield _article(_BEGIN + page, position, settings, left_out)
            position += len(_BEGIN + page)
        if not pages and not _BETWEEN.fullmatch(before):
            yield record.unreadable("broken_xml", offset, before)


def _pieces(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of ``file`` with their offsets, cut after each ``</page>``.

    Without one they are also cut where they exceed ``max_bytes`` and a block, which is room for a
    header, so that no more than that is held.
    """
    # In a broken archive, read() would lose what could be unpacked before the break.
    read_some = getattr(file, "read1", file.read)
    offset, size, parts, tail = 0, 0, [b""], b""
    while block := read_some(_BLOCK_BYTES):
        parts.append(block)
        size += len(block)
        if size > max_bytes + _BLOCK_BYTES or _END in tail + block:
            *whole, rest = b"".join(parts).split(_END)
            for piece in whole:
                yield offset, piece + _END
                offset += len(piece) + len(_END)
            if len(rest) > max_bytes + _BLOCK_BYTES:
                yield offset, rest[: -len(_END)]
                offset, rest = offset + len(rest) - len(_END), rest[-len(_END) :]
            parts, size = [rest], len(rest)
        tail = (tail + block)[1 - len(_END) :]
    yield offset, b"".join(parts)


def _unseen_names(header: bytes) -> frozenset[str]:
    """Return the names, in lower case, that a dump's header gives to files and categories."""
    return frozenset(
        html.unescape(name.decode(errors="replace")).lower()
        for number, name in _NAMESPACE_NAME.findall(header)
        if number in _UNSEEN_NAMESPACES
    )


def _article(
    page: bytes, offset: int, settings: SourceSettings, left_out: frozenset[str]
) -> Record:
    """Return the article in ``page``, from ``<page>`` to ``</page>``, or why there is none."""
    head = page[: max(page.find(b"<revision>"), 0)] or page
    found_id, namespace = _ID.search(head), _NAMESPACE.search(head)
    key = found_id[1].decode() if found_id else ""
    digits = namespace[1] if namespace else b""
    if len(digits) > _MAX_NAMESPACE_DIGITS or (
        digits and int(digits) not in settings.wiki_namespaces
    ):
        return record.unreadable("other_namespace", offset, key=key)
    if b"<redirect" in head:
        return record.unreadable("redirect", offset, key=key)
    if len(page) > settings.max_document_bytes:
        return record.unreadable("too_large", offset, page, key)
    try:
        title, text, is_wikitext = _fields(ET.fromstring(page.rstrip()))  # noqa: S314
    except ET.ParseError:
        return record.unreadable("broken_xml", offset, page, key)
    if not is_wikitext:
        return record.unreadable("not_wikitext", offset, key=key)
    body = plain_text(text, left_out)
    return Record(text=f"{title}\n\n{body}" if body else "", key=key, offset=offset)


def _fields(page: ET.Element) -> tuple[str, str, bool]:
    """Return the title, the last text, and whether it is wiki markup."""
    revisions = page.findall("revision")
    last = revisions[-1] if revisions else page
    is_wikitext = (
        last.findtext("model", "wikitext") == "wikitext"
        and last.findtext("format", "text/x-wiki") == "text/x-wiki"
    )
    return page.findtext("title", "").strip(), last.findtext("text", ""), is_wikitext


# WikiExtractor

_CLOSING = b"</doc>"
_MARKED = (b"<doc", _CLOSING, codecs.BOM_UTF8)


def read_extracted(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each block; unclosed blocks and text outside blocks are unreadable."""
    max_bytes = settings.max_document_bytes
    key: str | None = None
    block: record.Block | None = None
    for offset, line in record.bounded_lines(file, max_bytes):
        if line.startswith(_MARKED):
            if opening := DOC_LINE.match(line):
                yield from _broken_off(block, key)
                key = opening.group(1).decode(errors="replace")
                block = record.Block(offset, max_bytes)
                continue
            if line.rstrip() == _CLOSING and block is not None and key is not None:
                yield record.text_record(block.content, settings, block.offset, key)
                key = block = None
                continue
        if block is None:
            if line.isspace():
                continue
            block = record.Block(offset, max_bytes)
        block.add(line)
    yield from _broken_off(block, key)


def _broken_off(block: record.Block | None, key: str | None) -> Iterator[Record]:
    """Yield the lines gathered before a block begins or the file ends, if there are any."""
    if block is not None:
        reason = "text_outside_doc" if key is None else "doc_not_closed"
        yield record.unreadable(reason, block.offset, block.content, key or "")
