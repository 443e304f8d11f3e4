"""Which sentences of a corpus a vocabulary is trained on, and which it is measured on.

SentencePiece's own sampling is not reproducible, so sentences are sampled here, by the hashes of
their documents' ids: a share of 1, 1/2, 1/4, ... of them, the same ones in every run, from eight
times as many documents, so that a few long ones don't fill the sample. Each script of each folder
of the source, a stratum, has a share of its own: the larger ones give less, so that a language of
which there is little text gets pieces too. A smaller share is a part of a larger one, and a corpus
that changes a little keeps its shares, so that its vocabulary changes only with the sentences
sampled. Their order is that of the hashes.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.stage import storage
from albert_core.stage.errors import VocabularyError
from albert_core.stage.manifest import Account
from albert_core.stage.results import VOCAB
from albert_core.text.seeds import derive_seed, random_uniform
from albert_core.text.tokenizer import normalise_for_pieces, num_needed_marks
from pipelines.config import VocabularySettings
from pipelines.engine import steps

MAX_SENTENCE_BYTES = 4192
"""SentencePiece skips longer lines silently, so they are counted here."""
REPORT_MB = 5.0
"""MB of text, at most, that the vocabulary is measured on."""
_LARGEST_MEASURED_SHARE = 1 / 8
_MORE_DOCUMENTS = 8
"""The share of the documents is at most so many times that of their sentences."""
_COUNTED_PER_SAMPLED = 10
"""MB of text read to estimate the sizes of the strata, for each MB sampled."""
_SLACK = 1 + 1e-9
"""Rounding tolerance when a stratum is compared with its part of the sample."""
_SCRIPT_CHARACTERS = 300
"""Number of characters from the middle of a text that decide its script."""
_RESERVED = re.compile("[\0\N{LOWER FIVE EIGHTHS BLOCK}]")
"""SentencePiece also skips lines with one of these."""
_POSITIONS = 1 << 63
"""A document's id determines its position in [0, this). The vocabulary is trained on the first
documents and measured on the last."""
TRAIN, MEASURE = "train", "measure"
"""Uses of a sample."""
CHARACTERS, MARKS_LOST = "characters", "marks_lost"
"""Counts of a sample: characters, and marks among them that its scripts need and pieces lose."""
_REASONS = ("not_sampled", "blank", "too_long", "reserved_character")
"""Reasons not to train on a sentence."""


@dataclass(frozen=True)
class Sampling:
    """The settings and sizes that every worker needs to sample."""

    vocabulary: VocabularySettings
    text_bytes: int
    """Approximate size of the whole text, which determines the shares."""
    scratch: str
    """Folder for the samples."""
    train: bool = True
    """Whether the sample is for training as well as for measuring."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Size of each stratum in a part of the text, in bytes; empty until it is counted."""

    @cached_property
    def share(self) -> float:
        """Share of the sentences to train on if it was the same in all strata, 0..1."""
        return sample_share(self.vocabulary.sample_mb, self.text_bytes) * self.train

    @cached_property
    def shares(self) -> dict[str, float]:
        """Share of the sentences to train on of each stratum that was counted, 0..1."""
        scale = self.text_bytes / max(1, sum(self.sizes.values()))
        sizes = {stratum: size * scale * self.train for stratum, size in self.sizes.items()}
        sample_bytes = self.vocabulary.sample_mb * 1e6
        return stratum_shares(sizes, sample_bytes, self.vocabulary.sampling_temperature)

    @cached_property
    def train_share(self) -> float:
        """Share of the text to train on, 0..1."""
        if not self.shares:
            return self.share
        drawn = sum(self.sizes[stratum] * share for stratum, share in self.shares.items())
        return drawn / sum(self.sizes.values())

    @cached_property
    def measured_share(self) -> float:
        """Share of the documents to measure on: `REPORT_MB` at most.

        If all of the text is trained on, the vocabulary is measured on some of the same text.
        """
        share = sample_share(REPORT_MB, self.text_bytes)
        return min(share, _LARGEST_MEASURED_SHARE) if 0 < self.share < 1 else share

    def position_of(self, document_id: str) -> int:
        """Return the document's place in [0, `_POSITIONS`)."""
        return derive_seed(self.vocabulary.seed, "vocab-sample", document_id)

    def is_counted(self, position: int) -> bool:
        """Return whether the sizes of the strata are estimated from the document, among others."""
        most = _COUNTED_PER_SAMPLED * self.vocabulary.sample_mb
        return position < sample_share(most, self.text_bytes) * _POSITIONS

    def is_measured(self, position: int) -> bool:
        """Return whether the vocabulary is measured on the document."""
        return position >= (1 - self.measured_share) * _POSITIONS

    def may_be_used(self, position: int) -> bool:
        """Return whether the document is measured on, or trained on if its stratum is small."""
        largest = max([self.share, *self.shares.values()])
        return self.is_measured(position) or position < largest * _MORE_DOCUMENTS * _POSITIONS

    def share_trained(self, position: int, stratum: str) -> float:
        """Return the share of the document's sentences to train on, 0..1."""
        if self.share < 1 and self.is_measured(position):
            return 0.0
        share = self.shares.get(stratum, self.share)
        of_documents = min(1.0, share * _MORE_DOCUMENTS)
        return share / of_documents if position < of_documents * _POSITIONS else 0.0


def sample_share(sample_mb: float, text_bytes: float) -> float:
    """Return the largest of 1, 1/2, 1/4, ... that is at most ``sample_mb`` of the text."""
    share = 1.0
    while share * text_bytes > sample_mb * 1e6:
        share /= 2
    return share


def stratum_shares(
    sizes: Mapping[str, float], sample_bytes: float, temperature: float
) -> dict[str, float]:
    """Return the share of each stratum to sample: the largest of 1, 1/2, 1/4, ... that fits.

    A stratum of n bytes gets a part of the sample in proportion to n^(1/temperature). What is less
    than its part is taken whole, and the others share the rest.
    """
    weights = {stratum: size ** (1 / temperature) for stratum, size in sizes.items() if size}
    left, total, shares = sample_bytes, sum(weights.values()), dict[str, float]()
    for stratum in sorted(weights, key=lambda each: (sizes[each], each)):  # whole ones come first
        part = min(left * weights[stratum] / total, sizes[stratum])
        shares[stratum] = sample_share(part / 1e6 * _SLACK, sizes[stratum])
        left, total = left - part, total - weights[stratum]
    return shares


def sum_of(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the bytes of each stratum in all shards, the strata in alphabetical order."""
    return dict(sorted(sum(map(Counter, counted), Counter[str]()).items()))


def count_strata(documents: pa.Table, _: str, sampling: Sampling) -> dict[str, int]:
    """Return the bytes of each stratum in the counted documents of a shard."""
    sizes: Counter[str] = Counter()
    for row, document_id in enumerate(documents["id"].to_pylist()):
        if sampling.is_counted(sampling.position_of(document_id)):
            text = documents["text"][row].as_py()
            sizes[stratum_of(document_id, text)] += len(text.encode())
    return dict(sizes)


def stratum_of(document_id: str, text: str) -> str:
    """Return the first folder of the document's path and its script, such as ``books/CYRILLIC``."""
    folder, is_folder, _ = document_id.partition("#")[0].partition("/")
    begin = max(0, (len(text) - _SCRIPT_CHARACTERS) // 2)
    part = text[begin : begin + _SCRIPT_CHARACTERS]
    found: Counter[str] = Counter(LATIN=1)
    if not part.isascii():
        for character, number in Counter(part).items():
            # A script is the first word of a name, as in CYRILLIC SMALL LETTER A.
            script = unicodedata.name(character, "").partition(" ")[0]
            found[script] += number * character.isalpha()
    script, _ = max(found.items(), key=lambda each: (each[1], each[0]))
    return f"{folder if is_folder else ''}/{script}"


def sample_shard(documents: pa.Table, name: str, sampling: Sampling) -> dict[str, Any]:
    """Write the sampled documents of a shard, one a line, to a file for each use.

    A line is the document's position and its sentences, normalised.
    """
    vocabulary = sampling.vocabulary
    counts: Counter[str] = Counter(documents=documents.num_rows)
    lines: dict[str, list[str]] = {}

    def normalised(sentence: str) -> str:
        if not vocabulary.keep_accents:
            counts[CHARACTERS] += len(sentence)
            counts[MARKS_LOST] += num_needed_marks(sentence)
        return normalise_for_pieces(sentence, vocabulary.lower_case, vocabulary.keep_accents)

    def write(use: str, position: int, sentences: Iterable[str]) -> None:
        counts[use] += 1
        lines.setdefault(use, []).append("\t".join([f"{position:016x}", *sentences]))

    for row, document_id in enumerate(documents["id"].to_pylist()):
        position = sampling.position_of(document_id)
        if not sampling.may_be_used(position):
            continue
        text = documents["text"][row].as_py()
        share = sampling.share_trained(position, stratum_of(document_id, text))
        sentences = text.split("\n")
        if share:
            is_drawn = random_uniform(position, np.arange(len(sentences))) < share
            drawn = [s for s, is_so in zip(sentences, is_drawn.tolist(), strict=True) if is_so]
            counts.update(sentences=len(sentences), not_sampled=len(sentences) - len(drawn))
            write(TRAIN, position, _usable(map(normalised, drawn), counts))
        if sampling.is_measured(position):
            write(MEASURE, position, map(normalised, sentences))
    files = {use: storage.join(sampling.scratch, use, f"{name}.tsv") for use in lines}
    for use, uri in files.items():
        storage.write_bytes(uri, "\n".join(lines[use]).encode())
    for account in accounts_of(counts) if sampling.train else []:
        steps.count(VOCAB, account)
    return {"files": files, "counts": counts, "share": sampling.train_share}


def _usable(sentences: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Yield the sentences that SentencePiece does not skip, and count all by outcome."""
    for sentence in sentences:
        if not sentence or sentence.isspace():
            counts["blank"] += 1
        elif len(sentence.encode()) > MAX_SENTENCE_BYTES:
            counts["too_long"] += 1
        elif _RESERVED.search(sentence):
            counts["reserved_character"] += 1
        else:
            counts["sentences_kept"] += 1
            yield sentence


def require_sentences(counts: Counter[str], vocabulary: VocabularySettings) -> None:
    """Raise VocabularyError if no sentence was sampled to train on."""
    if not counts["sentences_kept"]:
        left_out = {reason: counts[reason] for reason in _REASONS if counts[reason]}
        raise VocabularyError(
            f"there is no sentence to train on: {counts[TRAIN]} of {counts['documents']} "
            f"documents are in the sample of vocabulary.sample_mb = {vocabulary.sample_mb:g} MB, "
            f"and their sentences left out are {left_out}. Raise vocabulary.sample_mb, or give "
            "more text."
        )


def documents_of(files: Iterable[dict[str, str]], use: str) -> Iterator[list[str]]:
    """Yield the sentences of each document, in an order that does not depend on the shards."""
    lines = [
        line
        for by_use in files
        if use in by_use
        for line in storage.read_bytes(by_use[use]).decode().split("\n")
        if line
    ]
    # By position and then by text: each line begins with sixteen digits of the position.
    lines.sort(reverse=True)
    while lines:
        yield lines.pop().split("\t")[1:]


def accounts_of(counts: Counter[str]) -> list[Account]:
    """Return the accounts of the documents, and of the sentences of those that were sampled."""
    documents, sampled, sentences = counts["documents"], counts[TRAIN], counts["sentences"]
    missing = {"not_sampled": documents - sampled} if documents > sampled else {}
    left_out = {reason: counts[reason] for reason in _REASONS if counts[reason]}
    kept = counts["sentences_kept"]
    return [
        Account(what="documents", total=documents, kept=sampled, dropped=missing),
        Account(what="sampled sentences", total=sentences, kept=kept, dropped=left_out),
    ]
