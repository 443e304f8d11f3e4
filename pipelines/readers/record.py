"""What a reader yields."""

from dataclasses import dataclass

from pipelines.config import SourceSettings

MAX_CONTENT_BYTES = 1 << 16
"""Raw bytes kept of a record that can't be read."""

TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a source file: a text, or why there is none."""

    text: str = ""
    key: str = ""
    """The record's own id in its file; empty: its offset is used."""
    unreadable: str = ""
    """Why the record could not be read; empty: it could."""
    offset: int = 0
    """Its first byte in the file given to the reader; parquet: the number of its row."""
    content: bytes = b""
    """Raw bytes of an unreadable record, at most `MAX_CONTENT_BYTES`."""
    lines_are_sentences: bool = False
    """Whether each line of the text is one sentence."""


def unreadable(reason: str, offset: int, content: bytes = b"", key: str = "") -> Record:
    """Return a record that could not be read, with the beginning of its ``content``."""
    return Record("", key, reason, offset, content[:MAX_CONTENT_BYTES])


def max_document_bytes(settings: SourceSettings) -> int:
    """Return the size of the largest record read, in bytes."""
    return int(settings.max_document_mb * 1_000_000)


NOT_READABLE = "not_readable"
TRUNCATED, CORRUPT = "truncated_archive", "corrupt_archive"


class BrokenFileError(Exception):
    """A file breaks off; what came before was read."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset
        """Where it broke, in the unpacked content."""
