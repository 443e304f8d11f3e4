"""Good shards, and faults to plant in them: what other programs, or ours one day, get wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest, shard_of
from albert_core.text import masking
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, MASK, OTHER_DOCUMENT_FIELDS, SEP, UNK
from albert_core.text.seeds import random_bits
from albert_core.text.tokenizer import Tokenizer
from pipelines.examples.tfrecord import TFExample, read_tfrecord, tf_examples, write_tfrecord

Ids = NDArray[np.int64]
NONE: Ids = np.zeros(0, np.int64)


@dataclass
class Row:
    """One example that can be spoiled: the columns of EXAMPLE_SCHEMA, in its order."""

    ids: Ids
    b_start: int
    positions: Ids
    labels: Ids
    order: int
    document: str
    first: int
    last: int
    copy: int

    @property
    def unmasked(self) -> Ids:
        ids = self.ids.copy()
        ids[self.positions] = self.labels
        return ids

    @property
    def a(self) -> Ids:
        return self.unmasked[1 : self.b_start - 1]

    @property
    def b(self) -> Ids:
        return self.unmasked[self.b_start : -1]

    @property
    def inside(self) -> Ids:
        """The positions that are not special."""
        return np.delete(np.arange(len(self.ids)), [0, self.b_start - 1, -1])


Rows = list[Row]


def read_rows(path: Path) -> Rows:
    def plain(value: Any) -> Any:
        return np.array(value, np.int64) if isinstance(value, list) else value

    return [Row(*map(plain, row.values())) for row in read_arrow(str(path)).to_pylist()]


def table(rows: Rows) -> pa.Table:
    columns = zip(*(vars(row).values() for row in rows), strict=True)
    return pa.table(
        [pa.array(column, of) for column, of in zip(columns, EXAMPLE_SCHEMA.types, strict=True)],
        schema=EXAMPLE_SCHEMA,
    )


@dataclass(frozen=True)
class Shards:
    """The examples of a manifest, and what they were made of."""

    folder: Path
    corpus: str
    vocab: str

    @classmethod
    def of(cls, examples: str, corpus: str, vocab: str) -> "Shards":
        return cls(Path(examples).parent, corpus, vocab)

    @property
    def max_seq_length(self) -> int:
        return int(self.manifest.settings["max_seq_length"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.vocab.rpartition("/")[0])

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Name -> content of the manifest and the files that it names."""
        names = [MANIFEST, *(shard.path for shard in self.manifest.shards)]
        return {name: (self.folder / name).read_bytes() for name in sorted(names)}

    @property
    def manifest(self) -> Manifest:
        return read_manifest(str(self.folder / MANIFEST))

    def paths(self, kind: str) -> list[Path]:
        return [self.folder / shard.path for shard in self.manifest.shards_of(kind)]

    def copied(self, folder: Path) -> "Shards":
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return replace(self, folder=folder)

    def sign(self) -> None:
        """Write a manifest that fits the shards as they are now."""
        folder, shards = str(self.folder), []
        for shard in self.manifest.shards:
            path = str(self.folder / shard.path)
            is_arrow = path.endswith(".arrow")
            number = len(read_arrow(path)) if is_arrow else len(list(read_tfrecord(path)))
            shards.append(shard_of(path, folder, shard.kind, number))
        manifest = self.manifest.model_copy(update={"shards": shards})
        storage.write_bytes(str(self.folder / MANIFEST), manifest.model_dump_json().encode())

    def spoil_rows(self, fault: Callable[[Rows], Rows]) -> None:
        """Apply ``fault`` to each shard to train on, in Arrow and TFRecord."""
        for path in self.paths("train"):
            self.write(table(fault(read_rows(path))), path)
        self.sign()

    def write(self, rows: pa.Table, path: Path) -> None:
        write_arrow(rows, str(path))
        length = self.max_seq_length
        records = tf_examples(rows, length, length, self.tokenizer.starts_word)
        write_tfrecord(records, str(path.with_suffix(".tfrecord")))

    def spoil_records(self, name: str, fault: Callable[[list[int]], list[int]]) -> None:
        """Apply ``fault`` to a feature of each record to train on."""
        for path in self.paths("train_tfrecord"):
            examples = [TFExample.FromString(record) for record in read_tfrecord(str(path))]
            for example in examples:
                values = example.features.feature[name].int64_list.value
                values[:] = fault(list(values))
            records = (example.SerializeToString(deterministic=True) for example in examples)
            write_tfrecord(records, str(path))
        self.sign()

    def masked(self, rows: Rows, max_ngram: int = 3, most: int | None = None) -> Rows:
        """Return ``rows`` with other masks, by our own rules."""
        lengths = np.array([len(row.ids) for row in rows])
        masked = mask_examples(
            np.concatenate([row.unmasked for row in rows]),
            lengths,
            np.array([row.b_start for row in rows]),
            self.tokenizer.starts_word,
            random_bits(99, np.arange(len(rows))),
            0.15,
            max_ngram,
            most,
        )
        ids = np.split(masked.input_ids.astype(np.int64), np.cumsum(lengths)[:-1])
        cuts = np.cumsum(masked.num_predictions)[:-1]
        labels = np.split(masked.labels.astype(np.int64), cuts)
        parts = zip(rows, ids, np.split(masked.positions, cuts), labels, strict=True)
        return [replace(row, ids=i, positions=p, labels=n) for row, i, p, n in parts]


Plant = Callable[[Shards], None]


# Changes of a row


def with_masks(row: Row, positions: Ids) -> Row:
    """Return ``row`` with a [MASK] at these positions and no other prediction."""
    ids = row.unmasked
    labels = ids[positions]
    ids[positions] = MASK
    return replace(row, ids=ids, positions=positions, labels=labels)


def laid_out(row: Row, a: Ids, b: Ids) -> Row:
    """Return ``row`` with other segments, not masked."""
    ids = np.concatenate([[CLS], a, [SEP], b, [SEP]]).astype(np.int64)
    return replace(row, ids=ids, b_start=len(a) + 2, positions=NONE, labels=NONE)


def later_cut(row: Row, kept: Callable[[int], slice]) -> Row:
    """Return ``row`` with a part of the segment that is later in the document, given its length."""
    if row.order == 0:
        return laid_out(row, row.a, row.b[kept(len(row.b))])
    return laid_out(row, row.a[kept(len(row.a))], row.b)


def masked_by_rows(_: Shards, row: Row, random: Random) -> Row:
    draw = random.randrange(200)
    if draw < 153:
        return with_masks(row, NONE)
    return with_masks(row, row.inside) if draw < 195 else row


def with_special_masked(_: Shards, row: Row, random: Random) -> Row:
    at = random.choice([0, row.b_start - 1, len(row.ids) - 1])
    positions, labels = np.append(row.positions, at), np.append(row.labels, row.ids[at])
    order = np.argsort(positions)
    masked = with_piece(row, at, MASK)
    return replace(masked, positions=positions[order], labels=labels[order])


def with_replaced(low: float, high: float) -> Plant:
    """Return a fault: random pieces are drawn from a part of the vocabulary, its ends in 0..1."""

    def replace_pieces(good: Shards, row: Row, random: Random) -> Row:
        bounds = [round(good.tokenizer.vocab_size * end) for end in (low, high)]
        became = row.ids[row.positions]
        is_random = (became != MASK) & (became != row.labels)
        drawn_pieces = [random.randrange(*bounds) for _ in row.positions]
        return with_piece(row, row.positions[is_random], np.array(drawn_pieces)[is_random])

    return drawn(replace_pieces)


def with_lost(_: Shards, row: Row, random: Random) -> Row:
    kept = np.array([random.random() >= 0.05 for _ in row.positions], bool)
    ids = row.ids.copy()
    ids[row.positions[~kept]] = row.labels[~kept]
    return replace(row, ids=ids, positions=row.positions[kept], labels=row.labels[kept])


def swapped(row: Row) -> Row:
    """Return ``row`` with its segments and its label changed, not masked."""
    return replace(laid_out(row, row.b, row.a), order=1 - row.order)


def with_piece(row: Row, at: Any, piece: Any) -> Row:
    ids = row.ids.copy()
    ids[at] = piece
    return replace(row, ids=ids)


# Changes of shards


def with_another_segment_b(good: Shards, rows: Rows) -> Rows:
    mixed = list(rows)
    for number in range(0, len(rows), 12):
        row, other = rows[number], rows[number - 7]
        mixed[number] = replace(laid_out(row, row.a, other.b[: len(row.b)]), order=1)
    return good.masked(mixed)


def masked_by_weights(good: Shards, rows: Rows, weights: list[float]) -> Rows:
    """Return ``rows`` with spans of 1, 2, ... words as often as ``weights`` say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "span_length_weights", lambda _: np.array(weights))
        return good.masked(rows, max_ngram=len(weights))


def name_other_documents(good: Shards) -> None:
    for path in good.paths("train"):
        rows = read_arrow(str(path))
        for name, of in OTHER_DOCUMENT_FIELDS:
            named = "another" if name == "other_document_id" else 0
            values = [named if n % 20 == 0 else None for n in range(rows.num_rows)]
            rows = rows.append_column(name, pa.array(values, of))
        good.write(rows, path)
    good.sign()


def halve(good: Shards) -> None:
    path = good.paths("train")[0]
    rows = read_rows(path)
    good.write(table(rows[: len(rows) // 2]), path)
    good.sign()


def rows_by(change: Callable[[Shards, Rows], Rows]) -> Plant:
    """Return a fault of all rows of a shard together."""
    return lambda good: good.spoil_rows(lambda rows: change(good, rows))


def each(change: Callable[[Row], Row], share: float = 1.0, masked: bool = False) -> Plant:
    """Return a fault of a share of the rows, drawn anew; then ``masked`` again, all of them."""
    return drawn(lambda _, row, __: change(row), share, masked)


def drawn(
    change: Callable[[Shards, Row, Random], Row], share: float = 1.0, masked: bool = False
) -> Plant:
    """Return a fault of a share of the rows, the same ones in every run, that draws."""

    def apply(good: Shards, rows: Rows) -> Rows:
        random = Random(len(rows))
        spoiled = [change(good, r, random) if random.random() < share else r for r in rows]
        return good.masked(spoiled) if masked else spoiled

    return rows_by(apply)


def feature(name: str, change: Callable[[list[int]], list[int]]) -> Plant:
    """Return a fault of a feature of each record."""
    return lambda good: good.spoil_records(name, change)


FAULTS: dict[str, tuple[str, Plant]] = {
    "b of another document, label 1 (ALBERT)": ("labels", rows_by(with_another_segment_b)),
    "b of another document, which the row names": ("same document", name_other_documents),
    "labels flipped": ("labels", each(lambda row: replace(row, order=1 - row.order))),
    "labels drawn at 0.48": (
        "labels",
        drawn(lambda _, r, d: swapped(r) if r.order and d.random() < 0.04 else r, masked=True),
    ),
    "one label": ("label balance", each(lambda row: replace(row, order=0))),
    "label 1 for short rows": (
        "label balance",
        drawn(lambda g, r, _: replace(r, order=1) if len(r.ids) < 0.75 * g.max_seq_length else r),
    ),
    "segments swapped, not labels": (
        "labels",
        each(lambda row: laid_out(row, row.b, row.a), 0.5, masked=True),
    ),
    "chunks that end inside a sentence": (
        "order tell-tale: ends",
        drawn(
            lambda _, row, r: later_cut(row, lambda n: slice(max(1, n - r.randint(1, 4)))),
            0.5,
            masked=True,
        ),
    ),
    "b cut inside a sentence": (
        "order tell-tale: ends",
        each(lambda row: laid_out(row, row.a, row.b[: max(1, len(row.b) - 2)]), masked=True),
    ),
    "the later segment shortened": (
        "order tell-tale: lengths",
        each(lambda row: later_cut(row, lambda n: slice(min(20, n - 1), None)), masked=True),
    ),
    "20 predictions at 512 (ALBERT's README)": (
        "mask share",
        rows_by(lambda g, rows: g.masked(rows, most=round(0.039 * g.max_seq_length))),
    ),
    "rows not masked": ("mask share: predictions", each(lambda row: with_masks(row, NONE), 0.1)),
    "5 % of the predictions lost": ("mask share: predictions", drawn(with_lost)),
    "rows that are one word (transformers)": ("mask share: excess", drawn(masked_by_rows)),
    "[CLS] and [SEP] masked (ModernBERT)": ("special pieces", drawn(with_special_masked, 0.2)),
    "special random pieces (ALBERT)": ("random pieces: special", with_replaced(0, 1)),
    "random pieces below a number (ModernBERT: the batch's highest)": (
        "random pieces: evenly",
        with_replaced(0.02, 0.5),
    ),
    "random pieces of half of the vocabulary, around its middle": (
        "random pieces: evenly",
        with_replaced(0.25, 0.75),
    ),
    "only [MASK] (transformers)": ("80/10/10", each(lambda row: with_masks(row, row.positions))),
    "single pieces masked": (
        "whole words",
        drawn(
            lambda _, row, random: with_masks(
                row, np.sort(random.sample(row.inside.tolist(), len(row.positions)))
            )
        ),
    ),
    "single words masked": ("n-grams", rows_by(lambda g, rows: g.masked(rows, max_ngram=1))),
    "long n-grams favoured": (
        "n-grams",
        rows_by(lambda g, rows: masked_by_weights(g, rows, [2 / 11, 3 / 11, 6 / 11])),
    ),
    "spans of eight words": (
        "n-grams",
        rows_by(lambda g, rows: masked_by_weights(g, rows, [0.0] * 7 + [1.0])),
    ),
    "[MASK] without prediction": (
        "unpredicted masks",
        each(lambda row: replace(row, positions=row.positions[:-1], labels=row.labels[:-1]), 0.2),
    ),
    "unknown pieces": (
        "unknown pieces",
        each(lambda r: with_piece(r, (r.ids > MASK) & (np.arange(len(r.ids)) % 15 == 0), UNK)),
    ),
    "rows twice": ("repeated rows", rows_by(lambda _, rows: rows + rows[::20])),
    "pairs twice, with other masks": (
        "repeated rows",
        rows_by(lambda g, rows: rows + g.masked(rows[::20])),
    ),
    "documents dropped (LDDL's sample ratio)": (
        "documents accounted",
        rows_by(lambda _, rows: [row for row in rows if not row.document.endswith("7")]),
    ),
    "one row in twenty dropped": (
        "pieces accounted",
        rows_by(lambda _, rows: [row for n, row in enumerate(rows) if n % 20]),
    ),
    "a held-out document trained on": (
        "held-out split",
        rows_by(lambda g, rows: rows + read_rows(g.paths("held_out")[0])[:3]),
    ),
    "rows in order": (
        "shuffle",
        rows_by(lambda _, rows: sorted(rows, key=lambda row: row.document)),
    ),
    "half a shard": ("shard sizes", halve),
    "a padding mask not 0 (Megatron)": (
        "padding",
        feature("input_mask", lambda masks: [mask or 5 for mask in masks]),
    ),
    "segment ids of padding": (
        "segment ids",
        feature("segment_ids", lambda ids: [int(n >= ids.index(1)) for n in range(len(ids))]),
    ),
    "other records than rows": (
        "Arrow and TFRecord",
        feature("next_sentence_labels", lambda labels: [1 - labels[0]]),
    ),
}
"""Name -> the check that must name it, and what plants it."""
