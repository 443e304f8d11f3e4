"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python -m benchmarks.data_pipeline [--mb 100] [--memory 10 100] [--results FOLDER]

Runs the stages clean_corpus and make_examples as real processes, with one worker and with two, on
real English text. CPU seconds are of all processes together, without start-up, which is that of
the same stages on 50 kB. The limit is taken between the stages' runs. The ratio is limit to
stages: at 1, all else would cost nothing.

Then the peak memory of both stages with one worker and without near-duplicates, at growing sizes
of text; "private" leaves out pages of mapped files, which the kernel drops when it needs the room.

At the end, what large corpora would take by these rates: an extrapolation, in which CPU seconds
grow with the text. The reads of the shuffle grow otherwise: every example shard reads a slice of
every part.
"""

import argparse
import statistics
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from albert_core.stage.manifest import read_manifest
from albert_core.text import arrow_files, tokenizer
from benchmarks import harness, stages

REFERENCE_PIECES_PER_CPU_SECOND = 58_000
"""create_pretraining_data.py, dupe_factor 1, length 512."""
GOALS = {
    "ratio_to_limit": "at least 0.65",
    "times_reference": "at least 40",
    "speed_up_of_2_workers": "at least 1.7",
    "mb_per_million_pieces_none": "at most 2.7",
    "mb_per_million_pieces_zstd": "at most 1.9",
}
MEMORY_GOAL = 1.3
"""Times the memory for ten times the text."""
MEASURED = ("clean_corpus", "make_examples")
START_UP_BYTES = 50_000
SHORT_BYTES = 20_000_000
NUM_COPIES = 4
"""dupe_factor of the run that says what a further copy costs."""
TEXTS = {"16 GB (Wikipedia, books)": 16e9, "160 GB": 160e9, "10 TB": 10e12}
CORES = (16, 256, 4096)
DUPE_FACTOR, USD_PER_CORE_HOUR = 10, 0.04
_LINES_PER_CALL = 2000


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


class Bench:
    """Runs of the stages on texts, each in a folder of its own, so that none finds a result."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.num_runs = folder, 0
        self.bytes_of: dict[str, int] = {}
        self.corpora: dict[str, str] = {}
        self.vocab = ""

    def write(self, text: str, num_bytes: int) -> str:
        """Write the text of this name; return its origin."""
        self.bytes_of[text] = num_bytes
        return stages.write_english(self.folder / text, num_bytes)

    def run(
        self, module: str, text: str, workers: int = 1, settings: Mapping[str, Any] | None = None
    ) -> stages.StageRun:
        """Run a stage on a text."""
        self.num_runs += 1
        work = self.folder / f"run-{self.num_runs}"
        # Enough documents aside that even so few give a held-out example.
        aside = {"examples.held_out_share": 0.3} if self.bytes_of[text] < SHORT_BYTES else {}
        recipe = work.with_suffix(".json")
        stages.write_recipe(recipe, self.folder / text, **aside | dict(settings or {}))
        inputs = {"work": str(work)}
        if module != "clean_corpus":
            inputs["corpus"] = self.corpora[text]
        if module == "make_examples":
            inputs["vocab"] = self.vocab
        done = stages.run_stage(module, recipe, workers, **inputs)
        if module == "clean_corpus":
            self.corpora[text] = done.manifest
        return done

    def both(self, module: str, workers: int = 1, **examples: Any) -> list[stages.StageRun]:
        """Run a stage on next to nothing and on all, with these settings of the examples."""
        settings = {f"examples.{name}": value for name, value in examples.items()}
        return [self.run(module, text, workers, settings) for text in ("small", "all")]


def speed(bench: Bench) -> dict[str, Any]:
    """Return all figures of speed."""
    limits, costs, walls = [], {}, {}
    with harness.Process(encoding, bench.corpora["all"], bench.vocab) as limit:
        num_pieces = limit.turn()[0]
        limits.append(limit.turn()[1])
        for workers in (1, 2):
            for stage in MEASURED:
                small, full = bench.both(stage, workers)
                costs[stage, workers] = full.cpu_seconds - small.cpu_seconds
                walls[stage, workers] = full.wall_seconds - small.wall_seconds
                if workers == 1:
                    plain = full
                limits.append(limit.turn()[1])
    zstd = bench.both("make_examples", compression="zstd")[1]
    small, copies = bench.both("make_examples", dupe_factor=NUM_COPIES)
    clean, make = (costs[stage, 1] for stage in MEASURED)
    further = (copies.cpu_seconds - small.cpu_seconds - make) / (NUM_COPIES - 1)
    encoded = statistics.mean(limits)
    one, two = (sum(walls[stage, workers] for stage in MEASURED) for workers in (1, 2))
    return {
        "text_mb": sum(f.stat().st_size for f in (bench.folder / "all").iterdir()) / 1e6,
        "documents": read_manifest(bench.corpora["all"]).account("documents").kept,
        "pieces": num_pieces,
        "limit_cpu_s_each": limits,
        "clean_cpu_s": clean,
        "make_cpu_s": make,
        "make_cpu_s_per_further_copy": further,
        "mb_per_million_pieces_none": _mb_per_million_pieces(plain.manifest),
        "mb_per_million_pieces_zstd": _mb_per_million_pieces(zstd.manifest),
        "ratio_to_limit": encoded / (clean + make),
        "ratio_to_limit_make_examples": encoded / make,
        "million_pieces_per_cpu_s": num_pieces / (clean + make) / 1e6,
        "million_pieces_per_cpu_s_further_copy": num_pieces / further / 1e6,
        "times_reference": num_pieces / (clean + make) / REFERENCE_PIECES_PER_CPU_SECOND,
        "speed_up_of_2_workers": one / two,
    }


def _mb_per_million_pieces(examples: str) -> float:
    """Return the size of the Arrow shards for their pieces."""
    manifest, folder = read_manifest(examples), Path(examples).parent
    shards = [shard for kind in ("train", "held_out") for shard in manifest.shards_of(kind)]
    tables = [arrow_files.read_arrow(str(folder / shard.path)) for shard in shards]
    pieces = sum(len(chunk.flatten()) for each in tables for chunk in each["input_ids"].chunks)
    return sum(shard.num_bytes for shard in shards) / pieces


def scale_table(result: dict[str, Any]) -> str:
    """Return what large corpora would take by the rates of ``result``."""
    text_bytes = result["text_mb"] * 1e6
    further = (DUPE_FACTOR - 1) * result["make_cpu_s_per_further_copy"]
    efficiency = min(1.0, result["speed_up_of_2_workers"] / 2)
    hours = (result["clean_cpu_s"] + result["make_cpu_s"] + further) / 3600 / efficiency
    shard_bytes = result["mb_per_million_pieces_none"] * result["pieces"] * DUPE_FACTOR
    rows = [
        [
            name,
            *(f"{size / text_bytes * hours / cores:,.3g}" for cores in (1, *CORES)),
            f"{size / text_bytes * hours * USD_PER_CORE_HOUR:,.3g}",
            f"{size / text_bytes * shard_bytes / 1e12:,.3g}",
            f"{size / text_bytes * result['documents'] / 1e6:,.3g}",
        ]
        for name, size in TEXTS.items()
    ]
    head = ["text", "core hours", *(f"hours on {cores:,} cores" for cores in CORES)]
    return harness.table([*head, "cost, USD", "shards, TB", "million documents"], rows)


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure speed and memory; say what large corpora would take."""
    bench = Bench(folder)
    origin = bench.write("all", int(options.mb * 1e6))
    bench.write("small", START_UP_BYTES)
    bench.both("clean_corpus", 2)
    bench.vocab = bench.run("train_vocab", "all", 2).manifest
    result = {"text": origin} | speed(bench)
    off = {"cleaning.near_duplicate_similarity": 1.0, "examples.held_out_share": 0.05}
    peaks = result["peak_mb"] = {stage: {} for stage in MEASURED}
    for size in sorted(options.memory):
        bench.write(f"{size:g} MB", int(size * 1e6))
        for stage in MEASURED:
            peaks[stage][f"{size:g}"] = bench.run(stage, f"{size:g} MB", settings=off).peak_mb
    rows = [
        [name, f"{value:,.2f}", GOALS.get(name, "")]
        for name, value in result.items()
        if isinstance(value, int | float)
    ]
    of_memory = [
        [stage, size, *(f"{peak:.0f}" for peak in each)]
        for stage, runs in peaks.items()
        for size, each in runs.items()
    ]
    goal = f"peak, MB (goal: times {MEMORY_GOAL} for ten times the text)"
    shown = [
        harness.table(["figure", "measured", "goal"], rows),
        harness.table(["stage", "text, MB", goal, "private, MB"], of_memory),
        f"dupe_factor {DUPE_FACTOR}, {USD_PER_CORE_HOUR} USD a core hour:",
        scale_table(result),
    ]
    return result, "\n\n".join(shown)


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--mb", type=float, default=100.0, help="MB of text")
    parser.add_argument("--memory", type=float, nargs="*", default=[10.0, 100.0], help="MB of text")
    harness.run(parser, {"data_pipeline": measure})


if __name__ == "__main__":
    main()
