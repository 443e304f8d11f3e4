"""One unit of source files to clean documents on disk, in parts of bounded size.

A part is an Arrow file of documents with their fingerprints, and beside it, if there are any,
the records that could not be read and the ledger of overlaps with test sets.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.stage import storage
from albert_core.stage.errors import SourceError
from albert_core.stage.loaded_once import loaded_once
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, Document
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus.cleaning import content_hash, normalise_text, reject_reasons
from pipelines.corpus.duplicates import HASH_BYTES, NUM_BINS, cut_by_size, signatures
from pipelines.corpus.overlaps import NgramIndex, find_overlaps
from pipelines.corpus.quality import detect_languages
from pipelines.corpus.sentences import cut_long, split_sentences
from pipelines.engine import work_notes
from pipelines.engine.work_notes import report_done, warn
from pipelines.readers import LEFT_OUT, Unreadable, read_documents
from pipelines.readers.source_bytes import NOT_READABLE
from pipelines.source_files import SourceRange, check_unchanged

PART_BYTES = 16 << 20
"""Text that is held in memory at a time."""
_BATCH_BYTES = 1 << 20
"""Text that the vectorised rules get at a time: their arrays fit in the processor's cache."""
_BYTES_PER_RECORD = 256
"""Approximate memory of a record besides its text."""
PART_BITS = 20
"""A part's number is its unit's, shifted, and its own: numbers are in the corpus's order."""
UNIT_DONE = "unit.json"
"""Written last: what makes a unit complete."""
KEPT, EXCLUDED = "", "excluded"
AUTO = "auto"

PART_SCHEMA = pa.schema(
    [
        *DOCUMENT_SCHEMA,
        ("reason", pa.string()),
        ("content_hash", pa.binary(HASH_BYTES)),
    ]
)
SIGNATURE = pa.field("signature", pa.list_(pa.uint32(), NUM_BINS))
_COUNTS, _NUM_CUT = b"counts", b"num_sentences_cut"


@dataclass(frozen=True, slots=True)
class Unit:
    """What is cleaned together, and where the result is kept."""

    number: int
    """Its place in the corpus; below 0 for a shard of an earlier corpus, of which only the
    fingerprints are taken."""
    folder: str
    ranges: list[SourceRange] = field(default_factory=list)
    excluded_ids: list[str] = field(default_factory=list)
    """Ids of documents in these files that are to be left out."""
    known_shard: str = ""
    """URI of the shard of an earlier corpus."""
    documents: list[Document] = field(default_factory=list)
    """Documents that are in no file."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its files."""
        return sum(part.num_bytes for part in self.ranges)


@dataclass(frozen=True)
class CleaningJob:
    """What every worker needs to know to clean."""

    source: SourceSettings
    cleaning: CleaningSettings
    test_ngrams: str
    """URI of the hashes of the test texts' word n-grams; empty: no test text was given."""
    progress: str
    """Folder for the notes of what is done."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a unit on disk."""

    number: int
    uri: str
    texts: str
    """URI of the file that has the texts of its documents, row by row: ``uri``, or the shard of an
    earlier corpus."""

    @property
    def unreadable(self) -> str:
        """URI of the records that could not be read; the file may be absent."""
        return self.uri.removesuffix(".arrow") + ".unreadable.jsonl"

    @property
    def overlaps(self) -> str:
        """URI of the ledger of overlaps with test sets; the file may be absent."""
        return self.uri.removesuffix(".arrow") + ".overlaps.jsonl"


def is_done(unit: Unit) -> bool:
    """Return whether all parts of the unit were written before."""
    return storage.exists(_note(unit))


def size_of(unit: Unit) -> tuple[int, int]:
    """Return the number of parts of a unit that is done, and of records in its files."""
    facts = work_notes.read_facts(_note(unit))
    return facts["num_parts"], facts["num_records"]


def _note(unit: Unit) -> str:
    return storage.join(unit.folder, UNIT_DONE)


def clean_unit(unit: Unit, job: CleaningJob) -> list[Part]:
    """Write the parts of the unit, unless they are there and undamaged, and return them.

    Raises:
        SourceError: a file can't be read now, or changed since it was listed.
    """
    if is_done(unit):
        damaged = work_notes.damage(_note(unit))
        if damaged is None:
            num_parts, _ = size_of(unit)
            return [_part(unit, index) for index in range(num_parts)]
        warn(job.progress, f"{damaged}; its files are cleaned again")
    storage.remove_abandoned(unit.folder)
    tables = _known_documents(unit, job) if unit.known_shard else _clean_documents(unit, job)
    parts = []
    num_records = 0
    for index, table in enumerate(tables):
        parts.append(_part(unit, index))
        write_arrow(table, parts[-1].uri)
        note = f"{unit.number}-{index}"
        num_documents = sum(counts_of(table.schema).values())
        num_records += num_documents
        report_done(job.progress, note, num_bytes=0, num_documents=num_documents)
    for part in unit.ranges:
        check_unchanged(part.file)
    files = [uri for part in parts for uri in (part.uri, part.unreadable, part.overlaps)]
    names = [uri.rpartition("/")[2] for uri in files if storage.exists(uri)]
    work_notes.write_note(_note(unit), names, {"num_parts": len(parts), "num_records": num_records})
    num_files = sum(part.end is None for part in unit.ranges)
    report_done(job.progress, str(unit.number), num_bytes=unit.num_bytes, num_files=num_files)
    return parts


def counts_of(schema: pa.Schema) -> Counter[str]:
    """Return how many records of a part were dropped for each reason, and kept (under KEPT)."""
    return Counter(json.loads(schema.metadata[_COUNTS]))


def num_sentences_cut_of(schema: pa.Schema) -> int:
    """Return how many sentences of a part were too long, and therefore cut."""
    return int(schema.metadata[_NUM_CUT])


def _part(unit: Unit, index: int) -> Part:
    number = (unit.number << PART_BITS) + index
    uri = storage.join(unit.folder, f"{index:05d}.arrow")
    return Part(number, uri, unit.known_shard or uri)


def _clean_documents(unit: Unit, job: CleaningJob) -> Iterator[pa.Table]:
    """Yield a table for each part: the documents kept, or all; counts in its metadata."""
    excluded = frozenset(unit.excluded_ids)
    parts = cut_by_size(_records(unit, job.source), _memory_of, PART_BYTES)
    first = next(parts, [])  # a unit without a record has a part too, whose counts are empty
    for index, records in enumerate(chain([first], parts)):
        part = _part(unit, index)
        unreadable = [record for record in records if isinstance(record, Unreadable)]
        counts = Counter(record.reason for record in unreadable)
        letters: list[dict[str, object]] = [
            {
                "file": record.uri,
                "offset": record.offset,
                "reason": record.reason,
                "content_base64": base64.b64encode(record.content).decode(),
            }
            for record in unreadable
            if record.reason not in LEFT_OUT
        ]
        _write_lines(part.unreadable, letters)
        ledger: list[dict[str, object]] = []
        documents = [record for record in records if isinstance(record, Document)]
        tables = [PART_SCHEMA.empty_table()]
        num_cut = 0
        for batch in cut_by_size(documents, _memory_of, _BATCH_BYTES):
            table, num_cut_here = _clean_batch(batch, job, excluded, ledger)
            num_cut += num_cut_here
            reasons = table["reason"]
            counts.update(reasons.to_pylist())
            stays = pc.equal(reasons, KEPT)
            if job.cleaning.keep_rejected:
                stays = pc.not_equal(reasons, EXCLUDED)
            tables.append(table.filter(stays))
        _write_lines(part.overlaps, ledger)
        whole = _with_signatures(pa.concat_tables(tables), job)
        yield whole.replace_schema_metadata({_COUNTS: json.dumps(counts), _NUM_CUT: str(num_cut)})


def _clean_batch(
    documents: list[Document],
    job: CleaningJob,
    excluded: frozenset[str],
    ledger: list[dict[str, object]],
) -> tuple[pa.Table, int]:
    """Return the documents with their fingerprints, and how many of their sentences were cut."""
    texts = [normalise_text(d.text, lines_are_sentences=d.lines_are_sentences) for d in documents]
    reasons = [reason or KEPT for reason in reject_reasons(texts, job.cleaning)]
    num_cut = _split(texts, documents, reasons, job.cleaning)
    hashes = [content_hash(text) for text in texts]
    if excluded:
        for row, document in enumerate(documents):
            if excluded.intersection(ids_of(document.id, hashes[row])):
                reasons[row] = EXCLUDED
    if job.test_ngrams:
        _mark_overlaps(documents, texts, reasons, job, ledger)
    ids, sources = [d.id for d in documents], [d.source for d in documents]
    return pa.table([ids, texts, sources, reasons, hashes], schema=PART_SCHEMA), num_cut


def _split(
    texts: list[str], documents: list[Document], reasons: list[str], cleaning: CleaningSettings
) -> int:
    """Put the texts kept one sentence a line; return how many sentences were too long."""
    kept = [row for row, reason in enumerate(reasons) if reason == KEPT]
    to_split = [row for row in kept if not documents[row].lines_are_sentences]
    languages = [cleaning.language] * len(to_split)
    if cleaning.language == AUTO:
        languages = [each for each, _ in detect_languages([texts[row] for row in to_split])]
    sentences = {
        row: split_sentences(texts[row], language)
        for row, language in zip(to_split, languages, strict=True)
    }
    num_cut = 0
    for row in kept:
        lines = sentences.get(row) or texts[row].split("\n")
        too_long = sum(length > cleaning.max_sentence_characters for length in map(len, lines))
        if too_long:
            lines = list(cut_long(lines, cleaning.max_sentence_characters))
        texts[row] = "\n".join(lines)
        num_cut += too_long
    return num_cut


def ids_of(document_id: str, hashed: bytes) -> tuple[str, str]:
    """Return the id of a document, and the one it gets when another one has its id."""
    return document_id, f"{document_id}~{hashed[:4].hex()}"


def _mark_overlaps(
    documents: list[Document],
    texts: list[str],
    reasons: list[str],
    job: CleaningJob,
    ledger: list[dict[str, object]],
) -> None:
    rows = [row for row, reason in enumerate(reasons) if reason == KEPT]
    found = find_overlaps([texts[row] for row in rows], _test_ngrams(job.test_ngrams))
    for row, overlap in zip(rows, found, strict=True):
        if overlap is None:
            continue
        is_dropped = overlap.num_ngrams >= job.cleaning.min_test_overlaps
        if is_dropped:
            reasons[row] = "test_overlap"
        document = {"document": documents[row].id, "source": documents[row].source}
        shared = {"num_ngrams": overlap.num_ngrams, "first": overlap.first}
        ledger.append(document | shared | {"dropped": is_dropped})


def _known_documents(unit: Unit, job: CleaningJob) -> Iterator[pa.Table]:
    """Yield the fingerprints of a shard of an earlier corpus, without its texts."""
    documents = read_arrow(unit.known_shard)
    texts = documents["text"].to_pylist()
    nothing = pa.nulls(len(texts), pa.string())
    hashes = [content_hash(text) for text in texts]
    columns = [documents["id"], texts, nothing, [KEPT] * len(texts), hashes]
    table = _with_signatures(pa.table(columns, schema=PART_SCHEMA), job)
    without_text = table.set_column(1, PART_SCHEMA.field("text"), nothing.cast(pa.large_string()))
    yield without_text.replace_schema_metadata({_COUNTS: "{}"})


def _with_signatures(table: pa.Table, job: CleaningJob) -> pa.Table:
    """Return the table, with a column of signatures if near-duplicates are looked for."""
    if job.cleaning.near_duplicate_similarity == 1:
        return table
    values = signatures(table["text"].to_pylist())
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), NUM_BINS)
    return table.append_column(SIGNATURE, column)


def _records(unit: Unit, source: SourceSettings) -> Iterator[Document | Unreadable]:
    yield from unit.documents
    for part in unit.ranges:
        file = part.file
        place = file.uri, file.name, source, file.format, part.begin, part.end
        for record in read_documents(*place):
            if isinstance(record, Unreadable) and record.reason == NOT_READABLE:
                # It was read when it was listed: the store or the network fails, not the file.
                raise SourceError(
                    f"{record.uri} can't be read from byte {record.offset:,} on, though it could "
                    "when it was listed. Run the stage again, or remove the file."
                )
            yield record


def _memory_of(record: Document | Unreadable) -> int:
    """Return about the bytes that a record takes."""
    content = record.text if isinstance(record, Document) else record.content
    return len(content) + _BYTES_PER_RECORD


def _write_lines(uri: str, entries: Sequence[dict[str, object]]) -> None:
    if entries:
        storage.write_bytes(uri, "".join(json.dumps(e) + "\n" for e in entries).encode())


@loaded_once
def _test_ngrams(uri: str) -> NgramIndex:
    return NgramIndex.of(read_arrow(uri)["ngram"].to_numpy())
