"""How much of its work a stage has done, told to the process that started it if that asks."""

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Self

PROGRESS = "progress: "
"""Prefix of a progress report in a stage's output."""
PROGRESS_ASKED_FOR = "ALBERT_REPORTS_PROGRESS"
"""Variable: set if the process that reads the output filters these lines out."""
_SECONDS_BETWEEN = 2.0

_last_time = -_SECONDS_BETWEEN


@dataclass(frozen=True)
class StageProgress:
    """How much of a stage's work is done."""

    done: float
    total: float
    unit: str
    """What is counted, such as steps or bytes."""

    @property
    def share(self) -> float:
        """The share that is done, 0..1."""
        return min(1.0, self.done / self.total) if self.total else 1.0

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """Parse a line that `report_progress` printed; None for any other line."""
        if not line.startswith(PROGRESS):
            return None
        try:
            return cls(**json.loads(line.removeprefix(PROGRESS)))
        except (ValueError, TypeError):
            return None


def report_progress(done: float, total: float, unit: str) -> None:
    """Print the progress if it is asked for, at most every two seconds."""
    global _last_time  # noqa: PLW0603 - a process has one output
    now = time.monotonic()
    if PROGRESS_ASKED_FOR not in os.environ or now - _last_time < _SECONDS_BETWEEN:
        return
    _last_time = now
    print(f"{PROGRESS}{json.dumps(asdict(StageProgress(done, total, unit)))}", flush=True)
