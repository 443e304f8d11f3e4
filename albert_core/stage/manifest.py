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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from albert_core.stage import lock, storage
from albert_core.stage.errors import AccountingError, AlbertError, IntegrityError
from albert_core.stage.provenance import Provenance, provenance
from albert_core.stage.settings import Settings

MANIFEST = "manifest.json"
BEGUN = "begun.json"
"""The manifest of an unfinished result: without shards, accounts and result."""
KEY_DIGITS = 16

R = TypeVar("R", bound=Settings)

log = logging.getLogger(__name__)


class Shard(Settings):
    """One file of a stage."""

    path: str = Field(description="relative to the manifest's folder")
    kind: str = Field(description="what it holds, e.g. documents, train, held_out")
    num_rows: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    sha256: str


class Account(Settings):
    """An equation: what came in = what was kept + what was dropped, by reason."""

    what: str = Field(description="documents, pieces, ...")
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
    inputs: dict[str, str] = Field(description="name of each input -> digest of its content")
    input_manifests: dict[str, str] = Field(description="name of each input -> its manifest's URI")
    code: str = Field(description="digest of the code that the stage can reach")
    libraries: dict[str, str]
    shards: list[Shard]
    accounts: list[Account]
    result: dict[str, Any] = Field(description="a model of `results`; see `result_as`")
    provenance: Provenance | None = Field(
        default=None, description="call, commit and machine; None: not recorded"
    )

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
        """Return the manifest's URI if this was made before, else None."""
        uri = storage.join(self.folder(work), MANIFEST)
        return uri if storage.exists(uri) else None

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
        manifest = Manifest(
            **vars(self),
            key=self.key,
            shards=list(shards),
            accounts=list(accounts),
            result=dict(result or {}),
            provenance=provenance(),
        )
        uri = storage.join(self.folder(work), name)
        storage.write_bytes(uri, f"{manifest.model_dump_json(indent=1)}\n".encode())
        return uri

    def _why(self, work: str) -> str:
        before = newest_manifest(storage.join(work, self.stage))
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


def read_manifest(uri: str) -> Manifest:
    """Return the manifest at ``uri``.

    Raises:
        IntegrityError: there is none, or it is not a manifest.
    """
    if not storage.exists(uri):
        raise IntegrityError(f"{uri} is missing: the stage did not finish. Run it again.")
    try:
        return Manifest.model_validate_json(storage.read_bytes(uri))
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
    """Raise IntegrityError if the file is missing or has changed since it was written."""
    uri = storage.join(folder, shard.path)
    if not storage.exists(uri):
        raise IntegrityError(
            f"{uri} is missing, but {MANIFEST} names it. Delete {folder} and run the stage again."
        )
    found = storage.sha256_of(uri)
    if found != shard.sha256:
        raise IntegrityError(
            f"{uri} has sha256 {found[:12]}, but {MANIFEST} says {shard.sha256[:12]}: it changed "
            f"after it was written. Delete {folder} and run the stage again."
        )


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
    finally:
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
