"""The updates of a run, each as micro-batches that a thread makes ahead.

Which examples an update has, and their masks, are pure functions of the seed and the step. The
number of ranks and the size of the micro-batches only change how they are cut.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from albert_core.config import TrainingSettings
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Manifest
from albert_core.stage.results import ExamplesResult
from albert_core.text.masking import count_predictions, mask_examples
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.order import deal_update, example_order, padded_length
from albert_core.training.ranks import Ranks
from albert_core.training.shards import Batch, ExampleShards, Rows, UpdateBatch, UpdateSizes

_PIECES_PER_BLOCK = 1 << 18
"""About how many pieces are masked together, few enough for the cache."""
_PIECES_AHEAD = 1 << 20
"""About how many pieces wait at most: 20 MB of batches, over a second of a fast GPU's work."""
_MICRO_BATCHES_AHEAD = 64
"""Micro-batches that wait at most, however small."""
_LARGEST_BLOCK = 31 << 20
"""Bytes: just below the largest block that glibc learns from."""


class FreshMasks:
    """Masks that are a pure function of seed, epoch, and the example's number and pieces.

    Args:
        manifest: of the stage "examples", whose settings and vocabulary are the rules.
        seed: of the run.
        mask_share: share of the pieces to predict, 0..1; None for that of the examples' own masks.

    Raises:
        ConfigError: the examples were masked like the reference's, which only the pipelines can.
        IntegrityError: the vocabulary is not one of ours.
    """

    def __init__(self, manifest: Manifest, seed: int, mask_share: float | None = None) -> None:
        result = manifest.result_as(ExamplesResult)
        if result.fidelity == "google":
            raise ConfigError(
                "masks cannot be drawn afresh: the examples were made with examples.fidelity "
                "'google', whose masks are made in the shards only. Take training.masks 'shards', "
                "or make the examples with fidelity 'paper'."
            )
        self._seed = seed
        self.max_predictions = result.max_predictions
        """Most predictions in any example."""
        if mask_share is not None:
            self.max_predictions = max(1, round(mask_share * result.max_seq_length))
        self._rules = {
            "masked_lm_prob": mask_share or manifest.settings["masked_lm_prob"],
            "max_ngram": manifest.settings["max_ngram"],
            "max_predictions": self.max_predictions,
        }
        vocab_folder = result.vocab_manifest.rpartition("/")[0]
        self._opens_word = Tokenizer.load(vocab_folder).starts_word

    def draw(self, rows: Rows, indices: Ints, epochs: Ints) -> Rows:
        """Return ``rows`` with the masks of their epochs instead of their own.

        Args:
            rows: R examples, at least one.
            indices: int64 (R,), their numbers among all examples.
            epochs: int64 (R,), the pass over all examples that each is met in.
        """
        parts = [
            replace(
                part,
                input_ids=masked.input_ids.astype(np.uint16, copy=False),
                positions=masked.positions.astype(np.uint16),
                labels=masked.labels.astype(np.uint16, copy=False),
                num_predictions=masked.num_predictions,
            )
            for part, masked in self._by_block(mask_examples, rows, indices, epochs)
        ]
        return Rows.join(parts)

    def count(self, rows: Rows, indices: Ints, epochs: Ints) -> int:
        """Return how many predictions `draw` makes in all, for a fraction of its cost."""
        counts = self._by_block(count_predictions, rows, indices, epochs)
        return sum(int(of_part.sum()) for _, of_part in counts)

    def _by_block(
        self, function: Callable[..., Any], rows: Rows, indices: Ints, epochs: Ints
    ) -> Iterator[tuple[Rows, Any]]:
        """Yield blocks of ``rows``, and what a function of `text.masking` returns for each."""
        seeds = np.empty(len(indices), np.uint64)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            seed = derive_seed(self._seed, "masks", int(epoch))
            seeds[of_epoch] = random_bits(seed, indices[of_epoch])
        block = (np.cumsum(rows.lengths) - 1) // _PIECES_PER_BLOCK
        ends = np.append(np.flatnonzero(np.diff(block)) + 1, len(rows)).tolist()
        for part, its_seeds in zip(rows.split(ends), np.split(seeds, ends[:-1]), strict=True):
            given = part.unmasked(), part.lengths, part.segment_b_starts, self._opens_word
            yield part, function(*given, its_seeds, **self._rules)


class _Part(NamedTuple):
    """One micro-batch, and the update that it belongs to."""

    batch: Batch
    sizes: UpdateSizes
    num_micro_batches: int
    """In the update; the same on every rank."""


class UpdateLoader:
    """The updates of a run in their order. A context manager: leaving it ends its thread.

    The examples of an update are put in order of length, dealt to the ranks, and cut into
    micro-batches of at most as many pieces, with padding, as ``micro_batch_size`` sequences of
    full length have; so short sequences come in larger micro-batches (`deal_update`). A rank counts
    the predictions of the other ranks' parts itself.

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
        self._order_seed = derive_seed(settings.seed, "order")
        self._fresh: FreshMasks | None = None
        self._shape = examples.shape_for(ranks, settings.micro_batch_size)
        if settings.masks == "fresh":
            self._fresh = FreshMasks(examples.manifest, settings.seed, settings.mask_share)
            if self._shape is not None:
                num_predictions = self._fresh.max_predictions
                self._shape = replace(self._shape, num_predictions=num_predictions)
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
            yield UpdateBatch(sizes=part.sizes, micro_batches=batches)
            deque(batches, maxlen=0)  # what was not taken

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
            # Where all are padded to one length, a micro-batch is so many sequences, however short.
            padded = lengths if self._shape is None else np.full_like(lengths, self._shape.length)
            rank, world_size = self._ranks.rank, self._ranks.world_size
            micro_batches = deal_update(padded, rank, world_size, self._max_pieces)
            mine = np.concatenate(micro_batches)
            rows, in_all = self._examples.rows(indices[mine]), int(num_predictions.sum())
            if self._fresh is not None:
                epochs = np.arange(begin, begin + self._batch_size) // len(self._examples)
                rows = self._fresh.draw(rows, indices[mine], epochs[mine])
                others = np.delete(np.arange(self._batch_size), mine)
                in_all = int(rows.num_predictions.sum())
                in_all += self._count_fresh(self._fresh, indices[others], epochs[others])
            sizes = UpdateSizes.of_lengths(lengths, in_all)
            for part in rows.split(np.cumsum([len(places) for places in micro_batches]).tolist()):
                batch = part.batch(self._shape)
                batch = batch.each(torch.Tensor.pin_memory) if self._pin_memory else batch
                yield _Part(batch, sizes, len(micro_batches))

    def _count_fresh(self, fresh: FreshMasks, indices: Ints, epochs: Ints) -> int:
        if not len(indices):
            return 0
        return fresh.count(self._examples.rows(indices), indices, epochs)


def _begin_thread(device: int | None) -> None:
    """Keep freed memory in the process, and make ``device`` the thread's GPU.

    Of what is freed, glibc keeps up to twice the largest block that it saw freed. As long as that
    is little, numpy's arrays are given back and fetched again page by page, for a third of the
    time.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)  # not touched, and freed here
    if device is not None:
        torch.cuda.set_device(device)
