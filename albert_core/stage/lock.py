"""Locks on results: of several processes that want the same result, one works and the others wait.

On a file system with locks (flock, also over NFS), a lock file is used. The kernel releases it when
the process ends, however it ends. Elsewhere, mainly in object stores, a lease is used, which its
holder keeps renewing.

Each holder of a lease creates a file with a number one above the last one, which only one process
can do. The highest number holds the lease and rewrites its file every few seconds. The lease is
free again if the file stays unchanged for `LEASE_SECONDS` on the observer's own clock, if by the
store's clock it has not changed for a day, or if the holder ran on the observer's machine and has
ended. A holder that finds a higher number, or its own file gone or rewritten by another process,
was presumed dead: it ends its process, to be run again. It looks when it renews, and before it
changes any file if it did not for long: it may have slept.
"""

import errno
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout
from pydantic import ValidationError

from albert_core.stage import settings, storage

CLAIMS = "claims"
"""The folder of all locks, in the work folder."""
RENEW_SECONDS = 15.0
LEASE_SECONDS = 90.0
_ABANDONED = timedelta(days=1)
"""Age of a file that nobody renews any more. Clocks of a store and its users differ by less."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
"""Error numbers of a file system that has no file locks."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that nobody sets, and that goes on while the machine is suspended."""
_LOOK_SECONDS = 0.5
_FIRST_LINE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 300.0
_NUMBER = re.compile(r"([0-9]{6,})\.json")

log = logging.getLogger(__name__)


class Owner(settings.Settings):
    """A process, possibly one rank of a training run."""

    host: str
    pid: int
    since: str
    """UTC time of the last renewal."""
    machine: str
    """`storage.pid_namespace`, because another container may use the same pid."""
    started: str
    """Start time in kernel ticks, because a pid can be reused."""
    run: str
    """An id shared by all ranks of one launch."""
    rank: int

    @classmethod
    def this_process(cls) -> Self:
        """Return this process at the present time."""
        environment = os.environ.get
        address = f"{environment('MASTER_ADDR', '')}:{environment('MASTER_PORT', '')}"
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=storage.pid_namespace(),
            started=_started(os.getpid()),
            run=environment("TORCHELASTIC_RUN_ID") or address,
            rank=int(environment("RANK", "0")),
        )

    @classmethod
    def load(cls, uri: str) -> Self | None:
        """Read the owner from ``uri``; None if the file is missing or half written."""
        try:
            return cls.model_validate_json(storage.read_bytes(uri))
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, uri: str) -> None:
        """Write the owner to ``uri``."""
        storage.write_bytes(uri, self.model_dump_json().encode())

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended, which only its own machine knows."""
        return self.machine == storage.pid_namespace() != "" and _started(self.pid) != self.started

    def __str__(self) -> str:
        """Describe the process for a person."""
        return f"process {self.pid} on {self.host}, since {self.since}"


def _started(pid: int) -> str:
    """Return when the process started; empty if it has ended or the kernel does not say."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


class Lease:
    """A lock made of files in the folder ``uri``, in any store that fsspec supports."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._seen: tuple[int, Owner | None] = (0, None)
        self._seen_at = 0.0
        self._number = 0
        self._looked_at = 0.0
        """When it was last sure to hold the lease."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, owner: Owner) -> bool:
        """Try to acquire the lease; return whether it was free."""
        newest, began = self._newest(), _seconds()
        if newest and not self._is_free(newest):
            return False
        number = newest + 1
        if not storage.create(self._file(number), owner.model_dump_json().encode()):
            return False
        if self._newest() != number:  # another process was faster
            storage.remove(self._file(number))
            return False
        self._number, self._looked_at = number, began
        self._over.clear()
        storage.before_change[self.uri] = partial(self._look_again, owner)
        self._thread = threading.Thread(target=self._renew, args=(owner,), daemon=True)
        self._thread.start()
        return True

    def holder(self) -> Owner | None:
        """Return the owner in the file with the highest number, if there is one."""
        newest = self._newest()
        return Owner.load(self._file(newest)) if newest else None

    def release(self) -> None:
        """Release the lease."""
        self._over.set()
        storage.before_change.pop(self.uri, None)
        if self._thread is not None:
            self._thread.join()
        for number in self._numbers():
            if number <= self._number:
                storage.remove(self._file(number))

    def _renew(self, owner: Owner) -> None:
        while not self._over.wait(RENEW_SECONDS):
            try:
                self._end_if_lost(owner)
                now = Owner.this_process().since
                owner.model_copy(update={"since": now}).write(self._file(self._number))
            except Exception as error:  # noqa: BLE001  the store may come back
                log.debug("%s: not renewed (%s)", self.uri, error)

    def _look_again(self, owner: Owner) -> None:
        if _seconds() - self._looked_at > 2 * RENEW_SECONDS:
            self._end_if_lost(owner)

    def _end_if_lost(self, owner: Owner) -> None:
        began = _seconds()
        if self._is_own(owner):
            self._looked_at = began
            return
        log.error(
            "%s: another process took over, because this one was silent for %.0f s. This one ends; "
            "run it again.",
            self.uri,
            LEASE_SECONDS,
        )
        os._exit(os.EX_TEMPFAIL)

    def _is_own(self, owner: Owner) -> bool:
        """Return whether this process still has the highest number, in a file of its own."""
        if self._newest() != self._number:
            return False
        found = Owner.load(self._file(self._number))
        return found is None or found.model_copy(update={"since": owner.since}) == owner

    def _is_free(self, number: int) -> bool:
        holder = Owner.load(self._file(number))
        if holder is not None and holder.has_ended():
            return True
        if (number, holder) != self._seen:
            self._seen, self._seen_at = (number, holder), _seconds()
            return self._is_abandoned(number)
        return _seconds() - self._seen_at > LEASE_SECONDS

    def _is_abandoned(self, number: int) -> bool:
        fs, path = storage.filesystem(self._file(number))
        with suppress(FileNotFoundError, NotImplementedError):  # released; a store without times
            return bool(datetime.now(UTC) - fs.modified(path) > _ABANDONED)
        return False

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        found = map(_NUMBER.fullmatch, storage.list_names(self.uri))
        return [int(match[1]) for match in found if match]

    def _file(self, number: int) -> str:
        return storage.join(self.uri, f"{number:06d}.json")


def _seconds() -> float:
    return time.clock_gettime(_CLOCK)


class LockFile:
    """A kernel lock on a local file, with a file beside it that names the holder."""

    def __init__(self, path: Path) -> None:
        # Without locks of the file system, `Lease` serves other hosts too; a soft lock does not.
        self._lock = FileLock(f"{path}.lock", thread_local=False, fallback_to_soft=False)
        self._note = f"{path}.json"

    def take(self, owner: Owner) -> bool:
        """Try to acquire the lock; return whether it was free.

        Raises:
            OSError: the file system does not support locks.
        """
        Path(self._note).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        owner.write(self._note)
        return True

    def holder(self) -> Owner | None:
        """Return the process that holds the lock, if there is one."""
        return Owner.load(self._note)

    def release(self) -> None:
        """Release the lock."""
        storage.remove(self._note)
        self._lock.release()


Claim = LockFile | Lease
_held: dict[str, Claim] = {}


def take(work: str, name: str, is_done: Callable[[], bool]) -> bool:
    """Wait for the lock ``name`` and acquire it, until `release` or the end of this process.

    All ranks of one training run share the lock: the first acquires it, the others wait for that.

    Args:
        work: the folder for all results.
        name: what is to be made; for a result or another file, its place in the work folder.
        is_done: whether another process has made it in the meantime.

    Returns:
        True if the lock is held, False if the work is done already.
    """
    uri = _uri_of(work, name)
    if uri in _held:
        return True
    claim = _claim_at(uri)
    began, next_line = time.monotonic(), 0.0
    while not is_done():
        claim, is_taken = _try(uri, claim)
        if is_taken:
            return True
        waited = time.monotonic() - began
        if waited >= next_line:
            holder = claim.holder() or "another process"
            log.info("%s is being made by %s: waiting, so far %.0f s", name, holder, waited)
            next_line = waited + min(max(waited / 2, _FIRST_LINE_SECONDS), _LONGEST_PAUSE_SECONDS)
        time.sleep(_LOOK_SECONDS)
    return False


def take_at_once(work: str, name: str) -> bool:
    """Acquire the lock ``name`` if no other process holds it; return whether it is held now."""
    uri = _uri_of(work, name)
    return uri in _held or _try(uri, _claim_at(uri))[1]


def _try(uri: str, claim: Claim) -> tuple[Claim, bool]:
    """Try to acquire ``claim`` at ``uri``, or a lease where the file system has no locks.

    Returns:
        The claim that was tried, and whether this process or the first rank of its run holds it.
    """
    owner = Owner.this_process()
    if owner.rank:
        first = claim.holder()
        return claim, first is not None and first.run == owner.run
    try:
        is_taken = claim.take(owner)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        claim = Lease(uri)
        is_taken = claim.take(owner)
    if is_taken:
        _held[uri] = claim
    return claim, is_taken


def is_noted(work: str, name: str) -> bool:
    """Return whether the lock ``name`` has a holder that is not known to have ended.

    This needs no right to write. What another machine was making when it crashed has one too.
    """
    holder = _claim_at(_uri_of(work, name)).holder()
    return holder is not None and not holder.has_ended()


def is_left(work: str, name: str) -> bool:
    """Return whether a process that held the lock ended without `release`; acquire it if so."""
    return _claim_at(_uri_of(work, name)).holder() is not None and take_at_once(work, name)


def release(work: str, name: str) -> None:
    """Release the lock ``name`` if this process holds it."""
    if claim := _held.pop(_uri_of(work, name), None):
        claim.release()


def release_all() -> None:
    """Release all locks of this process, which is about to end."""
    while _held:
        with suppress(Exception):  # a disk or store that fails: they end with the process
            _held.popitem()[1].release()


def deleted() -> str:
    """Return the URI of a local lock that this process holds, and somebody deleted; "" if none."""
    for uri, claim in _held.items():
        with suppress(OSError):  # the disk fails
            if isinstance(claim, LockFile) and claim.holder() is None:
                return uri
    return ""


def _uri_of(work: str, name: str) -> str:
    return storage.join(work, CLAIMS, name.replace("/", "-"))


def _claim_at(uri: str) -> Claim:
    path = storage.local_path(uri)
    return Lease(uri) if path is None else LockFile(path)
