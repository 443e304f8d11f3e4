"""Files by URI, through fsspec: local, memory, s3, gs, http. Writes appear whole or not at all."""

import hashlib
import os
import posixpath
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from albert_core.contract.errors import SourceError

_CHUNK_BYTES = 1 << 20


def filesystem(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of ``uri`` and the path in it."""
    try:
        return cast(tuple[fsspec.AbstractFileSystem, str], url_to_fs(uri))
    except (ImportError, ValueError) as error:
        raise SourceError(f"{uri}: {error}. Check the part before '://'.") from error


def join(uri: str, *parts: str) -> str:
    """Return ``uri`` with ``parts`` appended, with single slashes."""
    return posixpath.join(uri.rstrip("/") or uri[:1], *parts)


def local_path(uri: str) -> Path | None:
    """Return ``uri`` as a local path, or None when it is elsewhere."""
    fs, path = filesystem(uri)
    return Path(path) if isinstance(fs, LocalFileSystem) else None


def absolute(uri: str) -> str:
    """Return ``uri`` so that it means the same from any working directory."""
    path = local_path(uri)
    return uri if path is None else os.path.abspath(path)


def exists(uri: str) -> bool:
    """Return whether there is a file or folder at ``uri``."""
    fs, path = filesystem(uri)
    return bool(fs.exists(path))


def read_bytes(uri: str) -> bytes:
    """Return the whole content of the file at ``uri``."""
    fs, path = filesystem(uri)
    return cast(bytes, fs.cat_file(path))


@contextmanager
def open_atomic(uri: str) -> Iterator[IO[bytes]]:
    """Open ``uri`` for writing; the file appears under its name only when all is written.

    Locally a temporary file in the same folder is renamed; object stores show an object only
    when it is closed. When the block raises, nothing appears.
    """
    fs, path = filesystem(uri)
    if not isinstance(fs, LocalFileSystem):
        with _shown_when_closed(fs, path) as file:
            yield file
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}~{process_name()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _shown_when_closed(fs: fsspec.AbstractFileSystem, path: str) -> Iterator[IO[bytes]]:
    if not fs.async_impl:
        with fs.transaction, fs.open(path, "wb") as file:
            yield file
        return
    # fsspec gives all threads of a process one file system for S3, Google's and Azure's stores: a
    # transaction that one thread ends would commit what another is still writing.
    file = fs._open(path, "wb", autocommit=False)  # noqa: SLF001 - `open` would join a transaction
    try:
        with file:
            yield file
        file.commit()
    except BaseException:
        file.discard()
        raise


def write_bytes(uri: str, content: bytes) -> None:
    """Write ``content`` to ``uri``, whole or not at all."""
    with open_atomic(uri) as file:
        file.write(content)


def create(uri: str, content: bytes) -> bool:
    """Write ``content`` to ``uri`` if there is no file yet; return whether it was written.

    Of several processes that try at once, one does it, on any host: locally and in S3, Google's
    and Azure's stores.
    """
    fs, path = filesystem(uri)
    try:
        if isinstance(fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                try:
                    file.write(content)
                    file.flush()
                except OSError:  # the disk is full: what is half written must not stay
                    Path(path).unlink()
                    raise
        else:
            fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except OSError:  # a store may say so in other words, or the answer to a success was lost
        if not exists(uri):
            raise
        return read_bytes(uri) == content
    return True


def put(uri: str, content: bytes) -> None:
    """Write a small file; also while another thread has one open on the same store.

    `open_atomic` takes a transaction of the file system where it has no other way, and all threads
    have that in common.
    """
    fs, path = filesystem(uri)
    if isinstance(fs, LocalFileSystem):
        write_bytes(uri, content)
    else:
        fs.pipe_file(path, content)


def sha256_of(uri: str) -> str:
    """Return the SHA-256 of the file at ``uri``, as 64 hexadecimal digits."""
    fs, path = filesystem(uri)
    digest = hashlib.sha256()
    with fs.open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def remove(uri: str) -> None:
    """Remove the file or folder at ``uri``, if it is there."""
    fs, path = filesystem(uri)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def list_folder(uri: str) -> list[dict[str, Any]]:
    """Return fsspec's entries of the folder at ``uri``, sorted by name; empty if it is absent."""
    fs, path = filesystem(uri)
    if not fs.exists(path):
        return []
    return sorted(fs.ls(path, detail=True, refresh=True), key=lambda entry: str(entry["name"]))


def list_names(uri: str) -> list[str]:
    """Return the names, without the folder's, of all that is in the folder at ``uri``, sorted."""
    return [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in list_folder(uri)]


def process_name() -> str:
    """Return a name that no other process and no other call has: host, pid and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def remove_abandoned(folder: str) -> None:
    """Remove from ``folder`` what killed processes of this host were still writing."""
    for name in list_names(folder):
        if is_abandoned(name):
            remove(join(folder, name))


def is_abandoned(name: str) -> bool:
    """Return whether ``name`` is a passing file or folder of a process of this host that is gone.

    Those are ``.scratch-PROCESS`` and ``.NAME~PROCESS.tmp``; see `process_name`.
    """
    host = re.escape(socket.gethostname())
    made_by = re.fullmatch(rf"\.(?:scratch-|.+~){host}-([0-9]+)-\w+(?:\.tmp)?", name)
    if made_by is None:
        return False
    try:
        os.kill(int(made_by.group(1)), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
