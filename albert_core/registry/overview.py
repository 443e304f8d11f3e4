"""What is in the registry, why, and who is champion: what `albert models` shows and moves.

A version keeps the code that it was registered with. Some old ones carry a word table without a
lock: where two threads meet new words at the same time, both get a wrong number, and the model
answers wrongly from then on, or fails. MLflow's server has several threads, so such a version is
marked, and nobody makes it champion. Only models that answer by spans never use that table.
"""

import json
import shlex
import tempfile
from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.registry.champion import PREVIOUS, make_champion, promotion_lock
from albert_core.registry.registration import (
    DECISION_TAG,
    FAULT,
    MOVED_TAG,
    RIGHT,
    THREADS_TAG,
    has_lock,
)
from albert_core.registry.versions import (
    MANIFEST_TAG,
    RegisteredVersion,
    champion_of,
    every,
    fetch,
    open_registry,
    registered_versions,
    version_with,
)
from albert_core.stage.errors import RegistryError

ROLLING_BACK_TAG = "rolling_back_to"
"""Of the registered model: the version that a roll-back makes champion, until it is done."""
_WORD_TABLE_FILE = "code/albert_core/contract/word_table.py"
_TASK_FILE = "artifacts/model/task.json"


def list_models(work: str) -> str:
    """Return a line for each registered model: its name and its champion.

    Args:
        work: folder whose registry is meant where the environment names no server.

    Raises:
        RegistryError: the registry does not answer.
    """
    with open_registry(work) as client:
        names = sorted(model.name for model in every(client.search_registered_models))
        return "\n".join(f"{name:<32}{_champion(client, name)}" for name in names) or "none"


def list_versions(name: str, work: str) -> str:
    """Return a line for each version of ``name``, the newest first.

    Raises:
        RegistryError: there is none, or the registry does not answer.
    """
    with open_registry(work) as client:
        lines = [
            f"{version.version:>4}  {', '.join(version.aliases) or '-':<20}"
            f"{float(version.tags.get('score', 'nan')):>7.4f}  {_decision_of(version)}"
            f"{_mark(client, version)}"
            for version in _versions(name, work).values()
        ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def explain_version(name: str, number: str, work: str) -> str:
    """Return why a version of ``name`` is champion or not, task by task.

    Raises:
        RegistryError: there is no such version, or the registry does not answer.
    """
    version = _version(name, number, work)
    against = version.tags.get(f"{DECISION_TAG}.against", "")
    lines = [f"{name}, version {number}: {_decision_of(version)}"]
    for task in json.loads(version.tags.get(f"{DECISION_TAG}.tasks", "[]")):
        fell = "  fell" if task["fell"] else ""
        lines.append(
            f"  {task['task']:<12} {task['candidate']:.4f} against {task['champion']:.4f} of "
            f"version {against}: {task['difference']:+.4f} [{task['low']:+.4f}, "
            f"{task['high']:+.4f}]{fell}"
        )
    with open_registry(work) as client:
        if fault := _fault_of(client, version):
            lines.append(f"It {fault}." + (f" {_remedy(version)}" if fault == FAULT else ""))
    return "\n".join(lines)


def promote_version(name: str, number: str, reason: str, work: str) -> str:
    """Make a version champion because a person says so; return a sentence.

    Raises:
        RegistryError: there is no such version, it is champion already, its code is wrong for
            several threads, no reason is given, or the registry does not answer.
    """
    version = _version(name, number, work)
    if not reason.strip():
        raise RegistryError(f"{name}: give a reason for the promotion, which is kept with it")
    with open_registry(work) as client, promotion_lock(client, name):
        return _promote(client, version, reason)


def roll_back_to(name: str, number: str | None, reason: str, work: str) -> str:
    """Make the previous champion, or a version, champion again; return a sentence.

    The present champion becomes the previous one, so that a second roll-back undoes the first.

    Raises:
        RegistryError: there is no previous champion, no such version, its code is wrong for
            several threads, or the registry does not answer.
    """
    _versions(name, work)
    with open_registry(work) as client, promotion_lock(client, name):
        if number is None:  # after one that was killed, the aliases may be half moved
            champion = champion_of(client, name)
            begun = client.get_registered_model(name).tags.get(ROLLING_BACK_TAG)
            if begun and (champion is None or champion.version != begun):
                number = begun
            elif previous := version_with(client, name, PREVIOUS):
                number = previous.version
            else:
                raise RegistryError(
                    f"{name} has no previous champion to roll back to; name a version with --to"
                )
        version = _version(name, number, work)
        client.set_registered_model_tag(name, ROLLING_BACK_TAG, number)
        try:
            return _promote(client, version, f"rolled back: {reason}")
        finally:
            client.delete_registered_model_tag(name, ROLLING_BACK_TAG)


def _promote(client: MlflowClient, version: RegisteredVersion, reason: str) -> str:
    name, number = version.name, version.version
    champion = champion_of(client, name)
    if champion is not None and champion.version == number:
        raise RegistryError(f"version {number} of {name} is champion already")
    if not is_right(client, version):
        raise RegistryError(f"version {number} of {name} {FAULT}. {_remedy(version)}")
    instead = "" if champion is None else f" instead of version {champion.version}"
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    client.set_model_version_tag(name, number, MOVED_TAG, f"{at}{instead}: {reason}")
    make_champion(client, version)
    return f"{name}: version {number} is champion{instead}"


def is_right(client: MlflowClient, version: RegisteredVersion) -> bool:
    """Return whether ``version`` gives each of several threads the answers that one would get.

    For a version without `THREADS_TAG` a file or two of a few kB are read. One that does not carry
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


def _fault_of(client: MlflowClient, version: RegisteredVersion) -> str:
    """Return what is wrong with the code of ``version``, as a verb and more; "" if nothing is."""
    try:
        return "" if is_right(client, version) else FAULT
    except (MlflowException, OSError) as error:
        return f"has code that can't be read now ({type(error).__name__})"


def _mark(client: MlflowClient, version: RegisteredVersion) -> str:
    fault = _fault_of(client, version)
    return f"; {fault}" if fault else ""


def _remedy(version: RegisteredVersion) -> str:
    """Return what the owner of a version whose code is wrong can do."""
    finetuning = version.tags.get(f"{MANIFEST_TAG}finetuning", "<manifest>").partition(", ")[0]
    work = finetuning.rpartition("/finetuning/")[0] or "<work>"
    name = shlex.quote(version.name)
    return (
        "Register its fine-tuning again with the present code: `python -m "
        f"albert_core.registry.register_finetuned --recipe={work}/recipes/<...>.json "
        f"--finetuning={finetuning} --name={name} --work={work}`. If the gate finds the new "
        f"version no better than this one, `albert promote {name} <its number> --work={work} "
        "--reason=...` makes it champion. Then restart its servers."
    )


def _read(client: MlflowClient, version: RegisteredVersion, path: str) -> str | None:
    """Return the text of a file of the version; None if there is none."""
    with tempfile.TemporaryDirectory() as scratch:
        found = fetch(client, version, path, scratch)
        return found.read_text(encoding="utf-8") if found else None


def _versions(name: str, work: str) -> dict[str, RegisteredVersion]:
    """Return the versions of ``name`` by number, the newest first."""
    found = {each.version: each for each in registered_versions(work) if each.name == name}
    if not found:
        raise RegistryError(
            f"there is no registered model {name!r}; `albert models` shows those there are"
        )
    return found


def _version(name: str, number: str, work: str) -> RegisteredVersion:
    found = _versions(name, work)
    if number not in found:
        raise RegistryError(
            f"{name} has no version {number}; `albert models {name}` shows those there are"
        )
    return found[number]


def _champion(client: MlflowClient, name: str) -> str:
    champion = champion_of(client, name)
    if champion is None:
        return "no champion"
    return f"champion: version {champion.version}{_mark(client, champion)}"


def _decision_of(version: RegisteredVersion) -> str:
    verdict = version.tags.get(f"{DECISION_TAG}.verdict", "")
    said = f"{verdict}: {version.tags[DECISION_TAG]}" if verdict else "not decided yet"
    by_hand = version.tags.get(MOVED_TAG)
    return said + (f"; champion by hand, {by_hand}" if by_hand else "")
