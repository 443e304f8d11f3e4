"""Registered versions: found by address, listed, read with their files, and moved to champion.

A version is self-contained: it has the model folder in Hugging Face's layout, the code that
`mlflow.pyfunc` runs on it, and copies of every manifest before it, so that the work folder need not
be there. Its tags name the place and the URI of these manifests. Its run is the one that trained
it. The run of an old version is that of its registration, which has the manifests instead.
"""

import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import mlflow
import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.conversion.model_files import (
    WEIGHTS,
    check_model,
    is_model,
    noted_digest,
)
from albert_core.stage import errors, manifest, servers, storage
from albert_core.stage.lineage import Lineage, Result, place_in
from albert_core.stage.results import SOURCE_FILES, TaskDifference
from albert_core.tracking import server

CHAMPION, CANDIDATE, PREVIOUS = "champion", "candidate", "previous"
"""The best version; the newest that is not champion; the champion before the present one."""
_MODEL = f"artifacts/{server.MODEL_ARTIFACT}"
"""Folder of the model among the files of a version."""
SHA256 = "sha256"
"""Field of the configuration of a served model: the digest of each of its files, by name."""
LINEAGE = "lineage"
"""Folder of the manifests among the files of a version."""
MANIFEST_TAG = "manifest."
DECISION_TAG = "decision"
"""Tag with the gate's reason. Tags named `decision.NAME` hold the other parts of the decision."""
VERDICT_TAG = f"{DECISION_TAG}.verdict"
UNDECIDED = "undecided"
"""The verdict that is not final."""
CODE_TAG = "code_sha256"
"""Tag with `code_digest` of the files of a version."""
MOVED_TAG = "champion_by_hand"
"""Tag that says when and why a person made a version champion."""
CLAIM = "promotion_claim."
"""Prefix of the tags by which processes claim the promotion lock."""
STALE_SECONDS = 90.0
"""A claim that is not renewed for so long belongs to a dead process."""
_WAIT_SECONDS = 0.25
_ROLLING_BACK_TAG = "rolling_back_to"
"""Tag of the registered model: the version that a roll-back makes champion, until it is done."""
_DOWNLOADS = "registered_models"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegisteredVersion:
    """A version in the registry."""

    name: str
    version: str
    aliases: tuple[str, ...]
    mlflow_run_id: str
    tags: Mapping[str, str]

    @property
    def uri(self) -> str:
        """The address that `mlflow.pyfunc.load_model` takes."""
        return f"models:/{self.name}/{self.version}"

    @property
    def made_of(self) -> dict[str, str]:
        """Place of each result that it was made of -> URI where its manifest was written."""
        values = [uris for tag, uris in self.tags.items() if tag.startswith(MANIFEST_TAG)]
        return {place_in(uri): uri for uris in values for uri in uris.split(", ")}

    def __str__(self) -> str:
        """Return its address and its aliases."""
        return self.uri + "".join(f" @{alias}" for alias in self.aliases)


@contextmanager
def open_registry(work: str, *, creates: bool = False) -> Iterator[MlflowClient]:
    """Give a client of the registry; MLflow's errors become `RegistryError`.

    Args:
        work: folder for all results.
        creates: whether to create the registry if there is none.

    Raises:
        RegistryError: there is none, it refuses, or it does not answer.
    """
    if not (creates or has_registry(work)):
        raise errors.RegistryError(
            f"there is no registry at {servers.shown_tracking_uri(work)}: no model was registered "
            f"in this work folder. Give --work, or set {servers.TRACKING_URI}."
        )
    try:
        yield server.open_client(work)
    except MlflowException as error:
        advice = f"{error}. Check {servers.TRACKING_URI} and that its server runs."
        raise errors.RegistryError(
            f"the registry at {servers.shown_tracking_uri(work)} refuses or does not answer: "
            f"{errors.explained(error) or advice}"
        ) from error


def has_registry(work: str) -> bool:
    """Return whether there is a registry to ask: a server that is named, or a file in ``work``."""
    file = servers.database_file(servers.registry_uri(work))
    return file is None or file.exists()


def registered_versions(work: str) -> list[RegisteredVersion]:
    """Return all versions of all names, the newest first; none if there is no registry.

    Raises:
        RegistryError: the registry does not answer.
    """
    if not has_registry(work):
        return []
    with open_registry(work) as client:
        return versions_of(client)


def versions_of(client: MlflowClient, name: str = "") -> list[RegisteredVersion]:
    """Return all versions of ``name``, or of all names, the newest first."""
    condition = f'name = "{name}"' if name else None
    models = _every(partial(client.search_registered_models, condition))
    aliases = {model.name: model.aliases for model in models}
    versions = list(_every(partial(client.search_model_versions, condition)))
    versions.sort(key=lambda version: (version.name, -int(version.version)))
    return [_described(version, aliases.get(version.name, {})) for version in versions]


def version_with(client: MlflowClient, name: str, alias: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that has the alias, or None.

    Raises:
        RegistryError: the alias is that of no version. A model would else seem to have no champion,
            and the next candidate be the first.
    """
    if found := _found(client.get_model_version_by_alias, name, alias):
        return found
    with server.suppress_codes(*server.ABSENT):
        number = client.get_registered_model(name).aliases.get(alias)
        if number is not None and numbered_version(client, name, str(number)) is None:
            raise errors.RegistryError(
                f"the alias {alias!r} of {name} is that of version {number}, which is not there: "
                "the registry is damaged. Restore a backup of it, or delete the alias in MLflow "
                "and promote a version by hand."
            )
    return None


def numbered_version(client: MlflowClient, name: str, number: str) -> RegisteredVersion | None:
    """Return the version of ``name`` with this number, or None."""
    return _found(client.get_model_version, name, number)


def champion_of(client: MlflowClient, name: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that is champion, or None."""
    return version_with(client, name, CHAMPION)


def find_version(client: MlflowClient, name: str, key: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that was registered under ``key``, if it is there."""
    found = client.search_model_versions(f"tags.{server.REGISTRATION_TAG} = '{key}'")
    ready = [int(each.version) for each in found if each.name == name and each.status == "READY"]
    return numbered_version(client, name, str(max(ready))) if ready else None


def champion_to_beat(name: str, pretraining: str, key: str, work: str) -> str:
    """Return ``models:/<name>/<version>`` of the champion; "" if there is none.

    Args:
        name: name of the registered model.
        pretraining: the candidate's manifest; "" too if the champion is of that pretraining, or
            has lost its files.
        key: that of the candidate's registration; "" too if it has a verdict.
        work: folder for all results.

    Raises:
        RegistryError: the registry does not answer.
    """
    if not has_registry(work):
        return ""
    with open_registry(work) as client:
        champion = champion_of(client, name)
        if champion is None or _is_decided(client, name, key):
            return ""
        nearest = champion.tags.get("lineage.pretraining", "").partition(", ")[0]
        if nearest == manifest.read_manifest(pretraining).key:
            return ""
        if has_lost_files(client, champion):
            log.warning("the champion %s %s. Nothing is compared with it now", champion.uri, GONE)
            return ""
    return champion.uri


def _is_decided(client: MlflowClient, name: str, key: str) -> bool:
    """Return whether the version registered under ``key`` is whole and has a final verdict."""
    version = find_version(client, name, key)
    if version is None or has_lost_files(client, version):
        return False
    return version.tags.get(VERDICT_TAG, UNDECIDED) != UNDECIDED


def _found(
    get: Callable[[str, str], ModelVersion], name: str, which: str
) -> RegisteredVersion | None:
    with server.suppress_codes(*server.ABSENT):
        version = get(name, which)
        return _described(version, dict.fromkeys(version.aliases, str(version.version)))
    return None


def _described(version: ModelVersion, aliases: Mapping[str, str]) -> RegisteredVersion:
    """Return ``version``; ``aliases`` are those of all versions of its name, by the alias."""
    number = str(version.version)  # a number from a database, text from a server
    own = sorted(alias for alias, other in aliases.items() if str(other) == number)
    return RegisteredVersion(
        str(version.name), number, tuple(own), str(version.run_id), version.tags
    )


def _every(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield the entries of every page of a search."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page


# Files of a version


def model_folder_of(model_uri: str, work: str) -> str:
    """Return the local folder, in Hugging Face's layout, of a registered model.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results; files that must be downloaded are kept there.

    Raises:
        IntegrityError: a file changed after it was registered.
        RegistryError: there is no such version, or it holds no such folder.
    """
    with open_registry(work) as client:
        version = _version_at(client, model_uri, work)
        files = _place_of_files(client, version)
        try:
            copy = _local_copy(files, client.tracking_uri, work)
        except (MlflowException, OSError) as error:
            if has_lost_files(client, version):
                raise errors.RegistryError(f"{model_uri} {GONE}.") from error
            raise
    folder = copy / "artifacts" / server.MODEL_ARTIFACT
    if not is_model(path.name for path in folder.glob("*")):
        other = (
            f"holds no model folder in Hugging Face's layout in {files}: it was not registered by "
            "this project. Give another version or a folder"
        )
        raise errors.RegistryError(f"{model_uri} {GONE if _is_ours(version) else other}.")
    if digest := version.tags.get(server.DIGEST_TAG):
        check_model(str(folder), digest)
    return str(folder)


def read_version(model_uri: str, work: str) -> tuple[RegisteredVersion, Lineage]:
    """Return a version, and all that it was made of according to the registry's copies.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results, where the registry is if the environment names no server.

    Raises:
        RegistryError: there is no such version, it was registered without its manifests, or one of
            them changed since.
    """
    with open_registry(work) as client, tempfile.TemporaryDirectory() as scratch:
        version = _version_at(client, model_uri, work)
        folder = fetch(client, version, LINEAGE, scratch)
        manifests = sorted(folder.rglob(manifest.MANIFEST)) if folder else []
        with naming(version):
            results = [_result(path, version) for path in manifests]
    if not results:
        raise errors.RegistryError(
            f"{version.uri} has no manifests among its files: it was not registered by this "
            "project, or its files are gone. Put them back, or give another version."
        )
    return version, Lineage(results)


def lineage_of_model(digest: str, work: str) -> Lineage:
    """Return the result that made a registered model, last, after all that it was made of.

    It is empty if no version has that model, or its manifests do not say what made it.

    Args:
        digest: the `model_digest`.
        work: folder for all results.

    Raises:
        RegistryError: the registry does not answer, or the manifests of the version are gone or
            damaged.
    """
    if not has_registry(work):
        return Lineage([])
    with open_registry(work) as client:
        found = client.search_model_versions(f"tags.{server.DIGEST_TAG} = '{digest}'")
    for version in found:
        if version.status == "READY":
            lineage = read_version(f"models:/{version.name}/{version.version}", work)[1]
            for place, result in lineage.results.items():
                if noted_digest(result.manifest) == digest:
                    return Lineage(lineage.results[each] for each in lineage.before(place))
    return Lineage([])


@contextmanager
def naming(version: RegisteredVersion) -> Iterator[None]:
    """Name the version in errors about its files, of which a temporary copy is read."""
    try:
        yield
    except errors.IntegrityError as error:
        raise errors.RegistryError(
            f"a file of {version.uri} is damaged: {error} Restore it from a backup, or delete the "
            "version and register it again."
        ) from error


def write_lineage(lineage: Lineage, folder: Path) -> None:
    """Write the manifests below ``folder``; with a corpus's, its list of source files.

    What another version's lineage has need not be in a work folder any more.
    """
    for place, result in lineage.results.items():
        copy = folder / place.replace("/", "-")
        copy.mkdir(parents=True)
        content = json.loads(result.manifest.model_dump_json())
        (copy / result.uri.rpartition("/")[2]).write_bytes(manifest.sealed(content))
        files, listed = storage.join(result.folder, SOURCE_FILES), result.source_list
        if listed is None and storage.exists(files):
            listed = storage.read_bytes(manifest.checked(files))
        if listed is not None:
            (copy / SOURCE_FILES).write_bytes(listed)


def fetch(client: MlflowClient, version: RegisteredVersion, path: str, scratch: str) -> Path | None:
    """Return a file or folder of a version, or of its run, copied to ``scratch``; None without one.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    uri = _find(client, version, path)
    return _download(uri, scratch, client.tracking_uri) if uri else None


def _find(client: MlflowClient, version: RegisteredVersion, path: str) -> str | None:
    for place in (_place_of_files, _place_of_run):
        with server.suppress_codes(*server.ABSENT):
            uri = f"{place(client, version)}/{path}"
            folder, _, name = uri.rpartition("/")
            if name in _names_in(client, folder):
                return uri
    return None


def _names_in(client: MlflowClient, uri: str) -> set[str]:
    files = mlflow.artifacts.list_artifacts(uri, tracking_uri=client.tracking_uri)
    return {Path(file.path).name for file in files}


def _place_of_files(client: MlflowClient, version: RegisteredVersion) -> str:
    """Return the URI of the folder that the files of ``version`` are in."""
    place = client.get_model_version_download_uri(version.name, version.version)
    if place.startswith("models:/"):
        place = client.get_logged_model(place.removeprefix("models:/")).artifact_location
    return place


def _place_of_run(client: MlflowClient, version: RegisteredVersion) -> str:
    return str(client.get_run(version.mlflow_run_id).info.artifact_uri)


def _download(uri: str, folder: str, tracking_uri: str) -> Path:
    download = mlflow.artifacts.download_artifacts
    return Path(download(uri, dst_path=folder, tracking_uri=tracking_uri))


def _result(path: Path, version: RegisteredVersion) -> Result:
    made, files = manifest.read_manifest(str(path)), path.with_name(SOURCE_FILES)
    uri = version.made_of.get(f"{made.stage}/{made.key}", str(path))
    if not files.exists():
        return Result(uri, made)
    if made.notes.get(SOURCE_FILES) not in (None, storage.sha256_of(str(files))):
        raise errors.IntegrityError(f"{files} changed after it was written.")
    return Result(uri, made, files.read_bytes())


def _version_at(client: MlflowClient, model_uri: str, work: str) -> RegisteredVersion:
    if match := re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri):
        name, alias, number = match.groups()
        get = version_with if alias else numbered_version
        if found := get(client, name, alias or number):
            return found
    raise errors.RegistryError(
        f"{model_uri} is not in the registry at {servers.shown_tracking_uri(work)}: expected "
        "models:/<name>@<alias> or models:/<name>/<version> of a registered model. Register one "
        f"under this name first, or set {servers.TRACKING_URI} to the registry that has it."
    )


def _local_copy(files: str, tracking_uri: str, work: str) -> Path:
    """Return the folder ``files`` if it is on this machine, else its copy below ``work``.

    If ``work`` is elsewhere too, the copy is where no other user can put another model.
    """
    if (local := _local_folder(files)) is not None:
        return local
    kept = storage.local_path(work) or storage.own_folder("albert-models")
    target = kept / _DOWNLOADS / manifest.digest_of(files)[:16]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            found = _download(files, scratch, tracking_uri)
            with suppress(OSError):  # another process was faster
                found.replace(target)
    return target


def _local_folder(uri: str) -> Path | None:
    path = storage.local_path(uri) if "://" not in uri or uri.startswith("file:") else None
    return path if path is not None and path.exists() else None


# What `albert models`, `promote` and `rollback` show and do

GONE = (
    "has lost its files. Put them back, or run again what registered it, which uploads them again, "
    "or make another version champion"
)
CHANGED = (
    "has other code than was registered, which would run where it is loaded. Put its files back, "
    "or delete it and run again what registered it, or make another version champion"
)
DAMAGED = (
    "has a file of its model that changed after it was registered, so it does not load. Put its "
    "files back, or delete it and run again what registered it, or make another version champion"
)
_CODE = re.compile(r"code|MLmodel|.*\.py")
"""Files and folder of a version that run, or say what runs, when it is loaded."""


def list_models(work: str) -> str:
    """Return a line for each registered model: its name and its champion.

    Args:
        work: folder whose registry is meant where the environment names no server.

    Raises:
        RegistryError: the registry does not answer.
    """
    with open_registry(work) as client:
        names = sorted(model.name for model in _every(client.search_registered_models))
        champions = {name: champion_of(client, name) for name in names}
        lines = [
            f"{name:<32}"
            + (f"champion: version {c.version}{_mark(client, c)}" if c else "no champion")
            for name, c in champions.items()
        ]
    return "\n".join(lines) or "none"


def list_versions(name: str, work: str) -> str:
    """Return a line for each version of ``name``, the newest first.

    Only of versions with an alias the files are looked at: there may be thousands without one.

    Raises:
        RegistryError: there is none, or the registry does not answer.
    """
    with open_registry(work) as client:
        lines = [
            f"{number:>4}  {', '.join(version.aliases) or '-':<20}"
            f"{float(version.tags.get('score', 'nan')):>7.4f}  {_decision_of(version)}"
            f"{_mark(client, version) if version.aliases else ''}"
            for number, version in _versions(client, name).items()
        ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def explain_version(name: str, number: str, work: str) -> str:
    """Return why a version of ``name`` is champion or not, task by task.

    Raises:
        RegistryError: there is no such version, or the registry does not answer.
    """
    with open_registry(work) as client:
        version = _version(client, name, number)
        lines = [f"{name}, version {number}: {_decision_of(version)}{_mark(client, version)}"]
    against = version.tags.get(f"{DECISION_TAG}.against", "")
    for values in json.loads(version.tags.get(f"{DECISION_TAG}.tasks", "[]")):
        task = TaskDifference.model_construct(**values)  # of an earlier release, perhaps
        fell = "  fell" if task.fell else ""
        lines.append(f"  {task.task:<12} {task.against(against)}{fell}")
    return "\n".join(lines)


def promote_version(name: str, number: str, reason: str, work: str) -> str:
    """Make a version champion because a person says so; return a sentence.

    Raises:
        IntegrityError: a file of its model changed after it was registered.
        RegistryError: there is no such version, it is champion already, no reason is given, or the
            registry does not answer.
    """
    if not reason.strip():
        raise errors.RegistryError(
            f"{name}: give a reason for the promotion, which is kept with it"
        )
    with open_registry(work) as client:
        version = _version(client, name, number)
        with promotion_lock(client, name) as check:
            return _promote(client, version, reason, check, work)


def roll_back_to(name: str, number: str | None, reason: str, work: str) -> str:
    """Make the previous champion, or a version, champion again; return a sentence.

    The present champion becomes the previous one, so that a second roll-back undoes the first.

    Raises:
        IntegrityError: a file of its model changed after it was registered.
        RegistryError: there is no previous champion, no such version, or the registry does not
            answer.
    """
    with open_registry(work) as client:
        _versions(client, name)
        with promotion_lock(client, name) as check:
            version = _version(client, name, number or _version_before(client, name))
            client.set_registered_model_tag(name, _ROLLING_BACK_TAG, version.version)
            try:
                return _promote(client, version, f"rolled back: {reason}", check, work)
            finally:
                client.delete_registered_model_tag(name, _ROLLING_BACK_TAG)


def _version_before(client: MlflowClient, name: str) -> str:
    """Return the number of the previous champion.

    A roll-back that was killed may have moved only some aliases: then its version is returned.
    """
    champion, previous = champion_of(client, name), version_with(client, name, PREVIOUS)
    begun = client.get_registered_model(name).tags.get(_ROLLING_BACK_TAG)
    if begun and (champion is None or champion.version != begun):
        return str(begun)
    if previous is None:
        raise errors.RegistryError(
            f"{name} has no previous champion to roll back to; name a version with --to"
        )
    return previous.version


def _promote(
    client: MlflowClient,
    version: RegisteredVersion,
    reason: str,
    check: Callable[[], None],
    work: str,
) -> str:
    name, number = version.name, version.version
    champion = champion_of(client, name)
    if champion is not None and champion.version == number:
        raise errors.RegistryError(f"version {number} of {name} is champion already")
    if fault := fault_of(client, version):
        raise errors.RegistryError(f"version {number} of {name} {fault}.")
    if server.DIGEST_TAG in version.tags:
        model_folder_of(version.uri, work)  # refuses a damaged one
    instead = "" if champion is None else f" instead of version {champion.version}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    check()
    client.set_model_version_tag(name, number, MOVED_TAG, f"{at}{instead}: {reason}")
    make_champion(client, version)
    return f"{name}: version {number} is champion{instead}"


def fault_of(client: MlflowClient, version: RegisteredVersion) -> str:
    """Return why ``version`` must not be served; "" if nothing is known.

    It has lost its files, or its code or a file of its model has changed. The weights, which may be
    large, are not read.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if not _is_ours(version):
        return ""
    if has_lost_files(client, version):
        return GONE
    if _has_other_code(client, version):
        return CHANGED
    with tempfile.TemporaryDirectory() as scratch:
        for name, sha256 in _registered_files(client, version).items():
            path = None if name == WEIGHTS else fetch(client, version, f"{_MODEL}/{name}", scratch)
            if path and storage.sha256_of(str(path)) != sha256:
                return DAMAGED
    return ""


def _has_other_code(client: MlflowClient, version: RegisteredVersion) -> bool:
    if not (registered := version.tags.get(CODE_TAG)):
        return False
    place = _place_of_files(client, version)
    with tempfile.TemporaryDirectory() as scratch:
        for name in _names_in(client, place):
            if _CODE.fullmatch(name):
                _download(f"{place}/{name}", scratch, client.tracking_uri)
        return code_digest(Path(scratch)) != registered


def has_lost_files(client: MlflowClient, version: RegisteredVersion) -> bool:
    """Return whether ``version`` was registered here and a file of its model is gone.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if not _is_ours(version):
        return False
    folder = _find(client, version, _MODEL)
    names = _names_in(client, folder) if folder else set()
    return not is_model(names) or not _registered_files(client, version).keys() <= names


def _registered_files(client: MlflowClient, version: RegisteredVersion) -> dict[str, str]:
    """Return the names of the files of a version's model, and their digests when it was registered.

    They are those that it compares when it is loaded. There are none if `MLmodel`, which has them,
    is missing or damaged; then its code has changed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        described = fetch(client, version, "MLmodel", scratch)
        with suppress(yaml.YAMLError, ValueError, LookupError, TypeError):
            content = yaml.safe_load(described.read_bytes()) if described else {}
            return dict(content["flavors"]["python_function"]["config"][SHA256])
    return {}


def _is_ours(version: RegisteredVersion) -> bool:
    return server.REGISTRATION_TAG in version.tags


def code_digest(folder: Path) -> str:
    """Return a digest of all code of the version in ``folder``; not of Python's cache of it."""
    parts = (part for part in folder.iterdir() if _CODE.fullmatch(part.name))
    files = (path for part in parts for path in (part, *part.rglob("*")) if path.is_file())
    sha256 = {
        str(path.relative_to(folder)): storage.sha256_of(str(path))
        for path in files
        if path.parent.name != "__pycache__"
    }
    return manifest.digest_of(sha256)


def _mark(client: MlflowClient, version: RegisteredVersion) -> str:
    """Return what a person must know about the files of ``version``; "" if nothing."""
    try:
        fault = fault_of(client, version)
    except (MlflowException, OSError) as error:
        fault = f"its files can't be read now ({type(error).__name__})"
    return f"; {fault}" if fault else ""


def _versions(client: MlflowClient, name: str) -> dict[str, RegisteredVersion]:
    """Return the versions of ``name`` by number, the newest first."""
    found = {version.version: version for version in versions_of(client, name)}
    if not found:
        raise errors.RegistryError(
            f"there is no registered model {name!r}; `albert models` shows those there are"
        )
    return found


def _version(client: MlflowClient, name: str, number: str) -> RegisteredVersion:
    found = _versions(client, name)
    if number not in found:
        raise errors.RegistryError(
            f"{name} has no version {number}; `albert models {name}` shows those there are"
        )
    return found[number]


def _decision_of(version: RegisteredVersion) -> str:
    verdict = version.tags.get(VERDICT_TAG, "")
    said = f"{verdict}: {version.tags[DECISION_TAG]}" if verdict else "not decided yet"
    by_hand = version.tags.get(MOVED_TAG)
    return said + (f"; champion by hand, {by_hand}" if by_hand else "")


def make_candidate(client: MlflowClient, version: RegisteredVersion) -> None:
    """Call ``version`` the candidate, instead of the one before it."""
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)


def make_champion(client: MlflowClient, version: RegisteredVersion) -> None:
    """Move the champion to previous, and ``version`` to champion; it is nothing else any more.

    A roll-back to another version that was killed is not completed any more.
    """
    name, number = version.name, version.version
    if client.get_registered_model(name).tags.get(_ROLLING_BACK_TAG, number) != number:
        client.delete_registered_model_tag(name, _ROLLING_BACK_TAG)
    champion, candidate = champion_of(client, name), version_with(client, name, CANDIDATE)
    if champion is not None and champion.version != number:
        client.set_registered_model_alias(name, PREVIOUS, champion.version)
    client.set_registered_model_alias(name, CHAMPION, number)
    if candidate is not None and candidate.version == number:
        client.delete_registered_model_alias(name, CANDIDATE)
    if str(client.get_registered_model(name).aliases.get(PREVIOUS)) == number:
        client.delete_registered_model_alias(name, PREVIOUS)  # the champion before it was deleted


@contextmanager
def promotion_lock(
    client: MlflowClient, name: str, stale_seconds: float = STALE_SECONDS
) -> Iterator[Callable[[], None]]:
    """Wait until no other process decides about the registered model ``name``; keep others out.

    Give a function to call before a decision is written, which raises OutageError if another
    process has removed the claim of this one, because it slept.

    MLflow has no lock, so this one is made of tags. Each process that wants to decide writes a
    claim under a key of its own and then reads all claims. A process that finds only its own claim
    goes on. Of several, the first by key waits, and the others withdraw and try again. Two
    processes cannot both find themselves alone: of two claims, the second one is written before
    its writer reads, so its writer finds the first.

    Args:
        client: client of the registry.
        name: name of the registered model, which exists.
        stale_seconds: time without renewal after which another's claim is removed.
    """
    own, first_seen = CLAIM + uuid4().hex, dict[tuple[str, str], float]()
    is_over = threading.Event()

    def claim() -> None:
        client.set_registered_model_tag(name, own, uuid4().hex)

    check = partial(_check_claim, client, name, own)

    def renew() -> None:
        while not is_over.wait(stale_seconds / 3):
            with suppress(MlflowException, errors.OutageError):  # the block will notice it too
                check()
                claim()

    renewing = threading.Thread(target=renew, name="promotion lock", daemon=True)
    try:
        while True:
            claim()
            now, tags = time.monotonic(), client.get_registered_model(name).tags
            others = {key for key in tags if key.startswith(CLAIM)} - {own}
            if not others:
                break
            for key in others:
                if now - first_seen.setdefault((key, tags[key]), now) > stale_seconds:
                    log.warning("%s: removed the claim of a process that is gone", name)
                    _withdraw(client, name, key)
            if min(others) < own:
                _withdraw(client, name, own)
            time.sleep(_WAIT_SECONDS)
        renewing.start()
        yield check
    finally:
        is_over.set()
        if renewing.ident:
            renewing.join()
        _withdraw(client, name, own)


def _check_claim(client: MlflowClient, name: str, claim: str) -> None:
    if claim not in client.get_registered_model(name).tags:
        raise errors.OutageError(
            f"{name}: another process decides about it, because this one was silent for too long: "
            "run the same command again"
        )


def _withdraw(client: MlflowClient, name: str, claim: str) -> None:
    with server.suppress_codes(*server.ABSENT):
        client.delete_registered_model_tag(name, claim)
