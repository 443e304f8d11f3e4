"""The pipeline of stage 1: units of source files to shards of clean documents.

Files are cleaned in units, and a cleaned unit is kept below ``units/`` under the digest of its
files and settings: after a file has changed, or after a crash, only the missing units are cleaned.
A unit is written in parts of bounded size, so that memory grows neither with the corpus nor with a
file. Then documents that repeat an earlier one are left out and the shards
written, a shard a part. Only hashes and names travel through Beam.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.errors import AccountingError, SourceError
from albert_core.stage.lineage import CORPUS, SOURCE_FILES, write_made_with
from albert_core.stage.manifest import (
    Account,
    Shard,
    StagePlan,
    digest_of,
    read_manifest,
    scratch_folder,
)
from albert_core.stage.provenance import code_digest
from albert_core.stage.results import CorpusResult
from albert_core.text.arrow_files import write_arrow
from pipelines.clean_unit import EXCLUDED, KEPT, CleaningJob, Unit, clean_unit, is_done, size_of
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.engine import steps
from pipelines.engine.progress import Progress
from pipelines.engine.runner import run_pipeline
from pipelines.repeated_documents import Marked, Sent, find_repeated, send_hashes, write_shard
from pipelines.source_files import CorpusInputs, SourceFile, units_of, write_files

STAGE = CORPUS
UNREADABLE = "unreadable.jsonl"
OVERLAPS = "test_overlaps.jsonl"
_BYTES_PER_PARTITION = 1 << 32
_READING_THREADS = 16
_MIN_PARTITIONS, _MAX_PARTITIONS = 4, 256

log = logging.getLogger(STAGE)


def make_corpus(
    plan: StagePlan,
    work: str,
    source: SourceSettings,
    cleaning: CleaningSettings,
    inputs: CorpusInputs,
) -> str:
    """Clean the files, leave out repeated documents, write the shards; return the manifest.

    Raises:
        SourceError: no document is worth keeping, or too many can't be read.
    """
    files = inputs.files
    units = _plan_units(files, inputs.excluded_ids, cleaning, plan, work)
    bytes_to_clean = {unit.number: unit.num_bytes for unit in units if not is_done(unit)}
    log.info("%s: %d of %d units of files to clean", STAGE, len(bytes_to_clean), len(units))
    with scratch_folder(plan.folder(work)) as scratch:
        ngrams = _save(inputs.test_ngrams, scratch)
        job = CleaningJob(source, cleaning, ngrams, f"{scratch}/progress")
        num_bytes = sum(bytes_to_clean.values())
        progress = Progress(f"{STAGE}: cleaning", job.progress, num_bytes)
        transform = CleanUnits(job, plan.folder(work), _num_partitions(files))
        ordered = sorted(units, key=lambda unit: -bytes_to_clean.get(unit.number, 0))
        reports = run_pipeline("CleanDocuments" >> transform, ordered, scratch, progress)
    return _finish(plan, work, source, files, units, reports)


class CleanUnits(beam.PTransform[Any, Any]):
    """Cleans each unit, finds repeated documents by their hashes, writes the shards.

    PCollection[Unit] -> PCollection[(number of a part, report of its shard)].

    Args:
        job: how to clean.
        folder: for the shards.
        num_partitions: in which hashes are exchanged; the result does not depend on it.
    """

    def __init__(self, job: CleaningJob, folder: str, num_partitions: int) -> None:
        super().__init__()
        self.job = job
        self.folder = folder
        self.num_partitions = num_partitions

    def expand(self, units: PCollection[Unit]) -> PCollection[tuple[int, dict[str, Any]]]:
        """Only hashes and names go through the two groupings."""
        return (
            units
            | "Clean" >> steps.each_to_many(_clean_and_send, self.job, self.num_partitions)
            | "ByHash" >> beam.GroupByKey()
            | "FindRepeated" >> steps.each_to_many(find_repeated, self.num_partitions)
            | "ByPart" >> beam.GroupByKey()
            | "WriteShard" >> steps.each(_write_and_count, self.folder, self.job.cleaning)
        )


def _clean_and_send(
    unit: Unit, job: CleaningJob, num_partitions: int
) -> Iterator[tuple[int, Sent]]:
    for part in clean_unit(unit, job):
        yield from send_hashes(part, job.cleaning, num_partitions)


def _write_and_count(
    grouped: tuple[int, Iterable[Marked]], folder: str, cleaning: CleaningSettings
) -> tuple[int, dict[str, Any]]:
    number, report = write_shard(grouped, folder, cleaning)
    counts = Counter[str](report["counts"])
    steps.count(STAGE, _account(counts, counts.total()))
    return number, report


def _account(counts: Counter[str], total: int) -> Account:
    """Return the account of so many documents, counted by reason, or under KEPT."""
    dropped = {reason: n for reason, n in sorted(counts.items()) if n and reason != KEPT}
    return Account(what="documents", total=total, kept=counts[KEPT], dropped=dropped)


def _num_partitions(files: list[SourceFile]) -> int:
    """Return how many partitions hashes are exchanged in; the result does not depend on it."""
    num_bytes = sum(file.num_bytes for file in files)
    return min(max(num_bytes // _BYTES_PER_PARTITION, _MIN_PARTITIONS), _MAX_PARTITIONS)


def _by_file(document_ids: list[str], names: set[str]) -> dict[str, list[str]]:
    """Return the ids by the name of their file, without those of no file of the source."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for document_id in document_ids:
        ends = [m.start() for m in re.finditer("[#~]", document_id)] + [len(document_id)]
        found = [document_id[:end] for end in ends if document_id[:end] in names]
        if found:
            by_file[found[-1]].append(document_id)
        else:
            log.warning("%s: excluded id %r belongs to no file of the source", STAGE, document_id)
    return by_file


def _save(test_ngrams: NDArray[np.uint64], scratch: str) -> str:
    """Write the hashes where every worker can map them; return the URI, empty if there is none."""
    if not len(test_ngrams):
        return ""
    uri = storage.join(scratch, "test-ngrams.arrow")
    write_arrow(pa.table({"ngram": test_ngrams}), uri)
    return uri


def _plan_units(
    files: list[SourceFile],
    excluded_ids: list[str],
    cleaning: CleaningSettings,
    plan: StagePlan,
    work: str,
) -> list[Unit]:
    """Return the units, each with the folder under which its cleaned documents are kept."""
    elsewhere = {"drop_duplicates", "known_corpora", "excluded_ids", "test_texts"}
    rules = cleaning.model_dump(exclude=elsewhere | {"near_duplicate_similarity"})
    rules["signatures"] = cleaning.near_duplicate_similarity < 1
    code = code_digest("pipelines.clean_unit")
    reading = {k: v for k, v in plan.settings["source"].items() if k != "max_unreadable_share"}
    recipe = [reading, rules, plan.inputs["test_texts"], code, plan.libraries]

    def folder(content: Any) -> str:
        return storage.join(work, "units", digest_of([recipe, content])[:32])

    excluded = _by_file(excluded_ids, {file.name for file in files})
    units = []
    for number, ranges in enumerate(units_of(files)):
        # Documents name the URI of their file, so that a moved source is cleaned again.
        content = [[r.file.uri, r.file.name, r.file.sha256, r.begin, r.end] for r in ranges]
        out = [i for name in sorted({r.file.name for r in ranges}) for i in excluded.get(name, [])]
        units.append(Unit(number, folder([content, out]), ranges, out))
    known = [
        (storage.join(uri.rpartition("/")[0], shard.path), shard.sha256)
        for uri in cleaning.known_corpora
        for shard in read_manifest(uri).shards_of("documents")
    ]
    return [
        Unit(number - len(known), folder(sha256), known_shard=uri)
        for number, (uri, sha256) in enumerate(known)
    ] + units


def _finish(
    plan: StagePlan,
    work: str,
    source: SourceSettings,
    files: list[SourceFile],
    units: list[Unit],
    reports: list[dict[str, Any]],
) -> str:
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report["counts"])
    shards = [Shard(**shard) for report in reports for shard in report["shards"]]
    folder = plan.folder(work)
    num_unreadable = _gather([r["unreadable"] for r in reports], folder, UNREADABLE)
    _gather([r["overlaps"] for r in reports], folder, OVERLAPS)
    asked = sum(len(unit.excluded_ids) for unit in units)
    if counts[EXCLUDED] < asked:
        log.warning("%s: found %d of %d ids to leave out", STAGE, counts[EXCLUDED], asked)
    counts[KEPT] = kept = sum(shard.num_rows for shard in shards if shard.kind == "documents")
    num_records = _num_records(units, num_parts=len(reports))
    documents = _account(counts, num_records)
    if num_unreadable > source.max_unreadable_share * documents.total:
        raise SourceError(
            f"{num_unreadable:,} of {documents.total:,} records of the source can't be read "
            f"({documents}); see {storage.join(folder, UNREADABLE)}. Mend the files, give "
            "source.format or source.encoding, or raise source.max_unreadable_share."
        )
    if kept == 0:
        raise SourceError(
            f"no document of the source is left: {documents}. Give another source, or loosen "
            "the settings of section 'cleaning'."
        )
    write_files(files, storage.join(folder, SOURCE_FILES))
    write_made_with((unit.folder for unit in units), work, folder)
    result = CorpusResult(
        source=source.uri,
        num_documents=kept,
        num_source_files=len(files),
        text_bytes=sum(report["text_bytes"] for report in reports),
    )
    return plan.write(work, shards, [documents], result)


def _num_records(units: list[Unit], num_parts: int) -> int:
    """Return how many records the units' files have, as noted when each was cleaned.

    Raises:
        AccountingError: there are not as many reports as parts.
    """
    with ThreadPoolExecutor(_READING_THREADS) as pool:
        sizes = list(pool.map(size_of, [unit for unit in units if not unit.known_shard]))
    expected = sum(parts for parts, _ in sizes)
    if num_parts != expected:
        raise AccountingError(
            f"the units have {expected} parts, but {num_parts} were reported. This is a defect of "
            "the stage or its engine: its result must not be used."
        )
    return sum(records for _, records in sizes)


def _gather(uris: list[str], folder: str, name: str) -> int:
    """Put the lines of the parts' files into one; return how many there are."""
    if not any(uris):
        return 0
    uri = storage.join(folder, name)
    num_lines = 0
    with storage.open_atomic(uri) as file:
        for content in map(storage.read_bytes, filter(None, uris)):
            num_lines += content.count(b"\n")
            file.write(content)
    log.warning("%s: %d lines in %s", STAGE, num_lines, uri)
    return num_lines
