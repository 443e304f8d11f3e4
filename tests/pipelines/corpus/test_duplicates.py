import time
from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.corpus.cleaning import content_hash
from pipelines.corpus.duplicates import (
    BATCH_CHARACTERS,
    HASH_BYTES,
    MAX_HASHED_BYTES,
    NUM_BINS,
    TARGET_RECALL,
    band_hashes,
    bands_for,
    batches,
    candidate_pairs,
    find_words,
    hash_ngrams,
    hash_words,
    jaccard,
    recall_of,
    repetitions,
    shingle_sets,
    signatures,
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


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_a_text_has_the_same_words_whatever_stands_round_it_in_the_batch(texts: list[str]) -> None:
    assert hashes_by_text(texts) == [hashes_by_text([text])[0] for text in texts]
    for text in texts:
        words = find_words([text])
        for begin, end in zip(words.begins.tolist(), words.ends.tolist(), strict=True):
            assert text.encode()[begin:end].decode()


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
    given = words.copy()
    hashes = hash_ngrams(words, n).tolist()
    assert (words == given).all()
    grams = [tuple(numbers[i : i + n]) for i in range(len(numbers) - n + 1)]
    assert len(hashes) == len(grams)
    assert len(set(hashes)) == len(set(grams)) == len(set(zip(hashes, grams, strict=True)))


@given(st.lists(st.integers(0, BATCH_CHARACTERS * 2), max_size=8))
def test_batches_hold_every_text_in_order(lengths: list[int]) -> None:
    texts = ["x" * length for length in lengths]
    cut = list(batches(texts))
    assert [text for batch in cut for text in batch] == texts
    for batch in cut:
        assert sum(map(len, batch[:-1])) < BATCH_CHARACTERS


# Which documents repeat


def halves(hashes: list[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)


def first_before(documents: Sequence[object]) -> dict[int, int]:
    """Return the places of what occurred before, each with the first place where it did."""
    return {
        place: min(earlier)
        for place, document in enumerate(documents)
        if (earlier := [n for n, other in enumerate(documents[:place]) if other == document])
    }


@given(st.lists(st.integers(0, 12), max_size=40))
def test_documents_repeat_that_are_equal_to_an_earlier_one(documents: list[int]) -> None:
    later, earlier = repetitions(halves([content_hash(f"document {n}") for n in documents]))
    assert (np.diff(later) > 0).all()
    assert dict(zip(later.tolist(), earlier.tolist(), strict=True)) == first_before(documents)


def test_hashes_that_differ_in_any_byte_are_different() -> None:
    changed = np.full((HASH_BYTES + 1, HASH_BYTES), 7, np.uint8)
    changed[range(HASH_BYTES), range(HASH_BYTES)] ^= 0x80
    assert repetitions(changed.view("<u8"))[0].size == 0


def test_a_million_hashes_take_a_few_seconds() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**63, (1_000_000, 2)).astype(np.uint64)
    hashes[500_000:500_100] = hashes[:100]
    begin = time.process_time()
    later, earlier = repetitions(hashes)
    assert time.process_time() - begin < 5
    assert later.tolist() == list(range(500_000, 500_100))
    assert earlier.tolist() == list(range(100))


def pairs_by_hand(documents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    holders: dict[int, list[int]] = {}
    pairs: set[tuple[int, int]] = set()
    for document, (a, b) in enumerate(documents):
        for band in (a, b + 100):
            before = holders.setdefault(band, [])
            pairs |= {(document, other) for other in before[:1] + before[-1:]}
            before.append(document)
    return sorted(pairs)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8))), st.integers(1, 3))
def test_documents_are_compared_with_the_first_and_the_previous_of_each_band(
    documents: list[tuple[int, int]], num_partitions: int
) -> None:
    bands = np.array([(a, b + 100) for a, b in documents], np.uint64).reshape(-1)
    holders = np.repeat(np.arange(len(documents)), 2)
    found: set[tuple[int, int]] = set()
    for partition in range(num_partitions):
        here = bands % np.uint64(num_partitions) == partition
        later, earlier = candidate_pairs(bands[here], holders[here])
        pairs = list(zip(later.tolist(), earlier.tolist(), strict=True))
        assert pairs == sorted(set(pairs))
        found |= set(pairs)
    assert sorted(found) == pairs_by_hand(documents)


def test_a_document_is_not_compared_with_itself() -> None:
    later, earlier = candidate_pairs(np.array([5, 5, 5], np.uint64), np.array([0, 0, 1]))
    assert (later.tolist(), earlier.tolist()) == ([1], [0])


# How alike two texts are


def near_repeated(texts: Sequence[str], similarity: float) -> dict[int, int]:
    """Return the texts that are like an earlier one, each with the first such that was compared.

    This is the whole rule in memory; a corpus applies it in parts, with files between the steps.
    """
    bands = band_hashes(signatures(texts), *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts)), bands.shape[1])
    later, earlier = candidate_pairs(bands.ravel(), rows)
    sets = list(shingle_sets(texts))
    found: dict[int, int] = {}
    for text, like in zip(later.tolist(), earlier.tolist(), strict=True):
        if jaccard(sets[text], sets[like]) >= similarity:
            found.setdefault(text, like)
    return found


def like_texts() -> list[str]:
    """Texts in families: each a copy of the family's first, with some words made others."""
    random = Random(7)
    texts = []
    for _ in range(12):
        words = [f"w{random.randrange(10**6)}" for _ in range(random.choice([30, 300]))]
        for replaced in (0, 0, 1, 3, 6, 10):
            changed = list(words)
            for place in random.sample(range(len(words)), replaced):
                changed[place] = "other"
            texts.append(" ".join(changed))
    random.shuffle(texts)
    return texts


def shingles_by_hand(words: list[str]) -> set[tuple[str, ...]]:
    num = max(len(words) - 4, min(len(words), 1))
    return {tuple(words[i : i + 5]) for i in range(num)}


def test_the_first_of_like_texts_is_kept() -> None:
    long = " ".join(f"w{i}" for i in range(400))
    changed = long.replace("w200", "other")
    other = " ".join(f"v{i}" for i in range(400))
    assert near_repeated([other, long, "short", changed, long.upper(), "Short!"], 0.8) == {
        3: 1,
        4: 1,
        5: 2,
    }


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.9])
def test_a_text_is_dropped_if_and_only_if_it_is_as_like_an_earlier_one_as_wanted(
    similarity: float,
) -> None:
    texts = like_texts()
    grams = [shingles_by_hand(text.split()) for text in texts]
    like = {
        number
        for number, of_text in enumerate(grams)
        if any(len(of_text & e) / len(of_text | e) >= similarity for e in grams[:number])
    }
    assert near_repeated(texts, similarity).keys() == like


def test_a_family_of_texts_less_alike_than_wanted_is_kept_whole() -> None:
    random = Random(1)
    common = text_of(random, 258)
    family = [" ".join(common + text_of(random, 46)) for _ in range(300)]  # 254 / 346 = 0.734
    assert near_repeated(family, 0.8) == {}
    copies = [f"{text} again" for text in family]
    found = near_repeated(family + copies, 0.8)
    assert len(found) > 0.98 * len(copies)
    assert all(later - earlier == len(family) for later, earlier in found.items())


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=12), min_size=2, max_size=4))
def test_similarity_is_exact(texts: list[list[str]]) -> None:
    sets = list(shingle_sets([" ".join(words) for words in texts]))
    grams = [shingles_by_hand(words) for words in texts]
    for (one, a), (other, b) in product(zip(sets, grams, strict=True), repeat=2):
        assert jaccard(one, other) == (len(a & b) / len(a | b) if a | b else 1)


WORDS = st.lists(st.sampled_from("abcdef"), max_size=40)


def text_of(random: Random, num_words: int) -> list[str]:
    return [f"w{random.randrange(10**9)}" for _ in range(num_words)]


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_a_signature_depends_on_the_set_of_shingles_and_not_on_the_batch(
    texts: list[list[str]],
) -> None:
    joined = [" ".join(words) for words in texts]
    values = signatures(joined)
    assert values.shape == (len(texts), NUM_BINS)
    assert values.dtype == np.uint32
    for text, row in zip(joined, values, strict=True):
        assert (signatures([text])[0] == row).all()
        assert (signatures([text.upper() + "!"])[0] == row).all()


def test_a_text_of_one_shingle_has_its_value_in_every_bin_and_one_of_none_another() -> None:
    *values, empty, dots = signatures(["four words are here", "five words in a row", "", "..."])
    assert [len(set(row.tolist())) for row in values] == [1, 1]
    assert not {int(row[0]) for row in values} & set(empty.tolist())
    assert (values[0] != values[1]).all()
    assert (empty == dots).all()


@pytest.mark.parametrize(
    ("num_words", "shared"), [(8, 6), (20, 10), (20, 19), (200, 160), (1000, 500)]
)
def test_texts_agree_in_a_bin_as_often_as_they_are_similar_also_for_short_texts(
    num_words: int, shared: int
) -> None:
    random = Random(num_words)
    begins = [text_of(random, shared) for _ in range(80_000 // (num_words + 200))]
    one, two = (
        signatures([" ".join(begin + text_of(random, num_words - shared)) for begin in begins])
        for _ in range(2)
    )
    true = (shared - 4) / (2 * (num_words - 4) - (shared - 4))
    found = np.mean(one == two, axis=1)
    # A text of few shingles is a sample of few: its error is that of its filled bins.
    num_independent = min(NUM_BINS, num_words - 4) / 2
    error = (true * (1 - true) / num_independent) ** 0.5
    assert abs(found.mean() - true) < 4 * error / len(found) ** 0.5
    if num_words >= 1000:
        assert found.std() < 1.15 * (true * (1 - true) / NUM_BINS) ** 0.5


@pytest.mark.parametrize("similarity", [0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0])
def test_bands_fit_the_signature_and_reach_the_recall(similarity: float) -> None:
    bands, rows = bands_for(similarity)
    assert bands * rows <= NUM_BINS
    assert recall_of(similarity, bands, rows) >= TARGET_RECALL


def test_signatures_are_these_for_ever() -> None:
    values = signatures([" ".join(f"word{i}" for i in range(300)), "one two"])
    assert values[:, :4].tolist() == [
        [2123770774, 1091724721, 3731316066, 720063203],
        [1991869984, 1991869984, 1991869984, 1991869984],
    ]
    assert values.sum(dtype=np.uint64) == 445058718615
    assert band_hashes(values, 18, 7)[0, :3].tolist() == [
        0xB26522DE166BB100,
        0x8302F5D7CD5B7E1F,
        0xF3677C8511CA4046,
    ]
