"""Words and their pieces: each word is split into pieces only once, when it first occurs."""

import threading
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_PIECES = 1 << 21
"""The most that a table holds: half a million words in 100 MB. Then it starts over."""


class WordTable:
    """Maps words to the ids of their pieces, many at a time; any number of threads may use it.

    Args:
        encode: returns the ids of each of a list of words; they depend only on the word.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._adding = threading.Lock()  # held to number words and to take the arrays they are in
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self._table = _Table(np.zeros(0, np.int32), np.zeros(1, np.int64))

    def pieces_of(self, words: pa.Array) -> tuple[NDArray[np.int32], Ints]:
        """Return the pieces of W words, an array of strings.

        Returns:
            Ids int32 (N,), laid end to end; and the number of them in each word, int64 (W,),
            which sum to N.
        """
        distinct = words.dictionary_encode()
        with self._adding:
            numbers = self._number(distinct.dictionary.to_pylist())
            table = self._table
        begins = table.bounds[numbers]
        word = distinct.indices.to_numpy()
        lengths = (table.bounds[numbers + 1] - begins)[word]
        # Place i of the result is place i - shift of the table, where the shift is the word's.
        shifts = np.cumsum(lengths) - lengths - begins[word]
        return table.pieces[np.arange(lengths.sum()) - np.repeat(shifts, lengths)], lengths

    def _number(self, words: list[str]) -> Ints:
        """Return the place of each of ``words`` in the table, which has all of them afterwards."""
        if len(self._table.pieces) > MAX_PIECES:
            self._clear()
        numbers = np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int64, len(words))
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            numbers[unknown] = np.arange(len(unknown)) + len(self._table.bounds) - 1
            self._add([words[place] for place in unknown.tolist()])
        return numbers

    def _add(self, words: list[str]) -> None:
        encoded = self._encode(words)
        before = self._table
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        pieces = np.fromiter(chain.from_iterable(encoded), np.int32, int(lengths.sum()))
        # The numbers come last: a word with a number is in the table, even after an error.
        self._table = _Table(
            np.append(before.pieces, pieces),
            np.append(before.bounds, before.bounds[-1] + np.cumsum(lengths)),
        )
        self._numbers.update(zip(words, count(len(before.bounds) - 1), strict=False))


class _Table(NamedTuple):
    """The pieces of all words, laid end to end; never changed, only replaced."""

    pieces: NDArray[np.int32]
    bounds: Ints
    """Word n has the pieces from bounds[n] to bounds[n + 1]."""
