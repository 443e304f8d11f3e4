"""Project Gutenberg's texts: one book a file, without the licence around it."""

import re
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.record import Record
from pipelines.readers.whole_text import whole_file

_HEADER_BYTES = 1 << 15
_FLAGS = re.IGNORECASE | re.MULTILINE

_CHARACTER_SET = re.compile(
    rb"^(?:Character set encoding|Character set):[ \t]*([\w.:-]+)(?:[ \t]([\w.-]+))?", _FLAGS
)
# A long title goes on in a second line, before the stars that end the marker.
_START = re.compile(
    r"^[ \t]*\*{1,3}[ \t]*START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    r"(?:[^*\n]*(?:\n[^*\n]+){0,3}\*{2,3}.*|.*)\n",
    _FLAGS,
)
# Before 2003 the licence stood first and ended so; in some later editions it stands last.
_SMALL_PRINT_END = re.compile(r"^[ \t]*\*+[ \t]*END[ \t*]*THE SMALL PRINT!.*\n", _FLAGS)
_END = re.compile(
    r"^[ \t]*(?:\*{1,3}[ \t]*END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    r"|\**[ \t]*END OF (?:THE |THIS )?PROJECT GUTENBERG(?:'S|’S)?(?: E-?(?:BOOK|TEXT))?[ ,]"
    r"|\*{3}[ \t]*END: FULL LICENSE"
    r"|\*{3}[ \t]*START: FULL LICENSE)",
    _FLAGS,
)
_CREDITS = re.compile(
    r"\s*[\[(]?(?:(?:this )?(?:e-?(?:text|book) (?:was )?)?"
    r"(?:produced|prepared|transcribed|scanned|typed|digitized|proofed|proofread|created|updated)"
    r"(?: and [a-z]+)? (?:by|from)\b|HTML version by\b|additional editing by\b|credits:)"
    r"[^\n]*(?:\n[^\n]*\S[^\n]*)*(?:\n|$)",
    re.IGNORECASE,
)
_MAX_CREDITS = 3
"""Paragraphs of credits at the most; what looks like more is the book."""
_MAX_CREDIT_CHARACTERS = 1000


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield the one book of the file; without the markers, all of the file."""
    record = whole_file(file, settings, _declared_encoding)
    yield record if record.unreadable else Record(book(record.text))


def book(text: str) -> str:
    """Return the part of ``text`` between the licence's marks, without the producers' credits."""
    text = text.replace("\r\n", "\n")
    begin = _begin(text)
    end = _END.search(text, begin)
    return _without_credits(text[begin : end.start() if end else len(text)].strip("\n"))


def _begin(text: str) -> int:
    """Return where the book begins, in characters."""
    if start := _START.search(text):
        return start.end()
    small_print = _SMALL_PRINT_END.search(text)
    if small_print is None or _END.search(text, 0, small_print.start()):
        return 0  # in the second case the licence stands behind the book
    return small_print.end()


def _without_credits(text: str) -> str:
    for _ in range(_MAX_CREDITS):
        found = _CREDITS.match(text)
        if found is None or found.end() > _MAX_CREDIT_CHARACTERS:
            break
        text = text[found.end() :]
    return text.strip("\n")


def _declared_encoding(content: bytes) -> str:
    """Return the encoding that the header names, or an empty string."""
    found = _CHARACTER_SET.search(content, 0, _HEADER_BYTES)
    if found is None:
        return ""
    first, second = (part.decode("ascii", "replace") for part in found.groups(b""))
    # "ISO Latin-1" and "Unicode UTF-8" are two words.
    return second if first.lower() in ("iso", "unicode") and second else first
