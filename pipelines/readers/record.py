"""What a reader yields."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a source file: a text, or why there is none."""

    text: str = ""
    key: str = ""
    """The record's own id in its file; empty: its number is used."""
    unreadable: str = ""
    """Why the record could not be read; empty: it could."""


def decoded(content: bytes, key: str = "") -> Record:
    """Return ``content`` as a record of UTF-8 text."""
    try:
        return Record(content.decode("utf-8-sig"), key)
    except UnicodeDecodeError:
        return Record(key=key, unreadable="not_utf8")
