"""The training of stage 2: sampled sentences to a vocabulary with ALBERT's special pieces.

SentencePiece's own sampling is not reproducible, so documents are sampled here, by the hash of
their ids: a share of 1, 1/2, 1/4, ... of them, the same ones in every run. A smaller share is
a part of a larger one, and a corpus that changes a little keeps its share, so that its vocabulary
changes only with the documents sampled. The result depends on the order of the sentences, which is
that of the hashes, and on the number of threads, which is a setting.

Training holds some twenty bytes for each byte of the sample: 2 GB for 100 MB.
"""

import io
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
import sentencepiece
from apache_beam.pvalue import PCollection

from albert_core.stage import storage
from albert_core.stage.errors import VocabularyError
from albert_core.stage.lineage import VOCAB
from albert_core.stage.manifest import (
    Account,
    Manifest,
    Shard,
    StagePlan,
    check_shard,
    read_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import MASK, PAD, SPECIAL_PIECES, UNK
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer, normalise_for_pieces
from pipelines.config import LARGEST_AUTO_SIZE, VocabularySettings
from pipelines.engine import steps
from pipelines.engine.progress import Progress, report_done
from pipelines.engine.runner import run_pipeline
from pipelines.vocabulary_report import VocabularyReport, measure

STAGE = VOCAB
SPIECE_VOCAB = "spiece.vocab"
REPORT = "vocab_report"
"""Kind of the report's two files."""
USER_SYMBOLS = ["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"]
"""Pieces that are never part of another one. Given as a list: in the reference's flag, which is
CSV, SentencePiece 0.2.3 reads the quote as the start of a field. Source: google-research/albert,
README, "Sentencepiece"."""
MAX_SENTENCE_BYTES = 4192
"""SentencePiece passes over longer lines without a word, so they are counted here."""
REPORT_MB = 5.0
"""MB of text, at most, that the vocabulary is measured on."""
_RESERVED = re.compile("[\0\N{LOWER FIVE EIGHTHS BLOCK}]")
"""SentencePiece passes over lines with one of these too."""
_LEAST_AUTO_SIZE = 1_000
_POSITIONS = 1 << 63
"""Documents fall in [0, this) by their ids; the first ones are trained on, the last measured."""
_TRAIN, _MEASURE = "train", "measure"
_LEFT_OUT = ("blank", "too_long", "reserved_character")
"""Why a sentence is not trained on."""

log = logging.getLogger(STAGE)


@dataclass(frozen=True, slots=True)
class SampleShares:
    """Which shares of the documents are used, 0..1."""

    train: float
    measure: float

    def uses_of(self, position: int) -> Iterator[str]:
        """Yield what the document at ``position`` is used for."""
        if position < self.train * _POSITIONS:
            yield _TRAIN
        if position >= (1 - self.measure) * _POSITIONS:
            yield _MEASURE


def make_vocabulary(
    plan: StagePlan, work: str, vocabulary: VocabularySettings, corpus: str, given: bytes | None
) -> str:
    """Train a vocabulary, or take the one given, and measure it; return the manifest.

    Args:
        plan: of the stage.
        work: folder for all results.
        vocabulary: settings.
        corpus: the corpus's manifest.
        given: the SentencePiece model that the settings name; None: one is trained.

    Raises:
        VocabularyError: the text cannot carry a vocabulary of this size.
    """
    manifest = read_manifest(corpus)
    shares = shares_for(0.0 if given else vocabulary.sample_mb, manifest.facts["text_bytes"])
    with scratch_folder(plan.folder(work)) as scratch:
        sample = Sample(corpus, vocabulary, shares, scratch)
        sample.draw(manifest)
        model = given or train(sample.sentences(), vocabulary, manifest.facts["text_bytes"])
        report = sample.measure(Tokenizer(model, vocabulary.lower_case))
    return _finish(plan, work, model, sample, report)


def shares_for(train_mb: float, text_bytes: int) -> SampleShares:
    """Return the shares for so much text to train on, and up to `REPORT_MB` aside to measure on.

    Where all is trained on, there is none aside, and some of it is measured on too.
    """
    train = sample_share(train_mb, text_bytes) if train_mb else 0.0
    measured = sample_share(REPORT_MB, text_bytes)
    return SampleShares(train, measured if train == 1 else min(measured, 1 - train))


def sample_share(sample_mb: float, text_bytes: int) -> float:
    """Return the largest of 1, 1/2, 1/4, ... that is at most ``sample_mb`` of the text."""
    share = 1.0
    while share * text_bytes > sample_mb * 1e6:
        share /= 2
    return share


class Sample:
    """The documents of a corpus that a vocabulary is trained on, and those it is measured on.

    Args:
        corpus: URI of its manifest.
        vocabulary: settings of the stage.
        shares: how many of the documents.
        scratch: a folder for passing files.
    """

    def __init__(
        self, corpus: str, vocabulary: VocabularySettings, shares: SampleShares, scratch: str
    ) -> None:
        self.corpus_folder = corpus.rpartition("/")[0]
        self.vocabulary = vocabulary
        self.shares = shares
        self.scratch = scratch
        self.counts: Counter[str] = Counter()
        self._files: list[dict[str, str]] = []

    @property
    def notes(self) -> str:
        """The folder of the progress's notes."""
        return storage.join(self.scratch, "progress")

    def draw(self, corpus: Manifest) -> None:
        """Find the documents and write their sentences, normalised, to passing files.

        Raises:
            VocabularyError: there is none to train on.
        """
        shards = corpus.shards_of("documents")
        total_bytes = sum(shard.num_bytes for shard in shards)
        progress = Progress(f"{STAGE}: sampling", self.notes, total_bytes)
        transform = SampleDocuments(self)
        numbered = sorted(enumerate(shards), key=lambda each: -each[1].num_bytes)
        reports = run_pipeline(transform.expand, numbered, self.scratch, progress)
        self._files = [report["files"] for report in reports]
        for report in reports:
            self.counts.update(report["counts"])
        self._check()

    def _check(self) -> None:
        if not self.shares.train or self.counts["sentences_kept"]:
            return
        left_out = {reason: n for reason, n in self.counts.items() if n and reason in _LEFT_OUT}
        raise VocabularyError(
            f"there is no sentence to train on: {self.counts[_TRAIN]} of "
            f"{self.counts['documents']} documents are in the sample of vocabulary.sample_mb = "
            f"{self.vocabulary.sample_mb:g} MB, and their sentences left out are {left_out}. "
            "Raise vocabulary.sample_mb, or give more text."
        )

    def sentences(self) -> Iterator[str]:
        """Yield the sentences to train on, in an order that the corpus's shards don't change."""
        for document in self._documents(_TRAIN):
            yield from document

    def measure(self, tokenizer: Tokenizer) -> VocabularyReport:
        """Return how well ``tokenizer`` fits the documents aside, or if none is, those trained."""
        use = _MEASURE if self.counts[_MEASURE] else _TRAIN
        seen = use == _TRAIN or self.shares.train == 1
        return measure(tokenizer, self._documents(use), seen)

    def _documents(self, use: str) -> Iterator[list[str]]:
        lines = [
            line
            for files in self._files
            if use in files
            for line in storage.read_bytes(files[use]).decode().split("\n")
            if line
        ]
        # By position and then by text: each line begins with sixteen digits of the position.
        lines.sort(reverse=True)
        while lines:
            yield lines.pop().split("\t")[1:]


class SampleDocuments(beam.PTransform):
    """PCollection[(number, Shard)] -> PCollection[(number, names and counts of its sample)]."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample

    def expand(
        self, shards: PCollection[tuple[int, Shard]]
    ) -> PCollection[tuple[int, dict[str, Any]]]:
        """Write the sampled documents' sentences, normalised, a document a line."""
        return shards | "Sample" >> steps.each(_sample_shard, self.sample)


def _sample_shard(numbered: tuple[int, Shard], sample: Sample) -> tuple[int, dict[str, Any]]:
    number, shard = numbered
    check_shard(shard, sample.corpus_folder)
    table = read_arrow(storage.join(sample.corpus_folder, shard.path))
    counts: Counter[str] = Counter(documents=table.num_rows)
    lines: dict[str, list[str]] = {}
    for position, uses, text in _drawn(table, sample):
        counts.update(uses)
        lower_case = sample.vocabulary.lower_case
        sentences = [normalise_for_pieces(line, lower_case) for line in text.split("\n")]
        for use in uses:
            kept = list(_usable(sentences, counts)) if use == _TRAIN else sentences
            lines.setdefault(use, []).append("\t".join([f"{position:016x}", *kept]))
    files = {use: storage.join(sample.scratch, use, f"{number:06d}.tsv") for use in lines}
    for use, uri in files.items():
        storage.write_bytes(uri, "\n".join(lines[use]).encode())
    report_done(
        sample.notes,
        f"{number:06d}",
        num_bytes=shard.num_bytes,
        num_documents=table.num_rows,
        num_files=1,
    )
    return number, {"files": files, "counts": counts}


def _drawn(table: pa.Table, sample: Sample) -> Iterator[tuple[int, list[str], str]]:
    """Yield the position, uses and text of each sampled document; the other texts stay unread."""
    for row, document_id in enumerate(table["id"].to_pylist()):
        position = derive_seed(sample.vocabulary.seed, "vocab-sample", document_id)
        if uses := list(sample.shares.uses_of(position)):
            yield position, uses, table["text"][row].as_py()


def _usable(sentences: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Yield the sentences that SentencePiece will not pass over, and count all."""
    for sentence in sentences:
        counts["sentences"] += 1
        if not sentence or sentence.isspace():
            counts["blank"] += 1
        elif len(sentence.encode()) > MAX_SENTENCE_BYTES:
            counts["too_long"] += 1
        elif _RESERVED.search(sentence):
            counts["reserved_character"] += 1
        else:
            counts["sentences_kept"] += 1
            yield sentence


def auto_size(text_bytes: int) -> int:
    """Return how many pieces a text of so many bytes trains well: 4,000 of 16 MB.

    The number of different words grows about as the square root of the text (Heaps' law).
    """
    hundreds = round(10 * math.sqrt(text_bytes / 1e6))
    return min(max(100 * hundreds, _LEAST_AUTO_SIZE), LARGEST_AUTO_SIZE)


def train(sentences: Iterator[str], vocabulary: VocabularySettings, text_bytes: int) -> bytes:
    """Return the serialised SentencePiece model trained on ``sentences``.

    The options are the published vocabulary's, but for its sampling and its threads. Lower-casing
    is not among them: the sentences have it behind them.

    Args:
        sentences: to train on.
        vocabulary: settings; with "auto", a text that carries fewer pieces gets what it carries.
        text_bytes: size of the text that the sentences were drawn from.

    Raises:
        VocabularyError: the text is too small for ``vocabulary.vocab_size``, or the size too
            small for the text's characters.

    Source: google-research/albert, README, "Sentencepiece".
    """
    is_auto = vocabulary.vocab_size == "auto"
    size = auto_size(text_bytes) if vocabulary.vocab_size == "auto" else vocabulary.vocab_size
    log.info("%s: training %s%d pieces", STAGE, "at most " if is_auto else "", size)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=vocabulary.character_coverage,
            normalization_rule_name="nmt_nfkc",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(SPECIAL_PIECES[UNK + 1 : MASK + 1]),
            user_defined_symbols=USER_SYMBOLS,
            hard_vocab_limit=not is_auto,
            max_sentence_length=MAX_SENTENCE_BYTES,
            input_sentence_size=0,  # no sampling by SentencePiece
            num_threads=vocabulary.num_threads,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise VocabularyError(_explain(str(error), size)) from error
    return model.getvalue()


def _explain(message: str, vocab_size: int) -> str:
    asked = f"vocabulary.vocab_size is {vocab_size}"
    if largest := re.search(r"value <= (\d+)", message):
        return (
            f"{asked}, but the text carries at most {largest.group(1)} pieces. Set it to that or "
            "less, or give more text."
        )
    if required := re.search(r"required_chars.*?(\d+) vs (\d+)", message):
        return (
            f"{asked}, but the text's characters alone need {required.group(2)}. Set it higher, "
            "or lower vocabulary.character_coverage."
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return f"{asked}, but there is no text to train on. Give some."
    return f"{asked}, and SentencePiece can't train it: {message}. Give more text."


def _finish(
    plan: StagePlan, work: str, model: bytes, sample: Sample, report: VocabularyReport
) -> str:
    folder = plan.folder(work)
    tokenizer = Tokenizer(model)
    contents = {
        SPIECE_MODEL: (SPIECE_MODEL, model),
        SPIECE_VOCAB: (SPIECE_VOCAB, vocab_file(tokenizer)),
        "report.json": (REPORT, (json.dumps(report.values(), indent=1) + "\n").encode()),
        "report.md": (REPORT, report.markdown().encode()),
    }
    shards = []
    for name, (kind, content) in contents.items():
        uri = storage.join(folder, name)
        storage.write_bytes(uri, content)
        shards.append(shard_of(uri, folder, kind, tokenizer.vocab_size if kind != REPORT else 1))
    for line in report.lines():
        log.info("%s: %s", STAGE, line)
    facts = {
        "vocab_size": tokenizer.vocab_size,
        "lower_case": plan.settings["lower_case"],
        "trained": sample.shares.train > 0,
        "sample_share": sample.shares.train,
        "pieces_per_word": report.pieces_per_word,
        "unknown_piece_share": report.unknown_piece_share,
    }
    return plan.write(work, shards, _accounts(sample), facts)


def vocab_file(tokenizer: Tokenizer) -> bytes:
    """Return the pieces and their scores as SentencePiece's trainer writes them beside a model."""
    scores = (tokenizer.processor.get_score(i) for i in range(tokenizer.vocab_size))
    lines = (f"{p}\t{score:g}\n" for p, score in zip(tokenizer.pieces, scores, strict=True))
    return "".join(lines).encode()


def _accounts(sample: Sample) -> list[Account]:
    """Return what became of the documents and their sentences; nothing when none was trained on."""
    counts = sample.counts
    if not sample.shares.train:
        return []
    not_sampled = counts["documents"] - counts[_TRAIN]
    return [
        Account(
            what="documents",
            total=counts["documents"],
            kept=counts[_TRAIN],
            dropped={"not_sampled": not_sampled} if not_sampled else {},
        ),
        Account(
            what="sampled sentences",
            total=counts["sentences"],
            kept=counts["sentences_kept"],
            dropped={reason: counts[reason] for reason in _LEFT_OUT if counts[reason]},
        ),
    ]
