"""Bytes to text, by the declared encoding or by what the bytes look like."""

import codecs
import logging

from charset_normalizer import from_bytes

from albert_core.stage.errors import ConfigError

AUTO = "auto"
NOT_UTF8, NOT_DECODABLE = "not_utf8", "not_decodable"

# A UTF-32 mark begins with the UTF-16 one: the longer ones come first.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_EBCDIC = ["cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"]
"""Mainframe code pages, for which short texts are mistaken."""

logging.getLogger("charset_normalizer").setLevel(logging.ERROR)


class UndecodableError(Exception):
    """The bytes are no text; its message is the reason, such as "not_utf8"."""


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
    """Return a record's text; auto is UTF-8, as a few bytes tell little of anything else.

    Raises:
        UndecodableError: "not_utf8" under auto, else "not_decodable".
    """
    if encoding != AUTO:
        return _strictly(content, encoding)
    try:
        return str(content.removeprefix(codecs.BOM_UTF8), "utf-8")
    except UnicodeDecodeError as error:
        raise UndecodableError(NOT_UTF8) from error


def decode_file(content: bytes, encoding: str, hint: str = "") -> str:
    """Return a whole file's text.

    Args:
        content: the file.
        encoding: a declared one; auto: by its mark, UTF-8 if it is that, the ``hint``, or else
            what the bytes look like.
        hint: what the file says of itself; may be wrong.

    Raises:
        UndecodableError: "not_decodable".
    """
    if encoding != AUTO:
        return _strictly(content, encoding)
    for mark, marked in _MARKS.items():
        if content.startswith(mark):
            return _strictly(content, marked)
    try:
        return str(content.removeprefix(codecs.BOM_UTF8), "utf-8")
    except UnicodeDecodeError:
        pass
    if b"\x00" in content:  # a picture or an archive, in which a code page could yet be seen
        raise UndecodableError(NOT_DECODABLE)
    for hinted in _as_meant(hint):
        try:
            return _strictly(content, hinted)
        except UndecodableError:
            continue
    best = from_bytes(content, cp_exclusion=_EBCDIC).best()
    if best is None:
        raise UndecodableError(NOT_DECODABLE)
    return str(best)


def _as_meant(hint: str) -> list[str]:
    """Return what ``hint`` may mean: Windows' 1252 is often called ISO-8859-1, or ASCII."""
    try:
        name = codecs.lookup(hint).name
    except (LookupError, ValueError):
        return []
    return ["cp1252", "latin-1"] if name in ("iso8859-1", "ascii") else [name]


def _strictly(content: bytes, encoding: str) -> str:
    try:
        if codecs.lookup(encoding).name == "utf-8":
            content = content.removeprefix(codecs.BOM_UTF8)
        return str(content, encoding)
    except (UnicodeError, LookupError) as error:  # LookupError: a codec, but not of text
        raise UndecodableError(NOT_DECODABLE) from error
