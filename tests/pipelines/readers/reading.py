"""What the tests of the readers share: read a file, look at what came of it, pack one."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from albert_core.stage import storage
from albert_core.text.records import Document
from pipelines.config import SourceFormat, SourceSettings
from pipelines.readers import Unreadable, format_of, read_documents

CORPORA = Path(__file__).parents[4] / "shared/data/corpora"
Pack = Callable[[bytes], bytes]
PACKERS: dict[str, Pack] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lzma": lambda content: lzma.compress(content, lzma.FORMAT_ALONE),
    ".zst": zstandard.ZstdCompressor().compress,
}
WIKI = b"""<doc id="12" url="https://x/wiki?curid=12" title="Anarchism">
Anarchism

It is a philosophy.
</doc>
<doc id="25" url="https://x/wiki?curid=25" title="Autism">
Autism &amp; others.
</doc>
"""

Read = list[Document | Unreadable]


def read(
    path: Path | str, declared: SourceFormat = "auto", name: str | None = None, **settings: Any
) -> Read:
    """Read all of a file as the corpus stage would."""
    source = SourceSettings(format=declared, **settings)
    name = str(path).rpartition("/")[2] if name is None else name
    return list(read_documents(str(path), name, source, format_of(str(path), source)))


def read_content(
    folder: Path, name: str, content: bytes, declared: SourceFormat = "auto", **settings: Any
) -> Read:
    """Write ``content`` to a file and read it."""
    (folder / name).write_bytes(content)
    return read(folder / name, declared, **settings)


def read_in_memory(content: bytes, declared: SourceFormat, **settings: Any) -> Read:
    """Read ``content`` as a file named "any"."""
    storage.write_bytes("memory://readers/any", content)
    return read("memory://readers/any", declared, **settings)


def documents(records: Read) -> list[Document]:
    """Return the documents, of which there must be nothing else."""
    assert all(isinstance(record, Document) for record in records), records
    return [record for record in records if isinstance(record, Document)]


def texts(records: Read) -> list[str]:
    """Return the documents' texts."""
    return [document.text for document in documents(records)]


def ids(records: Read) -> list[str]:
    """Return the documents' ids."""
    return [document.id for document in documents(records)]


def reasons(records: Read) -> list[str]:
    """Return why records could not be read."""
    return [record.reason for record in records if isinstance(record, Unreadable)]


def split(records: Read) -> tuple[list[Document], list[Unreadable]]:
    """Return the documents and what could not be read."""
    good = [record for record in records if isinstance(record, Document)]
    return good, [record for record in records if isinstance(record, Unreadable)]


def json_lines(*objects: object) -> bytes:
    """Return one JSON object a line."""
    return "".join(json.dumps(value) + "\n" for value in objects).encode()


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where a real corpus is absent."""
    return pytest.mark.skipif(not (CORPORA / name).exists(), reason=f"{CORPORA / name} is absent")
