"""One corpus shard to its part: its examples, masked, in the order of the global shuffle.

An example's place in the shuffle is drawn under its own key. So each part is sorted by itself,
before its rows are made, and the shards are cut out of all parts by binary search. A part depends
only on its corpus shard, the vocabulary and the settings: unchanged parts are not made again.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.text.arrow_files import open_arrow
from albert_core.text.records import (
    CLS,
    EXAMPLE_SCHEMA,
    OTHER_DOCUMENT_FIELDS,
    SEP,
    Bools,
    Ints,
    UInt16s,
    begins_of,
    ranges,
)
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer
from pipelines.config import ExampleSettings
from pipelines.engine import loaded_once, work_notes
from pipelines.examples.held_out import is_held_out
from pipelines.examples.pairs import (
    CUT_BY,
    MASK_BY,
    NUM_LENGTHS,
    SegmentPairs,
    Sentences,
    assemble,
    count_lengths,
    join_pairs,
)

TRAIN, HELD_OUT = "train", "held_out"
KINDS = (TRAIN, HELD_OUT)
PIECES = "pieces, all copies"
"""Name of the account of the documents' pieces."""
ORDER = "order"
"""Column by which a part is sorted: the place in the shuffle, 0..2**64 - 1."""
_BYTES_PER_CALL = 1 << 21
"""Bytes of text encoded in one call: enough for SentencePiece, and they fit the cache."""
_PIECES_PER_BLOCK = 1 << 18
"""Pieces, roughly, that are masked together and make a record batch; they fit the cache."""
_MASKS, _SHUFFLE = 1 << 32, 2 << 32
"""Purposes of further draws under a pair's key, besides those in `pairs`."""
_ORDERS = b"orders-"
"""Metadata of a part's schema: this and a kind -> where its batches begin in the shuffle."""


@dataclass(frozen=True, slots=True)
class Text:
    """The documents of one corpus shard in pieces."""

    ids: Sequence[str]
    """(D,)"""
    sentences: Sentences
    line: Ints
    """(n,) number of each sentence's line in its document; lines without a piece are left out."""


@dataclass(frozen=True, slots=True)
class Rows:
    """R pairs of one kind, in the order of the shuffle."""

    pairs: SegmentPairs
    copy: UInt16s
    """(R,)"""


@loaded_once
def load_tokenizer(folder: str, *settings: bool) -> Tokenizer:
    """Return the tokenizer of a vocabulary, as `Tokenizer.load`; the last one stays in memory."""
    return Tokenizer.load(folder, *settings)


def example_schema(settings: ExampleSettings) -> pa.Schema:
    """Return the schema of the shards, which names the other document where there may be one."""
    if settings.objective != "nsp" and settings.fidelity != "google":
        return EXAMPLE_SCHEMA
    return pa.schema([*EXAMPLE_SCHEMA, *(pa.field(*field) for field in OTHER_DOCUMENT_FIELDS)])


def encode_documents(documents: pa.Table, tokenizer: Tokenizer) -> Text:
    """Return the documents of a corpus shard in pieces."""
    ids = documents["id"].to_pylist()
    num_calls = max(1, documents["text"].nbytes // _BYTES_PER_CALL)
    batches = documents.to_batches(max_chunksize=max(1, documents.num_rows // num_calls))
    encoded = [
        tokenizer.encode_lines(batch["text"].cast(pa.large_binary()).to_pylist())
        for batch in batches
    ]
    pieces, lengths, lines = (
        np.concatenate([part[i] for part in encoded]) if encoded else np.zeros(0, np.int64)
        for i in range(3)
    )
    first_line = begins_of(lines)
    kept = np.flatnonzero(lengths)
    first = np.searchsorted(kept, np.append(first_line, len(lengths)))
    bounds = np.append(0, np.cumsum(lengths[kept]))
    line = kept - np.repeat(first_line, np.diff(first))
    return Text(ids, Sentences(pieces.astype(np.int32, copy=False), bounds, first), line)


def make_rows(
    text: Text, held_out: Bools, settings: ExampleSettings
) -> tuple[dict[str, Rows], Counter[str]]:
    """Return the pairs of all copies of ``text``, by kind, and what became of the pieces.

    Held-out documents have one copy only, because they are evaluated once.

    Args:
        text: text of one corpus shard.
        held_out: bool (D,), which documents are kept from training.
        settings: settings of the stage.
    """
    seeds = [derive_seed(settings.seed, "examples", name) for name in text.ids]
    keys = np.array(seeds, np.uint64)
    cut = CUT_BY[settings.fidelity]
    counts: Counter[str] = Counter()
    rows = {}
    for kind in KINDS:
        documents = np.flatnonzero(held_out == (kind == HELD_OUT))
        parts = []
        for copy in range(settings.dupe_factor if kind == TRAIN else 1):
            cut_keys = random_bits(keys[documents], copy)
            pairs, counted = cut(text.sentences, documents, cut_keys, settings)
            parts.append(pairs)
            counts.update(counted)
            counts["pieces"] += int(text.sentences.num_pieces(documents).sum())
            if copy == 0:
                num_with_pair = len(np.unique(pairs.document))
                counts["documents"] += len(documents)
                counts["documents_without_pair"] += len(documents) - num_with_pair
                counts["documents_held_out"] += num_with_pair if kind == HELD_OUT else 0
        rows[kind] = _shuffled(parts)
    return rows, counts


def _shuffled(copies: list[SegmentPairs]) -> Rows:
    pairs = join_pairs(copies)
    copy = np.repeat(np.arange(len(copies), dtype=np.uint16), [len(part) for part in copies])
    places = np.argsort(_order(pairs), kind="stable")
    return Rows(pairs.take(places), copy[places])


def _order(pairs: SegmentPairs) -> UInt64s:
    """Return (R,) the places of pairs in the shuffle."""
    return random_bits(pairs.key, _SHUFFLE)


def record_batches(
    text: Text, rows: Rows, settings: ExampleSettings, opens_word: Bools
) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` as masked examples, with their place in the shuffle.

    Args:
        text: text that the pairs are cut from.
        rows: pairs of one kind.
        settings: settings of the stage.
        opens_word: bool (V,), whether each piece of the vocabulary opens a word.
    """
    pieces = np.append(text.sentences.pieces, [CLS, SEP]).astype(np.uint16)
    ids = pa.array(text.ids, pa.string())
    line = np.append(text.line, 0)  # the last for sentence -1: no other document
    size = rows_per_batch(settings)
    for begin in range(0, len(rows.pairs), size):
        block = slice(begin, begin + size)
        pairs = rows.pairs.take(block)
        input_ids, lengths, b_starts = assemble(pieces, pairs)
        masked = MASK_BY[settings.fidelity](
            input_ids,
            lengths,
            b_starts,
            opens_word,
            random_bits(pairs.key, _MASKS),
            settings.masked_lm_prob,
            settings.max_ngram,
            settings.max_predictions,
        )
        columns = [
            _lists(masked.input_ids, lengths),
            pa.array(b_starts.astype(np.uint16)),
            _lists(masked.positions, masked.num_predictions),
            _lists(masked.labels, masked.num_predictions),
            pa.array(pairs.label),
            ids.take(pa.array(pairs.document)),
            pa.array(line[pairs.first_sentence].astype(np.uint32)),
            pa.array(line[pairs.last_sentence].astype(np.uint32)),
            pa.array(rows.copy[block]),
        ]
        if example_schema(settings) is not EXAMPLE_SCHEMA:
            same = pairs.other_document < 0
            columns += [
                ids.take(pa.array(pairs.other_document, mask=same)),
                pa.array(line[pairs.other_first_sentence].astype(np.uint32), mask=same),
                pa.array(line[pairs.other_last_sentence].astype(np.uint32), mask=same),
            ]
        columns.append(pa.array(_order(pairs)))
        yield pa.record_batch(columns, schema=part_schema(settings))


def rows_per_batch(settings: ExampleSettings) -> int:
    """Return how many examples of one part are made at once."""
    return max(1, _PIECES_PER_BLOCK // settings.max_seq_length)


def write_part(
    documents: pa.Table, uri: str, settings: ExampleSettings, tokenizer: Tokenizer
) -> None:
    """Write the examples of one corpus shard to ``uri``, each kind in the order of the shuffle.

    The metadata of the schema says where each record batch begins in the shuffle. The note on the
    part, which has its tally, is written last: it makes the part complete.
    """
    text = encode_documents(documents, tokenizer)
    held_out = np.array([is_held_out(name, settings) for name in text.ids], bool)
    rows, counts = make_rows(text, held_out, settings)
    step = rows_per_batch(settings)
    orders = {_ORDERS + k.encode(): _order(rows[k].pairs)[::step].tobytes() for k in KINDS}
    schema = part_schema(settings).with_metadata(orders)
    with storage.open_atomic(uri) as file, pa.ipc.new_file(file, schema) as writer:
        for kind in KINDS:
            for batch in record_batches(text, rows[kind], settings, tokenizer.starts_word):
                writer.write_batch(batch)
    tally = {
        "counts": counts,
        "unigrams": _packed(_unigrams(text, held_out, tokenizer.vocab_size)),
        "pair_lengths": _packed(np.stack([count_lengths(rows[kind].pairs) for kind in KINDS])),
    }
    work_notes.write_note(_note_uri(uri), [uri.rpartition("/")[2]], tally)


def is_made(uri: str) -> bool:
    """Return whether the part at ``uri`` is complete."""
    return storage.exists(_note_uri(uri))


def damage(uri: str) -> str | None:
    """Return how the finished part at ``uri`` is damaged; None if it is as written."""
    return work_notes.damage(_note_uri(uri))


@dataclass(frozen=True, slots=True)
class PartTally:
    """What became of the text of one corpus shard, or of several."""

    counts: Counter[str]
    """Documents and pieces of all copies: in all, and by what became of them."""
    unigrams: Ints
    """(V,) how often each piece occurs in one copy of the training documents."""
    pair_lengths: Ints
    """(len(KINDS), ...) pairs by the lengths of their segments: `count_lengths` of each kind."""

    def __add__(self, other: "PartTally") -> "PartTally":
        """Return the tally of both."""
        counts, unigrams = self.counts + other.counts, self.unigrams + other.unigrams
        return PartTally(counts, unigrams, self.pair_lengths + other.pair_lengths)

    def num_rows(self, kind: str) -> int:
        """Return the number of examples of ``kind``."""
        return int(self.pair_lengths[KINDS.index(kind)].sum())


def read_tally(uri: str) -> PartTally:
    """Return the tally of the part at ``uri``."""
    tally = work_notes.read_facts(_note_uri(uri))
    pair_lengths = _unpacked(tally["pair_lengths"]).reshape(len(KINDS), NUM_LENGTHS, NUM_LENGTHS, 2)
    return PartTally(Counter(tally["counts"]), _unpacked(tally["unigrams"]), pair_lengths)


def _packed(numbers: Ints) -> str:
    """Return numbers for JSON, which as a list of all pieces would take longer than the masks."""
    return base64.b64encode(numbers.astype("<i8").tobytes()).decode()


def _unpacked(packed: str) -> Ints:
    return np.frombuffer(base64.b64decode(packed), "<i8")


def write_part_list(parts: Iterable[str], uri: str) -> None:
    """Write the URIs of all parts to ``uri``, sorted."""
    storage.write_bytes(uri, json.dumps(sorted(parts)).encode())


@loaded_once
def read_part_list(uri: str) -> tuple[str, ...]:
    """Return the URIs of all parts; the last list stays in memory."""
    return tuple(json.loads(storage.read_bytes(uri)))


def rows_between(uri: str, kind: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Yield the examples of one kind whose place in the shuffle is in low..high, inclusive.

    Only the record batches that have such rows are read.
    """
    reader = open_arrow(uri)
    metadata = reader.schema.metadata
    orders = {k: np.frombuffer(metadata[_ORDERS + k.encode()], np.uint64) for k in KINDS}
    before = sum(len(orders[k]) for k in KINDS[: KINDS.index(kind)])
    first = max(0, int(np.searchsorted(orders[kind], np.uint64(low))) - 1)
    stop = int(np.searchsorted(orders[kind], np.uint64(high), side="right"))
    for number in range(first, stop):
        batch = reader.get_batch(before + number)
        order = batch[ORDER].to_numpy()
        begin = int(np.searchsorted(order, np.uint64(low)))
        end = int(np.searchsorted(order, np.uint64(high), side="right"))
        if begin < end:
            yield batch.slice(begin, end - begin)


def merged(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows of all ``batches`` in the order of the shuffle, in the columns of ``schema``.

    Rows with the same place, which hardly ever occur, stay in the order of ``batches``.
    """
    if not batches:
        return schema.empty_table()
    order = np.concatenate([batch[ORDER].to_numpy() for batch in batches])
    places = np.argsort(order, kind="stable")
    indices = pa.array(places)
    columns = []
    for field in schema:
        parts = [batch[field.name] for batch in batches]
        if pa.types.is_list(field.type):
            columns.append(_merged_lists(parts, places))
        else:
            columns.append(pa.concat_arrays(parts).take(indices))
    return pa.table(columns, schema=schema)


def _merged_lists(parts: Sequence[pa.ListArray], places: Ints) -> pa.ListArray:
    """Return the lists of all ``parts`` in the order of ``places``; faster than `take`."""
    lists: list[UInt16s] = []
    for part in parts:
        values, ends = part.values.to_numpy(), part.offsets.to_numpy().tolist()
        lists += [values[begin:end] for begin, end in pairwise(ends)]
    ordered = [lists[place] for place in places.tolist()]
    lengths = np.fromiter(map(len, ordered), np.int64, len(ordered))
    return _lists(np.concatenate(ordered), lengths)


def part_schema(settings: ExampleSettings) -> pa.Schema:
    """Return the schema of a part: that of the shards, and the place in the shuffle."""
    return example_schema(settings).append(pa.field(ORDER, pa.uint64()))


def _note_uri(uri: str) -> str:
    return f"{uri.removesuffix('.arrow')}.json"


def _unigrams(text: Text, held_out: Bools, vocab_size: int) -> Ints:
    sentences = text.sentences
    documents = np.flatnonzero(held_out)
    of_held_out = sentences.pieces[
        ranges(sentences.bounds[sentences.first[documents]], sentences.num_pieces(documents))
    ]
    counts = -np.bincount(of_held_out, minlength=vocab_size)
    for begin in range(0, len(sentences.pieces), _PIECES_PER_BLOCK):  # each fits the cache
        block = sentences.pieces[begin : begin + _PIECES_PER_BLOCK]
        counts += np.bincount(block, minlength=vocab_size)
    return counts.astype(np.int64)


def _lists(values: NDArray[Any], lengths: Ints) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, values.astype(np.uint16, copy=False))
