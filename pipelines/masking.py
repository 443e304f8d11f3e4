"""Pure: n-gram masking of whole words, for many examples at once.

The words of each segment are cut into spans whose lengths in words are drawn from 1..max_ngram
with p(n) proportional to 1/n; spans are taken in random order until 15 % of the pieces are
covered. A span never crosses [SEP]; the last one is shortened to the words that fit.

Source: paper section 4.1 (n-gram masking, maximum length 3); Devlin et al. 2019, section 3.1
(15 %, 80/10/10); REFERENCE.md B.7 for what the reference does otherwise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.contract.records import MASK, NUM_SPECIAL
from albert_core.contract.seeds import UInt64s, random_bits, random_uniform
from pipelines.ragged import ranges

_LENGTH, _ORDER, _KIND, _REPLACEMENT = (np.uint64(purpose << 32) for purpose in range(4))
"""What a draw is for; the low 32 bits of its counter are a position in the example."""
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1
"""Of the chosen pieces 80 % become [MASK], 10 % a random piece, 10 % stay."""


@dataclass(frozen=True, slots=True)
class Masked:
    """R examples after masking, laid end to end: T pieces and M predictions in all."""

    input_ids: NDArray[np.int64]
    """(T,)"""
    positions: NDArray[np.int64]
    """(M,) positions in their examples, ascending in each."""
    labels: NDArray[np.int64]
    """(M,) the pieces that stood there."""
    num_predictions: NDArray[np.int64]
    """(R,) predictions of each example; they sum to M."""


def span_length_weights(max_ngram: int) -> NDArray[np.float64]:
    """Return (max_ngram,) probabilities of a span of 1, 2, ... words: proportional to 1/n."""
    weights = 1.0 / np.arange(1, max_ngram + 1)
    return weights / weights.sum()


def mask_examples(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    segment_b_starts: NDArray[np.int64],
    opens_word: NDArray[np.bool_],
    seeds: UInt64s,
    masked_lm_prob: float,
    max_ngram: int,
) -> Masked:
    """Mask R examples laid end to end.

    Args:
        input_ids: int64 (T,), each example [CLS] a [SEP] b [SEP].
        lengths: int64 (R,), pieces of each example; they sum to T.
        segment_b_starts: int64 (R,), first position of segment b.
        opens_word: bool (V,), whether each piece of the vocabulary opens a word.
        seeds: uint64 (R,), an example's masks depend on its seed and pieces alone.
        masked_lm_prob: share of the pieces to predict, special ones counted, 0..1.
        max_ngram: words in the longest span.

    Returns:
        The masked examples. Each has at most round(masked_lm_prob * length) predictions, at
        least 1 of them unless every word is longer than that.
    """
    starts = np.cumsum(lengths) - lengths
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(input_ids)) - starts[row_of]
    special = _special_positions(starts, lengths, segment_b_starts, len(input_ids))
    words = _find_words(input_ids, special, opens_word, row_of)
    budgets = np.maximum(1, np.rint(masked_lm_prob * lengths)).astype(np.int64)
    in_segment_b = position[words.first] >= segment_b_starts[words.row]
    key = _span_keys(words, position[words.first], in_segment_b, seeds, max_ngram)
    chosen = _choose_words(words, key, budgets)
    masked = np.zeros(len(input_ids), bool)
    masked[ranges(words.first[chosen], words.length[chosen])] = True
    where = np.flatnonzero(masked)
    replaced = _replace(input_ids, where, position[where], seeds[row_of[where]], len(opens_word))
    return Masked(
        input_ids=replaced,
        positions=position[where],
        labels=input_ids[where],
        num_predictions=np.bincount(row_of[where], minlength=len(lengths)),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """W words of all examples, in order."""

    first: NDArray[np.int64]
    """(W,) index of its first piece among all T."""
    length: NDArray[np.int64]
    """(W,) pieces."""
    row: NDArray[np.int64]
    """(W,) its example."""


def _special_positions(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    segment_b_starts: NDArray[np.int64],
    num_pieces: int,
) -> NDArray[np.bool_]:
    special = np.zeros(num_pieces, bool)
    special[starts] = True
    special[starts + segment_b_starts - 1] = True
    special[starts + lengths - 1] = True
    return special


def _find_words(
    input_ids: NDArray[np.int64],
    special: NDArray[np.bool_],
    opens_word: NDArray[np.bool_],
    row_of: NDArray[np.int64],
) -> _Words:
    opens = opens_word[input_ids]
    opens[1:] |= special[:-1]
    bounds = np.flatnonzero(opens | special)
    length = np.diff(np.append(bounds, len(input_ids)))
    is_word = ~special[bounds]
    first = bounds[is_word]
    return _Words(first, length[is_word], row_of[first])


def _span_keys(
    words: _Words,
    position: NDArray[np.int64],
    in_segment_b: NDArray[np.bool_],
    seeds: UInt64s,
    max_ngram: int,
) -> UInt64s:
    """Return for each word the random key of the span that it is in; one key a span."""
    segment = words.row * 2 + in_segment_b
    opens_segment = np.ones(len(segment), bool)
    opens_segment[1:] = segment[1:] != segment[:-1]
    first_word = np.flatnonzero(opens_segment)
    num_words = np.diff(np.append(first_word, len(segment)))
    # The j-th word of a segment carries the draw for the segment's j-th span.
    draws = random_uniform(seeds[words.row], _LENGTH + position.astype(np.uint64))
    cumulative = np.cumsum(span_length_weights(max_ngram))[:-1]
    span_length = 1 + np.searchsorted(cumulative, draws, side="right")
    before = np.cumsum(span_length) - span_length
    before -= np.repeat(before[first_word], num_words)
    opens_span = np.zeros(len(segment), bool)
    inside = before < np.repeat(num_words, num_words)
    opens_span[(np.repeat(first_word, num_words) + before)[inside]] = True
    span_first = np.flatnonzero(opens_span)
    order = _ORDER + position[span_first].astype(np.uint64)
    keys = random_bits(seeds[words.row[span_first]], order)
    return keys[np.cumsum(opens_span) - 1]


def _choose_words(words: _Words, key: UInt64s, budgets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which words are taken: span after span by key, word after word, while they fit.

    A word that is longer than what is left of the budget is passed over, so that short words
    fill the rest.
    """
    chosen = np.zeros(len(words.row), bool)
    order = np.lexsort((np.arange(len(key)), key, words.row))
    left = budgets.copy()
    while True:
        order = order[~chosen[order] & (words.length[order] <= left[words.row[order]])]
        if not len(order):
            return chosen
        row, length = words.row[order], words.length[order]
        covered = np.cumsum(length)
        opens_row = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
        before_row = np.repeat(
            (covered - length)[opens_row], np.diff(np.append(opens_row, len(row)))
        )
        taken = order[covered - before_row <= left[row]]
        chosen[taken] = True
        left -= np.bincount(words.row[taken], words.length[taken], len(left)).astype(np.int64)


def _replace(
    input_ids: NDArray[np.int64],
    where: NDArray[np.int64],
    position: NDArray[np.int64],
    seeds: UInt64s,
    vocab_size: int,
) -> NDArray[np.int64]:
    counter = position.astype(np.uint64)
    kind = random_uniform(seeds, _KIND + counter)
    draw = random_uniform(seeds, _REPLACEMENT + counter)
    random_piece = NUM_SPECIAL + (draw * (vocab_size - NUM_SPECIAL)).astype(np.int64)
    replaced = np.where(kind < MASK_SHARE + RANDOM_SHARE, random_piece, input_ids[where])
    replaced[kind < MASK_SHARE] = MASK
    result = input_ids.copy()
    result[where] = replaced
    return result
