"""The smallest stage, for tests of engines: a file for each number, then one for each remainder.

Its workers say what befell them by their names in the folder: it can be slow, fail, or end the
process that runs it.
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import SourceError
from albert_core.stage.settings import Settings
from pipelines.engine import steps
from pipelines.engine.runner import run_pipeline
from pipelines.engine.work_notes import Progress, report_done

NUM_GROUPS = 3


class ToySettings(Settings):
    """What the stage meets."""

    num_elements: int = 12
    seconds: float = 0.0
    """How long each element takes."""
    failing: int = -1
    """This element raises an AlbertError of two lines."""
    store_away_at: int = -1
    """At this element a store does not answer."""
    deadly: int = -1
    """This element kills the process that works on it, once."""
    always_deadly: bool = False


def run(toy: ToySettings, work: str) -> str:
    """Run the stage; return its manifest: a list of files and of the processes that wrote."""
    progress = Progress("toy: numbers", storage.join(work, "notes"), toy.num_elements)
    scratch = storage.join(work, "scratch")
    numbers = range(toy.num_elements)
    chain = [
        steps.each("WriteNumber", _write_number, toy, work),
        steps.group("ByRemainder"),
        steps.each("WriteGroup", _write_group, work),
    ]
    reports = run_pipeline("Toy", chain, numbers, scratch, progress)
    manifest = storage.join(work, "manifest.json")
    storage.write_bytes(manifest, "\n".join(report["uri"] for report in reports).encode())
    return manifest


@dataclass(frozen=True)
class Written:
    """A file; as an element it travels between workers, though this module may be `__main__`."""

    uri: str


def _write_number(number: int, toy: ToySettings, work: str) -> tuple[int, Written]:
    time.sleep(toy.seconds)
    if number == toy.failing:
        raise SourceError(f"number {number} is bad:\n  look at 'it'.\n  Mend it.")
    if number == toy.store_away_at:
        raise ConnectionResetError("the store is away")
    if number == toy.deadly and (toy.always_deadly or not Path(work, "died").exists()):
        storage.write_bytes(storage.join(work, "died"), b"")
        os.kill(os.getpid(), signal.SIGKILL)
    worker = f"{os.uname().nodename}-{os.getpid()}"
    storage.write_bytes(storage.join(work, "workers", f"{number}-{worker}"), b"")
    uri = storage.join(work, "numbers", str(number))
    storage.write_bytes(uri, f"{number}\n".encode())
    report_done(storage.join(work, "notes"), str(number), num_bytes=1, num_documents=1, num_files=1)
    return number % NUM_GROUPS, Written(uri)


def _write_group(group: tuple[int, Iterable[Written]], work: str) -> tuple[int, dict[str, Any]]:
    remainder, written = group
    uri = storage.join(work, "groups", str(remainder))
    uris = sorted(each.uri for each in written)
    storage.write_bytes(uri, b"".join(storage.read_bytes(uri) for uri in uris))
    return remainder, {"uri": uri}


if __name__ == "__main__":
    stage_main(run)
