"""Stage 2: sampled sentences to a SentencePiece vocabulary with ALBERT's special pieces.

SentencePiece's own sampling is not reproducible, so documents are sampled here, by the hash of
their ids; and its result depends on its number of threads, so that is a setting.
"""

import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import sentencepiece
from apache_beam.pvalue import PCollection

from albert_core.contract import storage
from albert_core.contract.arrow_files import read_arrow
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import VocabularyError
from albert_core.contract.manifest import (
    Account,
    Shard,
    StagePlan,
    check_shard,
    read_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.contract.records import MASK, PAD, SPECIAL_PIECES, UNK
from albert_core.contract.seeds import share_of
from albert_core.contract.stage_command import stage_main
from albert_core.contract.tokenizer import SPIECE_MODEL, Tokenizer, normalise_for_pieces
from pipelines.config import VocabularySettings
from pipelines.engine import Progress, run_pipeline

STAGE = "vocab"
SPIECE_VOCAB = "spiece.vocab"
USER_SYMBOLS = ["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"]
"""Pieces that are never part of another one. Source: REFERENCE.md B.3."""
MAX_SENTENCE_BYTES = 1 << 16
"""SentencePiece passes over longer lines without a word, so they are counted here."""

log = logging.getLogger(STAGE)


def run(vocabulary: VocabularySettings, corpus: str, work: str) -> str:
    """Train the vocabulary on the corpus; return its manifest.

    Raises:
        VocabularyError: the text cannot carry a vocabulary of this size.
    """
    corpus_manifest = read_manifest(corpus)
    plan = StagePlan(
        stage=STAGE,
        settings=vocabulary.model_dump(),
        inputs={"corpus": corpus_manifest.content},
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece"),
        input_manifests={"corpus": corpus},
    )
    if done := plan.find(work):
        return done
    shards = corpus_manifest.shards_of("documents")
    share = min(1.0, vocabulary.sample_mb * 1e6 / corpus_manifest.facts["text_bytes"])
    with scratch_folder(plan.folder(work)) as scratch:
        sample = storage.join(scratch, "sample")
        progress = Progress(f"{STAGE}: shards sampled", sample, len(shards))
        transform = SampleSentences(corpus.rpartition("/")[0], vocabulary, share, scratch)
        reports = run_pipeline(transform.expand, list(enumerate(shards)), scratch, progress)
        model = train(_lines(report["uri"] for report in reports), vocabulary)
    return _finish(plan, work, model, reports, share)


class SampleSentences(beam.PTransform):
    """PCollection[(number, Shard)] -> PCollection[(number, report of its sampled sentences)]."""

    def __init__(
        self, folder: str, vocabulary: VocabularySettings, share: float, scratch: str
    ) -> None:
        super().__init__()
        self.folder = folder
        self.vocabulary = vocabulary
        self.share = share
        self.scratch = scratch

    def expand(
        self, shards: PCollection[tuple[int, Shard]]
    ) -> PCollection[tuple[int, dict[str, Any]]]:
        """Write the sampled documents' sentences, normalised, one a line."""
        return shards | "Sample" >> beam.Map(
            _sample_shard, self.folder, self.vocabulary, self.share, self.scratch
        )


def _sample_shard(
    numbered: tuple[int, Shard],
    folder: str,
    vocabulary: VocabularySettings,
    share: float,
    scratch: str,
) -> tuple[int, dict[str, Any]]:
    number, shard = numbered
    check_shard(shard, folder)
    table = read_arrow(storage.join(folder, shard.path))
    sampled, num_too_long, num_sentences = io.StringIO(), 0, 0
    for document_id, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
        if share_of(vocabulary.seed, "vocab-sample", document_id) >= share:
            continue
        for sentence in text.split("\n"):
            line = normalise_for_pieces(sentence, vocabulary.lower_case)
            num_sentences += 1
            if len(line.encode()) <= MAX_SENTENCE_BYTES:
                sampled.write(line + "\n")
            else:
                num_too_long += 1
    uri = storage.join(scratch, "sample", f"{number:05d}.txt")
    storage.write_bytes(uri, sampled.getvalue().encode())
    return number, {"uri": uri, "num_sentences": num_sentences, "num_too_long": num_too_long}


def _lines(uris: Iterator[str]) -> Iterator[str]:
    for uri in uris:
        yield from storage.read_bytes(uri).decode().splitlines()


def train(sentences: Iterator[str], vocabulary: VocabularySettings) -> bytes:
    """Return the serialised SentencePiece model trained on ``sentences``.

    Raises:
        VocabularyError: the text is too small for ``vocabulary.vocab_size``, or the size too
            small for the text's characters.

    Source: REFERENCE.md B.3.
    """
    log.info("%s: training %d pieces", STAGE, vocabulary.vocab_size)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            model_type="unigram",
            vocab_size=vocabulary.vocab_size,
            character_coverage=vocabulary.character_coverage,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(SPECIAL_PIECES[UNK + 1 : MASK + 1]),
            user_defined_symbols=USER_SYMBOLS,
            max_sentence_length=MAX_SENTENCE_BYTES,
            num_threads=vocabulary.num_threads,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise VocabularyError(_explain(str(error), vocabulary)) from error
    return model.getvalue()


def _explain(message: str, vocabulary: VocabularySettings) -> str:
    asked = f"vocabulary.vocab_size is {vocabulary.vocab_size}"
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
    return f"{asked}, and SentencePiece can't train it: {message}. Give more text."


def _finish(
    plan: StagePlan, work: str, model: bytes, reports: list[dict[str, Any]], share: float
) -> str:
    folder = plan.folder(work)
    tokenizer = Tokenizer(model)
    scores = (tokenizer.processor.get_score(i) for i in range(tokenizer.vocab_size))
    vocab = "".join(
        f"{piece}\t{score:g}\n" for piece, score in zip(tokenizer.pieces, scores, strict=True)
    )
    shards = []
    for name, content in ((SPIECE_MODEL, model), (SPIECE_VOCAB, vocab.encode())):
        uri = storage.join(folder, name)
        storage.write_bytes(uri, content)
        shards.append(shard_of(uri, folder, name, tokenizer.vocab_size))
    total = sum(report["num_sentences"] for report in reports)
    too_long = sum(report["num_too_long"] for report in reports)
    sentences = Account(
        what="sampled sentences",
        total=total,
        kept=total - too_long,
        dropped={"too_long": too_long} if too_long else {},
    )
    facts = {
        "vocab_size": tokenizer.vocab_size,
        "lower_case": plan.settings["lower_case"],
        "sample_share": share,
    }
    return plan.write(work, shards, [sentences], facts)


if __name__ == "__main__":
    stage_main(run)
