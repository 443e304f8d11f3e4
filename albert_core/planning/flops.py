"""Floating-point operations of a training step: arithmetic on sums, cheap enough for every step.

Only the model's own matrix products are counted, on real pieces and real predictions, two
operations for a multiplication with its addition. A backward pass is two forward passes: one
product for the gradient of the inputs, one for that of the weights. So padding, recomputed
activations, layer norms, the softmax and the optimizer do not count, and a share of a device's
peak made of these operations says how much of its time went into the model ("model FLOPs
utilisation").

Source: PLATFORM.md part 3, section 2; the convention is that of Chowdhery et al. 2022 (PaLM),
appendix B. `torch.utils.flop_counter` counts the same number for a batch without padding.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from albert_core.config import ModelSettings

_BACKWARD_AND_FORWARD = 3
_NUM_ORDERS = 2


def training_flops(
    settings: ModelSettings,
    vocab_size: int,
    lengths: NDArray[np.int64] | Sequence[int],
    num_predictions: int,
) -> float:
    """Return the operations of one forward and backward pass over some sequences.

    Args:
        settings: of the model.
        vocab_size: V, pieces, special ones included.
        lengths: (B,), real pieces of each sequence. In a row that packs several sequences, each
            counts by itself, as it attends to itself only.
        num_predictions: real predictions of all of them together.
    """
    pieces = np.asarray(lengths, dtype=np.float64)
    return training_flops_of(
        settings,
        vocab_size,
        num_sequences=len(pieces),
        num_pieces=float(pieces.sum()),
        sum_of_squares=float(pieces @ pieces),
        num_predictions=num_predictions,
    )


def training_flops_of(
    settings: ModelSettings,
    vocab_size: int,
    num_sequences: float,
    num_pieces: float,
    sum_of_squares: float,
    num_predictions: float,
) -> float:
    """Return the same from sums, which may be of a whole run or means of an example.

    Args:
        settings: of the model.
        vocab_size: V, pieces, special ones included.
        num_sequences: B.
        num_pieces: sum of the sequences' lengths S.
        sum_of_squares: sum of S * S.
        num_predictions: real predictions.
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
    multiplications = (
        num_pieces * a_piece
        + sum_of_squares * a_pair_of_pieces
        + num_predictions * a_prediction
        + num_sequences * a_sequence
    )
    return float(2 * _BACKWARD_AND_FORWARD * multiplications)


def undone_share(
    settings: ModelSettings,
    vocab_size: int,
    num_sequences: float,
    num_pieces: float,
    sum_of_squares: float,
    num_predictions: float,
) -> float:
    """Return the share of the operations that are counted but need not be done, 0..1.

    Of what the last layer gives, the heads read one row a sequence and one a prediction. For the
    others its output layer and its feed-forward block are left out (`AlbertModel.encode`).

    Args:
        settings: of the model.
        vocab_size: V.
        num_sequences: B.
        num_pieces: sum of the sequences' lengths S.
        sum_of_squares: sum of S * S.
        num_predictions: real predictions.
    """
    hidden, inner = settings.hidden_size, settings.intermediate_size
    rows = max(0.0, num_pieces - num_sequences - num_predictions)
    undone = rows * (hidden * hidden + 2 * hidden * inner)
    counted = training_flops_of(
        settings, vocab_size, num_sequences, num_pieces, sum_of_squares, num_predictions
    )
    return 2 * _BACKWARD_AND_FORWARD * undone / counted
