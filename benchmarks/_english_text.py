"""Real English text of any size for the benchmarks, the same in every run, nothing twice in it.

Wikipedia and novels where they are at hand (`ALBERT_BENCH_CORPORA`), else the documentation of the
installed Python distributions. What is there once is repeated with one word in fourteen changed,
so that no copy is a duplicate and yet all of it reads, splits and encodes like English.
"""

import gzip
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from albert_core.stage.command import stage_argv
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from flows.recipe import load_recipe, save_recipe
from flows.stage_process import run_stage_process

CORPORA = Path(os.environ.get("ALBERT_BENCH_CORPORA", "/work/shared/data/corpora"))
CHANGED_SHARE = 0.07
"""Of the words of a repeated document. Source: PLATFORM.md part 2, corpus caveat."""
_WIKIPEDIA = ("wiki_extracted/enwiki2018", "wiki_extracted/enwiki2016")
_NOVELS = "novels.jsonl.gz"
_FILE_BYTES = 10_000_000
_NEAR_ENOUGH = 0.995
_BLOCK = re.compile(r'<doc id="([^"]*)"[^>]*>\n(.*?)\n</doc>', re.DOTALL)

Texts = list[tuple[str, str]]
"""(id, text) of each document."""


def write_english(folder: Path, num_bytes: int) -> str:
    """Write documents of about ``num_bytes`` in all, as JSON lines; return where the text is from.

    A smaller size has documents of the same kinds, in the same proportions.
    """
    texts, origin = _base_texts()
    folder.mkdir(parents=True)
    lines: list[str] = []
    size, number = 0, 0
    for key, text in _fitting(texts, num_bytes):
        lines.append(json.dumps({"id": key, "text": text}, ensure_ascii=False) + "\n")
        size += len(lines[-1].encode())
        if size > _FILE_BYTES:
            _write(folder / f"english-{number:04d}.jsonl", lines)
            lines, size, number = [], 0, number + 1
    if lines:
        _write(folder / f"english-{number:04d}.jsonl", lines)
    return origin


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(lines), encoding="utf-8")


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
                yield f"{copy}-{key}", (changed(text, copy, key, vocabulary) if copy else text)
        copy += 1
        if left == before:
            return


def changed(text: str, copy: int, key: str, vocabulary: list[str]) -> str:
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
    if (CORPORA / _NOVELS).is_file():
        texts, origin = [*_wikipedia(), *_novels()], "Wikipedia 2016 and 2018, 45 novels"
    else:
        texts, origin = _installed(), "documentation of the installed Python distributions"
    return sorted(texts, key=lambda text: hashlib.sha256(text[0].encode()).digest()), origin


def _wikipedia() -> Iterator[tuple[str, str]]:
    for name in _WIKIPEDIA:
        for path in sorted((CORPORA / name).rglob("wiki_*")):
            for key, text in _BLOCK.findall(path.read_text(encoding="utf-8")):
                yield f"{Path(name).name}-{key}", text


def _novels() -> Iterator[tuple[str, str]]:
    with gzip.open(CORPORA / _NOVELS, "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield f"novel-{record['id']}", record["text"]


def _installed() -> Texts:
    """Return the cleaned documents of the recipe tiny's source."""
    with tempfile.TemporaryDirectory() as work:
        recipe = save_recipe(load_recipe("tiny"), work)
        argv = stage_argv("pipelines.clean_corpus", recipe, work=work)
        manifest = run_stage_process(argv, lambda line: None)
        folder = manifest.rpartition("/")[0]
        tables = [
            read_arrow(f"{folder}/{shard.path}")
            for shard in read_manifest(manifest).shards_of("documents")
        ]
        return [
            (key, text)
            for table in tables
            for key, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
        ]
