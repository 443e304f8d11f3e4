"""Pure: which documents of a corpus and texts of a test set share runs of words.

A document overlaps with a test text if they have 13 consecutive words in common; case,
punctuation and layout don't count.

Source of the rule: Brown et al. 2020, "Language models are few-shot learners", appendix C.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from albert_core.stage.errors import SourceError
from albert_core.text.records import Bools, Ints
from albert_core.text.seeds import UInt64s
from pipelines.config import OVERLAP_WORDS
from pipelines.corpus.duplicates import batches, find_words, hash_ngrams, hash_words

_FILTER_SLOTS = 16
"""Slots of the filter for each n-gram; one other n-gram in 16 passes it."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a document shares with the test texts."""

    num_ngrams: int
    """How many n-grams of the document occur in a test text."""
    first: str
    """The words of the first of them, as the document writes them."""


@dataclass(frozen=True, slots=True)
class NgramIndex:
    """The n-grams of the test texts, ready to be looked up; threads may share it."""

    hashes: UInt64s
    """(T,) ascending, each once."""
    slots: Bools
    """(2^k,) whether a hash begins with these k bits. Most have none, and this look-up is ten times
    faster than a search."""

    @classmethod
    def of(cls, hashes: UInt64s) -> "NgramIndex":
        """Return the index of ``hashes``: uint64 (T,), ascending."""
        bits = max(len(hashes) * _FILTER_SLOTS, 2).bit_length()
        slots = np.zeros(1 << bits, bool)
        slots[_leading(hashes, bits)] = True
        return cls(hashes, slots)

    def positions_in(self, ngrams: UInt64s) -> Ints:
        """Return the places in ``ngrams`` of those that are in the index, ascending."""
        bits = len(self.slots).bit_length() - 1
        perhaps = np.flatnonzero(self.slots[_leading(ngrams, bits)])
        if not len(perhaps):
            return perhaps
        at = np.searchsorted(self.hashes, ngrams[perhaps])
        return perhaps[self.hashes[np.minimum(at, len(self.hashes) - 1)] == ngrams[perhaps]]


def ngram_hashes(texts: Sequence[str], n: int = OVERLAP_WORDS) -> UInt64s:
    """Return the hashes of all ``n`` words in a row of the texts.

    Returns:
        uint64 (T,), ascending, each once. A text of fewer than n words has none.
    """
    return distinct(_ngrams(texts, n))


def shared_ngrams(texts: Sequence[str], known: NgramIndex, n: int) -> UInt64s:
    """Return those of ``known`` that occur in one of the texts: uint64, ascending, each once.

    Args:
        texts: D texts.
        known: from `ngram_hashes` with the same n.
        n: words in an n-gram.
    """
    return distinct(ngrams[known.positions_in(ngrams)] for ngrams in _ngrams(texts, n))


def distinct(hashes: Iterable[UInt64s]) -> UInt64s:
    """Return all hashes, ascending, each once; np.unique is ten times slower."""
    ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *hashes]))
    return ordered[np.diff(ordered, prepend=~ordered[:1]) != 0]


def find_overlaps(
    texts: Sequence[str], known: NgramIndex, n: int = OVERLAP_WORDS
) -> list[Overlap | None]:
    """Return for each text what it shares with the test texts, or None.

    Args:
        texts: D texts.
        known: the n-grams of the test texts, from `ngram_hashes` with the same n.
        n: words in a row that make an overlap.
    """
    overlaps: list[Overlap | None] = []
    for batch in batches(texts):
        words, offsets = hash_words(batch)
        ngrams = hash_ngrams(words, n)
        positions = known.positions_in(ngrams)
        positions = positions[_within_a_text(len(ngrams), offsets, n)[positions]]
        begins = np.searchsorted(positions, offsets).tolist()
        for text, offset, (begin, end) in zip(batch, offsets[:-1], pairwise(begins), strict=True):
            if begin == end:
                overlaps.append(None)
            else:
                first = _words_of(text, positions[begin] - offset, n)
                overlaps.append(Overlap(end - begin, first))
    return overlaps


def _ngrams(texts: Sequence[str], n: int) -> Iterator[UInt64s]:
    """Yield the hashes of the n-grams of the texts, a batch of texts at a time."""
    for batch in batches(texts):
        words, offsets = hash_words(batch)
        ngrams = hash_ngrams(words, n)
        yield ngrams[_within_a_text(len(ngrams), offsets, n)]


def _within_a_text(num_ngrams: int, offsets: Ints, n: int) -> Bools:
    """Return bool (num_ngrams,): whether the n-gram doesn't reach into the next text."""
    within = np.ones(num_ngrams, bool)
    for ahead in range(1, n):
        crossing = offsets[1:-1] - ahead
        within[crossing[(crossing >= 0) & (crossing < num_ngrams)]] = False
    return within


def _words_of(text: str, begin: int, n: int) -> str:
    """Return ``n`` words from word ``begin`` on, with what stands between them."""
    words = find_words([text])
    first, last = words.begins[begin], words.ends[begin + n - 1]
    return text.encode("utf-8", "surrogatepass")[first:last].decode("utf-8", "replace")


def _leading(hashes: UInt64s, bits: int) -> Ints:
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def strings_of(name: str, text: str) -> list[str]:
    """Return the texts of a downstream file that may have 13 words.

    Args:
        name: its path or URI. In ".tsv" each cell is a text; in ".json" and ".jsonl", and in
            other files that hold JSON (RACE's ".txt"), each string, however deep: one value a
            file or one a line. Any other file is one text.
        text: its content.

    Raises:
        SourceError: a .json or .jsonl file is not JSON.
    """
    kind = name.rpartition(".")[2].lower()
    if kind == "tsv":
        strings = [cell for line in text.split("\n") for cell in line.split("\t")]
    else:
        values = _json_values(name, text, declared=kind in {"json", "jsonl"})
        strings = [string for value in values for string in _strings_in(value)]
    return [string for string in strings if len(string) >= OVERLAP_WORDS]


def _json_values(name: str, text: str, declared: bool) -> list[Any]:
    """Return the JSON values of a file: one, or one a line; its text, if it is not JSON."""
    if not declared and not text.lstrip().startswith(("{", "[")):
        return [text]
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        if not declared:
            return [text]
    values = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{name} is called JSON, but neither the file nor its line {number} is: {error}. "
                "Repair it, or give it another ending to take it as one text"
            ) from error
    return values


def _strings_in(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:  # not by recursion: JSON may be nested as deeply as Python's stack allows
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, list | dict):
            waiting += reversed(list(each.values() if isinstance(each, dict) else each))
