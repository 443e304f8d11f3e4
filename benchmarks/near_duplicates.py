"""Near-duplicates on real text: recall against theory, precision and recall against the truth.

    python -m benchmarks.near_duplicates [--articles N] [--results FILE]

- articles with a share of their words replaced: how many met in a band, and how many theory says,
  given each pair's true Jaccard similarity of word 5-grams;
- the articles of 2016 against those of 2018, and all against all; editions of Gutenberg's books:
  for each setting the pairs at least that similar, of them found, found below it, and of those
  with another title; and the texts that repeat an earlier one. Of three alike, each is compared
  with the first, so not all pairs are looked at.

The speed is in `text_functions.py`.
"""

import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.english_text import CORPORA, articles
from benchmarks.harness import arguments, report, table
from pipelines.corpus.duplicates import (
    band_hashes,
    bands_for,
    candidate_pairs,
    least_estimate,
    recall_of,
    shingles,
    signatures,
    similarity_of,
)

SETTINGS = (0.5, 0.6, 0.7, 0.8, 0.9)
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
    values = signatures(texts)
    bands = band_hashes(values, *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), bands.shape[1])
    later, _, earlier = candidate_pairs([(0, rows, bands.ravel())])[0]
    alike = similarity_of(values[later], values[earlier]) >= least_estimate(similarity)
    return set(zip(later[alike].tolist(), earlier[alike].tolist(), strict=True))


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
    if not (CORPORA / "wiki_extracted").is_dir():
        print(f"not run: {CORPORA} has no wiki_extracted")
        return
    new = articles("enwiki2018")
    both = [*new, *articles("enwiki2016")]
    books = sorted((CORPORA / "gutenberg").rglob("*.txt"))
    result: dict[str, Any] = {
        "replaced": against_theory([text for _, _, text in new[: options.articles]]),
        "articles": against_truth([each[1] for each in both], [each[2] for each in both]),
        "editions": against_truth([p.parent.name for p in books], [book_of(p) for p in books]),
    }
    theory = ["replaced", "setting", "true similarity", "met", "theory", "off, standard errors"]
    truth = ["setting", "pairs at least so similar", "of them found", "found below", "other title"]
    truth += ["repeated texts", "of them found"]
    shown = [table(theory, result["replaced"])]
    shown += [f"{name}:\n\n{table(truth, result[name])}" for name in ("articles", "editions")]
    report(result, "\n\n".join(shown), options.results)


if __name__ == "__main__":
    main()
