"""Example shards of random pieces with real masks and a real vocabulary, made in no time."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from albert_core.stage import manifest, storage
from albert_core.stage.settings import Settings
from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, NUM_SPECIAL, SEP, Sizes
from albert_core.text.seeds import random_bits
from albert_core.text.tokenizer import SPIECE_MODEL
from albert_core.training.batches import Batch, Rows
from tests.albert_core.tiny_vocab import tiny_vocab
from tests.made_results import made_result

MASKED_LM_PROB, MAX_NGRAM = 0.15, 3


def made_examples(
    work: str,
    num_examples: int,
    max_seq_length: int,
    num_shards: int = 3,
    fidelity: str = "paper",
    compression: str | None = None,
) -> str:
    """Write training examples below ``work``; return their manifest's URI.

    A third have full length, the others any from 7 pieces on; no two have the same pieces.
    """
    random = np.random.default_rng(num_examples)
    tokenizer = tiny_vocab()
    lengths = random.integers(7, max_seq_length + 1, num_examples)
    lengths[::3] = max_seq_length
    b_starts = random.integers(3, lengths - 2)
    pieces = random.integers(NUM_SPECIAL, tokenizer.vocab_size, lengths.sum()).astype(np.uint16)
    starts = np.cumsum(lengths) - lengths
    pieces[starts], pieces[starts + b_starts - 1], pieces[starts + lengths - 1] = CLS, SEP, SEP
    seeds = random_bits(11, np.arange(num_examples))
    opens_word = tokenizer.starts_word
    max_predictions = round(MASKED_LM_PROB * max_seq_length)
    masked = mask_examples(
        pieces, lengths, b_starts, opens_word, seeds, MASKED_LM_PROB, MAX_NGRAM, max_predictions
    )
    columns = {
        "input_ids": lists(masked.input_ids, lengths),
        "segment_b_start": b_starts.astype(np.uint16),
        "masked_lm_positions": lists(masked.positions, masked.num_predictions),
        "masked_lm_labels": lists(masked.labels, masked.num_predictions),
        "sentence_order_label": random.integers(0, 2, num_examples).astype(np.uint8),
        "document_id": [f"d{number}" for number in range(num_examples)],
        **{name: np.zeros(num_examples, int) for name in ("first_sentence", "last_sentence")},
        "copy": np.zeros(num_examples, int),
    }
    table = pa.table(columns, schema=EXAMPLE_SCHEMA)
    storage.write_bytes(storage.join(work, "vocab", SPIECE_MODEL), tokenizer.model)
    settings = {"masked_lm_prob": MASKED_LM_PROB, "max_ngram": MAX_NGRAM}
    result = made_result(
        "examples",
        fidelity=fidelity,
        max_seq_length=max_seq_length,
        max_predictions=max_predictions,
        num_train=num_examples,
        vocab_size=tokenizer.vocab_size,
    )
    cuts = np.linspace(0, num_examples, num_shards + 1).astype(int).tolist()
    shards = [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]
    return write_examples(work, shards, settings, result, compression)


def write_examples(
    work: str,
    shards: list[pa.Table],
    settings: dict[str, Any],
    result: Settings,
    compression: str | None = None,
    rows_per_batch: int | None = None,
) -> str:
    """Write each of ``shards`` as a shard of training examples; return their manifest's URI."""
    vocab = {"vocab": storage.join(work, "vocab", manifest.MANIFEST)}
    plan = manifest.StagePlan("examples", settings, {}, "code", {}, input_manifests=vocab)
    folder = plan.folder(work)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    written = []
    for number, table in enumerate(shards):
        uri = storage.join(folder, f"train-{number:05d}.arrow")
        with (
            storage.open_atomic(uri) as file,
            pa.ipc.new_file(file, EXAMPLE_SCHEMA, options=options) as writer,
        ):
            writer.write_table(table, rows_per_batch)
        written.append(manifest.shard_of(uri, folder, "train", len(table)))
    return plan.write(work, written, [], result)


def write_rows(work: str, shards: Sequence[Sequence[dict[str, Any]]], **options: Any) -> str:
    """Write ``shards`` of examples, by row, below ``work``; return their manifest's URI."""
    rest = {"first_sentence": 0, "last_sentence": 1, "copy": 0}
    tables = [
        pa.Table.from_pylist([row | rest for row in rows], schema=EXAMPLE_SCHEMA) for rows in shards
    ]
    return write_examples(work, tables, {}, made_result("examples"), **options)


def lists(values: Any, lengths: Any) -> pa.ListArray:
    """Return a column of lists of ``lengths``, from their values laid end to end."""
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.asarray(values).astype(np.uint16))


def assert_equal(one: Batch, other: Batch) -> None:
    """Fail unless the two have the same content."""
    for name in Batch.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name


def sizes_of(rows: Rows) -> Sizes:
    """Return the sizes of an update over ``rows``."""
    return Sizes.of_lengths(rows.lengths, int(rows.num_predictions.sum()))
