"""The lines of UTF-8 text files: with or without byte order mark, ended by LF or CRLF."""

from albert_core.stage import storage
from albert_core.stage.errors import TaskError

_BYTE_ORDER_MARK = "\ufeff"


def read_lines(uri: str) -> list[str]:
    """Return the lines of the file at ``uri``, without their ends; blank ones at its end left out.

    Only a line feed ends a line, so that number i is line i + 1 of any editor.

    Raises:
        TaskError: the file is not there, or not UTF-8; naming the line.
    """
    text = decode(uri, read_file(uri)).rstrip("\r\n")
    lines = text.split("\n") if text else []
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def read_file(uri: str) -> bytes:
    """Return the content of the file at ``uri``.

    Raises:
        TaskError: there is none.
    """
    try:
        return storage.read_bytes(uri)
    except FileNotFoundError:
        raise TaskError(f"{uri} is missing. Give the URI of an existing file.") from None


def decode(uri: str, content: bytes) -> str:
    """Return the text of the file at ``uri``, without a byte order mark.

    Raises:
        TaskError: it is not UTF-8; naming the line.
    """
    try:
        return content.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{uri}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of the file). "
            "Convert the file to UTF-8."
        ) from None
