"""Stage: held-out documents to minimal pairs and a fine-tuning task, where no public task fits.

A minimal pair is a sentence and the same one broken; pairs need no training. The task asks which
part of the source a passage is from. Sentences that occur twice, or in a document that the model
was pretrained on, are in neither.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from albert_core.stage import manifest, storage
from albert_core.stage.command import stage_main
from albert_core.stage.errors import SourceError
from albert_core.stage.manifest import Account, Shard, StagePlan, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.stage.results import OWN_PAIRS, PASSAGE_SOURCE, CorpusResult, TaskResult
from albert_core.stage.results import TASK as STAGE
from albert_core.text.arrow_files import read_arrow
from albert_core.text.seeds import derive_seed, share_of
from pipelines.config import ExampleSettings, TaskSettings
from pipelines.corpus.broken_sentences import KINDS, REVERSED, broken, with_words_reversed
from pipelines.corpus.passage_sources import passages_of, source_task, words_of
from pipelines.examples.held_out import is_held_out

_ENDS = tuple(".!?…。！？؟۔।॥։።။។།")
PAIRS_FILE = f"{OWN_PAIRS}/generated.jsonl"
MIN_PAIRS = 20
"""Fewest pairs of a kind: the score of fewer says nothing."""
_MOST_BYTES = 200_000_000
"""Size of the held-out text that is held in memory; of more, a share of the documents is drawn."""

log = logging.getLogger(__name__)


def run(task: TaskSettings, examples: str, corpus: str, work: str) -> str:
    """Make pairs and task from the documents that ``examples`` held out; return the manifest.

    Raises:
        SourceError: the held-out documents give neither.
    """
    plan = stage_plan(task, examples, corpus)
    if done := plan.find(work):
        return done
    rules = ExampleSettings(**read_manifest(examples).settings)
    text_bytes = read_manifest(corpus).result_as(CorpusResult).text_bytes
    share = _MOST_BYTES / max(1.0, text_bytes * rules.held_out_share)
    documents, total = dict[str, list[str]](), 0
    for name, text in _texts(corpus):
        if is_held_out(name, rules):
            total += text.count("\n") + 1
            if share_of(task.seed, "task-document", name) < share:
                documents[name] = text.split("\n")
    num_sampled = sum(map(len, documents.values()))
    _drop_repeated(documents, corpus)
    once = {sentence: name for name, sentences in documents.items() for sentence in sentences}
    pairs, dropped = minimal_pairs(once, task)
    dropped.update(repeated=num_sampled - len(once), not_sampled=total - num_sampled)
    passages = {n: list(passages_of(each, task.passage_words)) for n, each in documents.items()}
    made = source_task(passages, task)
    rows = {"train": made.train, "dev": made.dev} if made else {}
    if not pairs and not made:
        raise SourceError(
            f"{len(documents):,} held-out documents with {total:,} sentences give neither "
            f"{MIN_PAIRS} minimal pairs of a kind nor a task. Raise examples.held_out_share, give "
            "more text, or set evaluation.task_folder or evaluation.own_tasks."
        )
    folder = plan.folder(work)
    files = {PAIRS_FILE: ("pairs", pairs)}
    files |= {
        f"{PASSAGE_SOURCE}/{split}.jsonl": (split, list(map(asdict, passages_in)))
        for split, passages_in in rows.items()
    }
    shards = list(_written(folder, files))
    num_passages, num_rows = sum(map(len, passages.values())), sum(map(len, rows.values()))
    unused = +Counter(not_needed=num_passages - num_rows)
    accounts = [
        Account(what="held-out sentences", total=total, kept=len(pairs), dropped=+dropped),
        Account(what="passages", total=num_passages, kept=num_rows, dropped=unused),
    ]
    result = TaskResult(
        num_pairs={kind: n for kind in KINDS if (n := sum(pair["UID"] == kind for pair in pairs))},
        num_rows={split: len(found) for split, found in rows.items()},
        sources=sorted({row.source for row in rows.get("train", [])}),
        word_accuracy=made.word_accuracy if made else None,
    )
    _log(result)
    return plan.write(work, shards, accounts, result)


def stage_plan(task: TaskSettings, examples: str, corpus: str) -> StagePlan:
    """Return what pairs and task depend on."""
    inputs = {"examples": examples, "corpus": corpus}
    return StagePlan(
        stage=STAGE,
        settings=task.model_dump(),
        inputs={name: read_manifest(uri).content for name, uri in inputs.items()},
        code=code_digest(__name__),
        libraries=library_versions("numpy", "pyarrow"),
        input_manifests=inputs,
    )


def _drop_repeated(documents: Mapping[str, list[str]], corpus: str) -> None:
    """Remove the sentences of the held-out ``documents`` that the corpus has more than once.

    Licences and headers, which would tell where a passage is from, are such sentences.
    """
    counts = Counter(sentence for sentences in documents.values() for sentence in sentences)
    repeated = {sentence for sentence, number in counts.items() if number > 1}
    for name, text in _texts(corpus):
        if name not in documents:
            repeated.update(counts.keys() & set(text.split("\n")))
    for sentences in documents.values():
        sentences[:] = [sentence for sentence in sentences if sentence not in repeated]


def _texts(corpus: str) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each document."""
    folder = corpus.rpartition("/")[0]
    for shard in read_manifest(corpus).shards_of("documents"):
        manifest.check_shard(shard, folder)
        table = read_arrow(storage.join(folder, shard.path))
        yield from zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)


def minimal_pairs(
    sentences: Mapping[str, str], task: TaskSettings
) -> tuple[list[dict[str, str]], Counter[str]]:
    """Return at most ``task.max_pairs`` pairs of each kind, and why other sentences have none.

    A pair is a line of the files of minimal pairs; its UID says how the sentence was broken.
    A sentence is in one pair, of the rarest kind that has room. A kind of fewer than `MIN_PAIRS`
    is left out. Where the rules for English make no pair, three neighbouring words are reversed.

    Args:
        sentences: each sentence, and the id of its document.
        task: settings.
    """
    ordered = sorted(sentences, key=lambda sentence: derive_seed(task.seed, "pair", sentence))
    for ways_of in (_english_ways, _other_ways):
        pairs, dropped = _pairs(ordered, sentences, task, ways_of)
        if pairs:
            break
    return pairs, dropped


def _english_ways(sentence: str, task: TaskSettings) -> dict[str, str] | None:
    """Return the sentence broken, by the kind; None if its length or its ends are not suitable."""
    is_whole = sentence[:1].isupper() and sentence.endswith((".", "!", "?"))
    fits = task.min_words <= sentence.count(" ") + 1 <= task.max_words
    return broken(sentence, task.seed) if is_whole and fits else None


def _other_ways(sentence: str, task: TaskSettings) -> dict[str, str] | None:
    is_whole = not sentence[:1].islower() and sentence.endswith(_ENDS)
    fits = task.min_words <= len(words_of(sentence)) <= task.max_words
    bad = with_words_reversed(sentence, task.seed) if is_whole and fits else sentence
    return {REVERSED: bad} if bad != sentence else None


def _pairs(
    ordered: Sequence[str],
    sentences: Mapping[str, str],
    task: TaskSettings,
    ways_of: Callable[[str, TaskSettings], dict[str, str] | None],
) -> tuple[list[dict[str, str]], Counter[str]]:
    """Return the pairs of the sentences in this order, and why other sentences have none."""
    dropped: Counter[str] = Counter()
    ways: dict[str, dict[str, str]] = {}
    of_kind: dict[str, list[str]] = defaultdict(list)
    for sentence in ordered:
        found = ways_of(sentence, task)
        if found is None:
            dropped["unsuitable"] += 1
        elif found:
            ways[sentence] = found
            for kind in found:
                of_kind[kind].append(sentence)
        else:
            dropped["no_rule_applies"] += 1
    pairs: dict[str, list[dict[str, str]]] = {}
    for kind in sorted(of_kind, key=lambda kind: (len(of_kind[kind]), kind)):
        chosen = [good for good in of_kind[kind] if good in ways][: task.max_pairs]
        if len(chosen) >= MIN_PAIRS:
            pairs[kind] = [
                {
                    "sentence_good": good,
                    "sentence_bad": ways.pop(good)[kind],
                    "UID": kind,
                    "linguistics_term": KINDS[kind],
                    "document": sentences[good],
                }
                for good in chosen
            ]
    for found in ways.values():
        dropped["over_max_pairs" if pairs.keys() & found else "kind_too_rare"] += 1
    return [pair for kind in KINDS for pair in pairs.get(kind, [])], dropped


def _written(folder: str, files: Mapping[str, tuple[str, list[dict[str, Any]]]]) -> Iterator[Shard]:
    """Write the files, path -> kind and lines, that are not empty."""
    for path, (kind, lines) in files.items():
        if lines:
            uri = storage.join(folder, path)
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            storage.write_bytes(uri, text.encode())
            yield manifest.shard_of(uri, folder, kind, len(lines))


def _log(result: TaskResult) -> None:
    pairs = ", ".join(f"{kind} {number}" for kind, number in result.num_pairs.items())
    log.info("%s: minimal pairs: %s", STAGE, pairs or "none; too few whole sentences")
    if result.word_accuracy is None:
        log.info("%s: no task to fine-tune on: words do not tell parts of the source apart", STAGE)
    else:
        told = "%s: passages of %d parts of the source; a bag of words finds %.3f of them"
        log.info(told, STAGE, len(result.sources), result.word_accuracy)


if __name__ == "__main__":
    stage_main(run)
