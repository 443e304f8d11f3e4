"""Near-duplicates on real text: recall against theory, precision and recall against the truth.

    python -m benchmarks.near_duplicates [--articles N] [--results FILE]

- pairs planted at similarities of 0.45 to 1, and families of texts that are alike at 0.73: which
  share of each is dropped at 0.8, and what comparing sets of shingles adds to the CPU seconds;
- articles with a share of their words replaced: how many met in a band, and how many theory says,
  given each pair's true Jaccard similarity of word 5-grams;
- the articles of 2016 against those of 2018, and all against all; editions of Gutenberg's books:
  for each setting the pairs at least that similar, of them found, found below it, and of those
  with another title; and the texts that repeat an earlier one. Of three alike, each is compared
  with the first, so not all pairs are looked at.

The speed is in `text_functions.py`.
"""

import re
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.english_text import CORPORA, articles
from benchmarks.harness import arguments, report, table
from pipelines.corpus.duplicates import (
    SHINGLE_WORDS,
    band_hashes,
    bands_for,
    candidate_pairs,
    jaccard,
    recall_of,
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
REPLACED_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
_BOOK_BEGINS = re.compile(r"^\*+ ?(?:START|END.{0,9}SMALL PRINT).*$", re.MULTILINE)
_BOOK_ENDS = re.compile(r"^(?:\*\*\* ?END|End of (?:the |this )?Project).*$", re.MULTILINE)


def book_of(path: Path) -> str:
    """Return a Gutenberg book, roughly without what is not of its author."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    begin = max((match.end() for match in _BOOK_BEGINS.finditer(text[: len(text) // 4])), default=0)
    end = _BOOK_ENDS.search(text, len(text) // 2)
    return text[begin : end.start() if end else None]


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
    pairs = met_pairs(texts, similarity)
    named = sorted({number for pair in pairs for number in pair})
    sets = dict(zip(named, shingle_sets(texts[number] for number in named), strict=True))
    return {pair for pair in pairs if jaccard(sets[pair[0]], sets[pair[1]]) >= similarity}


def met_pairs(texts: list[str], similarity: float) -> set[tuple[int, int]]:
    """Return the pairs (later, earlier) that are compared."""
    bands = band_hashes(signatures(texts), *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), bands.shape[1])
    later, _, earlier = candidate_pairs([(0, rows, bands.ravel())])[0]
    return set(zip(later.tolist(), earlier.tolist(), strict=True))


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


def cost(texts: list[str]) -> list[float]:
    """Return the CPU seconds of signatures and candidates, and of the comparisons of sets."""
    begin = time.process_time()
    met_pairs(texts, PLANTED_SETTING)
    met = time.process_time()
    found_pairs(texts, PLANTED_SETTING)
    return [round(met - begin, 2), round(time.process_time() - met - (met - begin), 2)]


def against_theory(texts: list[str]) -> list[list[float]]:
    """Return how many pairs met, how many should, and how many standard errors that is off."""
    random, rows = Random(0), []
    for share in REPLACED_SHARES:
        changed = [
            " ".join(
                f"other{random.randrange(10**9)}" if random.random() < share else word
                for word in text.split()
            )
            for text in texts
        ]
        both = zip(texts, changed, strict=True)
        true = np.array([similarities_of(list(pair))[0, 1] for pair in both])
        one, two = signatures(texts), signatures(changed)
        for setting in SETTINGS:
            cut = bands_for(setting)
            meet = (band_hashes(one, *cut) == band_hashes(two, *cut)).any(axis=1)
            theory = recall_of(true, *cut)
            sampling_error = np.sqrt((theory * (1 - theory)).sum()) / len(theory)
            off = (meet.mean() - theory.mean()) / max(sampling_error, 1e-9)
            figures = (true.mean(), meet.mean(), theory.mean(), off)
            rows.append([share, setting, *(round(float(figure), 4) for figure in figures)])
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
    parser = arguments(__doc__, "near_duplicates")
    parser.add_argument("--articles", type=int, default=1000, help="to replace words of")
    options = parser.parse_args()
    result: dict[str, Any] = {"planted": planted_pairs(500), "families": families()}
    planted = [
        "planted",
        *(f"{n} shingles: {what}" for n in NUM_SHINGLES for what in ("true", "found")),
    ]
    of_families = ["texts", "found below", "true similarity", "copies found", "true similarity"]
    shown = [table(planted, result["planted"]), table(of_families, result["families"])]
    if not (CORPORA / "wiki_extracted").is_dir():
        shown.append(f"articles and editions not run: {CORPORA} has no wiki_extracted")
        report(result, "\n\n".join(shown), options.results)
        return
    new = articles("enwiki2018")
    both = [*new, *articles("enwiki2016")]
    books = sorted((CORPORA / "gutenberg").rglob("*.txt"))
    result |= {
        "cost": cost([each[2] for each in both]),
        "replaced": against_theory([text for _, _, text in new[: options.articles]]),
        "articles": against_truth([each[1] for each in both], [each[2] for each in both]),
        "editions": against_truth([p.parent.name for p in books], [book_of(p) for p in books]),
    }
    theory = ["replaced", "setting", "true similarity", "met", "theory", "off, standard errors"]
    truth = ["setting", "pairs at least so similar", "of them found", "found below", "other title"]
    truth += ["repeated texts", "of them found"]
    shown.append("signatures and candidates, comparing: {} and {} CPU s".format(*result["cost"]))
    shown.append(table(theory, result["replaced"]))
    shown += [f"{name}:\n\n{table(truth, result[name])}" for name in ("articles", "editions")]
    report(result, "\n\n".join(shown), options.results)


if __name__ == "__main__":
    main()
