"""An update of ALBERT base against Hugging Face's `AlbertForPreTraining`, eager and compiled.

    python benchmarks/training_step.py [--no-compiled] [--results FILE]

The same weights, batches and optimizer (our LAMB) on two threads, in turn in one process. Full
sequences, and updates of the lengths that the stages give on real English text: the peer pads them
in random micro-batches, ours sorts and packs them. Speed is in real pieces per CPU second; ratios
are the medians of the rounds'. Beside them the share of the machine's peak in matrix products,
measured in the same rounds, that the model's own operations reach; and the memory of a step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch
import torch.nn.functional as F
from _padded_batches import padded
from _real_examples import make_examples
from _stage_runs import hardware, report
from transformers import AlbertConfig
from transformers import AlbertForPreTraining as HuggingFaceAlbert

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.model_folder import hf_config, to_hf_state
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.flops import training_flops
from albert_core.text.ragged import Ints
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import UpdateBatch, UpdateSizes, deal_update
from albert_core.training.ranks import ALONE
from albert_core.training.shards import ExampleShards, Rows
from albert_core.training.step import TrainState, train_step

RESULTS = Path(__file__).parent / "results" / "training_step.json"
MODEL, VOCAB_SIZE = ModelSettings(), 30_000
MICRO_BATCHES = {128: 16, 512: 4}
"""Length -> sequences in a micro-batch; an update of real lengths has two of them."""
PRECISIONS: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
ROUNDS = 3
TEXT_BYTES = 6_000_000
GOALS = {
    "float32 full": 1.4,
    "bfloat16 full": 1.5,
    "bfloat16 real": 1.8,
    "float32 peak": 0.95,
    "bfloat16 peak": 0.75,
    "memory": 0.6,
}
_PREDICTED_SHARE = 0.15

Step = Callable[[], object]


def full_rows(num_sequences: int, length: int) -> Rows:
    """Return full sequences of random pieces."""
    draw = np.random.default_rng(0)
    number = round(length * _PREDICTED_SHARE)
    positions = [np.sort(draw.permutation(length)[:number]) for _ in range(num_sequences)]
    return Rows(
        input_ids=draw.integers(5, VOCAB_SIZE, num_sequences * length).astype(np.uint16),
        lengths=np.full(num_sequences, length),
        segment_b_starts=np.full(num_sequences, length // 2),
        positions=np.concatenate(positions).astype(np.uint16),
        labels=draw.integers(5, VOCAB_SIZE, num_sequences * number).astype(np.uint16),
        num_predictions=np.full(num_sequences, number),
        sentence_order_labels=draw.integers(0, 2, num_sequences),
    )


def typical(examples: ExampleShards, number: int) -> Ints:
    """Return ``number`` examples, in random order, whose lengths lie as those of all do.

    They are the middles of as many equal parts of all examples in order of length: few drawn by
    chance would have more padding than all, or less.
    """
    lengths, _ = examples.sizes(np.arange(len(examples)))
    middles = (np.arange(number) + 0.5) * len(examples) / number
    by_length = np.argsort(lengths, kind="stable")[middles.astype(np.int64)]
    return np.random.default_rng(0).permutation(by_length)


def our_step(model: AlbertForPretraining, rows: Rows, length: int, precision: Any) -> Step:
    """Return a function that does our update over ``rows``."""
    state = TrainState(model=model.train(), optimizer=build_optimizer(model, "lamb", 1e-3, 0.01))
    settings = TrainingSettings(precision=precision)
    budget = MICRO_BATCHES[length] * length
    parts = [rows.take(places) for places in deal_update(rows.lengths, 0, 1, budget)]
    whole = UpdateBatch(
        sizes=UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum())),
        micro_batches=[part.batch() for part in parts],
    )
    return lambda: train_step(state, whole, settings, ALONE)


def peer_step(
    model: HuggingFaceAlbert, rows: Rows, length: int, precision: str, compiled: bool
) -> Step:
    """Return a function that does Hugging Face's update over ``rows``, in their random order."""
    run = torch.compile(model) if compiled else model
    optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
    size = MICRO_BATCHES[length]
    parts = list(rows.split([*range(size, len(rows), size), len(rows)]))
    batches = [padded(part) for part in parts]

    def step() -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                loss = run(**batch).loss
            (loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def models() -> tuple[AlbertForPretraining, HuggingFaceAlbert]:
    """Return both, with the same weights."""
    torch.manual_seed(0)
    ours = AlbertForPretraining(MODEL, VOCAB_SIZE)
    config = {k: v for k, v in hf_config(MODEL, VOCAB_SIZE).items() if k != "albert_core"}
    theirs = HuggingFaceAlbert(AlbertConfig(**config)).train()
    theirs.load_state_dict(to_hf_state(ours))
    return ours, theirs


def cpu_seconds(step: Step) -> float:
    """Return the CPU seconds of one call."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def peak_flops(precision: str) -> float:
    """Return operations per CPU second of the feed-forward's own matrix product."""
    dtype = getattr(torch, precision)
    x, weight = (torch.randn(n, MODEL.hidden_size).to(dtype) for n in (2048, 3072))
    F.linear(x, weight)
    calls = 6
    seconds = cpu_seconds(lambda: [F.linear(x, weight) for _ in range(calls)])
    return calls * 2 * 2048 * 3072 * MODEL.hidden_size / seconds


def measure(rows: Rows, length: int, precision: str, peers: Sequence[str]) -> dict[str, float]:
    """Return the figures of one case, with each of ``peers``: eager, compiled."""
    ours, theirs = models()
    steps = {"ours": our_step(ours, rows, length, precision)}
    for peer in peers:
        steps[peer] = peer_step(theirs, rows, length, precision, peer == "compiled")
    peaks, seconds = [], {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        peaks.append(peak_flops(precision))
        for name, step in steps.items():
            spent = cpu_seconds(step)
            if number:  # the first round compiles, and fetches memory
                seconds[name].append(spent)
    mine = statistics.median(seconds["ours"])
    flops = training_flops(MODEL, VOCAB_SIZE, rows.lengths, int(rows.num_predictions.sum()))
    width = int(rows.lengths.max())
    result = {
        "padding_share": 1 - float(rows.lengths.sum()) / (width * len(rows)),
        "pieces_per_cpu_s": float(rows.lengths.sum()) / mine,
        "share_of_peak": flops / mine / statistics.median(peaks),
        "peak_gflops": statistics.median(peaks) / 1e9,
    }
    for peer in peers:
        ratios = [a / b for a, b in zip(seconds[peer], seconds["ours"], strict=True)]
        result[f"times_{peer}"] = statistics.median(ratios)
    return result


def step_memory(whose: str, precision: str) -> float:
    """Return the MB that two updates add to this process, at 4 x 512."""
    rows, (ours, theirs) = full_rows(4, 512), models()
    if whose == "ours":
        step = our_step(ours, rows, 512, precision)
    else:
        step = peer_step(theirs, rows, 512, precision, compiled=False)
    peak_flops(precision)  # the library's own room for matrix products
    before = _status_mb("VmRSS")
    step()
    step()
    return _status_mb("VmHWM") - before  # not getrusage's, which begins with the parent's


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


def _memory_of(whose: str, precision: str) -> float:
    command = [sys.executable, __file__, "--memory", f"{whose} {precision}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def table(result: dict[str, Any]) -> str:
    """Return the figures with their goals, in Markdown."""
    lines = [
        "| case | times the peer | times the compiled peer | share of peak | pieces per CPU s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case, figures in result["cases"].items():
        precision, _, kind = case.split(", ")
        goal = GOALS.get(f"{precision} {kind}")
        share = f"{figures['share_of_peak']:.2f}"
        if kind == "full":
            share += f" (goal {GOALS[f'{precision} peak']})"
        eager = f"{figures['times_eager']:.2f}" + (f" (goal {goal})" if goal else "")
        compiled = f"{figures['times_compiled']:.2f}" if "times_compiled" in figures else ""
        speed = f"{figures['pieces_per_cpu_s']:,.0f}"
        lines.append(f"| {case} | {eager} | {compiled} | {share} | {speed} |")
    for precision, memory in result["memory_mb"].items():
        share = memory["ours"] / memory["peer"]
        lines.append(
            f"| memory of a step, 4 x 512, {precision} | {memory['ours']:,.0f} MB of "
            f"{memory['peer']:,.0f}: {share:.2f} (goal at most {GOALS['memory']}) | | | |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all cases; print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-compiled", action="store_true", help="without the compiled peer")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(step_memory(*options.memory.split()))
        return
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        origin, manifests = make_examples(Path(folder), TEXT_BYTES, list(MICRO_BATCHES))
        for length, size in MICRO_BATCHES.items():
            examples = ExampleShards(manifests[length], "train")
            some = typical(examples, 2 * size)
            for precision in PRECISIONS:
                peers = ["eager"] if options.no_compiled else ["eager", "compiled"]
                name = f"{precision}, {size} x {length}"
                cases[f"{name}, full"] = measure(full_rows(size, length), length, precision, peers)
                print(name, cases[f"{name}, full"], file=sys.stderr)
                cases[f"{name}, real"] = measure(examples.rows(some), length, precision, ["eager"])
    memory = {p: {who: _memory_of(who, p) for who in ("ours", "peer")} for p in PRECISIONS}
    result = {
        "text": origin,
        "cases": cases,
        "memory_mb": memory,
        "threads": torch.get_num_threads(),
        "hardware": hardware() | {"torch": torch.__version__},
    }
    report(result, table(result), options.results)


if __name__ == "__main__":
    main()
