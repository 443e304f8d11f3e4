"""What commands ask of the registry: lists, promotions, and whom a candidate has to beat."""

import json
import logging
import shlex
from collections.abc import Callable
from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.registry import versions
from albert_core.registry.version_files import GONE, VersionFiles, find_version
from albert_core.registry.versions import RegisteredVersion, champion_of, open_registry
from albert_core.stage import errors, manifest
from albert_core.stage.results import UNDECIDED, TaskDifference
from albert_core.tracking import server

log = logging.getLogger(__name__)


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
    if not versions.has_registry(work):
        return ""
    with open_registry(work) as client:
        champion = champion_of(client, name)
        if champion is None or _is_decided(client, name, key):
            return ""
        nearest = champion.tags.get("lineage.pretraining", "").partition(", ")[0]
        if nearest == manifest.read_manifest(pretraining).key:
            return ""
        if VersionFiles(client, champion).are_lost:
            log.warning("the champion %s %s. Nothing is compared with it now", champion.uri, GONE)
            return ""
    return champion.uri


def _is_decided(client: MlflowClient, name: str, key: str) -> bool:
    """Return whether the version registered under ``key`` is whole and has a final verdict."""
    version = find_version(client, name, key)
    return version is not None and version.tags.get(versions.VERDICT_TAG, UNDECIDED) != UNDECIDED


def list_models(work: str) -> str:
    """Return a line for each registered model: its name and its champion.

    Args:
        work: folder whose registry is meant where the environment names no server.

    Raises:
        RegistryError: the registry does not answer.
    """
    with open_registry(work) as client:
        models = versions.every_entry(client.search_registered_models)
        names = sorted(model.name for model in models)
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
            f"{_score_of(version):>7}  {_decision_of(version)}"
            f"{_mark(client, version) if version.aliases else ''}"
            for number, version in _versions(client, name).items()
        ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def _score_of(version: RegisteredVersion) -> str:
    """Return the mean score of the version's tasks; a dash if none was scored."""
    score = version.tags.get("score")
    return f"{float(score):.4f}" if score else "-"


def explain_version(name: str, number: str, work: str) -> str:
    """Return why a version of ``name`` is champion or not, task by task.

    Raises:
        RegistryError: there is no such version, or the registry does not answer.
    """
    with open_registry(work) as client:
        version = _version(client, name, number)
        lines = [f"{name}, version {number}: {_decision_of(version)}{_mark(client, version)}"]
    against = version.tags.get(f"{versions.DECISION_TAG}.against", "")
    for values in json.loads(version.tags.get(f"{versions.DECISION_TAG}.tasks", "[]")):
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
        with versions.promotion_lock(client, name) as check:
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
        with versions.promotion_lock(client, name) as check:
            version = _version(client, name, number or _version_before(client, name))
            client.set_registered_model_tag(name, versions.ROLLING_BACK_TAG, version.version)
            try:
                return _promote(client, version, f"rolled back: {reason}", check, work)
            finally:
                client.delete_registered_model_tag(name, versions.ROLLING_BACK_TAG)


def _version_before(client: MlflowClient, name: str) -> str:
    """Return the number of the previous champion.

    A roll-back that was killed may have moved only some aliases: then its version is returned.
    """
    champion = champion_of(client, name)
    previous = versions.version_with(client, name, versions.PREVIOUS)
    begun = client.get_registered_model(name).tags.get(versions.ROLLING_BACK_TAG)
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
    files = VersionFiles(client, version)
    if files.fault:
        raise errors.RegistryError(f"version {number} of {name} {files.fault}.")
    if server.DIGEST_TAG in version.tags:
        files.model_folder(work)  # refuses a damaged one
    instead = "" if champion is None else f" instead of version {champion.version}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    check()
    client.set_model_version_tag(name, number, versions.MOVED_TAG, f"{at}{instead}: {reason}")
    versions.make_champion(client, version)
    return f"{name}: version {number} is champion{instead}"


def _mark(client: MlflowClient, version: RegisteredVersion) -> str:
    """Return what a person must know about the files of ``version``; "" if nothing."""
    try:
        fault = VersionFiles(client, version).fault
    except (MlflowException, OSError) as error:
        fault = f"its files can't be read now ({type(error).__name__})"
    return f"; {fault}" if fault else ""


def _versions(client: MlflowClient, name: str) -> dict[str, RegisteredVersion]:
    """Return the versions of ``name`` by number, the newest first."""
    found = {version.version: version for version in versions.versions_of(client, name)}
    if not found:
        raise errors.RegistryError(
            f"there is no registered model {name!r}; `albert models` shows those there are"
        )
    return found


def _version(client: MlflowClient, name: str, number: str) -> RegisteredVersion:
    found = _versions(client, name)
    if number not in found:
        raise errors.RegistryError(
            f"{name} has no version {number}; `albert models {shlex.quote(name)}` shows what "
            "there is"
        )
    return found[number]


def _decision_of(version: RegisteredVersion) -> str:
    verdict = version.tags.get(versions.VERDICT_TAG, "")
    said = f"{verdict}: {version.tags[versions.DECISION_TAG]}" if verdict else "not decided yet"
    by_hand = version.tags.get(versions.MOVED_TAG)
    return said + (f"; champion by hand, {by_hand}" if by_hand else "")
