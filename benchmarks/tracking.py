"""What tracking and checkpoints take of a pretraining run's time: MLflow in a file, on a server.

    python benchmarks/tracking.py [--num-steps N] [--results FILE]

A short run of a small ALBERT (3 layers, 256 wide) on real text, once with MLflow in SQLite and
once on a server of its own on this machine. Counted is how long the training's own thread is held
up, waits at the end included, and, apart, what the threads beside it compute and what importing
MLflow takes. A progress line every few seconds and four checkpoints are far more than a real run
has in that time.
"""

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _real_examples import make_examples
from _stage_runs import hardware, report

RESULTS = Path(__file__).parent / "results" / "tracking.json"
GOAL = 0.01
LENGTH, BATCH_SIZE = 128, 16
TEXT_BYTES = 10_000_000
_HOST = "127.0.0.1"


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

    cpu_of_threads: dict[str, float] = {}
    run_thread = threading.Thread.run

    def run_and_note(thread: threading.Thread) -> None:
        run_thread(thread)
        so_far = cpu_of_threads.get(thread.name, 0.0)
        cpu_of_threads[thread.name] = so_far + time.thread_time()

    threading.Thread.run = run_and_note
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
        "import_torch": imported_torch - begin,
        "import_mlflow": imported_tracking - imported_torch,
        "tracking": sum(run.seconds for run in runs),
        "tracking_failures": sum(run.num_failures for run in runs),
        "checkpoints": sum(writer.seconds for writer in writers),
        "tracking_thread_cpu": cpu_of_threads["mlflow"],
        "checkpoint_thread_cpu": cpu_of_threads["checkpoint"],
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


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Start an MLflow server on this machine; yield its address."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://{_HOST}:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def measure(examples: str, folder: Path, uri: str | None, num_steps: int) -> dict[str, float]:
    """Train in a process of its own, with MLflow at ``uri`` or in a file; return its seconds."""
    folder.mkdir()
    environment = {name: v for name, v in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    if uri is not None:
        environment["MLFLOW_TRACKING_URI"] = uri
    command = [sys.executable, __file__, "--num-steps", str(num_steps)]
    command += ["--train", examples, "--work", str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(cases: dict[str, dict[str, float]]) -> str:
    """Return the figures with their goal, in Markdown."""
    heads = ["MLflow", "run, s", "tracking", "checkpoints", f"together (goal {GOAL:.0%})"]
    heads += ["CPU s of their threads", "import of MLflow, s"]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for case, seconds in cases.items():
        run, held_up = seconds["run"], seconds["tracking"] + seconds["checkpoints"]
        beside = seconds["tracking_thread_cpu"] + seconds["checkpoint_thread_cpu"]
        lines.append(
            f"| {case} | {run:.0f} | {seconds['tracking'] / run:.2%} "
            f"| {seconds['checkpoints'] / run:.2%} | {held_up / run:.2%} | {beside:.1f} "
            f"| {seconds['import_mlflow']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure both; print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-steps", type=int, default=100, help="updates, of 16 x 128 pieces")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(run_once(options.train, options.work, options.num_steps)))
        return
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as name:
        folder = Path(name)
        origin, manifests = make_examples(folder, TEXT_BYTES, [LENGTH])
        cases = {"SQLite": measure(manifests[LENGTH], folder / "file", None, options.num_steps)}
        with mlflow_server(folder) as url:
            cases["server"] = measure(manifests[LENGTH], folder / "away", url, options.num_steps)
    result = {"text": origin, "seconds": cases, "hardware": hardware()}
    report(result, table(cases), options.results)


if __name__ == "__main__":
    main()
