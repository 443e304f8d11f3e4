"""Pure: the sentences of a document to segment pairs, in order or swapped.

A chunk is a run of whole sentences that fills an example; it is cut between two sentences into
segment a and segment b, and in half of the cases the two change places. Both always come from
the same document. A sentence that does not fit goes whole to the next chunk: a chunk that ended
inside a sentence would give its order away, because then only the later segment has no full stop.
Two sentences that are too long for one example lose pieces at either end alike.

Source: paper section 3.1 (sentence-order prediction); REFERENCE.md B.5 for what the reference
does, DESIGN.md section 6 for what is done otherwise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from albert_core.contract.records import CLS, NUM_SPECIAL_IN_PAIR, SEP
from albert_core.contract.seeds import random_uniform
from pipelines.ragged import Ints, ranges

_DRAWS_PER_CHUNK = 7
_SHORT, _TARGET, _MIDDLE, _SWAP, _FRONT_OF_FIRST, _FRONT_OF_SECOND, _ODD = range(_DRAWS_PER_CHUNK)


@dataclass(frozen=True, slots=True)
class SegmentPairs:
    """C chunks of one document, by the numbers of its pieces and sentences."""

    first_start: Ints
    """(C,) first piece of the part that comes first in the document."""
    first_end: Ints
    """(C,) one past its last piece."""
    second_start: Ints
    """(C,) first piece of the part that comes second."""
    second_end: Ints
    """(C,) one past its last piece."""
    swapped: NDArray[np.bool_]
    """(C,) whether the second part becomes segment a."""
    first_sentence: Ints
    """(C,) number of the chunk's first sentence."""
    last_sentence: Ints
    """(C,) number of its last one, inclusive."""
    num_alone: int
    """Pieces of a last sentence that has no other one to be paired with."""
    num_truncated: int
    """Pieces cut off where two sentences are too long for one example."""


def cut_into_pairs(
    sentence_lengths: Ints, seed: int, max_num_pieces: int, short_seq_prob: float
) -> SegmentPairs:
    """Cut one document into chunks and each chunk into two segments.

    Args:
        sentence_lengths: int64 (n,), pieces in each sentence, in order, all above 0.
        seed: of this document and copy; the result depends on nothing else that is random.
        max_num_pieces: pieces of both segments of the longest example.
        short_seq_prob: probability that a chunk aims at a length drawn from 2..max_num_pieces.

    Returns:
        Chunks of at least two sentences that follow each other without a gap.
    """
    bounds = np.concatenate([[0], np.cumsum(sentence_lengths)]).astype(np.int64)
    num_sentences = len(sentence_lengths)
    rows: list[tuple[int, ...]] = []
    begin = 0
    while begin + 2 <= num_sentences:
        draws = random_uniform(seed, len(rows) * _DRAWS_PER_CHUNK + np.arange(_DRAWS_PER_CHUNK))
        target = max_num_pieces
        if draws[_SHORT] < short_seq_prob:
            target = 2 + int(draws[_TARGET] * (max_num_pieces - 1))
        stop = _chunk_end(bounds, begin, target, max_num_pieces)
        middle = begin + 1 + int(draws[_MIDDLE] * (stop - begin - 1))
        parts = _truncate(
            (int(bounds[begin]), int(bounds[middle])),
            (int(bounds[middle]), int(bounds[stop])),
            max_num_pieces,
            (float(draws[_FRONT_OF_FIRST]), float(draws[_FRONT_OF_SECOND])),
            bool(draws[_ODD] < 0.5),
        )
        rows.append((*parts, int(draws[_SWAP] < 0.5), begin, stop - 1))
        begin = stop
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    kept = int((columns[1] - columns[0] + columns[3] - columns[2]).sum())
    num_alone = int(bounds[-1] - bounds[begin])
    return SegmentPairs(
        first_start=columns[0],
        first_end=columns[1],
        second_start=columns[2],
        second_end=columns[3],
        swapped=columns[4].astype(bool),
        first_sentence=columns[5],
        last_sentence=columns[6],
        num_alone=num_alone,
        num_truncated=int(bounds[begin]) - kept,
    )


def _chunk_end(bounds: Ints, begin: int, target: int, max_num_pieces: int) -> int:
    """Return one past the last sentence of the chunk that begins with sentence ``begin``.

    At least two sentences, then as many as reach ``target`` and fit; one less when a single
    sentence would be left over at the end of the document.
    """
    num_sentences = len(bounds) - 1
    reached = int(np.searchsorted(bounds, bounds[begin] + target))
    fitting = int(np.searchsorted(bounds, bounds[begin] + max_num_pieces, side="right")) - 1
    stop = max(min(reached, fitting, num_sentences), begin + 2)
    leaves_one = num_sentences - stop == 1 and stop - begin > 2
    return stop - leaves_one


def _truncate(
    first: tuple[int, int],
    second: tuple[int, int],
    max_num_pieces: int,
    fronts: tuple[float, float],
    odd_from_second: bool,
) -> tuple[int, int, int, int]:
    """Cut what is too much from the longer part, at its front and back alike.

    Args:
        first: start and end of the first part.
        second: of the second part.
        max_num_pieces: what both may have together.
        fronts: in [0, 1), how much of each part's cut falls on its front.
        odd_from_second: which part loses the odd piece; were it always the same one, the
            lengths would give the order away.
    """
    lengths = first[1] - first[0], second[1] - second[0]
    excess = max(0, sum(lengths) - max_num_pieces)
    levelled = min(excess, abs(lengths[0] - lengths[1]))
    half, odd = divmod(excess - levelled, 2)
    cuts = [half, half]
    cuts[odd_from_second] += odd
    cuts[lengths[1] > lengths[0]] += levelled
    front_first, front_second = (
        int(front * (cut + 1)) for front, cut in zip(fronts, cuts, strict=True)
    )
    return (
        first[0] + front_first,
        first[1] - (cuts[0] - front_first),
        second[0] + front_second,
        second[1] - (cuts[1] - front_second),
    )


def assemble(
    pieces: Ints,
    first: tuple[Ints, Ints],
    second: tuple[Ints, Ints],
    swapped: NDArray[np.bool_],
) -> tuple[Ints, Ints, Ints]:
    """Lay out R examples as [CLS] a [SEP] b [SEP], end to end.

    Args:
        pieces: int64 (N,) pieces that the chunks are cut from.
        first: int64 (R,) starts and (R,) ends of the parts that come first in their documents.
        second: of the parts that come second.
        swapped: bool (R,) whether the second part becomes segment a.

    Returns:
        input_ids int64 (T,), lengths int64 (R,), segment_b_starts int64 (R,).
    """
    start_a, start_b = (
        np.where(swapped, second[0], first[0]),
        np.where(swapped, first[0], second[0]),
    )
    end_a, end_b = np.where(swapped, second[1], first[1]), np.where(swapped, first[1], second[1])
    length_a, length_b = end_a - start_a, end_b - start_b
    lengths = length_a + length_b + NUM_SPECIAL_IN_PAIR
    begins = np.cumsum(lengths) - lengths
    input_ids = np.full(lengths.sum(), SEP, np.int64)
    input_ids[begins] = CLS
    input_ids[ranges(begins + 1, length_a)] = pieces[ranges(start_a, length_a)]
    input_ids[ranges(begins + length_a + 2, length_b)] = pieces[ranges(start_b, length_b)]
    return input_ids, lengths, length_a + 2
