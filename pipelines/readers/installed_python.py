"""The documentation of Python code: a module's docstrings, or a distribution's description.

The files are parsed, never imported. This is the sample corpus of the demo: real technical English
that is present on every machine that can run the demo.
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
from pipelines.readers.record import Record, UnreadableError, from_the_top, whole_file

METADATA_FIRST_LINE = b"Metadata-Version:"
_SOURCE = "<source of a document>"
"""The file name that Python gives in its warnings about any of these files."""
_IGNORED = ("ignore", None, Warning, re.compile(re.escape(_SOURCE)), 0)
"""An entry of `warnings.filters` that matches warnings about `_SOURCE` only."""
_parsing = threading.Lock()
"""Held while a tree is made. Python 3.11 counts its depth in one place for all threads: if the
garbage collector runs a finalizer meanwhile, another thread may interrupt, and both get a
SystemError."""


def read_installed_python(file: BinaryIO, settings: SourceSettings) -> Iterator[Record]:
    """Yield one document: a module's docstrings in source order, or a package description."""
    yield whole_file(file, settings, _documentation)


def _documentation(content: bytes, _encoding: str) -> str:
    if content.startswith(METADATA_FIRST_LINE):
        return _description(content)
    if b'"""' not in content and b"'''" not in content:
        return ""
    try:
        tree = from_the_top(_parsed, content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError("not_python") from error
    return "\n\n".join(_in_source_order(tree)).encode(errors="replace").decode()


def _parsed(source: bytes) -> ast.Module:
    """Return the tree of ``source``, without warnings about it.

    `catch_warnings` is not safe in threads: it replaces the process's list of filters and restores
    it at its end, so that two threads would undo each other's changes. Instead the list gets one
    more filter for a while, which matches no other warnings.
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
