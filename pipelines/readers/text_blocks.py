"""Plain text with blank lines between documents, whose lines may be sentences."""

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.encodings import UndecodableError, decode_record
from pipelines.readers.lines import Block, blocks
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable


def read_paragraphs(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each run of lines that are not blank."""
    for block in blocks(file, max_document_bytes(settings)):
        yield _record(block, settings)


def read_sentences(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each run of lines that are not blank, with one sentence a line.

    Source: the input format of the reference's create_pretraining_data.py.
    """
    for record in read_paragraphs(file, settings):
        yield replace(record, lines_are_sentences=True)


def _record(block: Block, settings: SourceSettings) -> Record:
    content = block.content
    if block.too_large:
        return unreadable(TOO_LARGE, block.offset, content)
    try:
        return Record(decode_record(content, settings.encoding), offset=block.offset)
    except UndecodableError as error:
        return unreadable(str(error), block.offset, content)
