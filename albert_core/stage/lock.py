"""Who makes what: of several processes that are to make the same result, one works, others wait.

A result's folder is claimed by name. On a file system that has locks the claim is one (flock, also
over NFS): the kernel frees it when its process ends, however that happens. Elsewhere, in an object
store above all, it is a lease, which its holder keeps renewing.

Each holder has a number, one more than the last one's, and a file of that number which only one
process can create. The highest number holds the claim. Its file is rewritten every few seconds; one
that stays as it is for `LEASE_SECONDS` of the onlooker's own clock, or whose process is gone from
the onlooker's machine, is nobody's, and the next number may be created. A holder that finds a
higher number, or its own file gone or another's, was taken for dead: it ends its process, to be
run again.
"""

import errno
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, Self

from filelock import FileLock, Timeout

from albert_core.stage import storage


@dataclass(frozen=True)
class Owner:
    """A process, one of the ranks of a training perhaps."""

    host: str
    pid: int
    since: str
    """When it said so, UTC."""
    machine: str
    """The boot of a kernel and the space of its process numbers: two containers differ."""
    started: str
    """When the process began, in the kernel's ticks: a number that is used again differs."""
    run: str = ""
    """What all ranks of one launch have in common."""
    rank: int = 0

    @classmethod
    def this_process(cls) -> Self:
        """Return this process, now."""
        environment = os.environ.get
        address = f"{environment('MASTER_ADDR', '')}:{environment('MASTER_PORT', '')}"
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=storage.machine(),
            started=_started(os.getpid()),
            run=environment("TORCHELASTIC_RUN_ID") or address,
            rank=int(environment("RANK", "0")),
        )

    @classmethod
    def read(cls, uri: str) -> Self | None:
        """Return who wrote the file at ``uri``; None if it is absent or half written."""
        try:
            return cls.from_json(storage.read_bytes(uri))
        except FileNotFoundError:
            return None

    @classmethod
    def from_json(cls, content: bytes) -> Self | None:
        """Return what `to_json` gave; None if it is only a part of that."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    def to_json(self) -> bytes:
        """Return it as JSON, in bytes."""
        return json.dumps(asdict(self)).encode()

    def is_gone(self) -> bool:
        """Return whether the process is known to have ended; only its own machine knows."""
        return self.machine == storage.machine() != "" and _started(self.pid) != self.started

    def __str__(self) -> str:
        """Name it for a person."""
        return f"process {self.pid} on {self.host}, since {self.since}"


def _started(pid: int) -> str:
    """Return when the process began; empty if it has ended, or the kernel does not say."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


RENEW_SECONDS = 15.0
LEASE_SECONDS = 90.0
_FILE = "{:06d}.json"
_NUMBER = re.compile(r"([0-9]{6,})\.json")

log = logging.getLogger(__name__)


class Lease:
    """A claim as files in the folder at ``uri``, of any store that fsspec knows."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._seen: tuple[int, bytes] = (0, b"")
        self._seen_at = 0.0
        self._number = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, owner: Owner) -> bool:
        """Hold the name, if nobody does; return whether it is held now."""
        newest = self._newest()
        if newest and not self._is_nobodys(newest):
            return False
        number = newest + 1
        if not storage.create(self._file(number), owner.to_json()):
            return False
        if self._newest() != number:  # another began anew while this looked
            storage.remove(self._file(number))
            return False
        self._number = number
        self._over.clear()
        self._thread = threading.Thread(target=self._renew, args=(owner,), daemon=True)
        self._thread.start()
        return True

    def holder(self) -> Owner | None:
        """Return who wrote the file with the highest number, if there is one."""
        newest = self._newest()
        return Owner.read(self._file(newest)) if newest else None

    def release(self) -> None:
        """Hold it no longer."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for number in self._numbers():
            if number <= self._number:
                storage.remove(self._file(number))

    def _renew(self, owner: Owner) -> None:
        while not self._over.wait(RENEW_SECONDS):
            try:
                is_own = self._is_own(owner)
                if is_own:
                    now = Owner.this_process().since
                    storage.write_bytes(
                        self._file(self._number), replace(owner, since=now).to_json()
                    )
            except Exception as error:  # noqa: BLE001  a store that is away comes back
                log.debug("%s: not renewed (%s)", self.uri, error)
                continue
            if not is_own:
                log.error(
                    "%s: another process took over, for this one was silent for %.0f s. This one "
                    "ends; run it again.",
                    self.uri,
                    LEASE_SECONDS,
                )
                os._exit(os.EX_TEMPFAIL)

    def _is_own(self, owner: Owner) -> bool:
        """Return whether the highest number is this one's, and not given to another since."""
        if self._newest() != self._number:
            return False
        found = Owner.read(self._file(self._number))
        return found is None or replace(found, since=owner.since) == owner

    def _is_nobodys(self, number: int) -> bool:
        try:
            content = storage.read_bytes(self._file(number))
        except FileNotFoundError:
            return False  # let go of just now; look again
        holder = Owner.from_json(content)
        if holder is not None and holder.is_gone():
            return True
        if (number, content) != self._seen:
            self._seen, self._seen_at = (number, content), time.monotonic()
        return time.monotonic() - self._seen_at > LEASE_SECONDS

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        found = map(_NUMBER.fullmatch, storage.list_names(self.uri))
        return [int(match.group(1)) for match in found if match]

    def _file(self, number: int) -> str:
        return storage.join(self.uri, _FILE.format(number))


CLAIMS = "claims"
"""The folder of all claims, in the work folder."""
_LOOK_SECONDS = 0.5
_FIRST_LINE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 300.0
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}


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
