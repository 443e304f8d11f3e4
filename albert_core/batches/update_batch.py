"""The batch of one update: what all ranks have of it together, and one rank's part."""

from collections.abc import Iterable
from dataclasses import dataclass

from albert_core.contract.ragged import Ints
from albert_core.data import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSizes:
    """How large the batch of one update is, over all ranks; each knows it without asking."""

    num_sequences: int
    num_pieces: int
    """Real pieces, special ones included."""
    sum_of_squares: int
    """Sum of the squares of the sequences' lengths in real pieces, which attention costs."""
    num_predictions: int
    """At least 1, as losses are divided by it."""

    @classmethod
    def of_lengths(cls, lengths: Ints, num_predictions: int) -> "UpdateSizes":
        """Return those of an update.

        Args:
            lengths: int64 (n,), real pieces of each sequence.
            num_predictions: of all of them together.
        """
        return cls(
            num_sequences=len(lengths),
            num_pieces=int(lengths.sum()),
            sum_of_squares=int(lengths @ lengths),
            num_predictions=max(1, num_predictions),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """One rank's part of the batch of one update."""

    sizes: UpdateSizes
    """Of the whole update."""
    micro_batches: Iterable[Batch]
    """This rank's, longest sequences first; taken one by one, so they need not be there at once."""
