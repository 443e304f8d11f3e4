"""Pure: the sentences of a document to segment pairs, in order or swapped.

A chunk is a run of sentences that fills an example; it is cut between two sentences into
segment a and segment b, and in half of the cases the two change places. Both always come from
the same document. What does not fit into a chunk begins the next one.

Source: paper section 3.1 (sentence-order prediction); REFERENCE.md B.5 for what the reference
does, DESIGN.md section 6 for what is done otherwise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.contract.records import CLS, NUM_SPECIAL_IN_PAIR, SEP
from albert_core.contract.seeds import random_uniform
from pipelines.ragged import Ints, ranges

_DRAWS_PER_CHUNK = 4
_SHORT, _TARGET, _MIDDLE, _SWAP = range(_DRAWS_PER_CHUNK)


@dataclass(frozen=True, slots=True)
class SegmentPairs:
    """C chunks of one document, by the numbers of its pieces and sentences."""

    start: Ints
    """(C,) first piece."""
    middle: Ints
    """(C,) first piece of the second part; start < middle < end."""
    end: Ints
    """(C,) one past the last piece."""
    swapped: NDArray[np.bool_]
    """(C,) whether the second part becomes segment a."""
    first_sentence: Ints
    """(C,) number of the first sentence that the chunk has a part of."""
    last_sentence: Ints
    """(C,) number of the last one, inclusive."""
    num_dropped: int
    """Pieces at the end of the document that have no second sentence to be paired with."""


def cut_into_pairs(
    sentence_lengths: Ints,
    opens_word: NDArray[np.bool_],
    seed: int,
    max_num_pieces: int,
    short_seq_prob: float,
) -> SegmentPairs:
    """Cut one document into chunks and each chunk into two segments.

    Args:
        sentence_lengths: int64 (n,), pieces in each sentence, in order, all above 0.
        opens_word: bool (N,), whether each of the document's N pieces opens a word; a sentence
            that must be cut is cut before such a piece.
        seed: of this document and copy; the result depends on nothing else that is random.
        max_num_pieces: pieces of both segments of the longest example.
        short_seq_prob: probability that a chunk aims at a length drawn from 2..max_num_pieces.

    Returns:
        Chunks that follow each other without a gap, and the count of the pieces after the last.
    """
    bounds, sentence_of = _parts(sentence_lengths, opens_word, max_num_pieces // 2)
    num_parts, num_pieces = len(bounds) - 1, int(bounds[-1])
    rows: list[tuple[int, int, int, bool, int, int]] = []
    part, start = 0, 0
    while True:
        draws = random_uniform(seed, len(rows) * _DRAWS_PER_CHUNK + np.arange(_DRAWS_PER_CHUNK))
        target = max_num_pieces
        if draws[_SHORT] < short_seq_prob:
            target = 2 + int(draws[_TARGET] * (max_num_pieces - 1))
        stop = max(int(np.searchsorted(bounds, start + target)), part + 2)
        stop = min(stop, num_parts)
        if stop - part < 2:
            break
        end = int(bounds[stop])
        if end - start > max_num_pieces:
            end = _last_cut(opens_word, int(bounds[stop - 1]), start + max_num_pieces)
            stop -= end == bounds[stop - 1]
        middle = int(bounds[part + 1 + int(draws[_MIDDLE] * (stop - part - 1))])
        first, last = int(sentence_of[part]), int(sentence_of[stop - 1])
        rows.append((start, middle, end, bool(draws[_SWAP] < 0.5), first, last))
        part, start = (stop if end == bounds[stop] else stop - 1), end
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    return SegmentPairs(
        start=columns[0],
        middle=columns[1],
        end=columns[2],
        swapped=columns[3].astype(bool),
        first_sentence=columns[4],
        last_sentence=columns[5],
        num_dropped=num_pieces - start,
    )


def assemble(
    pieces: Ints, start: Ints, middle: Ints, end: Ints, swapped: NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Lay out R examples as [CLS] a [SEP] b [SEP], end to end.

    Args:
        pieces: int64 (N,) pieces that the chunks are cut from.
        start: int64 (R,) first piece of each chunk; middle and end likewise.
        middle: int64 (R,)
        end: int64 (R,)
        swapped: bool (R,) whether the second part becomes segment a.

    Returns:
        input_ids int64 (T,), lengths int64 (R,), segment_b_starts int64 (R,).
    """
    first, second = middle - start, end - middle
    length_a, length_b = np.where(swapped, second, first), np.where(swapped, first, second)
    lengths = end - start + NUM_SPECIAL_IN_PAIR
    begins = np.cumsum(lengths) - lengths
    input_ids = np.full(lengths.sum(), SEP, np.int64)
    input_ids[begins] = CLS
    from_a = ranges(np.where(swapped, middle, start), length_a)
    from_b = ranges(np.where(swapped, start, middle), length_b)
    input_ids[ranges(begins + 1, length_a)] = pieces[from_a]
    input_ids[ranges(begins + length_a + 2, length_b)] = pieces[from_b]
    return input_ids, lengths, length_a + 2


def _parts(
    sentence_lengths: Ints, opens_word: NDArray[np.bool_], max_part: int
) -> tuple[Ints, Ints]:
    """Cut sentences of more than ``max_part`` pieces, so that two parts fit in any example.

    Returns:
        (n + 1,) bounds of the parts, and (n,) the number of the sentence each is of.
    """
    ends = np.cumsum(sentence_lengths)
    if not len(ends) or sentence_lengths.max() <= max_part:
        return np.concatenate([[0], ends]), np.arange(len(ends))
    bounds, sentence_of = [0], []
    for number, end in enumerate(ends.tolist()):
        while end - bounds[-1] > max_part:
            cut = _last_cut(opens_word, bounds[-1], bounds[-1] + max_part)
            bounds.append(cut if cut > bounds[-1] else bounds[-1] + max_part)
            sentence_of.append(number)
        bounds.append(end)
        sentence_of.append(number)
    return np.array(bounds, np.int64), np.array(sentence_of, np.int64)


def _last_cut(opens_word: NDArray[np.bool_], low: int, high: int) -> int:
    """Return the last piece in (low, high] that opens a word, else ``low``."""
    openings = np.flatnonzero(opens_word[low + 1 : high + 1])
    return low + 1 + int(openings[-1]) if len(openings) else low
