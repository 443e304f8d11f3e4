"""Examples to the updates of a run, each as micro-batches that a thread makes ahead.

Which examples an update has, and their masks, are pure functions of the seed and of how many
examples were taken before. The number of ranks and the size of the micro-batches only change how
they are cut.

R examples, as in `albert_core.training.batches`.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from albert_core.config import TrainingSettings, check_fresh_masks
from albert_core.stage import manifest, results
from albert_core.text.masking import mask_examples
from albert_core.text.records import Ints, Sizes
from albert_core.text.seeds import UInt64s, derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.batches import Batch, Rows
from albert_core.training.order import deal_update, example_order, order_seed, padded_length
from albert_core.training.ranks import Ranks
from albert_core.training.shards import ExampleShards

_PIECES_PER_BLOCK = 1 << 18
"""About how many pieces are masked together, few enough for the cache."""
_PIECES_AHEAD = 1 << 20
"""About how many pieces wait at most: 20 MB of batches, over a second of a fast GPU's work."""
_MICRO_BATCHES_AHEAD = 64
"""Micro-batches that wait at most, however small."""
_LARGEST_BLOCK = 31 << 20
"""Bytes: just below the largest block that glibc learns from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """One rank's part of the batch of one update."""

    sizes: Sizes
    """Sizes of the whole update, over all ranks; at least 1 prediction, as losses are divided by
    their number."""
    micro_batches: Iterable[Batch]
    """Longest sequences first; taken one by one, so that few are in memory."""


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
