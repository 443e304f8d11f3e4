"""Which Beam runner a stage runs on, with which options; live counts while it runs.

ALBERT_WORKERS        worker processes of the embedded runner (default: the cores there are)
ALBERT_BEAM_OPTIONS   Beam options that replace the embedded runner, e.g.
                      "--runner=PortableRunner --job_endpoint=flink:8099"
"""

import json
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from albert_core.contract import errors, storage
from albert_core.contract.errors import AlbertError
from albert_core.contract.stage_command import worker_count

WORKER_DIED = 75
"""Exit status (EX_TEMPFAIL) after a worker process died: running the stage again may help."""
_COUNT_SECONDS = 2.0
_RAISED_IN_WORKER = re.compile(r"albert_core\.contract\.errors\.(\w+): (.*?)(?: \[while running|$)")

log = logging.getLogger(__name__)


def _runner_and_options(scratch: str) -> tuple[PipelineRunner | None, PipelineOptions]:
    """Return the runner, or None when the options name one, and Beam's options."""
    if text := os.environ.get("ALBERT_BEAM_OPTIONS"):
        return None, PipelineOptions(shlex.split(text))
    workers = worker_count()
    if workers == 1:
        return FnApiRunner(), PipelineOptions([])
    # The worker processes log their start and end to stderr, whatever the log level asked for.
    worker_log = storage.local_path(storage.join(scratch, "workers.log"))
    command = f"{shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    if worker_log is not None:
        worker_log.parent.mkdir(parents=True, exist_ok=True)
        command += f" 2>>{shlex.quote(str(worker_log))}"
    environment = SubprocessSDKEnvironment.from_command_string(command)
    options = PipelineOptions([f"--direct_num_workers={workers}"])
    return FnApiRunner(default_environment=environment), options


def run_pipeline(
    transform: Callable[[PCollection[Any]], PCollection[Any]],
    elements: Iterable[Any],
    scratch: str,
    progress: "Progress",
) -> list[Any]:
    """Run ``transform`` on ``elements`` and return what it gives, sorted by its keys.

    Args:
        transform: to a collection of (key, value that JSON can hold).
        elements: small descriptions of work, such as file names.
        scratch: a folder that the workers can write to.
        progress: what to count while it runs.

    Raises:
        AlbertError: one that a worker raised, as it raised it.
    """
    report = storage.join(scratch, "report.json")
    runner, options = _runner_and_options(scratch)
    try:
        with progress, _ending_when_a_worker_dies(), beam.Pipeline(runner, options) as pipeline:
            created = pipeline | "Create" >> beam.Create(list(elements), reshuffle=False)
            results = transform(created) | "ToOneKey" >> beam.Map(_to_one_key)
            together = results | "Together" >> beam.GroupByKey()
            _ = together | "Report" >> beam.Map(_write_report, report)
    except AlbertError:
        raise
    except Exception as error:
        raise _as_raised_in_worker(error) from error
    return [value for _, value in json.loads(storage.read_bytes(report))]


class Progress:
    """Logs every few seconds how many files of those expected are in a folder."""

    def __init__(self, what: str, folder: str, total: int) -> None:
        self.what = what
        self.folder = folder
        self.total = total
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> "Progress":
        self._before = self._num_files()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(_COUNT_SECONDS):
            done = self._num_files() - self._before
            log.info("%s: %d of %d", self.what, min(done, self.total), self.total)

    def _num_files(self) -> int:
        entries = storage.list_folder(self.folder)
        return sum(not str(entry["name"]).rsplit("/", 1)[-1].startswith(".") for entry in entries)


def _to_one_key(keyed: tuple[Any, Any]) -> tuple[int, tuple[Any, Any]]:
    return 0, keyed


def _write_report(together: tuple[int, Iterable[tuple[Any, Any]]], uri: str) -> str:
    results = sorted(together[1], key=lambda keyed: str(keyed[0]).zfill(12))
    storage.write_bytes(uri, json.dumps(results).encode())
    return uri


@contextmanager
def _ending_when_a_worker_dies() -> Iterator[None]:
    """End this process when a worker process dies: the embedded runner would wait for ever."""

    def end(failure: threading.ExceptHookArgs) -> None:
        previous(failure)
        if "Worker subprocess exited" in str(failure.exc_value):
            log.error("a Beam worker process died (%s): run the stage again", failure.exc_value)
            os._exit(WORKER_DIED)

    previous = threading.excepthook
    threading.excepthook = end
    try:
        yield
    finally:
        threading.excepthook = previous


def _as_raised_in_worker(error: Exception) -> Exception:
    """Return the AlbertError that Beam wrapped in the text of ``error``, or ``error`` itself."""
    for line in reversed(str(error).splitlines()):
        if raised := _RAISED_IN_WORKER.search(line):
            kind: type[AlbertError] = getattr(errors, raised.group(1))
            return kind(raised.group(2))
    return error
