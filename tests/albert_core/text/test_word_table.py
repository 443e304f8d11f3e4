import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.text import word_table
from albert_core.text.word_table import WordTable
from tests.threads import in_threads


def codes(words: list[str]) -> list[list[int]]:
    return [list(map(ord, word)) for word in words]


def look_up(table: WordTable, words: list[str]) -> list[list[int]]:
    pieces, lengths = table.pieces_of(pa.array(words, pa.large_string()))
    return [part.tolist() for part in np.split(pieces, np.cumsum(lengths)[:-1])] if words else []


@settings(deadline=None)  # the first call of Arrow takes longer than all others
@given(st.lists(st.lists(st.text("abé", max_size=3))))
def test_each_call_gives_the_pieces_of_its_words(calls: list[list[str]]) -> None:
    table = WordTable(codes)
    for words in calls:
        assert look_up(table, words) == codes(words)


def test_a_word_is_split_once() -> None:
    met: list[str] = []

    def encode(words: list[str]) -> list[list[int]]:
        met.extend(words)
        return codes(words)

    table = WordTable(encode)
    for words in (["a", "b", "a"], ["b", "", "c"], ["", "a"]):
        look_up(table, words)
    assert met == ["a", "b", "", "c"]


def test_a_full_table_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "MAX_PIECES", 3)
    table = WordTable(codes)
    for words in (["ab", "cde"], ["ab", "f"], ["cde", "f", "ab"]):
        assert look_up(table, words) == codes(words)


@pytest.mark.parametrize("max_pieces", [word_table.MAX_PIECES, 60])
def test_threads_that_share_a_table_get_the_pieces_of_their_words(
    max_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that all of them meet, in different order, and a table that begins anew."""
    monkeypatch.setattr(word_table, "MAX_PIECES", max_pieces)
    table = WordTable(codes)
    calls = [[f"{(start * size) % 97}" for size in range(1, 9)] for start in range(1, 400)]
    said = in_threads(lambda words: look_up(table, words), calls)
    assert said == [codes(words) for words in calls]
