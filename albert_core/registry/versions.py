"""Versions in MLflow's registry: make one of a model folder, look one up, find its files.

A version is self-contained: the model folder in Hugging Face's layout, and the code that
`mlflow.pyfunc` runs on it.
"""

import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature

from albert_core.registry.aliases import ABSENT, champion_of
from albert_core.registry.thread_safety import WORD_TABLE, check_word_table
from albert_core.stage import storage
from albert_core.stage.code_version import library_versions, reachable_sources
from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri, tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.manifest import digest_of, read_manifest
from albert_core.tracking.server import open_client

KEY_TAG = "registration_key"
MODEL_ARTIFACT = "model"  # registered_model.MODEL_ARTIFACT, which is not imported: it is data here

_DOWNLOADS = "registered_models"


@dataclass(frozen=True)
class ServedCode:
    """What `mlflow.pyfunc` runs on a model folder."""

    module: str
    """Of one file, which ends with `mlflow.models.set_model`."""
    signature: ModelSignature
    requirements: tuple[str, ...]
    """Libraries, which a version pins as they are installed here."""
    takes_along: str = ""
    """A module of this project that it imports: it and all it reaches go along. Empty: none."""


def champion_to_beat(name: str, pretraining: str, work: str) -> str:
    """Return ``models:/<name>/<version>`` of the champion; "" if there is none.

    Args:
        name: of the registered model.
        pretraining: the candidate's manifest; "" too if the champion is of that pretraining.
        work: folder for all results.

    Raises:
        RegistryError: the registry does not answer.
    """
    with registry_errors(work):
        champion = champion_of(open_client(work), name)
    if champion is None:
        return ""
    nearest = champion.tags.get("lineage.pretraining", "").partition(", ")[0]
    is_itself = nearest == read_manifest(pretraining).key
    return "" if is_itself else f"models:/{name}/{champion.version}"


def model_folder_of(model_uri: str, work: str) -> str:
    """Return the local folder, in Hugging Face's layout, of a registered model.

    Args:
        model_uri: ``models:/<name>@<alias>`` or ``models:/<name>/<version>``.
        work: folder for all results; what must be downloaded is kept there.

    Raises:
        RegistryError: there is no such version, or it holds no such folder.
    """
    with registry_errors(work):
        client = open_client(work)
        version = version_at(client, model_uri, work)
        folder = _downloaded(client, version, work)
    if not (folder / "config.json").exists():
        raise RegistryError(
            f"{model_uri} holds no model folder in Hugging Face's layout: it was not registered "
            "by this project. Give one that was, or a folder."
        )
    return str(folder)


def log_model(model_folder: str, served: ServedCode) -> str:
    """Log the model folder with the code that serves it to the active run; return its URI.

    Raises:
        RegistryError: that code is wrong for several threads.
    """
    code = find_spec(served.module)
    assert code is not None
    assert code.origin is not None
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import and on type hints
        import mlflow.pyfunc

        logged = mlflow.pyfunc.log_model(
            name="albert",
            python_model=code.origin,
            artifacts={MODEL_ARTIFACT: str(_local_model(model_folder, scratch))},
            code_paths=_copied_code(served.takes_along, Path(scratch, "code")),
            signature=served.signature,
            pip_requirements=_requirements(served.requirements),
        )
    return str(logged.model_uri)


def create_name(client: MlflowClient, name: str) -> None:
    """Create the registered model ``name``, if it is not there."""
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def named(name: str) -> str:
    """Return the filter for what is of the registered model ``name``; MLflow knows no escapes."""
    quote = '"' if "'" in name else "'"
    return f"name = {quote}{name}{quote}"


def find_version(client: MlflowClient, name: str, key: str) -> ModelVersion | None:
    """Return the version that was registered under ``key``, if it is there."""
    found = client.search_model_versions(f"{named(name)} AND tags.{KEY_TAG} = '{key}'")
    ready = [version for version in found if version.status == "READY"]
    if not ready:
        return None
    newest = max(ready, key=lambda version: int(version.version))
    return client.get_model_version(name, newest.version)


@contextmanager
def fluent_uri(uri: str) -> Iterator[None]:
    """Point MLflow's global functions at ``uri``, and back at what the environment says."""
    before = os.environ.get(TRACKING_URI)
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri("")
        os.environ.pop(TRACKING_URI, None)
        if before is not None:
            os.environ[TRACKING_URI] = before


@contextmanager
def registry_errors(work: str) -> Iterator[None]:
    """Say what MLflow refuses as a `RegistryError`."""
    try:
        yield
    except MlflowException as error:
        raise RegistryError(
            f"the registry at {shown_tracking_uri(work)} refuses or does not answer: {error}. "
            f"Check {TRACKING_URI} and that its server runs."
        ) from error


def _requirements(libraries: tuple[str, ...]) -> list[str]:
    """Return what the version needs, pinned; without "+cpu" and its like, which PyPI lacks."""
    versions = library_versions(*libraries)
    return [f"{name}=={versions[name].partition('+')[0]}" for name in libraries]


def _copied_code(module: str, folder: Path) -> list[str] | None:
    """Write ``module`` and all that it reaches below ``folder``; return the packages' folders."""
    if not module:
        return None
    sources = reachable_sources(module)
    if WORD_TABLE in sources:
        check_word_table(sources[WORD_TABLE])
    for package in {name.rpartition(".")[0] for name in sources} - {""}:
        sources.setdefault(package, "")
    for name, source in sources.items():
        is_package = any(other.startswith(f"{name}.") for other in sources)
        place = folder.joinpath(*name.split("."))
        path = place / "__init__.py" if is_package else place.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return sorted(str(path) for path in folder.iterdir())


def _local_model(model_folder: str, scratch: str) -> Path:
    """Return the model folder as a local one named "model", copied if it is elsewhere."""
    path = storage.local_path(model_folder)
    if path is not None and path.name == MODEL_ARTIFACT:
        return path.absolute()
    fs, remote = storage.filesystem(model_folder)
    copy = Path(scratch, MODEL_ARTIFACT)
    fs.get(f"{remote.rstrip('/')}/", f"{copy}/", recursive=True)
    return copy


def version_at(client: MlflowClient, model_uri: str, work: str) -> ModelVersion:
    """Return the version that ``model_uri`` names.

    Raises:
        RegistryError: there is none.
    """
    match = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri)
    if match is None:
        raise RegistryError(
            f"{model_uri!r} is no registered model: expected models:/<name>@<alias> or "
            "models:/<name>/<version>."
        )
    name, alias, version = match.groups()
    try:
        if alias:
            return client.get_model_version_by_alias(name, alias)
        return client.get_model_version(name, version)
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
        raise RegistryError(
            f"{model_uri} is not in the registry at {shown_tracking_uri(work)}. Register a model "
            f"under this name first, or set {TRACKING_URI} to the registry that has it."
        ) from None


def _downloaded(client: MlflowClient, version: ModelVersion, work: str) -> Path:
    """Return the local model folder of ``version``: where it lies, or a copy in ``work``."""
    source = client.get_model_version_download_uri(version.name, version.version)
    if (local := _local_source(client, source)) is not None:
        return local
    kept = storage.local_path(work) or Path(tempfile.gettempdir())
    target = kept / _DOWNLOADS / digest_of([source, version.name, version.version])[:16]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            with fluent_uri(tracking_uri(work)):
                found = mlflow.artifacts.download_artifacts(
                    artifact_uri=f"models:/{version.name}/{version.version}", dst_path=scratch
                )
            try:
                Path(found).replace(target)
            except OSError:  # another process had it meanwhile
                if not target.exists():
                    raise
    return target / "artifacts" / MODEL_ARTIFACT


def _local_source(client: MlflowClient, source: str) -> Path | None:
    if source.startswith("models:/"):
        source = client.get_logged_model(source.removeprefix("models:/")).artifact_location
    path = storage.local_path(source) if "://" not in source or source.startswith("file:") else None
    return path / "artifacts" / MODEL_ARTIFACT if path is not None and path.exists() else None
