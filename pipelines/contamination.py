"""Which share of each downstream dev and test set the pretraining corpus has seen.

An example overlaps if one of its texts shares 13 words in a row with a document of the corpus;
case, punctuation and layout don't count. A text of fewer words can't be judged: the manifest says
how many there are. Source of the rule: Brown et al. 2020, "Language models are few-shot
learners", appendix C.

Only n-grams of the downstream sets travel to the workers, and only those found there come back.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection
from numpy.typing import NDArray

from albert_core.config import EvaluationSettings
from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import TaskError
from albert_core.stage.loaded_once import loaded_once
from albert_core.stage.manifest import (
    Account,
    Manifest,
    Shard,
    StagePlan,
    check_shard,
    digest_of,
    read_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.stage.provenance import code_digest
from albert_core.tasks.catalogue import (
    SCORED_WITH,
    TASKS,
    TaskFiles,
    find_files,
    own_files,
    read_examples,
)
from albert_core.tasks.examples import Examples, Split
from albert_core.text.arrow_files import read_arrow, write_arrow
from pipelines.config import ContaminationSettings
from pipelines.corpus.overlaps import (
    PartOverlaps,
    TestNgrams,
    ngram_hashes,
    overlaps_of,
    parts_of,
    shared_ngrams,
)
from pipelines.engine.progress import Progress, report_done
from pipelines.engine.runner import run_pipeline

STAGE = "contamination"


@dataclass(frozen=True)
class CorpusSearch:
    """Looks for the n-grams of downstream sets in the shards of a corpus."""

    corpus_folder: str
    num_words: int
    """In an n-gram."""
    scratch: str
    """A folder for passing files."""

    @property
    def wanted(self) -> str:
        """URI of the n-grams to look for."""
        return storage.join(self.scratch, "wanted.arrow")

    def run(self, corpus: Manifest, sets: Sequence[Examples]) -> list[dict[str, Any]]:
        """Search all shards; return of each its documents and where its n-grams are written."""
        texts = (text for each in sets for part in parts_of(each) for text in part.texts)
        _write_ngrams(ngram_hashes(list(texts), self.num_words), self.wanted)
        shards = corpus.shards_of("documents")
        notes = storage.join(self.scratch, "progress")
        progress = Progress(STAGE, notes, sum(shard.num_bytes for shard in shards))
        numbered = sorted(enumerate(shards), key=lambda each: -each[1].num_bytes)
        return run_pipeline(SearchCorpus(self).expand, numbered, self.scratch, progress)

    def found(self, reports: Sequence[dict[str, Any]]) -> NDArray[np.uint64]:
        """Return the n-grams found in any shard, ascending, each once."""
        arrays = [read_arrow(report["found"])["ngram"].to_numpy() for report in reports]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *arrays]))

    def search_shard(self, numbered: tuple[int, Shard]) -> tuple[int, dict[str, Any]]:
        """Write the wanted n-grams that are in one shard."""
        number, shard = numbered
        check_shard(shard, self.corpus_folder)
        texts = read_arrow(storage.join(self.corpus_folder, shard.path))["text"].to_pylist()
        uri = storage.join(self.scratch, "found", f"{number:06d}.arrow")
        _write_ngrams(shared_ngrams(texts, _look_up(self.wanted), self.num_words), uri)
        report_done(
            storage.join(self.scratch, "progress"),
            f"{number:06d}",
            num_bytes=shard.num_bytes,
            num_documents=len(texts),
            num_files=1,
        )
        return number, {"found": uri, "documents": len(texts)}


class SearchCorpus(beam.PTransform):
    """PCollection[(number, Shard)] -> PCollection[(number, what was found in it)]."""

    def __init__(self, search: CorpusSearch) -> None:
        super().__init__()
        self.search = search

    def expand(
        self, shards: PCollection[tuple[int, Shard]]
    ) -> PCollection[tuple[int, dict[str, Any]]]:
        """Look for the n-grams in each shard."""
        return shards | "Search" >> beam.Map(self.search.search_shard)


def _write_ngrams(ngrams: NDArray[np.uint64], uri: str) -> None:
    write_arrow(pa.table({"ngram": ngrams}), uri)


@loaded_once
def _look_up(uri: str) -> TestNgrams:
    return TestNgrams.of(read_arrow(uri)["ngram"].to_numpy())


OVERLAPS = "overlaps"
"""Kind of the one shard."""
SCORED_SPLITS: tuple[Split, ...] = ("dev", "test")
_SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("split", pa.string()),
        ("id", pa.string()),
        ("part", pa.string()),
        ("num_ngrams", pa.uint32()),
        ("first", pa.string()),
    ]
)
"""One text of one example that overlaps.

task        its name, e.g. "squad-1.1"
split       dev or test
id          the example's
part        text_a, text_b, paragraph, article or question
num_ngrams  n-grams of the text that stand in the corpus
first       the words of the first of them
"""

log = logging.getLogger(STAGE)


def run(
    contamination: ContaminationSettings,
    evaluation: EvaluationSettings,
    corpus: str,
    task_folder: str,
    work: str,
) -> str:
    """Find the examples of the tasks' dev and test sets that the corpus has seen.

    Args:
        contamination: settings.
        evaluation: which tasks, and the user's own.
        corpus: URI of the corpus's manifest.
        task_folder: see `albert_core.tasks.catalogue.find_files`; tasks that are not there are
            passed over.
        work: folder for all results.

    Returns:
        The manifest. Its fact ``shares`` has by task and split the share of examples that
        overlap, 0..1; ``parts`` by task, split and part of the examples how many texts there are,
        are long enough and overlap; its shard names the examples.

    Raises:
        TaskError: no task is there, or a file is malformed.
        IntegrityError: the corpus is not what its manifest says.
    """
    corpus_manifest = read_manifest(corpus)
    tasks = _tasks_in(task_folder, evaluation)
    plan = StagePlan(
        stage=STAGE,
        settings=contamination.model_dump(),
        inputs={
            "corpus": corpus_manifest.content,
            **{f"task {name}": _digest(files) for name, files in tasks.items()},
        },
        code=code_digest(__name__),
        libraries={},
        input_manifests={"corpus": corpus},
    )
    if done := plan.find(work):
        return done
    sets = {
        (name, split): read_examples(files.task, files, split)
        for name, files in tasks.items()
        for split in SCORED_SPLITS
        if split in files.splits
    }
    with scratch_folder(plan.folder(work)) as scratch:
        search = CorpusSearch(corpus.rpartition("/")[0], contamination.ngram_words, scratch)
        reports = search.run(corpus_manifest, list(sets.values()))
        shared = TestNgrams.of(search.found(reports))
    return _finish(plan, work, corpus_manifest, sets, shared, reports)


def _tasks_in(task_folder: str, evaluation: EvaluationSettings) -> dict[str, TaskFiles]:
    """Return the tasks asked for that have a dev or test split, by name."""
    known = [find_files(task, task_folder) for task in TASKS.values()] if task_folder else []
    own = [own_files(settings) for settings in evaluation.own_tasks]
    wanted = set(evaluation.tasks)
    found = {
        files.task.name: files
        for files in [*known, *own]
        if not files.splits.keys().isdisjoint(SCORED_SPLITS)
        and (not wanted or {files.task.name, SCORED_WITH.get(files.task.name)} & wanted)
    }
    if not found:
        raise TaskError(
            f"{task_folder or 'no task folder'} has the dev or test set of no task asked for. Set "
            "task_folder to a folder that holds GLUE's folders, SQuAD's files or RACE."
        )
    log.info("%s: of %s; no others are in %s", STAGE, ", ".join(found), task_folder)
    return found


def _digest(files: TaskFiles) -> str:
    """Return a digest of what is read: examples, and a task's own columns."""
    splits = [split for split in SCORED_SPLITS if split in files.splits]
    own = files.own.model_dump() if files.own else None
    return digest_of([files.digest(*splits), own])


def _finish(
    plan: StagePlan,
    work: str,
    corpus: Manifest,
    sets: dict[tuple[str, Split], Examples],
    shared: TestNgrams,
    reports: list[dict[str, Any]],
) -> str:
    num_words = plan.settings["ngram_words"]
    shares: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, Any]] = {}
    num_examples: dict[str, dict[str, int]] = {}
    rows: list[dict[str, Any]] = []
    for (name, split), examples in sets.items():
        found = [overlaps_of(part, shared, num_words) for part in parts_of(examples)]
        share = float(np.any([each.of_example for each in found], axis=0).mean())
        shares.setdefault(name, {})[split] = share
        num_examples.setdefault(name, {})[split] = len(examples)
        parts.setdefault(name, {})[split] = {each.part.name: each.counts() for each in found}
        rows += [row for each in found for row in _rows(name, split, examples.ids, each)]
        log.info("%s: %s %s: %.1f %% of %d", STAGE, name, split, 100 * share, len(examples))
    folder = plan.folder(work)
    uri = storage.join(folder, f"{OVERLAPS}.arrow")
    write_arrow(pa.Table.from_pylist(rows, schema=_SCHEMA), uri)
    documents = Account(
        what="documents searched",
        total=sum(shard.num_rows for shard in corpus.shards_of("documents")),
        kept=sum(report["documents"] for report in reports),
    )
    facts = {
        "ngram_words": num_words,
        "shares": shares,
        "parts": parts,
        "num_examples": num_examples,
    }
    return plan.write(work, [shard_of(uri, folder, OVERLAPS, len(rows))], [documents], facts)


def _rows(name: str, split: str, ids: list[str], found: PartOverlaps) -> list[dict[str, Any]]:
    """Return a row for each example whose text in this part overlaps."""
    rows = []
    for example in np.flatnonzero(found.of_example):
        overlap = found.overlaps[found.part.text_of[example]]
        assert overlap is not None
        rows.append(
            {
                "task": name,
                "split": split,
                "id": ids[example],
                "part": found.part.name,
                "num_ngrams": overlap.num_ngrams,
                "first": overlap.first,
            }
        )
    return rows


if __name__ == "__main__":
    stage_main(run)
