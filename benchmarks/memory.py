"""How much more memory the text stages need for ten times the text.

    python benchmarks/memory.py [--mb 10 100]        (--mb 10 100 1000 takes a long while)

Resident memory of all the processes of clean_corpus and of make_examples, with one worker and
without near-duplicates, at its highest, looked at ten times a second. "Private" leaves out pages
of files that are mapped, which the kernel drops when it needs the room. The goal is that ten times
the text takes at most 1.3 times the memory.
"""

import argparse
import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path

from _english_text import write_english
from _stage_runs import StageRun, hardware, run_stage, write_recipe

GOAL = 1.3
"""Times the memory for ten times the text."""


def run_both(folder: Path, num_mb: float, vocab: str | None) -> tuple[dict[str, StageRun], str]:
    """Return the runs of the two stages on so much text, and the vocabulary for the next size."""
    write_english(folder / "text", int(num_mb * 1e6))
    off = {"cleaning.near_duplicate_similarity": 1.0}
    recipe, work = (
        write_recipe(folder / "recipe.json", folder / "text", **off),
        str(folder / "work"),
    )
    clean = run_stage("pipelines.clean_corpus", recipe, 1, work=work)
    corpus = clean.manifest
    vocab = (
        vocab or run_stage("pipelines.train_vocab", recipe, 1, corpus=corpus, work=work).manifest
    )
    make = run_stage("pipelines.make_examples", recipe, 1, corpus=corpus, vocab=vocab, work=work)
    return {"clean_corpus": clean, "make_examples": make}, vocab


def growth(sizes: list[float], peaks: list[float]) -> list[float]:
    """Return how many times the memory each size takes of the one before, for ten times the text.

    Sizes that are not ten times each other are put on that footing by the exponent between them.
    """
    return [
        (after / before) ** (1 / _tens(small, large))
        for (small, large), (before, after) in zip(pairwise(sizes), pairwise(peaks), strict=True)
    ]


def _tens(small: float, large: float) -> float:
    """Return the power of ten that ``large`` is of ``small``."""
    return math.log10(large / small)


def main() -> None:
    """Measure each size, print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, nargs="+", default=[10.0, 100.0], help="MB of text")
    sizes = sorted(parser.parse_args().mb)
    found: dict[str, dict[float, StageRun]] = {"clean_corpus": {}, "make_examples": {}}
    vocab = None
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        for size in sizes:
            runs, vocab = run_both(Path(folder) / f"{size:g}", size, vocab)
            for stage, run in runs.items():
                found[stage][size] = run
    print(_table(found))
    print(json.dumps(_result(found, sizes)))


def _table(found: dict[str, dict[float, StageRun]]) -> str:
    lines = ["| stage | text, MB | peak, MB | of it private, MB |", "| --- | --- | --- | --- |"]
    for stage, runs in found.items():
        for size, run in runs.items():
            lines.append(f"| {stage} | {size:g} | {run.peak_mb:.0f} | {run.peak_private_mb:.0f} |")
    return "\n".join(lines)


def _result(found: dict[str, dict[float, StageRun]], sizes: list[float]) -> dict[str, object]:
    result: dict[str, object] = {"text_mb": sizes, "goal_growth_for_ten_times": GOAL}
    for stage, runs in found.items():
        peaks = [runs[size].peak_mb for size in sizes]
        private = [runs[size].peak_private_mb for size in sizes]
        result[f"{stage}_peak_mb"] = [round(peak) for peak in peaks]
        result[f"{stage}_growth_for_ten_times"] = _two_digits(growth(sizes, peaks))
        result[f"{stage}_growth_for_ten_times_private"] = _two_digits(growth(sizes, private))
    return result | {"hardware": hardware()}


def _two_digits(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    main()
