"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python -m benchmarks.data_pipeline [--corpora NAME=LANGUAGE=FILES ...] [--memory 10 100]

Runs the stages clean_corpus and make_examples as real processes on each corpus, with one worker.
CPU seconds are of all processes together, without start-up, which is that of the same stages on
50 kB. The limit is taken between the stages' runs, and all figures are medians of the rounds. The
share is limit to stages: at 1, they take no longer than SentencePiece to encode the text once.

FILES are files, folders or globs with commas between them, and LANGUAGE is that of the sentence
splitter. English has the published vocabulary; others get one of their own.

The first corpus also tells what a second worker, a further copy and compression change, and what
large corpora would take by its rates: an extrapolation, in which CPU seconds grow with the text.
The reads of the shuffle grow otherwise: every example shard reads a slice of every part.

Then the peak memory of both stages with one worker and without near-duplicates, at growing sizes
of English text; "private" leaves out pages of mapped files, which the kernel drops when it needs
the room.
"""

import argparse
import json
from collections import defaultdict
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import CorpusResult
from albert_core.text import arrow_files, tokenizer
from benchmarks import harness, stages
from benchmarks.harness import PUBLISHED_MODEL

REFERENCE_PIECES_PER_CPU_SECOND = 58_000
"""create_pretraining_data.py, dupe_factor 1, length 512."""
MEMORY_GOAL = 1.3
"""Times the memory for ten times the text."""
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
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "cleaning": ("clean_corpus", 1, {}),
    "examples": ("make_examples", 1, {}),
    "examples, TFRecord too": ("make_examples", 1, {"examples.tfrecord": "true"}),
    "cleaning, 2 workers": ("clean_corpus", 2, {}),
    "examples, 2 workers": ("make_examples", 2, {}),
    "copies": ("make_examples", 1, {"examples.dupe_factor": NUM_COPIES}),
    "zstd": ("make_examples", 1, {"examples.compression": "zstd"}),
}
"""Stage, workers and settings of each run; all corpora have the first three."""


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
        module, workers, settings = RUNS[name]
        done = self.last[name] = self.run(module, workers, **settings)
        self.cost[name].append(done.cpu_seconds - start_up.cpu_seconds)
        self.cost[f"{name}, wall"].append(done.wall_seconds - start_up.wall_seconds)

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
                        module, workers, settings = RUNS[run]
                        small.last[run] = small.run(module, workers, **settings)
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
        two, wall = (
            [f"{stage}, {how}" for stage in ("cleaning", "examples")]
            for how in ("2 workers", "wall")
        )
        found["CPU of 2 workers"] = sum(found[name] for name in two) / (clean + make)
        of_two = sum(found[f"{name}, wall"] for name in two)
        found["wall, 1 worker to 2"] = sum(found[name] for name in wall) / of_two
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


def scale_table(found: dict[str, float]) -> str:
    """Return what large corpora would take by the rates that were ``found``."""
    text_bytes = found["MB"] * 1e6
    further = (DUPE_FACTOR - 1) * found["a further copy"]
    seconds = found["cleaning"] + found["examples"] + further
    hours = seconds / 3600 * max(1.0, 2 / found["wall, 1 worker to 2"])
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


def memory(options: argparse.Namespace, folder: Path) -> list[list[object]]:
    """Return stage, MB of text and peaks of memory in MB."""
    rows: list[list[object]] = []
    off = {"cleaning.near_duplicate_similarity": 1.0, "examples.held_out_share": 0.05}
    for size in sorted(options.memory):
        corpus = Corpus(folder / f"{size:g} MB", **off)
        stages.write_english(corpus.folder / "text", int(size * 1e6))
        corpus.settings["source.uri"] = json.dumps([str(corpus.folder / "text")])
        corpus.prepare()
        rows += [
            [stage, size, *map(round, corpus.run(stage, 1).peak_mb)]
            for stage in ("clean_corpus", "make_examples")
        ]
    return rows


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure speed and memory; say what large corpora would take."""
    found = speed(options, folder)
    peaks = memory(options, folder)
    names = list(
        dict.fromkeys(name for each in found.values() for name in each if ", wall" not in name)
    )
    rows = [
        [corpus, *(f"{each[name]:.3g}" if name in each else "" for name in names)]
        for corpus, each in found.items()
    ]
    goal = f"peak, MB (goal: times {MEMORY_GOAL} for ten times the text)"
    shown = [
        "CPU seconds, and what they come to (share: goal 1):",
        harness.table(["corpus", *names], rows),
        f"dupe_factor {DUPE_FACTOR}, {USD_PER_CORE_HOUR} USD a core hour:",
        scale_table(next(iter(found.values()))),
        harness.table(["stage", "text, MB", goal, "private, MB"], peaks),
    ]
    return {"corpora": found, "peak_mb": peaks}, "\n\n".join(shown)


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--corpora", nargs="+", default=[], help="NAME=LANGUAGE=FILES")
    parser.add_argument("--memory", type=float, nargs="*", default=[10.0, 100.0], help="MB of text")
    harness.run(parser, {"data_pipeline": measure})


if __name__ == "__main__":
    main()
