"""JSON lines: one object a line, with a text field and perhaps an id field."""

import json
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.record import Record


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each line that is not blank."""
    for line in file:
        if line.strip():
            yield _record(line, settings)


def _record(line: bytes, settings: SourceSettings) -> Record:
    try:
        values = json.loads(line)
    except UnicodeDecodeError:
        return Record(unreadable="not_utf8")
    except (ValueError, RecursionError):  # ValueError: also a number of too many digits
        return Record(unreadable="not_json")
    if not isinstance(values, dict) or not isinstance(values.get(settings.text_field), str):
        return Record(unreadable="no_text_field")
    key = values.get(settings.id_field)
    text = "" if key is None else str(key).encode(errors="replace").decode()
    return Record(values[settings.text_field], text)
