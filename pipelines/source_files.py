"""Which files a source consists of, and the units of work that they make."""

import csv
import glob
import importlib.metadata
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import SourceError
from albert_core.stage.manifest import checked, digest_of
from albert_core.text.seeds import share_of
from pipelines.config import INSTALLED_PYTHON, SourceSettings
from pipelines.readers import can_split, format_of

MAX_UNIT_BYTES = 8 << 20
_FILES_PER_UNIT = 256
"""Mean number of small files in a unit."""
_DIGEST_THREADS = 4
_OWN_DISTRIBUTION = "albert-pretraining"
"""Left out, because whether it is found, and where, depends on where a process is started."""
_QUICK_FILES, _QUICK_BYTES = 256, 32 << 20
"""What can be read quickly."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source."""

    uri: str
    name: str
    """Relative to the source, so that ids do not change when the source moves."""
    num_bytes: int
    modified: str
    """When it changed, according to the store; not part of any digest."""
    sha256: str
    format: str = ""
    """How it is read, a key of `READERS`; empty in lists written before it was noted."""
    splittable: bool = False
    """Whether ranges of its bytes can be read."""


@dataclass(frozen=True)
class CorpusInputs:
    """What a clean corpus is made of."""

    files: list[SourceFile]
    excluded_ids: list[str]
    test_ngrams: NDArray[np.uint64]
    """The hashes of the test texts' word n-grams, ascending, each once."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The records of a file that begin in a range of its bytes."""

    file: SourceFile
    begin: int = 0
    end: int | None = None
    """One past its last byte; None: to the end of the file."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the range, packed if the file is."""
        return (self.file.num_bytes if self.end is None else self.end) - self.begin


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A file as its store lists it."""

    name: str
    uri: str
    num_bytes: int
    modified: str


def list_source(settings: SourceSettings, known: Iterable[SourceFile] = ()) -> list[SourceFile]:
    """Return the files of the source, by name, with their digests.

    Args:
        settings: where they are.
        known: files listed before; one of the same size and time of change is not read again.

    Raises:
        SourceError: there is no file.
    """
    return _described(entries_of(settings), settings, {file.uri: file for file in known})


def list_quickly(settings: SourceSettings, known: Iterable[SourceFile]) -> list[SourceFile] | None:
    """Return what `list_source` would if little has to be read for that, else None.

    Raises:
        SourceError: there is no file.
    """
    before = {file.uri: file for file in known}
    entries = entries_of(settings)
    new = [entry for entry in entries if not _is_unchanged(before.get(entry.uri), entry)]
    if len(new) > _QUICK_FILES or sum(entry.num_bytes for entry in new) > _QUICK_BYTES:
        return None
    files = before | {file.uri: file for file in _described(new, settings, {})}
    return [replace(files[entry.uri], name=entry.name) for entry in entries]


def _described(
    entries: Iterable[SourceEntry], settings: SourceSettings, before: Mapping[str, SourceFile]
) -> list[SourceFile]:
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        return list(pool.map(lambda entry: _describe(entry, settings, before), entries))


def entries_of(settings: SourceSettings) -> list[SourceEntry]:
    """Return the files of the source as its store lists them, by name.

    Raises:
        ConfigError: the settings name no source.
        SourceError: there is none.
    """
    settings.check_given()
    found = sorted(_found(settings.uri), key=lambda entry: (entry.name, entry.uri))
    for entry in found:
        _check_name(entry.uri)
    uris = Counter(entry.uri for entry in found)
    if twice := [uri for uri, number in uris.items() if number > 1]:
        raise SourceError(
            f"{twice[0]} is in the source twice. Give sources that don't hold each other."
        )
    sampled = [
        entry
        for entry in found
        if settings.file_share == 1 or share_of(0, "source-file", entry.name) < settings.file_share
    ]
    if not sampled:
        raise SourceError(
            f"source {settings.uri!r} has no file"
            + (f" in its sample of {settings.file_share:.0%}" if found else "")
            + ". Give an existing file, folder or quoted glob, e.g. SOURCE='/data/wiki/**'."
        )
    return sampled


def _check_name(uri: str) -> None:
    """Raise SourceError if a file's name is not UTF-8: documents are named by it."""
    try:
        uri.encode()
    except UnicodeEncodeError as error:
        shown = uri.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise SourceError(
            f"the name of {shown} is not UTF-8 (the bytes after \\x are not). Rename the file, for "
            "example with `convmv`, or leave it out."
        ) from error


def check_unchanged(file: SourceFile) -> None:
    """Raise SourceError unless the file is still the one that was listed, by size and time."""
    fs, path = storage.filesystem(file.uri)
    entry = _entry(file.name, file.uri, fs.info(path))
    if (entry.num_bytes, entry.modified) != (file.num_bytes, file.modified):
        raise SourceError(
            f"{file.uri} changed while it was read. Run the stage again when it is finished."
        )


def units_of(files: Iterable[SourceFile]) -> Iterator[list[SourceRange]]:
    """Yield groups of files, and ranges of large ones, to be cleaned together.

    A group has at most about `MAX_UNIT_BYTES`, unless a single file that can't be split is
    larger. The hash of a file's name decides whether a group ends with it, so that a file that is
    added or removed changes its own group only.
    """
    unit: list[SourceRange] = []
    num_bytes = 0
    for file in files:
        if unit and num_bytes + file.num_bytes > MAX_UNIT_BYTES:
            yield unit
            unit, num_bytes = [], 0
        if file.splittable and file.num_bytes > MAX_UNIT_BYTES:
            yield from ([part] for part in _ranges(file))
            continue
        unit.append(SourceRange(file))
        num_bytes += file.num_bytes
        # A large file ends a unit more often, so that most units end before they are full.
        end_share = max(1 / _FILES_PER_UNIT, 2 * file.num_bytes / MAX_UNIT_BYTES)
        if share_of(0, "unit-end", file.name) < end_share:
            yield unit
            unit, num_bytes = [], 0
    if unit:
        yield unit


def ranges_of(entry: SourceEntry, settings: SourceSettings) -> Iterator[SourceRange]:
    """Yield the ranges that a file is read in; it is looked at, but its digest is not taken."""
    file = _file(entry, settings, sha256="")
    yield from _ranges(file) if file.splittable else [SourceRange(file)]


def _ranges(file: SourceFile) -> Iterator[SourceRange]:
    """Cut a large file into ranges of the same size."""
    number = -(-file.num_bytes // MAX_UNIT_BYTES)
    bounds = [file.num_bytes * k // number for k in range(number)]
    yield from map(SourceRange, repeat(file), bounds, [*bounds[1:], None])


def digest_of_files(files: Iterable[SourceFile]) -> str:
    """Return a digest of the names and contents of ``files``."""
    return digest_of([[file.name, file.sha256] for file in files])


def write_files(files: Iterable[SourceFile], uri: str) -> None:
    """Write the list of ``files`` to ``uri``, one JSON object a line."""
    lines = "".join(json.dumps(asdict(file)) + "\n" for file in files)
    storage.write_bytes(uri, lines.encode())


def read_files(uri: str) -> list[SourceFile]:
    """Return the list that `write_files` wrote."""
    return parse_files(storage.read_bytes(checked(uri)))


def parse_files(content: bytes) -> list[SourceFile]:
    """Return the list in the content of such a file."""
    return [SourceFile(**json.loads(line)) for line in content.splitlines()]


def read_excluded_ids(uri: str) -> list[str]:
    """Return the ids of documents to leave out, one a line at ``uri``; none when it is empty.

    Raises:
        SourceError: there is no such file.
    """
    if not uri:
        return []
    if not storage.exists(uri):
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} is missing. Give a file with one document id a line, "
            "or leave the setting out."
        )
    lines = storage.read_bytes(uri).decode().splitlines()
    return sorted({line.strip() for line in lines} - {""})


def describe_changes(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> str:
    """Say which files are new, gone, changed or only touched; empty when none is."""
    old, new = ({file.name: file for file in files} for files in (before, now))
    both = old.keys() & new.keys()
    changed = {name for name in both if old[name].sha256 != new[name].sha256}
    touched = {name for name in both - changed if old[name].modified != new[name].modified}
    groups = {
        "new": new.keys() - old.keys(),
        "removed": old.keys() - new.keys(),
        "changed": changed,
        "touched, with the same content": touched,
    }
    return "; ".join(
        f"{len(names)} {what} ({_some(sorted(names))})" for what, names in groups.items() if names
    )


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _found(uris: str | list[str]) -> list[SourceEntry]:
    if uris == INSTALLED_PYTHON:
        return list(_installed_python())
    if isinstance(uris, str):
        return list(_matching(uris))
    entries: dict[str, SourceEntry] = {}
    for uri in uris:
        base = re.split(r"[*?[]", uri)[0].rstrip("/").rpartition("/")[2]
        matching = list(_matching(uri))
        if not matching:
            raise SourceError(f"{uri} of the source {uris} has no file. Fetch it or leave it out.")
        for entry in matching:
            name = entry.name if entry.name == base else f"{base}/{entry.name}"
            if name in entries:
                raise SourceError(
                    f"{entries[name].uri} and {entry.uri} would both be named {name!r}. Give "
                    "their common folder as one source, or rename one of their folders."
                )
            entries[name] = replace(entry, name=name)
    return list(entries.values())


def matching_uris(uri: str) -> list[str]:
    """Return the files at a file, folder or glob, by name."""
    return [entry.uri for entry in sorted(_matching(uri), key=lambda entry: entry.name)]


def _matching(uri: str) -> Iterator[SourceEntry]:
    fs, path = storage.filesystem(storage.absolute(uri))
    if fs.isdir(path):
        found, base = fs.find(path, detail=True), path
    elif fs.exists(path):
        found, base = {path: fs.info(path)}, path.rpartition("/")[0]
        _say_other_host(path, found[path])
    elif glob.has_magic(path):
        found, base = fs.glob(path, detail=True), re.split(r"[*?[]", path)[0].rpartition("/")[0]
    else:
        return
    for each, info in found.items():
        name = str(each).removeprefix(base).lstrip("/")
        hidden = any(part.startswith(".") for part in name.split("/"))
        if not hidden and info["type"] == "file":
            yield _entry(name, str(fs.unstrip_protocol(each)), info)


def _say_other_host(url: str, info: Mapping[str, Any]) -> None:
    """Log a warning if a web server has sent the request on to another host."""
    answered_by = urlsplit(str(info.get("url", url)))
    if answered_by.netloc != urlsplit(url).netloc:
        log.warning("%s is answered by another host, %s", redacted(url), answered_by.hostname)


def _installed_python() -> Iterator[SourceEntry]:
    """Yield the modules and descriptions of the distributions installed beside this one."""
    seen = set()
    fs, _ = storage.filesystem("/")
    for distribution in importlib.metadata.distributions():
        if distribution.name == _OWN_DISTRIBUTION:
            continue
        # `distribution.files` has the same names, as a hundred thousand paths that take a second.
        for name, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if name.endswith((".py", ".dist-info/METADATA")) and name not in seen:
                path = str(distribution.locate_file(name))
                with suppress(FileNotFoundError):
                    info = fs.info(path)
                    if info["type"] == "file":
                        seen.add(name)
                        yield _entry(name, path, info)


def _entry(name: str, uri: str, info: Mapping[str, Any]) -> SourceEntry:
    stamps = (info.get(key) for key in ("mtime", "ETag", "LastModified", "created"))
    return SourceEntry(name, uri, int(info["size"] or 0), str(next(filter(None, stamps), "")))


def _is_unchanged(known: SourceFile | None, entry: SourceEntry) -> bool:
    """Return whether the file was listed before, with the same size and time of change."""
    if known is None or not entry.modified:
        return False
    return (known.num_bytes, known.modified) == (entry.num_bytes, entry.modified)


def _describe(
    entry: SourceEntry, settings: SourceSettings, before: Mapping[str, SourceFile]
) -> SourceFile:
    known = before.get(entry.uri)
    try:
        is_unchanged = _is_unchanged(known, entry)
        sha256 = known.sha256 if known and is_unchanged else storage.sha256_of(entry.uri)
        return _file(entry, settings, sha256)
    except OSError as error:
        raise SourceError(
            f"{entry.uri} can't be read: {error}. Mend or remove the file."
        ) from error


def _file(entry: SourceEntry, settings: SourceSettings, sha256: str) -> SourceFile:
    uri, num_bytes = entry.uri, entry.num_bytes
    kind = format_of(uri, settings)
    splittable = num_bytes > MAX_UNIT_BYTES and can_split(uri, kind)
    return SourceFile(uri, entry.name, num_bytes, entry.modified, sha256, kind, splittable)
