"""Runs one function on each shard of a corpus, on the engine."""

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.manifest import Shard, check_shard, read_manifest
from albert_core.text.arrow_files import read_arrow
from pipelines.engine import steps
from pipelines.engine.progress import Progress, report_done
from pipelines.engine.runner import run_pipeline

Work = Callable[..., Any]


def each_shard(work: Work, *arguments: Any, corpus: str, what: str, scratch: str) -> list[Any]:
    """Return what ``work(documents, name, *arguments)`` gives for each shard, in their order.

    Args:
        work: gets the documents of a shard as a table, and a name that no other shard has; gives
            what JSON can hold.
        arguments: small ones that can be pickled.
        corpus: URI of its manifest.
        what: the stage and what it does, for the lines that show progress.
        scratch: a folder that the workers can write to.

    Raises:
        IntegrityError: a shard is not the one that was written.
    """
    shards = read_manifest(corpus).shards_of("documents")
    notes = storage.join(scratch, "progress")
    progress = Progress(what, notes, sum(shard.num_bytes for shard in shards))
    step: beam.ParDo = steps.each(_on_shard, work, arguments, corpus.rpartition("/")[0], notes)
    largest_first = sorted(enumerate(shards), key=lambda each: -each[1].num_bytes)
    label = work.__name__.strip("_").title().replace("_", "")
    return run_pipeline(label >> step, largest_first, scratch, progress)


def _on_shard(
    numbered: tuple[int, Shard], work: Work, arguments: tuple[Any, ...], folder: str, notes: str
) -> tuple[int, Any]:
    number, shard = numbered
    check_shard(shard, folder)
    documents: pa.Table = read_arrow(storage.join(folder, shard.path))
    name = f"{number:06d}"
    given = work(documents, name, *arguments)
    num_documents = documents.num_rows
    report_done(notes, name, num_bytes=shard.num_bytes, num_documents=num_documents, num_files=1)
    return number, given
