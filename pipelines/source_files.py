"""Which files a source consists of, and the units of work that they make."""

import glob
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from fsspec.utils import stringify_path

from albert_core.contract import storage
from albert_core.contract.errors import SourceError
from albert_core.contract.manifest import digest_of
from albert_core.contract.seeds import share_of
from pipelines.config import INSTALLED_PYTHON, SourceSettings

MAX_UNIT_BYTES = 8 << 20
_FILES_PER_UNIT = 256
"""Mean number of small files in a unit."""
_DIGEST_THREADS = 4


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source."""

    uri: str
    name: str
    """Relative to the source, so that ids do not change when the source moves."""
    num_bytes: int
    modified: str
    """When the store says that it changed; not part of any digest."""
    sha256: str


def list_source(settings: SourceSettings) -> list[SourceFile]:
    """Return the files of the source, by name, with their digests.

    Raises:
        SourceError: there is no file.
    """
    found = sorted(
        _installed_python() if settings.uri == INSTALLED_PYTHON else _matching(settings.uri)
    )
    sampled = [
        (name, uri)
        for name, uri in found
        if settings.file_share == 1 or share_of(0, "source-file", name) < settings.file_share
    ]
    if not sampled:
        raise SourceError(
            f"source {settings.uri!r} has no file"
            + (f" in its sample of {settings.file_share:.0%}" if found else "")
            + ". Give an existing file, folder or quoted glob, e.g. SOURCE='/data/wiki/**'."
        )
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        return list(pool.map(_describe, sampled))


def units_of(files: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield groups of files to be cleaned together, of at most about `MAX_UNIT_BYTES`.

    A group ends at a file whose name says so, so that a file more or less changes its own group
    and leaves the others as they were.
    """
    unit: list[SourceFile] = []
    num_bytes = 0
    for file in files:
        if unit and num_bytes + file.num_bytes > MAX_UNIT_BYTES:
            yield unit
            unit, num_bytes = [], 0
        unit.append(file)
        num_bytes += file.num_bytes
        # A large file ends a unit more often, so that most units end before they are full.
        end_share = max(1 / _FILES_PER_UNIT, 2 * file.num_bytes / MAX_UNIT_BYTES)
        if share_of(0, "unit-end", file.name) < end_share:
            yield unit
            unit, num_bytes = [], 0
    if unit:
        yield unit


def digest_of_files(files: Iterable[SourceFile]) -> str:
    """Return a digest of the names and contents of ``files``."""
    return digest_of([[file.name, file.sha256] for file in files])


def write_files(files: Iterable[SourceFile], uri: str) -> None:
    """Write the list of ``files`` to ``uri``, one JSON object a line."""
    lines = "".join(json.dumps(asdict(file)) + "\n" for file in files)
    storage.write_bytes(uri, lines.encode())


def read_files(uri: str) -> list[SourceFile]:
    """Return the list that `write_files` wrote."""
    return [SourceFile(**json.loads(line)) for line in storage.read_bytes(uri).splitlines()]


def describe_changes(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> str:
    """Say which files are new, gone, changed or only touched; empty when none is."""
    old, new = ({file.name: file for file in files} for files in (before, now))
    both = old.keys() & new.keys()
    groups = {
        "new": new.keys() - old.keys(),
        "removed": old.keys() - new.keys(),
        "changed": {name for name in both if old[name].sha256 != new[name].sha256},
        "touched, with the same content": {
            name
            for name in both
            if old[name].sha256 == new[name].sha256 and old[name].modified != new[name].modified
        },
    }
    return "; ".join(
        f"{len(names)} {what} ({_some(sorted(names))})" for what, names in groups.items() if names
    )


def _some(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _matching(uri: str) -> Iterator[tuple[str, str]]:
    fs, path = storage.filesystem(storage.absolute(uri))
    if fs.isdir(path):
        paths, base = fs.find(path), path
    elif fs.exists(path):
        paths, base = [path], path.rpartition("/")[0]
    elif glob.has_magic(path):
        paths, base = fs.glob(path), re.split(r"[*?[]", path)[0].rpartition("/")[0]
    else:
        return
    for found in map(stringify_path, paths):
        name = found.removeprefix(base).lstrip("/")
        if not any(part.startswith(".") for part in name.split("/")) and fs.isfile(found):
            yield name, str(fs.unstrip_protocol(found))


def _installed_python() -> Iterator[tuple[str, str]]:
    """Yield the modules and descriptions of the distributions installed beside this one."""
    seen = set()
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.suffix == ".py" or (file.name == "METADATA" and "dist-info" in str(file)):
                path = Path(str(distribution.locate_file(file)))
                if str(file) not in seen and path.is_file():
                    seen.add(str(file))
                    yield str(file), str(path)


def _describe(named: tuple[str, str]) -> SourceFile:
    name, uri = named
    fs, path = storage.filesystem(uri)
    info = fs.info(path)
    modified = info.get("mtime") or info.get("LastModified") or info.get("created") or ""
    try:
        return SourceFile(uri, name, int(info["size"] or 0), str(modified), storage.sha256_of(uri))
    except OSError as error:
        raise SourceError(f"{uri} can't be read: {error}. Mend or remove the file.") from error
