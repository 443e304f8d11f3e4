"""A small acceptability task in CoLA's layout, made of the held-out documents' sentences.

Half of the sentences have two words swapped; which half, and which words, depends on the seed
and the sentence. Train and dev sentences are of different documents, and neither of documents
that the model was pretrained on.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import SourceError
from albert_core.stage.manifest import Account, StagePlan, check_shard, read_manifest, shard_of
from albert_core.stage.provenance import code_digest
from albert_core.stage.results import TaskResult
from albert_core.text.arrow_files import read_arrow
from albert_core.text.seeds import derive_seed, random_uniform, share_of
from pipelines.config import ExampleSettings, TaskSettings
from pipelines.examples.pairs import is_held_out

STAGE = "task"
TASK_FOLDER = "CoLA"
SPLITS = ("train", "dev")
ACCEPTABLE, SWAPPED = 1, 0


@dataclass(frozen=True, slots=True)
class AcceptabilityRow:
    """One row of the task."""

    split: str
    label: int
    """1 as written, 0 with two words swapped."""
    sentence: str


def run(task: TaskSettings, examples: str, corpus: str, work: str) -> str:
    """Make the task from the documents that ``examples`` held out; return its manifest.

    Raises:
        SourceError: the held-out documents have too few sentences of the lengths asked for.
    """
    plan = _plan(task, examples, corpus)
    if done := plan.find(work):
        return done
    sentences = list(_held_out_sentences(examples, corpus))
    suitable = [(name, text) for name, text in sentences if is_suitable(text, task)]
    once = {text: name for name, text in reversed(suitable)}
    rows = list(acceptability_rows(once, task))
    dropped = Counter(
        unsuitable=len(sentences) - len(suitable),
        repeated=len(suitable) - len(once),
        over_max_sentences=len(once) - len(rows),
    )
    return _write(plan, work, rows, dropped)


def find_done(task: TaskSettings, examples: str, corpus: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do."""
    return _plan(task, examples, corpus).done(work)


def _plan(task: TaskSettings, examples: str, corpus: str) -> StagePlan:
    return StagePlan(
        stage=STAGE,
        settings=task.model_dump(),
        inputs={
            "examples": read_manifest(examples).content,
            "corpus": read_manifest(corpus).content,
        },
        code=code_digest(__name__),
        libraries={},
        input_manifests={"examples": examples, "corpus": corpus},
    )


def _held_out_sentences(examples: str, corpus: str) -> Iterator[tuple[str, str]]:
    """Yield the id of each held-out document with each of its sentences."""
    settings = ExampleSettings(**read_manifest(examples).settings)
    folder = corpus.rpartition("/")[0]
    for shard in read_manifest(corpus).shards_of("documents"):
        check_shard(shard, folder)
        table = read_arrow(storage.join(folder, shard.path))
        texts = table["text"].to_pylist()
        for document_id, text in zip(table["id"].to_pylist(), texts, strict=True):
            if is_held_out(document_id, settings):
                yield from ((document_id, sentence) for sentence in text.split("\n"))


def acceptability_rows(
    suitable: Mapping[str, str], task: TaskSettings
) -> Iterator[AcceptabilityRow]:
    """Yield at most ``task.max_sentences`` rows, in random order, train and dev mixed.

    Args:
        suitable: sentence -> the document that it is from.
        task: settings.
    """
    ordered = sorted(suitable, key=lambda sentence: derive_seed(task.seed, "order", sentence))
    for sentence in ordered[: task.max_sentences]:
        in_dev = share_of(task.seed, "dev", suitable[sentence]) < task.dev_share
        split = "dev" if in_dev else "train"
        if share_of(task.seed, "swap", sentence) < 0.5:
            yield AcceptabilityRow(split, SWAPPED, swap_two_words(sentence, task.seed))
        else:
            yield AcceptabilityRow(split, ACCEPTABLE, sentence)


def swap_two_words(sentence: str, seed: int) -> str:
    """Return ``sentence`` with two different words in each other's place.

    The last word stays, because its full stop would give a swap away.
    """
    words = sentence.split(" ")
    pairs = [
        (i, j)
        for i in range(len(words) - 1)
        for j in range(i + 1, len(words) - 1)
        if words[i].lower() != words[j].lower()
    ]
    draw = float(random_uniform(derive_seed(seed, "words", sentence), 0)[0])
    i, j = pairs[int(draw * len(pairs))]
    words[i], words[j] = words[j], words[i]
    return " ".join(words)


def is_suitable(sentence: str, task: TaskSettings) -> bool:
    """Return whether ``sentence`` has the length asked for, a full stop and words to swap."""
    words = sentence.split(" ")
    return (
        task.min_words <= len(words) <= task.max_words
        and sentence.endswith(".")
        and "\t" not in sentence
        and all(words)
        and len({word.lower() for word in words[:-1]}) > 1
    )


def _write(plan: StagePlan, work: str, rows: list[AcceptabilityRow], dropped: Counter[str]) -> str:
    folder = plan.folder(work)
    counts = {split: sum(row.split == split for row in rows) for split in SPLITS}
    if not all(counts.values()):
        raise SourceError(
            f"the held-out documents give {counts['train']} train and {counts['dev']} dev "
            f"sentences of {plan.settings['min_words']} to {plan.settings['max_words']} words; "
            "both must be at least 1. Raise examples.held_out_share, or give more text."
        )
    shards = []
    for split, number in counts.items():
        lines = (
            f"held-out\t{row.label}\t{'' if row.label else '*'}\t{row.sentence}\n"
            for row in rows
            if row.split == split
        )
        uri = storage.join(folder, TASK_FOLDER, f"{split}.tsv")
        storage.write_bytes(uri, "".join(lines).encode())
        shards.append(shard_of(uri, folder, split, number))
    total = len(rows) + dropped.total()
    account = Account(what="held-out sentences", total=total, kept=len(rows), dropped=+dropped)
    return plan.write(work, shards, [account], TaskResult(task="cola", num_rows=counts))


if __name__ == "__main__":
    stage_main(run)
