"""The text stages as Beam transforms, for a pipeline of one's own. See docs/engines.md.

    text | CleanDocuments() | MakeExamples(settings, vocab) | WriteExamples(settings, vocab, work)

They take and give `Document`s, which Beam users expect, and run the steps of the stages: documents
with the same ids give the same examples, and shards of the same bytes. Beam's counters have the
numbers of everything kept and dropped, under the names that manifests use.

Intermediate files stay below Beam's option ``temp_location``, a folder that all workers see. A
worker holds one group of documents at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any
from uuid import uuid4

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.pvalue import PBegin, PCollection

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import Account, StagePlan
from albert_core.stage.results import CORPUS, EXAMPLES
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import DOCUMENT_SCHEMA, Document
from albert_core.text.seeds import derive_seed
from pipelines import make_examples, source_files, train_vocab
from pipelines.clean_corpus import clean_steps
from pipelines.clean_unit import CleaningJob, Unit
from pipelines.config import CleaningSettings, ExampleSettings, SourceSettings, VocabularySettings
from pipelines.engine import steps
from pipelines.engine.steps import as_transform
from pipelines.examples import part as example_part
from pipelines.examples.part import HELD_OUT, TRAIN
from pipelines.make_examples import ExamplePlan
from pipelines.readers import Unreadable, read_documents
from pipelines.vocab_sample import Sampling, count_strata, sample_shard, sum_of

_NUM_PARTITIONS = 4
"""Partitions in which hashes of documents are exchanged."""
_MAX_BATCHES = 256
"""Most batches of file names: Dask's runner makes a task of each."""

Group = tuple[int, Iterable[Document]]


@dataclass(eq=False, repr=False)
class _Transform(beam.PTransform[Any, Any]):
    """A transform with its arguments as fields."""

    def __post_init__(self) -> None:
        super().__init__()


@dataclass(eq=False, repr=False)
class ReadDocuments(_Transform):
    """Reads the documents of files in any format: PBegin -> PCollection[Document].

    Unreadable records are counted by reason and skipped.

    Args:
        source: a file, folder or glob on any file system that fsspec knows, or several; or the
            settings that name it and say how it is read.

    Raises:
        SourceError: there is no such file.
    """

    source: str | list[str] | SourceSettings

    def expand(self, begin: PBegin) -> PCollection[Document]:
        """List the files here; the workers read ranges of them."""
        source = self.source
        if not isinstance(source, SourceSettings):
            source = SourceSettings(uri=source)
        files = source_files.files_of(source).files
        some = [files[first::_MAX_BATCHES] for first in range(min(_MAX_BATCHES, len(files)))]
        chain = [
            steps.each_to_many("Cut", _cut, source),
            steps.deal(),
            steps.each_to_many("Read", _read, source),
        ]
        return begin | "Files" >> beam.Create(some) | "Documents" >> as_transform(chain)


@dataclass(eq=False, repr=False)
class CleanDocuments(_Transform):
    """Repairs texts and drops unsuitable ones: PCollection[Document] -> PCollection[Document].

    The resulting texts have one sentence a line. Of documents with the same words, the one in the
    first group stays.

    Args:
        cleaning: settings. Those that name files, such as ``excluded_ids``, are for the stage only.
        num_groups: number of groups; each must fit into a worker's memory.

    Raises:
        ConfigError: a setting is for the stage only.
    """

    cleaning: CleaningSettings | None = None
    num_groups: int = 16

    def expand(self, documents: PCollection[Document]) -> PCollection[Document]:
        """Clean group by group as the stage does, and read the shards back."""
        cleaning = self.cleaning or CleaningSettings()
        for name in ("known_corpora", "test_texts", "excluded_ids"):
            if getattr(cleaning, name):
                raise ConfigError(
                    f"CleanDocuments can't follow cleaning.{name}, which the stage clean_corpus "
                    "prepares. Leave it out, and drop those documents before."
                )
        scratch = _scratch(documents)
        job = CleaningJob(SourceSettings(), cleaning, "", storage.join(scratch, "notes"))
        chain = [
            *_grouping(self.num_groups),
            steps.each("AsUnit", _as_unit, scratch),
            *clean_steps(job, scratch, _NUM_PARTITIONS),
            steps.each_to_many("ReadBack", _read_back, scratch),
        ]
        return documents | "Cleaned" >> as_transform(chain)


@dataclass(eq=False, repr=False)
class TrainVocabulary(_Transform):
    """Trains a SentencePiece vocabulary: PCollection[Document] -> PCollection[str].

    The result's only element is the URI of the vocabulary's manifest, which `MakeExamples` of a
    later pipeline takes. One worker trains, on a sample.

    Args:
        vocabulary: settings.
        work: folder for results; the files go to ``vocab/KEY/`` below it.
        text_bytes: approximate size of the text, which determines the share to sample.
        num_groups: number of groups; each must fit into a worker's memory.

    Raises:
        VocabularyError: the model that the settings name can't be used.
    """

    vocabulary: VocabularySettings
    work: str
    text_bytes: int
    num_groups: int = 16

    def expand(self, documents: PCollection[Document]) -> PCollection[str]:
        """Write the samples of each group, bring their names together, train."""
        scratch, work = _scratch(documents), storage.absolute(self.work)
        given = train_vocab.given_model(self.vocabulary)
        sampling = Sampling(self.vocabulary, self.text_bytes, scratch, train=not given)
        stage = train_vocab.plan_of(self.vocabulary, given, documents=uuid4().hex)
        chain = [
            *_grouping(self.num_groups),
            steps.each("Hold", _hold, sampling),
            steps.gather("Counted"),
            steps.each_to_many("Shares", _with_shares, sampling),
            steps.deal(),
            steps.each("Sample", _sample),
            steps.gather("Together"),
            steps.each("Train", train_vocab.train_on_samples, sampling, stage, work, given),
        ]
        return documents | "Trained" >> as_transform(chain)


@dataclass(eq=False, repr=False)
class MakeExamples(_Transform):
    """Makes masked segment pairs: PCollection[Document] -> PCollection[str], URIs of parts.

    A part has the examples of a group of documents in the order of the global shuffle.
    `WriteExamples` takes all parts.

    Args:
        examples: settings.
        vocab: URI of the vocabulary's manifest.
        num_groups: number of groups; each must fit into a worker's memory.
    """

    examples: ExampleSettings
    vocab: str
    num_groups: int = 16

    def expand(self, documents: PCollection[Document]) -> PCollection[str]:
        """Make the part of each group."""
        scratch = _scratch(documents)
        where = scratch, scratch
        plan = make_examples.example_plan_of(self.examples, self.vocab, *where, num_shards={})
        chain = [*_grouping(self.num_groups), steps.each("MakePart", _make_part, plan)]
        return documents | "Made" >> as_transform(chain)


@dataclass(eq=False, repr=False)
class WriteExamples(_Transform):
    """Writes shuffled shards and their manifest: PCollection[str] -> PCollection[str].

    It takes the URIs of all parts of `MakeExamples`. The result's only element is the URI of the
    manifest on which `albert_core.training.pretrain` trains; without any document there is none.

    Args:
        examples: settings given to `MakeExamples`.
        vocab: manifest given to `MakeExamples`.
        work: folder for results; the shards go to ``examples/KEY/`` below it.
        num_shards: number of shards of training examples.
        num_held_out_shards: number of shards of held-out examples.
    """

    examples: ExampleSettings
    vocab: str
    work: str
    num_shards: int = 1
    num_held_out_shards: int = 1

    def expand(self, parts: PCollection[str]) -> PCollection[str]:
        """Cut the shards out of the parts, then write what all of them have."""
        # The documents are known to this pipeline only: a result of its own each time.
        stage = make_examples.plan_of(self.examples, self.vocab, documents=uuid4().hex)
        work = storage.absolute(self.work)
        num_shards = {TRAIN: self.num_shards, HELD_OUT: self.num_held_out_shards}
        where = stage.folder(work), _scratch(parts)
        plan = make_examples.example_plan_of(self.examples, self.vocab, *where, num_shards)
        chain = [
            *make_examples.cutting_steps(plan),
            steps.gather("Together"),
            steps.each("WriteManifest", _write_manifest, stage, plan, work),
        ]
        return parts | "Written" >> as_transform(chain)


def _grouping(num_groups: int) -> list[steps.Step]:
    """Return the steps that group documents by a hash of their ids, the same on every worker."""
    return [steps.each("ById", _group_of, num_groups), steps.group("Group")]


def _scratch(collection: PCollection[Any]) -> str:
    """Return a folder of the transform's own."""
    options = collection.pipeline.options.view_as(GoogleCloudOptions)
    if not options.temp_location:
        raise ConfigError(
            "the pipeline has no temp_location. Give --temp_location, a folder that all workers "
            "see, or PipelineOptions(temp_location=...)."
        )
    return storage.join(storage.absolute(options.temp_location), f"albert-{uuid4().hex}")


def _cut(
    files: list[source_files.SourceFile], source: SourceSettings
) -> Iterator[source_files.SourceRange]:
    for file in files:
        yield from source_files.ranges_of(source_files.with_format(file, source))


def _read(part: source_files.SourceRange, source: SourceSettings) -> Iterator[Document]:
    file = part.file
    for record in read_documents(file.uri, file.name, source, file.format, part.begin, part.end):
        if isinstance(record, Unreadable):
            steps.count(
                CORPUS, Account(what="documents", total=1, kept=0, dropped={record.reason: 1})
            )
        else:
            yield record


def _group_of(document: Document, num_groups: int) -> tuple[int, Document]:
    return derive_seed(0, "group", document.id) % num_groups, document


def _in_order(documents: Iterable[Document]) -> list[Document]:
    """Return a group's documents in one order; each runner delivers them in another."""
    return sorted(documents, key=lambda document: (document.id, document.text))


def _as_unit(group: Group, scratch: str) -> Unit:
    number, documents = group
    folder = storage.join(scratch, "units", str(number))
    return Unit(number, folder, documents=_in_order(documents))


def _read_back(numbered: tuple[int, dict[str, Any]], scratch: str) -> Iterator[Document]:
    for shard in numbered[1]["shards"]:
        if shard["kind"] == "documents":
            for row in read_arrow(storage.join(scratch, shard["path"])).to_pylist():
                yield Document(**row, lines_are_sentences=True)


def _table_of(documents: Iterable[Document]) -> pa.Table:
    rows = [{"id": d.id, "text": d.text, "source": d.source} for d in _in_order(documents)]
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def _hold(group: Group, sampling: Sampling) -> tuple[int, dict[str, int]]:
    """Write the documents; they are read once the strata of all groups are counted."""
    number, documents = group
    table = _table_of(documents)
    write_arrow(table, _held(number, sampling))
    return number, count_strata(table, "", sampling)


def _held(number: int, sampling: Sampling) -> str:
    return storage.join(sampling.scratch, "held", f"{number:05d}.arrow")


def _with_shares(
    counted: list[tuple[int, dict[str, int]]], sampling: Sampling
) -> Iterator[tuple[int, Sampling]]:
    sized = replace(sampling, sizes=sum_of(sizes for _, sizes in counted))
    return ((number, sized) for number, _ in counted)


def _sample(numbered: tuple[int, Sampling]) -> dict[str, Any]:
    number, sampling = numbered
    return sample_shard(read_arrow(_held(number, sampling)), f"{number:05d}", sampling)


def _make_part(group: Group, plan: ExamplePlan) -> str:
    number, documents = group
    uri = storage.join(plan.folder, f"{number:05d}.arrow")
    example_part.write_part(_table_of(documents), uri, plan.settings, plan.tokenizer)
    for account in make_examples.accounts_of(example_part.read_tally(uri).counts):
        steps.count(EXAMPLES, account)
    return uri


def _write_manifest(
    named: list[tuple[str, dict[str, Any]]], stage: StagePlan, plan: ExamplePlan, work: str
) -> str:
    parts = example_part.read_part_list(storage.join(plan.scratch, make_examples.PART_LIST))
    tally = reduce(add, map(example_part.read_tally, parts))
    reports = [report for _, report in sorted(named, key=lambda each: each[0])]
    return make_examples.finish(stage, work, plan, tally.counts["documents"], reports, tally)
