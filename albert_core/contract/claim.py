"""Who makes what: of several processes that are to make the same result, one works, others wait.

A result's folder is claimed by name. On a file system that has locks the claim is one (flock, also
over NFS): the kernel frees it when its process ends, however that happens. Elsewhere, in an object
store above all, it is a lease; see `albert_core.contract.lease`.
"""

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from albert_core.contract import storage
from albert_core.contract.lease import Lease
from albert_core.contract.owner import Owner

CLAIMS = "claims"
"""The folder of all claims, in the work folder."""
_LOOK_SECONDS = 0.5
_FIRST_LINE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 300.0
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}

log = logging.getLogger(__name__)


class Claim(Protocol):
    """A name that one process at a time holds."""

    def take(self, owner: Owner) -> bool:
        """Hold the name, if nobody does; return whether it is held now."""

    def holder(self) -> Owner | None:
        """Return who holds the name; None if nobody does, or nobody said so."""

    def release(self) -> None:
        """Hold it no longer."""


class LockFile:
    """A claim by a lock of the kernel on a local file, with a file beside it that says whose."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path.with_name(f"{path.name}.lock"), thread_local=False)
        self._note = str(path.with_name(f"{path.name}.json"))

    def take(self, owner: Owner) -> bool:
        """Hold the name, if nobody does; return whether it is held now.

        Raises:
            OSError: the file system has no locks.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        storage.write_bytes(self._note, owner.to_json())
        return True

    def holder(self) -> Owner | None:
        """Return whose note lies there: the holder's, if anybody holds the name."""
        return Owner.read(self._note)

    def release(self) -> None:
        """Hold it no longer."""
        storage.remove(self._note)
        self._lock.release()


_held: dict[str, Claim] = {}


def take(work: str, name: str, is_done: Callable[[], bool]) -> bool:
    """Wait until no other process holds ``name``; then hold it till `release` or this one's end.

    All ranks of one training are one holder: the first takes the claim, the others wait for it.

    Args:
        work: the folder for all results.
        name: of what is to be made.
        is_done: whether another has made it meanwhile.

    Returns:
        Whether it is held: False if it was done instead.
    """
    uri = storage.join(work, CLAIMS, name)
    owner = Owner.this_process()
    claim: Claim = _held.get(uri) or _claim_at(uri)
    waiting = _Waiting(name)
    while uri not in _held:
        if is_done():
            return False
        if owner.rank:
            first = claim.holder()
            if first is not None and first.run == owner.run:
                return True
        else:
            try:
                if claim.take(owner):
                    _held[uri] = claim
                    break
            except OSError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
                claim = Lease(uri)
                continue
        waiting.pause(claim)
    return True


def release(work: str, name: str) -> None:
    """Let others have ``name``, if this process holds it."""
    claim = _held.pop(storage.join(work, CLAIMS, name), None)
    if claim is not None:
        claim.release()


def release_all() -> None:
    """Let others have all that this process holds; for its end."""
    while _held:
        _held.popitem()[1].release()


class _Waiting:
    """Pauses between two attempts, with a line in the log now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._next_line, self._between_lines = 0.0, _FIRST_LINE_SECONDS

    def pause(self, claim: Claim) -> None:
        waited = time.monotonic() - self._began
        if waited >= self._next_line:
            log.info(
                "%s is being made by %s: waiting, for %.0f s by now",
                self._name,
                claim.holder() or "another process",
                waited,
            )
            self._next_line = waited + self._between_lines
            self._between_lines = min(self._between_lines * 1.5, _LONGEST_PAUSE_SECONDS)
        time.sleep(_LOOK_SECONDS)


def _claim_at(uri: str) -> Claim:
    path = storage.local_path(uri)
    if path is None:
        return Lease(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    return LockFile(path)
