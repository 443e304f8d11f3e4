"""Good shards, and faults to plant in them: what other programs, or ours one day, get wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from albert_core.stage import storage
from albert_core.stage.manifest import MANIFEST, Manifest, Shard, read_manifest, shard_of
from albert_core.text import masking
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.masking import mask_examples
from albert_core.text.records import CLS, EXAMPLE_SCHEMA, MASK, PAD, SEP, UNK
from albert_core.text.seeds import random_bits
from pipelines.examples.tfrecord import TFExample, read_tfrecord, tf_examples, write_tfrecord

Ids = NDArray[np.int64]


@dataclass
class Row:
    """One example that can be spoiled."""

    ids: Ids
    b_start: int
    positions: Ids
    labels: Ids
    order: int
    document: str
    sentences: tuple[int, int]
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


Rows = list[Row]


def read_rows(uri: str) -> Rows:
    return [
        Row(
            np.array(values["input_ids"]),
            values["segment_b_start"],
            np.array(values["masked_lm_positions"], np.int64),
            np.array(values["masked_lm_labels"], np.int64),
            values["sentence_order_label"],
            values["document_id"],
            (values["first_sentence"], values["last_sentence"]),
            values["copy"],
        )
        for values in read_arrow(uri).to_pylist()
    ]


def table(rows: Rows) -> pa.Table:
    columns: list[Any] = [
        [row.ids for row in rows],
        [row.b_start for row in rows],
        [row.positions for row in rows],
        [row.labels for row in rows],
        [row.order for row in rows],
        [row.document for row in rows],
        [row.sentences[0] for row in rows],
        [row.sentences[1] for row in rows],
        [row.copy for row in rows],
    ]
    return pa.table(
        [pa.array(c, field.type) for c, field in zip(columns, EXAMPLE_SCHEMA, strict=True)],
        schema=EXAMPLE_SCHEMA,
    )


@dataclass(frozen=True)
class Shards:
    """The examples of a manifest, in a folder of their own."""

    folder: Path
    vocab_size: int
    opens_word: NDArray[np.bool_]
    max_seq_length: int

    @property
    def manifest(self) -> str:
        return str(self.folder / MANIFEST)

    def arrow(self, kind: str) -> list[str]:
        return [s.path for s in read_manifest(self.manifest).shards_of(kind)]

    def copied(self, folder: Path) -> "Shards":
        """Return the same shards in ``folder``, without a manifest."""
        folder.mkdir()
        for path in self.folder.iterdir():
            if path.is_file():
                (folder / path.name).write_bytes(path.read_bytes())
        return replace(self, folder=folder)

    def sign(self, count: bool = True) -> None:
        """Write a manifest that fits the shards as they are now; without ``count`` but for rows."""
        manifest = read_manifest(self.manifest)
        shards = [self._described(shard, count) for shard in manifest.shards]
        self.write_manifest(manifest.model_copy(update={"shards": shards}))

    def write_manifest(self, manifest: Manifest) -> None:
        storage.write_bytes(self.manifest, manifest.model_dump_json().encode())

    def _described(self, shard: Shard, count: bool) -> Shard:
        uri, number = str(self.folder / shard.path), shard.num_rows
        if count:
            is_arrow = uri.endswith(".arrow")
            number = read_arrow(uri).num_rows if is_arrow else len(list(read_tfrecord(uri)))
        return shard_of(uri, str(self.folder), shard.kind, number)

    def spoil_rows(self, fault: Callable[[Rows], Rows], kind: str = "train") -> None:
        """Apply ``fault`` to each shard of ``kind``, in Arrow and TFRecord."""
        for name in self.arrow(kind):
            rows = table(fault(read_rows(str(self.folder / name))))
            self.write(rows, name)
        self.sign()

    def write(self, rows: pa.Table, name: str) -> None:
        write_arrow(rows, str(self.folder / name))
        uri = str(self.folder / name.replace(".arrow", ".tfrecord"))
        lists = [*rows["input_ids"].to_pylist(), *rows["masked_lm_positions"].to_pylist()]
        # Faults may reach beyond the longest row.
        length = max(
            self.max_seq_length,
            *map(len, lists),
            *(max(n, default=0) + 1 for n in lists[len(rows) :]),
        )
        records = tf_examples(rows, length, length, np.resize(self.opens_word, 1 << 16))
        write_tfrecord(records, uri)

    def spoil_records(self, fault: Callable[[dict[str, Any]], None]) -> None:
        """Apply ``fault`` to the features of each training record; lists may be assigned."""
        for name in self.arrow("train_tfrecord"):
            uri = str(self.folder / name)
            records = [self._spoiled(record, fault) for record in read_tfrecord(uri)]
            write_tfrecord(records, uri)
        self.sign()

    @staticmethod
    def _spoiled(record: bytes, fault: Callable[[dict[str, Any]], None]) -> bytes:
        example = TFExample.FromString(record)
        lists = {
            name: feature.float_list if name.endswith("weights") else feature.int64_list
            for name, feature in example.features.feature.items()
        }
        values = {name: list(found.value) for name, found in lists.items()}
        fault(values)
        for name, found in lists.items():
            del found.value[:]
            found.value.extend(values[name])
        return bytes(example.SerializeToString(deterministic=True))

    def masked(self, rows: Rows, max_ngram: int = 3, most: int | None = None) -> Rows:
        """Return ``rows`` with other masks, by our own rules."""
        lengths = np.array([len(row.ids) for row in rows])
        masked = mask_examples(
            np.concatenate([row.unmasked for row in rows]),
            lengths,
            np.array([row.b_start for row in rows]),
            self.opens_word,
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


def laid_out(row: Row, a: Ids, b: Ids) -> Row:
    """Return ``row`` with other segments, not masked."""
    ids = np.concatenate([[CLS], a, [SEP], b, [SEP]]).astype(np.int64)
    none = np.zeros(0, np.int64)
    return replace(row, ids=ids, b_start=len(a) + 2, positions=none, labels=none)


def with_label_order(row: Row, first: Ids, second: Ids) -> Row:
    return laid_out(row, *((first, second) if row.order == 0 else (second, first)))


def in_order(row: Row) -> tuple[Ids, Ids]:
    """Return the segments as they come in the document."""
    return (row.a, row.b) if row.order == 0 else (row.b, row.a)


Fault = Callable[[Shards], None]
FAULTS: dict[str, tuple[str, Fault]] = {}
"""Name -> the check that must name it, and what plants it."""


def fault(check: str) -> Callable[[Fault], Fault]:
    def register(plant: Fault) -> Fault:
        name = (plant.__doc__ or "").strip().rstrip(".")
        FAULTS[name] = check, plant
        return plant

    return register


def of_rows(spoil: Callable[[Row, Random], Row], share: float = 1.0) -> Callable[[Rows], Rows]:
    """Return a fault of a share of the rows, the same ones in every run."""

    def apply(rows: Rows) -> Rows:
        random = Random(len(rows))
        return [spoil(row, random) if random.random() < share else row for row in rows]

    return apply


@fault("sentence order")
def contaminated_labels(good: Shards) -> None:
    """SOP rows with b from another document and label 1 (ALBERT)."""

    def spoil(rows: Rows) -> Rows:
        others = rows[7:] + rows[:7]
        pairs = zip(rows, others, strict=True)
        mixed = [
            replace(laid_out(row, row.a, other.b[: len(row.b)]), order=1) if n % 12 == 0 else row
            for n, (row, other) in enumerate(pairs)
        ]
        return good.masked(mixed)

    good.spoil_rows(spoil)


@fault("same document")
def other_documents_in_sop(good: Shards) -> None:
    """SOP rows that say themselves that b is of another document."""
    for name in good.arrow("train"):
        uri = str(good.folder / name)
        rows = read_arrow(uri)
        others = ["another" if n % 20 == 0 else None for n in range(rows.num_rows)]
        good.write(rows.append_column("other_document_id", pa.array(others, pa.string())), name)
    good.sign()


@fault("sentence order")
def labels_flipped(good: Shards) -> None:
    """Labels flipped in every row."""
    good.spoil_rows(of_rows(lambda row, _: replace(row, order=1 - row.order)))


@fault("label balance")
def label_constant(good: Shards) -> None:
    """The same label in every row."""
    good.spoil_rows(of_rows(lambda row, _: replace(row, order=0)))


@fault("label balance")
def labels_by_length(good: Shards) -> None:
    """Short rows labelled 1 more often."""
    short = 0.75 * good.max_seq_length

    def spoil(row: Row, _: Random) -> Row:
        return replace(row, order=1) if len(row.ids) < short else row

    good.spoil_rows(of_rows(spoil))


@fault("sentence order")
def swapped_without_label(good: Shards) -> None:
    """Segments of half of the rows swapped, labels as before."""
    swap = of_rows(lambda row, _: laid_out(row, row.b, row.a), 0.5)
    good.spoil_rows(lambda rows: good.masked(swap(rows)))


@fault("order tell-tale: ends")
def later_segment_cut(good: Shards) -> None:
    """Chunks that end inside a sentence: only the later segment is cut."""

    def spoil(row: Row, random: Random) -> Row:
        first, second = in_order(row)
        return with_label_order(row, first, second[: max(1, len(second) - random.randint(1, 4))])

    good.spoil_rows(lambda rows: good.masked(of_rows(spoil, 0.5)(rows)))


@fault("order tell-tale: ends")
def b_cut(good: Shards) -> None:
    """All segments b cut in the middle of a sentence."""
    cut = of_rows(lambda row, _: laid_out(row, row.a, row.b[: max(1, len(row.b) - 2)]))
    good.spoil_rows(lambda rows: good.masked(cut(rows)))


@fault("order tell-tale: lengths")
def later_segment_shorter(good: Shards) -> None:
    """What is too much always taken from the later segment."""

    def spoil(row: Row, _: Random) -> Row:
        first, second = in_order(row)
        return with_label_order(row, first, second[min(20, len(second) - 1) :])

    good.spoil_rows(lambda rows: good.masked(of_rows(spoil)(rows)))


@fault("mask share")
def too_few_predictions(good: Shards) -> None:
    """3.9 % of the pieces masked: 20 predictions at 512 (ALBERT's README)."""
    most = round(0.039 * good.max_seq_length)
    good.spoil_rows(lambda rows: good.masked(rows, most=most))


def without_masks(row: Row) -> Row:
    none = np.zeros(0, np.int64)
    return replace(row, ids=row.unmasked, positions=none, labels=none)


def masked_whole(row: Row) -> Row:
    inside = np.array([n for n in range(1, len(row.ids) - 1) if n != row.b_start - 1])
    ids = row.unmasked
    labels = ids[inside]
    ids[inside] = MASK
    return replace(row, ids=ids, positions=inside, labels=labels)


@fault("mask share: rows")
def unmasked_rows(good: Shards) -> None:
    """A tenth of the rows not masked at all."""
    good.spoil_rows(of_rows(lambda row, _: without_masks(row), 0.1))


@fault("mask share: excess")
def rows_masked_whole(good: Shards) -> None:
    """153 of 200 rows unmasked and 42 masked whole: a row is one word (transformers)."""

    def spoil(row: Row, random: Random) -> Row:
        draw = random.randrange(200)
        if draw < 153:
            return without_masks(row)
        return masked_whole(row) if draw < 195 else row

    good.spoil_rows(of_rows(spoil))


@fault("special pieces")
def special_masked(good: Shards) -> None:
    """[CLS] and [SEP] masked and predicted (ModernBERT)."""

    def spoil(row: Row, random: Random) -> Row:
        at = random.choice([0, row.b_start - 1, len(row.ids) - 1])
        ids = row.ids.copy()
        label, ids[at] = ids[at], MASK
        order = np.argsort(np.append(row.positions, at))
        positions, labels = np.append(row.positions, at), np.append(row.labels, label)
        return replace(row, ids=ids, positions=positions[order], labels=labels[order])

    good.spoil_rows(of_rows(spoil, 0.2))


def with_replaced(row: Row, draw: Callable[[], int]) -> Row:
    """Return ``row`` with other random pieces."""
    ids = row.ids.copy()
    for position, label in zip(row.positions, row.labels, strict=True):
        if ids[position] not in (MASK, label):
            ids[position] = draw()
    return replace(row, ids=ids)


@fault("random pieces: special")
def special_replacements(good: Shards) -> None:
    """Random pieces drawn from the whole vocabulary, special ones too (ALBERT)."""
    size = good.vocab_size
    good.spoil_rows(of_rows(lambda row, r: with_replaced(row, lambda: r.randrange(size))))


@fault("random pieces: evenly")
def replacements_from_the_batch(good: Shards) -> None:
    """Random pieces drawn below some lower number (ModernBERT: the batch's highest)."""
    size = good.vocab_size // 2
    good.spoil_rows(of_rows(lambda row, r: with_replaced(row, lambda: r.randrange(5, size))))


@fault("80/10/10")
def only_masks(good: Shards) -> None:
    """Every chosen piece a [MASK]: no 80/10/10 (transformers)."""

    def spoil(row: Row, _: Random) -> Row:
        ids = row.ids.copy()
        ids[row.positions] = MASK
        return replace(row, ids=ids)

    good.spoil_rows(of_rows(spoil))


@fault("whole words")
def parts_of_words(good: Shards) -> None:
    """Single pieces masked instead of words."""

    def spoil(row: Row, random: Random) -> Row:
        inside = [n for n in range(1, len(row.ids) - 1) if n != row.b_start - 1]
        positions = np.array(sorted(random.sample(inside, len(row.positions))))
        ids = row.unmasked
        labels = ids[positions]
        ids[positions] = MASK
        return replace(row, ids=ids, positions=positions, labels=labels)

    good.spoil_rows(of_rows(spoil))


@fault("n-grams")
def unigrams_only(good: Shards) -> None:
    """Single words masked, no n-grams."""
    good.spoil_rows(lambda rows: good.masked(rows, max_ngram=1))


def with_weights(good: Shards, weights: list[float]) -> None:
    def of(max_ngram: int) -> NDArray[np.float64]:
        return np.array(weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "span_length_weights", of)
        good.spoil_rows(lambda rows: good.masked(rows, max_ngram=len(weights)))


@fault("n-grams")
def reversed_weights(good: Shards) -> None:
    """Long n-grams favoured: 2/11, 3/11, 6/11."""
    with_weights(good, [2 / 11, 3 / 11, 6 / 11])


@fault("n-grams")
def long_spans(good: Shards) -> None:
    """Spans of eight words: half sentences."""
    with_weights(good, [0.0] * 7 + [1.0])


@fault("unpredicted masks")
def masks_not_predicted(good: Shards) -> None:
    """[MASK] pieces that nothing is predicted for."""

    def spoil(row: Row, _: Random) -> Row:
        return replace(row, positions=row.positions[:-1], labels=row.labels[:-1])

    good.spoil_rows(of_rows(spoil, 0.2))


@fault("positions")
def unsorted_positions(good: Shards) -> None:
    """Positions in the order in which they were drawn."""

    def spoil(row: Row, _: Random) -> Row:
        return replace(row, positions=row.positions[::-1], labels=row.labels[::-1])

    good.spoil_rows(of_rows(spoil, 0.1))


@fault("positions")
def positions_outside(good: Shards) -> None:
    """A position beyond the end of its row."""

    def spoil(row: Row, _: Random) -> Row:
        return replace(row, positions=np.append(row.positions[:-1], len(row.ids) + 3))

    good.spoil_rows(of_rows(spoil, 0.01))


@fault("vocabulary")
def ids_out_of_vocabulary(good: Shards) -> None:
    """Ids beyond the vocabulary."""

    def spoil(row: Row, _: Random) -> Row:
        ids = row.ids.copy()
        ids[1] = good.vocab_size + 7
        return replace(row, ids=ids)

    good.spoil_rows(of_rows(spoil, 0.01))


@fault("values")
def sentences_backwards(good: Shards) -> None:
    """Pairs that end before the sentence that they begin with."""

    def spoil(row: Row, _: Random) -> Row:
        first, last = row.sentences
        return replace(row, sentences=(last + 1, first))

    good.spoil_rows(of_rows(spoil, 0.01))


@fault("unknown pieces")
def unknown_pieces(good: Shards) -> None:
    """A vocabulary that does not know a thirtieth of the text."""

    def spoil(row: Row, _: Random) -> Row:
        ids, labels = row.ids.copy(), row.labels.copy()
        ids[(ids > MASK) & (np.arange(len(ids)) % 15 == 0)] = UNK
        return replace(row, ids=ids, labels=labels)

    good.spoil_rows(of_rows(spoil, 0.5))


@fault("padding")
def pads_inside(good: Shards) -> None:
    """Padding inside rows."""

    def spoil(row: Row, _: Random) -> Row:
        ids = np.insert(row.ids, row.b_start, [PAD, PAD])
        later = row.positions >= row.b_start
        return replace(row, ids=ids, positions=row.positions + 2 * later)

    good.spoil_rows(of_rows(spoil, 0.02))


@fault("layout")
def wrong_b_start(good: Shards) -> None:
    """Segment b said to begin one piece late."""
    good.spoil_rows(of_rows(lambda row, _: replace(row, b_start=row.b_start + 1), 0.05))


@fault("repeated rows")
def repeated_rows(good: Shards) -> None:
    """One row in twenty written twice."""
    good.spoil_rows(lambda rows: rows + rows[::20])


@fault("repeated pairs")
def repeated_pairs(good: Shards) -> None:
    """One pair in twenty twice in a copy, with other masks."""
    good.spoil_rows(lambda rows: rows + good.masked(rows[::20]))


@fault("documents accounted")
def dropped_documents(good: Shards) -> None:
    """A tenth of the documents dropped and not counted (LDDL's sample ratio)."""
    good.spoil_rows(lambda rows: [row for row in rows if not row.document.endswith("7")])


@fault("held-out split")
def leak(good: Shards) -> None:
    """A held-out document that is trained on, too."""
    leaked = read_rows(str(good.folder / good.arrow("held_out")[0]))[:3]
    good.spoil_rows(lambda rows: rows + leaked)


@fault("shuffle")
def not_shuffled(good: Shards) -> None:
    """Rows in the order of their documents."""
    good.spoil_rows(lambda rows: sorted(rows, key=lambda row: row.document))


@fault("shard sizes")
def unequal_shards(good: Shards) -> None:
    """Half of a shard's rows gone, and its manifest says so."""
    name = good.arrow("train")[0]
    rows = read_rows(str(good.folder / name))
    good.write(table(rows[: len(rows) // 2]), name)
    good.sign()


@fault("files")
def changed_byte(good: Shards) -> None:
    """A byte changed after the shard was written."""
    path = good.folder / good.arrow("train")[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@fault("files")
def wrong_count(good: Shards) -> None:
    """A manifest that counts a row too many."""
    manifest = read_manifest(good.manifest)
    first, *rest = manifest.shards
    first = first.model_copy(update={"num_rows": first.num_rows + 1})
    good.write_manifest(manifest.model_copy(update={"shards": [first, *rest]}))


@fault("files")
def broken_record(good: Shards) -> None:
    """A TFRecord with a wrong checksum."""
    path = good.folder / good.arrow("train_tfrecord")[0]
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    good.sign(count=False)


@fault("TFRecord padding")
def pad_mask(good: Shards) -> None:
    """A mask of padding that is not 0 (Megatron: the pad id)."""

    def spoil(values: dict[str, Any]) -> None:
        values["input_mask"] = [mask or 5 for mask in values["input_mask"]]

    good.spoil_records(spoil)


@fault("TFRecord padding")
def pad_weights(good: Shards) -> None:
    """Weight for predictions that are padding."""

    def spoil(values: dict[str, Any]) -> None:
        values["masked_lm_weights"][-1] = 0.5

    good.spoil_records(spoil)


@fault("TFRecord segment ids")
def wrong_segments(good: Shards) -> None:
    """Segment ids 1 over the padding."""

    def spoil(values: dict[str, Any]) -> None:
        begin = values["segment_ids"].index(1)
        values["segment_ids"][begin:] = [1] * (len(values["segment_ids"]) - begin)

    good.spoil_records(spoil)


@fault("Arrow and TFRecord")
def other_records(good: Shards) -> None:
    """TFRecord shards with other examples than the Arrow shards."""

    def spoil(values: dict[str, Any]) -> None:
        values["next_sentence_labels"] = [1 - values["next_sentence_labels"][0]]

    good.spoil_records(spoil)
