"""Near-duplicates and overlaps with test sets: speed, recall and precision on real text.

    python benchmarks/near_duplicates.py [folder of the real data]

Prints a line of JSON:
- `mb_per_cpu_s`: of text, in one process, best of five;
- `perturbed`: articles with a share of their words replaced. How many met in a band, and how many
  theory says, given each pair's true Jaccard similarity;
- `enwiki`: the articles of 2016 against those of 2018, and all against all. For each setting:
  same-title pairs found; found of the pairs whose true similarity reaches the setting; pairs
  found that don't reach it (with the least similarity among them), and with different titles;
- `gutenberg`: pairs of editions of a book;
- `squad`: articles of 2018 that share 13 words in a row with SQuAD's dev sets.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy import sparse

from pipelines.corpus import overlaps
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
from pipelines.corpus.overlaps import TestNgrams, find_overlaps, ngram_hashes
from pipelines.corpus.word_hashes import batches, hash_words

SETTINGS = (0.5, 0.6, 0.7, 0.8, 0.9)
REPLACED_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
DATA = Path("/work/shared/data")

_ARTICLE = re.compile(r'<doc [^>]*title="([^"]*)"[^>]*>\n(.*?)</doc>', re.DOTALL)
_BOOK_BEGINS = re.compile(r"^\*+ ?(?:START|END.{0,9}SMALL PRINT).*$", re.MULTILINE)
_BOOK_ENDS = re.compile(r"^(?:\*\*\* ?END|End of (?:the |this )?Project).*$", re.MULTILINE)


def articles_of(folder: Path) -> list[tuple[str, str]]:
    """Return (title, text) of each article of WikiExtractor's files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [found for path in files for found in _ARTICLE.findall(path.read_text("utf-8"))]


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


def speed_of(work: Callable[[], object], num_bytes: int) -> float:
    """Return MB of text per CPU second, the best of five."""
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return round(num_bytes / min(seconds) / 1e6, 1)


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


def found_pairs(texts: list[str], similarity: float) -> tuple[set[tuple[int, int]], int]:
    """Return the pairs (later, earlier) that count as alike, and how many were compared."""
    values = signatures(texts)
    bands = band_hashes(values, *bands_for(similarity))
    rows = np.repeat(np.arange(len(texts), dtype=np.uint32), bands.shape[1])
    later, _, earlier = candidate_pairs([(0, rows, bands.ravel())])[0]
    alike = similarity_of(values[later], values[earlier]) >= least_estimate(similarity)
    return set(zip(later[alike].tolist(), earlier[alike].tolist(), strict=True)), len(later)


def with_words_replaced(text: str, share: float, random: Random) -> str:
    """Return the text with about that share of its words made others."""
    words = text.split()
    return " ".join(
        f"other{random.randrange(10**9)}" if random.random() < share else word for word in words
    )


def perturbed(texts: list[str]) -> list[dict[str, Any]]:
    """Compare how many pairs meet with how many should."""
    random = Random(0)
    results = []
    for share in REPLACED_SHARES:
        pairs = [(text, with_words_replaced(text, share, random)) for text in texts]
        true = np.array([similarities_of(list(pair))[0, 1] for pair in pairs])
        one, two = (signatures([pair[side] for pair in pairs]) for side in (0, 1))
        errors = similarity_of(one, two) - true
        result: dict[str, Any] = {
            "true_similarity": round(true.mean(), 3),
            "mean_error_of_estimate": round(errors.mean(), 4),
            "std_error_of_estimate": round(errors.std(), 4),
        }
        for setting in SETTINGS:
            cut = bands_for(setting)
            meet = (band_hashes(one, *cut) == band_hashes(two, *cut)).any(axis=1)
            theory = recall_of(true, *cut)
            sampling_error = np.sqrt((theory * (1 - theory)).sum()) / len(theory)
            result[f"met_at_{setting}"] = round(meet.mean(), 4)
            result[f"theory_at_{setting}"] = round(theory.mean(), 4)
            result[f"off_in_standard_errors_at_{setting}"] = round(
                (meet.mean() - theory.mean()) / max(sampling_error, 1e-9), 2
            )
        results.append(result)
    return results


def against_truth(names: list[str], texts: list[str]) -> dict[str, Any]:
    """Compare the pairs found with the true similarities of all pairs."""
    true = similarities_of(texts)
    later, earlier = np.tril_indices(len(texts), -1)
    same_name = {
        (a, b)
        for a, b in itertools.permutations(range(len(texts)), 2)
        if a > b and names[a] == names[b]
    }
    results: dict[str, Any] = {"texts": len(texts), "same_name_pairs": len(same_name)}
    shares = [true[pair] for pair in sorted(same_name)]
    results["same_name_similarity_quartiles"] = (
        np.quantile(shares, [0.25, 0.5, 0.75]).round(3).tolist()
    )
    for setting in SETTINGS:
        found, num_compared = found_pairs(texts, setting)
        reached = true[later, earlier] >= setting
        wanted = set(zip(later[reached].tolist(), earlier[reached].tolist(), strict=True))
        below = [pair for pair in found if true[pair] < setting]
        dropped, should_drop = ({pair[0] for pair in pairs} for pairs in (found, wanted))
        results[str(setting)] = {
            "wanted": len(wanted),
            "compared": num_compared,
            "found": len(found),
            "wanted_found": len(wanted & found),
            "same_name_found": len(same_name & found),
            "documents_to_drop": len(should_drop),
            "of_them_dropped": len(dropped & should_drop),
            "dropped_besides": len(dropped - should_drop),
            "found_below": len(below),
            "least_similarity_found": round(min((true[pair] for pair in found), default=1.0), 3),
            "found_below_and_other_name": sorted(
                (names[a], names[b], round(float(true[a, b]), 3))
                for a, b in below
                if names[a] != names[b]
            ),
        }
    return results


def squad_overlaps(articles: list[tuple[str, str]], folder: Path) -> dict[str, Any]:
    """Report which articles share 13 words in a row with SQuAD."""
    files = sorted(folder.glob("*.json"))
    strings, titles = [], set()
    for path in files:
        content = path.read_bytes()
        try:
            strings += overlaps.test_strings(path.name, content)
            titles |= {each["title"].replace("_", " ") for each in json.loads(content)["data"]}
        except (ValueError, overlaps.SourceError) as error:
            print(f"left out: {error}", file=sys.stderr)
    known = TestNgrams.of(ngram_hashes(strings))
    found = find_overlaps([text for _, text in articles], known)
    counts = {
        title: overlap.num_ngrams
        for (title, _), overlap in zip(articles, found, strict=True)
        if overlap
    }
    firsts = [
        (title, overlap.num_ngrams, overlap.first)
        for (title, _), overlap in zip(articles, found, strict=True)
        if overlap
    ]
    return {
        "files": [path.name for path in files],
        "test_strings": len(strings),
        "test_ngrams": len(known.hashes),
        "overlapping": len(counts),
        "squad_titles_in_corpus": sorted(titles & {title for title, _ in articles}),
        "examples": sorted(firsts, key=lambda each: -each[1])[:12],
        "with_one_ngram": sum(count == 1 for count in counts.values()),
        "mb_per_cpu_s": speed_of(
            lambda: find_overlaps([text for _, text in articles], known),
            sum(len(text.encode()) for _, text in articles),
        ),
    }


def speeds(texts: list[str]) -> dict[str, float]:
    """Return MB per CPU second of each step."""
    num_bytes = sum(len(text.encode()) for text in texts)
    cut = bands_for(0.8)
    return {
        "hash_words": speed_of(lambda: [hash_words(each) for each in batches(texts)], num_bytes),
        "signatures": speed_of(lambda: signatures(texts), num_bytes),
        "signatures_and_bands": speed_of(lambda: band_hashes(signatures(texts), *cut), num_bytes),
        "ngram_hashes": speed_of(lambda: ngram_hashes(texts), num_bytes),
    }


def main() -> None:
    """Measure all and print a line of JSON."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    extracted = data / "corpora" / "wiki_extracted"
    new, old = (articles_of(extracted / f"enwiki{year}") for year in (2018, 2016))
    stubs = [text for _, text in articles_of(extracted / "enwiki2021_stubs")]
    articles = [*new, *old]
    books = sorted((data / "corpora" / "gutenberg").rglob("*.txt"))
    texts = [text for _, text in new]
    result = {
        "mb_per_cpu_s": speeds(texts),
        "stubs_mb_per_cpu_s": speeds(stubs),
        "perturbed": perturbed(texts[:1000]),
        "enwiki": against_truth([title for title, _ in articles], [text for _, text in articles]),
        "gutenberg": against_truth([p.parent.name for p in books], [book_of(p) for p in books]),
        "squad": squad_overlaps(new, data / "tasks" / "squad"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
