"""Versions in MLflow's registry: make one of a model folder, look one up, move its aliases.

A version is self-contained: the model folder in Hugging Face's layout, and the code that
`mlflow.pyfunc` runs on it. The aliases say which version is candidate, champion and previous.

A version keeps the code that it was registered with. Some carry a word table without a lock: where
two threads meet new words at once, both get a wrong number, and the model answers wrongly from then
on, or fails. MLflow's server has several threads, so such a version is refused. Only models that
answer by spans never use that table.
"""

import json
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature

from albert_core.stage import storage
from albert_core.stage.environment import TRACKING_URI, shown_tracking_uri, tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.manifest import digest_of, read_manifest
from albert_core.stage.provenance import library_versions, reachable_sources
from albert_core.tracking.server import open_client

THREADS_TAG = "threads"
"""Of a version: that its code was looked at when it was registered, and is `RIGHT`."""
RIGHT = "right"
WORD_TABLE = "albert_core.text.word_table"
FAULT = "answers wrongly where a server asks it from several threads"
_WORD_TABLE_FILE = "code/albert_core/contract/word_table.py"
_TASK_FILE = "artifacts/model/task.json"
_FINETUNING_TAG = "manifest.finetuning"


def has_lock(word_table: str) -> bool:
    """Return whether this source of the module `WORD_TABLE` is right for several threads."""
    return "threading.Lock" in word_table


def check_word_table(source: str) -> None:
    """Refuse to register a version that would carry this source of the module `WORD_TABLE`.

    Raises:
        RegistryError: it is wrong for several threads.
    """
    if not has_lock(source):
        spec = find_spec(WORD_TABLE)
        raise RegistryError(
            f"{WORD_TABLE if spec is None else spec.origin} has no lock, so that a model with it "
            f"{FAULT}. Register with this project's present code: update that checkout, or "
            "install the project again."
        )


def is_right(client: MlflowClient, version: ModelVersion) -> bool:
    """Return whether ``version`` gives each of several threads the answers that one would get.

    Of a version without `THREADS_TAG` a file or two of a few kB are read. One that does not carry
    the word table, like a pretrained model's, does not use it.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if version.tags.get(THREADS_TAG) == RIGHT:
        return True
    table = _read(client, version, _WORD_TABLE_FILE)
    if table is None or has_lock(table):
        return True
    task = _read(client, version, _TASK_FILE)
    return task is not None and json.loads(task)["task"]["kind"] == "spans"


def fault_of(client: MlflowClient, version: ModelVersion) -> str:
    """Return what ``version`` does or has that it should not, as a verb and more; "" if nothing."""
    try:
        return "" if is_right(client, version) else FAULT
    except (MlflowException, OSError) as error:
        return f"has code that can't be read now ({type(error).__name__})"


def check_is_right(client: MlflowClient, version: ModelVersion) -> None:
    """Refuse to make ``version`` champion if its code is wrong for several threads.

    Raises:
        RegistryError: it is, with what its owner does.
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if not is_right(client, version):
        raise RegistryError(
            f"version {version.version} of {version.name} {FAULT}. {remedy(version)}"
        )


def remedy(version: ModelVersion) -> str:
    """Return what the owner of a version does whose code is wrong."""
    finetuning = version.tags.get(_FINETUNING_TAG, "<manifest>").partition(", ")[0]
    work = finetuning.rpartition("/finetuning/")[0] or "<work>"
    name = shlex.quote(str(version.name))
    return (
        "Register its fine-tuning again with the present code: `python -m "
        f"albert_core.registry.register_finetuned --recipe={work}/recipes/<...>.json "
        f"--finetuning={finetuning} --name={name} --work={work}`. Where the gate finds the new "
        f"version no better than this one, `albert promote {name} <its number> --work={work} "
        "--reason=...` makes it champion. Then start its servers anew."
    )


def _read(client: MlflowClient, version: ModelVersion, path: str) -> str | None:
    """Return the text of a file of the version; None if there is none."""
    place = client.get_model_version_download_uri(version.name, version.version)
    if place.startswith("models:/"):
        place = client.get_logged_model(place.removeprefix("models:/")).artifact_location
    uri, server = f"{place}/{path}", client.tracking_uri
    beside = mlflow.artifacts.list_artifacts(uri.rpartition("/")[0], tracking_uri=server)
    if Path(path).name not in {Path(file.path).name for file in beside}:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        found = mlflow.artifacts.download_artifacts(uri, dst_path=scratch, tracking_uri=server)
        return Path(found).read_text(encoding="utf-8")


CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
"""The model that came last and is not champion; the one to use; the one that was it before."""
MOVED_TAG = "champion_by_hand"
"""Why and when a person made a version champion."""
ROLLING_BACK_TAG = "rolling_back_to"
"""Of the registered model: the version that a roll-back makes champion, until it is done."""
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""Codes of MLflow's errors for a model, version or alias that is not there."""


def version_with(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Return the version of ``name`` that has the alias, or None."""
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code in ABSENT:
            return None
        raise


def champion_of(client: MlflowClient, name: str) -> ModelVersion | None:
    """Return the version of ``name`` that is champion, or None."""
    return version_with(client, name, CHAMPION)


def is_same(one: ModelVersion, other: ModelVersion) -> bool:
    """Return whether both are the same version of one name."""
    return str(one.version) == str(other.version)  # a number from a database, text from a server


def make_candidate(client: MlflowClient, version: ModelVersion) -> None:
    """Call ``version`` the candidate, instead of the one before it."""
    client.set_registered_model_alias(version.name, CANDIDATE, str(version.version))


def make_champion(client: MlflowClient, version: ModelVersion) -> None:
    """Move the champion to previous, and ``version`` to champion; it is candidate no more."""
    name = str(version.name)
    champion, candidate = champion_of(client, name), version_with(client, name, CANDIDATE)
    if champion is not None and not is_same(champion, version):
        client.set_registered_model_alias(name, PREVIOUS, str(champion.version))
    client.set_registered_model_alias(name, CHAMPION, str(version.version))
    if candidate is not None and is_same(candidate, version):
        client.delete_registered_model_alias(name, CANDIDATE)


def promote_by_hand(client: MlflowClient, name: str, version: str, reason: str) -> str:
    """Make a version champion because a person says so; return a sentence.

    Raises:
        RegistryError: there is no such version, it is champion already, its code is wrong for
            several threads, or no reason is given.
    """
    if not reason.strip():
        raise RegistryError(f"{name}: give a reason for the promotion, which is kept with it")
    try:
        found = client.get_model_version(name, version)
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
        raise RegistryError(
            f"{name} has no version {version}; `list {name}` shows those there are"
        ) from None
    champion = champion_of(client, name)
    if champion is not None and is_same(champion, found):
        raise RegistryError(f"version {version} of {name} is champion already")
    check_is_right(client, found)
    instead = "" if champion is None else f" instead of version {champion.version}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    client.set_model_version_tag(name, version, MOVED_TAG, f"{at}{instead}: {reason}")
    make_champion(client, found)
    return f"{name}: version {version} is champion{instead}"


def roll_back(client: MlflowClient, name: str, version: str | None, reason: str) -> str:
    """Make the previous champion, or ``version``, champion again; return a sentence.

    The champion there was becomes the previous one, so that a second roll-back undoes the first.

    Raises:
        RegistryError: there is no previous champion, no such version, or its code is wrong for
            several threads.
    """
    if version is None:  # of one that was killed, the aliases may be half moved
        champion = champion_of(client, name)
        begun = client.get_registered_model(name).tags.get(ROLLING_BACK_TAG)
        is_done = champion is not None and begun == str(champion.version)
        version = None if is_done else begun
    if version is None:
        previous = version_with(client, name, PREVIOUS)
        if previous is None:
            raise RegistryError(
                f"{name} has no previous champion to roll back to; name a version with --to"
            )
        version = str(previous.version)
    client.set_registered_model_tag(name, ROLLING_BACK_TAG, version)
    try:
        return promote_by_hand(client, name, version, f"rolled back: {reason}")
    finally:
        client.delete_registered_model_tag(name, ROLLING_BACK_TAG)


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
