"""WikiExtractor output: ``<doc id="12" url="..." title="...">``, the article, ``</doc>``."""

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.encodings import UndecodableError, decode_record
from pipelines.readers.lines import Block, bounded_lines
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable

# Titles are not escaped and may hold quotes and angles, so that the tag's end tells nothing.
OPENING = re.compile(rb'(?:\xef\xbb\xbf)?<doc\b[^\n]{0,4000}?\bid="([^"\n]{0,4000})"')
_CLOSING = b"</doc>"
_MARKED = (b"<doc", _CLOSING, codecs.BOM_UTF8)


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each block; a block that is not closed is unreadable.

    So is each run of lines outside the blocks.
    """
    max_bytes = max_document_bytes(settings)
    key: str | None = None
    block: Block | None = None
    for offset, line in bounded_lines(file, max_bytes):
        if line.startswith(_MARKED):
            if opening := OPENING.match(line):
                yield from _broken_off(block, key)
                key = opening.group(1).decode(errors="replace")
                block = Block(offset, max_bytes)
                continue
            if line.rstrip() == _CLOSING and block is not None and key is not None:
                yield _record(block, key, settings)
                key = block = None
                continue
        if block is None:
            if line.isspace():
                continue
            block = Block(offset, max_bytes)
        block.add(line)
    yield from _broken_off(block, key)


def _broken_off(block: Block | None, key: str | None) -> Iterator[Record]:
    """Yield what was gathered before a block began or the file ended, if anything was."""
    if block is not None:
        reason = "text_outside_doc" if key is None else "doc_not_closed"
        yield unreadable(reason, block.offset, block.content, key or "")


def _record(block: Block, key: str, settings: SourceSettings) -> Record:
    content = block.content
    if block.too_large:
        return unreadable(TOO_LARGE, block.offset, content, key)
    try:
        return Record(decode_record(content, settings.encoding), key, offset=block.offset)
    except UndecodableError as error:
        return unreadable(str(error), block.offset, content, key)
