"""Pure: whether a pair is where its row says, and in the order that its label says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from albert_core.contract.ragged import Ints

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Claim:
    """What one row says of its segments."""

    a: Ints
    """(n,) pieces of segment a before masking."""
    b: Ints
    label: int
    document: str
    sentences: tuple[int, int]
    """First and last sentence, inclusive, by their lines in the document."""
    other: str | None = None
    """The document of segment b, where it is another one."""
    other_sentences: tuple[int, int] = (0, 0)


def fault_of(
    claim: Claim, texts: dict[str, str], encode: Encode, max_num_pieces: int, whole: bool
) -> str | None:
    """Return what is wrong with ``claim``, or None.

    Args:
        claim: one row's.
        texts: document -> its sentences, one a line; those of the claim at least.
        encode: sentences to pieces.
        max_num_pieces: of both segments of the longest example.
        whole: whether only examples of that length may have cut sentences.
    """
    if claim.document not in texts or (claim.other is not None and claim.other not in texts):
        return "names no document of the corpus"
    sentences = _pieces(texts[claim.document], claim.sentences, encode)
    if not sentences:
        return "names sentences that its document does not have"
    text = np.concatenate(sentences)
    if claim.other is not None:
        other = _pieces(texts[claim.other], claim.other_sentences, encode)
        if not other:
            return "names sentences that its document does not have"
        other_text = np.concatenate(other)
        if not places(text, claim.a) or not places(other_text, claim.b):
            return "is not in the sentences it names"
        return None if claim.label == 1 else "has segment b from elsewhere and label 0"
    at_a, at_b = places(text, claim.a), places(text, claim.b)
    if not at_a or not at_b:
        return "is not in the sentences it names"
    first, second = (at_a, at_b) if claim.label == 0 else (at_b, at_a)
    size = len(claim.a if claim.label == 0 else claim.b)
    if first[0] + size > second[-1]:
        return "is not in the order of its label"
    is_full = len(claim.a) + len(claim.b) >= max_num_pieces
    if whole and not is_full:
        bounds = np.cumsum([len(sentence) for sentence in sentences])
        if len(claim.a) + len(claim.b) != len(text) or size not in bounds:
            return "cuts a sentence though there is room"
    return None


def _pieces(text: str, sentences: tuple[int, int], encode: Encode) -> list[Ints]:
    """Return the pieces of each of the ``sentences``; none unless all of them are in ``text``."""
    lines, (first, last) = text.split("\n"), sentences
    if not 0 <= first <= last < len(lines):
        return []
    return [np.array(ids, np.int64) for ids in encode(lines[first : last + 1])]


def places(text: Ints, part: Ints) -> list[int]:
    """Return where ``part`` stands in ``text``, ascending.

    >>> places(np.array([7, 8, 7, 8, 9]), np.array([7, 8]))
    [0, 2]
    """
    if not len(part):
        return list(range(len(text) + 1))
    candidates = np.flatnonzero(text[: max(0, len(text) - len(part) + 1)] == part[0])
    return [
        begin for begin in candidates.tolist() if (text[begin : begin + len(part)] == part).all()
    ]
