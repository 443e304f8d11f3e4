"""The record that readers yield, and what they share: encodings, and records of bounded size."""

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from chardet import EncodingEra, detect_all

from albert_core.stage.errors import ConfigError
from pipelines.config import SourceSettings

MAX_CONTENT_BYTES = 1 << 16
"""Raw bytes kept of an unreadable record."""
AUTO = "auto"
"""The encoding is detected."""
NOT_DECODABLE, NOT_EXTRACTABLE = "not_decodable", "not_extractable"

Given = TypeVar("Given")

_SKIP_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18
_WIDE = {
    "utf-32": re.compile(b"\xff\xfe\0\0|\0\0\xfe\xff"),
    "utf-16": re.compile(b"\xff\xfe|\xfe\xff"),
    "utf-16-le": re.compile(rb"(?:[\t\n\r -~]\0){4}"),
    "utf-16-be": re.compile(rb"(?:\0[\t\n\r -~]){4}"),
}
"""How a text in an encoding begins: with its byte order mark, or in ASCII without one."""
_ASCII = bytes(range(0x80))
_ASCII_ALIKE = frozenset({"utf-7", "hz", "iso2022_kr"})
"""Encodings whose bytes are valid ASCII, so that only a hint reveals them."""
_ESCAPED = "iso2022_jp_2"
"""Another one, which its own bytes reveal."""
_ESCAPES = b"\x1b$B", b"\x1b$@"
"""Begin Japanese characters in it."""
_ERAS = EncodingEra.ALL & ~EncodingEra.MAINFRAME
"""Short texts are easily mistaken for code pages of mainframes."""
_FREQUENT = ("cp1252", "iso8859-1", "cp932")
"""Taken where a text, such as English with one accent, is about as likely in another code page."""
_NOT_UTF8 = re.compile("[\udc80-\udcff]+")
"""Bytes that are not UTF-8, as Python decodes them with `surrogateescape`."""
_MOST_BROKEN = 0.05
"""Of the bytes of a file in UTF-8 that are not ASCII, so many may be broken. Of legacy encodings it
is more than half."""
_RARE = ("hp-roman8", "mac-cyrillic", "mac-iceland", "mac-latin2", "mac-turkish")
"""Code pages that short texts in cp1251 and cp1252 are mistaken for."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a source file: a text, or the reason why there is none."""

    text: str = ""
    key: str = ""
    """The record's own id in its file; empty: its offset is used."""
    unreadable: str = ""
    """Why the record could not be read; empty: it could."""
    offset: int = 0
    """Its first byte in the file given to the reader; in a table, the number of its row."""
    content: bytes = b""
    """Raw bytes of an unreadable record, at most `MAX_CONTENT_BYTES`."""


def names_in(document_id: str) -> list[str]:
    """Return what may be the name of the file that a document came from, shortest first.

    An id is that name and, after ``#`` or ``~``, a place in the file. A name may have these too.
    """
    return [document_id[: end.start()] for end in re.finditer(r"[#~]|\Z", document_id)]


class UnreadableError(Exception):
    """A record's bytes give no text; the message is the reason, such as "not_utf8"."""


def unreadable(reason: str, offset: int, content: bytes = b"", key: str = "") -> Record:
    """Return a record that could not be read, with the beginning of its ``content``."""
    return Record("", key, reason, offset, content[:MAX_CONTENT_BYTES])


# Bytes to text


def check_encoding(encoding: str, by_lines: bool) -> None:
    """Raise ConfigError unless Python can decode ``encoding``, in lines if ``by_lines``."""
    if encoding == AUTO:
        return
    try:
        newline = "\n".encode(encoding)
    except (LookupError, UnicodeError) as error:
        raise ConfigError(
            f"source.encoding {encoding!r} is no text encoding that Python knows. "
            "Give one such as 'utf-8', 'cp1252' or 'gb18030', or 'auto'."
        ) from error
    if by_lines and newline != b"\n":
        raise ConfigError(
            f"source.encoding {encoding!r} can't be cut into lines of bytes. Convert the files to "
            "UTF-8, e.g. with iconv, or read them with source.format 'text'."
        )


def decode_record(content: bytes, encoding: str) -> str:
    """Return a record's text; auto means UTF-8, since a few bytes do not reveal an encoding.

    Raises:
        UnreadableError: "not_utf8" under auto, else "not_decodable".
    """
    try:
        return _strictly(content, "utf-8" if encoding == AUTO else encoding)
    except UnreadableError as error:
        raise UnreadableError("not_utf8" if encoding == AUTO else NOT_DECODABLE) from error


def decode_file(content: bytes, encoding: str, hint: str = "") -> str:
    """Return a whole file's text.

    Args:
        content: the file.
        encoding: a declared one. auto: `wide_encoding` decides, then the ``hint`` or the escapes of
            an encoding in ASCII, then UTF-8 if the bytes are valid but for a few, which are read as
            cp1252, then any other ``hint``, then a guess from the bytes.
        hint: the encoding that the file itself names; may be wrong.

    Raises:
        UnreadableError: "not_decodable".
    """
    if encoding != AUTO:
        return _strictly(content, encoding)
    if wide := wide_encoding(content):
        return _strictly(content, wide)
    if content.isascii():
        alike = [each for each in _as_meant(hint) if each in _ASCII_ALIKE]
        if _has_escapes(content):
            alike.append(_ESCAPED)
        for each in alike:
            with suppress(UnreadableError):
                return _strictly(content, each)
    with suppress(UnreadableError):
        return _utf8_but_for_a_few(content)
    if b"\x00" in content:  # a picture or an archive, which some code page would decode
        raise UnreadableError(NOT_DECODABLE)
    for hinted in _as_meant(hint):
        with suppress(UnreadableError):
            return _strictly(content, hinted)
    for likely in _likely_encodings(content):
        with suppress(UnreadableError):
            return _strictly(content, likely)
    raise UnreadableError(NOT_DECODABLE)


def wide_encoding(head: bytes) -> str:
    """Return UTF-16 or UTF-32, if a file that begins so is in it, or an empty string."""
    return next((name for name, begins in _WIDE.items() if begins.match(head)), "")


def encoding_of(lines: Sequence[bytes]) -> str:
    """Return the likely encoding of the lines of a file.

    It is UTF-8 if any line that is not ASCII is valid UTF-8, or if all lines are ASCII without the
    escapes of an encoding.
    """
    foreign = [line for line in lines if not line.isascii()]
    if not foreign:
        return _ESCAPED if any(map(_has_escapes, lines)) else "utf-8-sig"
    if any(map(_is_utf8, foreign)):
        return "utf-8-sig"
    return next(iter(_likely_encodings(b"".join(foreign))), "utf-8-sig")


def _likely_encodings(content: bytes) -> list[str]:
    """Return the encodings that ``content`` may be in, the likeliest first."""
    likelihoods = {
        guess["encoding"]: round(guess["confidence"], 3)
        for guess in detect_all(content, encoding_era=_ERAS, compat_names=False)
        if guess["encoding"] and guess["encoding"] not in _RARE
    }
    names = sorted(likelihoods, key=lambda name: (-likelihoods[name], name not in _FREQUENT))
    return [meant for name in names for meant in _as_meant(name)]


def _as_meant(hint: str) -> list[str]:
    """Return the encodings that ``hint`` may mean: cp1252 is often called ISO-8859-1 or ASCII."""
    try:
        name = codecs.lookup(hint).name
    except (LookupError, ValueError):
        return []
    return ["cp1252", "latin-1"] if name in ("iso8859-1", "ascii") else [name]


def _utf8_but_for_a_few(content: bytes) -> str:
    """Return the text of UTF-8, of which a few bytes may be broken: they are read as cp1252."""
    with suppress(UnreadableError):
        return _strictly(content, "utf-8")
    text = content.decode("utf-8-sig", "surrogateescape")
    num_broken = sum(map(len, _NOT_UTF8.findall(text)))
    if b"\x00" in content or num_broken > _MOST_BROKEN * len(content.translate(None, _ASCII)):
        raise UnreadableError(NOT_DECODABLE)
    return _NOT_UTF8.sub(lambda found: _in_cp1252(found[0]), text)


def _in_cp1252(escaped: str) -> str:
    return escaped.encode(errors="surrogateescape").decode("cp1252", "replace")


def _has_escapes(content: bytes) -> bool:
    return any(escape in content for escape in _ESCAPES)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _strictly(content: bytes, encoding: str) -> str:
    try:
        if codecs.lookup(encoding).name == "utf-8":
            content = content.removeprefix(codecs.BOM_UTF8)
        return str(content, encoding)
    except (UnicodeError, LookupError) as error:  # LookupError: a codec that does not give text
        raise UnreadableError(NOT_DECODABLE) from error


# Bytes to records


def from_the_top(function: Callable[..., Given], *arguments: Any) -> Given:
    """Return ``function(*arguments)``, which may need all of Python's stack.

    Engines call readers at different depths. A call that does not fit is repeated on the empty
    stack of a new thread, so that the same content is nested too deeply on all engines.

    Raises:
        RecursionError: the content is nested too deeply.
    """
    try:
        return function(*arguments)
    except RecursionError:
        with ThreadPoolExecutor(1) as empty:
            return empty.submit(function, *arguments).result()


def text_record(
    content: bytes,
    settings: SourceSettings,
    offset: int = 0,
    key: str = "",
    decode: Callable[[bytes, str], str] = decode_record,
) -> Record:
    """Return the record whose text is in ``content``, or why it is unreadable.

    Args:
        content: the whole record; if it is too large, at least one byte more than the limit.
        settings: the size limit and the encoding.
        offset: where the record begins.
        key: the record's own id, if it has one.
        decode: returns the text of ``content`` in an encoding, or raises UnreadableError.
    """
    if len(content) > settings.max_document_bytes:
        return unreadable("too_large", offset, content, key)
    try:
        return Record(decode(content, settings.encoding), key, offset=offset)
    except UnreadableError as error:
        return unreadable(str(error), offset, content, key)


def whole_file(
    file: BinaryIO, settings: SourceSettings, decode: Callable[[bytes, str], str]
) -> Record:
    """Return all of ``file`` as one record; see `text_record`."""
    pieces: list[bytes] = []
    rest = settings.max_document_bytes + 1
    # In pieces: a read allocates as much as it asks for, and most files are small.
    while rest and (piece := file.read(min(rest, _PIECE_BYTES))):
        pieces.append(piece)
        rest -= len(piece)
    return text_record(b"".join(pieces), settings, decode=decode)


def bounded_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and content of each line, with its line end.

    A line of more than ``max_bytes`` is cut after ``max_bytes + 1``; its rest is skipped.
    """
    offset = 0
    while line := file.readline(max_bytes + 1):
        yield offset, line
        offset += len(line)
        while len(line) > max_bytes and not line.endswith(b"\n"):
            rest = file.readline(_SKIP_BYTES)
            offset += len(rest)
            if not rest or rest.endswith(b"\n"):
                break


class Block:
    """The lines of one record; it holds at most ``max_bytes`` and one more line."""

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.offset = offset
        """Where its first line begins."""
        self._lines: list[bytes] = []
        self._room = max_bytes

    def add(self, line: bytes) -> None:
        """Add ``line``; the line that makes the block too large is the last one kept."""
        if self._room >= 0:
            self._lines.append(line)
        self._room -= len(line)

    @property
    def content(self) -> bytes:
        """The lines, joined."""
        return b"".join(self._lines)
