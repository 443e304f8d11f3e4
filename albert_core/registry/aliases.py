"""Which version is candidate, champion and previous, and how they change places."""

from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.registry.thread_safety import check_is_right
from albert_core.stage.errors import RegistryError

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
