"""Stage: the share of each downstream dev and test set that the pretraining corpus contains.

An example overlaps if one of its texts shares 13 words in a row with a document of the corpus;
case, punctuation and layout do not count. Which texts it has depends on the kind of task. If all
are shorter, the example cannot be judged: the share is of the others, and the manifest counts both.

Source: Brown et al. 2020, "Language models are few-shot learners", appendix C.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.config import EvaluationSettings
from albert_core.stage import manifest, storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import Account, StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import CONTAMINATION as STAGE
from albert_core.stage.results import ContaminationResult, PartOverlap
from albert_core.tasks import catalogue
from albert_core.tasks.catalogue import TaskFiles
from albert_core.tasks.examples import ChoiceExamples, Examples, SpanExamples, Split, TextExamples
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.records import Bools, Ints
from albert_core.text.seeds import UInt64s
from pipelines.config import ContaminationSettings
from pipelines.corpus import duplicates, overlaps
from pipelines.corpus.overlaps import NgramIndex, Overlap
from pipelines.engine import loaded_once

OVERLAPS = "overlaps"
"""Kind of the only shard."""
SCORED_SPLITS: tuple[Split, ...] = ("dev", "test")
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("task", "split", "id", "part")]
    + [("num_ngrams", pa.uint32()), ("first", pa.string())]
)
"""One text of one example that overlaps.

task        its name, e.g. "squad-1.1"
split       dev or test
id          the example's
part        text_a, text_b, paragraph, article or question
num_ngrams  n-grams of the text that the corpus contains
first       the words of the first of them
"""

log = logging.getLogger(STAGE)


@dataclass(frozen=True)
class Part:
    """One text of each of N examples; they may share texts, of which T differ."""

    name: str
    """text_a or text_b, paragraph or article, question."""
    texts: list[str]
    """T."""
    text_of: Ints
    """(N,), index into ``texts``."""


@dataclass(frozen=True)
class Found:
    """What was found of one dev or test set."""

    num_seen: int
    """Examples that overlap."""
    num_judged: int
    """Examples with a text that is long enough."""
    parts: dict[str, PartOverlap]
    rows: list[dict[str, Any]]
    """The texts that overlap, as `_SCHEMA` has them, without task and split."""


def run(
    contamination: ContaminationSettings,
    evaluation: EvaluationSettings,
    corpus: str,
    task_folder: str,
    work: str,
) -> str:
    """Find the examples of the tasks' dev and test sets that the corpus contains.

    Args:
        contamination: settings.
        evaluation: which tasks, and the user's own.
        corpus: URI of the corpus's manifest.
        task_folder: see `albert_core.tasks.catalogue.find_files`; tasks without files there are
            skipped.
        work: folder for all results.

    Returns:
        The manifest. Its result is a `ContaminationResult`; its shard names the examples.

    Raises:
        TaskError: no task has files, or a file is malformed.
        IntegrityError: the corpus is not what its manifest says.
    """
    tasks = _tasks_in(task_folder, evaluation)
    log.info("%s: of %s; no others are in %s", STAGE, ", ".join(tasks), task_folder)
    plan = stage_plan(contamination, evaluation, corpus, task_folder)
    if done := plan.find(work):
        return done
    sets = {
        (name, split): catalogue.read_examples(files, split)
        for name, files in tasks.items()
        for split in SCORED_SPLITS
        if split in files.splits
    }
    texts = (text for each in sets.values() for part in parts_of(each) for text in part.texts)
    with manifest.scratch_folder(plan.folder(work)) as scratch:
        shared, num_documents = _find_ngrams(corpus, texts, contamination.ngram_words, scratch)
    result = ContaminationResult(
        ngram_words=contamination.ngram_words, shares={}, num_judged={}, parts={}, num_examples={}
    )
    rows: list[dict[str, Any]] = []
    for (name, split), examples in sets.items():
        found = _search(examples, shared, contamination.ngram_words)
        share = _share(found.num_seen, found.num_judged)
        result.shares.setdefault(name, {})[split] = share
        result.num_judged.setdefault(name, {})[split] = found.num_judged
        result.num_examples.setdefault(name, {})[split] = len(examples)
        result.parts.setdefault(name, {})[split] = found.parts
        rows += [{"task": name, "split": split, **row} for row in found.rows]
        said = "" if share is None else f"{share:.1%} of "
        of_all = f"{said}{found.num_judged:,} of {len(examples):,} that are long enough"
        log.info("%s: %s %s: %s", STAGE, name, split, of_all)
    uri = storage.join(plan.folder(work), f"{OVERLAPS}.arrow")
    write_arrow(pa.Table.from_pylist(rows, schema=_SCHEMA), uri)
    documents = Account(
        what="documents searched",
        total=sum(shard.num_rows for shard in read_manifest(corpus).shards_of("documents")),
        kept=num_documents,
    )
    shard = manifest.shard_of(uri, plan.folder(work), OVERLAPS, len(rows))
    return plan.write(work, [shard], [documents], result)


def _search(examples: Examples, shared: NgramIndex, num_words: int) -> Found:
    """Look the texts of a set up among the n-grams that it shares with the corpus."""
    is_seen, is_judged = np.zeros((2, len(examples)), bool)
    parts, rows = dict[str, PartOverlap](), list[dict[str, Any]]()
    for part in parts_of(examples):
        found = overlaps.find_overlaps(part.texts, shared, num_words)
        is_long = _long_enough(part.texts, num_words)
        is_judged |= is_long[part.text_of]
        parts[part.name] = _counts(found, is_long)
        for number, text in enumerate(part.text_of):
            if overlap := found[text]:
                is_seen[number] = True
                rows.append({"id": examples.ids[number], "part": part.name, **asdict(overlap)})
    return Found(int(is_seen.sum()), int(is_judged.sum()), parts, rows)


def stage_plan(
    contamination: ContaminationSettings,
    evaluation: EvaluationSettings,
    corpus: str,
    task_folder: str,
) -> StagePlan:
    """Return what the overlaps depend on."""
    tasks = _tasks_in(task_folder, evaluation)
    return StagePlan(
        stage=STAGE,
        settings=contamination.model_dump(),
        inputs={
            "corpus": read_manifest(corpus).content,
            **{f"task {name}": _digest(files) for name, files in tasks.items()},
        },
        code=code_digest(__name__),
        libraries=library_versions("numpy", "pyarrow"),
        input_manifests={"corpus": corpus},
    )


def _tasks_in(task_folder: str, evaluation: EvaluationSettings) -> dict[str, TaskFiles]:
    """Return the tasks asked for that have a dev or test split, by name."""
    tasks = catalogue.TASKS.values() if task_folder else ()
    known = [catalogue.find_files(task, task_folder) for task in tasks]
    generated = catalogue.generated_tasks(task_folder)
    own = [
        catalogue.own_files(settings)
        for settings in [*generated, *evaluation.own_tasks]
        if not catalogue.absent_files(settings)
    ]
    wanted = set(evaluation.tasks)
    found = {
        files.task.name: files
        for files in [*known, *own]
        if not files.splits.keys().isdisjoint(SCORED_SPLITS)
        and (not wanted or {files.task.name, catalogue.SCORED_WITH.get(files.task.name)} & wanted)
    }
    if not found:
        raise TaskError(
            f"{task_folder or 'no task folder'} has the dev or test set of no task asked for. Set "
            "task_folder to a folder that contains GLUE's folders, SQuAD's files or RACE."
        )
    return found


def _digest(files: TaskFiles) -> str:
    """Return a digest of a task's examples and, if it is the user's own, of its columns."""
    splits = [split for split in SCORED_SPLITS if split in files.splits]
    own = files.own.model_dump() if files.own else None
    return manifest.digest_of([files.digest(*splits), own])


def _long_enough(texts: list[str], num_words: int) -> Bools:
    """Return whether each of T texts has as many words as an n-gram, bool (T,)."""
    offsets = (duplicates.hash_words(batch)[1] for batch in duplicates.batches(texts))
    return np.concatenate([np.diff(each) >= num_words for each in offsets])


def _counts(found: list[Overlap | None], is_long: Bools) -> PartOverlap:
    """Return how many texts there are, how many can be judged, and the share that overlap."""
    overlapping, long_enough = sum(each is not None for each in found), int(is_long.sum())
    return PartOverlap(
        texts=len(found),
        long_enough=long_enough,
        overlapping=overlapping,
        share=_share(overlapping, long_enough),
    )


def _share(overlapping: int, judged: int) -> float | None:
    return overlapping / judged if judged else None


def _find_ngrams(
    corpus: str, texts: Iterable[str], num_words: int, scratch: str
) -> tuple[NgramIndex, int]:
    """Return the n-grams of ``texts`` that a corpus contains, and how many documents it has.

    Args:
        corpus: URI of its manifest.
        texts: texts of the downstream sets.
        num_words: words in an n-gram.
        scratch: a folder that the workers can write to.
    """
    from pipelines.engine.runner import each_shard

    wanted = storage.join(scratch, "wanted.arrow")
    _write_ngrams(overlaps.ngram_hashes(list(texts), num_words), wanted)
    arguments = wanted, num_words, scratch
    reports = each_shard(_search_shard, *arguments, corpus=corpus, what=STAGE, scratch=scratch)
    ngrams = overlaps.distinct(_read_ngrams(report["found"]) for report in reports)
    return NgramIndex.of(ngrams), sum(report["documents"] for report in reports)


def _search_shard(
    documents: pa.Table, name: str, wanted: str, num_words: int, scratch: str
) -> dict[str, Any]:
    """Write the wanted n-grams that are in one shard."""
    texts = documents["text"].to_pylist()
    uri = storage.join(scratch, "found", f"{name}.arrow")
    _write_ngrams(overlaps.shared_ngrams(texts, _look_up(wanted), num_words), uri)
    return {"found": uri, "documents": len(texts)}


def _write_ngrams(ngrams: UInt64s, uri: str) -> None:
    write_arrow(pa.table({"ngram": ngrams}), uri)


def _read_ngrams(uri: str) -> UInt64s:
    return np.asarray(read_arrow(uri)["ngram"])


@loaded_once
def _look_up(uri: str) -> NgramIndex:
    return NgramIndex.of(_read_ngrams(uri))


def parts_of(examples: Examples) -> list[Part]:
    """Return the texts of the examples.

    A pair has both, SQuAD paragraph and question, RACE article and the question with its options.
    """
    each = np.arange(len(examples))
    if isinstance(examples, TextExamples):
        second = [] if examples.texts_b is None else [Part("text_b", examples.texts_b, each)]
        return [Part("text_a", examples.texts_a, each), *second]
    if isinstance(examples, SpanExamples):
        paragraphs = Part("paragraph", examples.paragraphs, examples.paragraph_of)
        return [paragraphs, Part("question", examples.questions, each)]
    assert isinstance(examples, ChoiceExamples)
    questions = [
        "\n".join([question, *options])
        for question, options in zip(examples.questions, examples.options, strict=True)
    ]
    articles = Part("article", examples.articles, examples.article_of)
    return [articles, Part("question", questions, each)]


if __name__ == "__main__":
    stage_main(run)
