"""The updates of a run, each as micro-batches that a thread makes ahead.

Which examples an update has, and their masks, are pure functions of the seed and the step. Neither
the number of ranks nor the size of the micro-batches changes them, only how they are cut.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Literal, NamedTuple, Self

import numpy as np
import torch

from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Manifest
from albert_core.text.masking import count_predictions, mask_examples
from albert_core.text.records import Ints
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.order import deal_update, example_order, padded_length
from albert_core.training.shards import (
    Batch,
    BatchShape,
    ExampleShards,
    Rows,
    UpdateBatch,
    UpdateSizes,
    make_batch,
)

_PIECES_PER_BLOCK = 1 << 18
"""About as many are masked at once, few enough for the cache."""


class FreshMasks:
    """Masks that are a pure function of seed, epoch, and the example's number and pieces.

    Args:
        manifest: of the stage "examples", whose settings and vocabulary are the rules.
        seed: of the run.

    Raises:
        ConfigError: the examples were masked as the reference does, which is known to the
            pipelines only.
        IntegrityError: the vocabulary is not one of ours.
    """

    def __init__(self, manifest: Manifest, seed: int) -> None:
        if manifest.settings["fidelity"] == "google":
            raise ConfigError(
                "masks cannot be drawn afresh: the examples were made with examples.fidelity "
                "'google', whose masks are made in the shards only. Take training.masks 'shards', "
                "or make the examples with fidelity 'paper'."
            )
        self._seed = seed
        self._rules = {
            "masked_lm_prob": manifest.settings["masked_lm_prob"],
            "max_ngram": manifest.settings["max_ngram"],
            "max_predictions": manifest.facts["max_predictions"],
        }
        vocab_folder = manifest.facts["vocab_manifest"].rpartition("/")[0]
        self._opens_word = Tokenizer.load(vocab_folder).starts_word

    def draw(self, rows: Rows, indices: Ints, epochs: Ints) -> Rows:
        """Return ``rows`` with the masks of their epochs in place of those they have.

        Args:
            rows: R examples, at least one.
            indices: int64 (R,), their numbers among all examples.
            epochs: int64 (R,), the pass over all examples that each is met in.
        """
        parts = []
        for part, seeds in _blocks(rows, self._seeds(indices, epochs)):
            masked = mask_examples(
                part.unmasked(),
                part.lengths,
                part.segment_b_starts,
                self._opens_word,
                seeds,
                **self._rules,
            )
            parts.append(
                replace(
                    part,
                    input_ids=masked.input_ids.astype(np.uint16, copy=False),
                    positions=masked.positions.astype(np.uint16),
                    labels=masked.labels.astype(np.uint16, copy=False),
                    num_predictions=masked.num_predictions,
                )
            )
        return Rows.join(parts)

    def count(self, rows: Rows, indices: Ints, epochs: Ints) -> int:
        """Return how many predictions `draw` makes in all, for a fraction of its cost."""
        return sum(
            int(
                count_predictions(
                    part.unmasked(),
                    part.lengths,
                    part.segment_b_starts,
                    self._opens_word,
                    seeds,
                    **self._rules,
                ).sum()
            )
            for part, seeds in _blocks(rows, self._seeds(indices, epochs))
        )

    def _seeds(self, indices: Ints, epochs: Ints) -> UInt64s:
        seeds = np.empty(len(indices), np.uint64)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            seed = derive_seed(self._seed, "masks", int(epoch))
            seeds[of_epoch] = random_bits(seed, indices[of_epoch])
        return seeds


def _blocks(rows: Rows, seeds: UInt64s) -> Iterator[tuple[Rows, UInt64s]]:
    block = (np.cumsum(rows.lengths) - 1) // _PIECES_PER_BLOCK
    ends = np.append(np.flatnonzero(np.diff(block)) + 1, len(rows)).tolist()
    return zip(rows.split(ends), np.split(seeds, ends[:-1]), strict=True)


Masks = Literal["shards", "fresh"]

_PIECES_PER_CALL = 1 << 16
"""About as many are made in one call of the thread, so that calls cost next to nothing."""
_PIECES_AHEAD = 1 << 20
"""About as many wait at most: 20 MB of batches, more than a second of a fast GPU's work."""
_LARGEST_BLOCK = 31 << 20
"""Bytes: just below the largest block that glibc learns from."""


class UpdateLoader:
    """Gives the updates of a run in their order. A context manager: leaving it ends its thread.

    The examples of an update are put in order of length, dealt to the ranks, and cut into
    micro-batches of at most as many pieces, with padding, as ``micro_batch_size`` sequences of
    full length have; so short sequences come in larger micro-batches (`deal_update`). What a
    rank is to know of the other ranks' parts, their predictions, it counts itself.

    An update is held as rows, two bytes a piece; its batches are made one by one, and wait in a
    queue of about `_PIECES_AHEAD` pieces. An error in making them is raised where the next
    one is taken.

    Args:
        examples: to train on.
        batch_size: examples in one update, all ranks together; at least ``world_size``.
        micro_batch_size: examples of full length in one micro-batch.
        seed: of the run.
        rank: of this process, 0..world_size - 1.
        world_size: ranks that train together.
        first_example: examples already taken of this data set.
        num_updates: updates to give.
        masks: "shards" takes those in the shards; "fresh" draws others in each epoch, by the
            same rules.
        pin_memory: whether batches are in page-locked memory; needs a GPU.
        shape: what every micro-batch is padded to; None for packed ones.

    Raises:
        ConfigError: ``masks`` is "fresh" and the examples are masked as the reference does.
    """

    def __init__(
        self,
        examples: ExampleShards,
        *,
        batch_size: int,
        micro_batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        first_example: int,
        num_updates: int,
        masks: Masks,
        pin_memory: bool,
        shape: BatchShape | None = None,
    ) -> None:
        self.waited_seconds = 0.0
        """How long the consumer waited for batches, in all."""
        self._examples = examples
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._order_seed = derive_seed(seed, "order")
        self._fresh = FreshMasks(examples.manifest, seed) if masks == "fresh" else None
        self._pin_memory, self._shape = pin_memory, shape
        max_seq_length = examples.manifest.facts["max_seq_length"]
        self._max_pieces = micro_batch_size * padded_length(max_seq_length)
        end = first_example + num_updates * batch_size
        self._parts = self._make_parts(range(first_example, end, batch_size))
        # A thread has a current GPU of its own, and page-locked memory belongs to one.
        device = torch.cuda.current_device() if pin_memory else None
        self._thread = ThreadPoolExecutor(1, "examples", initializer=partial(_begin_thread, device))
        self._ahead: deque[Future[list[_Part]]] = deque()
        self._there: deque[_Part] = deque()

    def __enter__(self) -> Self:
        per_call = max(_PIECES_PER_CALL, self._max_pieces)
        for _ in range(max(2, _PIECES_AHEAD // per_call)):
            self._ahead.append(self._thread.submit(self._make_some))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[UpdateBatch]:
        while (part := self._next()) is not None:
            rest = (self._next_batch() for _ in range(part.num_micro_batches - 1))
            batches = chain([part.batch], rest)
            yield UpdateBatch(sizes=part.sizes, micro_batches=batches)
            deque(batches, maxlen=0)  # what was not taken

    def _next_batch(self) -> Batch:
        part = self._next()
        assert part is not None
        return part.batch

    def _next(self) -> "_Part | None":
        """Return the next micro-batch of this rank, or None after the last."""
        if not self._there:
            began = time.perf_counter()
            self._there.extend(self._ahead.popleft().result())
            self.waited_seconds += time.perf_counter() - began
            self._ahead.append(self._thread.submit(self._make_some))
        return self._there.popleft() if self._there else None

    def _make_some(self) -> list["_Part"]:
        """Return the next micro-batches, none after the last; this runs in the thread."""
        parts, num_pieces = [], 0
        for part in self._parts:
            parts.append(part)
            num_pieces += part.batch.num_pieces
            if num_pieces >= _PIECES_PER_CALL:
                break
        return parts

    def _make_parts(self, begins: range) -> Iterator["_Part"]:
        """Yield the micro-batches of the updates that begin at these places of the order."""
        for begin in begins:
            numbers = np.arange(begin, begin + self._batch_size)
            indices = example_order(begin, self._batch_size, len(self._examples), self._order_seed)
            lengths, num_predictions = self._examples.sizes(indices)
            # Where all are padded to one length, a micro-batch is so many sequences, however short.
            padded = lengths if self._shape is None else np.full_like(lengths, self._shape.length)
            micro_batches = deal_update(padded, self._rank, self._world_size, self._max_pieces)
            mine = np.concatenate(micro_batches)
            rows = self._examples.rows(indices[mine])
            in_all = int(num_predictions.sum())
            if self._fresh is not None:
                epochs = numbers // len(self._examples)
                rows, in_all = self._mask_afresh(self._fresh, rows, mine, indices, epochs)
            sizes = UpdateSizes.of_lengths(lengths, in_all)
            for part in rows.split(np.cumsum([len(places) for places in micro_batches]).tolist()):
                batch = make_batch(part, self._shape)
                batch = batch.pinned() if self._pin_memory else batch
                yield _Part(batch, sizes, len(micro_batches))

    def _mask_afresh(
        self, fresh: FreshMasks, rows: Rows, mine: Ints, indices: Ints, epochs: Ints
    ) -> tuple[Rows, int]:
        """Return ``rows`` with new masks, and the predictions of the update over all ranks.

        Args:
            fresh: draws the masks.
            rows: this rank's.
            mine: places of this rank's rows in the update.
            indices: (n,) examples of the update.
            epochs: (n,) of each.
        """
        rows = fresh.draw(rows, indices[mine], epochs[mine])
        in_all = int(rows.num_predictions.sum())
        others = np.delete(np.arange(len(indices)), mine)
        if len(others):
            theirs = self._examples.rows(indices[others])
            in_all += fresh.count(theirs, indices[others], epochs[others])
        return rows, in_all


def _begin_thread(device: int | None) -> None:
    """Keep freed memory in the process, and make ``device`` the thread's GPU.

    Of what is freed, glibc keeps up to twice the largest block that it saw freed. While that is
    little, numpy's arrays are given back and fetched again page by page, for a third of the time.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)  # not touched, and freed here
    if device is not None:
        torch.cuda.set_device(device)


class _Part(NamedTuple):
    """One micro-batch, and the update it is of."""

    batch: Batch
    sizes: UpdateSizes
    num_micro_batches: int
    """In the update; the same on every rank."""
