"""What tracking and checkpoints take of a pretraining run's time: MLflow in a file, on a server.

    python -m benchmarks.tracking [--num-steps N] [--results FILE]

A short run of a small ALBERT (3 layers, 256 wide) on real text, once with MLflow in SQLite and
once on a server of its own on this machine. Counted is how long the training's own thread is held
up, waits at the end included, and, apart, what importing MLflow takes. A progress line every few
seconds and four checkpoints are far more than a real run has in that time.
"""

import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.english_text import make_examples
from benchmarks.harness import alone, arguments, report, table
from tests.mlflow_server import MlflowServer

GOAL = 0.01
LENGTH, BATCH_SIZE = 128, 16
TEXT_BYTES = 10_000_000


def run_once(examples: str, work: str, num_steps: int) -> dict[str, float]:
    """Train in this process; return its seconds, and those that went into tracking and saving."""
    begin = time.perf_counter()
    importlib.import_module("torch")
    imported_torch = time.perf_counter()
    tracking = importlib.import_module("albert_core.tracking.run")
    imported_tracking = time.perf_counter()
    from albert_core import checkpoint
    from albert_core.config import ModelSettings, TrainingSettings
    from albert_core.training import pretrain

    runs = noted(tracking.TrackedRun, "finish")
    writers = noted(checkpoint.CheckpointWriter, "wait")
    settings = TrainingSettings(
        num_steps=num_steps,
        batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE,
        warmup_steps=num_steps // 10,
        log_steps=5,
        checkpoint_steps=num_steps // 4,
        evaluation_steps=num_steps // 2,
        max_evaluation_examples=64,
        precision="bfloat16",
    )
    model = ModelSettings(
        hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024
    )
    pretrain.run(model, settings, examples, work)
    return {
        "run": time.perf_counter() - begin,
        "import_mlflow": imported_tracking - imported_torch,
        "tracking": sum(run.seconds for run in runs),
        "tracking_failures": sum(run.num_failures for run in runs),
        "checkpoints": sum(writer.seconds for writer in writers),
    }


def noted(kind: type, method: str) -> set[Any]:
    """Return a set that will hold every object of ``kind`` whose ``method`` is called."""
    objects: set[Any] = set()
    call = getattr(kind, method)

    def note(self: Any, *rest: Any) -> Any:
        objects.add(self)
        return call(self, *rest)

    setattr(kind, method, note)
    return objects


def measure(examples: str, num_steps: int, folder: Path, uri: str = "") -> dict[str, float]:
    """Train in a process of its own, with MLflow at ``uri`` or in a file; return its seconds."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
    work = folder / ("away" if uri else "file")
    work.mkdir()
    seconds: dict[str, float] = alone(run_once, examples, str(work), num_steps)
    return seconds


def shown(cases: dict[str, dict[str, float]]) -> str:
    """Return the figures with their goal, in Markdown."""
    rows = []
    for case, seconds in cases.items():
        run, held_up = seconds["run"], seconds["tracking"] + seconds["checkpoints"]
        shares = [seconds["tracking"] / run, seconds["checkpoints"] / run, held_up / run]
        importing = f"{seconds['import_mlflow']:.1f}"
        rows.append([case, f"{run:.0f}", *(f"{share:.2%}" for share in shares), importing])
    head = ["MLflow", "run, s", "tracking", "checkpoints", f"together (goal {GOAL:.0%})"]
    return table([*head, "import of MLflow, s"], rows)


def main() -> None:
    """Measure both; print a table and a line of JSON."""
    parser = arguments(__doc__, "tracking")
    parser.add_argument("--num-steps", type=int, default=100, help="updates, of 16 x 128 pieces")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as name:
        folder = Path(name)
        origin, manifests = make_examples(folder, TEXT_BYTES, [LENGTH])
        given = (manifests[LENGTH], options.num_steps, folder)
        cases = {"SQLite": measure(*given)}
        with MlflowServer(folder / "server") as server:
            cases["server"] = measure(*given, server.url)
    report({"text": origin, "seconds": cases}, shown(cases), options.results)


if __name__ == "__main__":
    main()
