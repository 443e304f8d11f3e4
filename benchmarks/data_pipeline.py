"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python -m benchmarks.data_pipeline [--corpora NAME=LANGUAGE=FILES ...] [--sizes 10 300]

Runs the stages clean_corpus and make_examples as real processes on each corpus, with one worker.
CPU seconds are of all processes together, without start-up, which is that of the same stages on
50 kB. The limit is taken between the stages' runs, and all figures are medians of the rounds. The
share is limit to stages: at 1, they take no longer than SentencePiece to encode the text once.

FILES are files, folders or globs with commas between them, and LANGUAGE is that of the sentence
splitter. English has the published vocabulary; others get one of their own.

The first corpus also tells what a further copy and compression change.

Then English text of growing size, without near-duplicates: the peak memory of both stages with one
worker, and the time by the clock with one and with two. "Private" leaves out pages of mapped files,
which the kernel drops when it needs the room. What the largest size takes beyond the smallest tells
how many times as fast two workers are.

Last, what large corpora would take by the rates of the first one: an extrapolation, in which CPU
seconds grow with the text. The reads of the shuffle grow otherwise: every example shard reads a
slice of every part.
"""

import argparse
import json
from collections import defaultdict
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import CorpusResult
from albert_core.text import arrow_files, tokenizer
from benchmarks import harness, stages
from benchmarks.harness import PUBLISHED_MODEL

REFERENCE_PIECES_PER_CPU_SECOND = 58_000
"""create_pretraining_data.py, dupe_factor 1, length 512."""
MEMORY_GOAL = 1.3
"""Times the memory, for text of any size."""
START_UP_BYTES = 50_000
NUM_COPIES = 4
"""dupe_factor of the run that says what a further copy costs."""
TEXTS = {"16 GB (Wikipedia, books)": 16e9, "160 GB": 160e9, "10 TB": 10e12}
CORES = (16, 256, 4096)
DUPE_FACTOR, USD_PER_CORE_HOUR = 10, 0.04
_LINES_PER_CALL = 2000
_CORPORA = {
    "English Wikipedia": ("en", "wiki_extracted/enwiki2018"),
    "English novels": ("en", "novels.jsonl.gz"),
    "Korean and Chinese Wikipedia": (
        "auto",
        "wiki_extracted/kowiki2022,wiki_extracted/zhwiki2024",
    ),
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "cleaning": ("clean_corpus", {}),
    "examples": ("make_examples", {}),
    "examples, TFRecord too": ("make_examples", {"examples.tfrecord": "true"}),
    "copies": ("make_examples", {"examples.dupe_factor": NUM_COPIES}),
    "zstd": ("make_examples", {"examples.compression": "zstd"}),
}
"""Stage and settings of each run by one worker; all corpora have the first three."""


@cache
def encoding(corpus: str, vocab: str) -> harness.Work:
    """Contestant: SentencePiece on the corpus's sentences with one thread; pieces."""
    processor = tokenizer.Tokenizer.load(str(Path(vocab).parent)).processor
    sentences = [
        line
        for _, text in stages.documents_of(corpus)
        for sentence in text.split("\n")
        if (line := tokenizer.normalise_for_pieces(sentence, lower_case=True))
    ]

    def work() -> int:
        pieces = 0
        for start in range(0, len(sentences), _LINES_PER_CALL):
            lines = sentences[start : start + _LINES_PER_CALL]
            encoded = processor.encode(lines, out_type="numpy", num_threads=1)
            pieces += sum(map(len, encoded))
        return pieces

    return work


class Corpus:
    """Runs of the stages on one text, each in a folder of its own, so that none finds a result."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.settings, self.num_runs = folder, settings, 0
        self.inputs: dict[str, str] = {}
        self.cost: defaultdict[str, list[float]] = defaultdict(list)
        self.last: dict[str, stages.StageRun] = {}

    def run(self, module: str, workers: int, **settings: Any) -> stages.StageRun:
        """Run a stage."""
        self.num_runs += 1
        work = self.folder / f"run-{self.num_runs}"
        recipe = work.with_suffix(".json")
        stages.write_recipe(recipe, self.folder, **self.settings | settings)
        # In the order of the stages: each takes the results of those before it.
        taken = dict(list(self.inputs.items())[: 2 if module == "make_examples" else 0])
        taken |= {"corpus": self.inputs["corpus"]} if module == "train_vocab" else {}
        return stages.run_stage(module, recipe, workers, work=str(work), **taken)

    def prepare(self) -> None:
        """Make what later runs take."""
        self.inputs["corpus"] = self.run("clean_corpus", 2).manifest
        self.inputs["vocab"] = self.run("train_vocab", 2).manifest

    def measure(self, name: str, start_up: stages.StageRun) -> None:
        """Do one of `RUNS`."""
        module, settings = RUNS[name]
        done = self.last[name] = self.run(module, 1, **settings)
        self.cost[name].append(done.cpu_seconds - start_up.cpu_seconds)

    def figures(self) -> dict[str, float]:
        """Return the median of each figure."""
        return {name: median(values) for name, values in self.cost.items()}


def corpora_of(given: list[str], folder: Path) -> dict[str, Corpus]:
    """Return the corpora of the command line, or those that are present, by name."""
    found = [each.split("=", 2) for each in given]
    if not given and PUBLISHED_MODEL.is_file():
        for name, (language, files) in _CORPORA.items():
            uris = ",".join(str(stages.CORPORA / file) for file in files.split(","))
            found.append([name, language, uris])
    corpora = {}
    for name, language, files in found or [["installed documentation", "en", "installed-python"]]:
        settings: dict[str, Any] = {"source.uri": json.dumps(files.split(","))}
        settings |= {"cleaning.language": language}
        settings |= {"examples.held_out_share": 0.1}  # so that 45 novels give a held-out example
        if language != "en":
            settings |= {"vocabulary.model": "", "vocabulary.vocab_size": "auto"}
        corpora[name] = Corpus(folder / name, **settings)
    return corpora


def speed(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of each corpus."""
    corpora = corpora_of(options.corpora, folder)
    stages.write_english(folder / "start-up" / "text", START_UP_BYTES)
    # Enough documents aside that even so few give a held-out example.
    source = json.dumps([str(folder / "start-up" / "text")])
    small = Corpus(folder / "start-up", **{"examples.held_out_share": 0.3, "source.uri": source})
    for corpus in (small, *corpora.values()):
        corpus.prepare()
    with ExitStack() as running:
        limits = {
            name: running.enter_context(harness.Process(encoding, *corpus.inputs.values()))
            for name, corpus in corpora.items()
        }
        pieces = {name: limit.turn()[0] for name, limit in limits.items()}
        for number in range(options.rounds):
            for place, name in enumerate(corpora):
                corpora[name].cost["SentencePiece"].append(limits[name].turn()[1])
                for run in list(RUNS)[: None if place == number == 0 else 3]:
                    if place == 0:
                        module, settings = RUNS[run]
                        small.last[run] = small.run(module, 1, **settings)
                    corpora[name].measure(run, small.last[run])
                    corpora[name].cost["SentencePiece"].append(limits[name].turn()[1])
    return {name: _figures(corpus, pieces[name]) for name, corpus in corpora.items()}


def _figures(corpus: Corpus, pieces: int) -> dict[str, float]:
    cleaned = read_manifest(corpus.inputs["corpus"])
    found = {"MB": cleaned.result_as(CorpusResult).text_bytes / 1e6} | corpus.figures()
    found |= {"documents": cleaned.account("documents").kept, "pieces": pieces}
    clean, make = found["cleaning"], found["examples"]
    found["share"] = found["SentencePiece"] / (clean + make)
    found["share, TFRecord too"] = found["SentencePiece"] / (
        clean + found["examples, TFRecord too"]
    )
    found["times the reference"] = pieces / (clean + make) / REFERENCE_PIECES_PER_CPU_SECOND
    found["MB per million pieces"] = _mb_per_million_pieces(corpus.last["examples"].manifest)
    if "copies" in found:
        found["a further copy"] = (found["copies"] - make) / (NUM_COPIES - 1)
        zstd = corpus.last["zstd"].manifest
        found["MB per million pieces, zstd"] = _mb_per_million_pieces(zstd)
    return found


def _mb_per_million_pieces(examples: str) -> float:
    """Return the size of the Arrow shards for their pieces."""
    manifest, folder = read_manifest(examples), Path(examples).parent
    shards = [shard for kind in ("train", "held_out") for shard in manifest.shards_of(kind)]
    tables = [arrow_files.read_arrow(str(folder / shard.path)) for shard in shards]
    pieces = sum(len(chunk.flatten()) for each in tables for chunk in each["input_ids"].chunks)
    return sum(shard.num_bytes for shard in shards) / pieces


def scale_table(found: dict[str, float], of_two: float) -> str:
    """Return what large corpora would take by the rates that were ``found``.

    Args:
        found: figures of a corpus.
        of_two: how many times as fast as one two workers are; many lose as much as they.
    """
    text_bytes = found["MB"] * 1e6
    further = (DUPE_FACTOR - 1) * found["a further copy"]
    seconds = found["cleaning"] + found["examples"] + further
    hours = seconds / 3600 * 2 / of_two
    shard_bytes = found["MB per million pieces"] * found["pieces"] * DUPE_FACTOR
    rows = [
        [
            name,
            *(f"{size / text_bytes * hours / cores:,.3g}" for cores in (1, *CORES)),
            f"{size / text_bytes * hours * USD_PER_CORE_HOUR:,.3g}",
            f"{size / text_bytes * shard_bytes / 1e12:,.3g}",
        ]
        for name, size in TEXTS.items()
    ]
    head = ["text", "core hours", *(f"hours on {cores:,} cores" for cores in CORES)]
    return harness.table([*head, "cost, USD", "shards, TB"], rows)


def growing(options: argparse.Namespace, folder: Path) -> tuple[list[list[Any]], float]:
    """Return rows of stage, MB of text, peaks in MB and seconds, and the gain of two workers."""
    rows: list[list[Any]] = []
    off = {"cleaning.near_duplicate_similarity": 1.0, "examples.held_out_share": 0.05}
    for size in sorted(options.sizes):
        corpus = Corpus(folder / f"{size:g} MB", **off)
        stages.write_english(corpus.folder / "text", int(size * 1e6))
        corpus.settings["source.uri"] = json.dumps([str(corpus.folder / "text")])
        corpus.prepare()
        for stage in ("clean_corpus", "make_examples"):
            runs = [[corpus.run(stage, each) for each in (1, 2)] for _ in range(options.rounds)]
            peaks = np.median([one.peak_mb for one, _ in runs], 0)
            seconds = np.median([[run.wall_seconds for run in both] for both in runs], 0)
            rows.append([stage, size, *(round(each, 1) for each in (*peaks, *seconds))])
    smallest, largest = (
        np.sum([row[4:] for row in of_size], 0) for of_size in (rows[:2], rows[-2:])
    )
    one, two = largest - smallest
    return rows, float(one / two)


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure speed and memory; say what large corpora would take."""
    found = speed(options, folder)
    grown, of_two = growing(options, folder)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    rows = [
        [corpus, *(f"{each[name]:.3g}" if name in each else "" for name in names)]
        for corpus, each in found.items()
    ]
    goal = f"peak, MB (goal: times {MEMORY_GOAL} for any size)"
    shown = [
        "CPU seconds, and what they come to (share: goal 1):",
        harness.table(["corpus", *names], rows),
        harness.table(["stage", "text, MB", goal, "private, MB", "s", "s, 2 workers"], grown),
        f"two workers are {of_two:.2f} times as fast as one",
        f"dupe_factor {DUPE_FACTOR}, {USD_PER_CORE_HOUR} USD a core hour:",
        scale_table(next(iter(found.values())), of_two),
    ]
    return {"corpora": found, "growing": grown, "of_two": of_two}, "\n\n".join(shown)


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--corpora", nargs="+", default=[], help="NAME=LANGUAGE=FILES")
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[10.0, 300.0], help="MB of text, two or more"
    )
    harness.run(parser, {"data_pipeline": measure})


if __name__ == "__main__":
    main()
