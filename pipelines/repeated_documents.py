"""Which documents of a corpus repeat an earlier one, found by exchanging their hashes.

Each part sends the hashes of its documents to partitions, each partition tells the parts which of
them occur more than once, and each part is then written as a shard without repeated documents.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.manifest import shard_of
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, Ints
from albert_core.text.seeds import UInt64s
from pipelines.clean_unit import KEPT, PART_BITS, Part, counts_of, ids_of, num_sentences_cut_of
from pipelines.config import CleaningSettings
from pipelines.corpus import duplicates

CONTENT, ID, BAND = range(3)
"""What a hash is of: a document's words, its id, or a band of its signature."""
_REASON = pa.field("reason", pa.string())


@dataclass(frozen=True, slots=True)
class Sent:
    """The hashes of one part that fall in one partition."""

    part: Part
    rows: NDArray[np.uint32]
    """(R,)"""
    hashes: NDArray[Any]
    """(R,) V16, or uint64 for bands."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What one partition found out about one part."""

    part: Part
    kind: int
    rows: NDArray[np.uint32]
    """(R,) rows that repeat an earlier document; BAND: that may."""
    is_known: NDArray[np.bool_]
    """(R,) whether the earlier document is in an earlier corpus."""
    earlier_parts: list[Part] = field(default_factory=list)
    """BAND: (R,) parts that the documents to compare with are in."""
    earlier_rows: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    """BAND: (R,) their rows there."""


def send_hashes(
    part: Part, cleaning: CleaningSettings, num_partitions: int
) -> Iterator[tuple[int, Sent]]:
    """Yield the hashes of the documents kept, each with the number of its partition."""
    table = read_arrow(part.uri).drop_columns("text")  # large, and not needed
    is_kept = pc.equal(table["reason"], KEPT)
    rows: NDArray[np.uint32] = np.flatnonzero(is_kept).astype(np.uint32)
    kept = table.filter(is_kept)
    ids = [_digest(name) for name in kept["id"].to_pylist()]
    for kind, digests in ((CONTENT, kept["content_hash"].to_pylist()), (ID, ids)):
        hashes = np.array(digests, dtype=f"V{duplicates.HASH_BYTES}")
        partitions = duplicates.partition_hashes(hashes, num_partitions)
        for partition, (numbers, some) in enumerate(partitions):
            yield kind * num_partitions + partition, Sent(part, rows[numbers], some)
    if cleaning.near_duplicate_similarity < 1:
        num_bands, num_rows = duplicates.bands_for(cleaning.near_duplicate_similarity)
        bands = duplicates.band_hashes(_signatures(kept), num_bands, num_rows)
        row_of_band, flat = np.repeat(rows, bands.shape[1]), bands.ravel()
        partition_of = flat % np.uint64(num_partitions)
        for partition in np.unique(partition_of).tolist():
            there = partition_of == partition
            yield BAND * num_partitions + partition, Sent(part, row_of_band[there], flat[there])


def find_repeated(
    grouped: tuple[int, Iterable[Sent]], num_partitions: int
) -> Iterator[tuple[int, Marked]]:
    """Yield for each part of the corpus which of its rows repeat an earlier one.

    Parts of earlier corpora have numbers below 0, so that they come before all others. Nothing is
    yielded for them.
    """
    key, values = grouped
    sent = sorted(values, key=lambda each: each.part.number)
    kind = key // num_partitions
    parts = {each.part.number: each.part for each in sent}
    triples = [(each.part.number, each.rows, each.hashes) for each in sent]
    if kind == BAND:
        found = duplicates.candidate_pairs(triples)
        for number, (rows, earlier, earlier_rows) in found.items():
            if number >= 0:
                others = [parts[each] for each in earlier.tolist()]
                yield number, Marked(parts[number], kind, rows, earlier < 0, others, earlier_rows)
        return
    among_all = duplicates.repeated_rows(triples)
    own = [triple for triple in triples if triple[0] >= 0]
    among_own = among_all if len(own) == len(triples) else duplicates.repeated_rows(own)
    for number, rows in among_all.items():
        if number >= 0:
            is_known = ~np.isin(rows, among_own[number])
            yield number, Marked(parts[number], kind, rows, is_known)


def write_shard(
    grouped: tuple[int, Iterable[Marked]], folder: str, cleaning: CleaningSettings
) -> tuple[int, dict[str, Any]]:
    """Write a part's documents without those that repeat an earlier one; return its report."""
    number, values = grouped
    marks = sorted(values, key=lambda mark: mark.kind)
    part = marks[0].part
    table = read_arrow(part.uri)
    reasons = np.array(table["reason"].to_pylist(), object)
    counts, num_sentences_cut = counts_of(table.schema), num_sentences_cut_of(table.schema)
    for mark in marks:
        if mark.kind == CONTENT:
            dropped = mark.is_known | cleaning.drop_duplicates
            rows, is_known = mark.rows[dropped], mark.is_known[dropped]
            _drop(reasons, rows, is_known, "duplicate", counts)
        elif mark.kind == ID and len(mark.rows):
            table = _renamed(table, mark.rows)
    if near := [mark for mark in marks if mark.kind == BAND and len(mark.rows)]:
        is_kept = reasons == KEPT
        rows, is_known = _near_duplicates(table, is_kept, near, cleaning.near_duplicate_similarity)
        _drop(reasons, rows, is_known, "near_duplicate", counts)
    documents = table.select(DOCUMENT_SCHEMA.names).replace_schema_metadata(None)
    is_kept = reasons == KEPT
    written = {"documents": documents if is_kept.all() else documents.filter(pa.array(is_kept))}
    if cleaning.keep_rejected:
        with_reason = documents.append_column(_REASON, pa.array(reasons, pa.string()))
        written["rejected"] = with_reason.filter(pa.array(~is_kept))
    shards = []
    for kind, rows_of_kind in written.items():
        if rows_of_kind.num_rows:
            name = f"{number >> PART_BITS:05d}-{number % (1 << PART_BITS):03d}"
            uri = storage.join(folder, f"{kind}-{name}.arrow")
            write_arrow(rows_of_kind, uri)
            shards.append(shard_of(uri, folder, kind, rows_of_kind.num_rows))
    return number, {
        "shards": [shard.model_dump() for shard in shards],
        "counts": dict(counts),
        "num_sentences_cut": num_sentences_cut,
        "text_bytes": written["documents"]["text"].nbytes,
        "unreadable": part.unreadable if storage.exists(part.unreadable) else "",
        "overlaps": part.overlaps if storage.exists(part.overlaps) else "",
    }


def _drop(
    reasons: NDArray[np.object_],
    rows: NDArray[np.uint32],
    is_known: NDArray[np.bool_],
    reason: str,
    counts: Counter[str],
) -> None:
    for row, known in zip(rows.tolist(), is_known.tolist(), strict=True):
        if reasons[row] == KEPT:
            reasons[row] = f"{reason}_of_known_corpus" if known else reason
            counts[KEPT] -= 1
            counts[reasons[row]] += 1


def _renamed(table: pa.Table, rows: NDArray[np.uint32]) -> pa.Table:
    """Return the table with ids in ``rows`` that end in the beginning of the content's hash."""
    ids: list[str] = table["id"].to_pylist()
    for row in rows.tolist():
        ids[row] = ids_of(ids[row], table["content_hash"][row].as_py())[1]
    return table.set_column(table.schema.get_field_index("id"), "id", [ids])


def _near_duplicates(
    table: pa.Table, is_kept: NDArray[np.bool_], marks: list[Marked], similarity: float
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the rows to keep that are like an earlier document, and whether that is known.

    Each pair that met in a band is compared by its sets of shingles, a part of earlier documents
    at a time, those of known corpora first.
    """
    parts = {part.number: part for mark in marks for part in mark.earlier_parts}
    met = np.concatenate([_pairs_of(mark) for mark in marks])
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
    return np.array(list(found), np.uint32), np.array(list(found.values()), bool)


def _pairs_of(mark: Marked) -> Ints:
    """Return (R, 3): the number of the earlier part, the row there, and the row here."""
    numbers = np.array([part.number for part in mark.earlier_parts])
    return np.stack([numbers, mark.earlier_rows, mark.rows], axis=1).astype(np.int64)


def _shingle_sets(table: pa.Table, rows: Ints) -> dict[int, UInt64s]:
    numbers = np.unique(rows)
    texts = table["text"].take(pa.array(numbers)).to_pylist()
    return dict(zip(numbers.tolist(), duplicates.shingle_sets(texts), strict=True))


def _signatures(table: pa.Table) -> NDArray[np.uint32]:
    column = table["signature"].combine_chunks()
    return column.flatten().to_numpy().reshape(-1, duplicates.NUM_BINS)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=duplicates.HASH_BYTES).digest()
