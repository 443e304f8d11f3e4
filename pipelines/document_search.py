"""In which rows of which shards a document is."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.contract import storage
from albert_core.contract.lineage import CORPUS, EXAMPLES, Lineage, Result
from albert_core.contract.manifest import Shard
from pipelines.config import ExampleSettings
from pipelines.held_out import is_held_out
from pipelines.text_files import ID_COLUMNS, batches_of, is_in, text_column


@dataclass(frozen=True)
class Occurrence:
    """Rows of one shard that have text of a document."""

    place: str
    """Of the result: stage and key."""
    uri: str
    kind: str
    """Of the shard."""
    rows: list[int]
    """In the shard, from 0."""
    first_row: int
    """Of the shard, among all rows of its kind."""


def find_document(document_id: str, lineage: Lineage) -> list[Occurrence]:
    """Return where the document is in the corpora and the examples, by looking through them.

    Raises:
        IntegrityError: a shard is damaged.
    """
    return [
        occurrence
        for stage in (CORPUS, EXAMPLES)
        for result in lineage.of_stage(stage)
        for occurrence in _in_result(document_id, result)
    ]


def may_be_in_task(document_id: str, task: Result, lineage: Lineage) -> bool:
    """Return whether a generated task may have sentences of a document that its corpus has.

    Its rows name no documents; it takes of those that its examples hold out.
    """
    examples = [lineage.results[place] for place in task.inputs if place in lineage.results]
    settings = [each.manifest.settings for each in examples if each.manifest.stage == EXAMPLES]
    if not settings:
        return True
    return any(is_held_out(document_id, ExampleSettings(**each)) for each in settings)


def _in_result(document_id: str, result: Result) -> Iterator[Occurrence]:
    first_row = dict.fromkeys((shard.kind for shard in result.manifest.shards), 0)
    for shard in result.manifest.shards:
        uri = storage.join(result.folder, shard.path)
        if rows := _rows(document_id, shard, uri):
            yield Occurrence(result.place, uri, shard.kind, rows, first_row[shard.kind])
        first_row[shard.kind] += shard.num_rows


def _rows(document_id: str, shard: Shard, uri: str) -> list[int]:
    if not (shard.path.endswith(".arrow") and storage.exists(uri)):
        return []
    wanted, rows, begin = pa.array([document_id], pa.large_string()), [], 0
    for batch in batches_of(uri):
        columns = [name for name in ID_COLUMNS if name in batch.schema.names]
        masks = [is_in(text_column(batch, name), wanted) for name in columns]
        found = {row.as_py() for mask in masks for row in pc.indices_nonzero(mask)}
        rows += [begin + row for row in sorted(found)]
        begin += batch.num_rows
    return rows
