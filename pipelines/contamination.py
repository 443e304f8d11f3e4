"""Which share of each downstream dev and test set the pretraining corpus has seen.

An example overlaps if one of its texts shares 13 words in a row with a document of the corpus;
case, punctuation and layout don't count. A text of fewer words can't be judged: the manifest says
how many there are. Source of the rule: Brown et al. 2020, "Language models are few-shot
learners", appendix C.

Only n-grams of the downstream sets travel to the workers, and only those found there come back.
"""

import logging
from typing import Any

import numpy as np
import pyarrow as pa

from albert_core.config import EvaluationSettings
from albert_core.contract import storage
from albert_core.contract.arrow_files import write_arrow
from albert_core.contract.code_version import code_digest
from albert_core.contract.errors import TaskError
from albert_core.contract.manifest import (
    Account,
    Manifest,
    StagePlan,
    digest_of,
    read_manifest,
    scratch_folder,
    shard_of,
)
from albert_core.contract.stage_command import stage_main
from albert_core.tasks.catalogue import (
    SCORED_WITH,
    TASKS,
    TaskFiles,
    find_files,
    own_files,
    read_examples,
)
from albert_core.tasks.examples import Examples, Split
from pipelines.config import ContaminationSettings
from pipelines.corpus_search import STAGE, CorpusSearch
from pipelines.decontamination import TestNgrams
from pipelines.example_overlaps import PartOverlaps, overlaps_of, parts_of

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
