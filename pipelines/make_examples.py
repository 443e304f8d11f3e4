"""Stage: clean documents to example shards, globally shuffled, in Arrow.

Each corpus shard becomes a part: its examples, in the order of their places in the shuffle. Each
example shard is what all parts have between two places. Only names travel through Beam: one for
each part and, once all parts exist, one for each example shard. Parts are kept, so that after a
refresh, or after a run that was killed, only those of changed corpus shards are made.
"""

import logging
import math
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np

from albert_core.stage import manifest as manifests
from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import AccountingError, SourceError
from albert_core.stage.lineage import write_made_with
from albert_core.stage.manifest import Account, Manifest, Shard, StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import (
    EXAMPLES,
    PARTS,
    CorpusResult,
    ExamplesResult,
    VocabularyResult,
)
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import NUM_SPECIAL_IN_PAIR, Ints
from albert_core.text.tokenizer import SPIECE_MODEL, Tokenizer
from pipelines.config import ExampleSettings
from pipelines.engine import steps, work_notes
from pipelines.examples import part as example_part
from pipelines.examples.pairs import ALONE, BORROWED, NO_OTHER, TRUNCATED, length_only_accuracy
from pipelines.examples.part import HELD_OUT, KINDS, PIECES, TRAIN, PartTally
from pipelines.examples.tfrecord import tf_examples, write_tfrecord

STAGE = EXAMPLES
NOTES, PART_LIST = "notes", "parts.json"
"""In the scratch folder: the workers' notes on their progress, and the URIs of all parts."""
_ARROW_BYTES_PER_TEXT_BYTE = 0.6
"""A piece takes 2 bytes and stands for about 4 bytes of text; the rest is masks and ids."""
_NUM_PLACES = 1 << 64
"""Number of places in the shuffle."""
_NOT_IN_PARTS = {"tfrecord", "shard_mb", "compression"}
"""Settings that parts do not depend on."""
_DEFECT = (
    "This is a defect of the stage: its result must not be used. Remove the folder 'parts' of the "
    "work folder before it is run again."
)

log = logging.getLogger(STAGE)


@dataclass(frozen=True)
class ExamplePlan:
    """What every worker needs to know to make examples."""

    settings: ExampleSettings
    folder: str
    """Folder of the shards."""
    scratch: str
    """Folder with `NOTES` and `PART_LIST`."""
    vocab_folder: str
    tokenizer_settings: tuple[bool, ...]
    """Arguments of `Tokenizer.load`."""
    num_shards: dict[str, int]
    """Kind -> number of shards."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; each process reads it once."""
        return example_part.load_tokenizer(self.vocab_folder, *self.tokenizer_settings)

    @property
    def shards(self) -> dict[str, tuple[str, int]]:
        """Name of each shard that will be written -> its kind and number."""
        return {
            f"{kind}-{number:05d}-of-{total:05d}": (kind, number)
            for kind, total in self.num_shards.items()
            for number in range(total)
        }


def run(examples: ExampleSettings, corpus: str, vocab: str, work: str) -> str:
    """Make pretraining examples of the corpus; return their manifest.

    Raises:
        SourceError: the corpus is too small to give training and held-out examples.
        AccountingError: documents or examples are missing, or there are too many.
    """
    plan = stage_plan(examples, corpus, vocab)
    if done := plan.find(work):
        return done
    from pipelines.engine.runner import run_pipeline

    made_of, folder = read_manifest(corpus), plan.folder(work)
    parts = _parts(plan, made_of, examples, work)
    to_make = [shard.num_bytes for uri, shard in parts if not example_part.is_made(uri)]
    log.info("%s: %d of %d parts to make", STAGE, len(to_make), len(parts))
    with manifests.scratch_folder(folder) as scratch:
        num_shards = _num_shards(made_of, examples)
        example_plan = _example_plan(examples, vocab, folder, scratch, num_shards)
        progress = work_notes.Progress(STAGE, storage.join(scratch, NOTES), sum(to_make))
        to_shards = [
            steps.each("MakePart", _make_part, example_plan, corpus.rpartition("/")[0]),
            steps.gather("AllParts"),  # no shard is begun before the last part is made
            steps.each_to_many("EachShard", _each_shard, example_plan),
            steps.deal(),
            steps.each("WriteShard", _write_shard, example_plan),
        ]
        reports = run_pipeline("MakeExamples", to_shards, parts, scratch, progress)
    tally = reduce(add, (example_part.read_tally(uri) for uri, _ in parts))
    write_made_with((uri for uri, _ in parts), work, folder)
    num_documents = made_of.result_as(CorpusResult).num_documents
    return _finish(plan, work, example_plan, num_documents, reports, tally)


def stage_plan(examples: ExampleSettings, corpus: str, vocab: str) -> StagePlan:
    """Return what the examples of a corpus depend on."""
    return StagePlan(
        stage=STAGE,
        settings=examples.model_dump(),
        inputs={
            "corpus": read_manifest(corpus).content,
            "vocab": _pieces_digest(read_manifest(vocab)),
        },
        code=code_digest(__name__),
        libraries=library_versions("numpy", "pyarrow", "sentencepiece"),
        input_manifests={"corpus": corpus, "vocab": vocab},
    )


def _pieces_digest(vocab: Manifest) -> str:
    """Return a digest of the model and the normalisation, without the vocabulary's report."""
    [model] = vocab.shards_of(SPIECE_MODEL)
    result = vocab.result_as(VocabularyResult)
    return manifests.digest_of([model.sha256, result.lower_case, result.keep_accents])


def _example_plan(
    examples: ExampleSettings, vocab: str, folder: str, scratch: str, num_shards: dict[str, int]
) -> ExamplePlan:
    """Return the plan of shards in ``folder``, after checking the vocabulary's files."""
    manifest, vocab_folder = read_manifest(vocab), vocab.rpartition("/")[0]
    result = manifest.result_as(VocabularyResult)
    for shard in manifest.shards:
        manifests.check_shard(shard, vocab_folder)
    how = result.tokenizer_options(examples.fidelity)
    return ExamplePlan(examples, folder, scratch, vocab_folder, how, num_shards)


def _parts(
    plan: StagePlan, corpus: Manifest, settings: ExampleSettings, work: str
) -> list[tuple[str, Shard]]:
    """Return where the part of each corpus shard is or will be, and that shard; largest first."""
    common = [
        settings.model_dump(exclude=_NOT_IN_PARTS),
        plan.inputs["vocab"],
        code_digest(example_part.__name__),
        plan.libraries,
    ]

    def place(shard: Shard) -> str:
        name = manifests.digest_of([shard.sha256, *common])[:32]
        return storage.join(work, PARTS, f"{name}.arrow")

    shards = sorted(corpus.shards_of("documents"), key=lambda shard: -shard.num_bytes)
    return [(place(shard), shard) for shard in shards]


def _num_shards(corpus: Manifest, settings: ExampleSettings) -> dict[str, int]:
    text_bytes = corpus.result_as(CorpusResult).text_bytes
    per_copy = text_bytes * _ARROW_BYTES_PER_TEXT_BYTE / (settings.shard_mb * 1e6)
    held_out = per_copy * settings.held_out_share
    return {
        TRAIN: math.ceil((per_copy - held_out) * settings.dupe_factor),
        HELD_OUT: math.ceil(held_out),
    }


def _make_part(part: tuple[str, Shard], plan: ExamplePlan, corpus_folder: str) -> str:
    """Make one part, unless it exists undamaged; return its URI."""
    (uri, shard), notes = part, storage.join(plan.scratch, NOTES)
    is_made = example_part.is_made(uri)
    if is_made and (damaged := example_part.damage(uri)):
        work_notes.warn(notes, f"{damaged}; the part is made again")
        is_made = False
    if not is_made:
        manifests.check_shard(shard, corpus_folder)
        documents = read_arrow(storage.join(corpus_folder, shard.path))
        example_part.write_part(documents, uri, plan.settings, plan.tokenizer)
        done = {"num_bytes": shard.num_bytes, "num_documents": documents.num_rows, "num_files": 1}
        work_notes.report_done(notes, uri.rpartition("/")[2], **done)
    for account in _accounts_of(example_part.read_tally(uri).counts):
        steps.count(STAGE, account)
    return uri


def _each_shard(parts: list[str], plan: ExamplePlan) -> list[str]:
    """Write the list of all parts once; return the names of the shards."""
    example_part.write_part_list(parts, storage.join(plan.scratch, PART_LIST))
    return list(plan.shards)


def _write_shard(name: str, plan: ExamplePlan) -> tuple[str, dict[str, Any]]:
    settings = plan.settings
    kind, number = plan.shards[name]
    total = plan.num_shards[kind]
    low, high = (-(-_NUM_PLACES * k // total) for k in (number, number + 1))
    parts = example_part.read_part_list(storage.join(plan.scratch, PART_LIST))
    slices = (example_part.rows_between(part, kind, low, high - 1) for part in parts)
    batches = list(chain.from_iterable(slices))
    rows = example_part.merged(batches, example_part.example_schema(settings))
    uri = storage.join(plan.folder, name)
    files = {f"{uri}.arrow": kind}
    write_arrow(rows, f"{uri}.arrow", settings.compression)
    if settings.tfrecord:
        sizes = settings.max_seq_length, settings.max_predictions
        write_tfrecord(tf_examples(rows, *sizes, plan.tokenizer.starts_word), f"{uri}.tfrecord")
        files[f"{uri}.tfrecord"] = f"{kind}_tfrecord"
    shards = [
        manifests.shard_of(file, plan.folder, kind_of_file, rows.num_rows)
        for file, kind_of_file in files.items()
    ]
    labels = rows["masked_lm_labels"].combine_chunks().values.to_numpy()
    report = {
        "shards": [shard.model_dump() for shard in shards],
        "num_pieces": len(rows["input_ids"].combine_chunks().values),
        "num_predictions": len(labels),
        "num_labelled": int(rows["sentence_order_label"].to_numpy().sum()),
    }
    if kind == HELD_OUT:
        report["labels"] = np.bincount(labels, minlength=plan.tokenizer.vocab_size).tolist()
    return name, report


def _check_nothing_is_lost(
    plan: ExamplePlan, shards: list[Shard], equations: list[tuple[str, int, int]]
) -> None:
    """Raise AccountingError unless all files were written and each expected number was found."""
    endings = ("arrow", "tfrecord") if plan.settings.tfrecord else ("arrow",)
    expected = Counter(f"{name}.{ending}" for name in plan.shards for ending in endings)
    found = Counter(shard.path for shard in shards)
    if found != expected:
        raise AccountingError(
            f"expected {expected.total()} files of examples, found {found.total()}: missing "
            f"{sorted((expected - found).elements())[:5]}, too many "
            f"{sorted((found - expected).elements())[:5]}. {_DEFECT}"
        )
    for what, num_expected, num_found in equations:
        if num_found != num_expected:
            raise AccountingError(
                f"expected {num_expected:,} {what}, found {num_found:,}. {_DEFECT}"
            )


def _finish(
    plan: StagePlan,
    work: str,
    example_plan: ExamplePlan,
    num_documents: int,
    reports: list[dict[str, Any]],
    tally: PartTally,
) -> str:
    """Check that nothing was lost, write the manifest and return its URI.

    Args:
        plan: plan of the stage.
        work: folder for all results.
        example_plan: plan by which the shards were made.
        num_documents: documents that the parts must have.
        reports: reports on all shards, from `_write_shard`.
        tally: sum over all parts.

    Raises:
        SourceError: there are no training or no held-out examples.
        AccountingError: documents or examples are missing, or there are too many.
    """
    shards = [Shard(**shard) for report in reports for shard in report["shards"]]
    counts, accounts = tally.counts, _accounts_of(tally.counts)
    rows = {kind: sum(s.num_rows for s in shards if s.kind == kind) for kind in KINDS}
    num_rows = sum(rows.values())
    num_pieces = sum(report["num_pieces"] for report in reports)
    equations = [
        ("documents", num_documents, counts["documents"]),
        *((f"{kind} examples", tally.num_rows(kind), rows[kind]) for kind in KINDS),
        ("pieces", accounts[1].kept + NUM_SPECIAL_IN_PAIR * num_rows, num_pieces),
    ]
    _check_nothing_is_lost(example_plan, shards, equations)
    if not all(rows.values()):
        raise SourceError(
            f"the corpus gives {rows[TRAIN]} training and {rows[HELD_OUT]} held-out examples from "
            f"{counts['documents']} documents; both must be at least 1. Give more text, or raise "
            "examples.held_out_share."
        )
    if counts[NO_OTHER]:
        log.warning(
            "%s: %d pairs were to have a segment b from another document, but their shard of the "
            "corpus has no other that is held out, or that is trained on, like theirs. They keep "
            "their own next segment and the label of it, so next sentence accuracy is too high. "
            "Raise examples.held_out_share, or cut long documents.",
            *(STAGE, counts[NO_OTHER]),
        )
    settings = ExampleSettings(**plan.settings)
    labels = np.sum([r["labels"] for r in reports if "labels" in r], axis=0)
    result = ExamplesResult(
        **settings.model_dump(include={"objective", "fidelity", "max_seq_length"}),
        max_predictions=settings.max_predictions,
        num_documents_held_out=counts["documents_held_out"],
        num_train=rows[TRAIN],
        num_held_out=rows[HELD_OUT],
        num_pieces_borrowed=counts[BORROWED],
        num_pairs_without_other_document=counts[NO_OTHER],
        num_predictions=sum(report["num_predictions"] for report in reports),
        swapped_share=sum(report["num_labelled"] for report in reports) / num_rows,
        padding_share=1 - num_pieces / (num_rows * settings.max_seq_length),
        unigram_nats=unigram_nats(tally.unigrams, labels),
        length_only_accuracy=length_only_accuracy(*tally.pair_lengths),
        vocab_size=len(tally.unigrams),
    )
    return plan.write(work, shards, accounts, result)


def _accounts_of(counts: Counter[str]) -> list[Account]:
    """Return what became of the documents and of their pieces."""
    without_pair = counts["documents_without_pair"]
    # Text borrowed from another document is in examples of its own document too.
    num_pieces = counts["pieces"] + counts[BORROWED]
    dropped = +Counter(last_sentence_alone=counts[ALONE], truncated=counts[TRUNCATED])
    with_pair = counts["documents"] - without_pair
    no_pair = +Counter(no_two_sentences=without_pair)
    kept = num_pieces - dropped.total()
    return [
        Account(what="documents", total=counts["documents"], kept=with_pair, dropped=no_pair),
        Account(what=PIECES, total=num_pieces, kept=kept, dropped=dropped),
    ]


def unigram_nats(train_counts: Ints, label_counts: Ints) -> float:
    """Return the loss, in nats per prediction, of guessing by piece frequency alone.

    Args:
        train_counts: (V,) how often each piece stands in the training documents.
        label_counts: (V,) how often each piece is to be predicted in the held-out examples.

    Returns:
        Cross-entropy of the labels under the training frequencies, each raised by 1.
    """
    probabilities = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    return float(-(label_counts * np.log(probabilities)).sum() / label_counts.sum())


if __name__ == "__main__":
    stage_main(run)
