"""Registered versions: found by address or listed, and moved to champion, one process at a time.

A version is self-contained: it has the model folder in Hugging Face's layout, the code that
`mlflow.pyfunc` runs on it, and copies of every manifest before it, so that the work folder need not
be there. Its tags name the place and the URI of these manifests. Its run is the one that trained
it. The run of an old version is that of its registration, which has the manifests instead.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.stage import errors, servers
from albert_core.stage.lineage import place_in
from albert_core.stage.results import CHAMPION
from albert_core.tracking import server

CANDIDATE, PREVIOUS = "candidate", "previous"
"""Aliases: of the newest version that is not champion, and of the champion before the present."""
MANIFEST_TAG = "manifest."
DECISION_TAG = "decision"
"""Tag with the gate's reason. Tags named `decision.NAME` hold the other parts of the decision."""
VERDICT_TAG = f"{DECISION_TAG}.verdict"
MOVED_TAG = "champion_by_hand"
"""Tag that says when and why a person made a version champion."""
CLAIM = "promotion_claim."
"""Prefix of the tags by which processes claim the promotion lock."""
STALE_SECONDS = 90.0
"""A claim that is not renewed for so long belongs to a dead process."""
_WAIT_SECONDS = 0.25
ROLLING_BACK_TAG = "rolling_back_to"
"""Tag of the registered model: the version that a roll-back makes champion, until it is done."""

log = logging.getLogger(__name__)


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


@contextmanager
def open_registry(work: str, *, creates: bool = False) -> Iterator[MlflowClient]:
    """Give a client of the registry; MLflow's errors become `RegistryError`.

    Args:
        work: folder for all results.
        creates: whether to create the registry if there is none.

    Raises:
        RegistryError: there is none, it refuses, or it does not answer.
    """
    if not (creates or has_registry(work)):
        raise errors.RegistryError(
            f"there is no registry at {servers.shown_tracking_uri(work)}: no model was registered "
            f"in this work folder. Give --work, or set {servers.TRACKING_URI}."
        )
    try:
        yield server.open_client(work)
    except MlflowException as error:
        advice = f"{error}. Check {servers.TRACKING_URI} and that its server runs."
        raise errors.RegistryError(
            f"the registry at {servers.shown_tracking_uri(work)} refuses or does not answer: "
            f"{errors.explained(error) or advice}"
        ) from error


def has_registry(work: str) -> bool:
    """Return whether there is a registry to ask: a server that is named, or a file in ``work``."""
    file = servers.database_file(servers.registry_uri(work))
    return file is None or file.exists()


def registered_versions(work: str) -> list[RegisteredVersion]:
    """Return all versions of all names, the newest first; none if there is no registry.

    Raises:
        RegistryError: the registry does not answer.
    """
    if not has_registry(work):
        return []
    with open_registry(work) as client:
        return versions_of(client)


def versions_of(client: MlflowClient, name: str = "") -> list[RegisteredVersion]:
    """Return all versions of ``name``, or of all names, the newest first."""
    condition = f'name = "{name}"' if name else None
    models = every_entry(partial(client.search_registered_models, condition))
    aliases = {model.name: model.aliases for model in models}
    versions = list(every_entry(partial(client.search_model_versions, condition)))
    versions.sort(key=lambda version: (version.name, -int(version.version)))
    return [_described(version, aliases.get(version.name, {})) for version in versions]


def version_with(client: MlflowClient, name: str, alias: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that has the alias, or None.

    Raises:
        RegistryError: the alias is that of no version. A model would else seem to have no champion,
            and the next candidate be the first.
    """
    if found := _found(client.get_model_version_by_alias, name, alias):
        return found
    with server.suppress_codes(*server.ABSENT):
        number = client.get_registered_model(name).aliases.get(alias)
        if number is not None and numbered_version(client, name, str(number)) is None:
            raise errors.RegistryError(
                f"the alias {alias!r} of {name} is that of version {number}, which is not there: "
                "the registry is damaged. Restore a backup of it, or delete the alias in MLflow "
                "and promote a version by hand."
            )
    return None


def numbered_version(client: MlflowClient, name: str, number: str) -> RegisteredVersion | None:
    """Return the version of ``name`` with this number, or None."""
    return _found(client.get_model_version, name, number)


def champion_of(client: MlflowClient, name: str) -> RegisteredVersion | None:
    """Return the version of ``name`` that is champion, or None."""
    return version_with(client, name, CHAMPION)


def _found(
    get: Callable[[str, str], ModelVersion], name: str, which: str
) -> RegisteredVersion | None:
    with server.suppress_codes(*server.ABSENT):
        version = get(name, which)
        return _described(version, dict.fromkeys(version.aliases, str(version.version)))
    return None


def _described(version: ModelVersion, aliases: Mapping[str, str]) -> RegisteredVersion:
    """Return ``version``; ``aliases`` are those of all versions of its name, by the alias."""
    number = str(version.version)  # a number from a database, text from a server
    own = sorted(alias for alias, other in aliases.items() if str(other) == number)
    return RegisteredVersion(
        str(version.name), number, tuple(own), str(version.run_id), version.tags
    )


def every_entry(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield the entries of every page of a search."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page


def make_candidate(client: MlflowClient, version: RegisteredVersion) -> None:
    """Call ``version`` the candidate, instead of the one before it."""
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)


def make_champion(client: MlflowClient, version: RegisteredVersion) -> None:
    """Move the champion to previous, and ``version`` to champion; it is nothing else any more.

    A roll-back to another version that was killed is not completed any more.
    """
    name, number = version.name, version.version
    if client.get_registered_model(name).tags.get(ROLLING_BACK_TAG, number) != number:
        client.delete_registered_model_tag(name, ROLLING_BACK_TAG)
    champion, candidate = champion_of(client, name), version_with(client, name, CANDIDATE)
    if champion is not None and champion.version != number:
        client.set_registered_model_alias(name, PREVIOUS, champion.version)
    client.set_registered_model_alias(name, CHAMPION, number)
    if candidate is not None and candidate.version == number:
        client.delete_registered_model_alias(name, CANDIDATE)
    if str(client.get_registered_model(name).aliases.get(PREVIOUS)) == number:
        client.delete_registered_model_alias(name, PREVIOUS)  # the champion before it was deleted


@contextmanager
def promotion_lock(
    client: MlflowClient, name: str, stale_seconds: float = STALE_SECONDS
) -> Iterator[Callable[[], None]]:
    """Wait until no other process decides about the registered model ``name``; keep others out.

    Give a function to call before a decision is written, which raises OutageError if another
    process has removed the claim of this one, because it slept.

    MLflow has no lock, so this one is made of tags. Each process that wants to decide writes a
    claim under a key of its own and then reads all claims. A process that finds only its own claim
    goes on. Of several, the first by key waits, and the others withdraw and try again. Two
    processes cannot both find themselves alone: of two claims, the second one is written before
    its writer reads, so its writer finds the first.

    Args:
        client: client of the registry.
        name: name of the registered model, which exists.
        stale_seconds: time without renewal after which another's claim is removed.
    """
    own, first_seen = CLAIM + uuid4().hex, dict[tuple[str, str], float]()
    is_over = threading.Event()

    def claim() -> None:
        client.set_registered_model_tag(name, own, uuid4().hex)

    check = partial(_check_claim, client, name, own)

    def renew() -> None:
        while not is_over.wait(stale_seconds / 3):
            with suppress(MlflowException, errors.OutageError):  # the block will notice it too
                check()
                claim()

    renewing = threading.Thread(target=renew, name="promotion lock", daemon=True)
    try:
        while True:
            claim()
            now, tags = time.monotonic(), client.get_registered_model(name).tags
            others = {key for key in tags if key.startswith(CLAIM)} - {own}
            if not others:
                break
            for key in others:
                if now - first_seen.setdefault((key, tags[key]), now) > stale_seconds:
                    log.warning("%s: removed the claim of a process that is gone", name)
                    _withdraw(client, name, key)
            if min(others) < own:
                _withdraw(client, name, own)
            time.sleep(_WAIT_SECONDS)
        renewing.start()
        yield check
    finally:
        is_over.set()
        if renewing.ident:
            renewing.join()
        _withdraw(client, name, own)


def _check_claim(client: MlflowClient, name: str, claim: str) -> None:
    if claim not in client.get_registered_model(name).tags:
        raise errors.OutageError(
            f"{name}: another process decides about it, because this one was silent for too long: "
            "run the same command again"
        )


def _withdraw(client: MlflowClient, name: str, claim: str) -> None:
    with server.suppress_codes(*server.ABSENT):
        client.delete_registered_model_tag(name, claim)
