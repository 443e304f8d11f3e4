"""How far a stage is, as a line for the process that started it, when that asks for it.

The line is for a program; people read the stage's own lines.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Self

PROGRESS = "progress: "
"""What stands before a report on a line of a stage's output."""
ASKED_FOR = "ALBERT_REPORTS_PROGRESS"
"""Set where the process that reads the output takes such lines out."""
_SECONDS_BETWEEN = 2.0

_last_time = -_SECONDS_BETWEEN


@dataclass(frozen=True)
class StageProgress:
    """What is done of what is to do, in the stage's own units."""

    done: float
    total: float
    unit: str
    """For example steps, or bytes."""

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 1.0

    @classmethod
    def from_line(cls, line: str) -> Self | None:
        """Return what `report_progress` printed as ``line``; None of any other line."""
        if not line.startswith(PROGRESS):
            return None
        try:
            return cls(**json.loads(line.removeprefix(PROGRESS)))
        except (ValueError, TypeError):
            return None


def report_progress(done: float, total: float, unit: str) -> None:
    """Print how far the stage is, if it was asked to and did not do so just now."""
    global _last_time  # noqa: PLW0603 - of the process's one output
    now = time.monotonic()
    if ASKED_FOR not in os.environ or now - _last_time < _SECONDS_BETWEEN:
        return
    _last_time = now
    print(f"{PROGRESS}{json.dumps(asdict(StageProgress(done, total, unit)))}", flush=True)
