"""What is in the registry, why, and who is champion: what `albert models` shows and moves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from albert_core.registry.champion import DECISION_TAG, promotion_lock
from albert_core.registry.versions import (
    FAULT,
    MOVED_TAG,
    champion_of,
    fault_of,
    named,
    promote_by_hand,
    registry_errors,
    remedy,
    roll_back,
)
from albert_core.stage.errors import RegistryError
from albert_core.tracking.server import open_client

_MANY = 1000


def list_models(work: str) -> str:
    """Return a line for each registered model: its name and its champion.

    Args:
        work: folder whose registry is meant where the environment names no server.

    Raises:
        RegistryError: the registry does not answer.
    """
    with _open(work) as client:
        names = sorted(model.name for model in client.search_registered_models(max_results=_MANY))
        return "\n".join(f"{name:<32}{_champion(client, name)}" for name in names) or "none"


def list_versions(name: str, work: str) -> str:
    """Return a line for each version of ``name``, the newest first.

    Raises:
        RegistryError: there is none, or the registry does not answer.
    """
    with _open(work) as client:
        lines = [
            f"{version.version:>4}  {', '.join(version.aliases) or '-':<20}"
            f"{float(version.tags.get('score', 'nan')):>7.4f}  {_decision_of(version)}"
            f"{_mark(client, version)}"
            for version in _versions(client, name)
        ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def explain_version(name: str, number: str, work: str) -> str:
    """Return why a version of ``name`` is champion or not, task by task.

    Raises:
        RegistryError: there is no such version, or the registry does not answer.
    """
    with _open(work) as client:
        found = [each for each in _versions(client, name) if str(each.version) == number]
        if not found:
            raise RegistryError(
                f"{name} has no version {number}; `albert models {name}` shows those there are"
            )
        return _explanation(client, found[0])


def promote_version(name: str, number: str, reason: str, work: str) -> str:
    """Make a version champion by hand; return what was done.

    Raises:
        RegistryError: it can't be, or the registry does not answer.
    """
    with _open(work) as client, _held(client, name):
        return promote_by_hand(client, name, number, reason)


def roll_back_to(name: str, number: str | None, reason: str, work: str) -> str:
    """Make a version, or the previous champion without a number, champion again.

    Returns:
        What was done.

    Raises:
        RegistryError: there is none to go back to, or the registry does not answer.
    """
    with _open(work) as client, _held(client, name):
        return roll_back(client, name, number, reason)


@contextmanager
def _open(work: str) -> Iterator[MlflowClient]:
    with registry_errors(work):
        yield open_client(work)


@contextmanager
def _held(client: MlflowClient, name: str) -> Iterator[None]:
    _versions(client, name)  # says so if there is none
    with promotion_lock(client, name):
        yield


def _explanation(client: MlflowClient, version: ModelVersion) -> str:
    fault = fault_of(client, version)
    against = version.tags.get(f"{DECISION_TAG}.against", "")
    lines = [f"{version.name}, version {version.version}: {_decision_of(version)}"]
    for task in json.loads(version.tags.get(f"{DECISION_TAG}.tasks", "[]")):
        fell = "  fell" if task["fell"] else ""
        lines.append(
            f"  {task['task']:<12} {task['candidate']:.4f} against {task['champion']:.4f} of "
            f"version {against}: {task['difference']:+.4f} [{task['low']:+.4f}, "
            f"{task['high']:+.4f}], {task['num_examples']:,} examples{fell}"
        )
    if fault:
        lines.append(f"It {fault}." if fault != FAULT else f"It {FAULT}. {remedy(version)}")
    return "\n".join(lines)


def _champion(client: MlflowClient, name: str) -> str:
    champion = champion_of(client, name)
    if champion is None:
        return "no champion"
    return f"champion: version {champion.version}{_mark(client, champion)}"


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    found = client.search_model_versions(named(name), max_results=_MANY)
    if not found:
        raise RegistryError(
            f"there is no registered model {name!r}; `albert models` shows those there are"
        )
    newest_first = sorted((int(version.version) for version in found), reverse=True)
    return [client.get_model_version(name, str(number)) for number in newest_first]


def _decision_of(version: ModelVersion) -> str:
    verdict = version.tags.get(f"{DECISION_TAG}.verdict", "")
    said = f"{verdict}: {version.tags[DECISION_TAG]}" if verdict else "not decided yet"
    by_hand = version.tags.get(MOVED_TAG)
    return said + (f"; champion by hand, {by_hand}" if by_hand else "")


def _mark(client: MlflowClient, version: ModelVersion) -> str:
    fault = fault_of(client, version)
    return f"; {fault}" if fault else ""
