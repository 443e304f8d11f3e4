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
    HASH_BYTES,
    NUM_BINS,
    TARGET_RECALL,
    band_hashes,
    bands_for,
    candidate_pairs,
    jaccard,
    partition_hashes,
    recall_of,
    repeated_rows,
    shingle_sets,
    signatures,
)

UNITS = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=6)
"""Units of documents; equal numbers stand for equal documents."""

BANDS = st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=8), min_size=1)
"""Parts of documents of two band hashes."""

Part = tuple[int, NDArray[np.uint32], NDArray[np.void]]
BandPart = tuple[int, NDArray[np.uint32], NDArray[np.uint64]]
Candidates = dict[int, tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]]]
Pair = tuple[int, int, int, int]


def near_repeated(texts: Sequence[str], similarity: float) -> dict[int, int]:
    """Return the texts that are like an earlier one, each with the first such that was compared.

    The whole rule in memory; a corpus does the same in parts, with files between the steps.

    Args:
        texts: in order.
        similarity: Jaccard similarity of word 5-grams, 0..1, from which texts are alike.
    """
    values = signatures(texts)
    bands = band_hashes(values, *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), bands.shape[1])
    later, _, earlier = candidate_pairs([(0, rows, bands.ravel())])[0]
    sets = list(shingle_sets(texts))
    found: dict[int, int] = {}
    for text, like in zip(later.tolist(), earlier.tolist(), strict=True):
        if jaccard(sets[text], sets[like]) >= similarity:
            found.setdefault(text, like)
    return found


def hashes_of(documents: list[int]) -> NDArray[np.void]:
    return np.array([content_hash(f"document {n}") for n in documents], f"V{HASH_BYTES}")


def parts_of(units: list[list[int]]) -> list[Part]:
    return [
        (number, np.arange(len(documents), dtype=np.uint32), hashes_of(documents))
        for number, documents in enumerate(units)
    ]


def kept(units: list[list[int]], repeated: dict[int, NDArray[np.uint32]]) -> list[list[int]]:
    return [
        [document for row, document in enumerate(documents) if row not in repeated[number]]
        for number, documents in enumerate(units)
    ]


def first_of_each(units: list[list[int]]) -> list[list[int]]:
    first: list[list[int]] = []
    for number, documents in enumerate(units):
        earlier = {n for unit in units[:number] for n in unit}
        first.append([n for n in dict.fromkeys(documents) if n not in earlier])
    return first


@given(UNITS, st.randoms(), st.integers(1, 20))
def test_of_equal_documents_the_first_is_kept_in_whichever_order_and_partitions_they_come(
    units: list[list[int]], random: Random, num_partitions: int
) -> None:
    found: dict[int, list[int]] = {number: [] for number in range(len(units))}
    for partition in range(num_partitions):
        parts = [
            (number, *partition_hashes(hashes, num_partitions)[partition])
            for number, _, hashes in parts_of(units)
        ]
        random.shuffle(parts)
        repeated = repeated_rows(parts)
        assert repeated.keys() == found.keys()
        for number, rows in repeated.items():
            assert (np.diff(rows.astype(int)) > 0).all()
            found[number] += rows.tolist()
    together = {number: np.array(rows, np.uint32) for number, rows in found.items()}
    assert kept(units, together) == first_of_each(units)


def test_hashes_that_differ_in_any_byte_are_different() -> None:
    base = bytes(range(HASH_BYTES))
    hashes = [base]
    for i in range(HASH_BYTES):
        changed = bytearray(base)
        changed[i] ^= 0x80
        hashes.append(bytes(changed))
    packed = np.array(hashes, f"V{HASH_BYTES}")
    assert repeated_rows([(0, np.arange(len(hashes), dtype=np.uint32), packed)])[0].size == 0


def test_parts_of_earlier_corpora_come_first() -> None:
    rows = np.arange(2, dtype=np.uint32)
    parts = [
        (0, rows, hashes_of([1, 2])),
        (-3, rows, hashes_of([2, 3])),
        (-1, rows, hashes_of([3, 4])),
    ]
    repeated = repeated_rows(parts)
    assert {part: rows.tolist() for part, rows in repeated.items()} == {-3: [], -1: [0], 0: [1]}


def test_without_parts_nothing_repeats() -> None:
    assert repeated_rows([]) == {}
    assert candidate_pairs([]) == {}
    assert near_repeated([], 0.8) == {}


def test_a_million_rows_in_a_thousand_parts_take_a_few_seconds() -> None:
    values = np.random.default_rng(0).integers(0, 2**63, (1_000_000, 2))
    values[500_000:500_100] = values[:100]
    hashes = values.view(f"V{HASH_BYTES}").ravel()
    rows = np.arange(1000, dtype=np.uint32)
    parts = [(n, rows, hashes[n * 1000 : n * 1000 + 1000]) for n in range(1000)]
    begin = time.process_time()
    repeated = repeated_rows(parts)
    assert time.process_time() - begin < 5
    assert {n for n, found in repeated.items() if len(found)} == {500}


def band_parts_of(documents: list[list[tuple[int, int]]]) -> list[BandPart]:
    return [
        (
            number - 1,
            np.repeat(np.arange(len(part), dtype=np.uint32), 2),
            np.array([(a, b + 100) for a, b in part], np.uint64).reshape(-1),
        )
        for number, part in enumerate(documents)
    ]


def pairs_of(candidates: Candidates) -> set[Pair]:
    return {
        (part, *pair)
        for part, columns in candidates.items()
        for pair in zip(*(column.tolist() for column in columns), strict=True)
    }


def pairs_by_hand(documents: list[list[tuple[int, int]]]) -> set[Pair]:
    holders: dict[int, list[tuple[int, int]]] = {}
    pairs: set[Pair] = set()
    for number, part in enumerate(documents):
        for row, (a, b) in enumerate(part):
            for band in (a, b + 100):
                before = holders.setdefault(band, [])
                for place in before[:1] + before[-1:]:
                    pairs.add((number - 1, row, *place))
                before.append((number - 1, row))
    return pairs


@given(BANDS, st.randoms(), st.integers(1, 3))
def test_documents_are_compared_with_the_first_and_the_previous_of_each_band(
    documents: list[list[tuple[int, int]]], random: Random, num_partitions: int
) -> None:
    parts = band_parts_of(documents)
    random.shuffle(parts)
    pairs: set[Pair] = set()
    for partition in range(num_partitions):
        there = [(bands % num_partitions == partition) for _, _, bands in parts]
        some = [
            (n, rows[here], bands[here])
            for (n, rows, bands), here in zip(parts, there, strict=True)
        ]
        candidates = candidate_pairs(some)
        assert candidates.keys() == {number for number, _, _ in parts}
        pairs |= pairs_of(candidates)
        for columns in candidates.values():
            assert [column.dtype.name for column in columns] == ["uint32", "int64", "uint32"]
            triples = list(zip(*(column.tolist() for column in columns), strict=True))
            assert triples == sorted(set(triples))
    assert pairs == pairs_by_hand(documents)


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


# How alike two texts are

WORDS = st.lists(st.sampled_from("abcdef"), max_size=40)
SIMILARITIES = [0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0]


def text_of(random: Random, num_words: int) -> list[str]:
    return [f"w{random.randrange(10**9)}" for _ in range(num_words)]


def text_pairs(num_pairs: int, num_words: int, replaced: int) -> list[tuple[str, str]]:
    """Pairs of texts without a common shingle but for a common beginning."""
    random = Random(num_words)
    pairs = []
    for _ in range(num_pairs):
        common = text_of(random, num_words - replaced)
        one, two = (" ".join(common + text_of(random, replaced)) for _ in range(2))
        pairs.append((one, two))
    return pairs


def true_similarity(num_words: int, replaced: int) -> float:
    shared, each = num_words - replaced - 4, num_words - 4
    return shared / (2 * each - shared)


def signatures_of(pairs: list[tuple[str, str]]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    return signatures([one for one, _ in pairs]), signatures([two for _, two in pairs])


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


def test_a_text_of_one_shingle_has_its_value_in_every_bin() -> None:
    values = signatures(["only four words here", "five words in a row", "another text"])
    assert [len(set(row.tolist())) for row in values] == [1, 1, 1]
    assert len(set(values[:, 0].tolist())) == 3


def test_a_text_without_words_is_like_no_text_with_words() -> None:
    empty, dots, words = signatures(["", "...", "some words"])
    assert (empty == dots).all()
    assert not (empty == words).any()


@pytest.mark.parametrize(
    ("num_words", "kept"), [(8, 0.8), (20, 0.5), (20, 0.95), (200, 0.8), (1000, 0.5)]
)
def test_texts_agree_in_a_bin_as_often_as_they_are_similar_also_for_short_texts(
    num_words: int, kept: float
) -> None:
    replaced = max(1, round(num_words * (1 - kept)))
    true = true_similarity(num_words, replaced)
    one, two = signatures_of(text_pairs(80_000 // (num_words + 200), num_words, replaced))
    found = np.mean(one == two, axis=1)
    # A text of few shingles is a sample of few: its error is that of its filled bins.
    num_independent = min(NUM_BINS, num_words - 4) / 2
    error = (true * (1 - true) / num_independent) ** 0.5
    assert abs(found.mean() - true) < 4 * error / len(found) ** 0.5
    if num_words >= 1000:
        assert found.std() < 1.15 * (true * (1 - true) / NUM_BINS) ** 0.5


@pytest.mark.parametrize("similarity", SIMILARITIES)
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
