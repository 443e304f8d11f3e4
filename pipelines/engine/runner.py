"""Runs the steps of a stage on the engine that the environment asks for. See docs/engines.md."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import apache_beam as beam
import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from albert_core.stage import errors, storage
from albert_core.stage.command import tell_failure
from albert_core.stage.errors import AlbertError, ConfigError, OutageError
from albert_core.stage.manifest import Shard, check_shard, read_manifest
from albert_core.text.arrow_files import read_arrow
from pipelines.engine.engines import WORKER_COMMAND, Engine, beam_options, choose_engine
from pipelines.engine.steps import Step, as_transform, each, each_to_many, gather
from pipelines.engine.work_notes import Progress, report_done

_ADDED_BY_BEAM = " [while running "
_RAISED_IN_WORKER = re.compile(
    rf".*albert_core\.stage\.errors\.(\w+): (.*?)(?:{re.escape(_ADDED_BY_BEAM)}|\n\n|\Z)", re.DOTALL
)
"""Matches the last error of ours in a text, for every runner that may wrap it."""
_OF_A_STEP = re.compile(r"\[while running |pipelines/engine/steps\.py")
"""Matches the text of an error that a step raised."""
_WORKER_ENDED = re.compile(r"Worker subprocess exited with return code (-?\d+)")
_KILLED = (str(-signal.SIGKILL), str(128 + signal.SIGKILL))
"""The status of a killed process, and that of a shell which started it."""
_NOT_INSTALLED = re.compile(
    rf"No module named '(albert_core|pipelines)\S*|Cannot run program \S*{WORKER_COMMAND}.*"
)
_LONGEST_CAUSE = 400

log = logging.getLogger(__name__)
# Beam logs every worker's traceback, which is raised here as well.
for _part in ("common", "portability"):
    logging.getLogger(f"apache_beam.runners.{_part}").setLevel(logging.CRITICAL)
logging.getLogger().addFilter(lambda record: record.module != "portable_runner")


def run_pipeline(
    label: str, steps: Sequence[Step], elements: Iterable[Any], scratch: str, progress: Progress
) -> list[Any]:
    """Run the steps on ``elements``; return the values that they give, sorted by their keys.

    Args:
        label: of all steps, on the pages of the engines.
        steps: from an element to (key, value that JSON can hold).
        elements: small descriptions of work, such as file names, the largest work first: the
            engines deal them out to their workers beforehand.
        scratch: a folder that the workers can write to.
        progress: counts while they run.

    Raises:
        AlbertError: as `_engine_pipeline` does, also if a worker does not see ``scratch``.
    """
    report = storage.join(scratch, "report.json")
    seen = storage.join(scratch, "driver-was-here")
    storage.write_bytes(seen, b"")
    with progress, _engine_pipeline(scratch) as (pipeline, engine):
        batches = _dealt(list(elements), engine.num_batches)
        # A gathering joins the reports where they are made, before any of them travels.
        report_together = gather("Together"), each("Report", _write_report, report)
        every = [each_to_many("Each", _each, seen), *steps, *report_together]
        # Without the reshuffle, Beam fuses all up to the first grouping into one task.
        created = pipeline | "Create" >> beam.Create(batches, reshuffle=True)
        _ = created | label >> as_transform(every)
    return [value for _, value in json.loads(storage.read_bytes(report))]


def each_shard(
    work: Callable[..., Any], *arguments: Any, corpus: str, what: str, scratch: str
) -> list[Any]:
    """Return what ``work(documents, name, *arguments)`` gives for each shard of a corpus, in order.

    Args:
        work: gets the documents of a shard as a table, and a name that no other shard has; gives
            what JSON can hold.
        arguments: small and picklable.
        corpus: URI of its manifest.
        what: the stage and what it does, for the progress lines.
        scratch: a folder that the workers can write to.

    Raises:
        IntegrityError: a shard is not the one that was written.
    """
    shards = read_manifest(corpus).shards_of("documents")
    notes = storage.join(scratch, "progress")
    progress = Progress(what, notes, sum(shard.num_bytes for shard in shards))
    largest_first = sorted(enumerate(shards), key=lambda numbered: -numbered[1].num_bytes)
    step = each("Shard", _on_shard, work, arguments, corpus.rpartition("/")[0], notes)
    label = work.__name__.strip("_").title().replace("_", "")
    return run_pipeline(label, [step], largest_first, scratch, progress)


def _on_shard(
    numbered: tuple[int, Shard],
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    folder: str,
    notes: str,
) -> tuple[int, Any]:
    number, shard = numbered
    check_shard(shard, folder)
    documents: pa.Table = read_arrow(storage.join(folder, shard.path))
    name = f"{number:06d}"
    given = work(documents, name, *arguments)
    num_documents = documents.num_rows
    report_done(notes, name, num_bytes=shard.num_bytes, num_documents=num_documents, num_files=1)
    return number, given


@contextmanager
def _engine_pipeline(scratch: str) -> Iterator[tuple[beam.Pipeline, Engine]]:
    """Give an empty pipeline and the engine that runs it when the block ends.

    Args:
        scratch: a folder that the workers can write to; the pipeline's ``temp_location``.

    Raises:
        AlbertError: a worker raised it.
        ConfigError: the engine is unknown, not installed or unreachable, or a worker has other code
            or libraries.
        OutageError: a worker, the engine or a store was lost.
    """
    is_remote = False
    try:
        with _ending_when_a_worker_dies(), ExitStack() as running:
            engine = choose_engine(scratch, running)
            is_remote = engine.is_remote
            options = beam_options(f"--temp_location={scratch}", *engine.options)
            pipeline = beam.Pipeline(engine.runner, options)
            # Only transforms of other languages need it, and a killed stage would leave it behind.
            shutil.rmtree(pipeline.local_tempdir)
            yield pipeline, engine
            engine.wait(pipeline.run())
    except Exception as error:
        raised = _as_raised_in_worker(error, is_remote)
        if raised is error:
            raise
        raise raised from error


def _dealt(elements: list[Any], num_batches: int | None) -> list[list[Any]]:
    """Deal ``elements`` out into batches in turn; some may stay empty."""
    number = len(elements) if num_batches is None else num_batches
    return [elements[first::number] for first in range(number)]


def _each(batch: Sequence[Any], seen: str) -> Iterator[Any]:
    if not storage.exists(seen):
        raise ConfigError(
            f"the worker on {socket.gethostname()} doesn't see {seen}. Give a work folder that all "
            "machines share."
        )
    yield from batch


def _write_report(together: list[tuple[Any, Any]], uri: str) -> str:
    results = sorted(together, key=lambda keyed: str(keyed[0]).zfill(20))
    storage.write_bytes(uri, json.dumps(results).encode())
    return uri


@contextmanager
def _ending_when_a_worker_dies() -> Iterator[None]:
    """End this process when a worker process dies: the embedded runner would wait forever."""

    def end(failure: threading.ExceptHookArgs) -> None:
        if ended := _WORKER_ENDED.fullmatch(str(failure.exc_value)):
            is_killed = ended[1] in _KILLED
            how = errors.killed(signal.SIGKILL) if is_killed else f"ended with status {ended[1]}"
            os._exit(
                tell_failure(OutageError(f"a Beam worker process {how}. Run the stage again."))
            )
        if issubclass(failure.exc_type, grpc.RpcError):
            log.warning("a connection of Beam's broke (%s)", failure.exc_type.__name__)
        else:
            previous(failure)

    previous = threading.excepthook
    threading.excepthook = end
    try:
        yield
    finally:
        threading.excepthook = previous


def _as_raised_in_worker(error: Exception, is_remote: bool) -> Exception:
    """Return the AlbertError that Beam wrapped in the text of ``error``, or ``error`` itself.

    Args:
        error: raised by a runner.
        is_remote: whether the engine may have failed where no step did.
    """
    text = str(error)
    if isinstance(error, AlbertError):
        return type(error)(text.partition(_ADDED_BY_BEAM)[0])
    if raised := _RAISED_IN_WORKER.match(text):
        kind: type[AlbertError] = getattr(errors, raised.group(1))
        return kind(raised.group(2))
    if "Unable to fetch remote job server jar" in text:
        return ConfigError(
            f"{error}. Give --flink_job_server_jar or --spark_job_server_jar in "
            "ALBERT_BEAM_OPTIONS; docs/engines.md names the file."
        )
    if missing := _NOT_INSTALLED.search(text):
        return ConfigError(
            f"a worker lacks this project ({missing.group()}). Install the same version of it on "
            "all machines, in the same place, or name the place in ALBERT_BEAM_OPTIONS."
        )
    if is_remote and not _OF_A_STEP.search(text):
        cause = " ".join(text.split())[:_LONGEST_CAUSE]
        return OutageError(
            f"the engine lost a worker, or was lost itself ({cause}). Run the stage again: it "
            "continues from what is done."
        )
    return error
