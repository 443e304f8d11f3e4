"""New masks for each epoch, by the rules that made those in the shards."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from albert_core.contract.errors import ConfigError
from albert_core.contract.manifest import Manifest
from albert_core.contract.masking import count_predictions, mask_examples
from albert_core.contract.ragged import Ints
from albert_core.contract.seeds import UInt64s, derive_seed, random_bits
from albert_core.contract.tokenizer import Tokenizer
from albert_core.data import Rows

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
