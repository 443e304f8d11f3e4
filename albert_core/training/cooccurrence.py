"""First weights that already say which pieces stand near each other, from counts.

A random ALBERT spends its first updates on what can be counted: how often each piece is asked for,
and near which others. Here the bias of the masked LM head is the log frequency of each piece, its
word vector is a factor of the table of pointwise mutual information, attention looks at the pieces
beside, and attention, projection and head pass the mean of what it sees on. So the first logit of a
piece is about its log frequency plus its inner product with its neighbours, a log-bilinear model.
Training goes on from there, and everything may change.

Word vectors and positions share no direction: a random basis of the E coordinates is divided among
them. Positions are sines and cosines, so that a rotation of the query decides at which distance a
head looks.

Sources: Levy and Goldberg 2014, "Neural word embedding as implicit matrix factorization"; Vaswani
et al. 2017, "Attention is all you need", section 3.5, for the positions.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds
from torch import Tensor, nn

from albert_core.model.albert import AlbertForPretraining, Attention
from albert_core.text.records import NUM_SPECIAL, NUM_SPECIAL_IN_PAIR, Ints
from albert_core.training.shards import ExampleShards

COUNTED_PIECES = 5_000_000
"""Pieces of the examples whose neighbours are counted; the examples lie in random order."""
_COUNTED_AT_ONCE = 10_000
"""Examples that are read at a time, so that memory holds little but the counts."""
WEIGHTS = (60, 30, 20, 15, 12)
"""Of a piece that stands 1, 2, ... away, on each side: as 1 to the distance, in whole numbers, of
which sums are exact."""
_UNSEEN_COUNT = 0.1
"""Added to the count of each piece."""
_CONTEXT_POWER = 0.75
"""Exponent of the frequencies of contexts, so that rare ones do not look telling."""
_WORD_RMS, _ATTENTION_GAIN, _HEAD_GAIN = 0.1, 1.5, 0.1
"""Root mean square of a word vector; factor of the value and output matrices, which begin as the
identity; factor of the head's matrix, which undoes the projection."""
_MOST_FREQUENCIES, _FASTEST, _SLOWEST = 8, 2.0, 0.05
"""Of the positions, at most, and two coordinates each; radians from a piece to the next."""
_POSITION_SHARE = 0.6
"""Squared length of a position, as a share of that of a word vector."""
_DISTANCES, _NEAREST_LOGIT = (-1, 1, 0), 3.0
"""Where the heads look, in turns, in pieces; how much the logit there is above those far away."""


def log_frequencies(counts: Ints) -> Tensor:
    """Return float32 (V,), the log of each piece's share, for how often it was seen, int (V,)."""
    smoothed = counts + _UNSEEN_COUNT
    return torch.from_numpy(np.log(smoothed / smoothed.sum())).float()


def near_counts(
    pieces: NDArray[np.integer[Any]], sequences: NDArray[np.integer[Any]], vocab_size: int
) -> csr_array:
    """Return uint32 (V, V), symmetric: how often two pieces stand near each other, by `WEIGHTS`.

    Special pieces are near none.

    Args:
        pieces: int (T,), sequences laid end to end.
        sequences: int (T,), the number of the sequence of each piece.
        vocab_size: V.
    """
    counts = csr_array((vocab_size, vocab_size), dtype=np.uint32)
    for distance, weight in enumerate(WEIGHTS, start=1):
        left, right = pieces[:-distance], pieces[distance:]
        near = sequences[:-distance] == sequences[distance:]
        near &= (left >= NUM_SPECIAL) & (right >= NUM_SPECIAL)
        weights = np.full(int(near.sum()), weight, np.uint32)
        counts += csr_array((weights, (left[near], right[near])), shape=counts.shape)
    return counts + counts.T


def word_vectors(counts: csr_array, basis: Tensor) -> Tensor:
    """Return float32 (V, E) whose inner products are about the positive mutual information.

    The vector of a piece that is near nothing is 0.

    Args:
        counts: uint32 (V, V), sums of `near_counts`.
        basis: float32 (size, E), of orthonormal rows: the vectors lie in their span. Turned at
            random, so that no coordinate is larger than the others.
    """
    table = counts.astype(np.float32).tocoo()
    totals: NDArray[np.float32] = table.sum(axis=1)
    contexts = totals**_CONTEXT_POWER
    expected = totals[table.row] * (contexts / max(contexts.sum(), 1.0))[table.col]
    information = np.log(np.maximum(table.data / expected, 1.0)).astype(np.float32)
    known = csr_array((information, (table.row, table.col)), counts.shape)
    known.eliminate_zeros()
    if not known.nnz:
        return torch.zeros(len(totals), basis.shape[1])
    start = torch.randn(len(totals)).numpy()
    left, singular, _ = svds(known, min(len(basis), len(totals) - 1), v0=start)
    vectors = torch.from_numpy(left * np.sqrt(singular)) @ basis[: len(singular)]
    return vectors / vectors.square().mean().sqrt()


def num_counted(examples: ExampleShards) -> int:
    """Return how many of the first ``examples`` are counted, at least 1."""
    most = min(len(examples), COUNTED_PIECES // NUM_SPECIAL_IN_PAIR)  # each is longer than that
    lengths, _ = examples.sizes(np.arange(most))
    return max(1, int(np.searchsorted(np.cumsum(lengths), COUNTED_PIECES, side="right")))


def initialise_from_counts(model: AlbertForPretraining, examples: ExampleShards) -> None:
    """Set the first weights of ``model``, on the CPU, from the pieces of ``examples``.

    The draws are torch's.
    """
    vocab_size, number = examples.result.vocab_size, num_counted(examples)
    counts = csr_array((vocab_size, vocab_size), dtype=np.uint32)
    asked = np.zeros(vocab_size, np.int64)
    for numbers in np.array_split(np.arange(number), 1 + number // _COUNTED_AT_ONCE):
        rows = examples.rows(numbers)
        sequences = np.repeat(np.arange(len(rows), dtype=np.int32), rows.lengths)
        counts += near_counts(rows.unmasked(), sequences, vocab_size)
        asked += np.bincount(rows.labels, minlength=vocab_size)
    encoder, head = model.encoder, model.masked_lm
    head.bias.data = log_frequencies(asked)
    if isinstance(encoder.projection, nn.Linear):
        nn.init.orthogonal_(head.dense.weight)
        encoder.projection.weight.data = head.dense.weight.data.T.contiguous()
    else:
        nn.init.eye_(head.dense.weight)
    num_positions, width = encoder.embeddings.position.weight.shape
    attentions: list[Any] = list(encoder.attentions)
    head_size = encoder.settings.hidden_size // encoder.settings.num_attention_heads
    num_frequencies = min(_MOST_FREQUENCIES, width // 8, head_size // 2)
    basis = nn.init.orthogonal_(torch.empty(width, width))
    of_positions, of_words = basis.tensor_split([2 * num_frequencies])
    vectors = word_vectors(counts, of_words)
    known = vectors.any(dim=1)
    encoder.embeddings.word.weight.data[known] = _WORD_RMS * vectors[known]
    frequencies = torch.logspace(math.log10(_FASTEST), math.log10(_SLOWEST), num_frequencies)
    angles = torch.arange(num_positions)[:, None] * frequencies
    places = torch.cat([angles.cos(), angles.sin()], dim=1)  # its squared length: num_frequencies
    length = _WORD_RMS * (_POSITION_SHARE * width / max(num_frequencies, 1)) ** 0.5
    encoder.embeddings.position.weight.data = length * places @ of_positions
    # The embeddings' norm makes the squared length of a word's and its position's sum E.
    of_place = width * _POSITION_SHARE / (1 + _POSITION_SHARE)
    gain = (_NEAREST_LOGIT * head_size**0.5 / of_place) ** 0.5
    for attention in attentions:
        for layer in (attention.value, attention.output):
            nn.init.eye_(layer.weight)
            layer.weight.data *= _ATTENTION_GAIN
        look_beside(attention, gain * of_positions @ head.dense.weight.data, frequencies)
    head.dense.weight.data *= _HEAD_GAIN


def look_beside(attention: Attention, finder: Tensor, frequencies: Tensor) -> None:
    """Let each head look at its distance, one of `_DISTANCES`.

    Args:
        attention: of H coordinates and N heads.
        finder: float32 (2 * frequencies, H), what finds in a vector the cosines, and then the
            sines, of its position.
        frequencies: float32, at most H / 2N, radians from a piece to the next.
    """
    cosines, sines = finder.tensor_split(2)
    for head in range(attention.num_heads):
        first = head * (len(attention.query.weight) // attention.num_heads)
        rows = slice(first, first + len(finder))
        turn = frequencies[:, None] * _DISTANCES[head % len(_DISTANCES)]
        attention.key.weight.data[rows] = finder
        attention.query.weight.data[rows] = torch.cat(
            [cosines * turn.cos() - sines * turn.sin(), cosines * turn.sin() + sines * turn.cos()]
        )
