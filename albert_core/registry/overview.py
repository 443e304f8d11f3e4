"""What is in the registry, why, and who is champion: what `albert models` shows and moves.

A version keeps the code that it was registered with. Some old ones carry a word table without a
lock: where two threads meet new words at the same time, both get a wrong number, and the model
answers wrongly from then on, or fails. MLflow's server has several threads, so such a version is
marked, and nobody makes it champion. Only models that answer by spans never use that table.
"""

import json
import tempfile
from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.registry import versions
from albert_core.stage.errors import RegistryError

ROLLING_BACK_TAG = "rolling_back_to"
"""Of the registered model: the version that a roll-back makes champion, until it is done."""
FAULT = (
    "answers wrongly where a server asks it from several threads. Register its fine-tuning again "
    "with the present code (python -m albert_core.registry.register_finetuned), promote that "
    "version, and restart its servers"
)
_WORD_TABLE_FILE = "code/albert_core/contract/word_table.py"
_TASK_FILE = "artifacts/model/task.json"


def list_models(work: str) -> str:
    """Return a line for each registered model: its name and its champion.

    Args:
        work: folder whose registry is meant where the environment names no server.

    Raises:
        RegistryError: the registry does not answer.
    """
    with versions.open_registry(work) as client:
        lines = []
        for name in sorted(model.name for model in versions.every(client.search_registered_models)):
            said = "no champion"
            if champion := versions.champion_of(client, name):
                said = f"champion: version {champion.version}{_mark(client, champion)}"
            lines.append(f"{name:<32}{said}")
    return "\n".join(lines) or "none"


def list_versions(name: str, work: str) -> str:
    """Return a line for each version of ``name``, the newest first.

    Raises:
        RegistryError: there is none, or the registry does not answer.
    """
    with versions.open_registry(work) as client:
        lines = [
            f"{version.version:>4}  {', '.join(version.aliases) or '-':<20}"
            f"{float(version.tags.get('score', 'nan')):>7.4f}  {_decision_of(version)}"
            f"{_mark(client, version)}"
            for version in _versions(client, name).values()
        ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def explain_version(name: str, number: str, work: str) -> str:
    """Return why a version of ``name`` is champion or not, task by task.

    Raises:
        RegistryError: there is no such version, or the registry does not answer.
    """
    with versions.open_registry(work) as client:
        version = _version(client, name, number)
        lines = [f"{name}, version {number}: {_decision_of(version)}{_mark(client, version)}"]
    against = version.tags.get(f"{versions.DECISION_TAG}.against", "")
    for task in json.loads(version.tags.get(f"{versions.DECISION_TAG}.tasks", "[]")):
        fell = "  fell" if task["fell"] else ""
        lines.append(
            f"  {task['task']:<12} {task['candidate']:.4f} against {task['champion']:.4f} of "
            f"version {against}: {task['difference']:+.4f} [{task['low']:+.4f}, "
            f"{task['high']:+.4f}]{fell}"
        )
    return "\n".join(lines)


def promote_version(name: str, number: str, reason: str, work: str) -> str:
    """Make a version champion because a person says so; return a sentence.

    Raises:
        RegistryError: there is no such version, it is champion already, its code is wrong for
            several threads, no reason is given, or the registry does not answer.
    """
    if not reason.strip():
        raise RegistryError(f"{name}: give a reason for the promotion, which is kept with it")
    with versions.open_registry(work) as client:
        version = _version(client, name, number)
        with versions.promotion_lock(client, name):
            return _promote(client, version, reason)


def roll_back_to(name: str, number: str | None, reason: str, work: str) -> str:
    """Make the previous champion, or a version, champion again; return a sentence.

    The present champion becomes the previous one, so that a second roll-back undoes the first.

    Raises:
        RegistryError: there is no previous champion, no such version, its code is wrong for
            several threads, or the registry does not answer.
    """
    with versions.open_registry(work) as client:
        _versions(client, name)
        with versions.promotion_lock(client, name):
            version = _version(client, name, number or _version_before(client, name))
            client.set_registered_model_tag(name, ROLLING_BACK_TAG, version.version)
            try:
                return _promote(client, version, f"rolled back: {reason}")
            finally:
                client.delete_registered_model_tag(name, ROLLING_BACK_TAG)


def _version_before(client: MlflowClient, name: str) -> str:
    """Return the number of the previous champion.

    After a roll-back that was killed the aliases may be half moved: then it is that one's.
    """
    champion = versions.champion_of(client, name)
    previous = versions.version_with(client, name, versions.PREVIOUS)
    begun = client.get_registered_model(name).tags.get(ROLLING_BACK_TAG)
    if begun and (champion is None or champion.version != begun):
        return str(begun)
    if previous is None:
        raise RegistryError(
            f"{name} has no previous champion to roll back to; name a version with --to"
        )
    return previous.version


def _promote(client: MlflowClient, version: versions.RegisteredVersion, reason: str) -> str:
    name, number = version.name, version.version
    champion = versions.champion_of(client, name)
    if champion is not None and champion.version == number:
        raise RegistryError(f"version {number} of {name} is champion already")
    if has_fault(client, version):
        raise RegistryError(f"version {number} of {name} {FAULT}.")
    instead = "" if champion is None else f" instead of version {champion.version}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    client.set_model_version_tag(name, number, versions.MOVED_TAG, f"{at}{instead}: {reason}")
    versions.make_champion(client, version)
    return f"{name}: version {number} is champion{instead}"


def has_fault(client: MlflowClient, version: versions.RegisteredVersion) -> bool:
    """Return whether ``version`` carries the word table without a lock, and uses it.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    if versions.THREADS_TAG in version.tags:
        return False
    with tempfile.TemporaryDirectory() as scratch:
        table = versions.fetch(client, version, _WORD_TABLE_FILE, scratch)
        if table is None or "threading.Lock" in table.read_text(encoding="utf-8"):
            return False
        task = versions.fetch(client, version, _TASK_FILE, scratch)
        return task is None or json.loads(task.read_text())["task"]["kind"] != "spans"


def _mark(client: MlflowClient, version: versions.RegisteredVersion) -> str:
    """Return what is to be said of the code of ``version`` after a semicolon; "" if nothing is."""
    try:
        return f"; {FAULT}" if has_fault(client, version) else ""
    except (MlflowException, OSError) as error:
        return f"; its code can't be read now ({type(error).__name__})"


def _versions(client: MlflowClient, name: str) -> dict[str, versions.RegisteredVersion]:
    """Return the versions of ``name`` by number, the newest first."""
    found = {version.version: version for version in versions.versions_of(client, name)}
    if not found:
        raise RegistryError(
            f"there is no registered model {name!r}; `albert models` shows those there are"
        )
    return found


def _version(client: MlflowClient, name: str, number: str) -> versions.RegisteredVersion:
    found = _versions(client, name)
    if number not in found:
        raise RegistryError(
            f"{name} has no version {number}; `albert models {name}` shows those there are"
        )
    return found[number]


def _decision_of(version: versions.RegisteredVersion) -> str:
    verdict = version.tags.get(f"{versions.DECISION_TAG}.verdict", "")
    said = f"{verdict}: {version.tags[versions.DECISION_TAG]}" if verdict else "not decided yet"
    by_hand = version.tags.get(versions.MOVED_TAG)
    return said + (f"; champion by hand, {by_hand}" if by_hand else "")
