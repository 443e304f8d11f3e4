"""Near-duplicates: precision and recall against the truth, on planted pairs and on real text.

    python -m benchmarks.near_duplicates [--results FILE]

- pairs planted at similarities of 0.45 to 1, and families of texts that are alike at 0.73: which
  share of each is dropped at 0.8;
- the articles of 2016 against those of 2018, and all against all: for each setting the pairs at
  least that similar, of them found, found below it, and of those with another title; and the texts
  that repeat an earlier one. Of three alike, each is compared with the first, so not all pairs are
  looked at.

The speed is in `text_functions.py`.
"""

from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.english_text import articles
from benchmarks.harness import arguments, report, table
from pipelines.corpus.duplicates import (
    SHINGLE_WORDS,
    band_hashes,
    bands_for,
    candidate_pairs,
    jaccard,
    shingle_sets,
    shingles,
    signatures,
)

SETTINGS = (0.5, 0.6, 0.7, 0.8, 0.9)
PLANTED = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.73, 0.75, 0.78, 0.8, 0.82, 0.85, 0.9, 0.95, 1.0)
PLANTED_SETTING = 0.8
FAMILY_SIMILARITY = 0.73
FAMILY_SIZES = (100, 300, 1000, 3000)
NUM_SHINGLES = (50, 300, 1000)


def similarities_of(texts: list[str]) -> np.ndarray:
    """Return float64 (D, D): the true Jaccard similarities of the sets of shingles."""
    hashes, offsets = shingles(texts)
    columns = np.unique(hashes, return_inverse=True)[1]
    rows = np.repeat(np.arange(len(texts)), np.diff(offsets))
    cells = (np.ones(len(rows), np.int32), (rows, columns))
    counts = sparse.csr_matrix(cells, shape=(len(texts), columns.max() + 1))
    counts.data[:] = 1
    sizes = np.asarray(counts.sum(axis=1)).ravel()
    shared = (counts @ counts.T).toarray()
    return shared / np.maximum(sizes[:, None] + sizes - shared, 1)


def found_pairs(texts: list[str], similarity: float) -> set[tuple[int, int]]:
    """Return the pairs (later, earlier) that count as alike."""
    bands = band_hashes(signatures(texts), *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), bands.shape[1])
    later, _, earlier = candidate_pairs([(0, rows, bands.ravel())])[0]
    pairs = set(zip(later.tolist(), earlier.tolist(), strict=True))
    named = sorted({number for pair in pairs for number in pair})
    sets = dict(zip(named, shingle_sets(texts[number] for number in named), strict=True))
    return {pair for pair in pairs if jaccard(sets[pair[0]], sets[pair[1]]) >= similarity}


def words(random: Random, number: int) -> list[str]:
    """Return words that no other text has."""
    return [f"w{random.randrange(10**9)}" for _ in range(number)]


def alike(random: Random, num_texts: int, num_shingles: int, similarity: float) -> list[list[str]]:
    """Return the words of texts of which any two have at least this similarity, and just so."""
    shared = -int(-2 * num_shingles * similarity / (1 + similarity) // 1)
    common = words(random, shared + SHINGLE_WORDS - 1)
    return [common + words(random, num_shingles - shared) for _ in range(num_texts)]


def planted_pairs(num_pairs: int) -> list[list[float]]:
    """Return for each similarity planted, and each length, what it truly is and the share found."""
    rows: list[list[float]] = []
    for wanted in PLANTED:
        row = [wanted]
        for num_shingles in NUM_SHINGLES:
            random = Random(num_shingles)
            pairs = [alike(random, 2, num_shingles, wanted) for _ in range(num_pairs)]
            texts = [" ".join(text) for pair in pairs for text in pair]
            found = len(found_pairs(texts, PLANTED_SETTING)) / num_pairs
            row += [round(float(similarities_of(texts[:2])[0, 1]), 4), found]
        rows.append(row)
    return rows


def families() -> list[list[float]]:
    """Return what is found in families of texts alike, of which some have a copy half changed."""
    rows: list[list[float]] = []
    for size in FAMILY_SIZES:
        random = Random(size)
        members = alike(random, size, 300, FAMILY_SIMILARITY)
        copies = [text[:-23] + words(random, 23) for text in members[: size // 4]]
        true = similarities_of([" ".join(text) for text in (members[0], members[1], copies[0])])
        place = list(range(size + len(copies)))
        random.shuffle(place)
        texts = [" ".join((members + copies)[number]) for number in place]
        found = {(place[a], place[b]) for a, b in found_pairs(texts, PLANTED_SETTING)}
        right = {pair for pair in found if abs(pair[0] - pair[1]) == size}
        figures = (len(found - right), true[0, 1], len(right) / len(copies), true[0, 2])
        rows.append([size, *(round(float(figure), 4) for figure in figures)])
    return rows


def against_truth(names: list[str], texts: list[str]) -> list[list[float]]:
    """Compare the pairs found with the true similarities of all pairs."""
    true, rows = similarities_of(texts), []
    for setting in SETTINGS:
        found = found_pairs(texts, setting)
        reached = np.argwhere(np.tril(true, -1) >= setting)
        wanted = set(map(tuple, reached.tolist()))
        below = [pair for pair in found if true[pair] < setting]
        others = sum(names[a] != names[b] for a, b in below)
        repeats, dropped = ({pair[0] for pair in pairs} for pairs in (wanted, found))
        pairs = (len(wanted), len(wanted & found), len(below), others)
        rows.append([setting, *pairs, len(repeats), len(repeats & dropped)])
    return rows


def main() -> None:
    """Measure, print and write the results."""
    options = arguments(__doc__, "near_duplicates").parse_args()
    result: dict[str, Any] = {"planted": planted_pairs(500), "families": families()}
    planted = [
        "planted",
        *(f"{n} shingles: {what}" for n in NUM_SHINGLES for what in ("true", "found")),
    ]
    of_families = ["texts", "found below", "true similarity", "copies found", "true similarity"]
    shown = [table(planted, result["planted"]), table(of_families, result["families"])]
    if both := [each for dump in ("enwiki2018", "enwiki2016") for each in articles(dump)]:
        result["articles"] = against_truth([each[1] for each in both], [each[2] for each in both])
        truth = ["setting", "pairs so similar", "of them found", "found below", "other title"]
        truth += ["repeated texts", "of them found"]
        shown.append(table(truth, result["articles"]))
    report(result, "\n\n".join(shown), options.results)


if __name__ == "__main__":
    main()
