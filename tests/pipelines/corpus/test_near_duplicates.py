from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.corpus.duplicates import (
    NUM_BINS,
    TARGET_RECALL,
    band_hashes,
    bands_for,
    least_estimate,
    recall_of,
    shingles,
    signatures,
    similarity_of,
)

WORDS = st.lists(st.sampled_from("abcdef"), max_size=40)
SIMILARITIES = [0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0]


def text_of(random: Random, num_words: int) -> list[str]:
    return [f"w{random.randrange(10**9)}" for _ in range(num_words)]


def pairs_of(num_pairs: int, num_words: int, replaced: int) -> list[tuple[str, str]]:
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


@given(st.lists(WORDS, max_size=5))
def test_shingles_are_five_words_or_all_words(texts: list[list[str]]) -> None:
    hashes, offsets = shingles([" ".join(words) for words in texts])
    found = [part.tolist() for part in np.split(hashes, offsets[1:-1])] if texts else []
    expected = [
        [tuple(words[i : i + 5]) for i in range(max(len(words) - 4, min(len(words), 1)))]
        for words in texts
    ]
    assert [len(each) for each in found] == [len(each) for each in expected]
    flat_found = [each for text in found for each in text]
    flat_expected = [each for text in expected for each in text]
    distinct = set(zip(flat_found, flat_expected, strict=True))
    assert len(distinct) == len(set(flat_found)) == len(set(flat_expected))


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


def test_no_text_has_no_signature() -> None:
    assert signatures([]).shape == (0, NUM_BINS)


def test_a_text_of_one_shingle_has_its_value_in_every_bin() -> None:
    values = signatures(["only four words here", "five words in a row", "another text"])
    assert [len(set(row.tolist())) for row in values] == [1, 1, 1]
    assert len(set(values[:, 0].tolist())) == 3


def test_a_text_without_words_is_like_no_text_with_words() -> None:
    empty, dots, words = signatures(["", "...", "some words"])
    assert (empty == dots).all()
    assert not (empty == words).any()


@pytest.mark.parametrize("num_words", [8, 20, 60, 200, 1000])
@pytest.mark.parametrize("kept", [0.95, 0.8, 0.5])
def test_the_estimate_is_right_on_average_also_for_short_texts(num_words: int, kept: float) -> None:
    replaced = max(1, round(num_words * (1 - kept)))
    if num_words - replaced < 5:
        pytest.skip("no shingle in common")
    true = true_similarity(num_words, replaced)
    one, two = signatures_of(pairs_of(400, num_words, replaced))
    found = similarity_of(one, two)
    # A text of few shingles is a sample of few: its error is that of its filled bins.
    num_independent = min(NUM_BINS, num_words - 4) / 2
    error = (true * (1 - true) / num_independent) ** 0.5
    assert abs(found.mean() - true) < 4 * error / len(found) ** 0.5
    if num_words >= 1000:
        assert found.std() < 1.15 * (true * (1 - true) / NUM_BINS) ** 0.5


@pytest.mark.parametrize("setting", [0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("replaced", [40, 80, 130, 200])
def test_texts_meet_in_a_band_as_often_as_theory_says(setting: float, replaced: int) -> None:
    theory = recall_of(true_similarity(800, replaced), *bands_for(setting))
    one, two = signatures_of(pairs_of(300, 800, replaced))
    cut = bands_for(setting)
    met = (band_hashes(one, *cut) == band_hashes(two, *cut)).any(axis=1).mean()
    assert abs(met - theory) < 4 * (theory * (1 - theory) / 300) ** 0.5 + 0.005


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_bands_fit_the_signature_and_reach_the_recall(similarity: float) -> None:
    bands, rows = bands_for(similarity)
    assert bands * rows <= NUM_BINS
    assert recall_of(similarity, bands, rows) >= TARGET_RECALL


def test_the_more_alike_texts_must_be_the_fewer_are_compared() -> None:
    chances = [recall_of(0.4, *bands_for(similarity)) for similarity in SIMILARITIES]
    assert all(less <= more for more, less in pairwise(chances))


def test_the_least_estimate_allows_two_standard_errors() -> None:
    assert least_estimate(0.8) == pytest.approx(0.8 - 2 * 0.03536, abs=1e-4)
    assert least_estimate(1.0) == 1.0


def test_bands_differ_also_where_their_bins_are_equal() -> None:
    same = np.full((2, NUM_BINS), 7, np.uint32)
    hashes = band_hashes(same, 16, 8)
    assert (hashes[0] == hashes[1]).all()
    assert len(set(hashes[0].tolist())) == 16


@given(st.integers(0, NUM_BINS - 1))
def test_a_band_hash_depends_on_the_bins_of_its_band_alone(changed: int) -> None:
    bands, rows = 18, 7
    values = np.arange(NUM_BINS, dtype=np.uint32)[None].repeat(2, axis=0)
    values[1, changed] += 1000
    one, two = band_hashes(values, bands, rows)
    assert np.flatnonzero(one != two).tolist() == ([changed // rows] if changed < 126 else [])


def test_a_band_hash_depends_on_the_order_of_its_bins() -> None:
    values = np.zeros((2, NUM_BINS), np.uint32)
    values[0, 0] = values[1, 1] = 1
    one, two = band_hashes(values, 1, 2)
    assert one != two


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
