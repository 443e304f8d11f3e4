import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.duplicates import (
    BATCH_CHARACTERS,
    MAX_HASHED_BYTES,
    batches,
    find_words,
    hash_ngrams,
    hash_words,
)

LETTERS = "abzAZ059éÉßñжЖωΩ한글شक"
SEPARATORS = " \n\t.,;-_'\"\0\x7f\u00a0–“”…«»،।、。！😀€\ue000"
ALONE = "日本語のカไก𠀀"
TEXT = st.text(st.sampled_from(LETTERS + SEPARATORS + ALONE), max_size=60)


def words_of(text: str) -> list[str]:
    """What find_words does, a character at a time."""
    for character in SEPARATORS:
        text = text.replace(character, " ")
    for character in ALONE:
        text = text.replace(character, f" {character} ")
    return text.lower().split()


def hashes_by_text(texts: list[str]) -> list[list[int]]:
    hashes, offsets = hash_words(texts)
    return [part.tolist() for part in np.split(hashes, offsets[1:-1])] if texts else []


def hash_of(word: str) -> int:
    (hashes,) = hashes_by_text([word])
    (only,) = hashes
    return only


@given(st.lists(TEXT, max_size=6))
def test_words_are_found_as_by_reading_a_character_at_a_time(texts: list[str]) -> None:
    words = find_words(texts)
    spans = zip(words.begins.tolist(), words.ends.tolist(), strict=True)
    found = [words.buffer[begin:end].tobytes().decode() for begin, end in spans]
    assert found == [word for text in texts for word in words_of(text)]
    lengths = [len(words_of(text)) for text in texts]
    assert words.offsets.tolist() == [0, *np.cumsum(lengths).tolist()]


@given(st.lists(TEXT, max_size=6))
def test_equal_words_and_only_they_have_equal_hashes(texts: list[str]) -> None:
    hashes = [each for text in hashes_by_text(texts) for each in text]
    words = [word for text in texts for word in words_of(text)]
    assert len(set(hashes)) == len(set(words)) == len(set(zip(hashes, words, strict=True)))


@given(st.lists(st.text(max_size=30), max_size=6))
def test_a_text_has_the_same_hashes_whatever_stands_round_it_in_the_batch(texts: list[str]) -> None:
    assert hashes_by_text(texts) == [hashes_by_text([text])[0] for text in texts]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_any_text_can_be_hashed_and_words_keep_their_places_in_utf_8(text: str) -> None:
    words = find_words([text])
    content = text.encode()
    for begin, end in zip(words.begins.tolist(), words.ends.tolist(), strict=True):
        assert content[begin:end].decode()


def test_half_of_a_surrogate_pair_is_hashed_and_not_refused() -> None:
    assert len(hashes_by_text(["a \ud83d b"])[0]) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The cat, the CAT!", "the cat THE cat"),
        ("don't – “stop”…", "don t stop"),
        ("ÉCOLE Ñandú", "école ñandú"),
        ("ПРИВЕТ, Мир", "привет мир"),
        ("ΑΘΗΝΑ", "αθηνα"),
        ("ĐẠI HỌC", "đại học"),
        ("日本語", "日 本 語"),
        ("你好，世界。", "你好 世界"),
    ],
)
def test_case_and_punctuation_are_no_matter(one: str, other: str) -> None:
    assert hashes_by_text([one]) == hashes_by_text([other])


@given(st.integers(0, MAX_HASHED_BYTES - 1), st.integers(1, MAX_HASHED_BYTES))
def test_a_change_of_any_byte_changes_the_hash(place: int, length: int) -> None:
    word = "a" * max(length, place + 1)
    assert hash_of(word) != hash_of(word[:place] + "b" + word[place + 1 :])
    assert hash_of(word) != hash_of(word + "a")


def test_hashes_are_these_for_ever() -> None:
    hashes, offsets = hash_words(["The cat", "Привет 日", "internationalization of 0123456789"])
    assert offsets.tolist() == [0, 2, 4, 7]
    assert hashes.tolist() == [
        0xF9B90172A1A5E4AA,
        0xC71DD355C1727009,
        0xFEB7E729749BB7C9,
        0xB05386E0F4B79D72,
        0x44AC4934C6F04616,
        0x727250B166FA0E11,
        0x4D936FB3EF0F5CC7,
    ]
    the_cat = np.array([0xF9B90172A1A5E4AA, 0xC71DD355C1727009] * 2, np.uint64)
    assert hash_ngrams(the_cat, 3).tolist() == [0xE6BA238AB00AAB37, 0x4BCC946BFA9C42FD]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 14))
def test_equal_ngrams_and_only_they_have_equal_hashes(numbers: list[int], n: int) -> None:
    words = np.array(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes = hash_ngrams(words, n).tolist()
    grams = [tuple(numbers[i : i + n]) for i in range(len(numbers) - n + 1)]
    assert len(hashes) == len(grams)
    assert len(set(hashes)) == len(set(grams)) == len(set(zip(hashes, grams, strict=True)))


def test_ngrams_leave_the_words_as_they_were() -> None:
    words = np.arange(5, dtype=np.uint64)
    hash_ngrams(words, 1)
    assert words.tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(0, BATCH_CHARACTERS * 2), max_size=8))
def test_batches_hold_every_text_in_order(lengths: list[int]) -> None:
    texts = ["x" * length for length in lengths]
    cut = list(batches(texts))
    assert [text for batch in cut for text in batch] == texts
    for batch in cut:
        assert sum(map(len, batch[:-1])) < BATCH_CHARACTERS
