"""Stage 3: clean documents to example shards, globally shuffled, in Arrow and TFRecord.

Each corpus shard is encoded once and its examples go to a passing file, one record batch for
each shard to come; then each shard gathers its batches and puts its rows in the order of their
hashed keys. Only file names and batch numbers travel through Beam.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from albert_core.contract import storage
from albert_core.contract.arrow_files import open_arrow, read_arrow, write_arrow
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import SourceError
from albert_core.contract.manifest import (
    Account,
    Manifest,
    Shard,
    StagePlan,
    check_shard,
    read_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.contract.records import EXAMPLE_SCHEMA, NUM_SPECIAL_IN_PAIR
from albert_core.contract.seeds import derive_seed, random_bits
from albert_core.contract.stage_command import stage_main
from albert_core.contract.tokenizer import Tokenizer
from pipelines.config import ExampleSettings
from pipelines.engine import Progress, run_pipeline
from pipelines.held_out import is_held_out
from pipelines.masking import mask_examples
from pipelines.ragged import Ints
from pipelines.segment_pairs import SegmentPairs, assemble, cut_into_pairs
from pipelines.tf_examples import tf_examples
from pipelines.tfrecord import write_tfrecord

STAGE = "examples"
TRAIN, HELD_OUT = "train", "held_out"
_DOCUMENTS_PER_BATCH = 256
_ARROW_BYTES_PER_TEXT_BYTE = 0.6
"""About one piece of 2 bytes for 4 bytes of text, and its share of masks and ids."""
_ORDER_COUNTER = 0xFFFFFFFF
"""Counter of the draw for an example's place in the shuffle; no position is as high."""
_SPILL_SCHEMA = EXAMPLE_SCHEMA.append(pa.field("order", pa.uint64()))

log = logging.getLogger(STAGE)

ShardName = tuple[str, int]
"""Kind (train or held_out) and number."""
Spilled = tuple[ShardName, tuple[str, int]]
"""Shard that the examples go to; the passing file and the record batch where they are."""


@dataclass(frozen=True)
class ExamplePlan:
    """What every worker needs to know to make examples."""

    settings: ExampleSettings
    corpus_folder: str
    folder: str
    scratch: str
    tokenizer: Tokenizer
    num_shards: dict[str, int]
    """Kind -> number of shards."""


def run(examples: ExampleSettings, corpus: str, vocab: str, work: str) -> str:
    """Make pretraining examples of the corpus; return their manifest.

    Raises:
        SourceError: the corpus is too small to give training and held-out examples.
    """
    corpus_manifest, vocab_manifest = read_manifest(corpus), read_manifest(vocab)
    plan = StagePlan(
        stage=STAGE,
        settings=examples.model_dump(),
        inputs={"corpus": corpus_manifest.content, "vocab": vocab_manifest.content},
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece"),
        input_manifests={"corpus": corpus, "vocab": vocab},
    )
    if done := plan.find(work):
        return done
    shards = corpus_manifest.shards_of("documents")
    with scratch_folder(plan.folder(work)) as scratch:
        example_plan = ExamplePlan(
            settings=examples,
            corpus_folder=corpus.rpartition("/")[0],
            folder=plan.folder(work),
            scratch=scratch,
            tokenizer=_load_tokenizer(vocab, vocab_manifest),
            num_shards=_num_shards(corpus_manifest, examples),
        )
        progress = Progress(f"{STAGE}: corpus shards done", _tallies(scratch), len(shards))
        transform = MakeExamples(example_plan)
        reports = run_pipeline(transform.expand, list(enumerate(shards)), scratch, progress)
        tallies = [
            json.loads(storage.read_bytes(entry["name"]))
            for entry in storage.list_folder(_tallies(scratch))
        ]
    return _finish(plan, work, reports, tallies, vocab_manifest)


class MakeExamples(beam.PTransform):
    """PCollection[(number, corpus Shard)] -> PCollection[(example shard, report)]."""

    def __init__(self, plan: ExamplePlan) -> None:
        super().__init__()
        self.plan = plan

    def expand(
        self, shards: PCollection[tuple[int, Shard]]
    ) -> PCollection[tuple[ShardName, dict[str, Any]]]:
        """Make the examples of each corpus shard, then gather those of each example shard."""
        return (
            shards
            | "Make" >> beam.FlatMap(_make_examples, self.plan)
            | "ByShard" >> beam.GroupByKey()
            | "WriteShard" >> beam.Map(_write_shard, self.plan)
        )


def _load_tokenizer(vocab: str, manifest: Manifest) -> Tokenizer:
    folder = vocab.rpartition("/")[0]
    for shard in manifest.shards:
        check_shard(shard, folder)
    return Tokenizer.load(folder, manifest.facts["lower_case"])


def _num_shards(corpus: Manifest, settings: ExampleSettings) -> dict[str, int]:
    per_copy = corpus.facts["text_bytes"] * _ARROW_BYTES_PER_TEXT_BYTE / (settings.shard_mb * 1e6)
    held_out = per_copy * settings.held_out_share
    return {
        TRAIN: math.ceil((per_copy - held_out) * settings.dupe_factor),
        HELD_OUT: math.ceil(held_out),
    }


def _tallies(scratch: str) -> str:
    return storage.join(scratch, "tallies")


def _make_examples(numbered: tuple[int, Shard], plan: ExamplePlan) -> Iterator[Spilled]:
    """Make every copy's examples of one corpus shard; leave a tally of what became of it."""
    number, shard = numbered
    check_shard(shard, plan.corpus_folder)
    documents = read_arrow(storage.join(plan.corpus_folder, shard.path))
    tally: Counter[str] = Counter()
    unigrams = np.zeros(plan.tokenizer.vocab_size, np.int64)
    spill = storage.join(plan.scratch, "spill", f"{number:05d}.arrow")
    batches: list[ShardName] = []
    with storage.open_atomic(spill) as file, pa.ipc.new_file(file, _SPILL_SCHEMA) as writer:
        for begin in range(0, documents.num_rows, _DOCUMENTS_PER_BATCH):
            batch = documents.slice(begin, _DOCUMENTS_PER_BATCH)
            encoded = [
                _encode(document_id, text, plan.tokenizer)
                for document_id, text in zip(
                    batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True
                )
            ]
            for copy in range(plan.settings.dupe_factor):
                rows = _examples_of(encoded, copy, plan, tally, unigrams)
                for name, part in _by_shard(rows, plan):
                    writer.write_batch(part)
                    batches.append(name)
    content = {"counts": tally, "unigrams": unigrams.tolist()}
    storage.write_bytes(
        storage.join(_tallies(plan.scratch), f"{number:05d}.json"), json.dumps(content).encode()
    )
    for index, name in enumerate(batches):
        yield name, (spill, index)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """One document in pieces: (N,) ids, and (n,) lengths of its sentences."""

    id: str
    pieces: Ints
    sentence_lengths: Ints


def _encode(document_id: str, text: str, tokenizer: Tokenizer) -> _Encoded:
    sentences = [ids for ids in tokenizer.encode(text.split("\n")) if ids]
    lengths = np.array([len(ids) for ids in sentences], np.int64)
    pieces = np.array([piece for ids in sentences for piece in ids], np.int64)
    return _Encoded(document_id, pieces, lengths)


def _examples_of(
    documents: list[_Encoded],
    copy: int,
    plan: ExamplePlan,
    tally: Counter[str],
    unigrams: Ints,
) -> pa.Table:
    """Return the examples of one copy of ``documents``, and whether each is held out.

    Held-out documents have their first copy only, because they are evaluated once.
    """
    settings = plan.settings
    opens_word = plan.tokenizer.starts_word
    held_out = [is_held_out(document.id, settings) for document in documents]
    if copy > 0:
        documents = [d for d, out in zip(documents, held_out, strict=True) if not out]
        held_out = [False] * len(documents)
    pairs = [_cut(document, copy, settings) for document in documents]
    for document, of_document, out in zip(documents, pairs, held_out, strict=True):
        _tally_document(tally, document, of_document, out, copy)
        if copy == 0 and not out:
            unigrams += np.bincount(document.pieces, minlength=len(unigrams))
    counts = np.array([len(of_document.swapped) for of_document in pairs], np.int64)
    if not counts.sum():
        return _SPILL_SCHEMA.empty_table()

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(of_document, name) for of_document in pairs])

    sizes = np.array([len(document.pieces) for document in documents])
    offset = np.repeat(np.cumsum(sizes) - sizes, counts)
    input_ids, lengths, b_starts = assemble(
        np.concatenate([document.pieces for document in documents]),
        (joined("first_start") + offset, joined("first_end") + offset),
        (joined("second_start") + offset, joined("second_end") + offset),
        joined("swapped"),
    )
    seeds = np.concatenate(
        [
            random_bits(derive_seed(settings.seed, "mask", document.id, copy), np.arange(count))
            for document, count in zip(documents, counts, strict=True)
        ]
    )
    masked = mask_examples(
        input_ids,
        lengths,
        b_starts,
        opens_word,
        seeds,
        settings.masked_lm_prob,
        settings.max_ngram,
    )
    ids = np.repeat(np.array([document.id for document in documents], object), counts)
    columns = [
        _lists(masked.input_ids, lengths),
        pa.array(b_starts.astype(np.uint16)),
        _lists(masked.positions, masked.num_predictions),
        _lists(masked.labels, masked.num_predictions),
        pa.array(joined("swapped").astype(np.uint8)),
        pa.array(ids, pa.string()),
        pa.array(joined("first_sentence").astype(np.uint32)),
        pa.array(joined("last_sentence").astype(np.uint32)),
        pa.array(np.full(len(lengths), copy, np.uint16)),
        pa.array(random_bits(seeds, _ORDER_COUNTER)),
    ]
    rows = pa.table(columns, schema=_SPILL_SCHEMA)
    return rows.append_column("held_out", pa.array(np.repeat(held_out, counts), pa.bool_()))


def _cut(document: _Encoded, copy: int, settings: ExampleSettings) -> SegmentPairs:
    return cut_into_pairs(
        document.sentence_lengths,
        derive_seed(settings.seed, "pairs", document.id, copy),
        settings.max_num_pieces,
        settings.short_seq_prob,
    )


def _tally_document(
    tally: Counter[str], document: _Encoded, pairs: SegmentPairs, held_out: bool, copy: int
) -> None:
    num_pairs = len(pairs.swapped)
    tally["pieces"] += len(document.pieces)
    tally["last_sentence_alone"] += pairs.num_alone
    tally["truncated"] += pairs.num_truncated
    if copy == 0:
        tally["documents"] += 1
        tally["documents_without_pair"] += num_pairs == 0
        tally["documents_held_out"] += held_out and num_pairs > 0


def _lists(values: Ints, lengths: Ints) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, values.astype(np.uint16))


def _by_shard(rows: pa.Table, plan: ExamplePlan) -> Iterator[tuple[ShardName, pa.RecordBatch]]:
    """Yield the rows that go to each shard: those whose key falls on its number."""
    if rows.num_rows == 0:
        return
    order = rows["order"].to_numpy()
    held_out = rows["held_out"].to_numpy()
    rows = rows.drop_columns("held_out").combine_chunks()
    for kind, of_kind in ((TRAIN, ~held_out), (HELD_OUT, held_out)):
        numbers = order % np.uint64(plan.num_shards[kind])
        for number in np.unique(numbers[of_kind]).tolist():
            part = rows.filter(pa.array(of_kind & (numbers == number)))
            yield (kind, number), part.combine_chunks().to_batches()[0]


def _write_shard(
    grouped: tuple[ShardName, Iterable[tuple[str, int]]], plan: ExamplePlan
) -> tuple[ShardName, dict[str, Any]]:
    (kind, number), parts = grouped
    files: dict[str, list[int]] = {}
    for spill, index in parts:
        files.setdefault(spill, []).append(index)
    batches = [
        batch for spill in sorted(files) for batch in _read_batches(spill, sorted(files[spill]))
    ]
    rows = pa.Table.from_batches(batches).combine_chunks()
    keys = [("order", "ascending"), ("document_id", "ascending"), ("first_sentence", "ascending")]
    rows = rows.sort_by(keys).select(EXAMPLE_SCHEMA.names)
    name = f"{kind}-{number:05d}-of-{plan.num_shards[kind]:05d}"
    uri = storage.join(plan.folder, f"{name}.arrow")
    write_arrow(rows, uri)
    shards = [shard_of(uri, plan.folder, kind, rows.num_rows)]
    if plan.settings.tfrecord:
        uri = storage.join(plan.folder, f"{name}.tfrecord")
        settings = plan.settings
        write_tfrecord(
            tf_examples(
                rows, settings.max_seq_length, settings.max_predictions, plan.tokenizer.starts_word
            ),
            uri,
        )
        shards.append(shard_of(uri, plan.folder, f"{kind}_tfrecord", rows.num_rows))
    report = {
        "shards": [shard.model_dump() for shard in shards],
        "num_pieces": len(rows["input_ids"].combine_chunks().values),
        "num_predictions": len(rows["masked_lm_labels"].combine_chunks().values),
        "num_swapped": int(rows["sentence_order_label"].to_numpy().sum()),
    }
    if kind == HELD_OUT:
        labels = rows["masked_lm_labels"].combine_chunks().values.to_numpy()
        report["labels"] = np.bincount(labels, minlength=plan.tokenizer.vocab_size).tolist()
    return (kind, number), report


def _read_batches(spill: str, indexes: list[int]) -> list[pa.RecordBatch]:
    reader = open_arrow(spill)
    return [reader.get_batch(index) for index in indexes]


def _finish(
    plan: StagePlan,
    work: str,
    reports: list[dict[str, Any]],
    tallies: list[dict[str, Any]],
    vocab: Manifest,
) -> str:
    shards = [Shard(**shard) for report in reports for shard in report["shards"]]
    rows = {kind: sum(s.num_rows for s in shards if s.kind == kind) for kind in (TRAIN, HELD_OUT)}
    counts: Counter[str] = Counter()
    for tally in tallies:
        counts.update(tally["counts"])
    if not all(rows.values()):
        raise SourceError(
            f"the corpus gives {rows[TRAIN]} training and {rows[HELD_OUT]} held-out examples from "
            f"{counts['documents']} documents; both must be at least 1. Give more text, or raise "
            "examples.held_out_share."
        )
    num_pieces = sum(report["num_pieces"] for report in reports)
    in_examples = num_pieces - NUM_SPECIAL_IN_PAIR * sum(rows.values())
    accounts = [_documents_account(counts), _pieces_account(counts, in_examples)]
    unigrams = np.sum([tally["unigrams"] for tally in tallies], axis=0)
    labels = np.sum([r["labels"] for r in reports if "labels" in r], axis=0)
    facts = {
        "max_seq_length": plan.settings["max_seq_length"],
        "max_predictions": ExampleSettings(**plan.settings).max_predictions,
        "num_documents_held_out": counts["documents_held_out"],
        "num_train": rows[TRAIN],
        "num_held_out": rows[HELD_OUT],
        "num_predictions": sum(report["num_predictions"] for report in reports),
        "swapped_share": sum(r["num_swapped"] for r in reports) / sum(rows.values()),
        "padding_share": 1 - num_pieces / (sum(rows.values()) * plan.settings["max_seq_length"]),
        "unigram_nats": unigram_nats(unigrams, labels),
        "vocab_size": vocab.facts["vocab_size"],
        "vocab_manifest": plan.input_manifests["vocab"],
    }
    return plan.write(work, shards, accounts, facts)


def _documents_account(counts: Counter[str]) -> Account:
    without_pair = counts["documents_without_pair"]
    return Account(
        what="documents",
        total=counts["documents"],
        kept=counts["documents"] - without_pair,
        dropped={"no_two_sentences": without_pair} if without_pair else {},
    )


def _pieces_account(counts: Counter[str], in_examples: int) -> Account:
    dropped = {reason: counts[reason] for reason in ("last_sentence_alone", "truncated")}
    return Account(
        what="pieces, all copies",
        total=counts["pieces"],
        kept=in_examples,
        dropped={reason: count for reason, count in dropped.items() if count},
    )


def unigram_nats(
    train_counts: NDArray[np.integer[Any]], label_counts: NDArray[np.integer[Any]]
) -> float:
    """Return the loss, in nats per prediction, of guessing by piece frequency alone.

    Args:
        train_counts: (V,) how often each piece stands in the training documents.
        label_counts: (V,) how often each piece is to be predicted in the held-out examples.

    Returns:
        Cross-entropy of the labels under the training frequencies, each raised by 1.
    """
    probabilities = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    return float(-(label_counts * np.log(probabilities)).sum() / label_counts.sum())


if __name__ == "__main__":
    stage_main(run)
