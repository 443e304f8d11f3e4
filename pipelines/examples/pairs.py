"""Pure: the sentences of many documents to segment pairs.

A chunk is a run of whole sentences that fills an example; it is cut between two sentences into
two parts, which become segment a and segment b. The objective decides what is learned from them:

sop   in half of the pairs the two parts change places;
nsp   in half of the pairs segment b is text of another document instead, and the second part
      goes back to the next chunk;
none  nothing: segment b is always the second part.

A sentence that does not fit goes to the next chunk as a whole: a chunk that ended inside a sentence
would give its order away, because only the later segment would lack a full stop. Two sentences that
are too long for one example lose as many pieces at the front as at the back.

The sentence that did not fit is longer than most, and begins the next chunk. If all documents were
packed from the front, the first part would therefore be the longer one, and a model could tell the
order from the lengths alone. So each document, in each copy, is packed from an end that is drawn;
a long one is divided into stretches, each with a draw of its own, lest few books be packed alike.

`google_pairs` and `google_masks` do what google-research/albert does instead, accidents included:

- a shorter length is drawn for a document, not for an example;
- a chunk ends after the sentence that overshoots; the excess is cut off and lost;
- a chunk of one sentence is paired with text of a random document and labelled 1, also for sop;
- an example has at most 20 predictions unless the settings say otherwise, however long it is;
- words and n-grams continue across [SEP]; an n-gram that does not fit is shortened, one that
  overlaps another is skipped;
- a random replacement may be any piece, also a special one.

Only their seeds are this project's, so that neither other documents nor workers change the draws.

Sources: section 3.1 of the ALBERT paper (sentence-order prediction); Devlin et al. 2019, section
3.1 (nsp); create_pretraining_data.py in google-research/albert.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.text.masking import MASK_SHARE, Masked, mask_examples, span_length_weights
from albert_core.text.records import (
    CLS,
    MASK,
    NUM_SPECIAL_IN_PAIR,
    SEP,
    Bools,
    Ints,
    SmallInts,
    begins_of,
    ranges,
)
from albert_core.text.seeds import UInt64s, random_bits, random_uniform
from pipelines.config import ExampleSettings

ALONE, TRUNCATED, BORROWED, NO_OTHER = "alone", "truncated", "borrowed", "no_other_document"
"""Counts: pieces of last sentences without another to be paired with; pieces cut off; pieces of
segments b from other documents, which are used a second time; pairs for which there was no other
document. Documents' pieces + borrowed = pieces in pairs + alone + truncated."""

_SHORT, _TARGET, _MIDDLE, LABEL = range(4)
_FRONT_OF_FIRST, _FRONT_OF_SECOND, _ODD, _DOCUMENT, _SENTENCE, _END, _BORROW = range(4, 11)
"""Purposes of the draws under a pair's key; masks and the shuffle have keys of their own."""
_MOST_BORROWED = 16
"""Number of texts that are drawn, at most, for a segment b from elsewhere."""
_CUT = 1 << 32
"""Pieces that a text which must be cut counts as too long."""
_STRETCH_SENTENCES = 256
"""Least number of sentences in a stretch: about a dozen of the longest chunks, of which the last
may be short."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """D documents in pieces: N pieces in n sentences, end to end."""

    pieces: SmallInts
    """(N,)"""
    bounds: Ints
    """(n + 1,) first piece of each sentence, then N; no sentence is empty."""
    first: Ints
    """(D + 1,) first sentence of each document, then n."""

    def num_pieces(self, documents: Ints) -> Ints:
        """Return (len(documents),) pieces of each of ``documents``."""
        return self.bounds[self.first[documents + 1]] - self.bounds[self.first[documents]]


@dataclass(frozen=True, slots=True)
class SegmentPairs:
    """R pairs. Documents, sentences and pieces are numbered as in `Sentences`."""

    key: UInt64s
    """(R,) derived from document, copy and place; all further draws of the pair come from it."""
    document: SmallInts
    """(R,)"""
    start_a: SmallInts
    """(R,) first piece of segment a."""
    end_a: SmallInts
    """(R,) one past its last piece."""
    start_b: SmallInts
    """(R,) first piece of segment b."""
    end_b: SmallInts
    """(R,) one past its last piece."""
    label: NDArray[np.uint8]
    """(R,) 1 where the segments are swapped or b is from another document, else 0."""
    first_sentence: SmallInts
    """(R,) first sentence of ``document`` in the pair, perhaps not whole."""
    last_sentence: SmallInts
    """(R,) last sentence of it, inclusive."""
    other_document: SmallInts
    """(R,) the document of segment b where it is a different one, else -1."""
    other_first_sentence: SmallInts
    """(R,) its first sentence in the pair, else -1."""
    other_last_sentence: SmallInts
    """(R,) its last sentence in the pair, inclusive, else -1."""

    def __len__(self) -> int:
        return len(self.key)

    @property
    def num_pieces(self) -> int:
        """Pieces of both segments of all pairs, special ones not counted."""
        return int((self.end_a - self.start_a).sum() + (self.end_b - self.start_b).sum())

    def take(self, rows: NDArray[Any] | slice) -> "SegmentPairs":
        """Return some of the pairs, in the order of ``rows``."""
        return SegmentPairs(*(getattr(self, field.name)[rows] for field in fields(self)))


def join_pairs(parts: Sequence[SegmentPairs]) -> SegmentPairs:
    """Return the pairs of all ``parts``, one after the other."""
    names = [field.name for field in fields(SegmentPairs)]
    return SegmentPairs(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def cut_into_pairs(
    sentences: Sentences, documents: Ints, keys: UInt64s, settings: ExampleSettings
) -> tuple[SegmentPairs, Counter[str]]:
    """Cut documents into chunks, and each chunk into two segments.

    Args:
        sentences: sentences of all documents.
        documents: (D,) numbers of the documents to cut; borrowed segments b come from them too.
        keys: uint64 (D,), one for each document and copy. A document's pairs depend on no other
            randomness and, apart from borrowed segments b, on no other document.
        settings: settings of the stage. A chunk aims at max_num_pieces or, with probability
            short_seq_prob, at a length drawn from 2..max_num_pieces.

    Returns:
        The pairs, and what was counted: see `ALONE`.
    """
    max_num_pieces, objective = settings.max_num_pieces, settings.objective
    first, end = sentences.first[documents], sentences.first[documents + 1]
    key, target = _by_sentence(sentences, first, end, keys, settings)
    drawn = random_uniform(key, LABEL) < 0.5
    middle = random_uniform(key, _MIDDLE)
    enough = np.count_nonzero(end > first) > 1
    elsewhere = drawn & (objective == "nsp") & enough
    # A second part that goes back goes to the chunk that follows, so nsp packs from the front.
    stretch_of = np.arange(len(first))
    if objective != "nsp":
        stretch_of, first, end = _stretches(first, end)
    has_end = (first < end) & (objective != "nsp")
    from_back = np.zeros(len(first), bool)
    from_back[has_end] = random_uniform(key[first[has_end]], _END) < 0.5
    (index, begin, stop, whole), num_alone = _chunks_from_either_end(
        sentences.bounds,
        first,
        end,
        from_back,
        target,
        np.where(elsewhere, middle, -1.0).tolist() if elsewhere.any() else None,
        max_num_pieces,
    )
    index = stretch_of[index]
    key, drawn, elsewhere = key[begin], drawn[begin], elsewhere[begin]
    cut = begin + 1 + (middle[begin] * (stop - begin - 1)).astype(np.int64)
    cut[elsewhere] = stop[elsewhere]
    # The parts by their sentences: begin..cut, and second..second_stop, here or elsewhere.
    second, second_stop = cut.copy(), stop.copy()
    other = np.full(len(begin), -1)
    bounds = sentences.bounds
    if elsewhere.any():
        wanted = (bounds[whole] - bounds[cut])[elsewhere]
        room = max_num_pieces - (bounds[cut] - bounds[begin])[elsewhere]
        other[elsewhere], second[elsewhere], second_stop[elsewhere] = _borrow(
            sentences, documents, index[elsewhere], key[elsewhere], wanted, room
        )
    parts = bounds[begin], bounds[cut], bounds[second], bounds[second_stop]
    swapped = drawn & (objective == "sop")
    segments = np.stack(_truncate(*parts, key, max_num_pieces))
    pairs = _pairs_of(
        key,
        documents[index],
        *np.where(swapped, segments[[2, 3, 0, 1]], segments),
        swapped | elsewhere,
        begin,
        stop - 1,
        other,
        np.where(elsewhere, second, -1),
        np.where(elsewhere, second_stop - 1, -1),
    )
    num_borrowed = int((parts[3] - parts[2])[elsewhere].sum())
    num_cut = int((parts[1] - parts[0] + parts[3] - parts[2]).sum()) - pairs.num_pieces
    num_without = int(drawn.sum()) if objective == "nsp" and not enough else 0
    return pairs, Counter(
        {ALONE: num_alone, TRUNCATED: num_cut, BORROWED: num_borrowed, NO_OTHER: num_without}
    )


def _pairs_of(key: UInt64s, *columns: NDArray[Any]) -> SegmentPairs:
    """Return pairs in the dtypes of `SegmentPairs`, whose other fields are ``columns``."""
    small: list[Any] = [column.astype(np.int32) for column in columns]
    small[5] = small[5].astype(np.uint8)  # the label
    return SegmentPairs(key, *small)


def _by_sentence(
    sentences: Sentences, first: Ints, end: Ints, keys: UInt64s, settings: ExampleSettings
) -> tuple[UInt64s, Ints]:
    """Return the key (n,) and target length (n,) of the chunk that a sentence would begin.

    A chunk's draws depend on its first sentence, so that all can be made before any chunk is.
    """
    key = np.zeros(len(sentences.bounds) - 1, np.uint64)
    lengths = end - first
    numbers = ranges(first, lengths)
    key[numbers] = random_bits(np.repeat(keys, lengths), numbers - np.repeat(first, lengths))
    target = np.full(len(key), settings.max_num_pieces)
    short = np.flatnonzero(random_uniform(key, _SHORT) < settings.short_seq_prob)
    draw = random_uniform(key[short], _TARGET)
    target[short] = 2 + (draw * (settings.max_num_pieces - 1)).astype(np.int64)
    return key, target


def _stretches(first: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the document, the first sentence and one past the last of each stretch, (S,) each.

    A document of fewer than twice `_STRETCH_SENTENCES` sentences is one.
    """
    parts = np.maximum((end - first) // _STRETCH_SENTENCES, 1)
    document = np.repeat(np.arange(len(first)), parts)
    number, of, length = (
        ranges(np.zeros_like(parts), parts),
        parts[document],
        (end - first)[document],
    )
    begin = first[document]
    return document, begin + number * length // of, begin + (number + 1) * length // of


def _chunks_from_either_end(
    bounds: Ints,
    first: Ints,
    end: Ints,
    from_back: Bools,
    target: Ints,
    elsewhere: list[float] | None,
    max_num_pieces: int,
) -> tuple[Ints, int]:
    """Cut stretches into chunks, beginning at their first or at their last sentence.

    Args:
        bounds: (n + 1,) first piece of each sentence, then N.
        first: (S,) first sentence of each stretch.
        end: (S,) one past its last.
        from_back: (S,) whether the last sentence is where packing begins.
        target: (n,) pieces that the chunk whose packing begins with a sentence aims at.
        elsewhere: as in `_chunks`; None if a stretch is packed from its back.
        max_num_pieces: what fits.

    Returns:
        (4, C), of each chunk the stretch, its first sentence, one past the last, and where it
        would stop if no part went back, in the order of the text; and how many pieces are in no
        chunk.
    """
    n = len(target)
    parts, num_alone = [], 0
    for backwards in (False, True):
        # Seen from the end of the text, a stretch packed from its back is packed forwards.
        here = np.flatnonzero(from_back == backwards)
        begins, ends = (n - end, n - first) if backwards else (first, end)
        chunks, alone = _chunks(
            (-bounds[::-1] if backwards else bounds).tolist(),
            list(zip(begins[here].tolist(), ends[here].tolist(), strict=True)),
            (target[::-1] if backwards else target).tolist(),
            elsewhere,
            max_num_pieces,
        )
        index, begin, stop, whole = np.array(chunks, np.int64).reshape(-1, 4).T
        if backwards:
            begin, stop, whole = n - stop, n - begin, n - begin
        parts.append([here[index], begin, stop, whole])
        num_alone += alone
    found = np.concatenate(parts, axis=1)
    return found[:, np.lexsort((found[1], found[0]))], num_alone


def _chunks(
    bounds: list[int],
    documents: list[tuple[int, int]],
    target: list[int],
    elsewhere: list[float] | None,
    max_num_pieces: int,
) -> tuple[list[tuple[int, int, int, int]], int]:
    """Cut documents into chunks of at least two sentences that follow without a gap.

    A chunk gets as many sentences as reach its target and fit, and one less when a single sentence
    would be left over at the end of the document.

    Only this loop can't run for all documents at once: where a chunk begins depends on where the
    one before it ended. Lists and bisect are faster here than NumPy.

    Args:
        bounds: (n + 1,) first piece of each sentence, then N.
        documents: first sentence and one past the last of each document.
        target: (n,) pieces that the chunk beginning with a sentence aims at.
        elsewhere: (n,) where in 0..1 that chunk is cut if its second part goes back, else -1;
            None if no chunk's does.
        max_num_pieces: what fits.

    Returns:
        For each chunk the index of its document in ``documents``, its first sentence, one past the
        last, and where it would stop if no part went back; and how many pieces are in no chunk.
    """
    chunks: list[tuple[int, int, int, int]] = []
    num_alone = 0
    for index, (begin, end) in enumerate(documents):
        while begin + 2 <= end:
            origin = bounds[begin]
            stop = bisect_right(bounds, origin + max_num_pieces, begin, end + 1) - 1
            if target[begin] < max_num_pieces:
                stop = min(stop, bisect_left(bounds, origin + target[begin], begin, end + 1))
            stop = max(stop, begin + 2)
            if end - stop == 1 and stop - begin > 2:
                stop -= 1
            whole = stop
            if elsewhere is not None and elsewhere[begin] >= 0:
                stop = begin + 1 + int(elsewhere[begin] * (stop - begin - 1))
            chunks.append((index, begin, stop, whole))
            begin = stop  # noqa: PLW2901
        num_alone += bounds[end] - bounds[begin]
    return chunks, num_alone


def _borrow(
    sentences: Sentences, documents: Ints, index: Ints, key: UInt64s, wanted: Ints, room: Ints
) -> tuple[Ints, Ints, Ints]:
    """Draw for each of R pairs sentences of another document, for segment b.

    Several are drawn, and those are taken whose length is nearest to that of the part which they
    replace: lengths then tell little of where segment b is from.

    Args:
        sentences: of all documents.
        documents: (D,) those that may be drawn; at least two have a sentence.
        index: (R,) which of them segment a is of.
        key: (R,) of the pairs.
        wanted: (R,) pieces of the part that segment b replaces.
        room: (R,) pieces that segment b may have without a cut. If what it replaces fits, what it
            becomes does too, so that a cut does not tell where it comes from.

    Returns:
        The other documents, and the first sentence and one past the last in each.
    """
    first, end = sentences.first[documents], sentences.first[documents + 1]
    bounds = sentences.bounds
    able = np.flatnonzero(end > first)
    place = np.searchsorted(able, index)
    found = np.zeros((3, len(key)), np.int64)
    missed = np.full(len(key), np.iinfo(np.int64).max)
    for number in range(_MOST_BORROWED):
        rows = np.flatnonzero(missed)
        draw = random_bits(key[rows], _BORROW + number)
        shift = 1 + (random_uniform(draw, _DOCUMENT) * (len(able) - 1)).astype(np.int64)
        chosen = able[(place[rows] + shift) % len(able)]
        place_in = random_uniform(draw, _SENTENCE) * (end - first)[chosen]
        begin = first[chosen] + place_in.astype(np.int64)
        # The sentence end at or before the length wanted, or the next if that is nearer.
        stop = np.searchsorted(bounds, bounds[begin] + wanted[rows], side="right") - 1
        stop = np.clip(stop, begin + 1, end[chosen])
        longer = np.minimum(stop + 1, end[chosen])
        length, more = bounds[stop] - bounds[begin], bounds[longer] - bounds[begin]
        fits = (more <= room[rows]) | (wanted[rows] > room[rows])
        is_nearer = fits & (abs(more - wanted[rows]) < abs(length - wanted[rows]))
        length, stop = np.where(is_nearer, [more, longer], [length, stop])
        miss = abs(length - wanted[rows])
        miss[(length > room[rows]) & (wanted[rows] <= room[rows])] += _CUT
        better = miss < missed[rows]
        missed[rows[better]] = miss[better]
        found[:, rows[better]] = documents[chosen[better]], begin[better], stop[better]
    return found[0], found[1], found[2]


def _truncate(
    start_1: Ints, end_1: Ints, start_2: Ints, end_2: Ints, key: UInt64s, max_num_pieces: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut the excess from the longer part, at its front and its back.

    Which part loses an odd piece is drawn: if it were always the same, the lengths would give the
    order away.

    Returns:
        Starts and ends of the first and of the second parts.
    """
    length_1, length_2 = end_1 - start_1, end_2 - start_2
    excess = np.maximum(0, length_1 + length_2 - max_num_pieces)
    levelled = np.minimum(excess, abs(length_1 - length_2))
    half, odd = np.divmod(excess - levelled, 2)
    odd_from_2, second_is_longer = random_uniform(key, _ODD) < 0.5, length_2 > length_1
    cut_1 = half + np.where(odd_from_2, 0, odd) + np.where(second_is_longer, 0, levelled)
    cut_2 = excess - cut_1
    front_1 = (random_uniform(key, _FRONT_OF_FIRST) * (cut_1 + 1)).astype(np.int64)
    front_2 = (random_uniform(key, _FRONT_OF_SECOND) * (cut_2 + 1)).astype(np.int64)
    return (
        start_1 + front_1,
        end_1 - (cut_1 - front_1),
        start_2 + front_2,
        end_2 - (cut_2 - front_2),
    )


def assemble(
    pieces: NDArray[np.integer[Any]], pairs: SegmentPairs
) -> tuple[NDArray[np.integer[Any]], Ints, Ints]:
    """Lay out R examples as [CLS] a [SEP] b [SEP], end to end.

    Args:
        pieces: integers (N + 2,), the pieces that the pairs are cut from, then [CLS] and [SEP].
        pairs: R of them.

    Returns:
        input_ids (T,) of the dtype of ``pieces``, lengths int64 (R,), segment_b_starts int64 (R,).
    """
    cls = np.full(len(pairs), len(pieces) - 2)
    sep = cls + 1
    one = np.ones(len(pairs), np.int64)
    length_a = (pairs.end_a - pairs.start_a).astype(np.int64)
    length_b = (pairs.end_b - pairs.start_b).astype(np.int64)
    first = np.column_stack([cls, pairs.start_a, sep, pairs.start_b, sep])
    length = np.column_stack([one, length_a, one, length_b, one])
    input_ids = pieces[ranges(first.ravel(), length.ravel())]
    return input_ids, length_a + length_b + NUM_SPECIAL_IN_PAIR, length_a + 2


_LENGTHS_PER_OCTAVE = 3
NUM_LENGTHS = 1 + _LENGTHS_PER_OCTAVE * 10
"""Classes of segment lengths: the last one begins at 1,024 pieces."""


def count_lengths(pairs: SegmentPairs) -> Ints:
    """Return (NUM_LENGTHS, NUM_LENGTHS, 2), pairs by class of both lengths and by label."""
    lengths = np.stack([pairs.end_a - pairs.start_a, pairs.end_b - pairs.start_b])
    of_a, of_b = np.minimum(
        (_LENGTHS_PER_OCTAVE * np.log2(lengths)).astype(np.int64), NUM_LENGTHS - 1
    )
    numbers = (of_a * NUM_LENGTHS + of_b) * 2 + pairs.label
    counts = np.bincount(numbers, minlength=NUM_LENGTHS * NUM_LENGTHS * 2)
    return counts.reshape(NUM_LENGTHS, NUM_LENGTHS, 2)


def length_only_accuracy(train: Ints, held_out: Ints) -> float:
    """Return how often the label that two lengths mostly have in training is right held out.

    A model that sees the lengths of the segments and nothing of their text reaches this accuracy.
    Only what it has above that was learned from the text.

    Args:
        train: what `count_lengths` gives of the training pairs.
        held_out: the same of the held-out ones; at least one.
    """
    says_one = train[..., 1] > train[..., 0]
    right = np.where(says_one, held_out[..., 1], held_out[..., 0])
    return float(right.sum() / held_out.sum())


# As google-research/albert does


_TRIES_TO_DIFFER = 10
"""Attempts to draw a document other than the pair's own."""
_Span = tuple[int, int]
"""First piece, and one past the last."""


def google_pairs(
    sentences: Sentences, documents: Ints, keys: UInt64s, settings: ExampleSettings
) -> tuple[SegmentPairs, Counter[str]]:
    """Cut documents into chunks, and each chunk into two segments, as google-research/albert does.

    Arguments and results are those of `cut_into_pairs`.
    """
    maker = _GooglePairs(sentences, documents.tolist(), settings)
    rows: list[tuple[int, ...]] = []
    for document, key in zip(documents.tolist(), keys.tolist(), strict=True):
        random = Random(key)  # noqa: S311
        target = settings.max_num_pieces
        if random.random() < settings.short_seq_prob:
            target = _randint(random, 2, target)
        rows += maker.cut(document, random, target)
    document, *columns = np.array(rows, np.int64).reshape(-1, 11).T
    key_of = np.zeros(len(sentences.first), np.uint64)
    key_of[documents] = keys
    key = random_bits(key_of[document], columns[5] - sentences.first[document])
    pairs = _pairs_of(key, document, *columns)
    first, last = pairs.other_first_sentence, pairs.other_last_sentence
    is_borrowed = first >= 0
    num_borrowed = (sentences.bounds[last + 1] - sentences.bounds[first])[is_borrowed].sum()
    whole = int(sentences.num_pieces(documents).sum() + num_borrowed)
    counts = {ALONE: 0, TRUNCATED: whole - pairs.num_pieces, BORROWED: int(num_borrowed)}
    return pairs, Counter(counts)


class _GooglePairs:
    """Cuts one document after the other."""

    def __init__(
        self, sentences: Sentences, documents: list[int], settings: ExampleSettings
    ) -> None:
        self.bounds: list[int] = sentences.bounds.tolist()
        self.first: list[int] = sentences.first.tolist()
        self.able = [d for d in documents if self.first[d] < self.first[d + 1]]
        self.max_num_pieces, self.objective = settings.max_num_pieces, settings.objective

    def cut(self, document: int, random: Random, target: int) -> Iterator[tuple[int, ...]]:
        """Yield the pairs of ``document``: the fields of `SegmentPairs` but the key."""
        bounds, begin, end = self.bounds, self.first[document], self.first[document + 1]
        while begin < end:
            stop = self._reached(begin, end, bounds[begin] + target)
            is_alone = stop - begin == 1
            middle = begin + 1 if is_alone else _randint(random, begin + 1, stop - 1)
            a, b, label = (bounds[begin], bounds[middle]), (bounds[middle], bounds[stop]), 0
            other = -1, -1, -1
            if is_alone or (self.objective == "nsp" and random.random() < 0.5):
                other = self._borrow(document, random, target - (a[1] - a[0]))
                b, label = (bounds[other[1]], bounds[other[2] + 1]), int(self.objective != "none")
                stop = middle  # the second part goes back to the next chunk
            elif self.objective == "sop" and random.random() < 0.5:
                a, b, label = b, a, 1
            a, b = _cut_one_by_one(a, b, self.max_num_pieces, random)
            yield document, *a, *b, label, begin, stop - 1, *other
            begin = stop

    def _borrow(self, document: int, random: Random, wanted: int) -> tuple[int, int, int]:
        """Draw another document and its sentences: the first and the last one."""
        for _ in range(_TRIES_TO_DIFFER):
            other = self.able[_randint(random, 0, len(self.able) - 1)]
            if other != document:
                break
        end = self.first[other + 1]
        begin = _randint(random, self.first[other], end - 1)
        return other, begin, self._reached(begin, end, self.bounds[begin] + wanted) - 1

    def _reached(self, begin: int, end: int, piece: int) -> int:
        """Return where sentences from ``begin`` on, at least one, reach ``piece`` or ``end``."""
        return min(end, bisect_left(self.bounds, piece, begin + 1, end + 1))


def _randint(random: Random, low: int, high: int) -> int:
    """Draw from low..high; `Random.random` alone is the same in every version of Python."""
    return low + int(random.random() * (high - low + 1))


def _cut_one_by_one(a: _Span, b: _Span, max_num_pieces: int, random: Random) -> tuple[_Span, _Span]:
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
    _segment_b_starts: Ints,
    opens_word: Bools,
    seeds: UInt64s,
    masked_lm_prob: float,
    max_ngram: int,
    max_predictions: int,
) -> Masked:
    """Mask R examples laid end to end, as google-research/albert does.

    Arguments are those of `mask_examples`. Each example gets min(max_predictions,
    round(masked_lm_prob * length)) predictions, at least 1, unless no n-gram left fits.
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
    starts = np.repeat(begins_of(lengths), per_row)
    return Masked(result, where, input_ids[starts + where].astype(np.int64), per_row)


def words_of(ids: NDArray[np.integer], opens_word: Bools) -> list[list[int]]:
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


Masker = Callable[[NDArray[Any], Ints, Ints, Bools, UInt64s, float, int, int], Masked]
CUT_BY = {"paper": cut_into_pairs, "google": google_pairs}
MASK_BY: dict[str, Masker] = {"paper": mask_examples, "google": google_masks}
"""Functions that cut documents into pairs, and that mask examples, by the settings' fidelity."""
