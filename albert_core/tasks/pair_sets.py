"""Sets of minimal pairs: where their files are, which pairs to score, and how scores are summed up.

Without torch: a flow looks here for what there is to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from albert_core.intervals import mean_share
from albert_core.stage import storage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import Account, digest_of, sha256_of
from albert_core.stage.results import PairScore, PairSetScores
from albert_core.tasks.reading import READING_THREADS
from albert_core.text.records import Ints
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from albert_core.tasks.pair_files import MinimalPairs

BLIMP, ZORRO, OWN_FOLDER = "blimp", "zorro", "minimal_pairs"
PAIRS = "minimal-pairs"
"""The input of a pretraining that its sample of pairs is drawn from."""
PairFiles = Mapping[str, Sequence[str]]
"""Set -> the URIs of its files, sorted."""


def find_pairs(folder: str) -> dict[str, tuple[str, ...]]:
    """Return the sets of minimal pairs in ``folder``: name -> the URIs of the files, sorted.

    They are ``blimp/*.jsonl``, ``zorro/*.txt``, and each of ``minimal_pairs/*.jsonl`` as a set of
    its own that is called by the file's stem. Where ``folder`` is empty, there is none.

    Raises:
        TaskError: two sets have the same name.
    """
    if not folder:
        return {}
    found = {
        name: _files_in(storage.join(folder, name), ending)
        for name, ending in ((BLIMP, ".jsonl"), (ZORRO, ".txt"))
    }
    for uri in _files_in(storage.join(folder, OWN_FOLDER), ".jsonl"):
        name = uri.rpartition("/")[2].removesuffix(".jsonl")
        if found.get(name):
            raise TaskError(f"{uri}: there is a set {name!r} already. Give the file another name.")
        found[name] = (uri,)
    return {name: uris for name, uris in found.items() if uris}


def pair_digests(files: PairFiles) -> dict[str, str]:
    """Return a digest of each set: of the names of its files, and of their content."""
    uris = [uri for of_set in files.values() for uri in of_set]
    with ThreadPoolExecutor(READING_THREADS) as pool:
        contents = dict(zip(uris, pool.map(sha256_of, uris), strict=True))
    return {
        name: digest_of([[uri.rpartition("/")[2], contents[uri]] for uri in of_set])
        for name, of_set in files.items()
    }


def that_fit(
    pairs: "MinimalPairs", tokenizer: Tokenizer, max_pieces: int
) -> tuple["MinimalPairs", Account]:
    """Return the pairs that a model can read, and the account of all.

    Args:
        pairs: a set.
        tokenizer: of the model.
        max_pieces: the longest sequence that the model has positions for, with [CLS] and [SEP].
    """
    lengths = np.array([len(ids) for ids in tokenizer.encode([*pairs.good, *pairs.bad])])
    fits = lengths.reshape(2, len(pairs)).max(axis=0) + 2 <= max_pieces
    kept = part_of(pairs, np.flatnonzero(fits))
    dropped = {"too_long": len(pairs) - len(kept)}
    what = f"{pairs.name} pairs"
    return kept, Account(what=what, total=len(pairs), kept=len(kept), dropped=dropped)


def sample_of(sets: Sequence["MinimalPairs"], number: int) -> "MinimalPairs":
    """Return ``number`` pairs, or all if there are no more: of each paradigm equally many.

    The same sets give the same pairs in every run.

    Args:
        sets: at least one.
        number: of pairs.
    """
    rows_of: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate((each.name, name) for each in sets for name in each.paradigms):
        rows_of.setdefault(key, []).append(row)
    size = sum(map(len, sets))
    turns, draws = np.empty(size, np.int64), np.empty(size, np.uint64)
    for key, rows in rows_of.items():
        draws[rows] = random_bits(derive_seed(0, "minimal pairs", *key), np.arange(len(rows)))
        turns[rows] = np.argsort(np.argsort(draws[rows]))
    whole = replace(
        sets[0],
        name="sample",
        good=[text for each in sets for text in each.good],
        bad=[text for each in sets for text in each.bad],
        paradigms=[name for each in sets for name in each.paradigms],
        phenomena=[name for each in sets for name in each.phenomena],
    )
    return part_of(whole, np.sort(np.lexsort((draws, turns))[:number]))


def part_of(pairs: "MinimalPairs", rows: Ints) -> "MinimalPairs":
    """Return the pairs with these numbers."""
    columns = (pairs.good, pairs.bad, pairs.paradigms, pairs.phenomena)
    good, bad, paradigms, phenomena = ([column[row] for row in rows] for column in columns)
    return replace(pairs, good=good, bad=bad, paradigms=paradigms, phenomena=phenomena)


def pair_scores(pairs: "MinimalPairs", is_right: Iterable[bool]) -> PairSetScores:
    """Return how often a model was right: on the whole set, by phenomenon and by paradigm.

    Args:
        pairs: a set, at least one pair.
        is_right: per pair, whether the model found the acceptable sentence more likely.
    """
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for phenomenon, paradigm, right in zip(pairs.phenomena, pairs.paradigms, is_right, strict=True):
        outcomes.setdefault((phenomenon, paradigm), []).append(bool(right))
    by_phenomenon: dict[str, list[list[bool]]] = {}
    by_paradigm: dict[str, list[list[bool]]] = {}
    for (phenomenon, paradigm), found in outcomes.items():
        by_phenomenon.setdefault(phenomenon, []).append(found)
        by_paradigm.setdefault(paradigm, []).append(found)
    whole = _score(outcomes.values())
    return PairSetScores(
        accuracy=whole.accuracy,
        num_pairs=whole.num_pairs,
        phenomena={name: _score(found) for name, found in sorted(by_phenomenon.items())},
        paradigms={name: _score(found) for name, found in sorted(by_paradigm.items())},
    )


def _score(paradigms: Iterable[Sequence[bool]]) -> PairScore:
    counts = np.array([[sum(found), len(found)] for found in paradigms])
    right, number = counts.T
    return PairScore(accuracy=mean_share(right, number), num_pairs=int(number.sum()))


def _files_in(folder: str, ending: str) -> tuple[str, ...]:
    names = [name for name in storage.list_names(folder) if name.endswith(ending)]
    return tuple(storage.join(folder, name) for name in names)
