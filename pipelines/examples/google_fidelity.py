"""Pure: pairs and masks as google-research/albert makes them, with its accidents.

What differs from `pairs` and `albert_core.text.masking`, which do what the paper says:

- a shorter length is drawn for a document, not for an example;
- a chunk ends after the sentence that overshoots; the excess is cut off and lost;
- a chunk of one sentence is paired with text of a random document and labelled 1, also for sop;
- an example has at most 20 predictions unless the settings say otherwise, however long it is;
- words and n-grams continue across [SEP]; an n-gram that does not fit is shortened, one that
  overlaps another is skipped;
- a random replacement may be any piece, also a special one.

The seeds are this project's, so that neither other documents nor workers change the draws.

Source: create_pretraining_data.py in google-research/albert.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.text.masking import MASK_SHARE, Masked, span_length_weights
from albert_core.text.records import CLS, MASK, SEP, Ints
from albert_core.text.seeds import UInt64s, random_bits
from pipelines.examples.pairs import ALONE, BORROWED, TRUNCATED, Objective, SegmentPairs, Sentences

_TRIES_TO_DIFFER = 10
"""How often another document is drawn until it differs from the pair's own."""


@dataclass(slots=True)
class _Pair:
    """One pair; pieces and sentences are numbered as in `Sentences`, and the fields as there."""

    document: int
    a: tuple[int, int]
    b: tuple[int, int]
    label: int
    first: int
    stop: int
    other: int = -1
    other_first: int = -1
    other_stop: int = 0


def google_pairs(
    sentences: Sentences,
    documents: Ints,
    keys: UInt64s,
    max_num_pieces: int,
    short_seq_prob: float,
    objective: Objective,
) -> tuple[SegmentPairs, Counter[str]]:
    """Cut documents into chunks, and each chunk into two segments, as google-research/albert does.

    Arguments and results are those of `pairs.cut_into_pairs`.
    """
    maker = _PairMaker(sentences, documents.tolist(), max_num_pieces, objective)
    pairs: list[_Pair] = []
    for document, key in zip(documents.tolist(), keys.tolist(), strict=True):
        random = Random(key)  # noqa: S311
        target = max_num_pieces
        if random.random() < short_seq_prob:
            target = _randint(random, 2, max_num_pieces)
        maker.cut(document, random, target, pairs)
    rows = [
        (p.document, *p.a, *p.b, p.label, p.first, p.stop, p.other, p.other_first, p.other_stop)
        for p in pairs
    ]
    columns: list[Any] = list(np.array(rows, np.int32).reshape(-1, 11).T)
    document, first_sentence = columns[0], columns[6]
    columns[5] = columns[5].astype(np.uint8)
    for stop in (7, 10):  # from one past the last sentence to the last one
        columns[stop] -= 1
    key_of = np.zeros(len(sentences.first), np.uint64)
    key_of[documents] = keys
    key = random_bits(key_of[document], first_sentence - sentences.first[document])
    made = SegmentPairs(key, *columns)
    borrowed = sum(
        maker.bounds[pair.other_stop] - maker.bounds[pair.other_first]
        for pair in pairs
        if pair.other >= 0
    )
    whole = int(sentences.num_pieces(documents).sum()) + borrowed
    counts = Counter({ALONE: 0, TRUNCATED: whole - made.num_pieces, BORROWED: borrowed})
    return made, counts


class _PairMaker:
    """Cuts one document after the other."""

    def __init__(
        self, sentences: Sentences, documents: list[int], max_num_pieces: int, objective: Objective
    ) -> None:
        self.bounds: list[int] = sentences.bounds.tolist()
        self.first: list[int] = sentences.first.tolist()
        self.able = [d for d in documents if self.first[d] < self.first[d + 1]]
        self.max_num_pieces = max_num_pieces
        self.objective = objective

    def cut(self, document: int, random: Random, target: int, pairs: list[_Pair]) -> None:
        """Append the pairs of ``document``."""
        bounds, begin, end = self.bounds, self.first[document], self.first[document + 1]
        while begin < end:
            stop = min(end, bisect_left(bounds, bounds[begin] + target, begin + 1, end + 1))
            middle = begin + 1
            if stop - begin > 1:
                middle = _randint(random, begin + 1, stop - 1)
            a, b = (bounds[begin], bounds[middle]), (bounds[middle], bounds[stop])
            pair = _Pair(document, a, b, 0, begin, stop)
            if stop - begin == 1 or (self.objective == "nsp" and random.random() < 0.5):
                self._borrow(pair, middle, random, target)
            elif self.objective == "sop" and random.random() < 0.5:
                pair.a, pair.b, pair.label = b, a, 1
            pair.a, pair.b = _cut_one_by_one(pair.a, pair.b, self.max_num_pieces, random)
            pairs.append(pair)
            begin = pair.stop

    def _borrow(self, pair: _Pair, middle: int, random: Random, target: int) -> None:
        """Make segment b text of another document; its own text goes back to the next chunk."""
        for _ in range(_TRIES_TO_DIFFER):
            pair.other = self.able[_randint(random, 0, len(self.able) - 1)]
            if pair.other != pair.document:
                break
        bounds, end = self.bounds, self.first[pair.other + 1]
        begin = _randint(random, self.first[pair.other], end - 1)
        wanted = bounds[begin] + target - (pair.a[1] - pair.a[0])
        stop = min(end, bisect_left(bounds, wanted, begin + 1, end + 1))
        pair.b = bounds[begin], bounds[stop]
        pair.other_first, pair.other_stop = begin, stop
        pair.stop = middle
        pair.label = int(self.objective != "none")


def _randint(random: Random, low: int, high: int) -> int:
    """Draw from low..high; `Random.random` alone is the same in every version of Python."""
    return low + int(random.random() * (high - low + 1))


def _cut_one_by_one(
    a: tuple[int, int], b: tuple[int, int], max_num_pieces: int, random: Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cut pieces one by one from the longer segment (b if equal), at a random end."""
    ends = [*a, *b]
    for _ in range(ends[1] - ends[0] + ends[3] - ends[2] - max_num_pieces):
        longer = 0 if ends[1] - ends[0] > ends[3] - ends[2] else 2
        if random.random() < 0.5:
            ends[longer] += 1
        else:
            ends[longer + 1] -= 1
    return (ends[0], ends[1]), (ends[2], ends[3])


def google_masks(
    input_ids: NDArray[np.integer],
    lengths: Ints,
    opens_word: NDArray[np.bool_],
    seeds: UInt64s,
    masked_lm_prob: float,
    max_ngram: int,
    max_predictions: int,
) -> Masked:
    """Mask R examples laid end to end, as google-research/albert does.

    Args:
        input_ids: (T,), each example [CLS] a [SEP] b [SEP].
        lengths: int64 (R,), pieces of each example; they sum to T.
        opens_word: bool (V,), whether each piece of the vocabulary opens a word.
        seeds: uint64 (R,); an example's masks depend only on its seed and pieces.
        masked_lm_prob: share of the pieces to predict, including special ones, 0..1.
        max_ngram: words in the longest span.
        max_predictions: most predictions in an example.

    Returns:
        The masked examples. Each has min(max_predictions, round(masked_lm_prob * length))
        predictions, at least 1, unless no n-gram left fits.
    """
    cumulative = np.cumsum(span_length_weights(max_ngram)).tolist()
    result = input_ids.astype(np.int64)
    positions: list[int] = []
    num_predictions = []
    begin = 0
    for length, seed in zip(lengths.tolist(), seeds.tolist(), strict=True):
        random = Random(seed)  # noqa: S311
        ids = input_ids[begin : begin + length]
        budget = min(max_predictions, max(1, round(length * masked_lm_prob)))
        tried = try_ngrams(words_of(ids, opens_word), budget, cumulative, random)
        covered = [position for _, span, is_taken in tried if is_taken for position in span]
        for position in covered:
            result[begin + position] = _replacement(int(ids[position]), len(opens_word), random)
        positions += sorted(covered)
        num_predictions.append(len(covered))
        begin += length
    per_row, where = np.array(num_predictions, np.int64), np.array(positions, np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, per_row)
    return Masked(
        input_ids=result,
        positions=where,
        labels=input_ids[starts + where].astype(np.int64),
        num_predictions=per_row,
    )


def words_of(ids: NDArray[np.integer], opens_word: NDArray[np.bool_]) -> list[list[int]]:
    """Return the positions of each word's pieces, without special pieces."""
    positions = np.flatnonzero((ids != CLS) & (ids != SEP))
    opens = opens_word[ids[positions]]
    opens[:1] = True
    where = positions.tolist()
    bounds = [*np.flatnonzero(opens).tolist(), len(where)]
    return [where[i:j] for i, j in pairwise(bounds)]


def try_ngrams(
    words: list[list[int]], budget: int, cumulative: list[float], random: Random
) -> Iterator[tuple[int, list[int], bool]]:
    """Yield the n-grams as they are tried: words drawn, positions, and whether it is predicted.

    One that is too long for what is left of the budget, even if it is shortened, has no positions;
    of another one that is not predicted, some already are.
    """
    covered: set[int] = set()
    order = list(range(len(words)))
    for i in range(len(order)):
        if len(covered) >= budget:
            break
        j = i + int(random.random() * (len(order) - i))  # a shuffle, only as far as needed
        order[i], order[j] = order[j], order[i]
        draw = random.random()
        n = drawn = 1 + sum(draw >= bound for bound in cumulative[:-1])
        span = _span(words, order[i], n)
        while len(span) > budget - len(covered):
            n -= 1
            span = _span(words, order[i], n)  # empty if even the first word is too long
        is_taken = bool(span) and covered.isdisjoint(span)
        if is_taken:
            covered.update(span)
        yield drawn, span, is_taken


def _span(words: list[list[int]], first: int, n: int) -> list[int]:
    return [position for word in words[first : first + n] for position in word]


def _replacement(piece: int, vocab_size: int, random: Random) -> int:
    if random.random() < MASK_SHARE:
        return MASK
    if random.random() < 0.5:
        return piece
    return _randint(random, 0, vocab_size - 1)
