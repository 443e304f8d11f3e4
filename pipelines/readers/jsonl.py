"""JSON lines: one object a line, with a text field and perhaps an id field; Dolma's are such."""

import json
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.encodings import UndecodableError, decode_record
from pipelines.readers.lines import bounded_lines
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each line that is not blank."""
    max_bytes = max_document_bytes(settings)
    for offset, line in bounded_lines(file, max_bytes):
        if line.isspace():
            continue
        if len(line) > max_bytes:
            yield unreadable(TOO_LARGE, offset, line)
        else:
            yield _record(offset, line, settings)


def _record(offset: int, line: bytes, settings: SourceSettings) -> Record:
    try:
        values = json.loads(decode_record(line, settings.encoding))
    except UndecodableError as error:
        return unreadable(str(error), offset, line)
    except (ValueError, RecursionError):  # ValueError: also a number of too many digits
        return unreadable("not_json", offset, line)
    text = values.get(settings.text_field) if isinstance(values, dict) else None
    if not isinstance(text, str):
        return unreadable("no_text_field", offset, line)
    if b"\\ud" in line or b"\\uD" in line:  # half a surrogate pair is no text: nothing can write it
        text = text.encode(errors="replace").decode()
    key = values.get(settings.id_field)
    return Record(text, "" if key is None else str(key), offset=offset)
