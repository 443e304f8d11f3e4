"""Which files a source consists of, a first look at them, and the units of work they make."""

import csv
import glob
import importlib.metadata
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice, repeat
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem

from albert_core.stage import storage
from albert_core.stage.credentials import redacted
from albert_core.stage.errors import OutageError, SourceError, explained, is_transient
from albert_core.stage.manifest import checked
from albert_core.text.seeds import share_of
from pipelines.config import INSTALLED_PYTHON, SourceSettings
from pipelines.readers import (
    NOT_ASKED_FOR,
    WHAT_TO_DO,
    Unreadable,
    can_split,
    format_of,
    read_documents,
)

MAX_UNIT_BYTES = 8 << 20
_FILES_PER_UNIT = 256
"""Mean number of small files in a unit."""
_DIGEST_THREADS = 4
_OWN_DISTRIBUTION = "albert-pretraining"
"""Left out, because whether it is found, and where, depends on where a process is started."""
_SMALL_BYTES = 1 << 20
"""A source up to this size is checked completely; of a larger one, files up to this size."""
_CHECKED_FILES = 8
"""At most so many files, from all of a larger source: their first record is checked."""
_QUICK_FILES, _QUICK_BYTES = 256, 32 << 20
"""Limits of what can be read quickly."""

_MAGIC = re.compile(r"[*?[]")
_DESCRIBES_DATASET = ("dataset_info.json", "state.json")
"""Names of files that `datasets` writes beside the Arrow files of a data set."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source."""

    uri: str
    name: str
    """Relative to the source, so that ids do not change when the source moves."""
    num_bytes: int
    modified: str
    """When it changed, according to the store, and on a disk also when its entry did: a program may
    set the former to what it was. Not part of any digest."""
    sha256: str = ""
    """Empty until the file is read."""
    format: str = ""
    """How it is read, a key of `READERS`; empty until then."""
    splittable: bool = False
    """Whether ranges of its bytes can be read."""


class Listing(NamedTuple):
    """All entries of a source, folders apart."""

    files: list[SourceFile]
    """The entries that are read."""
    skipped: Counter[str]
    """Number of entries that are skipped, by reason."""

    def __str__(self) -> str:
        """Summarise what is skipped; empty if nothing is."""
        numbers = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.skipped.items()))
        return f"left out {numbers}" if numbers else ""


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


def list_source(settings: SourceSettings, known: Iterable[SourceFile] = ()) -> Listing:
    """Return the files of the source, by name, with their digests, and what is skipped.

    Args:
        settings: where they are.
        known: files listed before; one of the same size and time of change is not read again.

    Raises:
        SourceError: there is no file, or one can't be read.
        OutageError: a file was deleted meanwhile.
    """
    found = files_of(settings)
    before = {file.uri: file for file in known}
    return found._replace(files=_described(found.files, settings, before))


def list_quickly(settings: SourceSettings, known: Iterable[SourceFile]) -> list[SourceFile] | None:
    """Return the files that `list_source` would if little has to be read for that, else None.

    Raises:
        SourceError: there is no file.
    """
    before = {file.uri: file for file in known}
    listed = files_of(settings).files
    new = [file for file in listed if not _is_unchanged(before.get(file.uri), file)]
    if len(new) > _QUICK_FILES or sum(file.num_bytes for file in new) > _QUICK_BYTES:
        return None
    files = before | {file.uri: file for file in _described(new, settings, {})}
    return [replace(files[file.uri], name=file.name) for file in listed]


def _described(
    files: Iterable[SourceFile], settings: SourceSettings, before: Mapping[str, SourceFile]
) -> list[SourceFile]:
    def describe(file: SourceFile) -> SourceFile:
        known = before.get(file.uri)
        try:
            is_known = known and _is_unchanged(known, file)
            sha256 = known.sha256 if known and is_known else storage.sha256_of(file.uri)
            return with_format(replace(file, sha256=sha256), settings)
        except OSError as error:
            # Of a web address, fsspec says so for every request that fails.
            if isinstance(error, FileNotFoundError) and not file.uri.startswith("http"):
                raise OutageError(
                    f"{file.uri} was deleted while the source was listed. Run the same command: it "
                    "lists the source again."
                ) from error
            raise SourceError(
                f"{file.uri} can't be read: {error}. Repair or remove the file."
            ) from error

    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        return list(pool.map(describe, files))


def with_format(file: SourceFile, settings: SourceSettings) -> SourceFile:
    """Return the file with its format, and whether it can be split, after a look into it."""
    kind = format_of(file.uri, settings)
    splittable = file.num_bytes > MAX_UNIT_BYTES and can_split(file.uri, kind)
    return replace(file, format=kind, splittable=splittable)


def files_of(settings: SourceSettings) -> Listing:
    """Return the files of the source as its store lists them, by name, and what is skipped.

    Raises:
        ConfigError: the settings name no source.
        SourceError: there is no file.
    """
    settings.check_given()
    listed = _found(settings.uri)
    found = sorted(listed.files, key=lambda file: (file.name, file.uri))
    uris = Counter(file.uri for file in found)
    if twice := [uri for uri, number in uris.items() if number > 1]:
        raise SourceError(
            f"{twice[0]} is in the source twice. Give sources that don't hold each other."
        )
    share = settings.file_share
    sampled = [f for f in found if share == 1 or share_of(0, "source-file", f.name) < share]
    if not sampled:
        raise SourceError(
            f"source {settings.uri!r} has no file"
            + (f" in its sample of {share:.0%}" if found else "")
            + (f"; {listed}" if listed.skipped else "")
            + ". Give an existing file, folder or quoted glob, e.g. SOURCE='/data/wiki/**'."
            + " In a glob, [[] stands for a bracket in a name." * ("[" in str(settings.uri))
        )
    not_sampled = Counter({"not_in_sample": len(found) - len(sampled)})
    return Listing(sampled, listed.skipped + not_sampled)


def check_unchanged(file: SourceFile) -> None:
    """Raise an error unless the file is still the one that was listed, by size and time.

    Raises:
        SourceError: it changed.
        OutageError: it is gone.
    """
    fs, path = storage.filesystem(file.uri)
    try:
        now = _listed(file.name, file.uri, fs.info(path))
    except FileNotFoundError as error:
        raise OutageError(
            f"{file.uri} was deleted while it was read, or its server does not answer. Run the "
            "same command: it lists the source again."
        ) from error
    if (now.num_bytes, now.modified) != (file.num_bytes, file.modified):
        raise SourceError(
            f"{file.uri} changed while it was read. Run the stage again when it is finished."
        )


def check_source(source: SourceSettings, is_held_out: Callable[[str], bool]) -> None:
    """Raise within seconds an error that would certainly stop the stages that read the source.

    Args:
        source: where it is.
        is_held_out: whether examples hold out the document with an id.

    Raises:
        SourceError: there is no file; no record that was looked at can be read; or a small source
            has too few documents to train on some and hold others out.
    """
    files = files_of(source).files
    is_small = sum(file.num_bytes for file in files) <= _SMALL_BYTES
    if not is_small:
        files = [file for file in files if file.num_bytes <= _SMALL_BYTES]
        files = files[:: 1 + len(files) // _CHECKED_FILES]
    held_out, reasons, ids = Counter[bool](), Counter[str](), set[str]()
    for file in files:
        records = read_documents(file.uri, file.name, source, format_of(file.uri, source))
        for record in records if is_small else islice(records, 1):
            if isinstance(record, Unreadable):
                reasons[record.reason] += 1
            else:
                held_out[is_held_out(record.id)] += 1
                ids.add(record.id)
    # The rest of a larger folder that begins with pictures may well be text.
    is_certain = is_small or NOT_ASKED_FOR.isdisjoint(reasons)
    if reasons and not held_out and is_certain and source.max_unreadable_share < 1:
        why = ", ".join(f"{reason} {number}" for reason, number in reasons.items())
        raise SourceError(
            f"no record of the source can be read ({why} of {reasons.total()} looked at, beginning "
            f"with {files[0].uri}). {_what_to_do(reasons)}"
        )
    if is_small and len(held_out) < 2 and len(ids) == held_out.total():  # others get new ids
        raise SourceError(
            f"the source has {held_out.total()} documents, of which {held_out[True]} would be held "
            "out and the others trained on; there must be some of both. Give more text, or another "
            "examples.held_out_share."
        )


def _what_to_do(reasons: Collection[str]) -> str:
    known = [f"{reason} {WHAT_TO_DO[reason]}." for reason in reasons if reason in WHAT_TO_DO]
    return " ".join(known) or "Give files of text, source.format or source.encoding."


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
        if file.splittable:
            yield from ([part] for part in ranges_of(file))
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


def ranges_of(file: SourceFile) -> list[SourceRange]:
    """Return the ranges of equal size in which a file is read."""
    number = max(1, -(-file.num_bytes // MAX_UNIT_BYTES)) if file.splittable else 1
    bounds = [file.num_bytes * k // number for k in range(number)]
    return list(map(SourceRange, repeat(file), bounds, [*bounds[1:], None]))


def write_files(files: Iterable[SourceFile], uri: str) -> None:
    """Write the list of ``files`` to ``uri``, one JSON object a line."""
    lines = "".join(json.dumps(asdict(file)) + "\n" for file in files)
    storage.write_bytes(uri, lines.encode())


def read_files(uri: str) -> list[SourceFile]:
    """Return the list that `write_files` wrote."""
    return parse_files(storage.read_bytes(checked(uri)))


def parse_files(content: bytes) -> list[SourceFile]:
    """Return the list that is the content of such a file."""
    return [SourceFile(**json.loads(line)) for line in content.splitlines()]


def read_excluded_ids(uri: str) -> list[str]:
    """Return the ids of documents to leave out, one a line at ``uri``; none when it is empty.

    Blanks around an id are part of it.

    Raises:
        SourceError: there is no such file, or it is not UTF-8.
    """
    if not uri:
        return []
    if not storage.exists(uri):
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} is missing. Give a file with one document id a line, "
            "or leave the setting out."
        )
    try:
        lines = storage.read_bytes(uri).decode("utf-8-sig").split("\n")
    except IsADirectoryError as error:
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} is a folder. Give a file with one document id a line."
        ) from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"cleaning.excluded_ids {uri!r} is not UTF-8 ({error}). Convert the file."
        ) from error
    return sorted({line.removesuffix("\r") for line in lines if line.strip()})


def describe_changes(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> str:
    """Describe which files are new, removed, changed or only touched; empty if none is."""
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

    def some(names: set[str], limit: int = 3) -> str:
        return ", ".join(sorted(names)[:limit]) + (", ..." if len(names) > limit else "")

    return "; ".join(
        f"{len(names)} {what} ({some(names)})" for what, names in groups.items() if names
    )


def _found(uris: str | list[str]) -> Listing:
    if uris == INSTALLED_PYTHON:
        return Listing(list(_installed_python()), Counter())
    if isinstance(uris, str):
        return _matching(uris)
    entries: dict[str, SourceFile] = {}
    skipped = Counter[str]()
    for uri in uris:
        base = (_MAGIC.split(uri)[0] if _is_glob(uri) else uri).rstrip("/").rpartition("/")[2]
        matching = _matching(uri)
        if not matching.files:
            raise SourceError(f"{uri} of the source {uris} has no file. Fetch it or leave it out.")
        skipped += matching.skipped
        for entry in matching.files:
            name = entry.name if entry.name == base else f"{base}/{entry.name}"
            if name in entries:
                raise SourceError(
                    f"{entries[name].uri} and {entry.uri} would both be named {name!r}. Give "
                    "their common folder as one source, or rename one of their folders."
                )
            entries[name] = replace(entry, name=name)
    return Listing(list(entries.values()), skipped)


def _is_glob(uri: str) -> bool:
    """Return whether a URI with wildcards is no file or folder of that very name."""
    return glob.has_magic(uri) and not storage.is_there(uri)


def roots_of(uris: str | list[str]) -> list[str]:
    """Return the URIs with which those of a source's files begin, without the part of a glob."""
    roots = []
    for uri in [uris] if isinstance(uris, str) else uris:
        fs, path = storage.filesystem(storage.absolute(uri))
        if _is_glob(storage.absolute(uri)):
            path = _MAGIC.split(path)[0].rpartition("/")[0]
        roots.append(str(fs.unstrip_protocol(path)).rstrip("/"))
    return roots


def matching_uris(uri: str) -> list[str]:
    """Return the URIs of the files that a file, folder or glob names, sorted by name."""
    return [entry.uri for entry in sorted(_matching(uri).files, key=lambda entry: entry.name)]


def _matching(uri: str) -> Listing:
    fs, path = storage.filesystem(storage.absolute(uri))
    found, base = _entries(fs, path)
    listing = Listing([], Counter())
    datasets = _dataset_folders(found)
    for each, info in found.items():
        name, real = str(each).removeprefix(base).lstrip("/"), info
        if is_link := bool(info.get("islink")) or info["type"] == "link":
            with suppress(OSError):  # a link to nothing, or to itself, stays one
                real = dict(fs.info(each))
        if real["type"] == "directory" and not is_link:
            listing.skipped["folder"] += 1
        elif reason := _why_skipped(name, str(each), real, is_link and real is info, datasets):
            listing.skipped[reason] += 1
        else:
            known = real if real["size"] is not None else fs.info(each)  # a web page of links
            listing.files.append(_listed(name, str(fs.unstrip_protocol(each)), known))
    if listing.skipped:
        log.warning("%s: %s", redacted(uri), listing)
    return listing


def _entries(fs: AbstractFileSystem, path: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the entries, by path, and the folder that they are named from."""
    if fs.isdir(path):
        return storage.find(fs, path), path
    if fs.exists(path):
        info = fs.info(path)
        _say_other_host(path, info)
        return {path: info}, path.rpartition("/")[0]
    if glob.has_magic(path):
        return storage.glob(fs, path), _MAGIC.split(path)[0].rpartition("/")[0]
    try:
        fs.ls(path)  # says what `exists` does not: a bucket that is missing, or a refusal
    except Exception as error:
        if explained(error) or is_transient(error):
            raise
    return {}, path


def _dataset_folders(paths: Iterable[str]) -> frozenset[str]:
    """Return the folders that hold a data set of Hugging Face's `datasets`."""
    parts = [str(path).rpartition("/") for path in paths]
    described = {folder for folder, _, name in parts if name in _DESCRIBES_DATASET}
    return frozenset(folder for folder, _, name in parts if name.endswith(".arrow")) & described


def _why_skipped(
    name: str, path: str, real: Mapping[str, Any], is_broken: bool, datasets: Collection[str]
) -> str:
    """Return why an entry is not read, or an empty string if it is."""
    folder, _, last = path.rpartition("/")
    if any(part.startswith(".") for part in name.split("/")):
        return "hidden"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "name_not_utf8"
    if real["type"] == "directory":
        return "linked_folder"
    if real["type"] != "file":
        return "broken_link" if is_broken else "special_file"
    is_data = last.endswith(".arrow") and not last.startswith("cache-")
    is_beside = (folder in datasets and not is_data) or last == "dataset_dict.json"
    return "beside_dataset" if is_beside else ""


def _say_other_host(url: str, info: Mapping[str, Any]) -> None:
    """Log a warning if a web server has redirected the request to another host."""
    answered_by = urlsplit(str(info.get("url", url)))
    if answered_by.netloc != urlsplit(url).netloc:
        log.warning("%s is answered by another host, %s", redacted(url), answered_by.hostname)


def _installed_python() -> Iterator[SourceFile]:
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
                        yield _listed(name, path, info)


def _listed(name: str, uri: str, info: Mapping[str, Any]) -> SourceFile:
    """Return a file as its store describes it."""
    names = ("mtime", "ETag", "LastModified", "Last-Modified", "created")
    modified = str(next(filter(None, map(info.get, names)), ""))
    if "mtime" in info and "ino" in info:  # a local file, of which this is the time of any change
        modified += f" {info['created']}"
    return SourceFile(uri, name, int(info["size"] or 0), modified)


def _is_unchanged(known: SourceFile | None, file: SourceFile) -> bool:
    """Return whether the file was listed before, with the same size and time of change."""
    if known is None or not file.modified:
        return False
    return (known.num_bytes, known.modified) == (file.num_bytes, file.modified)
