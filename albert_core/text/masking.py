"""N-gram masking of whole words, for many examples at once.

The words of each segment are cut into spans whose lengths in words are drawn from 1..max_ngram
with p(n) proportional to 1/n. Spans are taken in random order until 15 % of the pieces are
covered. A span never crosses [SEP]. A span that is too long for the rest of the budget is shortened
to its first words or skipped.

The code is shaped by speed: arrays are per word and per span, not per piece; one random number
serves two words; and since only a seventh of the spans is taken, only those with the lowest keys
are sorted.

Source: paper section 4.1 (n-gram masking, maximum length 3); Devlin et al. 2019, section 3.1
(15 %, 80/10/10); google-research/albert `create_pretraining_data.py` does it otherwise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.text.records import MASK, NUM_SPECIAL, Bools, Ints, UInt16s, begins_of, ranges
from albert_core.text.seeds import UInt64s, random_bits

Pieces = NDArray[np.integer[Any]]

_SPAN, _REPLACEMENT = (np.uint64(purpose << 32) for purpose in range(2))
"""Purposes of draws. The low 32 bits of a draw's counter are a position in the example."""
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1
"""Of the chosen pieces, 80 % become [MASK], 10 % become a random piece and 10 % stay."""
_KEYS = 1 << 16
_NO_ROOM = 1 << 20
"""More pieces than any example has."""


@dataclass(frozen=True, slots=True)
class Masked:
    """R examples after masking, concatenated: T pieces and M predictions in total."""

    input_ids: Pieces
    """(T,), of the input's dtype."""
    positions: Ints
    """(M,) positions within the examples, ascending in each."""
    labels: Pieces
    """(M,) the original pieces there, of the input's dtype."""
    num_predictions: Ints
    """(R,) number of predictions of each example, which sum to M."""


def span_length_weights(max_ngram: int) -> NDArray[np.float64]:
    """Return (max_ngram,) probabilities of a span of 1, 2, ... words: proportional to 1/n."""
    weights: NDArray[np.float64] = 1.0 / np.arange(1, max_ngram + 1)
    weights /= weights.sum()
    return weights


def mask_examples(
    input_ids: Pieces,
    lengths: Ints,
    segment_b_starts: Ints,
    opens_word: Bools,
    seeds: UInt64s,
    masked_lm_prob: float,
    max_ngram: int,
    max_predictions: int | Ints | None = None,
) -> Masked:
    """Mask R concatenated examples.

    Args:
        input_ids: integers (T,), each example [CLS] a [SEP] b [SEP].
        lengths: int64 (R,), pieces of each example, which sum to T.
        segment_b_starts: int64 (R,), first position of segment b.
        opens_word: bool (V,), whether each piece of the vocabulary starts a word.
        seeds: uint64 (R,). The masks of an example depend only on its seed and its pieces.
        masked_lm_prob: share of the pieces to predict, counting special ones, 0..1.
        max_ngram: words in the longest span.
        max_predictions: upper bound for every example, or (R,) for each; None for no bound.

    Returns:
        The masked examples. Each has at most round(masked_lm_prob * length) predictions, at
        least 1 of them unless every word is longer than that.
    """
    starts = begins_of(lengths)
    words = _find_words(input_ids, starts, lengths, segment_b_starts, opens_word)
    spans = _cut_spans(words, seeds, max_ngram)
    budgets = np.maximum(1, np.rint(masked_lm_prob * lengths)).astype(np.int64)
    if max_predictions is not None:
        budgets = np.minimum(budgets, max_predictions)
    masked = _choose_pieces(words, spans, lengths, budgets, len(input_ids))
    where = np.flatnonzero(masked)
    bounds = np.searchsorted(where, np.append(starts, len(input_ids)))
    num_predictions = np.diff(bounds)
    positions = where - np.repeat(starts, num_predictions)
    labels = input_ids[where]
    replaced = input_ids.copy()
    replaced[where] = _replacements(
        labels, positions, np.repeat(seeds, num_predictions), len(opens_word)
    )
    return Masked(replaced, positions, labels, num_predictions)


@dataclass(frozen=True, slots=True)
class _Words:
    """W words of R examples, in order."""

    first: Ints
    """(W,) index of the first piece among all T."""
    end: Ints
    """(W,) index after the last piece."""
    segment_begins: Ints
    """(2 R + 1,) index of the first word of each segment, and W."""

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class _Spans:
    """N spans, in order, which cover all words."""

    begins: Ints
    """(N + 1,) index of the first word of each span, and W."""
    keys: UInt16s
    """(N,) random. Spans are taken by ascending key, and in order where keys are equal."""
    row_begins: Ints
    """(R + 1,) index of the first span of each example, and N."""


def _find_words(
    input_ids: Pieces, starts: Ints, lengths: Ints, segment_b_starts: Ints, opens_word: Bools
) -> _Words:
    seps, ends = starts + segment_b_starts - 1, starts + lengths - 1
    opens = opens_word.take(input_ids)
    segment_starts = np.stack([starts + 1, seps + 1], axis=1).ravel()
    segment_ends = np.stack([seps, ends], axis=1).ravel()
    opens[segment_starts] = True
    opens[starts] = opens[segment_ends] = False
    first = np.flatnonzero(opens)
    begins = np.append(np.searchsorted(first, segment_starts), len(first))
    end = np.append(first[1:], len(input_ids))
    filled = np.diff(begins) > 0
    end[begins[1:][filled] - 1] = segment_ends[filled]
    return _Words(first, end, begins)


def _cut_spans(words: _Words, seeds: UInt64s, max_ngram: int) -> _Spans:
    """Cut each segment into spans of random lengths; the last one gets what is left."""
    draws = _two_draws_a_word(seeds, np.diff(words.segment_begins[::2]))
    lengths, keys = draws[:, 0], draws[:, 1]
    # The j-th word of a segment carries the length of the segment's j-th span.
    thresholds = np.cumsum(span_length_weights(max_ngram))[:-1] * _KEYS
    num_words = np.ones(len(words), np.uint8)
    for threshold in thresholds:
        num_words += lengths >= np.uint16(round(threshold))
    ends = np.cumsum(num_words, dtype=np.int32)
    begins, counts = words.segment_begins[:-1], np.diff(words.segment_begins)
    filled = counts > 0
    begins, counts = begins[filled], counts[filled]
    before = ends[begins] - num_words[begins]
    # Where a span ends within its segment, another one begins.
    ends += np.repeat((begins - before).astype(np.int32), counts)
    inside = ends < np.repeat((begins + counts).astype(np.int32), counts)
    opens = np.zeros(len(words), bool)
    opens[begins] = True
    opens[ends[inside]] = True
    first = np.flatnonzero(opens)
    rows = np.searchsorted(first, words.segment_begins[::2])
    return _Spans(np.append(first, len(words)), keys[first], rows)


def _two_draws_a_word(seeds: UInt64s, counts: Ints) -> UInt16s:
    """Return uint16 (W, 2) random numbers for rows of ``counts`` words, two words per hash."""
    num_hashes = (counts + 1) // 2
    counter = ranges(np.zeros(len(counts), np.int64), num_hashes).astype(np.uint64)
    bits = random_bits(np.repeat(seeds, num_hashes), _SPAN + counter)
    halves = bits.astype("<u8", copy=False).view("<u4")
    unused = 2 * np.cumsum(num_hashes)[counts % 2 == 1] - 1
    return np.delete(halves, unused).view("<u2").reshape(-1, 2)


def _choose_pieces(
    words: _Words, spans: _Spans, lengths: Ints, budgets: Ints, num_pieces: int
) -> Bools:
    """Return bool (T,), the chosen pieces, at most ``budgets`` (R,) in each example."""
    masked = np.zeros(num_pieces, bool)
    # This many spans nearly always suffice, and the choice does not depend on the number.
    share = np.minimum(1, (budgets + 8 * np.sqrt(budgets) + 8) / lengths)
    limits = np.minimum(share * _KEYS, _KEYS - 1).astype(np.uint16)
    low = np.flatnonzero(spans.keys < np.repeat(limits, np.diff(spans.row_begins)))
    low_begins = np.searchsorted(low, spans.row_begins)
    left = _take_spans(words, spans, low, np.diff(low_begins), budgets, masked)
    open_rows = np.flatnonzero(left)
    if not len(open_rows):
        return masked
    # The few other rows start over with all of their spans, and then take any word that fits.
    begins, ends = spans.row_begins[open_rows], spans.row_begins[open_rows + 1]
    selected = ranges(begins, ends - begins)
    left = _take_spans(words, spans, selected, ends - begins, budgets[open_rows], masked)
    _take_words(words, open_rows, left, masked)
    return masked


def _take_spans(
    words: _Words, spans: _Spans, selected: Ints, counts: Ints, budgets: Ints, masked: Bools
) -> Ints:
    """Mark the chosen spans in ``masked``; return (R,) the rest of the budgets.

    Args:
        words: all words.
        spans: all spans.
        selected: indices of the candidate spans, in order.
        counts: (R,) number of candidates of each example.
        budgets: (R,) pieces to choose in each example.
        masked: bool (T,), updated in place.
    """
    order, lanes = _by_key(spans.keys[selected], counts)
    first_word, end_word = spans.begins[selected], spans.begins[selected + 1]
    first, size = words.first[first_word], words.end[end_word - 1] - words.first[first_word]
    sizes = np.where(lanes, size[order], _NO_ROOM)
    covered = np.cumsum(sizes, axis=1)
    taken = covered <= budgets[:, None]
    spans_taken = order[taken]
    masked[ranges(first[spans_taken], size[spans_taken])] = True
    left: Ints = budgets - (sizes * taken).sum(axis=1)
    lead = words.end[first_word] - first
    lane = taken.sum(axis=1)
    rows = np.flatnonzero(left)
    while len(rows):
        fits = lanes[rows] & (np.arange(order.shape[1]) >= lane[rows, None])
        fits &= lead[order[rows]] <= left[rows, None]
        rows, fits = rows[fits.any(axis=1)], fits[fits.any(axis=1)]
        if not len(rows):
            break
        at = fits.argmax(axis=1)
        span = order[rows, at]
        end = _last_fitting_end(words, first_word[span], end_word[span], left[rows])
        masked[ranges(first[span], end - first[span])] = True
        left[rows] -= end - first[span]
        lane[rows] = at + 1
        rows = rows[left[rows] > 0]
    return left


def _by_key(keys: UInt16s, counts: Ints) -> tuple[Ints, Bools]:
    """Return int64 (R, C) indices that sort the keys of each row, and bool (R, C) the used lanes.

    Row i has counts[i] keys. Its unused lanes are at the end and hold index 0.
    """
    width = int(counts.max(initial=0))
    lanes = np.arange(width) < counts[:, None]
    places = np.broadcast_to(np.arange(width, dtype=np.uint32), lanes.shape)[lanes]
    packed = np.full(lanes.shape, np.iinfo(np.uint32).max, np.uint32)
    packed[lanes] = keys.astype(np.uint32) << np.uint32(16) | places
    packed.sort(axis=1)
    order: Ints = (packed & np.uint32(0xFFFF)) + begins_of(counts)[:, None]
    return np.where(lanes, order, 0), lanes


def _last_fitting_end(words: _Words, first: Ints, end: Ints, room: Ints) -> Ints:
    """Return the end, in pieces, of the longest run of words from ``first`` that fits in ``room``.

    The first word always fits.
    """
    begin = words.first[first]
    last = first
    for step in range(1, int((end - first).max())):
        word = np.minimum(first + step, end - 1)
        last = np.where(words.end[word] - begin <= room, word, last)
    ends: Ints = words.end[last]
    return ends


def _take_words(words: _Words, rows: Ints, left: Ints, masked: Bools) -> None:
    """Spend the rest of the budgets of ``rows`` on the longest words that fit."""
    for row, budget in zip(rows[left > 0].tolist(), left[left > 0].tolist(), strict=True):
        room = budget
        begin, end = words.segment_begins[[2 * row, 2 * row + 2]]
        first = words.first[begin:end]
        sizes = words.end[begin:end] - first
        free = np.flatnonzero(~masked[first] & (sizes <= room))
        while len(free):
            word = free[sizes[free].argmax()]
            masked[first[word] : first[word] + sizes[word]] = True
            room -= int(sizes[word])
            free = free[(free != word) & (sizes[free] <= room)]


def _replacements(labels: Pieces, positions: Ints, seeds: UInt64s, vocab_size: int) -> Pieces:
    """Return (M,) the new pieces at the chosen positions: [MASK], a random piece, or no change."""
    bits = random_bits(seeds, _REPLACEMENT + positions.astype(np.uint64))
    kind, draw = bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)
    others = np.uint64(vocab_size - NUM_SPECIAL)
    piece = (NUM_SPECIAL + (draw * others >> np.uint64(32))).astype(labels.dtype)
    changed = np.where(kind < round((MASK_SHARE + RANDOM_SHARE) * 2**32), piece, labels)
    changed[kind < round(MASK_SHARE * 2**32)] = MASK
    return changed
