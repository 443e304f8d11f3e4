"""The manifest of a stage: what it made, of what, by what, and where everything went.

A stage's folder is named by its key, a digest of its settings, its inputs and the code that
matters. Its manifest is written last: a folder without one is not finished, and readers trust
nothing that a manifest does not name.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, model_validator

from albert_core.stage import lock, storage
from albert_core.stage.errors import AccountingError, AlbertError, IntegrityError
from albert_core.stage.provenance import Provenance, provenance
from albert_core.stage.settings import Settings

MANIFEST = "manifest.json"
BEGUN = "begun.json"
"""Beside the manifest, and there before it: the same without what was made."""
KEY_DIGITS = 16

log = logging.getLogger(__name__)


class Shard(Settings):
    """One file of a stage."""

    path: str = Field(description="relative to the manifest's folder")
    kind: str = Field(description="what it holds, e.g. documents, train, held_out")
    num_rows: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    sha256: str


class Account(Settings):
    """An equation: what came in is what was kept and what was dropped, by reason."""

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
        """Say it as a sentence."""
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
    facts: dict[str, Any] = Field(description="numbers and names that readers need")
    provenance: Provenance | None = Field(
        default=None, description="by what call, commit and machine; None: not recorded"
    )

    @property
    def content(self) -> str:
        """A digest of what was made: equal for equal bytes, whatever the way there."""
        return digest_of([[shard.path, shard.kind, shard.sha256] for shard in self.shards])

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
        """The name of the folder of this and of no other result."""
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

        With None the folder is this process's alone, till `write` or its end: another one that
        looks for the same result waits in its own `find`, and then finds it.
        """

        def is_done() -> bool:
            return self.done(work) is not None

        if not is_done() and lock.take(work, self._claim, is_done):
            if not is_done():
                log.info("%s: to do, because %s", self.stage, self._why(work))
                begun = self._manifest([], [], {}).model_dump_json(indent=1) + "\n"
                storage.write_bytes(storage.join(self.folder(work), BEGUN), begun.encode())
                return None
            lock.release(work, self._claim)
        log.info("%s: done already (%s)", self.stage, self.folder(work))
        return self.done(work)

    def write(
        self,
        work: str,
        shards: Iterable[Shard],
        accounts: Iterable[Account],
        facts: Mapping[str, Any],
    ) -> str:
        """Write the manifest, which makes the result whole; return its URI."""
        manifest = self._manifest(shards, accounts, facts)
        uri = storage.join(self.folder(work), MANIFEST)
        storage.write_bytes(uri, (manifest.model_dump_json(indent=1) + "\n").encode())
        lock.release(work, self._claim)
        for account in manifest.accounts:
            log.info("%s: %s", self.stage, account)
        log.info("%s: done, wrote %s", self.stage, uri)
        return uri

    def _manifest(
        self, shards: Iterable[Shard], accounts: Iterable[Account], facts: Mapping[str, Any]
    ) -> Manifest:
        return Manifest(
            stage=self.stage,
            key=self.key,
            settings=self.settings,
            inputs=self.inputs,
            input_manifests=self.input_manifests,
            code=self.code,
            libraries=self.libraries,
            shards=list(shards),
            accounts=list(accounts),
            facts=dict(facts),
            provenance=provenance(),
        )

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
    except ValueError as error:
        raise IntegrityError(f"{uri} is not a manifest: {error}. Delete its folder.") from error


def newest_manifest(stage_folder: str) -> Manifest | None:
    """Return the good manifest written last below ``stage_folder``, or None."""
    found: list[tuple[float, str]] = []
    for entry in storage.list_folder(stage_folder):
        fs, _ = storage.filesystem(stage_folder)
        path = f"{entry['name']}/{MANIFEST}"
        if entry["type"] == "directory" and fs.exists(path):
            found.append((modified_at(fs.info(path)), str(fs.unstrip_protocol(path))))
    for _, uri in sorted(found, reverse=True):
        try:
            return read_manifest(uri)
        except AlbertError as error:
            log.warning("passing over %s", error)
    return None


def check_shard(shard: Shard, folder: str) -> None:
    """Raise IntegrityError unless the file is the one that was written."""
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
    """Return the description of the file at ``uri``, read back from where it was written."""
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
    """Give a folder below ``folder`` for one process's passing files, removed at the end.

    What killed processes of this host left behind is removed first.
    """
    storage.remove_abandoned(folder)
    scratch = storage.join(folder, f".scratch-{storage.process_name()}")
    try:
        yield scratch
    finally:
        storage.remove(scratch)


def modified_at(info: Mapping[str, Any]) -> float:
    """Return when the file of fsspec's entry changed, in seconds since 1970; 0: unknown."""
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


def _short(value: str | None) -> str:
    if value is None:
        return "absent"
    return value[:12] if re.fullmatch(r"[0-9a-f]{16,}", value) else value
