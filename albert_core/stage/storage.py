"""Files by URI, through fsspec: local, memory, s3, gs, http. Writes are atomic."""

import errno
import hashlib
import os
import posixpath
import re
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import has_magic
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.config import apply_config
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from albert_core.stage.errors import ConfigError, SourceError, is_transient, lacks_room
from albert_core.stage.settings import refuse_credentials

_CHAIN = re.compile(r"[a-z0-9+]+(?:://[^:]*)?::(?=[a-z0-9+]+://|/)")
"""Matches a file system followed by another one's URI or a local path."""
_WEB = ("http://", "https://")
_ANSWER_SECONDS = 300
_COLONS = "\ue000"
"""Stands in for "::" while fsspec parses a URI; no file name contains it."""
_NOT_SYNCED = {errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.ENOTSUP}
"""Error numbers of what a file system cannot sync, or another process has just removed."""
_FIND_BY_FOLDERS = (fsspec.AbstractFileSystem.find, AsyncFileSystem._find)  # noqa: SLF001
before_change: dict[str, Callable[[], None]] = {}
"""Called before a file appears or goes, by the URI of a lease: it ends a process that lost that."""


def filesystem(uri: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of ``uri`` and the path within it.

    It keeps no listings: another process may have written since.

    A file name may contain "::", which fsspec would take for a chain of file systems. Only a real
    chain (``simplecache::s3://bucket/file``) is treated as one.
    """
    try:
        is_chain = "::" in uri and _CHAIN.match(uri)
        if is_chain:
            fs, path = url_to_fs(uri)
        else:
            options = _web_options() if uri.startswith(_WEB) else {}
            fs, path = url_to_fs(uri.replace("::", _COLONS), use_listings_cache=False, **options)
        return fs, path.replace(_COLONS, "::")
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"{uri}: {error}. Check the part before '://', or install what it needs: s3:// needs "
            "s3fs, gs:// gcsfs, and hf:// huggingface_hub."
        ) from error


def _web_options() -> dict[str, Any]:
    """Return options by which a web server does not pack a file, of which no range could be read.

    The headers that the environment gives stay.
    """
    given = apply_config(fsspec.get_filesystem_class("http"), {}).get("headers", {})
    return {"headers": {"Accept-Encoding": "identity", **given}}


def join(uri: str, *parts: str) -> str:
    """Return ``uri`` with ``parts`` appended, with single slashes."""
    return posixpath.join(uri.rstrip("/") or uri[:1], *parts)


def local_path(uri: str) -> Path | None:
    """Return the local path of ``uri``; None if it is not on this machine."""
    fs, path = filesystem(uri)
    return Path(path) if isinstance(fs, LocalFileSystem) else None


def absolute(uri: str) -> str:
    """Return ``uri``, with a local path made absolute."""
    path = local_path(uri)
    return uri if path is None else os.path.abspath(path)


def work_folder(work: str | None) -> str:
    """Return the absolute folder for all results.

    Raises:
        ConfigError: its URI contains credentials, its name has several lines or what MLflow would
            decode, or it can't be made because a file is in its place.
    """
    folder = work or os.environ.get("ALBERT_WORK") or "work"
    refuse_credentials(folder, "the work folder")
    folder = absolute(folder)
    if len(folder.splitlines()) > 1:  # a stage prints what it made as a line
        raise ConfigError(f"the work folder {folder!r} has a line end in its name. Give another.")
    if re.search("[\ud800-\udfff]", folder):  # as Python gives bytes that are not UTF-8
        raise ConfigError(f"the work folder {folder!r} has a name that is not UTF-8. Give another.")
    path = local_path(folder)
    if path and (found := re.search(r"%[0-9A-Fa-f]{2}|\?", folder)):
        read_as = repr(unquote(found[0])) if found[0] != "?" else "the end of a path"
        raise ConfigError(
            f"the work folder {folder} has {found[0]} in its name, which MLflow reads as "
            f"{read_as}: its files would be in another folder. Give another."
        )
    for each in (path, *path.parents) if path else ():
        if os.path.lexists(each) and not os.path.isdir(each):
            raise ConfigError(f"the work folder {folder}: {each} is no folder. Give another.")
    return folder


def own_folder(name: str) -> Path:
    """Return this user's folder of this name among the machine's temporary files; make it.

    Its name is known to all users of the machine. So it counts only if it is this user's: what
    another one, or a link of another one, has in its place could hold files to mislead us.

    Raises:
        ConfigError: another user has made it.
    """
    folder = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{folder} is no folder of this user's. Set TMPDIR to a folder of your own."
        )
    return folder


def exists(uri: str) -> bool:
    """Return whether there is a file or folder at ``uri``.

    A web server that is out of order raises an error, as other stores do: fsspec would take it for
    one that has nothing.
    """
    fs, path = filesystem(uri)
    if not path.startswith(_WEB):
        return bool(fs.exists(path))
    try:
        fs.info(path)
    except FileNotFoundError as error:
        if is_transient(error):
            raise
        return False
    return True


def is_there(uri: str, *, as_file: bool = False) -> bool | None:
    """Return whether there is a file or folder at ``uri``; None if its store does not tell.

    A web server tells by its status that there is none: 404 or 410. With ``as_file``, a folder does
    not count.
    """
    fs, path = filesystem(uri)
    try:
        info = fs.info(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        # Of a web address, fsspec says so for every request that fails.
        status = getattr(error.__cause__, "status", None)
        return False if status in (404, 410) or not path.startswith(_WEB) else None
    except Exception:  # noqa: BLE001  each store has errors of its own
        return None
    return not as_file or info["type"] != "directory"


def read_bytes(uri: str) -> bytes:
    """Return the whole content of the file at ``uri``."""
    fs, path = filesystem(uri)
    return cast(bytes, fs.cat_file(path))


@contextmanager
def open_atomic(uri: str) -> Iterator[IO[bytes]]:
    """Open ``uri`` for writing; the file appears under its name only when it is complete.

    A temporary file in the same folder is renamed; object stores show an object only once it is
    committed. If the block raises, nothing appears. On a local disk it is still there after a power
    failure. Several threads may write at once, which is why fsspec's transactions are not used: all
    files of a store in a process share them.
    """
    fs, path = filesystem(uri)
    with (_committed if fs.async_impl else _renamed)(fs, path) as file:
        yield file


@contextmanager
def _committed(fs: fsspec.AbstractFileSystem, path: str) -> Iterator[IO[bytes]]:
    file = fs._open(path, "wb", autocommit=False)  # noqa: SLF001 - `open` would join a transaction
    try:
        with file:
            yield file
        _call_before_change()
        file.commit()
    except BaseException:
        file.discard()
        raise


@contextmanager
def _renamed(fs: fsspec.AbstractFileSystem, path: str) -> Iterator[IO[bytes]]:
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}~{process_name()}.tmp"
    is_local = isinstance(fs, LocalFileSystem)
    if is_local:
        _make_folder(Path(folder))
    else:
        fs.makedirs(folder, exist_ok=True)
    try:
        with fs.open(temporary, "wb") as file:
            yield file
        _call_before_change()
        # Where it cannot rename, fsspec's local `mv` copies, or moves into a folder of that name.
        (replace if is_local else fs.mv)(temporary, path)
    except OSError as error:
        if lacks_room(error) and error.filename is None:  # as a write says it, unlike an open
            error.filename = path
        raise
    finally:
        if fs.exists(temporary):
            fs.rm(temporary)


def replace(old: str | Path, new: str | Path) -> None:
    """Rename a local file; after a power failure it has its old name or, whole, the new one.

    Once this returns, it has the new one.
    """
    _sync(old)
    os.replace(old, new)
    _sync(Path(new).parent)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, all of which are still there after a power failure."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"{folder} is a file. Give another folder.") from error
        _sync(folder.parent)


def _sync(path: str | Path) -> None:
    """Have a file's content, or the names in a folder, written to the disk, if that can be done."""
    try:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


def write_bytes(uri: str, content: bytes) -> None:
    """Write ``content`` to ``uri`` atomically."""
    with open_atomic(uri) as file:
        file.write(content)


def _call_before_change() -> None:
    for look in list(before_change.values()):
        look()


def create(uri: str, content: bytes) -> bool:
    """Write ``content`` to ``uri`` unless a file is there; return whether it was written.

    If several processes on any hosts try at the same time, one succeeds. This holds for local disks
    and for S3, Google Cloud Storage and Azure.
    """
    fs, path = filesystem(uri)
    try:
        if isinstance(fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as file:
                try:
                    file.write(content)
                    file.flush()
                except OSError:  # a full disk must not leave half a file
                    Path(path).unlink()
                    raise
        else:
            fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except OSError:  # the store's own "exists" error, or a lost reply to a success
        if not exists(uri):
            raise
        return read_bytes(uri) == content
    return True


def sha256_of(uri: str) -> str:
    """Return the SHA-256 of the file at ``uri``, as 64 hexadecimal digits."""
    fs, path = filesystem(uri)
    with _stream(fs, path) if path.startswith(_WEB) else fs.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stream(fs: fsspec.AbstractFileSystem, path: str) -> Any:
    """Open a file of a web server as one answer, which needs no ranges, however long it takes."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_read=_ANSWER_SECONDS)
    options = {**fs.storage_options, "client_kwargs": {**fs.client_kwargs, "timeout": timeout}}
    return type(fs)(**options).open(path, "rb", block_size=0)


def remove(uri: str) -> None:
    """Remove the file or folder at ``uri``, if it is there."""
    fs, path = filesystem(uri)
    if fs.exists(path):
        _call_before_change()
        fs.rm(path, recursive=True)


def list_folder(uri: str) -> list[dict[str, Any]]:
    """Return fsspec's entries of the folder ``uri``, sorted by name; empty if there is none."""
    fs, path = filesystem(uri)
    try:  # `exists` may answer from a listing of before
        entries = fs.ls(path, detail=True, refresh=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A file is listed as its own entry, and so is a folder that was made in the console of a store.
    within = [entry for entry in entries if entry["name"].rstrip("/") != path.rstrip("/")]
    return sorted(within, key=lambda entry: str(entry["name"]))


def list_names(uri: str) -> list[str]:
    """Return the sorted base names of all entries of the folder ``uri``."""
    return [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in list_folder(uri)]


def find(fs: fsspec.AbstractFileSystem, folder: str) -> dict[str, dict[str, Any]]:
    """Return fsspec's entries of all files below ``folder``, or of itself if it is one, by name.

    fsspec's own `find` takes a folder that it fails to list for an empty one, except in stores that
    list everything below it at once. Of these it takes the empty object that marks a folder, as the
    console of a store makes one, for a file.

    Raises:
        SourceError: a folder can't be listed.
    """
    kind = type(fs)
    method = kind._find if kind.async_impl else kind.find  # noqa: SLF001 - `find` calls it
    if method not in _FIND_BY_FOLDERS:
        entries = fs.find(folder, detail=True)
        return {k: v for k, v in entries.items() if v["size"] or not k.endswith("/")}
    found: dict[str, dict[str, Any]] = {}
    for entry in _listed(fs, folder):
        if entry["type"] != "directory":
            found[entry["name"]] = entry
        elif entry["name"].rstrip("/") != folder.rstrip("/"):
            found |= find(fs, entry["name"])
    return found


def glob(fs: fsspec.AbstractFileSystem, pattern: str) -> dict[str, dict[str, Any]]:
    """Return fsspec's entries that ``pattern`` matches, by name; from ``**`` on, only files.

    Raises:
        SourceError: a folder that may hold some can't be listed; fsspec's own `glob` takes it for
            an empty one, and also lists folders that can't hold any.
    """
    parts = pattern.split("/")

    def below(folder: str, number: int) -> dict[str, dict[str, Any]]:
        wanted = parts[: number + 1]
        is_deep = "**" in wanted
        found = find(fs, folder) if is_deep else {e["name"]: e for e in _listed(fs, folder)}
        matching = re.compile(glob_translate("/".join(parts if is_deep else wanted))).match
        found = {name: entry for name, entry in found.items() if matching(name.rstrip("/"))}
        if is_deep or wanted == parts:
            return found
        folders = (name for name, entry in found.items() if entry["type"] == "directory")
        return {k: v for name in folders for k, v in below(name, number + 1).items()}

    number = [*map(has_magic, parts), True].index(True)
    return below("".join(f"{part}/" for part in parts[:number]), number)


def _listed(fs: fsspec.AbstractFileSystem, folder: str) -> list[dict[str, Any]]:
    try:
        return list(fs.ls(folder, detail=True, refresh=True))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceError(
            f"{folder} can't be listed: {error}. Allow this user to list it, or mend its store, "
            "then run the same command again."
        ) from error


def process_name() -> str:
    """Return a name unique to this call, made of machine, pid and a random part."""
    return f"{machine_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def pid_namespace() -> str:
    """Return an id of the pid namespace and the boot, or "" where the kernel tells neither.

    Two containers may share a host name and use the same pid for different processes.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def machine_name() -> str:
    """Return the host name and a digest of `pid_namespace`."""
    return f"{socket.gethostname()}-{hashlib.sha256(pid_namespace().encode()).hexdigest()[:8]}"


def is_temporary(name: str) -> bool:
    """Return whether ``name`` is that of a temporary file or folder of any process."""
    return name.startswith(".scratch-") or re.fullmatch(r"\..+~.+\.tmp", name) is not None


def remove_abandoned(folder: str) -> None:
    """Remove unfinished files of this machine's killed processes from ``folder``."""
    for name in list_names(folder):
        if is_abandoned(name):
            remove(join(folder, name))


def is_abandoned(name: str) -> bool:
    """Return whether ``name`` is a temporary file or folder of an ended process of this machine.

    Such names are ``.scratch-PROCESS`` and ``.NAME~PROCESS.tmp``; see `process_name`.
    """
    here = re.escape(machine_name())
    made_by = re.fullmatch(rf"\.(?:scratch-|.+~){here}-([0-9]+)-\w+(?:\.tmp)?", name)
    if made_by is None:
        return False
    try:
        os.kill(int(made_by[1]), 0)
    except OSError as error:  # a PermissionError means alive, but another user's
        return isinstance(error, ProcessLookupError)
    return False
