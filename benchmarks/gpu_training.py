"""Updates of ALBERT on a CUDA device, beside Hugging Face's on the same batches.

    python -m benchmarks.gpu_training [--models base,large,xxlarge] [--results FILE]

Examples of 512 pieces as the stages make them of English text, bfloat16, LAMB. Ours goes through
the training's own loader and update, eager and compiled; the peer pads each micro-batch to its
longest sequence, eager and compiled. As an experiment, outside the training, the passes over one
micro-batch of full sequences are timed as they are and replayed as a CUDA graph. Speed is in real
pieces a second; the share of the peak (model FLOPs utilisation) is of the vendor's dense bfloat16
figure. Each case is a process of its own; one that fails says why, and the others go on.

``--device cpu --models tiny`` shows on any machine that all of it runs.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import set_layer_execution
from albert_core.model.losses import masked_lm_loss, sentence_order_loss
from albert_core.planning.hardware import hardware_called
from albert_core.planning.parameters import training_flops
from albert_core.training.loader import UpdateLoader
from albert_core.training.optimizer import build_optimizer
from albert_core.training.ranks import Ranks
from albert_core.training.run_log import measured_peak_flops
from albert_core.training.shards import Batch, ExampleShards, Rows, UpdateBatch, UpdateSizes
from albert_core.training.step import TrainState, train_step
from benchmarks import harness
from benchmarks.english_text import make_examples
from benchmarks.training_step import (
    VOCAB_SIZE,
    in_micro_batches,
    padded,
    peer_update,
    same_in_transformers,
)
from flows.recipe import load_recipe

WAYS = ("ours", "ours compiled", "peer", "peer compiled", "passes", "graph of the passes")
MICRO_BATCHES = {"base": 64, "large": 32, "xxlarge": 8, "tiny": 2}
"""Model -> examples of full length in a micro-batch; an update has `MICRO_BATCHES_PER_UPDATE`."""
MICRO_BATCHES_PER_UPDATE = 4
UPDATES = {"cuda": (4, 16), "cpu": (1, 2)}
"""To warm up, in which compiled layers are compiled, and to time."""
GOALS = {"base": (600_000, 867_000), "large": (200_000, 251_000)}
"""Real pieces a second on an H200: at first, and at half of the peak."""
TEXT_BYTES = 10_000_000
CASE_SECONDS = 540
_TINY = {"embedding_size": 16, "hidden_size": 32, "intermediate_size": 64}
_TINY |= {"num_hidden_layers": 2, "num_attention_heads": 2}


class Case:
    """One model on one device, with its examples.

    Args:
        name: of the model: a recipe, or tiny.
        device: cuda or cpu.
        manifest: of the examples.
        compiled: whether our layers are, or the peer is.
    """

    def __init__(self, name: str, device: str, manifest: str, compiled: bool) -> None:
        self.device, self.compiled = torch.device(device), compiled
        self.warm_up, self.timed = UPDATES[device]
        is_tiny = name == "tiny"
        self.model_settings = (
            ModelSettings(**_TINY) if is_tiny else load_recipe(f"{name}-v2").model  # no dropout
        )
        self.micro_batch_size = MICRO_BATCHES[name]
        self.batch_size = MICRO_BATCHES_PER_UPDATE * self.micro_batch_size
        self.settings = TrainingSettings(precision="bfloat16", micro_batch_size=MICRO_BATCHES[name])
        self.examples = ExampleShards(manifest, "train")
        torch.manual_seed(0)
        self.model = AlbertForPretraining(self.model_settings, VOCAB_SIZE).train()

    def ours(self) -> dict[str, float]:
        """Return the figures of our updates, from the loader to LAMB."""
        model = self.model.to(self.device)
        set_layer_execution(model.encoder.blocks, self.compiled, activation_checkpointing=False)
        optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
        state, ranks = TrainState(model=model, optimizer=optimizer), Ranks(0, 1, self.device)
        with self._loader() as loader:
            updates = iter(loader)
            for batch in islice(updates, self.warm_up):
                train_step(state, self._on_device(batch), self.settings, ranks)
            self._synchronise()
            waited, begin = loader.waited_seconds, time.perf_counter()
            taken = []
            for batch in islice(updates, self.timed):
                taken.append(batch.sizes)
                train_step(state, self._on_device(batch), self.settings, ranks)
            self._synchronise()
            seconds = time.perf_counter() - begin
        return self._figures(
            num_pieces=sum(sizes.num_pieces for sizes in taken),
            flops=sum(self._flops(sizes) for sizes in taken),
            seconds=seconds,
        ) | {"data_wait_share": (loader.waited_seconds - waited) / seconds}

    def peer(self) -> dict[str, float]:
        """Return the figures of Hugging Face's updates on the same examples, padded."""
        model = same_in_transformers(self.model).to(self.device)
        optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
        run = torch.compile(model) if self.compiled else model
        rows = [self._rows(number) for number in range(self.warm_up + self.timed)]
        size = self.micro_batch_size
        for tried in range(int(math.log2(size)) + 1):
            try:
                self._peer_update(run, optimizer, rows[0], size)
                break
            except torch.OutOfMemoryError:
                optimizer.zero_grad(set_to_none=True)
                size = self.micro_batch_size >> (tried + 1)
        for each in rows[1 : self.warm_up]:
            self._peer_update(run, optimizer, each, size)
        self._synchronise()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        for each in rows[self.warm_up :]:
            self._peer_update(run, optimizer, each, size)
        self._synchronise()
        sizes = [_sizes(each) for each in rows[self.warm_up :]]
        return self._figures(
            num_pieces=sum(each.num_pieces for each in sizes),
            flops=sum(self._flops(each) for each in sizes),
            seconds=time.perf_counter() - begin,
        ) | {"micro_batch_size": size}

    def passes(self) -> dict[str, float]:
        """Return the figures of forward and backward passes over one full micro-batch."""
        batch, sizes, pass_over = self._full_passes()
        for _ in range(self.warm_up):
            pass_over(batch)
        return self._timed(lambda: pass_over(batch), sizes)

    def graph(self) -> dict[str, float]:
        """Return the same with the passes recorded once, as a CUDA graph, and replayed."""
        batch, sizes, pass_over = self._full_passes()
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(self.warm_up):
                pass_over(batch)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pass_over(batch)
        return self._timed(graph.replay, sizes)

    def check(self) -> float:
        """Return how far our bfloat16 loss on the device is from float32 on the CPU, as a share."""
        rows = next(self._rows(0).split([2]))
        found = []
        for device, is_exact in ((torch.device("cpu"), True), (self.device, False)):
            model, batch = self.model.to(device), rows.batch().to(device)
            with (
                torch.no_grad(),
                torch.autocast(device.type, torch.bfloat16, enabled=not is_exact),
            ):
                found.append(float(self._loss(model, batch, _sizes(rows))))
        return abs(found[1] / found[0] - 1)

    def _full_passes(self) -> tuple[Batch, UpdateSizes, Callable[[Batch], None]]:
        model = self.model.to(self.device)
        set_layer_execution(model.encoder.blocks, self.compiled, activation_checkpointing=False)
        longest = self.examples.result.max_seq_length
        lengths, _ = self.examples.sizes(np.arange(len(self.examples)))
        numbers = np.resize(np.flatnonzero(lengths == longest), self.micro_batch_size)
        rows = self.examples.rows(numbers)
        batch, sizes = rows.batch().to(self.device), _sizes(rows)

        def pass_over(batch: Batch) -> None:
            with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
                loss = self._loss(model, batch, sizes)
            loss.backward()

        return batch, sizes, pass_over

    def _loss(self, model: AlbertForPretraining, batch: Batch, sizes: UpdateSizes) -> Tensor:
        lm_logits, pair_logits = model.forward_packed(**batch.model_inputs)
        lm = masked_lm_loss(lm_logits, batch.masked_lm_labels, sizes.num_predictions)
        pair_labels = batch.sentence_order_labels
        return lm + sentence_order_loss(pair_logits, pair_labels, sizes.num_sequences)

    def _peer_update(self, run: Any, optimizer: Any, rows: Rows, size: int) -> None:
        parts = in_micro_batches(rows, size)
        batches = map(self._padded_on_device, parts)
        peer_update(run, optimizer, batches, len(parts), self.device.type, is_bfloat16=True)

    def _padded_on_device(self, rows: Rows) -> dict[str, Tensor]:
        batch = padded(rows)
        if self.device.type == "cuda":
            for name, tensor in batch.items():
                batch[name] = tensor.pin_memory().to(self.device, non_blocking=True)
        return batch

    def _loader(self) -> UpdateLoader:
        settings = TrainingSettings(
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            seed=0,
            masks="fresh",
        )
        ranks, num_updates = Ranks(0, 1, self.device), self.warm_up + self.timed
        return UpdateLoader(
            self.examples, settings, ranks, first_example=0, num_updates=num_updates
        )

    def _on_device(self, batch: UpdateBatch) -> UpdateBatch:
        moved = (each.to(self.device) for each in batch.micro_batches)
        return UpdateBatch(sizes=batch.sizes, micro_batches=moved)

    def _rows(self, number: int) -> Rows:
        begin = number * self.batch_size
        return self.examples.rows(np.arange(begin, begin + self.batch_size) % len(self.examples))

    def _timed(self, step: Callable[[], None], sizes: UpdateSizes) -> dict[str, float]:
        self._synchronise()
        begin = time.perf_counter()
        for _ in range(self.timed):
            step()
        self._synchronise()
        seconds = (time.perf_counter() - begin) / self.timed
        return self._figures(sizes.num_pieces, self._flops(sizes), seconds)

    def _flops(self, sizes: UpdateSizes) -> float:
        return training_flops(self.model_settings, VOCAB_SIZE, sizes)

    def _figures(self, num_pieces: int, flops: float, seconds: float) -> dict[str, float]:
        return {
            "pieces_per_s": num_pieces / seconds,
            "share_of_peak": flops / seconds / self._peak(),
            "peak_memory_gb": self._memory_gb(),
        }

    def _peak(self) -> float:
        if self.device.type == "cpu":
            return measured_peak_flops("bfloat16")
        known = hardware_called(torch.cuda.get_device_name())
        return float("nan") if known is None else known.peak_tflops["bfloat16"] * 1e12

    def _memory_gb(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else 0.0

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _sizes(rows: Rows) -> UpdateSizes:
    return UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum()))


def run_case(name: str, way: str, device: str, manifest: str) -> dict[str, Any]:
    """Return the figures of one case, in this process."""
    case = Case(name, device, manifest, compiled=way.endswith("compiled"))
    if way == "graph of the passes":
        return case.graph()
    if way == "passes":
        return case.passes()
    if way.startswith("peer"):
        return case.peer()
    return {"loss_off": case.check()} | case.ours()


def examples_for(folder: Path) -> tuple[str, str]:
    """Return where the examples are from, and their manifest."""
    # Without the published vocabulary one is trained, of as many pieces as the text allows.
    changed = {} if harness.PUBLISHED_MODEL.is_file() else {"vocabulary.vocab_size": 8000}
    origin, manifests = make_examples(folder, TEXT_BYTES, [512], **changed)
    return origin, manifests[512]


def shown(cases: dict[str, dict[str, Any]]) -> str:
    """Return the figures with their goals, in Markdown."""
    rows: list[list[object]] = []
    for case, figures in cases.items():
        if "failed" in figures:
            rows.append([case, figures["failed"], "", "", ""])
            continue
        name, way = case.split(", ")
        has_goals = name in GOALS and way.startswith("ours")
        goals = " (goals {:,} and {:,})".format(*GOALS[name]) if has_goals else ""
        waited = figures.get("data_wait_share")
        speed = f"{figures['pieces_per_s']:,.0f}{goals}"
        waiting = "" if waited is None else f"{waited:.2%}"
        share = f"{figures['share_of_peak']:.3f}"
        rows.append([case, speed, share, waiting, f"{figures['peak_memory_gb']:.1f}"])
    head = ["case", "real pieces/s", "share of peak", "waiting for data", "memory, GB"]
    return harness.table(head, rows)


def main() -> None:
    """Measure the cases asked for; print a table and a line of JSON."""
    parser = harness.arguments(__doc__, "gpu_training")
    parser.add_argument("--models", default="base,large,xxlarge", help=", ".join(MICRO_BATCHES))
    parser.add_argument("--ways", default=",".join(WAYS), help="which of the cases")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--examples", help="manifest of examples of 512 pieces, if there are any")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(
            1, "there is no CUDA device here; --device cpu --models tiny shows that it runs\n"
        )
    device_name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    result: dict[str, Any] = {
        "hardware": harness.hardware() | {"device": device_name},
        "cases": {},
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        if options.examples:
            result["text"], manifest = options.examples, options.examples
        else:
            result["text"], manifest = examples_for(Path(folder))
        for name in options.models.split(","):
            for way in options.ways.split(","):
                if way == "graph of the passes" and options.device == "cpu":
                    continue
                case = (name, way, options.device, manifest)
                try:
                    figures = harness.alone(run_case, *case, limit_seconds=CASE_SECONDS)
                except harness.ContestantError as error:
                    figures = {"failed": str(error)}
                result["cases"][f"{name}, {way}"] = figures
                print(f"{name}, {way}: {figures}", file=sys.stderr, flush=True)
                options.results.write_text(json.dumps(result, indent=1) + "\n")
    harness.report(result, shown(result["cases"]), options.results)


if __name__ == "__main__":
    main()
