"""The text stages on each engine that one machine can have, and what a second worker gains.

    python benchmarks/engines.py [source]

Prints one line of JSON: wall and CPU seconds of the three stages, over all their processes, on
one local worker, two, and a Dask cluster of two worker processes; how much faster two are than
one; and whether the bytes are the same. The vocabulary is trained by one process on every engine,
so that it is not in the speed-up. The source is generated text, unless one is given.
"""

import json
import os
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from albert_core.stage.command import stage_argv
from albert_core.stage.manifest import read_manifest
from flows.recipe import load_recipe
from flows.stage_process import run_stage_process
from tests.dask_processes import local_cluster
from tests.generated_text import write_jsonl

NUM_FILES, DOCUMENTS_PER_FILE = 16, 4000
PARALLEL = ("clean_corpus", "make_examples")


def cpu_seconds(pids: list[int]) -> float:
    """Return user and system time of the children that have ended, and of the groups of pids."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + sum(map(_of_group, pids))


def _of_group(leader: int) -> float:
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == leader:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(recipe: Path, work: str, pids: list[int]) -> dict[str, dict[str, float | str]]:
    """Run the stages with the engine that the environment names."""
    inputs = {"work": work}
    measured: dict[str, dict[str, float | str]] = {}
    for module, output in (
        ("clean_corpus", "corpus"),
        ("train_vocab", "vocab"),
        ("make_examples", "examples"),
    ):
        argv = stage_argv(f"pipelines.{module}", str(recipe), **inputs)
        begin, before = time.monotonic(), cpu_seconds(pids)
        inputs[output] = run_stage_process(argv, lambda line: None)
        measured[module] = {
            "wall_s": round(time.monotonic() - begin, 1),
            "cpu_s": round(cpu_seconds(pids) - before, 1),
            "digest": read_manifest(inputs[output]).content[:12],
        }
    return measured


def speed_up(
    one: dict[str, dict[str, float | str]], two: dict[str, dict[str, float | str]]
) -> float:
    """Return how many times faster the stages are that Beam spreads over workers."""
    walls = [sum(float(run[stage]["wall_s"]) for stage in PARALLEL) for run in (one, two)]
    return round(walls[0] / walls[1], 2)


def main() -> None:
    """Run the stages on each engine and print a line of JSON."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        source = sys.argv[1] if len(sys.argv) > 1 else generated(Path(folder, "source"))
        overrides = ["examples.tfrecord=false", "vocabulary.vocab_size=500"]
        recipe = Path(folder, "recipe.json")
        recipe.write_text(load_recipe("tiny", overrides, source).model_dump_json())
        runs = {}
        for workers in ("1", "2"):
            os.environ.update(ALBERT_ENGINE="local", ALBERT_WORKERS=workers)
            name = f"local_{workers}"
            runs[name] = measure(recipe, str(Path(folder, name)), [])
        cluster = running.enter_context(local_cluster(Path(folder), 2))
        os.environ.update(cluster.environment)
        pids = [process.pid for process in cluster.processes]
        runs["dask_2"] = measure(recipe, str(Path(folder, "dask_2")), pids)
    digests = [[stage["digest"] for stage in run.values()] for run in runs.values()]
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        **runs,
        "speed_up_local_2": speed_up(runs["local_1"], runs["local_2"]),
        "speed_up_dask_2": speed_up(runs["local_1"], runs["dask_2"]),
        "same_bytes": all(digest == digests[0] for digest in digests),
    }
    print(json.dumps(result))


def generated(folder: Path) -> str:
    """Write a source of text that looks like English; return its folder."""
    folder.mkdir()
    for number in range(NUM_FILES):
        first = number * DOCUMENTS_PER_FILE
        write_jsonl(folder / f"{number}.jsonl", range(first, first + DOCUMENTS_PER_FILE))
    return str(folder)


if __name__ == "__main__":
    main()
