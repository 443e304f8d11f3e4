"""Packed files as a stream: gz, bz2, xz, lzma and zst, of one or several members."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol

import zstandard

from pipelines.readers.record import CORRUPT, TRUNCATED, BrokenFileError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PACKED_BYTES = 1 << 17
_PIECE_BYTES = 1 << 16
"""Unpacked at a time, so that a thousandfold file fits in memory, and lost at most in a break."""
_ZSTD_PACKED_BYTES = 1 << 9
"""zstd can't be told where to stop; of so few bytes it makes no more than some 20 MB."""


class _Member(Protocol):
    """A decompressor with the interface of bz2's."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipMember:
    """zlib with the interface of bz2's decompressor; it checks length and CRC."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(piece) < max_length
        return piece


class _ZstdMember:
    """A frame of zstd with the interface of bz2's decompressor."""

    def __init__(self) -> None:
        # A decompressor for each: two threads can't have one.
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._pending = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return not len(self._pending)

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._pending.tobytes()

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        del max_length
        if data:  # only given when nothing is pending
            self._pending = memoryview(data)
        some = self._pending[:_ZSTD_PACKED_BYTES]
        self._pending = self._pending[_ZSTD_PACKED_BYTES:]
        return self._frame.decompress(some)


_MEMBERS: dict[str, Callable[[], _Member]] = {
    ".gz": _GzipMember,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".lzma": lzma.LZMADecompressor,
    ".zst": _ZstdMember,
}
PACKED_ENDINGS = tuple(_MEMBERS)
_ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def unpacked(packed: BinaryIO, ending: str) -> io.RawIOBase:
    """Return the content of a packed file, as a stream that can't be sought in.

    What comes before a break is given before BrokenFileError is raised: "truncated_archive" where
    the file ends too early, else "corrupt_archive"; its offset is in the content.

    Args:
        packed: closed with the stream.
        ending: one of `PACKED_ENDINGS`.
    """
    return _Unpacked(packed, ending)


class _Unpacked(io.RawIOBase):
    def __init__(self, packed: BinaryIO, ending: str) -> None:
        self._packed = packed
        self._pieces = self._unpack(_MEMBERS[ending])
        self._piece = memoryview(b"")
        self._offset = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()

    def readinto(self, buffer: "Buffer") -> int:
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece = memoryview(piece)
        target = memoryview(buffer).cast("B")
        length = min(len(target), len(self._piece))
        target[:length] = self._piece[:length]
        self._piece = self._piece[length:]
        self._offset += length
        return length

    def _unpack(self, new_member: Callable[[], _Member]) -> Iterator[bytes]:
        data = self._more()
        while data:
            member = new_member()
            while not member.eof:
                if member.needs_input and not data:
                    data = self._more()
                    if not data:
                        raise BrokenFileError(TRUNCATED, self._offset)
                yield self._step(member, data)
                data = b""
            data = self._after_padding(member.unused_data)

    def _more(self) -> bytes:
        try:
            return self._packed.read(_PACKED_BYTES)
        except BrokenFileError as error:  # its offset is in the packed file
            raise BrokenFileError(error.reason, self._offset) from error

    def _step(self, member: _Member, data: bytes) -> bytes:
        try:
            return member.decompress(data, _PIECE_BYTES)
        except _ERRORS as error:
            raise BrokenFileError(CORRUPT, self._offset) from error

    def _after_padding(self, data: bytes) -> bytes:
        """Return what follows the zeros that may stand between members and at the end."""
        while not (rest := data.lstrip(b"\x00")):
            data = self._more()
            if not data:
                return b""
        return rest
