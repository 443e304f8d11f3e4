"""Floating-point operations of a training step, cheap enough to count at every step.

Only the model's own matrix products count, on real pieces and real predictions; a multiplication
with its addition is two operations. A backward pass costs two forward passes: one product for the
gradient of the inputs and one for that of the weights. Padding, recomputed activations, layer
norms, the softmax and the optimizer do not count. The share of a device's peak that these
operations make up therefore says how much of its time went into the model ("model FLOPs
utilisation").

Source: Chowdhery et al. 2022 (PaLM), appendix B. `torch.utils.flop_counter` counts the same number
for a batch without padding.
"""

from typing import Protocol

from albert_core.config import ModelSettings

_FLOPS_PER_MULTIPLICATION = 2
_BACKWARD_AND_FORWARD = 3
_NUM_ORDERS = 2


class Sizes(Protocol):
    """Sums over some sequences, or the means of one sequence."""

    @property
    def num_sequences(self) -> float:
        """B."""

    @property
    def num_pieces(self) -> float:
        """Sum of the lengths S, in real pieces. In a packed row, each sequence counts by itself."""

    @property
    def sum_of_squares(self) -> float:
        """Sum of S * S."""

    @property
    def num_predictions(self) -> float:
        """Real predictions of all sequences together."""


def training_flops(settings: ModelSettings, vocab_size: int, sizes: Sizes) -> float:
    """Return the operations of one forward and backward pass over some sequences.

    Args:
        settings: of the model.
        vocab_size: V, pieces, special ones included.
        sizes: of the sequences.
    """
    embedding, hidden = settings.embedding_size, settings.hidden_size
    num_blocks = settings.num_hidden_layers * settings.inner_group_num
    query_key_value_output = 4 * hidden * hidden
    feed_forward = 2 * hidden * settings.intermediate_size
    projection = 0 if embedding == hidden else embedding * hidden
    a_piece = num_blocks * (query_key_value_output + feed_forward) + projection
    a_pair_of_pieces = num_blocks * 2 * hidden  # its score, and its share of the weighted sum
    a_prediction = hidden * embedding + embedding * vocab_size
    a_sequence = hidden * hidden + _NUM_ORDERS * hidden  # pooler and order head
    return _trained(
        sizes.num_pieces * a_piece
        + sizes.sum_of_squares * a_pair_of_pieces
        + sizes.num_predictions * a_prediction
        + sizes.num_sequences * a_sequence
    )


def skipped_flops(settings: ModelSettings, sizes: Sizes) -> float:
    """Return how many of the operations of `training_flops` are counted but not done.

    The heads read one row of the last layer for each sequence and one for each prediction. For all
    other rows, its output projection and feed-forward block are skipped (`AlbertModel.encode`).

    Args:
        settings: of the model.
        sizes: of the sequences.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    num_rows = max(0.0, sizes.num_pieces - sizes.num_sequences - sizes.num_predictions)
    return _trained(num_rows * (hidden * hidden + 2 * hidden * inner))


def _trained(multiplications: float) -> float:
    return float(_FLOPS_PER_MULTIPLICATION * _BACKWARD_AND_FORWARD * multiplications)
