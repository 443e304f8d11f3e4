"""Only one process at a time decides who is champion of a registered model.

MLflow has no lock, so that one is made of tags: each who wants to decide writes a claim under a
key of his own and then reads all claims. Who finds only his own goes on; of several, the first by
key waits and the others withdraw and try again. Two can't both find themselves alone: of two
claims, the one that was written second is written before its writer reads, and so finds the other.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

CLAIM = "promotion_claim."
"""What the key of a claim's tag begins with."""
STALE_SECONDS = 90.0
"""A claim that stays as it is for so long is a dead process's: who waits renews his own, and what
is done under one takes seconds."""
_WAIT_SECONDS = 0.25

log = logging.getLogger(__name__)


@contextmanager
def promotion_lock(
    client: MlflowClient, name: str, stale_seconds: float = STALE_SECONDS
) -> Iterator[None]:
    """Wait until no other process decides about the registered model ``name``; then hold it off.

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
        yield
    finally:
        _withdraw(client, name, own)


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
