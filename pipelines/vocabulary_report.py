"""Pure: how well a vocabulary fits a text, as numbers, as two lines and as a page."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from albert_core.text.records import NUM_SPECIAL, UNK

WORD_MARK = "▁"
"""The blank of SentencePiece, with which a piece begins that opens a word."""
NUM_LISTED = 12
"""How many of the longest pieces, rarest scripts and unknown characters are named."""
_LINES_PER_BATCH = 2000


class Vocabulary(Protocol):
    """The part of a `Tokenizer` that is used here."""

    processor: Any
    """The processor of SentencePiece."""

    @property
    def pieces(self) -> list[str]:
        """The V pieces, by id."""


@dataclass(frozen=True, slots=True)
class Script:
    """A writing system, by the first word of its characters' Unicode names."""

    name: str
    num_characters: int
    known_share: float
    """Share of its characters in the text that are in some piece, 0..1."""


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
    longest_pieces: list[str]
    rarest_scripts: list[Script]
    unknown_characters: list[tuple[str, int]]
    """The most frequent ones, with how often each occurs in the text."""

    def values(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        return asdict(self)

    def lines(self) -> tuple[str, str]:
        """Return the report as two lines for a log."""
        seen = "seen" if self.seen_in_training else "not seen"
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

    def markdown(self) -> str:
        """Return the report as a page in Markdown."""
        seen = "some of which it was trained on" if self.seen_in_training else "not trained on"
        size = f"{self.num_documents:,} documents, {self.num_bytes / 1e6:,.2f} MB"
        lines = [
            "# Vocabulary",
            "",
            f"Measured on {size}, {seen}.",
            *_table(["", ""], self._rows()),
            *_section("Longest pieces", " ".join(f"`{piece}`" for piece in self.longest_pieces)),
            *_section("Rarest scripts", *_script_table(self.rarest_scripts)),
            *_section("Commonest unknown characters", *_character_table(self.unknown_characters)),
        ]
        return "\n".join(lines) + "\n"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("pieces in the vocabulary", f"{self.vocab_size:,}"),
            ("of them used", f"{self.used_share:.1%}"),
            ("of them one character", f"{self.single_character_share:.1%}"),
            ("words", f"{self.num_words:,}"),
            ("pieces", f"{self.num_pieces:,}"),
            ("pieces a word", f"{self.pieces_per_word:.3f}"),
            ("bytes a piece", f"{self.bytes_per_piece:.3f}"),
            ("pieces of one character", f"{self.single_character_piece_share:.2%}"),
            ("characters known", f"{self.known_character_share:.4%}"),
            ("pieces unknown", f"{self.unknown_piece_share:.4%}"),
            ("words with an unknown piece", f"{self.unknown_word_share:.4%}"),
        ]


def measure(
    tokenizer: Vocabulary, documents: Iterable[Sequence[str]], seen_in_training: bool
) -> VocabularyReport:
    """Return the report of ``tokenizer`` on ``documents``.

    Args:
        tokenizer: the vocabulary.
        documents: the sentences of each, as `normalise_for_pieces` gives them.
        seen_in_training: whether the vocabulary may have been trained on some of them.
    """
    counts = _Counts(tokenizer)
    batch: list[str] = []
    for sentences in documents:
        counts.num_documents += 1
        batch.extend(sentences)
        if len(batch) >= _LINES_PER_BATCH:
            counts.add(batch)
            batch = []
    counts.add(batch)
    return counts.report(seen_in_training)


class _Counts:
    """What a text's pieces and characters add up to."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.num_documents = 0
        self.num_bytes = 0
        self.num_unknown_words = 0
        self.pieces = np.zeros(len(tokenizer.pieces), np.int64)
        self.characters: Counter[str] = Counter()
        self._opens = np.array([piece.startswith(WORD_MARK) for piece in tokenizer.pieces])

    def add(self, sentences: Sequence[str]) -> None:
        if not sentences:
            return
        encoded = self.tokenizer.processor.encode(sentences, out_type="numpy", num_threads=1)
        ids = np.concatenate(encoded)
        self.num_bytes += sum(len(sentence.encode()) for sentence in sentences)
        self.pieces += np.bincount(ids, minlength=len(self.pieces))
        word_of_piece = np.cumsum(self._opens[ids])
        self.num_unknown_words += len(np.unique(word_of_piece[ids == UNK]))
        for normalised in self.tokenizer.processor.normalize(sentences):
            self.characters.update(normalised)

    def report(self, seen_in_training: bool) -> VocabularyReport:
        ordinary = self.tokenizer.pieces[NUM_SPECIAL:]
        known = set("".join(ordinary))
        characters = {c: n for c, n in self.characters.items() if c != WORD_MARK}
        num_pieces = int(self.pieces.sum())
        num_words = int(self.pieces[self._opens].sum())
        one = np.array([len(piece.removeprefix(WORD_MARK)) <= 1 for piece in self.tokenizer.pieces])
        return VocabularyReport(
            vocab_size=len(self.tokenizer.pieces),
            num_documents=self.num_documents,
            num_bytes=self.num_bytes,
            num_words=num_words,
            num_pieces=num_pieces,
            seen_in_training=seen_in_training,
            known_character_share=_known_share(characters, known),
            unknown_piece_share=_share(int(self.pieces[UNK]), num_pieces),
            unknown_word_share=_share(self.num_unknown_words, num_words),
            pieces_per_word=_share(num_pieces, num_words),
            bytes_per_piece=_share(self.num_bytes, num_pieces),
            used_share=_share(int((self.pieces[NUM_SPECIAL:] > 0).sum()), len(ordinary)),
            single_character_share=_share(int(one[NUM_SPECIAL:].sum()), len(ordinary)),
            single_character_piece_share=_share(int(self.pieces[one].sum()), num_pieces),
            longest_pieces=sorted(ordinary, key=lambda piece: (-len(piece), piece))[:NUM_LISTED],
            rarest_scripts=_scripts(characters, known)[:NUM_LISTED],
            unknown_characters=_commonest({c: n for c, n in characters.items() if c not in known}),
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _known_share(characters: dict[str, int], known: set[str]) -> float:
    return _share(sum(n for c, n in characters.items() if c in known), sum(characters.values()))


def _scripts(characters: dict[str, int], known: set[str]) -> list[Script]:
    """Return the scripts of the letters, rarest first."""
    by_name: dict[str, dict[str, int]] = {}
    for character, number in characters.items():
        if character.isalpha():
            name = unicodedata.name(character, "UNNAMED").split()[0].capitalize()
            by_name.setdefault(name, {})[character] = number
    scripts = (
        Script(name, sum(letters.values()), _known_share(letters, known))
        for name, letters in by_name.items()
    )
    return sorted(scripts, key=lambda script: (script.num_characters, script.name))


def _commonest(characters: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(characters.items(), key=lambda item: (-item[1], item[0]))[:NUM_LISTED]


def _section(title: str, *lines: str) -> list[str]:
    return ["", f"## {title}", "", *(lines or ["none"])]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["", *(f"| {' | '.join(row)} |" for row in cells)]


def _script_table(scripts: Sequence[Script]) -> list[str]:
    rows = [(s.name, f"{s.num_characters:,}", f"{s.known_share:.1%}") for s in scripts]
    return _table(["script", "letters", "known"], rows)[1:] if rows else []


def _character_table(characters: Sequence[tuple[str, int]]) -> list[str]:
    rows = [(f"U+{ord(c):04X}", unicodedata.name(c, "unnamed"), f"{n:,}") for c, n in characters]
    return _table(["character", "name", "times"], rows)[1:] if rows else []
