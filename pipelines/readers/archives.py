"""Archives of files, zip and tar: each member is read as a file of its own kind."""

import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import IO, BinaryIO, Final, Self

from pipelines.config import SourceSettings
from pipelines.readers.record import Record, unreadable
from pipelines.readers.source_bytes import CORRUPT, NOT_READABLE, BrokenFileError

HIDDEN_MEMBER, SPECIAL_MEMBER = "hidden_member", "special_member"
BOMB, ENCRYPTED = "archive_bomb", "encrypted_member"

ReadMember = Callable[[str, IO[bytes], SourceSettings], Iterator[Record]]
"""Reads a member by its name; the key of what it yields is that name, and the record's own id."""

_MOST_TIMES: Final = 200
"""What a zip archive may unpack to, in its own size; text seldom exceeds 20."""
_MAX_TAR_HEADER_BYTES: Final = 1 << 20
_HEADERS: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


_ARCHIVE_ERRORS: Final = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, ValueError, RuntimeError, LookupError, OverflowError, MemoryError),
)


def read_archive(file: BinaryIO, settings: SourceSettings, read_member: ReadMember) -> Iterator[Record]:
    """Yield the records of all members; their offsets are the members' numbers.

    A broken member is "corrupt_archive", and the next one is read; of a tar archive, which has no
    index, all before the break are read.
    """
    number = 0
    try:
        is_zip = file.peek(4).startswith(b"PK")  # type: ignore[attr-defined]
        for name, skipped, opened in (_zip_members if is_zip else _tar_members)(file):
            records = iter([unreadable(skipped, 0, name.encode(errors="replace"), name)])
            if not skipped:
                records = _records_of_member(name, opened, settings, read_member)
            yield from (replace(record, offset=number) for record in records)
            number += 1
    except BrokenFileError:
        raise
    except _ARCHIVE_ERRORS:
        yield unreadable(CORRUPT, number)


def _records_of_member(
    name: str,
    opened: Callable[[], IO[bytes] | None],
    settings: SourceSettings,
    read_member: ReadMember,
) -> Iterator[Record]:
    try:
        member = opened()
        assert member is not None, "what is no file is skipped"
        yield from read_member(name, member, settings)
    except BrokenFileError as error:
        if error.reason == NOT_READABLE:
            raise
        yield unreadable(error.reason, 0, name.encode(errors="replace"), name)
    except _ARCHIVE_ERRORS:  # a damaged header, or a way of packing that Python does not know
        yield unreadable(CORRUPT, 0, name.encode(errors="replace"), name)


_OpenedMember = tuple[str, str, Callable[[], IO[bytes] | None]]
"""Name, why it is not read or an empty string, and what opens it."""


def _zip_members(file: BinaryIO) -> Iterator[_OpenedMember]:
    with zipfile.ZipFile(file) as packed:
        files = [info for info in packed.infolist() if not info.is_dir()]
        size = file.seek(0, 2)
        if sum(info.file_size for info in files) > _MOST_TIMES * size:
            yield "", BOMB, lambda: None
            return
        for info in files:
            mode = info.external_attr >> 16
            is_special = mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG)
            skipped = SPECIAL_MEMBER if is_special else ENCRYPTED if info.flag_bits & 1 else ""
            yield info.filename, _hidden(info.filename) or skipped, partial(packed.open, info)


def _tar_members(file: BinaryIO) -> Iterator[_OpenedMember]:
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_TarInfo) as packed:
        for info in packed:
            if not info.isdir():
                is_special = not info.isreg() or info.issparse()
                skipped = _hidden(info.name) or (SPECIAL_MEMBER if is_special else "")
                yield info.name, skipped, partial(packed.extractfile, info)


def _hidden(name: str) -> str:
    parts = name.removeprefix("./").split("/")
    is_hidden = "__MACOSX" in parts or any(part.startswith(".") for part in parts)
    return HIDDEN_MEMBER if is_hidden else ""


class _TarInfo(tarfile.TarInfo):
    """Refuses headers that tarfile would read into memory, of whatever size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADERS and info.size > _MAX_TAR_HEADER_BYTES:
            raise tarfile.HeaderError(f"a header of {info.size} bytes")
        return info
