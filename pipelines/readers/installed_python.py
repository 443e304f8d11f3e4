"""The documentation of Python code: a module's docstrings, or a distribution's description.

The files are parsed, never imported. This is the sample corpus of the demo: real, messy, ordered
technical English that is on every machine which can run the demo.
"""

import ast
import email
import inspect
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.config import SourceSettings
from pipelines.readers.lines import bounded_content
from pipelines.readers.record import TOO_LARGE, Record, max_document_bytes, unreadable

METADATA_FIRST_LINE = b"Metadata-Version:"


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unreadable("not_python", 0, source)
    return Record("\n\n".join(_in_source_order(tree)).encode(errors="replace").decode())


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
