"""Real English text of any size for the benchmarks, the same in every run, nothing twice in it.

Wikipedia and novels where they are at hand (`ALBERT_BENCH_DATA`), else the documentation of the
installed Python distributions. What is there once is repeated with one word in fourteen changed,
so that no copy is a duplicate and yet all of it reads, splits and encodes like English.
"""

import gzip
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert_core.stage.command import stage_argv
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from benchmarks.harness import DATA, run_stage, write_recipe
from flows.recipe import load_recipe, save_recipe
from flows.stage_process import run_stage_process

CORPORA = DATA / "corpora"
CHANGED_SHARE = 0.07
"""Of the words of a repeated document."""
_NOVELS = CORPORA / "novels.jsonl.gz"
_FILE_BYTES = 10_000_000
_NEAR_ENOUGH = 0.995
_ARTICLE = re.compile(r'<doc id="([^"]*)"[^>]*?title="([^"]*)"[^>]*>\n(.*?)\n?</doc>', re.DOTALL)

Texts = list[tuple[str, str]]
"""(id, text) of each document."""


def make_examples(
    folder: Path, num_bytes: int, lengths: Sequence[int], **settings: Any
) -> tuple[str, dict[int, str]]:
    """Return where the text is from, and the manifest of the stages' examples of each length.

    Args:
        folder: for the text and all results.
        num_bytes: of text.
        lengths: max_seq_length of each set of examples.
        **settings: of the stages, by their path, that differ from `write_recipe`'s.
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
    """Write documents of about ``num_bytes`` in all, as JSON lines; return where the text is from.

    A smaller size has documents of the same kinds, in the same proportions.
    """
    texts, origin = _base_texts()
    folder.mkdir(parents=True)
    lines: list[str] = []
    size, number = 0, 0
    for key, text in [*_fitting(texts, num_bytes), ("", "")]:
        if key:
            lines.append(json.dumps({"id": key, "text": text}, ensure_ascii=False) + "\n")
            size += len(lines[-1].encode())
        if size > _FILE_BYTES or (lines and not key):
            (folder / f"english-{number:04d}.jsonl").write_text("".join(lines), encoding="utf-8")
            lines, size, number = [], 0, number + 1
    return origin


def _fitting(texts: Texts, num_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield documents, then changed copies of them, and pass over those that are too long."""
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
        # Words that hold a line break stay: the paragraphs are to remain as they are.
        if "\n" not in words[place]:
            words[place] = vocabulary[other]
    return " ".join(words)


def _base_texts() -> tuple[Texts, str]:
    """Return what there is once, in an order that mixes the kinds, and what to call it."""
    if _NOVELS.is_file():
        years = ("enwiki2018", "enwiki2016")
        texts = [(f"{year}-{key}", text) for year in years for key, _, text in articles(year)]
        with gzip.open(_NOVELS, "rt", encoding="utf-8") as file:
            novels = map(json.loads, file)
            texts += [(f"novel-{novel['id']}", novel["text"]) for novel in novels]
        origin = "Wikipedia 2016 and 2018, 45 novels"
    else:
        texts, origin = _installed(), "documentation of the installed Python distributions"
    return sorted(texts, key=lambda text: hashlib.sha256(text[0].encode()).digest()), origin


def articles(dump: str) -> list[tuple[str, str, str]]:
    """Return (id, title, text) of each article of WikiExtractor's files."""
    files = sorted((CORPORA / "wiki_extracted" / dump).rglob("wiki_*"))
    return [each for file in files for each in _ARTICLE.findall(file.read_text("utf-8"))]


def _installed() -> Texts:
    """Return the cleaned documents of the recipe tiny's source."""
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
