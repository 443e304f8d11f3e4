"""The manifest of a stage: what it made, from which inputs, with which code, and in which files.

A result's folder is named by its key: a digest of the settings, the inputs and the code that can
change the result. The manifest is written last. A folder without one is unfinished, and readers
trust only the files that a manifest names.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from albert_core.stage import lock, storage
from albert_core.stage.errors import AccountingError, AlbertError, IntegrityError
from albert_core.stage.provenance import Provenance, provenance
from albert_core.stage.settings import Settings

MANIFEST = "manifest.json"
BEGUN = "begun.json"
"""The manifest of an unfinished result. It has no shards, accounts or result. On a local disk its
time is that of the last use of the result: retention keeps what a run that is under way found."""
DAMAGED = "damaged"
"""The folder inside a result to which damaged files and their manifest are moved."""
KEY_DIGITS = 16
_DIGEST = "digest"
_TICK = 1_000_000
"""Nanoseconds between two manifests whose order a file system keeps."""
_ONE_OF_MANY = ("task", "seed")
"""Settings that vary within one run. A result with another value is not a predecessor."""
_IN_RESULT = re.compile(rf"(.*/[a-z][a-z-]*/[0-9a-f]{{{KEY_DIGITS}}})/(.+)")

R = TypeVar("R", bound=Settings)

log = logging.getLogger(__name__)


class Shard(Settings):
    """One output file of a stage."""

    path: str
    """Relative to the manifest's folder."""
    kind: str
    """What the file holds, e.g. documents, train, held_out."""
    num_rows: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    sha256: str


class Account(Settings):
    """An equation: what came in = what was kept + what was dropped, by reason."""

    what: str
    """What is counted, e.g. documents or pieces."""
    total: int
    kept: int
    dropped: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        found = self.kept + sum(self.dropped.values())
        if found != self.total:
            raise AccountingError(
                f"{self.what}: {self.total} came in, but {self.kept} kept and {self.dropped} "
                f"dropped add up to {found}. This is a bug in the stage: do not use its result."
            )
        return self

    def __str__(self) -> str:
        """Return the equation as a sentence."""
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(self.dropped.items()))
        lost = f", {sum(self.dropped.values()):,} dropped ({reasons})" if self.dropped else ""
        return f"{self.what}: {self.total:,} in = {self.kept:,} kept{lost}"


class Manifest(Settings):
    """The record of one finished run of a stage."""

    stage: str
    key: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    """Input name -> digest of its content."""
    input_manifests: dict[str, str]
    """Input name -> URI of its manifest."""
    code: str
    """Digest of the code that can change the result."""
    libraries: dict[str, str]
    shards: list[Shard]
    accounts: list[Account]
    result: dict[str, Any]
    """A dump of one of the models in `results`; read it with `result_as`."""
    notes: dict[str, str] = Field(default_factory=dict)
    """Name of every other file beside the manifest -> its SHA-256."""
    provenance: Provenance
    """The call, commit and machine."""

    @property
    def content(self) -> str:
        """A digest of the shards: the same bytes give the same digest, however they were made."""
        return digest_of([[shard.path, shard.kind, shard.sha256] for shard in self.shards])

    def result_as(self, kind: type[R]) -> R:
        """Return the result, parsed strictly as one of the models in `results`.

        Raises:
            IntegrityError: a field is missing, unknown or of the wrong type.
        """
        try:
            return kind.model_validate_json(json.dumps(self.result))
        except ValidationError as error:
            where = f"the result in {self.stage}/{self.key}/{MANIFEST}"
            raise _unreadable(f"{where} is not a {kind.__name__}", error) from error

    def shards_of(self, kind: str) -> list[Shard]:
        """Return the shards of one kind, in order."""
        return [shard for shard in self.shards if shard.kind == kind]

    def account(self, what: str) -> Account:
        """Return the account of ``what``."""
        return next(account for account in self.accounts if account.what == what)


@dataclass(frozen=True)
class StagePlan:
    """Everything that a stage's result depends on."""

    stage: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    code: str
    libraries: dict[str, str]
    input_manifests: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """The name of this result's folder, unique to it."""
        parts = [self.stage, self.settings, self.inputs, self.code, self.libraries]
        return digest_of(parts)[:KEY_DIGITS]

    def folder(self, work: str) -> str:
        """Return this result's folder under ``work``."""
        return storage.join(work, self.stage, self.key)

    @property
    def _place(self) -> str:
        return f"{self.stage}/{self.key}"

    def done(self, work: str) -> str | None:
        """Return the URI of the manifest if the result exists, else None.

        A damaged manifest is set aside, and the result counts as missing.
        """
        uri = storage.join(self.folder(work), MANIFEST)
        if not storage.exists(uri):
            return None
        try:
            unsealed(uri)
        except IntegrityError as error:
            log.warning("%s: %s", self.stage, _set_aside(self.folder(work), str(error)))
            return None
        if begun := storage.local_path(storage.join(self.folder(work), BEGUN)):
            with suppress(OSError):  # it is absent, or this user may not write there
                os.utime(begun)
        return uri

    def find(self, work: str) -> str | None:
        """Return the URI of the manifest if the result exists, else None; log which, and why.

        After None, this process owns the folder until it calls `write` or ends. Another process
        that wants the same result waits in its own `find`, which then returns it.
        """

        def is_done() -> bool:
            return self.done(work) is not None

        if not is_done() and lock.take(work, self._place, is_done):
            if not is_done():
                log.info("%s: to do, because %s", self.stage, self._why(work))
                self._save(work, BEGUN)
                return None
            lock.release(work, self._place)
        log.info("%s: done already (%s)", self.stage, self.folder(work))
        return self.done(work)

    def write(
        self, work: str, shards: Iterable[Shard], accounts: Sequence[Account], result: Settings
    ) -> str:
        """Write the manifest, which completes the result, and return its URI."""
        uri = self._save(work, MANIFEST, shards, accounts, result.model_dump(mode="json"))
        _make_newest(uri)
        storage.remove(storage.join(self.folder(work), DAMAGED))
        lock.release(work, self._place)
        for account in accounts:
            log.info("%s: %s", self.stage, account)
        log.info("%s: done, wrote %s", self.stage, uri)
        return uri

    def _save(
        self,
        work: str,
        name: str,
        shards: Iterable[Shard] = (),
        accounts: Iterable[Account] = (),
        result: Mapping[str, Any] | None = None,
    ) -> str:
        shards = list(shards)
        manifest = Manifest(
            **vars(self),
            key=self.key,
            shards=shards,
            accounts=list(accounts),
            result=dict(result or {}),
            notes={} if name == BEGUN else _notes(self.folder(work), shards),
            provenance=provenance(),
        )
        uri = storage.join(self.folder(work), name)
        storage.write_bytes(uri, sealed(json.loads(manifest.model_dump_json())))
        return uri

    def _why(self, work: str) -> str:
        if storage.exists(storage.join(self.folder(work), DAMAGED)):
            return "one of its files was damaged"
        which = {name: self.settings.get(name) for name in _ONE_OF_MANY}
        before = newest_manifest(
            storage.join(work, self.stage),
            lambda made: which == {name: made.settings.get(name) for name in _ONE_OF_MANY},
        )
        if before is None:
            return "it has never been done in this work folder"
        settings_then, settings_now = (
            {name: repr(value) for name, value in flat(settings).items()}
            for settings in (before.settings, self.settings)
        )
        changes = [
            f"{what} {name} was {_short(old.get(name))} and is {_short(new.get(name))}"
            for what, old, new in (
                ("setting", settings_then, settings_now),
                ("input", before.inputs, self.inputs),
                ("library", before.libraries, self.libraries),
            )
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
        if before.code != self.code:
            changes.append("the code changed")
        return "; ".join(changes) or "its manifest is missing"


def digest_of(values: Any) -> str:
    """Return the SHA-256 of ``values`` as canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sealed(content: Mapping[str, Any], indent: int | None = 1) -> bytes:
    """Return ``content`` as JSON with a digest of itself, for `unsealed` to verify.

    Without ``indent``, for what no person reads, this takes a third of the time.
    """
    values = {**content, _DIGEST: digest_of(content)}
    return f"{json.dumps(values, indent=indent, ensure_ascii=False)}\n".encode()


def unsealed(uri: str) -> dict[str, Any]:
    """Return the content of a file that `sealed` made, after checking its digest.

    Files of earlier versions have no digest and are not checked.

    Raises:
        IntegrityError: the file is not JSON, or has changed since it was written.
    """
    try:
        content: dict[str, Any] = json.loads(storage.read_bytes(uri))
        if _DIGEST in content:
            is_whole = content.pop(_DIGEST) == digest_of(content)
        else:  # of an earlier version, unless the name of its digest is damaged
            is_whole = not any(
                value == digest_of({n: v for n, v in content.items() if n != name})
                for name, value in content.items()
            )
        if not is_whole:
            raise ValueError(f"its {_DIGEST} does not match its content")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{uri} changed after it was written") from error
    return content


def read_manifest(uri: str) -> Manifest:
    """Return the manifest at ``uri``.

    An input that is no longer where it was is looked for in the work folder of this manifest,
    because the folder may have been moved.

    Raises:
        IntegrityError: the file is missing or not a manifest. A damaged one is set aside.
    """
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing: its stage did not finish, or `albert retention` deleted what it "
            "made. Run the same command: it makes what is missing."
        )
    try:
        content = unsealed(uri)
    except IsADirectoryError as error:
        raise IntegrityError(f"{uri} is a folder. Give the {MANIFEST} in it.") from error
    except IntegrityError as error:
        folder, _, name = uri.rpartition("/")
        if name != MANIFEST or not is_in_result(uri):
            raise IntegrityError(f"{uri} is not a manifest: {error}. Copy it again.") from error
        raise _set_aside(folder, str(error)) from error
    try:
        found = Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise _unreadable(f"{uri} is not a manifest", error) from error
    inputs = {name: _where_now(noted, uri) for name, noted in found.input_manifests.items()}
    return found.model_copy(update={"input_manifests": inputs})


def _where_now(noted: str, by: str) -> str:
    """Return where the manifest is that the one at ``by`` noted as an input."""
    work = by.rsplit("/", 3)[0]
    here = "/".join([work, *noted.rsplit("/", 3)[1:]])
    return noted if noted == here or storage.exists(noted) or not storage.exists(here) else here


def newest_manifest(
    stage_folder: str, is_wanted: Callable[[Manifest], bool] = lambda _: True
) -> Manifest | None:
    """Return the newest readable manifest under ``stage_folder`` that is wanted, or None."""
    return next(filter(is_wanted, newest_first(stage_folder)), None)


def newest_first(stage_folder: str) -> Iterator[Manifest]:
    """Yield the readable manifests under ``stage_folder``, the newest first."""
    fs, _ = storage.filesystem(stage_folder)
    paths = (f"{entry['name']}/{MANIFEST}" for entry in storage.list_folder(stage_folder))
    written = {path: modified_at(fs.info(path)) for path in paths if fs.exists(path)}
    for path in sorted(written, key=lambda path: written[path], reverse=True):
        try:
            yield read_manifest(str(fs.unstrip_protocol(path)))
        except AlbertError as error:
            log.warning("skipping %s", error)


def _make_newest(uri: str) -> None:
    """Have the manifest count as the newest of its stage, also if the clock was put back."""
    if (path := storage.local_path(uri)) is None:  # a store has a clock of its own
        return
    with suppress(OSError):  # another process deletes results
        times = (each.stat().st_mtime_ns for each in path.parent.parent.glob(f"*/{MANIFEST}"))
        if (newest := max(times)) > path.stat().st_mtime_ns:
            os.utime(path, ns=(newest + _TICK, newest + _TICK))


def check_shard(shard: Shard, folder: str) -> None:
    """Verify the digest of a shard's file, once per process for an unchanged file.

    Raises:
        IntegrityError: the file is missing or has changed since it was written. In a work folder,
            the file and the manifest are set aside, so that the stage makes the result again.
    """
    _check(folder, shard.path, shard.sha256)


def shard_damage(shard: Shard, folder: str) -> str:
    """Return how a shard's file differs from its description; empty if it does not."""
    return _damage(folder, shard.path, shard.sha256)


def checked(uri: str) -> str:
    """Return ``uri`` after verifying the file's digest, if a manifest records one.

    Readers of results call this first, so that damaged bytes are never passed on.

    Raises:
        IntegrityError: as in `check_shard`, or the manifest is damaged.
    """
    within = _IN_RESULT.fullmatch(uri)
    manifest = within and storage.join(within[1], MANIFEST)
    if within and manifest and storage.exists(manifest):
        noted = _noted(manifest, *_version(manifest))
        if within[2] in noted:
            _check(within[1], within[2], noted[within[2]])
    return uri


def sha256_of(uri: str) -> str:
    """Return the SHA-256 of the file at ``uri``; a `checked` file is hashed once per process.

    Raises:
        IntegrityError: as in `checked`.
    """
    known = _CHECKED.get(checked(uri))
    return known[0] if known and known[1:] == _version(uri) else storage.sha256_of(uri)


def is_in_result(uri: str) -> bool:
    """Return whether ``uri`` is inside a result's folder, where only its stage writes."""
    return _IN_RESULT.fullmatch(uri) is not None


@lru_cache(maxsize=64)
def _noted(manifest: str, num_bytes: int, modified: float) -> dict[str, str]:
    """Return path -> digest of the files that a manifest records."""
    found = read_manifest(manifest)
    return {shard.path: shard.sha256 for shard in found.shards} | found.notes


def _check(folder: str, path: str, sha256: str) -> None:
    if said := _damage(folder, path, sha256):
        raise _set_aside(folder, said, path)


def _damage(folder: str, path: str, sha256: str) -> str:
    uri = storage.join(folder, path)
    if not storage.exists(uri):
        return f"{uri} is missing, but {MANIFEST} names it"
    version = _version(uri)
    if _CHECKED.get(uri) == (sha256, *version):
        return ""
    found = storage.sha256_of(uri)
    if found != sha256:
        return (
            f"{uri} changed after it was written: its sha256 is {found[:12]}, but {MANIFEST} says "
            f"{sha256[:12]}"
        )
    _CHECKED[uri] = (sha256, *version)
    return ""


_CHECKED: dict[str, tuple[str, int, float]] = {}
"""Files that this process has verified -> their digest, size and modification time."""


def _version(uri: str) -> tuple[int, float]:
    fs, path = storage.filesystem(uri)
    info = fs.info(path)
    return int(info["size"]), modified_at(info)


def _set_aside(folder: str, said: str, path: str = "") -> IntegrityError:
    """Move a damaged file of a result, and its manifest first, to the folder `DAMAGED`.

    Without a manifest the result is unfinished, and the next run makes it again. Outside a work
    folder, for example in a copy, nothing is moved.

    Args:
        folder: the result's folder.
        said: what is wrong.
        path: the file, relative to ``folder``; empty for the manifest itself.

    Returns:
        The error to raise, which also says where the files are now.
    """
    if not is_in_result(storage.join(folder, MANIFEST)):
        return IntegrityError(f"{said}. Copy or make it again.")
    fs, root = storage.filesystem(folder)
    try:
        fs.makedirs(f"{root}/{DAMAGED}", exist_ok=True)
        for name in filter(None, (MANIFEST, path)):
            with suppress(FileNotFoundError):  # it is missing, or another process was faster
                fs.mv(f"{root}/{name}", f"{root}/{DAMAGED}/{name.replace('/', '-')}")
    except OSError as refused:
        return IntegrityError(
            f"{said}. It can't be set aside ({refused}): delete {folder} and run the same again."
        )
    return IntegrityError(
        f"{said}. It is set aside in {storage.join(folder, DAMAGED)}; the next run of the stage "
        "makes the result again."
    )


def _notes(folder: str, shards: Sequence[Shard]) -> dict[str, str]:
    """Return the digests of the files in ``folder`` that are no shards, manifests or temporary."""
    known = {MANIFEST, BEGUN, *(shard.path for shard in shards)}
    entries = [entry for entry in storage.list_folder(folder) if entry["type"] == "file"]
    names = {str(entry["name"]).rpartition("/")[2] for entry in entries} - known
    lasting = sorted(name for name in names if not storage.is_temporary(name))
    return {name: storage.sha256_of(storage.join(folder, name)) for name in lasting}


def shard_of(uri: str, folder: str, kind: str, num_rows: int) -> Shard:
    """Return the description of the file at ``uri``, which is read back to hash it."""
    fs, path = storage.filesystem(uri)
    return Shard(
        path=uri.removeprefix(folder).lstrip("/"),
        kind=kind,
        num_rows=num_rows,
        num_bytes=int(fs.info(path)["size"]),
        sha256=storage.sha256_of(uri),
    )


def shards_in(folder: str, kind: str) -> list[Shard]:
    """Return the descriptions of the files in the subfolder ``kind`` of ``folder``.

    What killed processes of this machine left there is removed first.
    """
    within = storage.join(folder, kind)
    storage.remove_abandoned(within)
    names = (name for name in storage.list_names(within) if not storage.is_temporary(name))
    return [shard_of(storage.join(within, name), folder, kind, 1) for name in names]


@contextmanager
def scratch_folder(folder: str) -> Iterator[str]:
    """Yield a temporary folder of this process inside ``folder``, and remove it at the end.

    Leftovers of killed processes of this host are removed first.
    """
    storage.remove_abandoned(folder)
    scratch = storage.join(folder, f".scratch-{storage.process_name()}")
    try:
        yield scratch
    except BaseException:
        # Other threads may still be writing there. The next run removes what they leave.
        with suppress(OSError):
            storage.remove(scratch)
        raise
    storage.remove(scratch)


def modified_at(info: Mapping[str, Any]) -> float:
    """Return the modification time of an fsspec entry, in seconds since 1970; 0 if unknown."""
    stamp = info.get("mtime") or info.get("LastModified") or info.get("created") or 0.0
    return stamp.astimezone(UTC).timestamp() if isinstance(stamp, datetime) else float(stamp)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their path, such as ``training.num_steps``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _unreadable(what: str, error: ValidationError) -> IntegrityError:
    mistakes = (
        ": ".join(filter(None, [".".join(map(str, mistake["loc"])), mistake["msg"]]))
        for mistake in error.errors()
    )
    return IntegrityError(
        f"{what}: {'; '.join(mistakes)}. Another version of this project wrote it, or it is "
        "damaged: delete its folder and run the stage again."
    )


def _short(value: str | None) -> str:
    if value is None:
        return "absent"
    return value[:12] if re.fullmatch(r"[0-9a-f]{16,}", value) else value
