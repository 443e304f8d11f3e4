"""Training on a GPU: one JSON file, and one page of Markdown beside it.

    python -m benchmarks.gpu_training [--models base-v2 large-v2] [--lengths 512 128]
        [--seconds 450] [--device cuda] [--results FOLDER]

Nothing but the project is needed: the pieces are random, and nine of ten sequences are full. In
this order until the time is up, and each model in processes of its own:

- whether the device computes what the CPU does, and the same bits again and after a resume,
- kernels and waits of an update, with a trace for chrome://tracing,
- updates by LAMB, eager and compiled: real pieces a second, the share of the vendor's peak (model
  FLOPs utilisation), memory beside the plan,
- updates of Hugging Face's model on the same sequences, padded, eager and compiled,
- fine-tuning on short pairs, in float32 and bfloat16.

``--device cpu --models tiny --lengths 128`` shows on any machine that all of it runs.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from albert_core.config import FinetuningSettings, Precision, TrainingSettings
from albert_core.finetuning.finetuning import Finetuner, Hyperparameters
from albert_core.model.albert import AlbertModel
from albert_core.model.execution import device_here, products_in
from albert_core.planning import model_size, run_plan
from albert_core.tasks.problem import TARGET, Inputs, PooledHead, Sequences
from albert_core.training import batches, loader, ranks, run_log, step
from benchmarks import harness, pretraining
from benchmarks.pretraining import PRECISIONS, VOCAB_SIZE
from flows.recipe import load_recipe

MICRO_BATCH_PIECES = {
    "base-v2": 32_768,
    "large-v2": 16_384,
    "xlarge-v2": 8_192,
    "xxlarge-v2": 4_096,
    "bert-base": 32_768,
    "bert-large": 16_384,
    "tiny": 512,
}
"""Model -> pieces of a micro-batch; an update has `MICRO_BATCHES`."""
MICRO_BATCHES = 2
WAYS, SIDES = ("eager", "compiled"), ("ours", "peer")
FIRST_GROUPS = ("checks", "deterministic", "profiles", "fine-tuning")
"""Groups of jobs of the first model; after them come the speeds of all, side by side."""
MEASURED_SECONDS, WARM_UP = 2.0, 3
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_BITS_AFTER = 6


def rows_of(number: int, length: int) -> batches.Rows:
    """Return ``number`` sequences, nine of ten of them full, shortest first."""
    lengths = np.full(number, length)
    lengths[: number // 10] = np.linspace(8, length, number // 10, dtype=np.int64)
    return pretraining.random_rows(lengths)


Job = Callable[[], dict[str, Any]]
"""Returns figures."""


class Case:
    """One model on one device, for one process."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device, self.settings = name, device, load_recipe(name).model
        self.training = {
            way: TrainingSettings(precision="bfloat16", compile=way == "compiled") for way in WAYS
        }
        self.ranks = ranks.Ranks(0, 1, device)

    def jobs(self, options: argparse.Namespace) -> dict[str, list[tuple[str, Job]]]:
        """Return the jobs of each group, with their titles."""
        longest, folder = max(options.lengths), options.results
        agreement = [
            (f"agreement, {precision}, {way}", partial(self.agreement, precision, way))
            for precision in PRECISIONS
            for way in WAYS
        ]
        bits = [(f"bits, {way}", partial(self.bits, way)) for way in WAYS]
        speeds: dict[str, list[tuple[str, Job]]] = {
            side: [
                (f"{length}, {side} {way}", partial(self.speed, side, way, length))
                for length in options.lengths
                for way in WAYS
            ]
            for side in SIDES
        }
        return {
            "checks": [*bits, *agreement],
            "deterministic": [(f"{title}, deterministic", job) for title, job in bits],
            "profiles": [
                (f"profile, {way}", partial(self.profiled, way, longest, folder)) for way in WAYS
            ],
            "fine-tuning": [
                (f"fine-tuning, {precision}", partial(self.finetuning, precision))
                for precision in PRECISIONS
            ],
            **speeds,
        }

    def state(self, way: str) -> step.TrainState:
        """Return a model before its first update, the same each time."""
        state = pretraining.new_state(self.settings, self.device.type)
        self.ranks.place(state.model, self.training[way])
        return state

    def rows(self, length: int) -> batches.Rows:
        """Return the sequences of a micro-batch."""
        return rows_of(max(2, MICRO_BATCH_PIECES[self.name] // length), length)

    def update(
        self, way: str, length: int, begun: step.TrainState | None = None
    ) -> Callable[[], object]:
        """Return our update, over the same micro-batch some times, and the wait for the last."""
        state = begun or self.state(way)
        rows = self.rows(length)
        batch = rows.batch().each(self.ranks.to_device)
        sizes = pretraining.sizes_of(rows, MICRO_BATCHES)
        under_way: list[step.Update] = []

        def work() -> None:
            self.ranks.seed(state.step)
            whole = loader.UpdateBatch(sizes=sizes, micro_batches=[batch] * MICRO_BATCHES)
            under_way.append(step.train_step(state, whole, self.training[way], self.ranks))
            if len(under_way) > 1:
                under_way.pop(0).read()

        return work

    def peer_update(self, way: str, length: int) -> Callable[[], object]:
        """Return Hugging Face's update, over the same sequences."""
        padded = pretraining.padded(self.rows(length))
        batch = {name: each.to(self.device) for name, each in padded.items()}
        batches = [batch] * MICRO_BATCHES
        return pretraining.peer_of(self.settings, batches, way, self.device.type, is_bfloat16=True)

    def speed(self, side: str, way: str, length: int) -> dict[str, Any]:
        """Return the figures of an update."""
        is_cuda = self.device.type == "cuda"
        if is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        is_ours = side == "ours"
        update = (self.update if is_ours else self.peer_update)(way, length)
        seconds, rows = seconds_of(update, self.device), self.rows(length)
        sizes = pretraining.sizes_of(rows, MICRO_BATCHES)
        flops = model_size.training_flops(self.settings, VOCAB_SIZE, sizes)
        memory = torch.cuda.max_memory_allocated() if is_cuda else math.nan
        planned = model_size.TrainingMemory(
            model=self.settings,
            vocab_size=VOCAB_SIZE,
            num_sequences=len(rows),
            length=length,
            num_predictions=int(rows.num_predictions.max()),
            precision="bfloat16",
            device="cuda",
        ).total
        return {
            "pieces_per_s": sizes.num_pieces / seconds,
            "share_of_peak": flops / seconds / peak_flops(self.device),
            "memory_gb": memory / 1e9,
            "memory_to_plan": memory / planned,
        }

    def profiled(self, way: str, length: int, folder: Path) -> dict[str, Any]:
        """Return what an update launches and waits for; write a trace of it."""
        update = self.update(way, length)
        seconds_of(update, self.device, at_least=0.0)
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as found:
            update()
            _synchronise(self.device)
        found.export_chrome_trace(str(folder / f"{way}.trace.json"))
        events = found.events() or []
        on_device = [e for e in events if e.device_type == DeviceType.CUDA]
        averages = found.key_averages()
        by_time = "self_device_time_total" if on_device else "self_cpu_time_total"
        return {
            "kernels": len(on_device) if on_device else math.nan,
            "waits": sum(e.name in _WAITS for e in events) - 1 if on_device else math.nan,
            "table": averages.table(sort_by=by_time, row_limit=12, max_name_column_width=60),
        }

    def agreement(self, precision: Precision, way: str) -> dict[str, Any]:
        """Return how far loss and gradient are from those of the CPU in float32, as shares."""
        rows, found = rows_of(2, min(512, self.settings.max_position_embeddings)), []
        for device, exact in ((torch.device("cpu"), True), (self.device, False)):
            model = self.state("eager" if exact else way).model.to(device)
            with products_in("float32" if exact else precision, device):
                batch = rows.batch().each(ranks.Ranks(0, 1, device).to_device)
                lm_logits, pair_logits = model(**batch.model_inputs)
            compiled = way == "compiled" and not exact
            lm = step.masked_lm_loss(lm_logits, batch.masked_lm_labels, len(rows.labels), compiled)
            loss = lm + step.sentence_order_loss(
                pair_logits, batch.sentence_order_labels, len(rows)
            )
            loss.backward()
            gradients = [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
            found.append((float(loss.detach()), torch.cat(gradients)))
        (loss_here, here), (loss_there, there) = found
        return {
            "loss": abs(loss_there / loss_here - 1),
            "gradient": float((there - here).norm() / here.norm()),
        }

    def bits(self, way: str) -> dict[str, Any]:
        """Return whether updates give the same bits again, and from a checkpoint on."""
        length = min(512, self.settings.max_position_embeddings)

        def weights(state: step.TrainState, num_updates: int) -> list[Tensor]:
            update = self.update(way, length, state)
            for _ in range(num_updates):
                update()
            return [weight.detach().clone() for weight in state.model.parameters()]

        first, again = (weights(self.state(way), _BITS_AFTER) for _ in range(2))
        begun, resumed = self.state(way), self.state(way)
        weights(begun, _BITS_AFTER // 2)
        with tempfile.TemporaryFile() as file:
            torch.save(begun.tensors(), file)
            file.seek(0)
            resumed.restore(torch.load(file), begun.numbers(), "the benchmark's checkpoint")
        after = weights(resumed, _BITS_AFTER - _BITS_AFTER // 2)
        return {
            "again": all(map(torch.equal, first, again)),
            "resumed": all(map(torch.equal, first, after)),
        }

    def finetuning(self, precision: Precision) -> dict[str, Any]:
        """Return how many short pairs a second are fine-tuned on, in batches of 128."""
        draw = np.random.default_rng(0)
        lengths = np.clip(draw.gamma(5, 8, 1280), 8, 128).astype(int)
        segments = [draw.integers(5, VOCAB_SIZE, size=(2, n // 2)).tolist() for n in lengths]
        sequences = Sequences.of([(a, b) for a, b in segments])
        inputs = Inputs(sequences, {TARGET: draw.integers(0, 3, len(sequences))}, [])
        wanted = Hyperparameters(
            num_steps=10_000,
            batch_size=128,
            learning_rate=1e-5,
            warmup_steps=0,
            encoder_dropout_prob=0.1,
            classifier_dropout_prob=0.1,
            max_seq_length=128,
            evaluation_steps=10_000,
        )
        torch.manual_seed(0)
        encoder, head = AlbertModel(self.settings, VOCAB_SIZE), PooledHead(self.settings, 3, 0.1)
        settings = FinetuningSettings(precision=precision)
        finetuner = Finetuner(encoder, head, inputs, wanted, settings, 0, self.device)
        return {"examples_per_s": 128 / seconds_of(finetuner.update, self.device)}


def seconds_of(
    update: Callable[[], object], device: torch.device, at_least: float = MEASURED_SECONDS
) -> float:
    """Return the seconds that an update takes once it is warm."""
    for _ in range(WARM_UP):
        update()
    _synchronise(device)
    begin, number = time.perf_counter(), 0
    while not number or time.perf_counter() - begin < at_least:
        update()
        number += 1
    _synchronise(device)
    return (time.perf_counter() - begin) / number


def peak_flops(device: torch.device) -> float:
    """Return the operations a second of products in bfloat16; not a number if unknown."""
    if device.type == "cpu":
        return run_log.measured_peak_flops("bfloat16")
    known = run_plan.hardware_called(torch.cuda.get_device_name())
    return math.nan if known is None else known.peak_tflops["bfloat16"] * 1e12


def run(name: str, group: str, until: float, options: argparse.Namespace) -> Any:
    """Do a model's jobs of a group in this process; return their figures by title."""
    case = Case(name, device_here("bfloat16", deterministic=group == "deterministic"))
    assert case.device.type == options.device
    found = {}
    for title, job in case.jobs(options)[group]:
        try:
            result = job() if time.time() < until else {"failed": "no time left"}
        except Exception as error:  # noqa: BLE001 - the others go on
            result = failure(error)
        found[f"{name}, {title}"] = result
        torch._dynamo.reset()  # noqa: SLF001
    return found


def failure(error: Exception) -> dict[str, Any]:
    """Return what stands for the figures of a job that failed."""
    return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def page(result: dict[str, Any]) -> str:
    """Return the figures in Markdown."""
    found, parts = result["cases"], [f"# Training on {result['hardware']['device']}"]
    parts.append(", ".join(f"{name} {value}" for name, value in result["hardware"].items()))
    kinds = {
        "pieces_per_s": "Speed",
        "again": "Bits",
        "gradient": "Distance from the CPU",
        "examples_per_s": "Fine-tuning",
        "kernels": "An update",
        "failed": "Not measured",
    }
    for mark, title in kinds.items():
        cases = {case: figures for case, figures in found.items() if mark in figures}
        if not cases:
            continue
        names = [name for name in next(iter(cases.values())) if name != "table"]
        rows = [[case, *(_shown(each[name]) for name in names)] for case, each in cases.items()]
        heads = ["case", *(name.replace("_", " ") for name in names)]
        parts.append(f"## {title}\n\n{harness.table(heads, rows)}")
        parts += [f"```\n{each['table']}\n```" for each in cases.values() if "table" in each]
    return "\n\n".join(parts) + "\n"


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(options: argparse.Namespace, _: Path) -> tuple[dict[str, Any], str]:
    """Measure what is asked for; write the page beside the results."""
    name = torch.cuda.get_device_name() if options.device == "cuda" else "a CPU"
    cases: dict[str, Any] = {}
    until = time.time() + options.seconds
    first = [(options.models[0], group) for group in FIRST_GROUPS]
    for model, group in [*first, *((model, side) for side in SIDES for model in options.models)]:
        limit = until - time.time() + 30
        try:
            if time.time() >= until:
                raise TimeoutError("no time left")
            cases |= harness.alone(run, model, group, until, options, limit_seconds=limit)
        except Exception as error:  # noqa: BLE001 - a process that dies must not end the others
            cases[f"{model}, {group}"] = failure(error)
    result = {"hardware": {"device": name} | harness.hardware(), "cases": cases}
    shown = page(result)
    (options.results / "gpu_training.md").write_text(shown)
    return result, shown


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__)
    known = [name for name in MICRO_BATCH_PIECES if name != "tiny"]
    parser.add_argument("--models", nargs="+", choices=MICRO_BATCH_PIECES, default=known)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 128], help="if full")
    parser.add_argument("--seconds", type=float, default=450, help="after which none is begun")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    if parser.parse_args().device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "torch finds no CUDA device; --device cpu --models tiny runs anywhere\n")
    harness.run(parser, {"gpu_training": measure})


if __name__ == "__main__":
    main()
