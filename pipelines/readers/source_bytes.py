"""A source file as a stream of bytes: whole, unpacked, or the range of it in which records begin.

Whatever the file system or the archive raises, these raise BrokenFileError.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec

from albert_core.stage import storage
from pipelines.readers.archives import PACKED_ENDINGS, unpacked
from pipelines.readers.record import NOT_READABLE, BrokenFileError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 8 << 20
"""Fetched from a store at a time; some would fetch 50 MB."""
_RANGE_BLOCK_BYTES = 1 << 20
"""The same of a range, beyond whose end little should be fetched."""
_BOUNDARY_LINE_BYTES = 1 << 16
"""Of a line, as much as a boundary may need to be seen."""
_MAX_HEADER_BYTES = 1 << 20
_PROBE_BYTES = 1 << 10
_ANSWER_SECONDS = 300


def packed_ending(uri: str) -> str:
    """Return the ending by which the file is known to be packed, or an empty string."""
    return next((ending for ending in PACKED_ENDINGS if uri.lower().endswith(ending)), "")


def has_random_access(uri: str) -> bool:
    """Return whether the store gives a part of the file without what comes before it.

    Raises:
        OSError: the file can't be read.
    """
    fs, path = storage.filesystem(uri)
    try:
        with fs.open(path, "rb", block_size=_PROBE_BYTES) as file:
            file.seek(1)
            return len(file.read(1)) == 1
    except ValueError:  # how fsspec says that a web server knows no ranges
        return False
    except Exception as error:  # each file system's library has errors of its own
        raise OSError(str(error)) from error


def read_head(uri: str, num_bytes: int) -> bytes:
    """Return the first bytes of the unpacked content, fewer where it breaks off.

    Raises:
        OSError: the file can't be read.
    """
    head = b""
    try:
        with open_content(uri, num_bytes) as file:
            while len(head) < num_bytes and (some := file.read1(num_bytes - len(head))):
                head += some
    except BrokenFileError as error:
        if error.reason == NOT_READABLE:
            raise OSError(str(error.__cause__)) from error
    return head


@contextmanager
def open_content(uri: str, block_bytes: int = _BLOCK_BYTES) -> "Iterator[io.BufferedReader[Any]]":
    """Open the whole content of the file at ``uri``, unpacked by its ending.

    Args:
        uri: the file.
        block_bytes: how much a store is asked for at a time.

    Raises:
        BrokenFileError: on opening, or on reading where the content breaks off.
    """
    with _open(uri, block_bytes) as file:
        ending = packed_ending(uri)
        raw = unpacked(cast(BinaryIO, file), ending) if ending else file
        with io.BufferedReader(raw, _BUFFER_BYTES) as content:
            yield content


@contextmanager
def open_range(
    uri: str, begin: int, end: int | None, boundary: re.Pattern[bytes], with_header: bool = False
) -> "Iterator[tuple[int, io.BufferedReader[Any]]]":
    """Open the range of a file that is not packed, from a boundary to a boundary.

    It goes from the first line at or after ``begin`` that matches ``boundary`` to the first such
    line at or after ``end``; from the file's beginning if ``begin`` is 0, to its end if ``end`` is
    None. So the ranges of a file, however it is cut, are the whole of it.

    Args:
        uri: the file.
        begin: first byte of the range.
        end: one past its last byte.
        boundary: matches the beginning of a line where a record may begin.
        with_header: whether a range that is not empty has what stands before the first boundary
            line of the file before it, at most `_MAX_HEADER_BYTES`.

    Yields:
        Where in the file the content would begin if it were all of one piece: offsets in it, added
        to this, are offsets in the file. And the content.
    """
    with _open(uri, _RANGE_BLOCK_BYTES) as file:
        stop = file.size if end is None else _edge(file, end, boundary, with_header)
        start = _edge(file, begin, boundary, with_header)
        header = _header(file, boundary) if with_header and 0 < start < stop else b""
        file.seek(start)
        file.stop = stop
        file.pending = header
        with io.BufferedReader(file, _BUFFER_BYTES) as content:
            yield start - len(header), content


def _edge(file: "_Plain", position: int, boundary: re.Pattern[bytes], with_header: bool) -> int:
    """Return where the range begins or ends that is cut at ``position``."""
    if position > 0:
        return _next_boundary(file, min(position, file.size), boundary)
    first = _next_boundary(file, 0, boundary) if with_header else 0
    return 0 if first == file.size else first  # without any boundary it is all in the first range


def _next_boundary(file: "_Plain", position: int, boundary: re.Pattern[bytes]) -> int:
    """Return where the first line at or after ``position`` begins that matches ``boundary``."""
    before = max(0, position - 1)
    file.seek(before)
    lines = io.BufferedReader(file, _BOUNDARY_LINE_BYTES)
    try:
        offset = before + (_pass_line(lines) if position else 0)  # to the next line's begin
        while line := lines.readline(_BOUNDARY_LINE_BYTES):
            if boundary.match(line):
                return offset
            offset += len(line) + (0 if line.endswith(b"\n") else _pass_line(lines))
        return offset
    finally:
        lines.detach()  # else the file would be closed with it


def _header(file: "_Plain", boundary: re.Pattern[bytes]) -> bytes:
    """Return what stands before the first boundary line."""
    file.seek(0)
    lines = io.BufferedReader(file, _BOUNDARY_LINE_BYTES)
    header = b""
    try:
        while line := lines.readline(_BOUNDARY_LINE_BYTES):
            if boundary.match(line) or len(header) > _MAX_HEADER_BYTES:
                break
            header += line
        return header
    finally:
        lines.detach()


def _pass_line(lines: "io.BufferedReader[Any]") -> int:
    """Read to the end of the line; return how many bytes that were."""
    num_bytes = 0
    while part := lines.readline(_BOUNDARY_LINE_BYTES):
        num_bytes += len(part)
        if part.endswith(b"\n"):
            break
    return num_bytes


class _Plain(io.RawIOBase):
    """A file of fsspec's, whose every error is BrokenFileError, up to ``stop``."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._offset = 0
        self.stop: int | None = None
        """Where reading ends, in bytes; None: at the end of the file."""
        self.pending = b""
        """Given before anything is read."""

    @property
    def size(self) -> int:
        """Bytes of the file; afterwards its position is its end."""
        return self.seek(0, io.SEEK_END)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            self._offset = int(self._file.seek(offset, whence))
        except Exception as error:
            raise BrokenFileError(NOT_READABLE, self._offset) from error
        return self._offset

    def readinto(self, buffer: "Buffer") -> int:
        target = memoryview(buffer).cast("B")
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        if self.pending:
            some = self.pending if size < 0 else self.pending[:size]
            self.pending = self.pending[len(some) :]
            return some
        if self.stop is not None:
            rest = max(0, self.stop - self._offset)
            size = rest if size < 0 else min(size, rest)
        try:
            data = cast(bytes, self._file.read(size))
        except Exception as error:
            raise BrokenFileError(NOT_READABLE, self._offset) from error
        self._offset += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open(uri: str, block_bytes: int) -> _Plain:
    fs, path = storage.filesystem(uri)
    try:
        if _is_stream_only(fs, uri):
            fs, block_bytes = _without_time_limit(fs), 0
        return _Plain(fs.open(path, "rb", block_size=block_bytes))
    except Exception as error:
        raise BrokenFileError(NOT_READABLE, 0) from error


def _is_stream_only(fs: fsspec.AbstractFileSystem, uri: str) -> bool:
    """Return whether the file comes from a web server that gives it only as a whole."""
    protocols = [fs.protocol] if isinstance(fs.protocol, str) else fs.protocol
    return "http" in protocols and not has_random_access(uri)


def _without_time_limit(fs: fsspec.AbstractFileSystem) -> fsspec.AbstractFileSystem:
    """Return the web's file system with a limit for each answer, and none for a whole file."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_read=_ANSWER_SECONDS)
    options = {**fs.storage_options, "client_kwargs": {**fs.client_kwargs, "timeout": timeout}}
    return type(fs)(**options)
