"""A source file as a stream of bytes: whole, unpacked, a range of it, or the members of an archive.

Errors of the file system and of packed files are raised as BrokenFileError.
"""

import bz2
import errno
import io
import lzma
import re
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, cast

import brotli  # type: ignore[import-untyped]
import fsspec
import lz4.frame  # type: ignore[import-untyped]
import zstandard

from albert_core.stage import storage
from pipelines.readers.record import bounded_lines

if TYPE_CHECKING:
    from typing_extensions import Buffer

NOT_READABLE = "not_readable"
CORRUPT = "corrupt_archive"
ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, ValueError, RuntimeError, LookupError, OverflowError, MemoryError),
)
"""Raised by `members_of`, by `Member.open`, and on reading the file that it returns."""

_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 8 << 20
"""Fetched from a store at a time; the default of some stores is 50 MB."""
_RANGE_BLOCK_BYTES = 1 << 20
"""The same for a range, so that little is fetched beyond its end."""
_BOUNDARY_LINE_BYTES = 1 << 16
"""Read of a line to recognise a boundary."""
_MAX_HEADER_BYTES = 1 << 20
_PROBE_BYTES = 1 << 10
_ANSWER_SECONDS = 300
_PACKED_BYTES = 1 << 17
_PIECE_BYTES = 1 << 16
"""Decompressed at a time: bounds the memory, and what is lost where a file is truncated."""
_GZIP_BYTES, _FRAME_BYTES = 1 << 13, 1 << 9
"""Given at a time to a decompressor without an output limit; at most 8 and 20 MB come out."""
_ZSTD_WINDOW_BYTES = 1 << 31
"""The largest that there is, with `zstd --long=31`; such a file takes as much memory."""
_MOST_TIMES = 200
"""How many times its own size a zip archive may unpack to; text seldom exceeds 20."""
_TAR_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


@dataclass(eq=False)
class BrokenFileError(Exception):
    """A file ends early or is damaged; everything before that point was read."""

    reason: str
    offset: int
    """Position of the break in the decompressed content."""


def packed_ending(uri: str) -> str:
    """Return the ending of a compressed file's name, or an empty string."""
    return next((ending for ending in _DECOMPRESSORS if uri.lower().endswith(ending)), "")


def has_random_access(uri: str) -> bool:
    """Return whether the store can serve a part of the file without the bytes before it.

    Raises:
        OSError: the file can't be read.
    """
    fs, path = storage.filesystem(uri)
    try:
        with fs.open(path, "rb", block_size=_PROBE_BYTES) as file:
            file.seek(1)
            return len(file.read(1)) == 1
    except ValueError:  # fsspec: the web server does not support ranges
        return False
    except Exception as error:  # each file system's library has its own errors
        raise OSError(str(error)) from error


def read_head(uri: str, num_bytes: int) -> bytes:
    """Return the first bytes of the decompressed content, fewer if it breaks off.

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


def open_content(uri: str, block_bytes: int = _BLOCK_BYTES) -> "io.BufferedReader[Any]":
    """Open the whole content of the file at ``uri``, decompressed according to its ending.

    Args:
        uri: the file.
        block_bytes: fetched from a store at a time.

    Raises:
        BrokenFileError: here, or on reading where the content breaks off.
    """
    return _unpacked(_open(uri, block_bytes), uri)


def open_member(member: "Member") -> "io.BufferedReader[Any]":
    """Open the content of a member of an archive, decompressed according to its ending.

    Raises:
        BrokenFileError: on reading where the content breaks off.
        Exception: one of `ARCHIVE_ERRORS`.
    """
    return _unpacked(_MemberFile(member.open()), member.name)


def _unpacked(file: "_Plain", name: str) -> "io.BufferedReader[Any]":
    ending = packed_ending(name)
    raw = _Unpacked(file, _DECOMPRESSORS[ending]) if ending else file
    return io.BufferedReader(raw, _BUFFER_BYTES)


@contextmanager
def open_range(
    uri: str,
    begin: int,
    end: int | None,
    boundary: re.Pattern[bytes] | None,
    header_end: re.Pattern[bytes] | None,
) -> "Iterator[tuple[int, io.BufferedReader[Any]]]":
    """Open a file, or the range of one that is not packed, from a boundary to a boundary.

    A range goes from the first line at or after ``begin`` that matches ``boundary`` to the first
    such line at or after ``end``; from the file's beginning if ``begin`` is 0, to its end if
    ``end`` is None. So the ranges of a file, however it is cut, are the whole of it.

    Args:
        uri: the file.
        begin: first byte of the range.
        end: one past its last byte.
        boundary: matches the beginning of a line where a record may begin; None: the file cannot
            be split.
        header_end: a range that is not empty is preceded by the bytes before the first line of
            the file that this matches, at most `_MAX_HEADER_BYTES`; None: by nothing.

    Yields:
        What to add to an offset in the content to get the offset in the file, and the content.
    """
    if begin == 0 and end is None:
        with open_content(uri) as content:
            yield 0, content
        return
    assert boundary is not None, "a file that cannot be split is read whole"
    with _open(uri, _RANGE_BLOCK_BYTES) as file:
        stop = file.size if end is None else _edge(file, end, boundary, header_end)
        start = _edge(file, begin, boundary, header_end)
        file.pending = _header(file, header_end) if header_end and 0 < start < stop else b""
        first = start - len(file.pending)
        file.stop = stop
        file.seek(start)
        with io.BufferedReader(file, _BUFFER_BYTES) as content:
            yield first, content


def _edge(
    file: "_Plain",
    position: int,
    boundary: re.Pattern[bytes],
    header_end: re.Pattern[bytes] | None,
) -> int:
    """Return the boundary at which a range cut at ``position`` begins or ends."""
    if position > 0:
        return _next_boundary(file, min(position, file.size), boundary)
    first = _next_boundary(file, 0, header_end) if header_end else 0
    return 0 if first == file.size else first  # without a boundary all is in the first range


def _next_boundary(file: "_Plain", position: int, boundary: re.Pattern[bytes]) -> int:
    """Return the start of the first line at or after ``position`` that matches ``boundary``."""
    before = max(0, position - 1)
    file.seek(before)
    buffered = io.BufferedReader(file, _BOUNDARY_LINE_BYTES)
    lines = bounded_lines(buffered, _BOUNDARY_LINE_BYTES)
    try:
        if position:
            next(lines, None)  # the line that begins before the position
        for offset, line in lines:
            if boundary.match(line):
                return before + offset
        return file.size
    finally:
        buffered.detach()  # else the file would be closed with it


def _header(file: "_Plain", end: re.Pattern[bytes]) -> bytes:
    """Return the bytes before the first line that ``end`` matches, at most `_MAX_HEADER_BYTES`."""
    num_bytes = min(_next_boundary(file, 0, end), _MAX_HEADER_BYTES)
    file.seek(0)
    return file.read(num_bytes)


class _Stream(io.RawIOBase):
    """A stream over a file that is closed with it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._offset = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def readinto(self, buffer: "Buffer") -> int:
        target = memoryview(buffer).cast("B")
        some = self._next(len(target))
        target[: len(some)] = some
        return len(some)

    def _next(self, size: int) -> bytes | memoryview:
        """Return the next bytes, at most ``size``; none at the end."""
        raise NotImplementedError


class _Plain(_Stream):
    """A file of fsspec up to ``stop``; all its errors are BrokenFileError."""

    reason = NOT_READABLE
    """Reason of its errors."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.stop = sys.maxsize
        """Where reading ends, in bytes."""
        self.pending = b""
        """Returned before anything is read."""

    @property
    def size(self) -> int:
        """Bytes of the file; afterwards its position is its end."""
        return self.seek(0, io.SEEK_END)

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (
            whence == io.SEEK_END
            and offset + (getattr(self._file, "size", None) or sys.maxsize) < 0
        ):
            raise OSError(errno.EINVAL, "before the beginning")  # asked of a short zip archive
        try:
            self._offset = int(self._file.seek(offset, whence))
        except Exception as error:
            raise BrokenFileError(NOT_READABLE, self._offset) from error
        return self._offset

    def _next(self, size: int) -> bytes:
        if self.pending:
            some, self.pending = self.pending[:size], self.pending[size:]
            return some
        try:
            data = cast(bytes, self._file.read(max(0, min(size, self.stop - self._offset))))
        except BrokenFileError:  # of the archive around it
            raise
        except Exception as error:
            raise BrokenFileError(self.reason, self._offset) from error
        self._offset += len(data)
        return data


class _MemberFile(_Plain):
    """A member of an archive, which is read from its beginning to its end."""

    reason = CORRUPT

    def seekable(self) -> bool:
        return False


def _open(uri: str, block_bytes: int) -> _Plain:
    fs, path = storage.filesystem(uri)
    try:
        if "http" in fs.protocol and not has_random_access(uri):
            fs, block_bytes = _without_time_limit(fs), 0  # one stream, from its beginning
        return _Plain(fs.open(path, "rb", block_size=block_bytes))
    except Exception as error:
        raise BrokenFileError(NOT_READABLE, 0) from error


def _without_time_limit(fs: fsspec.AbstractFileSystem) -> fsspec.AbstractFileSystem:
    """Return the HTTP file system with a timeout for each response, and none for a whole file."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_read=_ANSWER_SECONDS)
    options = {**fs.storage_options, "client_kwargs": {**fs.client_kwargs, "timeout": timeout}}
    return type(fs)(**options)


class _Unpacked(_Stream):
    """The content of a compressed file of one or several members; not seekable.

    Everything before a break is returned before BrokenFileError is raised: "truncated_archive"
    where the file ends too early, else "corrupt_archive"; its offset is in the content.
    """

    def __init__(self, packed: _Plain, new_decompressor: Callable[[], Any]) -> None:
        super().__init__(packed)
        self._pieces = self._unpack(new_decompressor)
        self._piece = memoryview(b"")

    def _next(self, size: int) -> memoryview:
        try:
            while not self._piece and (piece := next(self._pieces, None)) is not None:
                self._piece = memoryview(piece)
        except BrokenFileError as error:  # its offset is not one of the content
            raise BrokenFileError(error.reason, self._offset) from error
        except _UNPACKING_ERRORS as error:
            raise BrokenFileError(CORRUPT, self._offset) from error
        some, self._piece = self._piece[:size], self._piece[size:]
        self._offset += len(some)
        return some

    def _unpack(self, new_decompressor: Callable[[], Any]) -> Iterator[bytes]:
        data = self._file.read(_PACKED_BYTES)
        while data:
            member = new_decompressor()
            while not member.eof:
                if member.needs_input and not data:
                    data = self._file.read(_PACKED_BYTES)
                    if not data:
                        raise BrokenFileError("truncated_archive", 0)
                yield member.decompress(data, _PIECE_BYTES)
                data = b""
            data = member.unused_data.lstrip(b"\x00")
            # Zeros may stand between members and at the end.
            while not data and (more := self._file.read(_PACKED_BYTES)):
                data = more.lstrip(b"\x00")


class _Stepwise:
    """A decompressor without an output limit, behind the interface of bz2's.

    It is given ``num_bytes`` at a time, which bounds the output.
    """

    def __init__(self, decompressor: Any, num_bytes: int) -> None:
        self._decompressor = decompressor
        self._num_bytes = num_bytes
        self._pending = memoryview(b"")

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.eof)

    @property
    def needs_input(self) -> bool:
        return not len(self._pending)

    @property
    def unused_data(self) -> bytes:
        return (self._decompressor.unused_data or b"") + self._pending.tobytes()

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        del max_length
        if data:  # given only when nothing is pending
            self._pending = memoryview(data)
        some, self._pending = self._pending[: self._num_bytes], self._pending[self._num_bytes :]
        return cast(bytes, self._decompressor.decompress(some))


class _Brotli:
    """Brotli's decompressor behind the interface of bz2's.

    It gives nothing of a step in which its stream ends and something else follows.
    """

    unused_data = b""

    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.is_finished())

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        some = self._decompressor.process(data, output_buffer_limit=max_length)
        self.needs_input = not some and self._decompressor.can_accept_more_data()
        return cast(bytes, some)


def _new_gzip() -> _Stepwise:
    return _Stepwise(zlib.decompressobj(zlib.MAX_WBITS | 16), _GZIP_BYTES)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": _new_gzip,
    ".tgz": _new_gzip,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".lzma": lzma.LZMADecompressor,
    # Two threads can't share a decompressor.
    ".zst": lambda: _Stepwise(
        zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj(),
        _FRAME_BYTES,
    ),
    ".lz4": lambda: _Stepwise(lz4.frame.LZ4FrameDecompressor(), _FRAME_BYTES),
    ".br": _Brotli,
}
"""Ending -> a new decompressor with the interface of bz2's."""
_UNPACKING_ERRORS = (
    *(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError),
    brotli.error,
    RuntimeError,  # of lz4
)


# Archives of files


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    open: Callable[[], IO[bytes] | None]
    skipped: str = ""
    """Why it is not read; empty: it is."""


def members_of(file: "io.BufferedReader[Any]") -> Iterator[Member]:
    """Yield the members of a zip or tar archive, folders left out.

    Each must be read before the next is requested: tar has no index and is read as a stream.

    Raises:
        BrokenFileError: the archive can't be read.
        Exception: it is damaged; one of `ARCHIVE_ERRORS`.
    """
    return (_zip_members if file.peek(4).startswith(b"PK") else _tar_members)(file)


def _zip_members(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as packed:
        files = [info for info in packed.infolist() if not info.is_dir()]
        if sum(info.file_size for info in files) > _MOST_TIMES * file.seek(0, io.SEEK_END):
            yield Member("", lambda: None, "archive_bomb")
            return
        for info in files:
            is_special = stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG)
            skipped = _why_skipped(info.filename, is_special, bool(info.flag_bits & 1))
            yield Member(info.filename, partial(packed.open, info), skipped)


def _tar_members(file: IO[bytes]) -> Iterator[Member]:
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_TarInfo) as packed:
        for info in packed:
            if not info.isdir():
                skipped = _why_skipped(info.name, not info.isreg() or info.issparse())
                yield Member(info.name, partial(packed.extractfile, info), skipped)


def _why_skipped(name: str, is_special: bool, is_encrypted: bool = False) -> str:
    parts = name.removeprefix("./").split("/")
    if "__MACOSX" in parts or any(part.startswith(".") for part in parts):
        return "hidden_member"
    return "special_member" if is_special else "encrypted_member" if is_encrypted else ""


class _TarInfo(tarfile.TarInfo):
    """Refuses large headers, which tarfile would read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _TAR_HEADERS and info.size > _MAX_HEADER_BYTES:
            raise tarfile.HeaderError(f"a header of {info.size} bytes")
        return info
