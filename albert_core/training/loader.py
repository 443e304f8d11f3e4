"""Shards to the updates of a run, each as micro-batches that a thread makes ahead.

Which examples an update has, and their masks, are pure functions of the seed and of how many
examples were taken before. The number of ranks and the size of the micro-batches only change how
they are cut.

Batches are packed, without padding, or padded to one shape, for devices that compile a program for
each shape they meet.

Dimensions: B sequences or R examples, with T pieces and M predictions in all. In a padded batch, B
sequences of S pieces and P predictions each; R examples, at most B.
"""

import fcntl
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from albert_core.config import TrainingSettings, check_fresh_masks
from albert_core.model.execution import IGNORED, Runs
from albert_core.stage import errors, manifest, results, storage
from albert_core.text.arrow_files import read_arrow
from albert_core.text.masking import mask_examples
from albert_core.text.records import Bools, Ints, Sizes, UInt16s, begins_of, ranges
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.order import deal_update, example_order, order_seed, padded_length
from albert_core.training.ranks import Ranks

_COLUMNS = (
    "input_ids",
    "segment_b_start",
    "masked_lm_positions",
    "masked_lm_labels",
    "sentence_order_label",
)
_PIECES_PER_BLOCK = 1 << 18
"""About how many pieces are masked together, few enough for the cache."""
_PIECES_AHEAD = 1 << 20
"""About how many pieces wait at most: 20 MB of batches, over a second of a fast GPU's work."""
_MICRO_BATCHES_AHEAD = 64
"""Micro-batches that wait at most, however small."""
_LARGEST_BLOCK = 31 << 20
"""Bytes: just below the largest block that glibc learns from."""
_in_use: dict[str, int] = {}
"""Open files whose locks keep copies of shards, until the kernel closes them at this process's end.
"""

log = logging.getLogger(__name__)


class BatchShape(NamedTuple):
    """The shape to which every batch is padded."""

    num_sequences: int
    """B."""
    length: int
    """S, in pieces."""
    num_predictions: int
    """P, of one sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples laid end to end, as the model takes them.

    A packed batch has no padding. A padded one is a single run of B sequences of S pieces, with P
    predictions each. No real piece sees padding, and the labels of padding are `IGNORED`.
    """

    input_ids: Tensor
    """int64 (T,), after masking."""
    token_type_ids: Tensor
    """int64 (T,), 0 up to the first [SEP] of a sequence, 1 after it."""
    runs: Runs
    """Numbers of consecutive sequences of equal length; fewer runs are faster."""
    first_positions: Tensor
    """int64 (B,), where in T each sequence begins."""
    masked_lm_positions: Tensor
    """int64 (M,), where in T the predictions are, ascending."""
    masked_lm_labels: Tensor
    """int64 (M,), the pieces that stood there."""
    sentence_order_labels: Tensor
    """int64 (B,), 0 in document order, 1 swapped."""
    key_mask: Tensor | None = None
    """bool (B, 1, 1, S), false at padding; None for a packed batch."""

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The arguments of `AlbertForPretraining.forward`, by name."""
        labels = ("masked_lm_labels", "sentence_order_labels")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in labels}

    def each(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with each tensor replaced by ``move`` of it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {n: move(v) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, slots=True)
class Rows:
    """R examples laid end to end, not padded: T pieces and M predictions in all."""

    input_ids: UInt16s
    """(T,) after masking."""
    lengths: Ints
    """(R,) pieces of each example; they sum to T."""
    segment_b_starts: Ints
    """(R,) first position of segment b."""
    positions: UInt16s
    """(M,) positions in their examples, ascending in each."""
    labels: UInt16s
    """(M,) the pieces that stood there."""
    num_predictions: Ints
    """(R,) predictions of each example; they sum to M."""
    sentence_order_labels: Ints
    """(R,) 0 in document order, 1 swapped."""

    def __len__(self) -> int:
        return len(self.lengths)

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Return the examples of all ``parts``, of which there is at least one."""
        return Rows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Rows)))

    def split(self, ends: Sequence[int]) -> Iterator["Rows"]:
        """Yield the first ``ends[0]`` examples, those from there to ``ends[1]``, and so on.

        They share their memory with these.
        """
        piece_ends = np.append(0, np.cumsum(self.lengths))
        prediction_ends = np.append(0, np.cumsum(self.num_predictions))
        begin = 0
        for end in ends:
            predictions = slice(prediction_ends[begin], prediction_ends[end])
            pieces = slice(piece_ends[begin], piece_ends[end])
            places = {"input_ids": pieces, "positions": predictions, "labels": predictions}
            rows = slice(begin, end)
            yield Rows(*(getattr(self, f.name)[places.get(f.name, rows)] for f in fields(Rows)))
            begin = end

    def unmasked(self) -> UInt16s:
        """Return (T,) the pieces before masking."""
        pieces = self.input_ids.copy()
        starts = begins_of(self.lengths)
        pieces[np.repeat(starts, self.num_predictions) + self.positions] = self.labels
        return pieces

    def batch(self, shape: BatchShape | None = None) -> Batch:
        """Return the examples, of which there is at least one, padded to ``shape`` or packed.

        In a packed batch, examples of equal length should lie beside each other.

        Raises:
            ShapeError: ``shape`` does not hold them.
        """
        return self._packed() if shape is None else self._padded(shape)

    def _packed(self) -> Batch:
        first = begins_of(self.lengths)
        begins = np.flatnonzero(np.diff(self.lengths, prepend=-1))  # of runs of one length
        numbers = np.diff(begins, append=len(self))
        return Batch(
            input_ids=_int64(self.input_ids),
            token_type_ids=_int64(self._in_b()),
            runs=tuple(zip(numbers.tolist(), self.lengths[begins].tolist(), strict=True)),
            first_positions=_int64(first),
            masked_lm_positions=_int64(np.repeat(first, self.num_predictions) + self.positions),
            masked_lm_labels=_int64(self.labels),
            sentence_order_labels=_int64(self.sentence_order_labels),
        )

    def _padded(self, shape: BatchShape) -> Batch:
        found = (len(self), int(self.lengths.max()), int(self.num_predictions.max()))
        if any(have > may for have, may in zip(found, shape, strict=True)):
            raise errors.ShapeError(
                f"a batch has {found[0]} sequences of up to {found[1]} pieces and {found[2]} "
                f"predictions, more than its shape holds: {tuple(shape)}. The examples' manifest "
                "names a smaller max_seq_length or max_predictions than they have: make them again."
            )
        num_sequences, length, num_predictions = shape
        rows, first = np.arange(len(self)), np.arange(num_sequences) * length
        pieces = ranges(rows * length, self.lengths)
        predictions = ranges(rows * num_predictions, self.num_predictions)
        num_pieces = num_sequences * length
        real = _spread(num_pieces, pieces, True)
        real[len(self) * length :: length] = 1  # attention needs a piece
        positions = np.repeat(first, num_predictions)
        positions[predictions] += self.positions
        return Batch(
            input_ids=_spread(num_pieces, pieces, self.input_ids),
            token_type_ids=_spread(num_pieces, pieces, self._in_b()),
            runs=((num_sequences, length),),
            first_positions=_int64(first),
            masked_lm_positions=_int64(positions),
            masked_lm_labels=_spread(len(positions), predictions, self.labels, IGNORED),
            sentence_order_labels=_spread(num_sequences, rows, self.sentence_order_labels, IGNORED),
            key_mask=real.bool().view(num_sequences, 1, 1, length),
        )

    def _in_b(self) -> Bools:
        """Return (T,), whether a piece is in segment b."""
        places = ranges(np.zeros_like(self.lengths), self.lengths)
        in_b: Bools = places >= np.repeat(self.segment_b_starts, self.lengths)
        return in_b


def _int64(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _spread(size: int, places: Ints, values: NDArray[Any] | bool, rest: int = 0) -> Tensor:
    """Return int64 (size,) with ``values`` at ``places`` and ``rest`` elsewhere."""
    spread = np.full(size, rest, np.int64)
    spread[places] = values
    return torch.from_numpy(spread)


class ExampleShards:
    """The examples of one kind by number. Shards that are not compressed are mapped.

    Those in an object store are copied to a disk of this host, for all of its ranks to map.

    Args:
        manifest_uri: of the stage "examples".
        kind: train or held_out.

    Raises:
        ConfigError: this host has no room for copies of the shards.
        IntegrityError: a shard is missing or is not the one that was written.
        TrainingError: there is no example.
    """

    def __init__(self, manifest_uri: str, kind: str) -> None:
        self.manifest = manifest.read_manifest(manifest_uri)
        self.result = self.manifest.result_as(results.ExamplesResult)
        folder = manifest_uri.rpartition("/")[0]
        self._blocks: list[pa.RecordBatch] = []
        self._document_ids: list[pa.Array] = []
        for path in _files_here(self.manifest.shards_of(kind), folder):
            table = read_arrow(path)
            self._blocks += [block for block in table.select(_COLUMNS).to_batches() if len(block)]
            self._document_ids += table["document_id"].chunks
        self._ends = np.cumsum([len(block) for block in self._blocks])
        if not self._blocks:
            raise errors.TrainingError(f"{manifest_uri} has no {kind} examples: give more text.")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def sizes(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of pieces and of predictions of the examples, int64 (R,) each."""
        lengths, num_predictions = np.empty_like(indices), np.empty_like(indices)
        for block, numbers, places in self._by_block(indices):
            for name, sizes in (("input_ids", lengths), ("masked_lm_labels", num_predictions)):
                offsets = block[name].offsets.to_numpy()
                sizes[places] = offsets[numbers + 1] - offsets[numbers]
        return lengths, num_predictions

    def rows(self, indices: Ints) -> Rows:
        """Return the examples with these numbers, in this order: at least one, int64 (R,)."""
        taken = [(b.take(pa.array(numbers)), p) for b, numbers, p in self._by_block(indices)]
        found = taken[0][0]
        if len(taken) > 1:
            order = np.argsort(np.concatenate([places for _, places in taken]))
            found = pa.concat_batches([block for block, _ in taken]).take(pa.array(order))

        def sizes(name: str) -> Ints:
            numbers: Ints = np.diff(found[name].offsets.to_numpy()).astype(np.int64)
            return numbers

        return Rows(
            input_ids=found["input_ids"].values.to_numpy(),
            lengths=sizes("input_ids"),
            segment_b_starts=found["segment_b_start"].to_numpy().astype(np.int64),
            positions=found["masked_lm_positions"].values.to_numpy(),
            labels=found["masked_lm_labels"].values.to_numpy(),
            num_predictions=sizes("masked_lm_labels"),
            sentence_order_labels=found["sentence_order_label"].to_numpy().astype(np.int64),
        )

    def document_ids(self) -> list[str]:
        """Return the document of each example."""
        return [name for chunk in self._document_ids for name in chunk.to_pylist()]

    def shape_for(self, ranks: Ranks, num_sequences: int) -> BatchShape | None:
        """Return the shape of batches of up to ``num_sequences``; None: they are packed."""
        if not ranks.num_chips:
            return None
        return BatchShape(
            num_sequences=-(-num_sequences // ranks.num_chips) * ranks.num_chips,
            length=padded_length(self.result.max_seq_length),
            num_predictions=self.result.max_predictions,
        )

    def _by_block(self, indices: Ints) -> Iterator[tuple[pa.RecordBatch, Ints, Ints]]:
        """Yield each block with some of the examples, their numbers in it, and their places."""
        block_of = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(block_of, kind="stable")
        numbers, first = np.unique(block_of[order], return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, first[1:]), strict=True):
            block = self._blocks[number]
            yield block, indices[places] - (self._ends[number] - len(block)), places


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """One rank's part of the batch of one update."""

    sizes: Sizes
    """Sizes of the whole update, over all ranks; at least 1 prediction, as losses are divided by
    their number."""
    micro_batches: Iterable[Batch]
    """Longest sequences first; taken one by one, so that few are in memory."""


# Copies of shards that lie elsewhere


def _files_here(shards: Sequence[manifest.Shard], folder: str) -> list[str]:
    """Return the path on this host of a file for each of ``shards``, whose content was checked.

    Those of a local folder are where they are. For others there must be room in TMPDIR; the first
    rank of a host to come here copies and checks them. Copies that no process uses, of other
    shards, are removed.

    Args:
        shards: of one data set.
        folder: URI that their paths are relative to.

    Raises:
        ConfigError: there is no room, or another user has made the folder for the copies.
        IntegrityError: a shard is missing, or is not the one that was written.
    """
    if storage.local_path(folder) is not None:
        for shard in shards:
            manifest.check_shard(shard, folder)
        return [storage.join(folder, shard.path) for shard in shards]
    copies = _folder_for([shard.sha256 for shard in shards])
    files = {copies / f"{shard.sha256}.arrow": shard for shard in shards}
    launch = os.environ.get("TORCHELASTIC_RUN_ID") or uuid4().hex  # the same for all ranks
    checked = copies / "checked"
    with FileLock(copies / "lock"):
        if not checked.exists() or checked.read_text() != launch:
            _copy(files, folder, copies)
            checked.write_text(launch)
    return [str(file) for file in files]


def _folder_for(digests: list[str]) -> Path:
    """Return the folder of these copies, locked for this process; remove those not in use."""
    root = storage.own_folder("albert-shards")
    name = manifest.digest_of(digests)[:16]
    if name not in _in_use:
        _in_use[name] = os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(_in_use[name], fcntl.LOCK_SH)
    for lock in root.glob("*.lock"):
        with lock.open("a") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    (root / name).mkdir(exist_ok=True)
    return root / name


def _copy(files: dict[Path, manifest.Shard], folder: str, copies: Path) -> None:
    """Copy the shards of ``folder`` whose ``files`` are missing or damaged."""
    missing = _not_as_written(files)
    if not missing:
        return
    needed, free = sum(s.num_bytes for s in missing.values()), shutil.disk_usage(copies).free
    if needed > free:
        raise errors.ConfigError(
            f"{copies} has room for {free / 1e9:,.1f} GB, but the copies of the examples' shards "
            f"take {needed / 1e9:,.1f} GB more. Set TMPDIR to a folder on a larger local disk."
        )
    log.info("copying %d shards of %s to %s", len(missing), folder, copies)
    fs, path = storage.filesystem(folder)
    sources = [storage.join(path, shard.path) for shard in missing.values()]
    with suppress(FileNotFoundError):  # the check below names the shard
        fs.get(sources, list(map(str, missing)))
    for file, shard in _not_as_written(missing).items():
        manifest.check_shard(shard, folder)
        raise errors.IntegrityError(
            f"{storage.join(folder, shard.path)} is as it was written, but its copy {file} is not. "
            "Check the disk, and run the same command again."
        )


def _not_as_written(files: dict[Path, manifest.Shard]) -> dict[Path, manifest.Shard]:
    """Return those of ``files`` that are missing or differ from their shard; remove the latter."""

    def is_good(file: Path) -> bool:
        good = file.exists() and storage.sha256_of(str(file)) == files[file].sha256
        if not good:
            file.unlink(missing_ok=True)
        return good

    with ThreadPoolExecutor() as threads:
        are_good = threads.map(is_good, files)
        return {f: files[f] for f, good in zip(files, are_good, strict=True) if not good}


# Masks


class FreshMasks:
    """Masks that are a pure function of seed, epoch, and the example's number and pieces.

    Args:
        examples: manifest of the stage "examples", whose settings and vocabulary are the rules.
        seed: of the run.
        mask_share: share of the pieces to predict, 0..1; None for that of the examples' own masks.
        max_ngram: words in the longest span; None for that of the examples' own masks.

    Raises:
        ConfigError: the examples were masked like the reference's, which only the pipelines can.
        IntegrityError: the vocabulary is not one of ours.
    """

    def __init__(
        self,
        examples: manifest.Manifest,
        seed: int,
        mask_share: float | None = None,
        max_ngram: int | None = None,
    ) -> None:
        result = examples.result_as(results.ExamplesResult)
        check_fresh_masks(result.fidelity)
        self._seed = seed
        self.max_predictions = result.max_predictions
        """Most predictions in any example."""
        if mask_share is not None:
            self.max_predictions = max(1, round(mask_share * result.max_seq_length))
        self._rules: dict[str, Any] = {
            "masked_lm_prob": mask_share or examples.settings["masked_lm_prob"],
            "max_ngram": max_ngram or examples.settings["max_ngram"],
            "max_predictions": self.max_predictions,
        }
        vocab_folder = examples.input_manifests["vocab"].rpartition("/")[0]
        self._opens_word = Tokenizer.load(vocab_folder).starts_word

    def draw(self, rows: Rows, indices: Ints, epochs: Ints) -> Rows:
        """Return ``rows`` with the masks of their epochs instead of their own.

        Args:
            rows: R examples, at least one.
            indices: int64 (R,), their numbers among all examples.
            epochs: int64 (R,), the pass over all examples that each is met in.
        """
        seeds = np.empty(len(indices), np.uint64)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            seed = derive_seed(self._seed, "masks", int(epoch))
            seeds[of_epoch] = random_bits(seed, indices[of_epoch])
        block = (np.cumsum(rows.lengths) - 1) // _PIECES_PER_BLOCK
        ends = np.append(np.flatnonzero(np.diff(block)) + 1, len(rows)).tolist()
        parts = zip(rows.split(ends), np.split(seeds, ends[:-1]), strict=True)
        return Rows.join([self._drawn(part, its_seeds) for part, its_seeds in parts])

    def _drawn(self, rows: Rows, seeds: UInt64s) -> Rows:
        given = rows.unmasked(), rows.lengths, rows.segment_b_starts, self._opens_word
        masked = mask_examples(*given, seeds, **self._rules)
        return replace(
            rows,
            input_ids=masked.input_ids.astype(np.uint16, copy=False),
            positions=masked.positions.astype(np.uint16),
            labels=masked.labels.astype(np.uint16, copy=False),
            num_predictions=masked.num_predictions,
        )


class _Part(NamedTuple):
    """One micro-batch, and the update that it belongs to."""

    batch: Batch
    sizes: Sizes
    """Of fresh masks only the rank's own predictions are counted."""
    num_micro_batches: int
    """Micro-batches of the update; as many on every rank."""


class UpdateLoader:
    """The updates of a run in their order. A context manager: leaving it ends its thread.

    The examples of an update are put in order of length, dealt to the ranks, and cut into
    micro-batches of at most as many pieces, with padding, as ``micro_batch_size`` sequences of
    full length have; so short sequences come in larger micro-batches (`deal_update`). Each rank
    draws the fresh masks of its part, and the ranks add up their numbers.

    An update is held as rows, two bytes a piece; its batches are made one by one, and wait in a
    queue of about `_PIECES_AHEAD` pieces. An error in the thread is raised where the next batch is
    taken.

    Args:
        examples: to train on.
        settings: of the run: batch sizes, seed and masks. Masks are those in the shards, or "fresh"
            ones, which are drawn in each epoch by the same rules.
        ranks: that train together, at most as many as a batch has examples. They say what batches
            are padded to. For a GPU, batches are in page-locked memory.
        first_example: examples already taken of this data set.
        num_updates: updates to give.

    Raises:
        ConfigError: masks are "fresh" and the examples were masked like the reference's.
    """

    def __init__(
        self,
        examples: ExampleShards,
        settings: TrainingSettings,
        ranks: Ranks,
        *,
        first_example: int,
        num_updates: int,
    ) -> None:
        self.waited_seconds = 0.0
        """How long the consumer has waited for batches in all."""
        self._examples, self._ranks = examples, ranks
        self._batch_size = settings.batch_size
        self._order_seed = order_seed(settings.seed)
        self._fresh: FreshMasks | None = None
        self._shape = examples.shape_for(ranks, settings.micro_batch_size)
        if settings.masks == "fresh":
            self._fresh = FreshMasks(
                examples.manifest, settings.seed, settings.mask_share, settings.max_ngram
            )
            most = self._fresh.max_predictions
            self._shape = self._shape and self._shape._replace(num_predictions=most)
        self._pin_memory = ranks.device.type == "cuda"
        full_length = padded_length(examples.result.max_seq_length)
        self._max_pieces = settings.micro_batch_size * full_length
        end = first_example + num_updates * self._batch_size
        self._parts = self._make_parts(range(first_example, end, self._batch_size))
        # A thread has a current GPU of its own, and page-locked memory belongs to one.
        device = torch.cuda.current_device() if self._pin_memory else None
        self._thread = ThreadPoolExecutor(1, "examples", initializer=partial(_begin_thread, device))
        self._ahead: deque[Future[_Part | None]] = deque()

    def __enter__(self) -> Self:
        for _ in range(min(max(2, _PIECES_AHEAD // self._max_pieces), _MICRO_BATCHES_AHEAD)):
            self._ahead.append(self._thread.submit(next, self._parts, None))
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[UpdateBatch]:
        parts = iter(self._next, None)
        for part in parts:
            rest = (next(parts).batch for _ in range(part.num_micro_batches - 1))
            batches = chain([part.batch], rest)
            yield UpdateBatch(sizes=self._of_all_ranks(part.sizes), micro_batches=batches)
            deque(batches, maxlen=0)  # drops what the consumer left

    def _of_all_ranks(self, sizes: Sizes) -> Sizes:
        number = sizes.num_predictions
        if self._fresh is not None:  # of which a rank has drawn its own only
            number = self._ranks.total(int(number))
        return replace(sizes, num_predictions=max(1, number))

    def _next(self) -> _Part | None:
        """Return the next micro-batch of this rank, or None after the last."""
        began = time.perf_counter()
        part = self._ahead.popleft().result()
        self.waited_seconds += time.perf_counter() - began
        self._ahead.append(self._thread.submit(next, self._parts, None))
        return part

    def _make_parts(self, begins: range) -> Iterator[_Part]:
        """Yield the micro-batches of the updates that begin at these places of the order."""
        for begin in begins:
            indices = example_order(begin, self._batch_size, len(self._examples), self._order_seed)
            lengths, num_predictions = self._examples.sizes(indices)
            # Padded to one length, a micro-batch has a fixed number of sequences, however short.
            padded = lengths if self._shape is None else np.full_like(lengths, self._shape.length)
            rank, world_size = self._ranks.rank, self._ranks.world_size
            micro_batches = deal_update(padded, rank, world_size, self._max_pieces)
            mine = np.concatenate(micro_batches)
            rows = self._examples.rows(indices[mine])
            if self._fresh is not None:
                epochs = (begin + mine) // len(self._examples)
                rows = self._fresh.draw(rows, indices[mine], epochs)
                num_predictions = rows.num_predictions
            sizes = Sizes.of_lengths(lengths, int(num_predictions.sum()))
            for part in rows.split(np.cumsum([len(places) for places in micro_batches]).tolist()):
                batch = part.batch(self._shape)
                batch = batch.each(Tensor.pin_memory) if self._pin_memory else batch
                yield _Part(batch, sizes, len(micro_batches))


def _begin_thread(device: int | None) -> None:
    """Keep freed memory in the process, and make ``device`` the thread's GPU.

    glibc keeps freed memory up to twice the largest block that it saw freed. As long as that is
    little, numpy's arrays are returned to the kernel and fetched again page by page, which takes a
    third of the time.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)  # not touched, and freed here
    if device is not None:
        torch.cuda.set_device(device)
