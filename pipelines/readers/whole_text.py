"""Plain text: the whole file is one document."""

from collections.abc import Callable, Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.encodings import UndecodableError, decode_file
from pipelines.readers.lines import bounded_content
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the one document of the file."""
    yield whole_file(file, settings)


def whole_file(
    file: BinaryIO, settings: SourceSettings, encoding_in: Callable[[bytes], str] = lambda _: ""
) -> Record:
    """Return all of the file as a record.

    Args:
        file: one document.
        settings: its size limit and encoding.
        encoding_in: what a file's content says of its own encoding; empty: nothing.
    """
    max_bytes = max_document_bytes(settings)
    content = bounded_content(file, max_bytes)
    if len(content) > max_bytes:
        return unreadable(TOO_LARGE, 0, content)
    try:
        return Record(decode_file(content, settings.encoding, encoding_in(content)))
    except UndecodableError as error:
        return unreadable(str(error), 0, content)
