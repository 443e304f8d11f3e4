"""Who is champion: the aliases of a registered model, and the lock under which they move.

Only one process at a time decides who is champion of a registered model. MLflow has no lock, so
this one is made of tags. Each process that wants to decide writes a claim under a key of its own
and then reads all claims. A process that finds only its own claim goes on. Of several, the first by
key waits, and the others withdraw and try again. Two processes cannot both find themselves alone:
of two claims, the second one is written before its writer reads, so its writer finds the first.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from albert_core.registry.versions import CHAMPION, RegisteredVersion, champion_of, version_with

CANDIDATE, PREVIOUS = "candidate", "previous"
"""The newest model that is not champion; the champion before the present one."""
CLAIM = "promotion_claim."
"""What the key of a claim's tag begins with."""
STALE_SECONDS = 90.0
"""A claim that is not renewed for so long belongs to a dead process."""
_WAIT_SECONDS = 0.25

log = logging.getLogger(__name__)


def is_champion(client: MlflowClient, version: RegisteredVersion) -> bool:
    """Return whether ``version`` is champion now."""
    champion = champion_of(client, version.name)
    return champion is not None and champion.version == version.version


def make_candidate(client: MlflowClient, version: RegisteredVersion) -> None:
    """Call ``version`` the candidate, instead of the one before it."""
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)


def make_champion(client: MlflowClient, version: RegisteredVersion) -> None:
    """Move the champion to previous, and ``version`` to champion; it is candidate no more."""
    name, number = version.name, version.version
    champion, candidate = champion_of(client, name), version_with(client, name, CANDIDATE)
    if champion is not None and champion.version != number:
        client.set_registered_model_alias(name, PREVIOUS, champion.version)
    client.set_registered_model_alias(name, CHAMPION, number)
    if candidate is not None and candidate.version == number:
        client.delete_registered_model_alias(name, CANDIDATE)


@contextmanager
def promotion_lock(
    client: MlflowClient, name: str, stale_seconds: float = STALE_SECONDS
) -> Iterator[None]:
    """Wait until no other process decides about the registered model ``name``; keep others out.

    Args:
        client: of the registry.
        name: of the registered model, which exists.
        stale_seconds: how long another's claim may stand before it is removed.
    """
    own = CLAIM + uuid4().hex
    first_seen: dict[tuple[str, str], float] = {}
    try:
        while not _is_alone(client, name, own, first_seen, stale_seconds):
            time.sleep(_WAIT_SECONDS)
        with _renewing(client, name, own, stale_seconds / 3):
            yield
    finally:
        _withdraw(client, name, own)


@contextmanager
def _renewing(client: MlflowClient, name: str, own: str, seconds: float) -> Iterator[None]:
    """Renew the claim ``own`` again and again, so that nobody takes this process for dead."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(seconds):
            with suppress(MlflowException):  # an outage: the block will notice it too
                client.set_registered_model_tag(name, own, uuid4().hex)

    thread = threading.Thread(target=renew, name="promotion lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _is_alone(
    client: MlflowClient,
    name: str,
    own: str,
    first_seen: dict[tuple[str, str], float],
    stale_seconds: float,
) -> bool:
    """Write the claim ``own``; return whether it is the only one, and withdraw it if it must."""
    client.set_registered_model_tag(name, own, uuid4().hex)
    now = time.monotonic()
    tags = client.get_registered_model(name).tags
    others = {key for key in tags if key.startswith(CLAIM)} - {own}
    for key in others:
        if now - first_seen.setdefault((key, tags[key]), now) > stale_seconds:
            log.warning("%s: removed the claim of a process that is gone", name)
            _withdraw(client, name, key)
    if others and min(others) < own:
        _withdraw(client, name, own)
    return not others


def _withdraw(client: MlflowClient, name: str, key: str) -> None:
    try:
        client.delete_registered_model_tag(name, key)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
