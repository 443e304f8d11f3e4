"""WikiExtractor output: ``<doc id="12" url="..." title="...">``, the article, ``</doc>``."""

import codecs
import itertools
import re
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.record import Record, decoded

_OPENING = re.compile(rb'<doc\b[^>]*?\bid="([^"]*)"[^>]*>\s*$')
_CLOSING = b"</doc>"


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each block; a block that is not closed is unreadable."""
    del settings
    key: str | None = None
    lines: list[bytes] = []
    first = file.readline().removeprefix(codecs.BOM_UTF8)
    for line in itertools.chain([first], file):
        if opening := _OPENING.match(line):
            if key is not None:
                yield Record(key=key, unreadable="doc_not_closed")
            key, lines = opening.group(1).decode(errors="replace"), []
        elif line.rstrip() == _CLOSING and key is not None:
            yield decoded(b"".join(lines), key)
            key = None
        elif key is not None:
            lines.append(line)
        elif line.strip():
            yield Record(unreadable="text_outside_doc")
    if key is not None:
        yield Record(key=key, unreadable="doc_not_closed")
