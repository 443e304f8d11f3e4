"""The documentation of Python code: a module's docstrings, or a distribution's description.

The files are parsed, never imported. This is the sample corpus of the demo: real, messy, ordered
technical English that is on every machine which can run the demo.
"""

import ast
import contextlib
import email
import inspect
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from pipelines.config import SourceSettings
from pipelines.readers.lines import bounded_content
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable

METADATA_FIRST_LINE = b"Metadata-Version:"
_SOURCE = "<source of a document>"
"""The name under which Python parses and warns of every file."""
_IGNORED = ("ignore", None, Warning, re.compile(re.escape(_SOURCE)), 0)
"""As it stands in `warnings.filters`: what hits nothing but warnings of `_SOURCE`."""
_parsing = threading.Lock()
"""Held to make a tree. Python 3.11 counts its depth in one place for all threads: where the garbage
collector runs a finalizer meanwhile, another thread comes between, and both get a SystemError."""


def read(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield one document: a module's docstrings in source order, or a package description."""
    max_bytes = max_document_bytes(settings)
    content = bounded_content(file, max_bytes)
    if len(content) > max_bytes:
        yield unreadable(TOO_LARGE, 0, content)
    elif content.startswith(METADATA_FIRST_LINE):
        yield Record(_description(content))
    else:
        yield _docstrings(content)


def _docstrings(source: bytes) -> Record:
    if b'"""' not in source and b"'''" not in source:
        return Record("")
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unreadable("not_python", 0, source)
    return Record("\n\n".join(_in_source_order(tree)).encode(errors="replace").decode())


def _parsed(source: bytes) -> ast.Module:
    """Return the tree of ``source``, whatever Python has to warn of in it.

    A process has one list of filters for warnings. `catch_warnings` puts a copy in its place and
    the list back at its end: of two threads, one would take away the other's, and leave its own
    behind. So the list stays, and has a filter more meanwhile that no other warning meets.
    """
    with _parsing:
        filters = cast(list[Any], warnings.filters)
        filters.insert(0, _IGNORED)
        try:
            return ast.parse(source, _SOURCE)
        finally:
            with contextlib.suppress(ValueError):  # another thread emptied the list
                filters.remove(_IGNORED)


def _in_source_order(node: ast.AST) -> Iterator[str]:
    """Yield the docstring of ``node``, then those of the definitions in it, in order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield inspect.cleandoc(text)
    for child in getattr(node, "body", ()):
        yield from _in_source_order(child)


def _description(content: bytes) -> str:
    payload = email.message_from_bytes(content).get_payload(decode=True)
    return payload.decode("utf-8", errors="replace") if isinstance(payload, bytes) else ""
