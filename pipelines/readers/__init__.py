"""Source files to documents: one reader a format, all with the same contract.

A reader is a function ``read(content: BinaryIO, settings: SourceSettings)`` that yields a
`Record` for each document in the file, in order, and a `Record` with a reason for what it could
not read. `read_documents` makes documents of them, with ids that are stable and unique.
"""

import codecs
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import fsspec

from albert_core.contract.errors import SourceError
from albert_core.contract.records import Document
from pipelines.config import SourceSettings
from pipelines.readers import installed_python, jsonl, plain_text, wiki_extracted
from pipelines.readers.record import Record

Reader = Callable[[BinaryIO, SourceSettings], Iterator[Record]]

READERS: dict[str, Reader] = {
    "installed-python": installed_python.read,
    "wiki-extracted": wiki_extracted.read,
    "jsonl": jsonl.read,
    "text": plain_text.read,
}
_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that could not be read."""

    where: str
    """File and record."""
    reason: str


def read_documents(
    uri: str, name: str, settings: SourceSettings
) -> Iterator[Document | Unreadable]:
    """Yield every record of the file at ``uri``.

    Args:
        uri: the file; gz, bz2, xz and zst are unpacked by their ending.
        name: the file's name relative to the source; document ids begin with it.
        settings: how to read it.

    Raises:
        SourceError: the file can't be opened, or its compression is broken.
    """
    seen: Counter[str] = Counter()
    try:
        read = READERS[_format(uri, settings)]  # in memory, two openings share one position
        with fsspec.open(uri, "rb", compression="infer") as file:
            for ordinal, record in enumerate(read(file, settings)):
                record_id = _unused(f"{name}#{record.key or ordinal}", seen)
                if record.unreadable:
                    yield Unreadable(record_id, record.unreadable)
                else:
                    yield Document(record_id, record.text, uri)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(
            f"{uri} can't be read: {error}. Mend or remove the file, then run the stage again."
        ) from error


def _unused(record_id: str, seen: Counter[str]) -> str:
    """Return ``record_id``, numbered if it is in ``seen`` already, and add it there."""
    unused = record_id
    while unused in seen:
        seen[record_id] += 1
        unused = f"{record_id}~{seen[record_id]}"
    seen[unused] += 1
    return unused


def _format(uri: str, settings: SourceSettings) -> str:
    """Return the format declared, or else the one that the file's name and beginning tell."""
    if settings.format != "auto":
        return settings.format
    name = uri.lower()
    for ending in (".gz", ".bz2", ".xz", ".zst"):
        name = name.removesuffix(ending)
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    if name.endswith(".py"):
        return "installed-python"
    with fsspec.open(uri, "rb", compression="infer") as file:
        head = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if head.startswith(installed_python.METADATA_FIRST_LINE):
        return "installed-python"
    return "wiki-extracted" if head.startswith(b"<doc ") else "text"
