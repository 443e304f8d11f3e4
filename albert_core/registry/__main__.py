"""What is in the registry, why, and who is champion: ``python -m albert_core.registry``.

list      names; of one name all versions with aliases, score and what the gate decided
decision  why a version is champion or not, task by task
promote   make a version champion by hand, for a reason that is kept with it
rollback  make the previous champion, or the version of --to, champion again
"""

import argparse
import json
import sys
from collections.abc import Sequence

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from albert_core.registry.aliases import MOVED_TAG, champion_of, promote_by_hand, roll_back
from albert_core.registry.champion import DECISION_TAG
from albert_core.registry.promotion_lock import promotion_lock
from albert_core.registry.thread_safety import FAULT, fault_of, remedy
from albert_core.registry.versions import named, registry_errors
from albert_core.stage.environment import work_folder
from albert_core.stage.errors import AlbertError, RegistryError
from albert_core.tracking.server import open_client

_FAILED = 2
_MANY = 1000


def main(argv: Sequence[str]) -> int:
    """Do what the command line says, print it, return the process's status."""
    options = _parser().parse_args(argv)
    try:
        work = work_folder(options.work)
        with registry_errors(work):
            print(_answer(open_client(work), options))
    except AlbertError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    return 0


def listing(client: MlflowClient, name: str) -> str:
    """Return a line for each version of ``name``, the newest first.

    Raises:
        RegistryError: there is none.
    """
    lines = [
        f"{version.version:>4}  {', '.join(version.aliases) or '-':<20}"
        f"{float(version.tags.get('score', 'nan')):>7.4f}  {_decision_of(version)}"
        f"{_mark(client, version)}"
        for version in _versions(client, name)
    ]
    return "\n".join([f"{'':>4}  {'alias':<20}{'score':>7}  decision", *lines])


def explanation(client: MlflowClient, name: str, number: str | None) -> str:
    """Return why a version of ``name``, the newest without a number, is champion or not.

    Raises:
        RegistryError: there is no such version.
    """
    versions = _versions(client, name)
    found = [each for each in versions if number in (None, str(each.version))]
    if not found:
        raise RegistryError(f"{name} has no version {number}; `list {name}` shows those there are")
    version = found[0]
    fault = fault_of(client, version)
    against = version.tags.get(f"{DECISION_TAG}.against", "")
    lines = [f"{name}, version {version.version}: {_decision_of(version)}"]
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


def _answer(client: MlflowClient, options: argparse.Namespace) -> str:
    name: str = options.name
    if options.command == "list":
        return listing(client, name) if name else _names(client)
    if options.command == "decision":
        return explanation(client, name, options.version)
    _versions(client, name)  # says so if there is none
    with promotion_lock(client, name):
        if options.command == "promote":
            return promote_by_hand(client, name, options.version, options.reason)
        return roll_back(client, name, options.to, options.reason)


def _names(client: MlflowClient) -> str:
    names = sorted(model.name for model in client.search_registered_models(max_results=_MANY))
    return "\n".join(f"{name:<32}{_champion(client, name)}" for name in names) or "none"


def _champion(client: MlflowClient, name: str) -> str:
    champion = champion_of(client, name)
    if champion is None:
        return "no champion"
    return f"champion: version {champion.version}{_mark(client, champion)}"


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    found = client.search_model_versions(named(name), max_results=_MANY)
    if not found:
        raise RegistryError(f"there is no registered model {name!r}; `list` shows those there are")
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m albert_core.registry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--work",
        help="folder whose registry is meant when MLFLOW_TRACKING_URI names none (ALBERT_WORK, "
        "else 'work')",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="names, or all versions of one")
    listed.add_argument("name", nargs="?", default="")
    decided = commands.add_parser("decision", help="why a version is champion or not")
    decided.add_argument("name")
    decided.add_argument("version", nargs="?", help="default: the newest")
    promoted = commands.add_parser("promote", help="make a version champion by hand")
    promoted.add_argument("name")
    promoted.add_argument("version")
    promoted.add_argument("--reason", required=True, help="kept with the version")
    rolled = commands.add_parser("rollback", help="make the previous champion champion again")
    rolled.add_argument("name")
    rolled.add_argument("--to", metavar="VERSION", help="default: the previous champion")
    rolled.add_argument("--reason", default="no reason given", help="kept with the version")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
