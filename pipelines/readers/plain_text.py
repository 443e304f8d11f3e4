"""Plain text: blocks between blank lines, books of Project Gutenberg, docstrings of Python code.

Python files are parsed, never imported. They are the sample corpus of the demo: technical English
that is present on every machine that can run the demo.
"""

import ast
import contextlib
import email
import inspect
import re
import warnings
from collections.abc import Iterator
from itertools import groupby
from typing import Any, BinaryIO, cast

from albert_core.stage.provenance import syntax_tree
from pipelines.config import SourceSettings
from pipelines.readers import record
from pipelines.readers.record import Record

METADATA_FIRST_LINE = b"Metadata-Version:"
GUTENBERG = re.compile(
    rb"\*\*\* ?START OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    rb"|\*START\*\*THE SMALL PRINT!"
    rb"|\A\W*(?:The )?Project Gutenberg(?:'s|\xe2\x80\x99s|\x92s)? ",
    re.IGNORECASE,
)
"""Found near the beginning of a book of Project Gutenberg."""
BINARY = re.compile(
    rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0\0|II\*\0|MM\0\*|RIFF.{4}|ID3|OggS|fLaC|.{4}ftyp"
    rb"|PK\x03\x04|Rar!|7z\xbc\xaf|\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|\x7fELF|MZ.{58}"
    rb"|\xd0\xcf\x11\xe0|SQLite format 3|\xca\xfe\xba\xbe|wOF[F2]|\0asm",
    re.DOTALL,
)
"""First bytes of files that hold no text."""
_PACKED = re.compile(rb"Rar!|7z\xbc\xaf|\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd")


def leave_out(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield one record with the reason why the file is not read."""
    del settings
    head = file.read(8)
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        yield record.unreadable("old_office", 0, head)
    elif _PACKED.match(head):
        yield record.unreadable("other_archive", 0, head)
    else:
        yield record.unreadable("not_text", 0)


def read_paragraphs(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield a document for each run of lines that are not blank."""
    max_bytes = settings.max_document_bytes
    numbered = record.bounded_lines(file, max_bytes)
    for is_blank, lines in groupby(numbered, key=lambda line: line[1].isspace()):
        if not is_blank:
            offset, first = next(lines)
            block = record.Block(offset, max_bytes)
            block.add(first)
            for _, line in lines:
                block.add(line)
            yield record.text_record(block.content, settings, offset)


# Project Gutenberg

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
    r"^[ \t]*+(?:\*{1,3}[ \t]*END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG"
    r"|(?:\*+[ \t]*)?END OF (?:THE |THIS )?PROJECT GUTENBERG(?:'S|’S)?(?: E-?(?:BOOK|TEXT))?[ ,]"
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
"""Most paragraphs of credits; any more belong to the book."""
_MAX_CREDIT_CHARACTERS = 1000


def text_of_book(content: bytes, encoding: str) -> str:
    """Return the one book of a file, without the licence; without markers, the whole file.

    Raises:
        UnreadableError: "not_decodable".
    """
    return book(record.decode_file(content, encoding, hint=_declared_encoding(content)))


def book(text: str) -> str:
    """Return the text between the markers of the licence, without the producers' credits."""
    text = text.replace("\r\n", "\n")
    begin = _begin(text)
    end = _END.search(text, begin)
    return _without_credits(text[begin : end.start() if end else len(text)].strip("\n"))


def _begin(text: str) -> int:
    """Return the position of the book's first character."""
    if start := _START.search(text):
        return start.end()
    small_print = _SMALL_PRINT_END.search(text)
    if small_print is None or _END.search(text, 0, small_print.start()):
        return 0  # in the second case the licence follows the book
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


# Python

_SOURCE = "<source of a document>"
"""The file name that Python gives in its warnings about any of these files."""
_IGNORED = ("ignore", None, Warning, re.compile(re.escape(_SOURCE)), 0)
"""An entry of `warnings.filters` that matches warnings about `_SOURCE` only."""


def documentation(content: bytes, _encoding: str) -> str:
    """Return a module's docstrings in source order, or the description in a package's metadata.

    Raises:
        UnreadableError: "not_python".
    """
    if content.startswith(METADATA_FIRST_LINE):
        payload = email.message_from_bytes(content).get_payload(decode=True)
        return payload.decode(errors="replace") if isinstance(payload, bytes) else ""
    if b'"""' not in content and b"'''" not in content:
        return ""
    try:
        tree = record.from_the_top(_parsed, content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise record.UnreadableError("not_python") from error
    return "\n\n".join(_in_source_order(tree)).encode(errors="replace").decode()


def _parsed(source: bytes) -> ast.Module:
    """Return the tree of ``source``, without warnings about it.

    `catch_warnings` is not safe in threads: it replaces the process's list of filters and restores
    it at its end, so that two threads would undo each other's changes. Instead the list has one
    more filter meanwhile, which matches no other warnings.
    """
    filters = cast(list[Any], warnings.filters)
    filters.insert(0, _IGNORED)
    try:
        return syntax_tree(source, _SOURCE)
    finally:
        with contextlib.suppress(ValueError):  # another thread emptied the list
            filters.remove(_IGNORED)


def _in_source_order(node: ast.AST) -> Iterator[str]:
    """Yield the docstring of ``node``, then those of the definitions in it, in order."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
        yield inspect.cleandoc(text)
    for child in getattr(node, "body", ()):
        yield from _in_source_order(child)
