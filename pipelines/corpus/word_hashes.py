"""Pure: the words of texts and their n-grams as 64-bit hashes, a batch of texts at a time.

A word is a run of letters and digits, whatever its case; punctuation, symbols and white space
separate words and don't count. In scripts written without blanks (Chinese, Japanese, Thai, ...)
every character is a word. The rules are tables of this file, not of the Unicode version of the
interpreter, so that a hash means the same on every machine and after every upgrade.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from albert_core.text.records import Ints
from albert_core.text.seeds import UInt64s, mix_bits

Item = TypeVar("Item")

MAX_HASHED_BYTES = 64
"""A longer word is hashed by its first 64 bytes and its length; real words are shorter."""
BATCH_CHARACTERS = 1 << 19
"""The arrays of so much text fit in a processor's cache; larger batches are slower."""

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
    *((0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFFF)),
)
"""Code points of punctuation, symbols, white space and private use; first and last of each."""
_WORDS_BY_THEMSELVES = (
    *((0xE01, 0xE3A), (0xE40, 0xE4E), (0xE81, 0xEDF), (0x1000, 0x1049), (0x1050, 0x109F)),
    *((0x1780, 0x17D3), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3041, 0x309F)),
    *((0x30A1, 0x30FA), (0x30FC, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF)),
    *((0x4E00, 0xA4CF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F)),
)
"""Code points of Thai, Lao, Burmese, Khmer, kana, bopomofo, Han and Yi."""
_LOWERED = ((0xC0, 0x587), (0x1E00, 0x1FFF))
"""Code points with case pairs: Latin, Greek, Cyrillic, Armenian. All assigned long ago."""


@dataclass(frozen=True, slots=True)
class Words:
    """Where the words of a batch of texts are."""

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


def cut_by_size(
    items: Iterable[Item], size_of: Callable[[Item], int], size: int
) -> Iterator[list[Item]]:
    """Yield ``items`` in order, in lists that end with the item that fills them to ``size``.

    >>> list(cut_by_size(["ab", "c", "def", "g"], len, 3))
    [['ab', 'c'], ['def'], ['g']]
    """
    batch: list[Item] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size_of(item)
        if filled >= size:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


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
        kinds = _KINDS[np.minimum(codes, 0xFFFF)] if length < 4 else _kinds_of_astral(codes)
        separators = at[kinds == _SEPARATOR]
        for i in range(length):
            buffer[separators + i] = 0
        if length < 4:
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


def _kinds_of_astral(codes: Ints) -> NDArray[np.uint8]:
    """Return the kinds of code points from 0x10000 on: Han, emoji and other symbols, letters."""
    is_han = (codes >= 0x20000) & (codes < 0x40000)
    is_symbol = ((codes >= 0x1F000) & (codes < 0x20000)) | (codes >= 0xE0000)
    kinds = np.where(is_han, _WORD_BY_ITSELF, np.where(is_symbol, _SEPARATOR, _LETTER))
    return kinds.astype(np.uint8)


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


def _ascii_table() -> bytes:
    """Return what each byte becomes: separators 0, capitals small, the rest what it is."""
    ascii_bytes = bytes(range(128))
    kept = bytes(byte if bytes([byte]).isalnum() else 0 for byte in ascii_bytes)
    return kept.lower() + bytes(range(128, 256))


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(0x10000, _LETTER, np.uint8)
    for first, last in _SEPARATORS:
        kinds[first : last + 1] = _SEPARATOR
    for first, last in _WORDS_BY_THEMSELVES:
        kinds[first : last + 1] = _WORD_BY_ITSELF
    return kinds


def _lower_table() -> NDArray[np.uint16]:
    """Return the small letter of each code point, if UTF-8 writes it with as many bytes."""
    table = np.arange(0x10000, dtype=np.uint16)
    for first, last in _LOWERED:
        for code in range(first, last + 1):
            small = chr(code).lower()
            if len(small) == 1 and len(small.encode()) == len(chr(code).encode()):
                table[code] = ord(small)
    return table


_ASCII_TABLE = _ascii_table()
_KINDS = _kinds()
_LOWER = _lower_table()
_NUM_BYTES = np.repeat(np.array([1, 2, 3, 4], np.uint8), [0xC0, 0x20, 0x10, 0x10])
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
