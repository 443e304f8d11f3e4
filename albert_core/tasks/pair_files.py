"""Minimal pairs as they are in files: BLiMP's, Zorro's, and own ones. Without torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from albert_core.stage.errors import TaskError
from albert_core.tasks.reading import parse_object, read_lines

_PUBLISHED = ("blimp", "zorro")
"""Sets that are read as they are: BLiMP has a pair of twice the same sentence."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairs:
    """Pairs of sentences, one of which is acceptable, of one set."""

    name: str
    """Of the set: "blimp", "zorro", or the stem of its file."""
    good: list[str]
    """Per pair, the acceptable sentence."""
    bad: list[str]
    paradigms: list[str]
    """Per pair, the contrast that it tests: BLiMP's ``UID``, the stem of Zorro's file."""
    phenomena: list[str]
    """Per pair, the group of its paradigm: BLiMP's ``linguistics_term``; in Zorro what the file's
    name has before its first "-"."""

    def __len__(self) -> int:
        return len(self.good)


def read_pairs(name: str, uris: Sequence[str]) -> MinimalPairs:
    """Return the pairs in the files at ``uris``, in their order.

    A .jsonl file has one pair a line, an object with "sentence_good" and "sentence_bad". Where it
    has no "UID", the paradigm is the set's name; where it has no "linguistics_term", the phenomenon
    is the paradigm. A .txt file has two lines a pair, the unacceptable sentence first.

    Args:
        name: of the set.
        uris: its files.

    Raises:
        TaskError: a file is missing, empty or malformed, or both sentences of a pair are the same;
            naming the line.
    """
    pairs = MinimalPairs(name=name, good=[], bad=[], paradigms=[], phenomena=[])
    for uri in uris:
        number = len(pairs)
        rows = _jsonl_pairs(uri, name) if uri.endswith(".jsonl") else _text_pairs(uri)
        for line, good, bad, paradigm, phenomenon in rows:
            if good == bad and name not in _PUBLISHED:
                raise TaskError(
                    f"{uri}, line {line}: both sentences are {good!r}, expected two that differ. "
                    "Correct or remove the pair."
                )
            pairs.good.append(good)
            pairs.bad.append(bad)
            pairs.paradigms.append(paradigm)
            pairs.phenomena.append(phenomenon)
        if len(pairs) == number:
            raise TaskError(f"{uri} has no pairs. Fetch the file again, or remove it.")
    return pairs


_Row = tuple[int, str, str, str, str]
"""The line of a pair, the good and the bad sentence, the paradigm, the phenomenon."""


def _jsonl_pairs(uri: str, name: str) -> Iterator[_Row]:
    for line, text in enumerate(read_lines(uri), start=1):
        where = f"{uri}, line {line}"
        row = parse_object(text, where)
        good, bad = (_field(row, key, None, where) for key in ("sentence_good", "sentence_bad"))
        paradigm = _field(row, "UID", name, where)
        yield line, good, bad, paradigm, _field(row, "linguistics_term", paradigm, where)


def _stem(uri: str) -> str:
    return uri.rpartition("/")[2].rpartition(".")[0]


def _field(row: dict[str, Any], name: str, default: str | None, where: str) -> str:
    value = row.get(name, default)
    if not isinstance(value, str) or not value.strip():
        found = f"is {value!r}" if name in row else "is missing"
        raise TaskError(f"{where}: {name!r} {found}, expected a text. Correct or remove the line.")
    return value


def _text_pairs(uri: str) -> Iterator[_Row]:
    lines = read_lines(uri)
    if len(lines) % 2:
        raise TaskError(
            f"{uri}, line {len(lines)}: the last of an odd number of lines, expected two lines a "
            "pair, the unacceptable sentence first. Complete or remove the pair."
        )
    paradigm = _stem(uri)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            raise TaskError(f"{uri}, line {number}: no text. Correct or remove the pair.")
    for number in range(0, len(lines), 2):
        bad, good = lines[number : number + 2]
        yield number + 1, good, bad, paradigm, paradigm.partition("-")[0]
