"""Web archives: WARC and the older ARC, with pages in HTML, or WET with their text."""

import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, cast

import brotli  # type: ignore[import-untyped]
from warcio.exceptions import ArchiveLoadFailed  # type: ignore[import-untyped]
from warcio.recordloader import ArcWarcRecordLoader  # type: ignore[import-untyped]
from warcio.statusandheaders import (  # type: ignore[import-untyped]
    StatusAndHeadersParserException,
)

from pipelines.config import SourceSettings
from pipelines.readers.documents import decode_page, text_of_page
from pipelines.readers.record import (
    Record,
    max_document_bytes,
    text_record,
    unreadable,
)

BROKEN_RECORD, TRUNCATED_RECORD = "broken_record", "truncated_record"
NOT_HTML, HTTP_ERROR = "not_html", "http_error"

_MAX_LINE_BYTES = 1 << 14
_SKIP_BYTES = 1 << 20
_FLAGS = re.IGNORECASE | re.DOTALL
_ARC_LINE = re.compile(rb"[a-z]+:\S+ \S+ [0-9]{8,14} .*[0-9]+\s*$")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_HTML_BEGINS = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head)\b", _FLAGS)
_WARC_ERRORS = (
    ArchiveLoadFailed,
    StatusAndHeadersParserException,
    EOFError,
    OverflowError,  # of a length beyond what a file can have
    ValueError,
    AttributeError,  # raised for a response without an address
)

logging.getLogger("warcio").setLevel(logging.CRITICAL)


def read_warc(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each page in HTML, and for each text of a WET file.

    Other records (requests, metadata, name look-ups, the archive's description) are not documents
    and not counted. Responses of another type are "not_html", unsuccessful ones "http_error". After
    a broken record, reading continues at the next one.
    """
    after_broken = False
    while line := file.readline(_MAX_LINE_BYTES):
        offset = file.tell() - len(line)
        if line.isspace():
            continue
        found = _parse(file, line)
        if found is not None:
            yield from _records(found, offset, settings)
        elif not after_broken:
            yield unreadable(BROKEN_RECORD, offset, line)
        after_broken = found is None


def _parse(file: BinaryIO, line: bytes) -> Any | None:
    """Return the record that begins with ``line``, or None if none does."""
    kind = "warc" if line.startswith(b"WARC/") else "arc" if _ARC_LINE.match(line) else ""
    if not kind:
        return None
    loader = ArcWarcRecordLoader(verify_http=False, arc2warc=False)
    try:
        found = loader.parse_record_stream(file, line, kind)
    except _WARC_ERRORS:
        return None
    # A record without a length would be the whole rest of the file.
    return None if found.raw_stream is file else found


def _records(found: Any, offset: int, settings: SourceSettings) -> Iterator[Record]:
    """Yield the document of a record, if it is one, and read to the record's end."""
    uri = found.rec_headers.get_header("uri" if found.format == "arc" else "WARC-Target-URI") or ""
    max_bytes = max_document_bytes(settings)
    is_wanted = _is_answer(found, uri) or found.rec_type in ("resource", "conversion")
    content = _content(found, max_bytes) if is_wanted else b""
    while found.raw_stream.read(_SKIP_BYTES):
        pass
    if not is_wanted:
        return
    content_type = _content_type(found, content)
    if found.raw_stream.limit > 0:
        yield unreadable(TRUNCATED_RECORD, offset, content, uri)
    elif reason := _left_out(found, content_type):
        yield unreadable(reason, offset, content, uri)
    else:
        decode = decode_page if found.rec_type == "conversion" else text_of_page
        yield text_record(
            content, settings, offset, uri, partial(decode, content_type=content_type)
        )


def _content(found: Any, max_bytes: int) -> bytes:
    """Return the record's content, unpacked; if it is too large, the beginning."""
    if found.length > max_bytes:  # not unpacked: that would hold a whole chunk
        return cast(bytes, found.raw_stream.read(max_bytes + 1))
    coded = found.http_headers.get_header("Content-Encoding", "") if found.http_headers else ""
    if coded.strip().lower() != "br":
        return cast(bytes, found.content_stream().read(max_bytes + 1))
    found.http_headers.remove_header("Content-Encoding")  # warcio fails with brotli 1.2
    packed = found.content_stream().read()
    try:
        return brotli.Decompressor().process(packed, output_buffer_limit=max_bytes + 1)
    except brotli.error:  # some archives unpack a page and keep its header
        return cast(bytes, packed)


def _is_answer(found: Any, uri: str) -> bool:
    return bool(found.rec_type == "response" and uri.lower().startswith(("http:", "https:")))


def _content_type(found: Any, content: bytes) -> str:
    """Return the type as the server or the archive gave it, in lower case."""
    if found.http_headers is not None:
        declared = found.http_headers.get_header("Content-Type")
    else:
        declared = found.content_type
    return (declared or ("text/html" if _HTML_BEGINS.match(content) else "")).strip().lower()


def _left_out(found: Any, content_type: str) -> str:
    """Return why the record is no page, or an empty string if it is one."""
    if found.rec_type == "conversion":
        return ""
    if found.rec_type == "response":
        status = found.http_headers.get_statuscode() if found.http_headers else ""
        if not status.startswith("2"):
            return HTTP_ERROR
    return "" if content_type.startswith(_HTML_TYPES) else NOT_HTML
