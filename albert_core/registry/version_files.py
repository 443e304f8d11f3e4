"""The files of a registered version: its model and its manifests, and whether they are sound."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import mlflow
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.conversion.model_files import WEIGHTS, check_model, is_model, noted_digest
from albert_core.registry.versions import (
    RegisteredVersion,
    has_registry,
    numbered_version,
    open_registry,
    version_with,
)
from albert_core.stage import errors, manifest, servers, storage
from albert_core.stage.lineage import Lineage, Result
from albert_core.stage.results import SOURCE_FILES
from albert_core.tracking import server

_MODEL = f"artifacts/{server.MODEL_ARTIFACT}"
"""Folder of the model among the files of a version."""
SHA256 = "sha256"
"""Field of the configuration of a served model: the digest of each of its files, by name."""
LINEAGE = "lineage"
"""Folder of the manifests among the files of a version."""
CODE_TAG = "code_sha256"
"""Tag with `code_digest` of the files of a version."""
_DESCRIPTION = "MLmodel"
_DOWNLOADS = "registered_models"
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


class VersionFiles:
    """The files of a registered version, and whether they are sound.

    What was found out is kept. Everything raises MlflowException if the registry or its files do
    not answer, or an OSError.
    """

    def __init__(self, client: MlflowClient, version: RegisteredVersion) -> None:
        self._client, self._version = client, version
        self.are_ours = server.REGISTRATION_TAG in version.tags

    @cached_property
    def folder(self) -> str:
        """The URI of the folder that they are in."""
        uri = self._client.get_model_version_download_uri(self._version.name, self._version.version)
        if uri.startswith("models:/"):
            uri = self._client.get_logged_model(uri.removeprefix("models:/")).artifact_location
        return uri

    @cached_property
    def fault(self) -> str:
        """Why the version must not be served; "" if nothing is known.

        It has lost its files, or its code or a file of its model has changed. The weights, which
        may be large, are not read.
        """
        if not self.are_ours:
            return ""
        if self.are_lost:
            return GONE
        with tempfile.TemporaryDirectory() as scratch:
            if self._has_other_code(scratch):
                return CHANGED
            return DAMAGED if self._has_other_model(scratch) else ""

    @cached_property
    def are_lost(self) -> bool:
        """Whether they are ours and a file of the model is gone."""
        if not self.are_ours:
            return False
        names = self._names_in(f"{self.folder}/{_MODEL}") if self._names else set()
        return not is_model(names) or not self._registered.keys() <= names

    def model_folder(self, work: str) -> str:
        """Return the local folder of the model, in Hugging Face's layout.

        Args:
            work: folder for all results; files that must be downloaded are kept there.

        Raises:
            IntegrityError: a file changed after it was registered.
            RegistryError: the version holds no such folder.
        """
        uri = self._version.uri
        try:
            copy = _local_copy(self.folder, self._client.tracking_uri, work)
        except (MlflowException, OSError) as error:
            if self.are_lost:
                raise errors.RegistryError(f"{uri} {GONE}.") from error
            raise
        folder = copy / "artifacts" / server.MODEL_ARTIFACT
        if not is_model(path.name for path in folder.glob("*")):
            other = (
                f"holds no model folder in Hugging Face's layout in {self.folder}: it was not "
                "registered by this project. Give another version or a folder"
            )
            raise errors.RegistryError(f"{uri} {GONE if self.are_ours else other}.")
        if digest := self._version.tags.get(server.DIGEST_TAG):
            check_model(str(folder), digest)
        return str(folder)

    def fetch(self, name: str, scratch: str) -> Path | None:
        """Return a file or folder copied to ``scratch``, of the run if not here; None without."""
        if name in self._names:
            return self._copy(f"{self.folder}/{name}", scratch)
        run, names = "", set[str]()
        with server.suppress_codes(*server.ABSENT):
            run = str(self._client.get_run(self._version.mlflow_run_id).info.artifact_uri)
            names = self._names_in(run)
        return self._copy(f"{run}/{name}", scratch) if name in names else None

    @cached_property
    def _names(self) -> set[str]:
        """The names in the folder; none if it is gone."""
        with server.suppress_codes(*server.ABSENT):
            return self._names_in(self.folder)
        return set()

    @cached_property
    def _registered(self) -> dict[str, str]:
        """The names of the model's files, and their digests when it was registered.

        They are those that it compares when it is loaded. There are none if `MLmodel`, which has
        them, is missing or damaged; then its code has changed.
        """
        with suppress(yaml.YAMLError, ValueError, LookupError, TypeError):
            described = yaml.safe_load(self._description)
            return dict(described["flavors"]["python_function"]["config"][SHA256])
        return {}

    @cached_property
    def _description(self) -> bytes:
        """The content of `MLmodel`, empty if it is missing."""
        if _DESCRIPTION not in self._names:
            return b""
        with tempfile.TemporaryDirectory() as scratch:
            return self._copy(f"{self.folder}/{_DESCRIPTION}", scratch).read_bytes()

    def _has_other_code(self, scratch: str) -> bool:
        if not (registered := self._version.tags.get(CODE_TAG)):
            return False
        for name in filter(_CODE.fullmatch, self._names - {_DESCRIPTION}):
            self._copy(f"{self.folder}/{name}", scratch)
        if self._description:
            Path(scratch, _DESCRIPTION).write_bytes(self._description)
        return code_digest(Path(scratch)) != registered

    def _has_other_model(self, scratch: str) -> bool:
        for name, sha256 in self._registered.items():
            if name != WEIGHTS:
                copy = self._copy(f"{self.folder}/{_MODEL}/{name}", scratch)
                if storage.sha256_of(str(copy)) != sha256:
                    return True
        return False

    def _names_in(self, uri: str) -> set[str]:
        files = mlflow.artifacts.list_artifacts(uri, tracking_uri=self._client.tracking_uri)
        return {Path(file.path).name for file in files}

    def _copy(self, uri: str, scratch: str) -> Path:
        return _download(uri, scratch, self._client.tracking_uri)


def find_version(client: MlflowClient, name: str, key: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that was registered under ``key``, if its files are there."""
    found = client.search_model_versions(f"tags.{server.REGISTRATION_TAG} = '{key}'")
    ready = [int(each.version) for each in found if each.name == name and each.status == "READY"]
    version = numbered_version(client, name, str(max(ready))) if ready else None
    return None if version is None or VersionFiles(client, version).are_lost else version


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
        return VersionFiles(client, _version_at(client, model_uri, work)).model_folder(work)


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
        folder = VersionFiles(client, version).fetch(LINEAGE, scratch)
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
        if (listed := result.read_source_list()) is not None:
            (copy / SOURCE_FILES).write_bytes(listed)


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
