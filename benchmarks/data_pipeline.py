"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python -m benchmarks.data_pipeline [--mb 100] [--memory 10 100] [--scale] [--results FILE]

Runs the stages clean_corpus and make_examples as real processes, with one worker and with two, on
real English text. CPU seconds are of all processes together, without start-up, which is that of
the same stages on 50 kB. The limit is taken between the stages' runs. The ratio is limit to
stages: at 1, all else would cost nothing.

Then the peak memory of both stages with one worker and without near-duplicates, at growing sizes
of text; "private" leaves out pages of mapped files, which the kernel drops when it needs the room.

At the end, what large corpora would take by these rates: an extrapolation, in which CPU seconds
grow with the text. ``--scale`` only says this again, from the results file. What grows otherwise
are the reads of the shuffle: every example shard reads a slice of every part.
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.tokenizer import Tokenizer, normalise_for_pieces
from benchmarks import harness
from benchmarks.english_text import documents_of, write_english

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
    processor = Tokenizer.load(str(Path(vocab).parent)).processor
    sentences = [
        line
        for _, text in documents_of(corpus)
        for sentence in text.split("\n")
        if (line := normalise_for_pieces(sentence, lower_case=True))
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
    """The runs, each in a folder of its own, so that none finds another's work done."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder, self.is_short = folder, num_bytes < SHORT_BYTES
        self.origin = write_english(folder / "all", num_bytes)
        write_english(folder / "small", START_UP_BYTES)
        self.recipes = [self._recipe(size) for size in ("small", "all")]
        made = [self._run("clean_corpus", n, 2, "begin") for n in (0, 1)]
        self.corpora = [each.manifest for each in made]
        inputs = {"corpus": self.corpora[1], "work": str(folder / "begin1")}
        self.vocab = harness.run_stage("train_vocab", self.recipes[1], 2, **inputs).manifest

    def _recipe(self, size: str, **settings: Any) -> Path:
        # Enough documents aside that even so few give a held-out example.
        settings |= {"examples.held_out_share": 0.3} if size == "small" or self.is_short else {}
        path = self.folder / f"{size}{len(settings)}{list(settings.values())}.json"
        return harness.write_recipe(path, self.folder / size, **settings)

    def _run(
        self, module: str, number: int, workers: int, name: str, recipe: Path | None = None
    ) -> harness.StageRun:
        inputs = {"work": str(self.folder / f"{name}{number}")}
        if module == "make_examples":
            inputs |= {"corpus": self.corpora[number], "vocab": self.vocab}
        return harness.run_stage(module, recipe or self.recipes[number], workers, **inputs)

    def both(self, module: str, workers: int, **settings: Any) -> list[harness.StageRun]:
        """Return a stage's costs on next to nothing, and on all."""
        name = f"{module}-{workers}-{'-'.join(map(str, settings.values()))}"
        small = self._run(module, 0, workers, name)
        changed = {f"examples.{key}": value for key, value in settings.items()}
        recipe = self._recipe("all", **changed) if settings else None
        return [small, self._run(module, 1, workers, name, recipe)]


def measure(bench: Bench) -> dict[str, Any]:
    """Return all figures of speed."""
    limits, costs, walls = [], {}, {}
    stages = ("clean_corpus", "make_examples")
    with harness.Process(encoding, bench.corpora[1], bench.vocab) as limit:
        num_pieces = limit.turn()[0]
        limits.append(limit.turn()[1])
        for workers in (1, 2):
            for stage in stages:
                small, full = bench.both(stage, workers)
                costs[stage, workers] = full.cpu_seconds - small.cpu_seconds
                walls[stage, workers] = full.wall_seconds - small.wall_seconds
                if workers == 1:
                    plain = full
                limits.append(limit.turn()[1])
    zstd = bench.both("make_examples", 1, compression="zstd")[1]
    small, copies = bench.both("make_examples", 1, dupe_factor=NUM_COPIES)
    clean, make = (costs[stage, 1] for stage in stages)
    further = (copies.cpu_seconds - small.cpu_seconds - make) / (NUM_COPIES - 1)
    encoded = statistics.mean(limits)
    one, two = (sum(walls[stage, workers] for stage in stages) for workers in (1, 2))
    return {
        "text": bench.origin,
        "text_mb": sum(f.stat().st_size for f in (bench.folder / "all").iterdir()) / 1e6,
        "documents": read_manifest(bench.corpora[1]).account("documents").kept,
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
    tables = [read_arrow(str(folder / shard.path)) for shard in shards]
    pieces = sum(len(chunk.flatten()) for each in tables for chunk in each["input_ids"].chunks)
    return sum(shard.num_bytes for shard in shards) / pieces


def memory(folder: Path, sizes_mb: Sequence[float]) -> dict[str, dict[str, list[float]]]:
    """Return the peaks of both stages at each size of text, in all and private, in MB."""
    found: dict[str, dict[str, list[float]]] = {"clean_corpus": {}, "make_examples": {}}
    vocab = ""
    for size in sizes_mb:
        home = folder / f"memory-{size:g}"
        write_english(home / "text", int(size * 1e6))
        off = {"cleaning.near_duplicate_similarity": 1.0, "examples.held_out_share": 0.05}
        recipe = harness.write_recipe(home / "recipe.json", home / "text", **off)
        clean = harness.run_stage("clean_corpus", recipe, 1, work=str(home))
        inputs = {"corpus": clean.manifest, "work": str(home)}
        vocab = vocab or harness.run_stage("train_vocab", recipe, 1, **inputs).manifest
        make = harness.run_stage("make_examples", recipe, 1, vocab=vocab, **inputs)
        for stage, run in (("clean_corpus", clean), ("make_examples", make)):
            found[stage][f"{size:g}"] = [run.peak_mb, run.peak_private_mb]
    return found


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


def main() -> None:
    """Measure, print and write the results."""
    parser = harness.arguments(__doc__, "data_pipeline")
    parser.add_argument("--mb", type=float, default=100.0, help="MB of text")
    parser.add_argument("--memory", type=float, nargs="*", default=[10.0, 100.0], help="MB of text")
    parser.add_argument("--scale", action="store_true", help="only that, of the results there are")
    options = parser.parse_args()
    if options.scale:
        print(scale_table(json.loads(options.results.read_text())))
        return
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        result = measure(Bench(Path(folder), int(options.mb * 1e6)))
        result["peak_mb"] = memory(Path(folder), sorted(options.memory))
    rows = [
        [name, f"{value:,.2f}", GOALS.get(name, "")]
        for name, value in result.items()
        if isinstance(value, int | float)
    ]
    of_memory = [
        [stage, size, *(f"{peak:.0f}" for peak in peaks)]
        for stage, runs in result["peak_mb"].items()
        for size, peaks in runs.items()
    ]
    goal = f"peak, MB (goal: times {MEMORY_GOAL} for ten times the text)"
    shown = [
        harness.table(["figure", "measured", "goal"], rows),
        harness.table(["stage", "text, MB", goal, "private, MB"], of_memory),
        f"dupe_factor {DUPE_FACTOR}, {USD_PER_CORE_HOUR} USD a core hour:",
        scale_table(result),
    ]
    harness.report(result, "\n\n".join(shown), options.results)


if __name__ == "__main__":
    main()
