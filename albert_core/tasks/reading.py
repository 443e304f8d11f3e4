"""Text and JSON files of tasks.

Pretraining reads its minimal pairs with these functions, so that the keys of its results depend on
this module. The readers of downstream tasks are therefore in others.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from albert_core.stage import errors, manifest, storage
from albert_core.stage.errors import TaskError

_THREADS = 16
"""Files that are read at the same time."""
T = TypeVar("T")


class Record(BaseModel):
    """A JSON object with strictly typed fields; other fields are ignored."""

    model_config = ConfigDict(strict=True)


R = TypeVar("R", bound=Record)


def of_each(read: Callable[[str], T], uris: Iterable[str]) -> list[T]:
    """Return ``read(uri)`` for each of many files, reading several at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, uris))


def file_digest(uri: str) -> str:
    """Return the SHA-256 of the file at ``uri``.

    Raises:
        IntegrityError: it changed after a stage wrote it.
        TaskError: there is none.
    """
    with _explained(uri):
        return manifest.sha256_of(uri)


def read_file(uri: str) -> bytes:
    """Return the content of the file at ``uri``.

    Raises:
        IntegrityError: it changed after a stage wrote it.
        TaskError: there is none.
    """
    with _explained(uri):
        return storage.read_bytes(manifest.checked(uri))


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if errors.is_transient(error):  # fsspec says it of a web server that is out of order too
            raise
        raise TaskError(
            f"{uri} is missing. Restore it, or give the URI of an existing file."
        ) from None
    except IsADirectoryError:
        raise TaskError(f"{uri} is a folder. Give the URI of a single file.") from None


def read_text(uri: str) -> str:
    """Return the text of the UTF-8 file at ``uri``, without a byte order mark.

    Raises:
        TaskError: the file is missing, or not UTF-8; naming the line.
    """
    content = read_file(uri)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{uri}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of the file). "
            "Convert the file to UTF-8."
        ) from None


def read_lines(uri: str) -> list[str]:
    """Return the lines of the file at ``uri`` without their ends and without blank ones at its end.

    Only a line feed ends a line, so that number i is line i + 1 of any editor.

    Raises:
        TaskError: the file is missing, or not UTF-8; naming the line.
    """
    text = read_text(uri).rstrip("\r\n")
    return [line.removesuffix("\r") for line in text.split("\n")] if text else []


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object that ``text`` is.

    Args:
        text: JSON.
        where: the file, and the line in it if it has several objects; for messages.

    Raises:
        TaskError: it is not JSON, or not an object.
    """
    if not text.strip():
        raise TaskError(
            f"{where}: found nothing, expected a JSON object. Remove the line, or fetch the file "
            "again."
        )
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        hint = "Correct the file."
        if is_cut:
            hint = "It is cut off: fetch the file again, or write each object on a line of its own."
        raise TaskError(
            f"{where}: not JSON ({error}, of {len(text):,} characters). {hint}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep lists
        raise TaskError(f"{where}: no JSON that can be read ({error}). Correct it.") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise TaskError(
                f"{where}: half of a surrogate pair, {error.object[error.start]!r}, is no "
                "character. Remove it."
            ) from None
    if not isinstance(found, dict):
        raise TaskError(f"{where}: found {text[:60]!r}, expected a JSON object. Correct the file.")
    return found


def parse_record(model: type[R], text: str, where: str) -> R:
    """Return the JSON object that ``text`` is, as the record of a reader.

    Raises:
        TaskError: it is not JSON, or a field is missing or of another type; naming its path.
    """
    try:
        return model.model_validate(parse_object(text, where))
    except ValidationError as error:
        mistake = error.errors()[0]
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in mistake["loc"])
        place = f"{where}, {''.join(parts).lstrip('.')}" if mistake["loc"] else where
        raise TaskError(
            f"{place}: {mistake['msg']}, found {repr(mistake['input'])[:60]}. Correct the file."
        ) from None
