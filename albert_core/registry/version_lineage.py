"""What registered versions were made of, read from the registry alone.

A version's tags name the place and the URI of every manifest before it, and its MLflow run has
copies of the manifests, so the work folder need not be there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from albert_core.registry.versions import registry_errors, version_at
from albert_core.stage import storage
from albert_core.stage.environment import tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import SOURCE_FILES, Lineage, Result, place_in
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest
from albert_core.tracking.server import open_client, upload

LINEAGE = "lineage"
"""Folder of the manifests among the files of a version's run."""
MANIFEST_TAG = "manifest."
_SQLITE = "sqlite:///"


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


def has_registry(work: str) -> bool:
    """Return whether there is a registry to ask: a server that is named, or a file in ``work``."""
    uri = tracking_uri(work)
    return not uri.startswith(_SQLITE) or Path(uri.removeprefix(_SQLITE)).exists()


def registered_versions(work: str) -> list[RegisteredVersion]:
    """Return all versions of all names, the newest first; none if there is no registry.

    Raises:
        RegistryError: the registry does not answer.
    """
    if not has_registry(work):
        return []
    with registry_errors(work):
        client = open_client(work)
        aliases = {each.name: each.aliases for each in _every(client.search_registered_models)}
        versions = list(_every(client.search_model_versions))
    versions.sort(key=lambda version: (version.name, -int(version.version)))
    return [_described(version, aliases.get(version.name, {})) for version in versions]


def read_version(model_uri: str, work: str) -> tuple[RegisteredVersion, Lineage]:
    """Return a version, and all that it was made of as the registry's copies tell it.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results, where the registry is if the environment names no server.

    Raises:
        RegistryError: there is no such version, or it was registered without its manifests.
    """
    with registry_errors(work), TemporaryDirectory() as scratch:
        client = open_client(work)
        found = version_at(client, model_uri, work)
        version = _described(found, client.get_registered_model(found.name).aliases)
        if client.list_artifacts(version.mlflow_run_id, LINEAGE):
            client.download_artifacts(version.mlflow_run_id, LINEAGE, scratch)
        results = [_downloaded(path, version) for path in sorted(Path(scratch).rglob(MANIFEST))]
    if not results:
        raise RegistryError(
            f"{version.uri} has no manifests in its run {version.mlflow_run_id}: it was not "
            "registered by this project."
        )
    return version, Lineage(results)


def upload_lineage(client: MlflowClient, run_id: str, lineage: Mapping[str, Manifest]) -> None:
    """Upload the manifests, by URI, to the run; with a corpus's, its list of source files."""
    for uri, manifest in lineage.items():
        folder = f"{LINEAGE}/{manifest.stage}-{manifest.key}"
        upload(client, run_id, uri, folder)
        files = storage.join(uri.rpartition("/")[0], SOURCE_FILES)
        if storage.exists(files):
            upload(client, run_id, files, folder)


def _every(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield what is on every page of a search."""
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        if not (token := page.token):
            return


def _described(version: ModelVersion, aliases: Mapping[str, str]) -> RegisteredVersion:
    mine = sorted(alias for alias, number in aliases.items() if str(number) == str(version.version))
    return RegisteredVersion(
        str(version.name), str(version.version), tuple(mine), str(version.run_id), version.tags
    )


def _downloaded(path: Path, version: RegisteredVersion) -> Result:
    manifest, files = read_manifest(str(path)), path.with_name(SOURCE_FILES)
    uri = version.made_of.get(f"{manifest.stage}/{manifest.key}", str(path))
    return Result(uri, manifest, files.read_bytes() if files.exists() else None)
