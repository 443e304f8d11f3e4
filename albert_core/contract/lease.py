"""A claim where there are no locks: a lease that its holder keeps renewing.

Each holder has a number, one more than the last one's, and a file of that number which only one
process can create. The highest number holds the claim. Its file is rewritten every few seconds; one
that stays as it is for `LEASE_SECONDS` of the onlooker's own clock, or whose process is gone from
the onlooker's machine, is nobody's, and the next number may be created. A holder that finds a
higher number, or its own file gone or another's, was taken for dead: it ends its process, to be
run again.
"""

import logging
import os
import re
import threading
import time
from dataclasses import replace

from albert_core.contract import storage
from albert_core.contract.owner import Owner

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
