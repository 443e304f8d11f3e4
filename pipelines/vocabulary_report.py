"""How well a vocabulary fits a text, as numbers and as two lines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from albert_core.text.records import NUM_SPECIAL, UNK
from albert_core.text.tokenizer import WORD_MARK, Tokenizer

NUM_LISTED = 12
"""Number of unknown characters that are named."""
_LINES_PER_BATCH = 2000
_MORE_PIECES, _MORE_UNKNOWN = 1.25, 0.001
"""Factor of the pieces a word, and share of the characters that became unknown, from which a
vocabulary does not fit. One of 8,000 pieces trained on 2.5 MB of Wikipedia has 1.10 to 1.13 times
the pieces on other articles and novels, with 0.000 to 0.013 % more unknown; 2.02 and 2.31 times on
German and on source code, with 0.6 and 1.7 % more."""


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """A vocabulary measured on a text; shares are 0..1."""

    vocab_size: int
    num_documents: int
    num_bytes: int
    """Size of the text as the vocabulary sees it: normalised, with blanks."""
    num_words: int
    num_pieces: int
    seen_in_training: bool
    """Whether the vocabulary may have been trained on some of this text."""
    known_character_share: float
    """Share of the characters, blanks not counted, that are in some piece."""
    unknown_piece_share: float
    unknown_word_share: float
    """Share of the words that have an unknown piece."""
    pieces_per_word: float
    bytes_per_piece: float
    used_share: float
    """Share of the vocabulary, without special pieces, that occurs in the text."""
    single_character_share: float
    """Share of the vocabulary, without special pieces, that are pieces of one character."""
    single_character_piece_share: float
    """Share of the pieces of the text that are of one character."""
    unknown_characters: list[tuple[str, int]]
    """The most frequent ones, with how often each occurs in the text."""

    def lines(self) -> tuple[str, str]:
        """Return the report as two lines for a log."""
        seen = "perhaps seen" if self.seen_in_training else "not seen"
        fit = (
            f"{self.vocab_size:,} pieces; in {self.num_bytes / 1e6:,.1f} MB of text {seen} in "
            f"training: {self.pieces_per_word:.2f} pieces a word, {self.bytes_per_piece:.2f} bytes "
            f"a piece, {self.used_share:.1%} of the vocabulary used"
        )
        gaps = (
            f"known: {self.known_character_share:.3%} of the characters; unknown: "
            f"{self.unknown_piece_share:.3%} of the pieces, {self.unknown_word_share:.3%} of the "
            f"words; one character: {self.single_character_share:.1%} of the vocabulary, "
            f"{self.single_character_piece_share:.1%} of the pieces"
        )
        return fit, gaps


def measure(
    tokenizer: Tokenizer, documents: Iterable[Sequence[str]], seen_in_training: bool
) -> VocabularyReport:
    """Return the report of ``tokenizer`` on ``documents``.

    Args:
        tokenizer: the vocabulary.
        documents: the sentences of each, as `normalise_for_pieces` gives them.
        seen_in_training: whether the vocabulary may have been trained on some of them.
    """
    opens_word = np.array([piece.startswith(WORD_MARK) for piece in tokenizer.pieces])
    is_single = np.array([len(p.removeprefix(WORD_MARK)) <= 1 for p in tokenizer.pieces])
    counts = np.zeros(len(tokenizer.pieces), np.int64)
    characters: Counter[str] = Counter()
    num_documents = num_bytes = num_unknown_words = 0
    for number, batch in _batches(documents):
        num_documents += number
        if not batch:
            continue
        ids = np.concatenate(tokenizer.processor.encode(batch, out_type="numpy", num_threads=1))
        num_bytes += sum(len(sentence.encode()) for sentence in batch)
        counts += np.bincount(ids, minlength=len(counts))
        word_of_piece = np.cumsum(opens_word[ids])
        num_unknown_words += len(np.unique(word_of_piece[ids == UNK]))
        for normalised in tokenizer.processor.normalize(batch):
            characters.update(normalised)
    del characters[WORD_MARK]
    ordinary = tokenizer.pieces[NUM_SPECIAL:]
    known = set("".join(ordinary))
    unknown = [(c, number) for c, number in characters.items() if c not in known]
    num_characters, num_unknown = characters.total(), sum(number for _, number in unknown)
    num_pieces, num_words = int(counts.sum()), int(counts[opens_word].sum())
    return VocabularyReport(
        vocab_size=len(tokenizer.pieces),
        num_documents=num_documents,
        num_bytes=num_bytes,
        num_words=num_words,
        num_pieces=num_pieces,
        seen_in_training=seen_in_training,
        known_character_share=_share(num_characters - num_unknown, num_characters),
        unknown_piece_share=_share(int(counts[UNK]), num_pieces),
        unknown_word_share=_share(num_unknown_words, num_words),
        pieces_per_word=_share(num_pieces, num_words),
        bytes_per_piece=_share(num_bytes, num_pieces),
        used_share=_share(int((counts[NUM_SPECIAL:] > 0).sum()), len(ordinary)),
        single_character_share=_share(int(is_single[NUM_SPECIAL:].sum()), len(ordinary)),
        single_character_piece_share=_share(int(counts[is_single].sum()), num_pieces),
        unknown_characters=sorted(unknown, key=lambda each: (-each[1], each[0]))[:NUM_LISTED],
    )


def describe_misfit(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in what a vocabulary fits a text too badly; empty if it fits.

    Args:
        then: the `VocabularyReport` on the text that it was trained for.
        now: the same on another text.
    """
    unknown_then, unknown_now = (1 - each["known_character_share"] for each in (then, now))
    found = []
    if now["pieces_per_word"] > _MORE_PIECES * then["pieces_per_word"]:
        found.append(
            f"{now['pieces_per_word']:.2f} pieces a word, {then['pieces_per_word']:.2f} then"
        )
    if unknown_now - unknown_then > _MORE_UNKNOWN:
        found.append(f"{unknown_now:.3%} of the characters unknown, {unknown_then:.3%} then")
    return "; ".join(found)


def _batches(documents: Iterable[Sequence[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield numbers of documents, and all their sentences: about `_LINES_PER_BATCH`."""
    num_documents, batch = 0, list[str]()
    for sentences in documents:
        num_documents += 1
        batch += sentences
        if len(batch) >= _LINES_PER_BATCH:
            yield num_documents, batch
            num_documents, batch = 0, []
    yield num_documents, batch


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
