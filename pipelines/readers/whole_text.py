"""Plain text: the whole file is one document."""

from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.encodings import UndecodableError, decode_file
from pipelines.readers.lines import bounded_content
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the one document of the file."""
    max_bytes = max_document_bytes(settings)
    content = bounded_content(file, max_bytes)
    if len(content) > max_bytes:
        yield unreadable(TOO_LARGE, 0, content)
        return
    try:
        yield Record(decode_file(content, settings.encoding))
    except UndecodableError as error:
        yield unreadable(str(error), 0, content)
