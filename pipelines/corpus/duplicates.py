"""Pure: which documents repeat an earlier one, by hashes of their content, and of their words.

A word is a run of letters and digits, whatever its case; punctuation, symbols and white space
separate words and don't count. In scripts written without blanks (Chinese, Japanese, Thai, ...)
every character is a word. The rules are tables of this file, not of the Unicode version of the
interpreter, so that a hash means the same on every machine and after every upgrade.

Documents are ordered by the number of their part and their row there. The first of those that
are equal, or alike, is kept. Being alike isn't transitive, and no groups are formed: a document
is dropped when it is like any earlier one, even one that is dropped itself. So what is dropped
depends on the order of the documents only: not on the cut into parts or partitions, nor on timing.

Two texts are alike by the Jaccard similarity J of their sets of word 5-grams ("shingles").
Signatures select the texts to compare, and the sets of shingles decide whether they are alike: no
text is dropped because of another that is less similar than wanted. A signature is a
one-permutation MinHash: each shingle's hash chooses one of 128 bins and is ranked there, and each
bin keeps its lowest rank. Two texts agree in a bin with probability J, and are compared if they
agree in all bins of a band.

A bin into which no shingle of a text fell takes the value of another bin: the first that isn't
empty, in an order that is drawn once for each bin and is the same for every text. Such a bin agrees
with probability J too, so that short texts need no rule of their own.

Sources: Broder 1997 (MinHash); Li, Owen and Zhang 2012 (one permutation); Shrivastava 2017,
"Optimal densification for fast and accurate minwise hashing" (empty bins).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from albert_core.text.records import Ints, UInt16s, ranges
from albert_core.text.seeds import UInt64s, mix_bits, random_bits
from pipelines.corpus import cut_by_size

UInt32s = NDArray[np.uint32]

HASH_BYTES = 16
"""Length of the hash of a document's content."""
NUM_BINS = 128
SHINGLE_WORDS = 5
"""A text of fewer words has one shingle: all its words."""
TARGET_RECALL = 0.99
"""Least probability that two texts of exactly the wanted similarity are compared."""
MAX_HASHED_BYTES = 64
"""A longer word is hashed by its first 64 bytes and its length; real words are shorter."""
BATCH_CHARACTERS = 1 << 19
"""The arrays of so much text fit in a processor's cache; larger batches are slower."""

_EMPTY = np.uint32(0xFFFFFFFF)
_BIN_BITS = 7
_SEED = 0x5EED
_BAND_BASE = np.uint64(0x9E3779B97F4A7C15)
_PADDING = 16
_LENGTH_STEP = np.uint64(0x9E3779B97F4A7C15)
_NGRAM_BASE = 0xD6E8FEB86659FD93
"""Odd, so that multiplication by it can be undone."""

_LETTER, _SEPARATOR, _WORD_BY_ITSELF = range(3)
_SEPARATORS = (
    *((0x80, 0xA9), (0xAB, 0xB4), (0xB6, 0xB9), (0xBB, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7)),
    *((0x37E, 0x37E), (0x387, 0x387), (0x55A, 0x55F), (0x589, 0x58F), (0x5BE, 0x5BE)),
    *((0x5C0, 0x5C0), (0x5C3, 0x5C3), (0x5F3, 0x5F4), (0x606, 0x60F), (0x61B, 0x61F)),
    *((0x66A, 0x66D), (0x6D4, 0x6D4), (0x964, 0x965), (0xE3F, 0xE3F), (0xE4F, 0xE4F)),
    *((0xE5A, 0xE5B), (0xF04, 0xF14), (0x104A, 0x104F), (0x1361, 0x1368), (0x166D, 0x166E)),
    *((0x1680, 0x1680), (0x17D4, 0x17DA), (0x1800, 0x180A), (0x2000, 0x206F), (0x20A0, 0x2BFF)),
    *((0x2E00, 0x2E5D), (0x3000, 0x3004), (0x3008, 0x3020), (0x3030, 0x3030), (0x303D, 0x303F)),
    *((0x30A0, 0x30A0), (0x30FB, 0x30FB), (0xD800, 0xF8FF), (0xFE10, 0xFE6F), (0xFF00, 0xFF0F)),
    *((0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFFF), (0x1F000, 0x1FFFF)),
    (0xE0000, 0x10FFFF),
)
"""Code points of punctuation, symbols, white space and private use; first and last of each."""
_WORDS_BY_THEMSELVES = (
    *((0xE01, 0xE3A), (0xE40, 0xE4E), (0xE81, 0xEDF), (0x1000, 0x1049), (0x1050, 0x109F)),
    *((0x1780, 0x17D3), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3041, 0x309F)),
    *((0x30A1, 0x30FA), (0x30FC, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF)),
    *((0x4E00, 0xA4CF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF)),
)
"""Code points of Thai, Lao, Burmese, Khmer, kana, bopomofo, Han and Yi."""
_LOWERED = ((0xC0, 0x587), (0x1E00, 0x1FFF))
"""Code points with case pairs: Latin, Greek, Cyrillic, Armenian. All assigned long ago."""


# The words of texts


@dataclass(frozen=True, slots=True)
class Words:
    """The places of the words in a batch of texts."""

    buffer: NDArray[np.uint8]
    """(N,) the texts in UTF-8, one after another, in lower case, 0 outside words."""
    begins: Ints
    """(W,) first byte of each word in ``buffer``."""
    ends: Ints
    """(W,) the byte after its last."""
    offsets: Ints
    """(D+1,) the first word of each text, and W."""


def hash_words(texts: Sequence[str]) -> tuple[UInt64s, Ints]:
    """Return a hash for each word of each text.

    Args:
        texts: D texts.

    Returns:
        uint64 (W,) hashes of all words in order, and int64 (D+1,) offsets: text d has the words
        ``offsets[d]`` to ``offsets[d + 1]``.
    """
    words = find_words(texts)
    return _hash_spans(words.buffer, words.begins, words.ends - words.begins), words.offsets


def hash_ngrams(words: UInt64s, n: int) -> UInt64s:
    """Return a hash for each ``n`` words in a row, also across texts.

    Args:
        words: uint64 (W,) hashes of words.
        n: words in an n-gram, at least 1.

    Returns:
        uint64 (max(0, W - n + 1),): element i is of words i to i + n - 1. All 64 bits are mixed:
        the highest may choose a bin and the lowest a partition.
    """
    if len(words) < n:
        return np.empty(0, np.uint64)
    return mix_bits(_polynomials(words, n))


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Return the texts in lists of about BATCH_CHARACTERS; a long text is alone or comes last."""
    return cut_by_size(texts, len, BATCH_CHARACTERS)


def find_words(texts: Sequence[str]) -> Words:
    """Return where the words are; the bytes of text d begin at the lengths of those before it.

    Each text is followed by one byte 0, so that no word reaches into the next text.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    joined = bytearray(b"\0").join(encoded) + bytes(_PADDING)
    buffer = np.frombuffer(joined.translate(_ASCII_TABLE), np.uint8)
    cuts = None if all(map(str.isascii, texts)) else _treat_non_ascii(buffer)
    begins, ends = _spans(buffer, cuts)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1
    text_begins = np.concatenate([[0], np.cumsum(lengths)])
    return Words(buffer, begins, ends, np.searchsorted(begins, text_begins))


def _spans(buffer: NDArray[np.uint8], cuts: Ints | None) -> tuple[Ints, Ints]:
    """Return begins and ends of the runs of bytes that aren't 0, cut also at ``cuts``."""
    is_word = np.zeros(len(buffer) + 1, bool)
    np.not_equal(buffer, 0, out=is_word[1:])
    changes = is_word[1:] != is_word[:-1]
    if cuts is None or not len(cuts):
        edges = np.flatnonzero(changes)
        return edges[0::2], edges[1::2]
    begins, ends = changes & is_word[1:], changes & is_word[:-1]
    inside = cuts[is_word[cuts] & is_word[cuts + 1]]
    begins[inside] = True
    ends[inside] = True
    return np.flatnonzero(begins), np.flatnonzero(ends)


def _treat_non_ascii(buffer: NDArray[np.uint8]) -> Ints:
    """Lower-case and blank out what isn't ASCII, in place; return where words must be cut."""
    leads = np.flatnonzero(buffer >= 0xC0)
    num_bytes = _NUM_BYTES[buffer[leads]]
    cuts = []
    for length in (2, 3, 4):
        at = leads[num_bytes == length]
        codes = _code_points(buffer, at, length)
        kinds = _KINDS[codes]
        separators = at[kinds == _SEPARATOR]
        for i in range(length):
            buffer[separators + i] = 0
        if length < 4:  # no letter of four bytes has a case here
            _lower(buffer, at, codes, length)
        alone = at[kinds == _WORD_BY_ITSELF]
        cuts += [alone, alone + length]
    return np.concatenate(cuts)


def _code_points(buffer: NDArray[np.uint8], at: Ints, length: int) -> Ints:
    """Return the code points of characters of ``length`` bytes that begin at ``at``."""
    codes = (buffer[at] & (0xFF >> (length + 1))).astype(np.int64)
    for i in range(1, length):
        codes = (codes << 6) | (buffer[at + i] & 0x3F)
    return codes


def _lower(buffer: NDArray[np.uint8], at: Ints, codes: Ints, length: int) -> None:
    lowered = _LOWER[codes]
    changed = lowered != codes
    at, lowered = at[changed], lowered[changed].astype(np.int64)
    for i in range(length - 1, 0, -1):
        buffer[at + i] = 0x80 | (lowered & 0x3F)
        lowered >>= 6
    buffer[at] = (0xFF00 >> length) & 0xFF | lowered


def _hash_spans(buffer: NDArray[np.uint8], begins: Ints, lengths: Ints) -> UInt64s:
    """Return a hash of each span: of its length, and of its bytes eight at a time."""
    eights = np.ndarray((len(buffer) - 7,), "<u8", buffer, strides=(1,))
    hashes = eights[begins] & _MASKS[np.minimum(lengths, 8)]
    hashes ^= lengths.astype(np.uint64) * _LENGTH_STEP
    mix_bits(hashes)
    for done in range(8, MAX_HASHED_BYTES, 8):
        longer = np.flatnonzero(lengths > done)
        if not len(longer):
            break
        more = eights[begins[longer] + done] & _MASKS[np.minimum(lengths[longer] - done, 8)]
        hashes[longer] = mix_bits(hashes[longer] * _LENGTH_STEP ^ more)
    return hashes


def _polynomials(words: UInt64s, n: int) -> UInt64s:
    """Return for each i the sum of words[i + j] * base^(n - 1 - j), j < n, modulo 2^64.

    Longer sums are composed of two shorter ones: log2(n) passes, not n.
    """
    if n == 1:
        return words.copy()
    half = n // 2
    halves = _polynomials(words, half)
    num = len(words) - n + 1
    power = np.uint64(pow(_NGRAM_BASE, half, 1 << 64))
    sums = halves[:num] * power
    sums += halves[half : half + num]
    if n % 2:
        sums *= np.uint64(_NGRAM_BASE)
        sums += words[n - 1 :]
    return sums


def _lower_table() -> UInt16s:
    """Return the small letter of each code point, if UTF-8 writes it with as many bytes."""
    table = np.arange(0x10000, dtype=np.uint16)
    for code in (code for first, last in _LOWERED for code in range(first, last + 1)):
        small = chr(code).lower()
        if len(small) == 1 and len(small.encode()) == len(chr(code).encode()):
            table[code] = ord(small)
    return table


_ASCII_TABLE = bytes(b if b > 0x7F or chr(b).isalnum() else 0 for b in range(256)).lower()
"""Maps separators to 0 and capitals to small letters."""
_KINDS = np.full(0x110000, _LETTER, np.uint8)
for _kind, _ranges in ((_SEPARATOR, _SEPARATORS), (_WORD_BY_ITSELF, _WORDS_BY_THEMSELVES)):
    for _first, _last in _ranges:
        _KINDS[_first : _last + 1] = _kind
_LOWER = _lower_table()
_NUM_BYTES = np.repeat(np.array([1, 2, 3, 4], np.uint8), [0xC0, 0x20, 0x10, 0x10])
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


# Which documents repeat


def repetitions(hashes: UInt64s) -> tuple[Ints, Ints]:
    """Return which documents have the content of an earlier one.

    Args:
        hashes: uint64 (R, 2), the hash of each document's content, in the order of the documents.

    Returns:
        int64 (C,) places of the documents that repeat another, ascending; and int64 (C,) places of
        the first document that has its content.
    """
    # Few documents repeat: only those that agree in the first half are sorted by both.
    some = _not_alone(hashes[:, 0])
    order = some[np.lexsort(hashes[some].T)]
    begins = run_begins(*hashes[order].T)
    again = np.flatnonzero(begins != np.arange(len(order)))
    later, earlier = order[again], order[begins[again]]
    ascending = np.argsort(later)
    return later[ascending], earlier[ascending]


def candidate_pairs(hashes: UInt64s, documents: Ints) -> tuple[Ints, Ints]:
    """Return which documents to compare, each with an earlier one.

    For each of its band hashes, a document is compared with the first document that has it and
    with the last one before it: two comparisons, however many documents share the hash. Two that
    are more alike than the rest of a large group also meet in bands that the rest does not share.

    Args:
        hashes: uint64 (R,), some of the band hashes of documents.
        documents: int64 (R,), whose each is: numbers below 2^32, ascending.

    Returns:
        int64 (C,) documents, ascending, and int64 (C,) earlier ones, each pair once. The pairs of
        several partitions, taken together, are those of one that holds all hashes.
    """
    some = _not_alone(hashes)
    order = some[np.argsort(hashes[some], kind="stable")]
    begins = run_begins(hashes[order])
    later = np.flatnonzero(begins != np.arange(len(order)))
    earlier = np.concatenate([begins[later], later - 1])
    holders = documents[order]
    later, earlier = np.divmod(
        np.unique(holders[np.tile(later, 2)] << 32 | holders[earlier]), 1 << 32
    )
    differ = later != earlier
    return later[differ], earlier[differ]


def run_begins(*columns: NDArray[Any]) -> Ints:
    """Return for each place (R,) where the run of equal values begins that it is in."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.maximum.accumulate(np.where(is_new, np.arange(len(is_new)), 0))


def _not_alone(values: UInt64s) -> Ints:
    """Return the places of the values that occur more than once, ascending."""
    order = np.argsort(values)
    same = np.zeros(len(values) + 1, bool)
    same[1:-1] = values[order[1:]] == values[order[:-1]]
    return np.sort(order[same[1:] | same[:-1]])


# How alike two texts are


def signatures(texts: Sequence[str]) -> UInt32s:
    """Return the signature of each of D texts: uint32 (D, 128).

    All texts without a word have the same signature.
    """
    parts = [_signatures(batch) for batch in batches(texts)]
    return np.concatenate([np.empty((0, NUM_BINS), np.uint32), *parts])


def shingles(texts: Sequence[str]) -> tuple[UInt64s, Ints]:
    """Return the hashes of the shingles of each text, as often as they occur.

    Returns:
        uint64 (S,) hashes and int64 (D+1,) offsets: text d has ``offsets[d]`` to
        ``offsets[d + 1]``, at least one if it has a word.
    """
    words, offsets = hash_words(texts)
    num_words = np.diff(offsets)
    counts = np.maximum(num_words - SHINGLE_WORDS + 1, np.minimum(num_words, 1))
    ends = np.concatenate([[0], np.cumsum(counts)])
    long_enough = np.where(num_words >= SHINGLE_WORDS, counts, 0)
    hashes = np.empty(ends[-1], np.uint64)
    grams = hash_ngrams(words, SHINGLE_WORDS)
    hashes[ranges(ends[:-1], long_enough)] = grams[ranges(offsets[:-1], long_enough)]
    for n in range(1, SHINGLE_WORDS):
        short = np.flatnonzero(num_words == n)
        hashes[ends[short]] = hash_ngrams(words, n)[offsets[short]]
    return hashes, ends


def bands_for(similarity: float) -> tuple[int, int]:
    """Return how to cut a signature so that texts of that similarity meet: bands, rows of a band.

    Texts of similarity s meet in at least one of b bands of r bins with probability
    1 - (1 - s^r)^b. The rows are as many as leave that at TARGET_RECALL for ``similarity``
    itself, so that few other texts meet; the bands are as many as fit in the signature.

    >>> [bands_for(s) for s in (0.5, 0.6, 0.7, 0.8, 0.9)]
    [(42, 3), (42, 3), (32, 4), (21, 6), (12, 10)]

    Source: Leskovec, Rajaraman and Ullman, "Mining of massive datasets", section 3.4.
    """
    rows = max(
        rows
        for rows in range(1, NUM_BINS + 1)
        if recall_of(similarity, NUM_BINS // rows, rows) >= TARGET_RECALL
    )
    return NUM_BINS // rows, rows


def recall_of(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two texts of that similarity have a band hash in common."""
    return 1 - (1 - similarity**rows) ** bands


def band_hashes(values: UInt32s, bands: int, rows: int) -> UInt64s:
    """Return a hash of each band of each signature.

    Args:
        values: uint32 (D, 128) signatures.
        bands: B, of ``rows`` bins each; bins that are left over are in no band.
        rows: number of bins in a band.

    Returns:
        uint64 (D, B). Hashes of different bands differ, even if their bins are equal.
    """
    cut = values[:, : bands * rows].reshape(-1, bands, rows)
    hashes = np.tile(np.arange(1, bands + 1, dtype=np.uint64) * _BAND_BASE, (len(cut), 1))
    for row in range(rows):
        hashes = random_bits(_SEED, hashes ^ cut[:, :, row])
    return hashes


def shingle_sets(texts: Iterable[str]) -> Iterator[UInt64s]:
    """Yield the distinct hashes of each text's shingles, ascending; none without words."""
    for batch in batches(texts):
        hashes, offsets = shingles(batch)
        yield from map(np.unique, np.split(hashes, offsets[1:-1]))


def jaccard(a: UInt64s, b: UInt64s) -> float:
    """Return the Jaccard similarity of two sets, each ascending; 1 if both are empty."""
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    places = np.searchsorted(a, b)
    shared = np.count_nonzero(a[np.minimum(places, len(a) - 1)] == b)
    return shared / (len(a) + len(b) - shared)


def _signatures(texts: Sequence[str]) -> UInt32s:
    hashes, offsets = shingles(texts)
    values = np.full((len(texts), NUM_BINS), _EMPTY)
    rows = np.repeat(np.arange(len(texts)) << _BIN_BITS, np.diff(offsets))
    bins = (hashes >> np.uint64(64 - _BIN_BITS)).astype(np.int64)
    ranks = np.minimum(hashes.astype(np.uint32), _EMPTY - np.uint32(1))
    np.minimum.at(values.reshape(-1), rows | bins, ranks)
    _fill_empty_bins(values)
    return values


def _fill_empty_bins(values: UInt32s) -> None:
    """Give each empty bin, in place, the value of the first in its order that isn't empty."""
    is_filled = values != _EMPTY
    lacking = np.flatnonzero(is_filled.any(axis=1) & ~is_filled.all(axis=1))
    rows, filled = np.nonzero(is_filled[lacking])
    if not len(rows):
        return
    begins = np.searchsorted(rows, np.arange(len(lacking)))
    places = np.minimum.reduceat(_PLACES[filled], begins, axis=0)  # (D', 128)
    donors = _DONORS[places, np.arange(NUM_BINS)]
    values[lacking] = np.take_along_axis(values[lacking], donors, axis=1)


def _donors() -> Ints:
    """Return int64 (128, 128): column b is the order in which bin b asks all, itself first."""
    keys = random_bits(_SEED, np.arange(NUM_BINS * NUM_BINS)).reshape(NUM_BINS, NUM_BINS)
    np.fill_diagonal(keys, 0)
    return np.argsort(keys, axis=0, kind="stable")


_DONORS = _donors()
_PLACES = np.argsort(_DONORS, axis=0, kind="stable").astype(np.uint8)
"""uint8 (128, 128): at [d, b] the place of bin d in the order of bin b."""
