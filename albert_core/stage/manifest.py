"""The manifest of a stage: what it made, from what, by which code, and where everything went.

A stage's folder is named by its key, a digest of its settings, its inputs and the code that
matters. Its manifest is written last: a folder without one is not finished, and readers trust
nothing that a manifest does not name.
"""

import hashlib
import json
import logging
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
"""The manifest of an unfinished result: without shards, accounts and result."""
DAMAGED = "damaged"
"""Folder of a result for its files that changed after they were written, and its manifest."""
KEY_DIGITS = 16
_DIGEST = "digest"
_ONE_OF_MANY = ("task", "seed")
"""Settings of which one run has several: a result of another one is not the one before."""
_IN_RESULT = re.compile(rf"(.*/[a-z][a-z-]*/[0-9a-f]{{{KEY_DIGITS}}})/(.+)")

R = TypeVar("R", bound=Settings)

log = logging.getLogger(__name__)


class Shard(Settings):
    """One file of a stage."""

    path: str
    """Relative to the manifest's folder."""
    kind: str
    """What it holds, e.g. documents, train, held_out."""
    num_rows: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    sha256: str


class Account(Settings):
    """An equation: what came in = what was kept + what was dropped, by reason."""

    what: str
    """Documents, pieces, ..."""
    total: int
    kept: int
    dropped: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.total != self.kept + sum(self.dropped.values()):
            raise AccountingError(
                f"{self.what}: {self.total} came in, but {self.kept} kept and {self.dropped} "
                f"dropped make {self.kept + sum(self.dropped.values())}. This is a defect of the "
                "stage: its result must not be used."
            )
        return self

    def __str__(self) -> str:
        """Return it as a sentence."""
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(self.dropped.items()))
        lost = f", {sum(self.dropped.values()):,} dropped ({reasons})" if self.dropped else ""
        return f"{self.what}: {self.total:,} in = {self.kept:,} kept{lost}"


class Manifest(Settings):
    """What one run of a stage made."""

    stage: str
    key: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    """Name of each input -> digest of its content."""
    input_manifests: dict[str, str]
    """Name of each input -> its manifest's URI."""
    code: str
    """Digest of the code that the stage can reach."""
    libraries: dict[str, str]
    shards: list[Shard]
    accounts: list[Account]
    result: dict[str, Any]
    """A model of `results`; see `result_as`."""
    notes: dict[str, str] = Field(default_factory=dict)
    """Name of each other file beside the manifest -> its SHA-256."""
    provenance: Provenance | None = None
    """Call, commit and machine; None: not recorded."""

    @property
    def content(self) -> str:
        """A digest of what was made: equal for equal bytes, however they were made."""
        return digest_of([[shard.path, shard.kind, shard.sha256] for shard in self.shards])

    def result_as(self, kind: type[R]) -> R:
        """Return what the stage told its readers, as its model of `results`.

        Raises:
            IntegrityError: a field is absent, unknown or of another type.
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
    """Everything a stage's result depends on."""

    stage: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    code: str
    libraries: dict[str, str]
    input_manifests: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """The name of the folder of this result and no other."""
        parts = [self.stage, self.settings, self.inputs, self.code, self.libraries]
        return digest_of(parts)[:KEY_DIGITS]

    def folder(self, work: str) -> str:
        """Return the folder of this result below ``work``."""
        return storage.join(work, self.stage, self.key)

    @property
    def _claim(self) -> str:
        return f"{self.stage}-{self.key}"

    def done(self, work: str) -> str | None:
        """Return the manifest's URI if this was made before, else None.

        A damaged manifest is set aside, so that the result is made again.
        """
        uri = storage.join(self.folder(work), MANIFEST)
        if not storage.exists(uri):
            return None
        try:
            unsealed(uri)
        except IntegrityError as error:
            log.warning("%s: %s", self.stage, _set_aside(self.folder(work), str(error)))
            return None
        return uri

    def find(self, work: str) -> str | None:
        """Return the manifest's URI if this was made before, else None; log which, and why.

        After None, the folder belongs to this process until `write` or its end: another process
        that looks for the same result waits in its own `find`, and then finds it.
        """

        def is_done() -> bool:
            return self.done(work) is not None

        if not is_done() and lock.take(work, self._claim, is_done):
            if not is_done():
                log.info("%s: to do, because %s", self.stage, self._why(work))
                self._save(work, BEGUN)
                return None
            lock.release(work, self._claim)
        log.info("%s: done already (%s)", self.stage, self.folder(work))
        return self.done(work)

    def write(
        self, work: str, shards: Iterable[Shard], accounts: Sequence[Account], result: Settings
    ) -> str:
        """Write the manifest, which completes the result; return its URI."""
        uri = self._save(work, MANIFEST, shards, accounts, result.model_dump(mode="json"))
        storage.remove(storage.join(self.folder(work), DAMAGED))
        lock.release(work, self._claim)
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
            return "a file of it was damaged"
        which = {name: self.settings.get(name) for name in _ONE_OF_MANY}
        before = newest_manifest(
            storage.join(work, self.stage),
            lambda made: which == {name: made.settings.get(name) for name in _ONE_OF_MANY},
        )
        if before is None:
            return "it was never done in this folder"
        changes = [
            f"{what} {name} was {_short(old.get(name))} and is {_short(new.get(name))}"
            for what, old, new in (
                ("setting", _flat(before.settings), _flat(self.settings)),
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


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return ``content`` as a file of JSON that has a digest of itself; see `unsealed`."""
    values = {**content, _DIGEST: digest_of(content)}
    return f"{json.dumps(values, indent=1, ensure_ascii=False)}\n".encode()


def unsealed(uri: str) -> dict[str, Any]:
    """Return the content of the file at ``uri``, as `sealed` wrote it.

    Without a digest, an earlier version of this project wrote it, and it is taken as it is.

    Raises:
        IntegrityError: it is not JSON, or changed after it was written.
    """
    try:
        content: dict[str, Any] = json.loads(storage.read_bytes(uri))
        of_rest = [
            name
            for name in ([_DIGEST] if _DIGEST in content else list(content))
            if content[name] == digest_of({n: v for n, v in content.items() if n != name})
        ]
        if of_rest != [_DIGEST] * (_DIGEST in content):  # another one, or under a damaged name
            raise ValueError(f"its {_DIGEST} is not that of the rest")
        content.pop(_DIGEST, None)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{uri} changed after it was written") from error
    return content


def read_manifest(uri: str) -> Manifest:
    """Return the manifest at ``uri``.

    Raises:
        IntegrityError: there is none, or it is not a manifest. If it is damaged, it is set aside.
    """
    if not storage.exists(uri):
        raise IntegrityError(f"{uri} is missing: the stage did not finish. Run it again.")
    try:
        content = unsealed(uri)
    except IntegrityError as error:
        folder, _, name = uri.rpartition("/")
        if name != MANIFEST or not is_in_result(uri):
            raise IntegrityError(f"{uri} is not a manifest: {error}. Copy it again.") from error
        raise _set_aside(folder, str(error)) from error
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise _unreadable(f"{uri} is not a manifest", error) from error


def newest_manifest(
    stage_folder: str, is_wanted: Callable[[Manifest], bool] = lambda _: True
) -> Manifest | None:
    """Return the newest readable manifest below ``stage_folder`` that is wanted, or None."""
    fs, _ = storage.filesystem(stage_folder)
    paths = (f"{entry['name']}/{MANIFEST}" for entry in storage.list_folder(stage_folder))
    written = {path: modified_at(fs.info(path)) for path in paths if fs.exists(path)}
    for path in sorted(written, key=lambda path: written[path], reverse=True):
        try:
            found = read_manifest(str(fs.unstrip_protocol(path)))
            if is_wanted(found):
                return found
        except AlbertError as error:
            log.warning("passing over %s", error)
    return None


def check_shard(shard: Shard, folder: str) -> None:
    """Compare the file of a shard with its digest; once in a process, while it stays as it is.

    Raises:
        IntegrityError: it is missing, or changed after it was written. In a work folder it is set
            aside with the manifest, so that the stage makes its result again.
    """
    _check(folder, shard.path, shard.sha256)


def shard_damage(shard: Shard, folder: str) -> str:
    """Return how the file of a shard differs from its description; empty if it does not."""
    return _damage(folder, shard.path, shard.sha256)


def checked(uri: str) -> str:
    """Return ``uri`` after a look at the file, if a stage's manifest has its digest.

    What is read of a result goes through here, so that no damaged byte is passed on.

    Raises:
        IntegrityError: as `check_shard`; or the manifest is damaged.
    """
    within = _IN_RESULT.fullmatch(uri)
    manifest = within and storage.join(within[1], MANIFEST)
    if within and manifest and storage.exists(manifest):
        noted = _noted(manifest, *_version(manifest))
        if within[2] in noted:
            _check(within[1], within[2], noted[within[2]])
    return uri


def sha256_of(uri: str) -> str:
    """Return the SHA-256 of the file at ``uri``; one that is `checked` is read once in a process.

    Raises:
        IntegrityError: as `checked`.
    """
    known = _CHECKED.get(checked(uri))
    return known[0] if known else storage.sha256_of(uri)


def is_in_result(uri: str) -> bool:
    """Return whether ``uri`` is in the folder of a result, where nobody but its stage writes."""
    return _IN_RESULT.fullmatch(uri) is not None


@lru_cache(maxsize=64)
def _noted(manifest: str, num_bytes: int, modified: float) -> dict[str, str]:
    """Return the digest of each file that a manifest notes, by its path."""
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
            f"{uri} changed after it was written: it has sha256 {found[:12]}, but {MANIFEST} says "
            f"{sha256[:12]}"
        )
    _CHECKED[uri] = (sha256, *version)
    return ""


_CHECKED: dict[str, tuple[str, int, float]] = {}
"""Files that this process has compared: their digest, size and time then."""


def _version(uri: str) -> tuple[int, float]:
    fs, path = storage.filesystem(uri)
    info = fs.info(path)
    return int(info["size"]), modified_at(info)


def _set_aside(folder: str, said: str, path: str = "") -> IntegrityError:
    """Move a damaged file of a result, and its manifest first, to a folder of their own.

    Without a manifest the result is not finished, and the next run makes it again. Outside of a
    work folder, as in a copy, nothing is moved.

    Args:
        folder: of the result.
        said: what is wrong.
        path: of the file below ``folder``; empty: it is the manifest.

    Returns:
        The error to raise, which also says what became of the files.
    """
    if not is_in_result(storage.join(folder, MANIFEST)):
        return IntegrityError(f"{said}. Copy or make it again.")
    fs, root = storage.filesystem(folder)
    try:
        fs.makedirs(f"{root}/{DAMAGED}", exist_ok=True)
        for name in filter(None, (MANIFEST, path)):
            if fs.exists(f"{root}/{name}"):
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
    """Return the digests of the files in ``folder`` that are no shards and no manifests."""
    known = {MANIFEST, BEGUN, *(shard.path for shard in shards)}
    entries = [entry for entry in storage.list_folder(folder) if entry["type"] == "file"]
    names = {str(entry["name"]).rpartition("/")[2] for entry in entries} - known
    return {name: storage.sha256_of(storage.join(folder, name)) for name in sorted(names)}


def shard_of(uri: str, folder: str, kind: str, num_rows: int) -> Shard:
    """Return the description of the file at ``uri``, which is read back."""
    fs, path = storage.filesystem(uri)
    return Shard(
        path=uri.removeprefix(folder).lstrip("/"),
        kind=kind,
        num_rows=num_rows,
        num_bytes=int(fs.info(path)["size"]),
        sha256=storage.sha256_of(uri),
    )


def shards_in(folder: str, kind: str) -> list[Shard]:
    """Return the descriptions of all files in the folder called ``kind`` below ``folder``."""
    within = storage.join(folder, kind)
    names = storage.list_names(within)
    return [shard_of(storage.join(within, name), folder, kind, 1) for name in names]


@contextmanager
def scratch_folder(folder: str) -> Iterator[str]:
    """Give a folder below ``folder`` for temporary files of this process; remove it at the end.

    What killed processes of this host left behind is removed first.
    """
    storage.remove_abandoned(folder)
    scratch = storage.join(folder, f".scratch-{storage.process_name()}")
    try:
        yield scratch
    except BaseException:
        # Other threads of what failed may still write there. The next run removes what they leave.
        with suppress(OSError):
            storage.remove(scratch)
        raise
    storage.remove(scratch)


def modified_at(info: Mapping[str, Any]) -> float:
    """Return when the file of an fsspec entry changed, in seconds since 1970; 0: unknown."""
    stamp = info.get("mtime") or info.get("LastModified") or info.get("created") or 0.0
    return stamp.astimezone(UTC).timestamp() if isinstance(stamp, datetime) else float(stamp)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = repr(value)
    return flat


def _unreadable(what: str, error: ValidationError) -> IntegrityError:
    mistakes = (
        ": ".join(filter(None, [".".join(map(str, mistake["loc"])), mistake["msg"]]))
        for mistake in error.errors()
    )
    return IntegrityError(
        f"{what}: {'; '.join(mistakes)}. An older or newer version of this project wrote it, or it "
        "is damaged: delete its folder and run the stage again."
    )


def _short(value: str | None) -> str:
    if value is None:
        return "absent"
    return value[:12] if re.fullmatch(r"[0-9a-f]{16,}", value) else value
