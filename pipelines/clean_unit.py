"""Cleans one unit of source files into parts of bounded size on disk.

A part is an Arrow file of documents with their fingerprints, and beside it, if there are any,
the records that could not be read and the ledger of overlaps with test sets.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.errors import SourceError
from albert_core.stage.results import UNIT_DONE
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, Document
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.corpus import cut_by_size
from pipelines.corpus.cleaning import content_hash, normalise_texts
from pipelines.corpus.duplicates import HASH_BYTES, NUM_BINS, signatures
from pipelines.corpus.overlaps import NgramIndex, find_overlaps
from pipelines.corpus.quality import profiles_of, reject_reason
from pipelines.corpus.sentences import cut_long, split_sentences
from pipelines.engine import loaded_once, work_notes
from pipelines.engine.work_notes import report_done, warn
from pipelines.readers import NOT_ASKED_FOR, Unreadable, read_documents
from pipelines.readers.source_bytes import NOT_READABLE
from pipelines.source_files import SourceRange, check_unchanged

PART_BYTES = 16 << 20
"""Amount of text held in memory at a time."""
_BATCH_BYTES = 4 << 20
"""Amount of text that is cleaned, and whose overlaps are looked up, at a time."""
_BYTES_PER_RECORD = 256
"""Approximate memory of a record besides its text."""
PART_BITS = 20
"""A part's number is its unit's number shifted by this, plus its place in the unit: numbers follow
the order of the corpus."""
KEPT, EXCLUDED = "", "excluded"

PART_SCHEMA = pa.schema(
    [*DOCUMENT_SCHEMA, ("reason", pa.string()), ("content_hash", pa.binary(HASH_BYTES))]
)
SIGNATURE = pa.field("signature", pa.list_(pa.uint32(), NUM_BINS))
_COUNTS, _NUM_CUT, _EXCLUDED_IDS = b"counts", b"num_sentences_cut", b"excluded_ids"


@dataclass(frozen=True, slots=True)
class Unit:
    """File ranges that are cleaned together, and the folder of the result."""

    number: int
    """Its place in the corpus; below 0 for a shard of an earlier corpus, of which only the
    fingerprints are taken."""
    folder: str
    ranges: list[SourceRange] = field(default_factory=list)
    excluded_ids: list[str] = field(default_factory=list)
    """Ids of documents in these files to leave out."""
    known_shard: str = ""
    """URI of the shard of an earlier corpus."""

    @property
    def num_bytes(self) -> int:
        """Size of its file ranges in bytes."""
        return sum(part.num_bytes for part in self.ranges)


@dataclass(frozen=True)
class CleaningJob:
    """The settings and folders that every worker needs to clean."""

    source: SourceSettings
    cleaning: CleaningSettings
    test_ngrams: str
    """URI of the hashes of the test texts' word n-grams; empty: no test text was given."""
    progress: str
    """Folder for the notes on progress."""


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


def clean_unit(unit: Unit, job: CleaningJob) -> list[Part]:
    """Write the parts of the unit, unless they are there and undamaged, and return them.

    Raises:
        SourceError: a file changed since it was listed, or can't be read now, which is transient.
        OutageError: it is gone.
    """
    if is_done(unit):
        damaged = work_notes.damage(_note(unit))
        if damaged is None:
            return [_part(unit, index) for index in range(size_of(unit)[0])]
        warn(job.progress, f"{damaged}; its files are cleaned again")
    storage.remove_abandoned(unit.folder)
    tables = _known_documents(unit, job) if unit.known_shard else _clean_documents(unit, job)
    parts, num_records = list[Part](), 0
    for index, table in enumerate(tables):
        parts.append(_part(unit, index))
        write_arrow(table, parts[-1].uri)
        num_documents = facts_of(table.schema)[0].total()
        num_records += num_documents
        note = f"{unit.number}-{index}"
        report_done(job.progress, note, num_bytes=0, num_documents=num_documents)
    for part in unit.ranges:
        check_unchanged(part.file)
    files = [uri for part in parts for uri in (part.uri, part.unreadable, part.overlaps)]
    names = [uri.rpartition("/")[2] for uri in files if storage.exists(uri)]
    work_notes.write_note(_note(unit), names, {"num_parts": len(parts), "num_records": num_records})
    num_files = sum(part.end is None for part in unit.ranges)
    report_done(job.progress, str(unit.number), num_bytes=unit.num_bytes, num_files=num_files)
    return parts


def facts_of(schema: pa.Schema) -> tuple[Counter[str], int, list[str]]:
    """Return what the metadata of a part says.

    Returns:
        The number of records dropped for each reason, and kept (under KEPT); the number of
        sentences that were cut because they were too long; and those of the excluded ids that a
        document had.
    """
    facts = schema.metadata
    counts = Counter[str](json.loads(facts[_COUNTS]))
    return counts, int(facts[_NUM_CUT]), json.loads(facts[_EXCLUDED_IDS])


def repeated_id(document_id: str, hashed: bytes) -> str:
    """Return the id that a document gets if another one has its id."""
    return f"{document_id}~{hashed[:4].hex()}"


def _note(unit: Unit) -> str:
    return storage.join(unit.folder, UNIT_DONE)


def _part(unit: Unit, index: int) -> Part:
    number = (unit.number << PART_BITS) + index
    uri = storage.join(unit.folder, f"{index:05d}.arrow")
    return Part(number, uri, unit.known_shard or uri)


def _clean_documents(unit: Unit, job: CleaningJob) -> Iterator[pa.Table]:
    """Yield a table for each part, of the documents kept or of all; its metadata has the counts."""
    excluded = frozenset(unit.excluded_ids)
    parts = cut_by_size(records_of(unit.ranges, job.source), _memory_of, PART_BYTES)
    first = next(parts, [])  # a unit without a record has a part too, whose counts are empty
    for index, records in enumerate(chain([first], parts)):
        unreadable = [record for record in records if isinstance(record, Unreadable)]
        documents = [record for record in records if isinstance(record, Document)]
        counts, num_cut = Counter(record.reason for record in unreadable), 0
        tables, ledger = [PART_SCHEMA.empty_table()], list[dict[str, Any]]()
        found = set[str]()
        for batch in cut_by_size(documents, _memory_of, _BATCH_BYTES):
            rows, num_cut_here = _clean(batch, job.cleaning, excluded)
            num_cut += num_cut_here
            if job.test_ngrams:
                ledger += _mark_overlaps(rows, job)
            counts.update(row["reason"] for row in rows)
            for row in rows:
                if row["reason"] == EXCLUDED:
                    found |= excluded.intersection(_names(row["id"], row["content_hash"]))
            if job.cleaning.keep_rejected:
                rows = [row for row in rows if row["reason"] != EXCLUDED]
            else:
                rows = [row for row in rows if row["reason"] == KEPT]
            tables.append(pa.Table.from_pylist(rows, PART_SCHEMA))
        part = _part(unit, index)
        _write_lines(part.overlaps, ledger)
        letters = [_letter(record) for record in unreadable if record.reason not in NOT_ASKED_FOR]
        _write_lines(part.unreadable, letters)
        whole = _with_signatures(pa.concat_tables(tables), job)
        yield _with_facts(whole, counts, num_cut, sorted(found))


def _clean(
    documents: Sequence[Document], cleaning: CleaningSettings, excluded: frozenset[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of documents, one sentence a line if they are kept.

    Each step is done for all of them before the next, so that its tables stay in the cache: that
    saves a quarter of the time of short documents.

    Returns:
        The columns of PART_SCHEMA by name; and the number of sentences that were cut.
    """
    texts = normalise_texts(
        [document.text for document in documents],
        lines_are_sentences=[document.lines_are_sentences for document in documents],
    )
    profiles = profiles_of(texts, cleaning.language)
    reasons = [reject_reason(profile, cleaning) or KEPT for profile in profiles]
    kept = [place for place, reason in enumerate(reasons) if reason == KEPT]
    languages = dict.fromkeys(kept, cleaning.language)
    if cleaning.language == "auto":
        languages = {place: profiles[place].detected[0] for place in kept}
    num_cut = 0
    for place, language in languages.items():
        lines = profiles[place].lines
        if not documents[place].lines_are_sentences:
            lines = split_sentences(texts[place], language) or lines
        num_long = sum(len(line) > cleaning.max_sentence_characters for line in lines)
        if num_long:
            lines = list(cut_long(lines, cleaning.max_sentence_characters))
        num_cut += num_long
        texts[place] = "\n".join(lines)
    rows = []
    for document, text, reason in zip(documents, texts, reasons, strict=True):
        hashed = content_hash(text)
        is_excluded = not excluded.isdisjoint(_names(document.id, hashed))
        columns = (document.id, text, document.source, EXCLUDED if is_excluded else reason, hashed)
        rows.append(dict(zip(PART_SCHEMA.names, columns, strict=True)))
    return rows, num_cut


def _names(document_id: str, hashed: bytes) -> tuple[str, str]:
    """Return the ids that a document can be excluded by."""
    return document_id, repeated_id(document_id, hashed)


def _mark_overlaps(rows: list[dict[str, Any]], job: CleaningJob) -> Iterator[dict[str, Any]]:
    """Mark kept rows that overlap with test texts too much; yield each overlap for the ledger."""
    rows = [row for row in rows if row["reason"] == KEPT]
    found = find_overlaps([row["text"] for row in rows], _test_ngrams(job.test_ngrams))
    for row, overlap in zip(rows, found, strict=True):
        if overlap is not None:
            is_dropped = overlap.num_ngrams >= job.cleaning.min_test_overlaps
            if is_dropped:
                row["reason"] = "test_overlap"
            document = {"document": row["id"], "source": row["source"]}
            yield document | asdict(overlap) | {"dropped": is_dropped}


def _known_documents(unit: Unit, job: CleaningJob) -> Iterator[pa.Table]:
    """Yield the fingerprints of a shard of an earlier corpus, without its texts."""
    documents = read_arrow(unit.known_shard)
    texts = documents["text"].to_pylist()
    nothing = pa.nulls(len(texts), pa.string())
    hashes = [content_hash(text) for text in texts]
    columns = [documents["id"], texts, nothing, [KEPT] * len(texts), hashes]
    table = _with_signatures(pa.table(columns, schema=PART_SCHEMA), job)
    without_text = table.set_column(1, PART_SCHEMA.field("text"), nothing.cast(pa.large_string()))
    yield _with_facts(without_text, {}, 0, [])


def _with_facts(
    table: pa.Table, counts: Mapping[str, int], num_cut: int, excluded_ids: Sequence[str]
) -> pa.Table:
    """Return the table with the metadata that `facts_of` reads."""
    facts = {_COUNTS: counts, _NUM_CUT: num_cut, _EXCLUDED_IDS: excluded_ids}
    return table.replace_schema_metadata({name: json.dumps(each) for name, each in facts.items()})


def _with_signatures(table: pa.Table, job: CleaningJob) -> pa.Table:
    """Return the table, with a column of signatures if near-duplicates are dropped."""
    if job.cleaning.near_duplicate_similarity == 1:
        return table
    values = signatures(table["text"].to_pylist())
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), NUM_BINS)
    return table.append_column(SIGNATURE, column)


def records_of(
    ranges: Iterable[SourceRange], source: SourceSettings
) -> Iterator[Document | Unreadable]:
    """Yield the records of files as they are before cleaning.

    Raises:
        SourceError: a file changed since it was listed, or can't be read now, which is transient.
        OutageError: it is gone.
    """
    for part in ranges:
        file = part.file
        place = file.uri, file.name, source, file.format, part.begin, part.end
        for record in read_documents(*place):
            if isinstance(record, Unreadable) and record.reason == NOT_READABLE:
                check_unchanged(file)
                # It could be read when it was listed, so the store or the network fails.
                raise SourceError(
                    f"{record.uri} can't be read from byte {record.offset:,} on, though it could "
                    "when it was listed. Run the stage again, or remove the file."
                ) from ConnectionError(record.uri)
            yield record


def _letter(record: Unreadable) -> dict[str, Any]:
    """Return what is kept of a record that could not be read."""
    return {
        "file": record.uri,
        "offset": record.offset,
        "reason": record.reason,
        "content_base64": base64.b64encode(record.content).decode(),
    }


def _memory_of(record: Document | Unreadable) -> int:
    """Return the approximate size of a record in bytes."""
    content = record.text if isinstance(record, Document) else record.content
    return len(content) + _BYTES_PER_RECORD


def _write_lines(uri: str, entries: Sequence[dict[str, Any]]) -> None:
    if entries:
        storage.write_bytes(uri, "".join(json.dumps(e) + "\n" for e in entries).encode())


@loaded_once
def _test_ngrams(uri: str) -> NgramIndex:
    return NgramIndex.of(read_arrow(uri)["ngram"].to_numpy())
