"""Runs of the text stages on real English text: what they make, and what they cost.

The text is Wikipedia and novels if they are present (`ALBERT_BENCH_DATA`), and otherwise the
documentation of the installed Python distributions. It is the same in every run. Each document is
repeated with one word in fourteen changed, as often as needed, so that no copy is a duplicate and
yet all of it reads, splits and encodes like English.
"""

import contextlib
import ctypes
import gzip
import hashlib
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import numpy as np
import psutil

from albert_core.stage.command import stage_argv
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from benchmarks.harness import DATA, PUBLISHED_MODEL
from flows.recipe import load_recipe, save_recipe
from flows.stage_process import run_stage_process

CORPORA = DATA / "corpora"
CHANGED_SHARE = 0.07
"""Of the words of a repeated document."""
_NOVELS = CORPORA / "novels.jsonl.gz"
_FILE_BYTES = 10_000_000
_NEAR_ENOUGH = 0.995
_ARTICLE = re.compile(r'<doc id="([^"]*)"[^>]*?title="[^"]*"[^>]*>\n(.*?)\n?</doc>', re.DOTALL)
_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_SECONDS = 0.1

Texts = list[tuple[str, str]]
"""(id, text) of each document."""


@dataclass(frozen=True)
class StageRun:
    """What one run of a stage made and cost, over all its processes."""

    manifest: str
    cpu_seconds: float
    wall_seconds: float
    peak_mb: tuple[float, float]
    """Largest resident memory of all its processes together, in MB: all of it, and without pages of
    files, which the kernel may drop."""


def run_stage(module: str, recipe: Path, workers: int, **inputs: str) -> StageRun:
    """Run the stage in ``module`` of `pipelines` as real processes, so many at a time."""
    # Become the parent of workers that outlive their stage, so that their time counts too.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    others, over = _descendants(), threading.Event()
    argv = stage_argv(f"pipelines.{module}", str(recipe), **inputs)
    os.environ["ALBERT_WORKERS"] = str(workers)
    samples = [(0.0, 0.0)]

    def watch() -> None:
        while not over.wait(_SAMPLE_SECONDS):
            each = [_memory_mb(pid) for pid in _descendants() - others]
            samples.append((sum(total for total, _ in each), sum(private for _, private in each)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before, begin = getrusage(RUSAGE_CHILDREN), time.monotonic()
    try:
        manifest = run_stage_process(argv, lambda line: None)
    finally:
        over.set()
        watcher.join()
    wall = time.monotonic() - begin
    while left := _descendants() - others:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    totals, privates = zip(*samples, strict=True)
    return StageRun(manifest, cpu, wall, (max(totals), max(privates)))


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _memory_mb(pid: int) -> tuple[float, float]:
    """Return a process's resident memory in MB: all of it, and without pages of files."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:  # it has just ended
        return 0.0, 0.0
    return found.rss / 1e6, (found.rss - found.shared) / 1e6


def write_recipe(path: Path, source: Path, **settings: Any) -> Path:
    """Write a resolved recipe that reads ``source``, with a vocabulary of 30,000 pieces.

    The vocabulary is the published one if it is present, and is otherwise to be trained.
    """
    fixed = {
        "vocabulary.vocab_size": 30_000,
        "vocabulary.model": str(PUBLISHED_MODEL) if PUBLISHED_MODEL.is_file() else "",
        "examples.dupe_factor": 1,
        "examples.max_seq_length": 512,
        "examples.tfrecord": "false",
    }
    overrides = [f"{name}={value}" for name, value in (fixed | settings).items()]
    path.write_text(load_recipe("base", overrides, str(source)).model_dump_json())
    return path


def make_examples(
    folder: Path, num_bytes: int, lengths: Sequence[int], **settings: Any
) -> tuple[str, dict[int, str]]:
    """Return the origin of the text, and the manifest of the stages' examples of each length.

    Args:
        folder: for the text and all results.
        num_bytes: of text.
        lengths: max_seq_length of each set of examples.
        **settings: of the stages, by their path, that differ from those of `write_recipe`.
    """
    origin = write_english(folder / "text", num_bytes)
    manifests = {}
    for length in lengths:
        # Enough documents aside that even little text gives a held-out example.
        fixed = {"examples.max_seq_length": length, "examples.held_out_share": 0.05}
        recipe = write_recipe(folder / f"{length}.json", folder / "text", **fixed | settings)
        inputs = {"work": str(folder / "work")}
        inputs["corpus"] = run_stage("clean_corpus", recipe, 2, **inputs).manifest
        inputs["vocab"] = run_stage("train_vocab", recipe, 2, **inputs).manifest
        manifests[length] = run_stage("make_examples", recipe, 2, **inputs).manifest
    return origin, manifests


def write_english(folder: Path, num_bytes: int) -> str:
    """Write documents of about ``num_bytes`` in all, as JSON lines; return the origin of the text.

    A smaller size has documents of the same kinds, in the same proportions.
    """
    texts, origin = _base_texts()
    folder.mkdir(parents=True)
    files: list[list[str]] = [[]]
    size = 0
    for key, text in _fitting(texts, num_bytes):
        files[-1].append(json.dumps({"id": key, "text": text}, ensure_ascii=False) + "\n")
        size += len(files[-1][-1].encode())
        if size > _FILE_BYTES:
            files.append([])
            size = 0
    for number, lines in enumerate(filter(None, files)):
        (folder / f"english-{number:04d}.jsonl").write_text("".join(lines), encoding="utf-8")
    return origin


def _fitting(texts: Texts, num_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield documents, then changed copies of them; skip those that are too long."""
    vocabulary = " ".join(text for _, text in texts[:200]).split()
    left, copy = num_bytes, 0
    while left > (1 - _NEAR_ENOUGH) * num_bytes:
        before = left
        for key, text in texts:
            size = len(text.encode())
            if size <= left:
                left -= size
                yield f"{copy}-{key}", (_changed(text, copy, key, vocabulary) if copy else text)
        copy += 1
        if left == before:
            return


def _changed(text: str, copy: int, key: str, vocabulary: list[str]) -> str:
    """Return ``text`` with `CHANGED_SHARE` of its words replaced by others, the same each time."""
    words = text.split(" ")
    seed = int.from_bytes(hashlib.blake2b(f"{copy} {key}".encode(), digest_size=8).digest())
    draw = np.random.Generator(np.random.PCG64(seed))
    places = np.flatnonzero(draw.random(len(words)) < CHANGED_SHARE)
    others = draw.integers(len(vocabulary), size=len(places))
    for place, other in zip(places.tolist(), others.tolist(), strict=True):
        # A word that holds a line break stays, so that the paragraphs remain as they are.
        if "\n" not in words[place]:
            words[place] = vocabulary[other]
    return " ".join(words)


def _base_texts() -> tuple[Texts, str]:
    """Return each document once, in an order that mixes the kinds, and their origin."""
    if _NOVELS.is_file():
        years = ("enwiki2018", "enwiki2016")
        texts = [(f"{year}-{key}", text) for year in years for key, text in articles(year)]
        with gzip.open(_NOVELS, "rt", encoding="utf-8") as file:
            novels = map(json.loads, file)
            texts += [(f"novel-{novel['id']}", novel["text"]) for novel in novels]
        origin = "Wikipedia 2016 and 2018, 45 novels"
    else:
        texts, origin = _installed(), "documentation of the installed Python distributions"
    return sorted(texts, key=lambda text: hashlib.sha256(text[0].encode()).digest()), origin


def articles(dump: str) -> Texts:
    """Return the articles of WikiExtractor's files."""
    files = sorted((CORPORA / "wiki_extracted" / dump).rglob("wiki_*"))
    return [each for file in files for each in _ARTICLE.findall(file.read_text("utf-8"))]


def _installed() -> Texts:
    """Return the cleaned documents of the source of the recipe tiny."""
    with tempfile.TemporaryDirectory() as work:
        recipe = save_recipe(load_recipe("tiny"), work)
        argv = stage_argv("pipelines.clean_corpus", recipe, work=work)
        return documents_of(run_stage_process(argv, lambda line: None))


def documents_of(manifest: str) -> Texts:
    """Return the documents of a corpus."""
    folder = Path(manifest).parent
    return [
        (row["id"], row["text"])
        for shard in read_manifest(manifest).shards_of("documents")
        for row in read_arrow(str(folder / shard.path)).select(["id", "text"]).to_pylist()
    ]
