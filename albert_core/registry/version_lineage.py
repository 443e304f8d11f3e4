"""What registered versions were made of, asked of the registry alone.

A version's tags name the place and the URI of every manifest before it, and its MLflow run has
copies of them: both are there when the work folder is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from albert_core.registry.versions import named, registry_errors, version_at
from albert_core.stage import storage
from albert_core.stage.environment import tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import SOURCE_FILES, Lineage, Result
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest
from albert_core.tracking.server import open_client, upload

LINEAGE = "lineage"
"""Folder of the manifests among the files of a version's run."""
LINEAGE_TAG, MANIFEST_TAG = "lineage.", "manifest."
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class RegisteredVersion:
    """A version in the registry."""

    name: str
    version: str
    aliases: tuple[str, ...]
    run_id: str
    tags: Mapping[str, str]

    @property
    def uri(self) -> str:
        """As `mlflow.pyfunc.load_model` takes it."""
        return f"models:/{self.name}/{self.version}"

    @property
    def places(self) -> frozenset[str]:
        """Of all results that it was made of."""
        return frozenset(
            f"{tag.removeprefix(LINEAGE_TAG)}/{key}"
            for tag, keys in self.tags.items()
            if tag.startswith(LINEAGE_TAG)
            for key in keys.split(", ")
        )

    def __str__(self) -> str:
        """Say its address and its aliases."""
        return self.uri + "".join(f" @{alias}" for alias in self.aliases)


@dataclass(frozen=True)
class VersionLineage:
    """A version and all that it was made of."""

    version: RegisteredVersion
    lineage: Lineage
    """Manifests read from the registry; each with the URI where it was written."""
    source_lists: dict[str, bytes]
    """Place of a corpus -> its `SOURCE_FILES`."""


def has_registry(work: str) -> bool:
    """Return whether there is a registry to ask: a server that is named, or a file in ``work``."""
    uri = tracking_uri(work)
    return not uri.startswith(_SQLITE) or Path(uri.removeprefix(_SQLITE)).exists()


def registered_versions(work: str) -> list[RegisteredVersion]:
    """Return all versions of all names.

    Raises:
        RegistryError: the registry does not answer.
    """
    with registry_errors(work):
        client = open_client(work)
        return [
            _described(version, aliases.get(str(version.version), ()))
            for name, aliases in _aliases(client)
            for version in _versions(client, name)
        ]


def read_version(model_uri: str, work: str) -> VersionLineage:
    """Return a version with its lineage.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results, where the registry is if the environment names no server.

    Raises:
        RegistryError: there is no such version, or it was registered without its manifests.
    """
    with registry_errors(work), TemporaryDirectory() as scratch:
        client = open_client(work)
        found = version_at(client, model_uri, work)
        aliases = dict(_aliases(client)).get(found.name, {})
        version = _described(found, aliases.get(str(found.version), ()))
        uris = _manifest_uris(version)
        folders = _downloaded(client, version, scratch)
        results, lists = [], {}
        for folder in folders:
            manifest = read_manifest(str(folder / MANIFEST))
            result = Result(uris.get(manifest.key, str(folder / MANIFEST)), manifest)
            results.append(result)
            if (files := folder / SOURCE_FILES).exists():
                lists[result.place] = files.read_bytes()
    if not results:
        raise RegistryError(
            f"{version.uri} has no manifests in its run {version.run_id}: it was not registered "
            "by this project."
        )
    return VersionLineage(version, Lineage(results), lists)


def upload_lineage(client: MlflowClient, run_id: str, lineage: Mapping[str, Manifest]) -> None:
    """Put the manifests, by URI, among the run's files; a corpus's list of files with it."""
    for uri, manifest in lineage.items():
        folder = f"{LINEAGE}/{manifest.stage}-{manifest.key}"
        upload(client, run_id, uri, folder)
        files = storage.join(uri.rpartition("/")[0], SOURCE_FILES)
        if storage.exists(files):
            upload(client, run_id, files, folder)


def _described(version: ModelVersion, aliases: tuple[str, ...]) -> RegisteredVersion:
    return RegisteredVersion(
        str(version.name), str(version.version), aliases, str(version.run_id), dict(version.tags)
    )


def _aliases(client: MlflowClient) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield each name with the aliases of its versions."""
    token = None
    while True:
        page = client.search_registered_models(page_token=token)
        for model in page:
            of_version: dict[str, tuple[str, ...]] = {}
            for alias, version in sorted(model.aliases.items()):
                of_version[str(version)] = (*of_version.get(str(version), ()), alias)
            yield model.name, of_version
        if not (token := page.token):
            return


def _versions(client: MlflowClient, name: str) -> Iterator[ModelVersion]:
    token = None
    while True:
        page = client.search_model_versions(named(name), page_token=token)
        yield from page
        if not (token := page.token):
            return


def _manifest_uris(version: RegisteredVersion) -> dict[str, str]:
    """Return where each manifest was written, by its key."""
    uris = (
        uri
        for tag, value in version.tags.items()
        if tag.startswith(MANIFEST_TAG)
        for uri in value.split(", ")
    )
    return {uri.split("/")[-2]: uri for uri in uris}


def _downloaded(client: MlflowClient, version: RegisteredVersion, scratch: str) -> list[Path]:
    if not client.list_artifacts(version.run_id, LINEAGE):
        return []
    found = Path(client.download_artifacts(version.run_id, LINEAGE, scratch))
    return sorted(path.parent for path in found.rglob(MANIFEST))
