"""Notes that workers leave in the work folder: the progress of a stage, and what files hold.

Notes of progress are small; the driver adds them up while the stage runs, on every engine.

Files that later runs reuse have a note beside them, written last, with a checksum of each. Files
without a note are incomplete. Files with one are checked before reuse, because a disk, a copy or a
person may have changed them: damaged files are made again, and the log says so.
"""

import hashlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from albert_core.stage import manifest, storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.progress import report_progress

_FIRST_LINE_SECONDS = 2.0
_LINES_SLOW_DOWN = 1.1
"""The factor by which the time between lines grows: an hour has 50 lines, a night 90."""

log = logging.getLogger(__name__)


def report_done(
    folder: str, name: str, *, num_bytes: int, num_documents: int = 0, num_files: int = 0
) -> None:
    """Leave a note that a piece of work is done; called by workers.

    Args:
        folder: the `Progress`'s.
        name: of this piece of work alone, so that work done twice counts once.
        num_bytes: of input processed.
        num_documents: processed.
        num_files: finished.
    """
    _leave(folder, name, {"bytes": num_bytes, "documents": num_documents, "files": num_files})


def warn(folder: str, warning: str) -> None:
    """Leave a note that the driver logs as a warning; called by workers, which have no log.

    Args:
        folder: the `Progress`'s.
        warning: a sentence; the same one counts once.
    """
    digest = hashlib.sha256(warning.encode()).hexdigest()
    _leave(folder, f"warning-{digest[:16]}", {"warning": warning})


def _leave(folder: str, name: str, note: Mapping[str, Any]) -> None:
    storage.write_bytes(storage.join(folder, f"{name}.json"), json.dumps(note).encode())


class Progress:
    """Periodically logs the work done, its rate and the time left; and at the end the totals.

    Args:
        what: the stage and what it does, for the line.
        folder: where workers leave their notes; seen by all of them.
        total_bytes: of input in all.
    """

    def __init__(self, what: str, folder: str, total_bytes: int) -> None:
        self.what, self.folder, self.total_bytes = what, folder, total_bytes
        self._read: dict[str, Counter[str]] = {}
        self._begin = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None:
            log.info("%s", self.last_line())

    def line(self) -> str:
        """Return what is done by now, as one line."""
        done, seconds = self._sum(), self._seconds()
        if not done:
            return f"{self.what}: begun, nothing done yet"
        share = min(1.0, done["bytes"] / self.total_bytes) if self.total_bytes else 1.0
        left = f", about {_time(seconds / share - seconds)} left" if share else ""
        return f"{self.what}: {share:.0%}, {_counts(done)}, {_rate(done, seconds)}{left}"

    def last_line(self) -> str:
        """Return what was done in all, as one line."""
        done, seconds = self._sum(), self._seconds()
        return f"{self.what}: {_counts(done)} in {_time(seconds)}, {_rate(done, seconds)}"

    def _seconds(self) -> float:
        return max(time.monotonic() - self._begin, 1e-3)

    def _watch(self) -> None:
        pause = _FIRST_LINE_SECONDS
        while not self._over.wait(pause):
            pause *= _LINES_SLOW_DOWN
            try:
                log.info("%s", self.line())
                report_progress(self._sum()["bytes"], self.total_bytes, "bytes")
            except (OSError, ValueError) as error:  # counts are no reason to end a stage
                log.debug("%s: no counts now (%s)", self.what, error)

    def _sum(self) -> Counter[str]:
        """Add up the notes; each is read once, because repeated work leaves the same note."""
        for name in storage.list_names(self.folder):
            if name not in self._read and name.endswith(".json"):
                note = json.loads(storage.read_bytes(storage.join(self.folder, name)))
                if "warning" in note:
                    log.warning("%s: %s", self.what, note.pop("warning"))
                self._read[name] = Counter(note)
        return sum(self._read.values(), Counter())


def _counts(done: Counter[str]) -> str:
    units = (("files", "file"), ("documents", "document"))
    return ", ".join(f"{done[many]:,} {one if done[many] == 1 else many}" for many, one in units)


def _rate(done: Counter[str], seconds: float) -> str:
    rate = done["bytes"] / 1e6 / seconds
    return f"{rate:,.1f} MB/s" if rate >= 1 else f"{rate * 1e3:,.1f} kB/s"


def _time(seconds: float) -> str:
    """Return ``seconds`` as read aloud: 45 s, 12 min, 3 h 20 min."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def write_note(uri: str, names: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write the note at ``uri`` on files in its folder, which are complete by now.

    Args:
        uri: of the note.
        names: of the files.
        facts: numbers about them that JSON can hold.
    """
    checksums = {name: _checksum(_beside(uri, name)) for name in names}
    content = {"checksums": checksums, "facts": dict(facts)}
    storage.write_bytes(uri, manifest.sealed(content, indent=None))


def read_facts(uri: str) -> dict[str, Any]:
    """Return the facts in the note at ``uri``.

    Raises:
        IntegrityError: the note is damaged; the message says how.
    """
    facts: dict[str, Any] = manifest.unsealed(uri)["facts"]
    return facts


def damage(uri: str) -> str | None:
    """Return what is wrong with the note at ``uri`` or its files; None if they are as written."""
    try:
        note = manifest.unsealed(uri)
    except IntegrityError as error:
        return str(error)
    noted = note["checksums"]
    if sum(name.endswith(".arrow") for name in noted) < note["facts"].get("num_parts", 0):
        return f"{uri} lacks a part, which was deleted before it could be noted"
    for name, checksum in noted.items():
        file = _beside(uri, name)
        if not storage.exists(file):
            return f"{file} is missing"
        if _checksum(file) != checksum:
            return f"{file} changed after it was written"
    return None


def _beside(uri: str, name: str) -> str:
    return storage.join(uri.rpartition("/")[0], name)


def _checksum(uri: str) -> str:
    fs, path = storage.filesystem(uri)
    with fs.open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
