"""Stage 1: source files to a clean corpus, one sentence a line, with a count for each reason.

Files are cleaned in units, and a cleaned unit is kept below ``units/`` under the digest of its
files and settings: after a file has changed, or after a crash, only the units that lack are
cleaned again. Then documents that repeat an earlier one are left out and the shards written.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from albert_core.contract import storage
from albert_core.contract.arrow_files import read_arrow, write_arrow
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import SourceError
from albert_core.contract.manifest import (
    Account,
    Shard,
    StagePlan,
    digest_of,
    newest_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.contract.records import DOCUMENT_SCHEMA
from albert_core.contract.stage_command import stage_main
from pipelines.cleaning import content_hash, normalise_text, reject_reason
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.deduplication import HASH_BYTES, partition_hashes, repeated_rows
from pipelines.engine import Progress, run_pipeline
from pipelines.readers import Unreadable, read_documents
from pipelines.sentences import split_sentences
from pipelines.source_files import (
    SourceFile,
    describe_changes,
    digest_of_files,
    list_source,
    read_files,
    units_of,
    write_files,
)

STAGE = "corpus"
SOURCE_FILES = "source_files.jsonl"
_NUM_PARTITIONS = 16
_UNIT_SCHEMA = DOCUMENT_SCHEMA.append(pa.field("content_hash", pa.binary(HASH_BYTES)))
UNREADABLE = "unreadable.jsonl"
_COUNTS, _UNREADABLE = b"counts", b"unreadable"

log = logging.getLogger(STAGE)

Unit = tuple[int, str, list[SourceFile]]
"""Number, URI of its cleaned documents, its files."""


def run(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str:
    """Clean the source's documents; return the manifest of the corpus.

    Raises:
        SourceError: the source has no file, or no document worth keeping.
    """
    files = list_source(source)
    reading = source.model_dump(exclude={"uri", "file_share"})
    plan = StagePlan(
        stage=STAGE,
        settings={"source": reading, "cleaning": cleaning.model_dump()},
        inputs={"source_files": digest_of_files(files)},
        code=code_digest(__name__),
        libraries=library_versions("ftfy", "sentencex"),
    )
    _log_changes(files, work)
    if done := plan.find(work):
        return done
    folder = plan.folder(work)
    units = _plan_units(files, plan, work)
    missing = sum(not storage.exists(uri) for _, uri, _ in units)
    log.info("%s: %d of %d units of files to clean", STAGE, missing, len(units))
    with scratch_folder(folder) as scratch:
        progress = Progress(f"{STAGE}: units cleaned", _units_folder(work), missing)
        transform = CleanUnits(source, cleaning, folder)
        reports = run_pipeline(transform.expand, units, scratch, progress)
    return _finish(plan, work, source, files, reports)


class CleanUnits(beam.PTransform):
    """PCollection[Unit] -> PCollection[(unit number, report of its shard)]."""

    def __init__(self, source: SourceSettings, cleaning: CleaningSettings, folder: str) -> None:
        super().__init__()
        self.source = source
        self.cleaning = cleaning
        self.folder = folder

    def expand(self, units: PCollection[Unit]) -> PCollection[tuple[int, dict[str, Any]]]:
        """Clean each unit, find repeated documents by their hashes, write the shards."""
        return (
            units
            | "Clean" >> beam.FlatMap(_clean_unit, self.source, self.cleaning)
            | "ByHash" >> beam.GroupByKey()
            | "FindRepeated" >> beam.FlatMap(_find_repeated, self.cleaning.drop_duplicates)
            | "ByUnit" >> beam.GroupByKey()
            | "WriteShard" >> beam.Map(_write_shard, self.folder)
        )


Hashes = tuple[int, tuple[int, str, NDArray[np.uint32], NDArray[np.void]]]
Repeated = tuple[tuple[int, str], NDArray[np.uint32]]


def _clean_unit(unit: Unit, source: SourceSettings, cleaning: CleaningSettings) -> Iterator[Hashes]:
    number, uri, files = unit
    if not storage.exists(uri):
        write_arrow(_clean_files(files, source, cleaning), uri)
    hashes = read_arrow(uri)["content_hash"].to_numpy()
    packed = np.array(list(hashes), dtype=f"V{HASH_BYTES}")
    for partition, (numbers, some) in enumerate(partition_hashes(packed, _NUM_PARTITIONS)):
        yield partition, (number, uri, numbers, some)


def _clean_files(
    files: list[SourceFile], source: SourceSettings, cleaning: CleaningSettings
) -> pa.Table:
    """Return the documents worth keeping, with the counts of all in the schema's metadata."""
    rows: list[tuple[str, str, str, bytes]] = []
    counts: Counter[str] = Counter()
    unreadable: list[dict[str, str]] = []
    for file in files:
        for document in read_documents(file.uri, file.name, source):
            if isinstance(document, Unreadable):
                counts[document.reason] += 1
                unreadable.append({"record": document.where, "reason": document.reason})
                continue
            text = normalise_text(document.text)
            reason = reject_reason(text, cleaning)
            counts[reason or "kept"] += 1
            if reason is None:
                sentences = "\n".join(split_sentences(text, cleaning.language))
                rows.append((document.id, sentences, document.source, content_hash(sentences)))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    tally = {_COUNTS: json.dumps(counts), _UNREADABLE: json.dumps(unreadable)}
    return pa.table(columns, schema=_UNIT_SCHEMA).replace_schema_metadata(tally)


def _find_repeated(
    grouped: tuple[int, Iterable[tuple[int, str, NDArray[np.uint32], NDArray[np.void]]]],
    drop_duplicates: bool,
) -> Iterator[Repeated]:
    parts = list(grouped[1])
    found = repeated_rows((number, rows, hashes) for number, _, rows, hashes in parts)
    for number, uri, _, _ in parts:
        yield (number, uri), found[number] if drop_duplicates else found[number][:0]


def _write_shard(
    grouped: tuple[tuple[int, str], Iterable[NDArray[np.uint32]]], folder: str
) -> tuple[int, dict[str, Any]]:
    (number, unit_uri), repeated = grouped
    table = read_arrow(unit_uri)
    dropped = np.concatenate(list(repeated))
    keep = np.ones(table.num_rows, bool)
    keep[dropped] = False
    documents = table.select(DOCUMENT_SCHEMA.names).filter(pa.array(keep))
    uri = storage.join(folder, f"documents-{number:05d}.arrow")
    write_arrow(documents.replace_schema_metadata(None), uri)
    counts = Counter(json.loads(table.schema.metadata[_COUNTS]))
    counts["duplicate"] = len(dropped)
    counts["kept"] -= len(dropped)
    return number, {
        "shard": shard_of(uri, folder, "documents", documents.num_rows).model_dump(),
        "counts": counts,
        "unreadable": json.loads(table.schema.metadata[_UNREADABLE]),
        "text_bytes": documents["text"].nbytes,
    }


def _units_folder(work: str) -> str:
    return storage.join(work, "units")


def _plan_units(files: list[SourceFile], plan: StagePlan, work: str) -> list[Unit]:
    """Return the units with the URI under which each one's cleaned documents are kept."""
    recipe = [plan.settings, plan.code, plan.libraries]
    units = []
    for number, unit in enumerate(units_of(files)):
        # The URI of a file stands in its documents, so that a moved source is cleaned anew.
        key = digest_of([recipe, [[file.uri, file.name, file.sha256] for file in unit]])[:32]
        units.append((number, storage.join(_units_folder(work), f"{key}.arrow"), unit))
    return units


def _finish(
    plan: StagePlan,
    work: str,
    source: SourceSettings,
    files: list[SourceFile],
    reports: list[dict[str, Any]],
) -> str:
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report["counts"])
    kept = counts.pop("kept", 0)
    dropped = {reason: n for reason, n in sorted(counts.items()) if n}
    documents = Account(
        what="documents", total=kept + sum(dropped.values()), kept=kept, dropped=dropped
    )
    if kept == 0:
        raise SourceError(
            f"no document of the source is left: {documents}. Give another source, or loosen "
            "the settings of section 'cleaning'."
        )
    folder = plan.folder(work)
    write_files(files, storage.join(folder, SOURCE_FILES))
    unreadable = [record for report in reports for record in report["unreadable"]]
    if unreadable:
        uri = storage.join(folder, UNREADABLE)
        storage.write_bytes(uri, "".join(json.dumps(r) + "\n" for r in unreadable).encode())
        log.warning("%s: %d records could not be read; see %s", STAGE, len(unreadable), uri)
    shards = [Shard(**report["shard"]) for report in reports]
    facts = {
        "source": source.uri,
        "num_documents": kept,
        "num_source_files": len(files),
        "text_bytes": sum(report["text_bytes"] for report in reports),
    }
    return plan.write(work, shards, [documents], facts)


def _log_changes(files: list[SourceFile], work: str) -> None:
    """Say how the source's files differ from those of the corpus made last."""
    before = newest_manifest(storage.join(work, STAGE))
    if before is None:
        return
    uri = storage.join(work, STAGE, before.key, SOURCE_FILES)
    if changes := describe_changes(read_files(uri), files):
        log.info("%s: source files: %s", STAGE, changes)


if __name__ == "__main__":
    stage_main(run)
