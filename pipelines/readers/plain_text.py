"""Plain text: the whole file is one document."""

from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.record import Record, decoded


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the one document of the file."""
    del settings
    yield decoded(file.read())
