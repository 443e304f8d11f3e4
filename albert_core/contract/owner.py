"""Who a process is, so that another one can name it and tell whether it is still there."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from albert_core.contract import storage


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
