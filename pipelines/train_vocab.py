"""Stage: a clean corpus to a SentencePiece vocabulary with ALBERT's special pieces.

It depends on the order of the sentences, which is that of `vocab_sample`, and on the number of
threads, which is a setting.

Training holds some twenty bytes for each byte of the sample: 2 GB for 100 MB.
"""

import hashlib
import io
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece

from albert_core.stage import manifest, storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import IntegrityError, VocabularyError
from albert_core.stage.lineage import place_in
from albert_core.stage.manifest import MANIFEST, Manifest, StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import KEPT_VOCAB, VOCAB, CorpusResult, VocabularyResult
from albert_core.text.records import MASK, MAX_VOCAB_SIZE, NUM_SPECIAL, PAD, SPECIAL_PIECES, UNK
from albert_core.text.tokenizer import SPIECE_MODEL, WORD_MARK, Tokenizer
from pipelines.config import LARGEST_AUTO_SIZE, VocabularySettings
from pipelines.corpus import cut_by_size
from pipelines.vocab_sample import (
    CHARACTERS,
    MARKS_LOST,
    MAX_SENTENCE_BYTES,
    MEASURE,
    TRAIN,
    Sampling,
    accounts_of,
    count_strata,
    documents_of,
    require_sentences,
    sample_shard,
    sum_of,
)

STAGE = VOCAB
SPIECE_VOCAB = "spiece.vocab"
REPORT = "vocab_report"
"""Kind of the report's file."""
USER_SYMBOLS = ["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"]
"""Pieces that are never part of another one. Given as a list: in the reference's flag, which is
CSV, SentencePiece 0.2.3 reads the quote as the start of a field. Source: google-research/albert,
README, "Sentencepiece"."""
_LEAST_AUTO_SIZE = 1_000
_MANY_MARKS = 0.002
"""Share of a text's characters. Hindi has 4 %, Japanese and Thai 5 to 10 %."""
_MANY_UNKNOWN, _TOO_MANY_UNKNOWN = 0.01, 0.1
"""Shares of unknown characters above which there is a warning, and an error."""
_REQUIRED = re.compile(r"required_chars.*?\d+ vs (\d+)")
"""The part of SentencePiece's message with the number of pieces that the characters need."""
NUM_LISTED = 12
"""Number of unknown characters that a report names."""
_LINES_PER_BATCH = 2000
_MORE_PIECES, _MORE_UNKNOWN = 1.25, 0.001
"""A vocabulary does not fit if its pieces per word grew by this factor, or the share of unknown
characters by this much. One of 8,000 pieces trained on 2.5 MB of Wikipedia has 1.10 to 1.13 times
the pieces on other articles and novels, with 0.000 to 0.013 % more unknown; 2.02 and 2.31 times on
German and on source code, with 0.6 and 1.7 % more."""

log = logging.getLogger(STAGE)


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


def run(vocabulary: VocabularySettings, corpus: str, work: str) -> str:
    """Make the corpus's vocabulary, or take the one given or kept; return its manifest.

    Raises:
        IntegrityError: the model that is kept is not the one that was written.
        VocabularyError: the text cannot carry a vocabulary of this size, or the model given is
            not one of ALBERT's of this size.
    """
    model = given_model(vocabulary)
    plan = _plan(vocabulary, corpus, model, work)
    if done := plan.find(work):
        return done
    from pipelines.engine.runner import each_shard

    kept = storage.join(work, plan.settings[KEPT_VOCAB]) if KEPT_VOCAB in plan.settings else ""
    if kept:
        log.info("%s: keeping %s; vocabulary.refresh = train makes another", STAGE, kept)
        [shard] = read_manifest(storage.join(kept, MANIFEST)).shards_of(SPIECE_MODEL)
        model = storage.read_bytes(manifest.checked(storage.join(kept, shard.path)))
    text_bytes = read_manifest(corpus).result_as(CorpusResult).text_bytes
    with manifest.scratch_folder(plan.folder(work)) as scratch:
        sampling = Sampling(vocabulary, text_bytes, scratch, train=not model)
        if 0 < sampling.share < 1:
            what = f"{STAGE}: counting scripts"
            counted = each_shard(count_strata, sampling, corpus=corpus, what=what, scratch=scratch)
            sampling = replace(sampling, sizes=sum_of(counted))
        what = f"{STAGE}: sampling"
        reports = each_shard(sample_shard, sampling, corpus=corpus, what=what, scratch=scratch)
        made = _train_on_samples(reports, sampling, plan, work, model)
    if kept and (misfit := describe_misfit(_read_report(kept), _read_report(plan.folder(work)))):
        log.warning(
            "%s: the vocabulary that was kept, %s, no longer fits: %s. Set vocabulary.refresh = "
            "train for another; a run that goes on needs the one it began with",
            STAGE,
            kept,
            misfit,
        )
    return made


def find_done(vocabulary: VocabularySettings, corpus: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan(vocabulary, corpus, given_model(vocabulary), work).done(work)


def _plan(vocabulary: VocabularySettings, corpus: str, given: bytes | None, work: str) -> StagePlan:
    """Return the plan to train a vocabulary, or to take over one.

    Which one is kept is a part of the plan, so of the key. What was trained on this very text
    stays its vocabulary.
    """
    made_of = read_manifest(corpus)
    digests = {"model": hashlib.sha256(given).hexdigest()} if given else {}
    plan = StagePlan(
        stage=STAGE,
        settings=vocabulary.of_result,
        inputs={"corpus": made_of.content, **digests},
        code=code_digest(__name__),
        libraries=library_versions("sentencepiece"),
        input_manifests={"corpus": corpus},
    )
    if given or vocabulary.refresh == "train" or plan.done(work):
        return plan
    trained = _trained_before(vocabulary, made_of, work)
    if trained is None:
        return plan
    [model] = trained.shards_of(SPIECE_MODEL)
    settings = plan.settings | {KEPT_VOCAB: f"{STAGE}/{trained.key}"}
    return replace(plan, settings=settings, inputs=plan.inputs | {"model": model.sha256})


def _trained_before(vocabulary: VocabularySettings, corpus: Manifest, work: str) -> Manifest | None:
    """Return the vocabulary that was trained or kept last of this source with these settings."""
    source = corpus.result_as(CorpusResult).source

    def is_of_this_recipe(made: Manifest) -> bool:
        settings = {name: value for name, value in made.settings.items() if name != KEPT_VOCAB}
        uri = storage.join(work, place_in(made.input_manifests["corpus"]), MANIFEST)
        return (
            settings == vocabulary.of_result
            and storage.exists(uri)
            and read_manifest(uri).result_as(CorpusResult).source == source
        )

    newest = manifest.newest_manifest(storage.join(work, STAGE), is_of_this_recipe)
    if newest is None or KEPT_VOCAB not in newest.settings:
        return newest
    return read_manifest(storage.join(work, newest.settings[KEPT_VOCAB], MANIFEST))


def _read_report(folder: str) -> dict[str, Any]:
    uri = manifest.checked(storage.join(folder, "report.json"))
    report: dict[str, Any] = json.loads(storage.read_bytes(uri))
    return report


def given_model(vocabulary: VocabularySettings) -> bytes | None:
    """Return and check the model that the settings name; None if one is to be trained.

    Raises:
        VocabularyError: it can't be read, or has other special pieces, too many or another size.
    """
    uri = vocabulary.model
    if not uri:
        return None
    try:
        model = storage.read_bytes(uri)
        vocab_size = Tokenizer(model).vocab_size
    except (OSError, IntegrityError) as error:
        raise VocabularyError(
            f"vocabulary.model is {uri!r}, which can't be used: {error}"
        ) from error
    if vocab_size > MAX_VOCAB_SIZE:
        raise VocabularyError(
            f"vocabulary.model, {uri}, has {vocab_size} pieces, but their ids are stored in two "
            f"bytes: give a model of at most {MAX_VOCAB_SIZE}, or none."
        )
    if vocabulary.vocab_size not in (vocab_size, "auto"):
        raise VocabularyError(
            f"vocabulary.vocab_size is {vocabulary.vocab_size}, but vocabulary.model, {uri}, has "
            f"{vocab_size} pieces. Set vocabulary.vocab_size={vocab_size}, or give no model."
        )
    return model


def given_tokenizer(vocabulary: VocabularySettings) -> Tokenizer | None:
    """Return the vocabulary that the settings name; None if one is to be trained.

    Raises:
        VocabularyError: see `given_model`.
    """
    model = given_model(vocabulary)
    if model is None:
        return None
    return Tokenizer(model, vocabulary.lower_case, keep_accents=vocabulary.keep_accents)


def _train_on_samples(
    reports: list[dict[str, Any]],
    sampling: Sampling,
    plan: StagePlan,
    work: str,
    given: bytes | None,
) -> str:
    """Train, or take the model given, and measure on what `sample_shard` has written.

    Raises:
        VocabularyError: the text cannot carry a vocabulary of this size.
    """
    vocabulary, share = sampling.vocabulary, reports[0]["share"]
    counts = sum((Counter(report["counts"]) for report in reports), Counter[str]())
    files = [report["files"] for report in reports]
    if not given:
        require_sentences(counts, vocabulary)
    model = given or train(
        lambda: chain.from_iterable(documents_of(files, TRAIN)), vocabulary, sampling.text_bytes
    )
    marks_lost = counts[MARKS_LOST] / max(1, counts[CHARACTERS])
    if marks_lost > _MANY_MARKS:
        log.warning(
            "%s: %.1f %% of the text's characters are marks that its scripts cannot do without, "
            "and pieces are made without them. Set vocabulary.keep_accents = true",
            STAGE,
            100 * marks_lost,
        )
    use = MEASURE if counts[MEASURE] else TRAIN
    report = measure(
        Tokenizer(model, vocabulary.lower_case, keep_accents=vocabulary.keep_accents),
        documents_of(files, use),
        seen_in_training=bool(given) or use == TRAIN or share == 1,
    )
    _require_known(report, trained=not given)
    return _write(plan, work, model, share, counts, report)


def _require_known(report: VocabularyReport, trained: bool) -> None:
    """Warn if the vocabulary lacks characters of the text; refuse a trained one that lacks many."""
    unknown = 1 - report.known_character_share
    if unknown <= _MANY_UNKNOWN:
        return
    message = (
        f"{unknown:.1%} of the text's characters are unknown to the vocabulary, of which the model "
        "will learn nothing. Raise vocabulary.sample_mb, vocabulary.vocab_size or "
        "vocabulary.character_coverage"
    )
    if trained and unknown > _TOO_MANY_UNKNOWN:
        raise VocabularyError(f"{message}.")
    log.warning("%s: %s", STAGE, message)


def auto_size(text_bytes: int) -> int:
    """Return the number of pieces that a text of this size can train well: 4,000 for 16 MB.

    The number of different words grows about as the square root of the text (Heaps' law).
    """
    hundreds = round(10 * math.sqrt(text_bytes / 1e6))
    return min(max(100 * hundreds, _LEAST_AUTO_SIZE), LARGEST_AUTO_SIZE)


def train(
    sentences: Callable[[], Iterator[str]], vocabulary: VocabularySettings, text_bytes: int
) -> bytes:
    """Return the serialised SentencePiece model trained on ``sentences``.

    The options are those of the published vocabulary, except for sampling and threads.
    Lower-casing is not among them: the sentences are lower-cased already.

    Args:
        sentences: returns what to train on.
        vocabulary: settings; with "auto", a text that carries fewer pieces gets what it carries,
            and one of more characters than pieces gets a quarter more pieces than characters.
        text_bytes: size of the text that the sentences were drawn from.

    Raises:
        VocabularyError: the text is too small for ``vocabulary.vocab_size``, or the size too
            small for the text's characters.

    Source: google-research/albert, README, "Sentencepiece".
    """
    if vocabulary.vocab_size != "auto":
        return _train(sentences(), vocabulary, vocabulary.vocab_size)
    size = auto_size(text_bytes)
    try:
        return _train(sentences(), vocabulary, size)
    except VocabularyError as error:
        required = _REQUIRED.search(str(error.__cause__))
        larger = int(required[1]) * 5 // 4 if required else 0
        if not size < larger <= LARGEST_AUTO_SIZE:
            raise
    return _train(sentences(), vocabulary, larger)


def _train(sentences: Iterator[str], vocabulary: VocabularySettings, size: int) -> bytes:
    is_auto = vocabulary.vocab_size == "auto"
    log.info("%s: training %s%s pieces", STAGE, "at most " if is_auto else "", f"{size:,}")
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
    if required := _REQUIRED.search(message):
        return (
            f"{asked}, but the text's characters alone need {required.group(1)}. Set it higher, "
            "or lower vocabulary.character_coverage."
        )
    return f"{asked}, and SentencePiece can't train it: {message}. Give more text."


def _write(
    plan: StagePlan,
    work: str,
    model: bytes,
    train_share: float,
    counts: Counter[str],
    report: VocabularyReport,
) -> str:
    folder = plan.folder(work)
    tokenizer = Tokenizer(model)
    size = tokenizer.vocab_size
    contents = [
        (SPIECE_MODEL, SPIECE_MODEL, size, model),
        (SPIECE_VOCAB, SPIECE_VOCAB, size, vocab_file(tokenizer)),
        ("report.json", REPORT, 1, (json.dumps(asdict(report), indent=1) + "\n").encode()),
    ]
    shards = []
    for name, kind, num_rows, content in contents:
        uri = storage.join(folder, name)
        storage.write_bytes(uri, content)
        shards.append(manifest.shard_of(uri, folder, kind, num_rows))
    for line in report.lines():
        log.info("%s: %s", STAGE, line)
    result = VocabularyResult(
        vocab_size=size,
        lower_case=plan.settings["lower_case"],
        keep_accents=plan.settings["keep_accents"],
        trained=train_share > 0,
        sample_share=train_share,
        pieces_per_word=report.pieces_per_word,
        unknown_piece_share=report.unknown_piece_share,
    )
    return plan.write(work, shards, accounts_of(counts) if train_share else [], result)


def vocab_file(tokenizer: Tokenizer) -> bytes:
    """Return the pieces and their scores as SentencePiece's trainer writes them beside a model."""
    scores = (tokenizer.processor.get_score(i) for i in range(tokenizer.vocab_size))
    lines = (f"{p}\t{score:g}\n" for p, score in zip(tokenizer.pieces, scores, strict=True))
    return "".join(lines).encode()


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
    for some in cut_by_size(documents, len, _LINES_PER_BATCH):
        num_documents += len(some)
        batch = list(chain.from_iterable(some))
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
    """Return the ways in which a vocabulary does not fit a text; empty if it fits.

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


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


if __name__ == "__main__":
    stage_main(run)
