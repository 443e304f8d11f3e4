"""A file as lines, as blocks of lines with blank ones between, or whole, in bounded memory."""

from collections.abc import Iterator
from typing import BinaryIO

_SKIP_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18


def bounded_content(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the content of ``file``, or its first ``max_bytes + 1`` if there is more."""
    pieces: list[bytes] = []
    rest = max_bytes + 1
    # In pieces: what is asked for at once is allocated, and most files are small.
    while rest and (piece := file.read(min(rest, _PIECE_BYTES))):
        pieces.append(piece)
        rest -= len(piece)
    return b"".join(pieces)


def bounded_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and content of each line, with its line end.

    Of a line of more than ``max_bytes`` the first ``max_bytes + 1`` are given, the rest is passed
    over.
    """
    offset = 0
    while line := file.readline(max_bytes + 1):
        yield offset, line
        offset += len(line)
        while len(line) > max_bytes and not line.endswith(b"\n"):
            rest = file.readline(_SKIP_BYTES)
            offset += len(rest)
            if not rest or rest.endswith(b"\n"):
                break


class Block:
    """Lines gathered to one record, of which not more than ``max_bytes`` and a line are held."""

    __slots__ = ("_lines", "_max_bytes", "num_bytes", "offset")

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.offset = offset
        """Of its first line."""
        self.num_bytes = 0
        self._lines: list[bytes] = []
        self._max_bytes = max_bytes

    def add(self, line: bytes) -> None:
        """Add ``line``; one that makes the block too large is the last that is kept."""
        if self.num_bytes <= self._max_bytes:
            self._lines.append(line)
        self.num_bytes += len(line)

    @property
    def too_large(self) -> bool:
        """Whether there is more than the content says."""
        return self.num_bytes > self._max_bytes

    @property
    def content(self) -> bytes:
        """The lines, joined."""
        return b"".join(self._lines)


def blocks(file: BinaryIO, max_bytes: int) -> Iterator[Block]:
    """Yield the runs of lines that are not blank."""
    block: Block | None = None
    for offset, line in bounded_lines(file, max_bytes):
        if line.isspace():
            if block is not None:
                yield block
            block = None
            continue
        if block is None:
            block = Block(offset, max_bytes)
        block.add(line)
    if block is not None:
        yield block
