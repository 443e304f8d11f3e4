"""Text to shards against its limit: SentencePiece encoding the same sentences, and nothing else.

    python benchmarks/data_pipeline.py [--mb 100] [--no-profile] [--results FILE]

Runs the stages clean_corpus and make_examples as real processes, with one worker and with two, on
real English text; prints a table, then a line of JSON, which `scale.py` reads. CPU seconds are of
all processes together, without start-up, which is that of the same stages on 50 kB. The limit is
taken between the stages' runs. The ratio is limit to stages: at 1, all else would cost nothing.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _english_text import write_english
from _stage_runs import StageRun, hardware, run_stage, write_recipe

from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.tokenizer import Tokenizer, normalise_for_pieces

RESULTS = Path(__file__).parent / "results" / "data_pipeline.json"
REFERENCE_PIECES_PER_CPU_SECOND = 58_000
"""create_pretraining_data.py, dupe_factor 1, length 512. Source: REFERENCE.md B.10."""
GOALS = {
    "ratio_to_limit": 0.65,
    "times_reference": 40,
    "speed_up_of_2_workers": 1.7,
    "mb_per_million_pieces_none": 2.7,
    "mb_per_million_pieces_zstd": 1.9,
}
AT_MOST = {"mb_per_million_pieces_none", "mb_per_million_pieces_zstd"}
START_UP_BYTES = 50_000
NUM_COPIES = 4
"""dupe_factor of the run that says what a further copy costs."""
_LINES_PER_CALL = 2000
_CLEAN, _VOCAB, _MAKE = "pipelines.clean_corpus", "pipelines.train_vocab", "pipelines.make_examples"


@dataclass
class Limit:
    """SentencePiece on the sentences of a corpus, timed again and again."""

    sentences: list[str]
    tokenizer: Tokenizer
    num_pieces: int = 0

    def __post_init__(self) -> None:
        self.seconds: list[float] = []

    def measure(self) -> None:
        """Encode all sentences once, with one thread."""
        begin, pieces = time.process_time(), 0
        for start in range(0, len(self.sentences), _LINES_PER_CALL):
            lines = self.sentences[start : start + _LINES_PER_CALL]
            encoded = self.tokenizer.processor.encode(lines, out_type="numpy", num_threads=1)
            pieces += sum(map(len, encoded))
        self.seconds.append(time.process_time() - begin)
        self.num_pieces = pieces

    @property
    def cpu_seconds(self) -> float:
        """Mean of what was measured."""
        return statistics.mean(self.seconds)


class Bench:
    """The runs, each in a folder of its own, so that none finds another's work done."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder = folder
        self.origin = write_english(folder / "text", num_bytes)
        write_english(folder / "small", START_UP_BYTES)
        self.recipe = write_recipe(folder / "recipe.json", folder / "text")
        # Enough documents aside that even so few give a held-out example.
        self.small_recipe = write_recipe(
            folder / "small.json", folder / "small", **{"examples.held_out_share": 0.3}
        )
        self.corpus = ""
        self.small_corpus = ""
        self.vocab = ""

    def work(self, name: str) -> str:
        """Return a new folder for a stage's results."""
        return str(self.folder / "work" / name)

    def begin(self) -> Limit:
        """Make the vocabulary; return the limit, not yet measured."""
        self.small_corpus = run_stage(
            _CLEAN, self.small_recipe, 1, work=self.work("small")
        ).manifest
        self.corpus = run_stage(_CLEAN, self.recipe, 2, work=self.work("begin")).manifest
        vocab = run_stage(_VOCAB, self.recipe, 2, corpus=self.corpus, work=self.work("begin"))
        self.vocab = vocab.manifest
        return Limit(_sentences(self.corpus), Tokenizer.load(str(Path(self.vocab).parent)))

    def clean(self, workers: int) -> tuple[StageRun, StageRun]:
        """Return clean_corpus's costs on next to nothing, and on all."""
        name = f"clean-{workers}"
        small = run_stage(_CLEAN, self.small_recipe, workers, work=self.work(f"{name}-small"))
        return small, run_stage(_CLEAN, self.recipe, workers, work=self.work(name))

    def make(self, workers: int, **settings: Any) -> tuple[StageRun, StageRun]:
        """Return make_examples's costs on next to nothing, and on all."""
        name = "-".join(["make", str(workers), *map(str, settings.values())])
        small = run_stage(
            _MAKE,
            self.small_recipe,
            workers,
            corpus=self.small_corpus,
            vocab=self.vocab,
            work=self.work(f"{name}-small"),
        )
        recipe = self.folder / f"{name}.json"
        write_recipe(
            recipe, self.folder / "text", **{f"examples.{k}": v for k, v in settings.items()}
        )
        inputs = {"corpus": self.corpus, "vocab": self.vocab, "work": self.work(name)}
        return small, run_stage(_MAKE, recipe, workers, None, **inputs)

    def profile(self) -> dict[str, Any]:
        """Return where the CPU time of each stage goes, from runs of their own."""
        found = {}
        for module in (_CLEAN, _MAKE):
            path = self.folder / f"{module}.json"
            inputs: dict[str, str] = {"work": self.work(f"profile-{module}")}
            if module == _MAKE:
                inputs |= {"corpus": self.corpus, "vocab": self.vocab}
            run_stage(module, self.recipe, 1, path, **inputs)
            found[module.rpartition(".")[2]] = json.loads(path.read_text())
        return found


def _sentences(corpus: str) -> list[str]:
    """Return the corpus's sentences as the vocabulary sees them."""
    folder = Path(corpus).parent
    return [
        line
        for shard in read_manifest(corpus).shards_of("documents")
        for text in read_arrow(str(folder / shard.path))["text"].to_pylist()
        for sentence in text.split("\n")
        if (line := normalise_for_pieces(sentence, lower_case=True))
    ]


def _shards_size(examples: str) -> tuple[int, int]:
    """Return the bytes of the Arrow shards, and the pieces in them."""
    manifest, folder = read_manifest(examples), Path(examples).parent
    shards = [s for kind in ("train", "held_out") for s in manifest.shards_of(kind)]
    pieces = sum(
        len(chunk.flatten())
        for shard in shards
        for chunk in read_arrow(str(folder / shard.path))["input_ids"].chunks
    )
    return sum(shard.num_bytes for shard in shards), pieces


def measure(bench: Bench, with_profile: bool) -> dict[str, Any]:
    """Return all figures."""
    limit = bench.begin()
    runs: dict[str, StageRun] = {}
    start_up: dict[str, StageRun] = {}
    limit.measure()
    for workers in (1, 2):
        for stage, run in (("clean", bench.clean), ("make", bench.make)):
            start_up[f"{stage}_{workers}"], runs[f"{stage}_{workers}"] = run(workers)
            limit.measure()
    zstd = bench.make(1, compression="zstd")[1]
    copies_small, copies = bench.make(1, dupe_factor=NUM_COPIES)
    net = {name: run.beyond(start_up[name]) for name, run in runs.items()}
    one_copy, all_copies = net["make_1"].cpu_seconds, copies.beyond(copies_small).cpu_seconds
    result = {
        "text": bench.origin,
        "text_mb": sum(f.stat().st_size for f in (bench.folder / "text").iterdir()) / 1e6,
        "documents": read_manifest(bench.corpus).account("documents").kept,
        "pieces": limit.num_pieces,
        "limit_cpu_s": limit.cpu_seconds,
        "limit_cpu_s_each": limit.seconds,
        "clean_cpu_s": net["clean_1"].cpu_seconds,
        "make_cpu_s": one_copy,
        "make_cpu_s_per_further_copy": (all_copies - one_copy) / (NUM_COPIES - 1),
        "start_up_cpu_s": {name: run.cpu_seconds for name, run in start_up.items()},
        "wall_s": {name: run.wall_seconds for name, run in runs.items()},
        "start_up_wall_s": {name: run.wall_seconds for name, run in start_up.items()},
        "peak_mb": {name: run.peak_mb for name, run in runs.items()},
        **_sizes(runs["make_1"], zstd),
        **_ratios(limit, net, runs),
        "hardware": hardware(),
    }
    return result | ({"cpu_s_by_step": bench.profile()} if with_profile else {})


def _sizes(plain: StageRun, zstd: StageRun) -> dict[str, float]:
    sizes = {"none": _shards_size(plain.manifest), "zstd": _shards_size(zstd.manifest)}
    return {
        f"mb_per_million_pieces_{name}": num_bytes / num_pieces
        for name, (num_bytes, num_pieces) in sizes.items()
    }


def _ratios(limit: Limit, net: dict[str, StageRun], runs: dict[str, StageRun]) -> dict[str, float]:
    both = net["clean_1"].cpu_seconds + net["make_1"].cpu_seconds
    per_second = limit.num_pieces / both

    def wall(of: dict[str, StageRun], workers: int) -> float:
        return of[f"clean_{workers}"].wall_seconds + of[f"make_{workers}"].wall_seconds

    return {
        "ratio_to_limit": limit.cpu_seconds / both,
        "ratio_to_limit_make_examples": limit.cpu_seconds / net["make_1"].cpu_seconds,
        "pieces_per_cpu_s": per_second,
        "times_reference": per_second / REFERENCE_PIECES_PER_CPU_SECOND,
        "times_reference_make_examples": limit.num_pieces
        / net["make_1"].cpu_seconds
        / REFERENCE_PIECES_PER_CPU_SECOND,
        "speed_up_of_2_workers": wall(net, 1) / wall(net, 2),
        "speed_up_of_2_workers_with_start_up": wall(runs, 1) / wall(runs, 2),
    }


def table(result: dict[str, Any]) -> str:
    """Return the figures, the goals beside them, and where the time goes, in Markdown."""
    lines = ["| figure | measured | goal |", "| --- | --- | --- |"]
    for name, value in result.items():
        if isinstance(value, float):
            lines.append(f"| {name} | {value:,.2f} | {_goal(name, value)} |")
        elif isinstance(value, int):
            lines.append(f"| {name} | {value:,} | |")
    for stage, profile in result.get("cpu_s_by_step", {}).items():
        lines += ["", f"| {stage}: step | CPU s | share |", "| --- | --- | --- |"]
        lines += _profile_rows(profile)
    return "\n".join(lines)


def _goal(name: str, value: float) -> str:
    if name not in GOALS:
        return ""
    sign, met = ("<=", value <= GOALS[name]) if name in AT_MOST else (">=", value >= GOALS[name])
    return f"{sign} {GOALS[name]} {'met' if met else 'MISSED'}"


def _profile_rows(profile: dict[str, dict[str, float]]) -> list[str]:
    steps, whole = profile["steps"], sum(profile["steps"].values())
    rows = sorted(steps.items(), key=lambda item: -item[1])
    others = ", ".join(f"{where} {s:.2f}" for where, s in profile["others"].items() if s > 0.01)
    return [
        *(f"| {step} | {seconds:.2f} | {seconds / whole:.1%} |" for step, seconds in rows),
        f"| (other: {others or 'nothing'}) | | |",
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=100.0, help="MB of text")
    parser.add_argument("--no-profile", action="store_true", help="not where the time goes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        result = measure(Bench(Path(folder), int(options.mb * 1e6)), not options.no_profile)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(json.dumps(_rounded(result)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
