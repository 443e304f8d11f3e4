"""What a process wants MLflow to know, on disk until the server has it.

Each `TrackedRun` has a journal: a file of its own with a line of JSON for each entry, the first of
which says whose it is. Its process holds a lock on it, which the system releases however the
process ends: a journal without a lock was left behind, and whoever finds it may send it.
"""

import errno
import fcntl
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from albert_core.stage import storage
from albert_core.stage.manifest import digest_of

JOURNALS = "mlflow_journals"
"""Folder in the work folder."""

_CHUNK_BYTES = 1 << 20

Entry = dict[str, Any]


def journal_folder(work: str) -> Path:
    """Return where the journals of all runs in ``work`` are.

    A journal is appended to, which object stores can't: for a ``work`` that is not on this machine
    they are in its folder for temporary files.
    """
    local = storage.local_path(work)
    if local is None:
        return Path(tempfile.gettempdir(), f"albert-{digest_of(work)[:12]}", JOURNALS)
    return local.absolute() / JOURNALS


class Journal:
    """A file of entries, locked by this process. See `begin` and `claim`."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.num_entries = 0
        """Appended by this process."""
        self._file = file
        self._writing = threading.Lock()
        self._is_torn = False

    @classmethod
    def begin(cls, work: str, folder: str, header: Mapping[str, Any]) -> Self:
        """Return a new journal.

        Args:
            work: folder for all results.
            folder: the stage's, whose run it is.
            header: its first entry.

        Raises:
            OSError: it can't be written.
        """
        name = f"{_label(folder)}~{time.time_ns()}-{storage.process_name()}.jsonl"
        place = journal_folder(work)
        place.mkdir(parents=True, exist_ok=True)
        passing = place / f".{name}"
        file = passing.open("x+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        journal = cls(place / name, file)
        try:
            journal.append(header)
        except OSError:
            passing.unlink()
            journal.release()
            raise
        passing.rename(journal.path)  # nobody has seen it without its lock and its header
        return journal

    @classmethod
    def claim(cls, path: Path) -> Self | None:
        """Return the journal at ``path``, or None if it is a living process's, or gone."""
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if not path.exists():  # sent by another process in the meantime
            file.close()
            return None
        return cls(path, file)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry, with the time, to the end.

        It is in the system's hands then: it survives this process, but not a loss of power.

        Raises:
            OSError: the disk is full, or gone.
        """
        line = (json.dumps({"time": int(time.time() * 1000), **entry}) + "\n").encode()
        number = self._file.fileno()
        with self._writing:
            line = b"\n" + line if self._is_torn else line
            self._is_torn = True  # until all of it is there
            written = os.pwrite(number, line, os.fstat(number).st_size)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._is_torn = False
            self.num_entries += 1

    def read(self, position: int) -> list[tuple[Entry, int]]:
        """Return the next entries from ``position`` on, each with the position after it.

        Half a line at the end is not read: its process was killed, or is still writing. One amid
        the others, of a disk that was full for a while, is an empty entry.
        """
        chunk = os.pread(self._file.fileno(), _CHUNK_BYTES, position)
        while b"\n" not in chunk and len(chunk) and not len(chunk) % _CHUNK_BYTES:
            chunk += os.pread(self._file.fileno(), _CHUNK_BYTES, position + len(chunk))
        found = []
        for line in chunk[: chunk.rfind(b"\n") + 1].splitlines(keepends=True):
            position += len(line)
            found.append((_parsed(line), position))
        return found

    def remove(self) -> None:
        """Remove the file: all of it has arrived."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def release(self) -> None:
        """Leave the file to others."""
        self._file.close()


def journals_of(work: str, folder: str = "") -> list[Path]:
    """Return the journals in ``work``, the oldest first; of one stage's folder if it is given."""
    label = re.sub(r"([*?[])", r"[\1]", _label(folder)) if folder else "*"
    glob = journal_folder(work).glob(f"{label}~*.jsonl")
    found = [path for path in glob if not path.name.startswith(".")]  # those have no header yet
    return sorted(found, key=lambda path: path.name.rpartition("~")[2])


def _parsed(line: bytes) -> Entry:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _label(folder: str) -> str:
    """Return the stage and the key of a stage's folder, as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", "-".join(folder.rstrip("/").split("/")[-2:]))
