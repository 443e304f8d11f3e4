"""Minimal pairs: where their files are, what they contain, and how scores are summed up.

This module does not import torch, because a flow uses it to find out what there is to do.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator

from albert_core.metrics import mean_share
from albert_core.stage import results, storage
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import Account, digest_of
from albert_core.tasks.reading import Record, file_digest, of_each, parse_record, read_lines
from albert_core.text.seeds import derive_seed, random_bits
from albert_core.text.tokenizer import Tokenizer

BLIMP, ZORRO = "blimp", "zorro"
PAIRS = "minimal-pairs"
"""Name of a pretraining's input from which its sample of pairs is drawn."""
PairFiles = Mapping[str, Sequence[str]]
"""Set -> the URIs of its files, sorted."""
_ENDINGS = {BLIMP: ".jsonl", ZORRO: ".txt", results.OWN_PAIRS: ".jsonl"}
"""Folder -> how the names of its files end."""
_NO_PAIRS = (".", "readme", "license", "licence")
"""How the names of other files begin that are passed over, in small letters."""


class Pair(NamedTuple):
    """Two sentences, one of which is acceptable."""

    good: str
    """The acceptable sentence."""
    bad: str
    paradigm: str
    """The contrast that it tests: BLiMP's ``UID``, the stem of Zorro's file."""
    phenomenon: str
    """The group of its paradigm: BLiMP's ``linguistics_term``; in Zorro what the file's name has
    before its first "-"."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text that is not blank")
    return text


_Text = Annotated[str, AfterValidator(_not_blank)]


class _Row(Record):
    """A line of a .jsonl file."""

    sentence_good: _Text
    sentence_bad: _Text
    UID: _Text = ""
    linguistics_term: _Text = ""


def find_pairs(folder: str) -> dict[str, tuple[str, ...]]:
    """Return the sets of minimal pairs in ``folder``: name -> the URIs of the files, sorted.

    They are ``blimp/*.jsonl``, ``zorro/*.txt``, and each of ``minimal_pairs/*.jsonl`` as a set of
    its own that is called by the file's stem. Capitals do not matter. Hidden files are left out.
    Where ``folder`` is empty, there is none.

    Raises:
        TaskError: two sets or folders have the same name, an own set has that of a published one,
            or a folder has other files than these, README and LICENSE.
    """
    if not folder:
        return {}
    there = [entry["name"] for entry in storage.list_folder(folder) if entry["type"] != "file"]
    found = {}
    for kind in _ENDINGS:
        folders = [n for each in there if (n := PurePosixPath(each).name).lower() == kind]
        if len(folders) > 1:
            raise TaskError(
                f"{' and '.join(folders)} in {folder} differ only in capitals. Move or remove one."
            )
        found[kind] = _files_in(storage.join(folder, *folders), kind) if folders else ()
    for uri in found.pop(results.OWN_PAIRS):
        name = PurePosixPath(uri).stem
        if name in found or name.lower() in (BLIMP, ZORRO):
            raise TaskError(f"{uri}: another set is called {name!r}. Give the file another name.")
        found[name] = (uri,)
    return {name: uris for name, uris in found.items() if uris}


def _files_in(folder: str, kind: str) -> tuple[str, ...]:
    """Return the URIs of the files with pairs in a folder of this kind."""
    ending, found = _ENDINGS[kind], list[str]()
    for entry in storage.list_folder(folder):
        name = PurePosixPath(entry["name"]).name
        if entry["type"] != "directory" and name.lower().endswith(ending) and name[0] != ".":
            found.append(storage.join(folder, name))
        elif not name.lower().startswith(_NO_PAIRS):
            raise TaskError(
                f"{storage.join(folder, name)} can't be read: expected files that end in {ending}. "
                "Unpack, convert, move or remove it."
            )
    return tuple(found)


def pair_digests(files: PairFiles) -> dict[str, str]:
    """Return a digest of each set: of the names of its files, and of their content.

    Raises:
        TaskError: a file is missing.
    """
    uris = [uri for of_set in files.values() for uri in of_set]
    contents = dict(zip(uris, of_each(file_digest, uris), strict=True))
    return {
        name: digest_of([[PurePosixPath(uri).name, contents[uri]] for uri in of_set])
        for name, of_set in files.items()
    }


def read_pairs(name: str, uris: Sequence[str]) -> list[Pair]:
    """Return the pairs in the files at ``uris``, in their order.

    A .jsonl file has one pair a line, an object with "sentence_good" and "sentence_bad". Where it
    has no "UID", the paradigm is the set's name; where it has no "linguistics_term", the phenomenon
    is the paradigm. A .txt file has two lines a pair, the unacceptable sentence first.

    Args:
        name: the name of the set.
        uris: the URIs of its files.

    Raises:
        TaskError: a file is missing, empty or malformed, or both sentences of a pair are the same;
            naming the line.
    """
    pairs: list[Pair] = []
    for uri in uris:
        number = len(pairs)
        is_text = uri.lower().endswith(".txt")
        for line, pair in _text_pairs(uri) if is_text else _jsonl_pairs(uri, name):
            # BLiMP has a pair of two equal sentences.
            if pair.good == pair.bad and name not in (BLIMP, ZORRO):
                raise TaskError(
                    f"{uri}, line {line}: both sentences are {pair.good!r}, expected two that "
                    "differ. Correct or remove the pair."
                )
            pairs.append(pair)
        if len(pairs) == number:
            raise TaskError(f"{uri} has no pairs. Fetch the file again, or remove it.")
    return pairs


def _jsonl_pairs(uri: str, name: str) -> Iterator[tuple[int, Pair]]:
    """Yield each pair with its line."""
    for line, text in enumerate(read_lines(uri), start=1):
        row = parse_record(_Row, text, f"{uri}, line {line}")
        paradigm = row.UID or name
        phenomenon = row.linguistics_term or paradigm
        yield line, Pair(row.sentence_good, row.sentence_bad, paradigm, phenomenon)


def _text_pairs(uri: str) -> Iterator[tuple[int, Pair]]:
    """Yield each pair with its first line."""
    lines, paradigm = read_lines(uri), PurePosixPath(uri).stem
    if len(lines) % 2:
        raise TaskError(
            f"{uri}, line {len(lines)}: the last of an odd number of lines, expected two lines a "
            "pair, the unacceptable sentence first. Complete or remove the pair."
        )
    if blank := next((number for number, text in enumerate(lines, 1) if not text.strip()), None):
        raise TaskError(f"{uri}, line {blank}: no text. Correct or remove the pair.")
    for number, (bad, good) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        yield 2 * number + 1, Pair(good, bad, paradigm, paradigm.partition("-")[0])


def that_fit(
    name: str, pairs: Sequence[Pair], tokenizer: Tokenizer, max_pieces: int
) -> tuple[list[Pair], Account]:
    """Return the pairs that a model can read and tell apart, and the account of all.

    It cannot if both texts have the same pieces, as when they differ in case only and the
    vocabulary has none, or if one has none, such as a blank of no width. BLiMP's pair of two equal
    texts, which every model gets wrong, is kept. A pair counts once in a paradigm, but in BLiMP and
    Zorro, which are scored as they were published.

    Args:
        name: the name of their set.
        pairs: all pairs of the set.
        tokenizer: the model's tokenizer.
        max_pieces: the longest sequence that the model has positions for, with [CLS] and [SEP].
    """
    encoded = tokenizer.encode([text for pair in pairs for text in pair[:2]])
    kept, seen = [], set[tuple[str, str, str]]()
    dropped: Counter[str] = Counter()
    for pair, good, bad in zip(pairs, encoded[::2], encoded[1::2], strict=True):
        if pair[:3] in seen and name not in (BLIMP, ZORRO):
            dropped["repeated"] += 1
            continue
        seen.add(pair[:3])
        if not (good and bad):
            dropped["no_pieces"] += 1
        elif max(len(good), len(bad)) + 2 > max_pieces:
            dropped["too_long"] += 1
        elif good == bad and pair.good != pair.bad:
            dropped["same_pieces"] += 1
        else:
            kept.append(pair)
    return kept, Account(what=f"{name} pairs", total=len(pairs), kept=len(kept), dropped=dropped)


def sample_of(sets: Mapping[str, Sequence[Pair]], number: int) -> list[Pair]:
    """Return ``number`` pairs, or all if there are fewer: equally many of each paradigm.

    The same sets give the same pairs in every run.

    Args:
        sets: the pairs of each set, by name.
        number: how many pairs to return.
    """
    rows_of: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate((name, pair.paradigm) for name in sets for pair in sets[name]):
        rows_of.setdefault(key, []).append(row)
    pairs = [pair for name in sets for pair in sets[name]]
    turns, draws = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.uint64)
    for key, rows in rows_of.items():
        draws[rows] = random_bits(derive_seed(0, "minimal pairs", *key), np.arange(len(rows)))
        turns[rows] = np.argsort(np.argsort(draws[rows]))
    return [pairs[row] for row in np.sort(np.lexsort((draws, turns))[:number])]


def pair_scores(pairs: Sequence[Pair], is_right: Iterable[bool]) -> results.PairSetScores:
    """Return how often a model was right: on the whole set, by phenomenon and by paradigm.

    Args:
        pairs: a set, at least one pair.
        is_right: per pair, whether the model found the acceptable sentence more likely.
    """
    outcomes: dict[tuple[str, str], list[bool]] = {}
    for pair, right in zip(pairs, is_right, strict=True):
        outcomes.setdefault((pair.phenomenon, pair.paradigm), []).append(bool(right))
    phenomena, paradigms = (
        {
            name: _score([outcomes[key] for key in outcomes if key[place] == name])
            for name in sorted({key[place] for key in outcomes})
        }
        for place in (0, 1)
    )
    whole = dict(_score(outcomes.values()))
    return results.PairSetScores(**whole, phenomena=phenomena, paradigms=paradigms)


def _score(paradigms: Iterable[Sequence[bool]]) -> results.PairScore:
    right, number = np.array([[sum(found), len(found)] for found in paradigms]).T
    return results.PairScore(accuracy=mean_share(right, number), num_pairs=int(number.sum()))
