"""Progress lines, speed, MLflow's curves and the summary of a pretraining run."""

import io
import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from albert_core.checkpoint import checkpoint_digest
from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.conversion.model_files import model_digest
from albert_core.planning import run_plan
from albert_core.planning.model_size import training_flops
from albert_core.planning.run_plan import RunPlan, depths, hardware_called
from albert_core.stage.errors import IntegrityError
from albert_core.stage.results import Estimate, ExamplesResult, model_folder_of
from albert_core.text.records import Sizes
from albert_core.training.held_out import PAIRS_ACCURACY, point_of
from albert_core.training.ranks import Ranks
from albert_core.training.shards import ExampleShards
from albert_core.training.step import TrainState, Update

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun

MEASURING_SECONDS = 0.3
"""How long the peak of a CPU is measured at the start of a run."""
_PROGRESS = {
    "masked_lm_loss": "masked LM {masked_lm_loss:.3f} ({masked_lm_accuracy:.0%})",
    "sentence_order_loss": "order {sentence_order_loss:.3f} ({sentence_order_accuracy:.0%})",
    "next_sentence_loss": "next sentence {next_sentence_loss:.3f} ({next_sentence_accuracy:.0%})",
    "grad_norm": "grad {grad_norm:.2f}",
    "trust_ratio_mean": "trust {trust_ratio_min:.2g}..{trust_ratio_max:.2g}",
    "learning_rate": "lr {learning_rate:.2e}",
    "pieces_per_second": "{pieces_per_second:,.0f} pieces/s",
    "model_flops_utilisation": "MFU {model_flops_utilisation:.0%}",
    "data_wait_share": "data wait {data_wait_share:.0%}",
    "peak_memory_gb": "{peak_memory_gb:.1f} GB",
}
"""The parts of a progress line, by the metric that a point must have for it."""
_STATUS = Path("/proc/self/status")
_WIDTH = 1024
_SAMPLE = 100_000
"""Examples whose lengths the plan is made from; they lie in random order."""

Points = Sequence[dict[str, float]]

log = logging.getLogger("pretraining")


def plan_of(
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
    first_step: int = 0,
) -> RunPlan | None:
    """Return what a run on ``examples`` is planned to reach; every rank must call this.

    ``first_step`` updates are done already: those after it may compute more layers.

    A GPU is looked up by its name; None if it is not known, as a TPU is not. The peak of a CPU is
    measured: `MEASURING_SECONDS` of matrix products, on all ranks at the same time.
    """
    kind, hardware = ranks.device.type, None
    if kind == "cpu":
        peak = torch.tensor(measured_peak_flops(settings.precision), dtype=torch.float64)
        num_cores = torch.get_num_threads() * ranks.world_size
        hardware = run_plan.this_cpu(num_cores, ranks.sum(peak).item() / 1e12)
    elif kind == "cuda":
        hardware = hardware_called(torch.cuda.get_device_name(ranks.device))
    if hardware is None:
        return None
    lengths, num_predictions = examples.sizes(np.arange(min(_SAMPLE, len(examples))))
    sizes = lengths, int(num_predictions.sum()), "the run's examples"
    return RunPlan(
        model=model,
        training=settings,
        vocab_size=examples.result.vocab_size,
        sizes=run_plan.ExampleSizes.mean_of(*sizes),
        max_seq_length=examples.result.max_seq_length,
        max_predictions=examples.result.max_predictions,
        hardware=hardware,
        num_devices=ranks.world_size if kind == "cuda" else 1,
        first_step=min(first_step, settings.num_steps - 1),
    )


def measured_peak_flops(precision: Precision) -> float:
    """Return the operations a second of matrix products on all of this process's threads.

    It is measured in the threads' own time, which other processes do not change.
    """
    one, other = (torch.randn(_WIDTH, _WIDTH).to(getattr(torch, precision)) for _ in range(2))
    _ = one @ other  # the first product is slower
    num_products, began = 0, time.process_time()
    end = time.perf_counter() + MEASURING_SECONDS
    while time.perf_counter() < end or num_products == 0:
        _ = one @ other
        num_products += 1
    seconds = (time.process_time() - began) / torch.get_num_threads()
    return num_products * 2 * _WIDTH**3 / seconds


class RunLog:
    """Reports a run while it goes on; only the first rank has one.

    Args:
        model: the model's settings.
        settings: of the run.
        vocab_size: V.
        ranks: all of them, of which this is the first.
        plan: of the run, if its devices are known.
        memory_before: bytes from `used_memory` before there was a model.
        tracked: the run in MLflow.
    """

    def __init__(
        self,
        model: ModelSettings,
        settings: TrainingSettings,
        vocab_size: int,
        ranks: Ranks,
        plan: RunPlan | None,
        memory_before: int,
        tracked: "TrackedRun",
    ) -> None:
        from albert_core.tracking.live_metrics import MetricsEndpoint, SystemMetrics

        self.tracked = tracked
        self._model, self._settings, self._vocab_size = model, settings, vocab_size
        self._ranks, self._plan, self._memory_before = ranks, plan, memory_before
        self._endpoint = MetricsEndpoint.of_environment(tracked.key)
        self._system = SystemMetrics() if settings.system_metrics else None
        self._total: defaultdict[str, float] = defaultdict(float)
        """Of all updates of this process that were reported: updates, skipped ones included; the
        sums in their sizes, and operations, of all ranks; seconds, seconds that the threads of this
        process worked, and seconds that it waited for data."""
        self._window = self._total.copy()
        """The same of those that were not yet reported."""
        self._start_clocks()

    def _start_clocks(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def say_plan(self, step: int) -> None:
        """Report how fast the updates from ``step`` on are planned to be, if that is known."""
        plan = self._plan
        if plan is None:
            return
        speed = plan.pieces_per_second
        num_examples = (self._settings.num_steps - step) * self._settings.batch_size
        hours = num_examples * plan.sizes.num_pieces / speed / run_plan.SECONDS_PER_HOUR
        devices = f"{plan.num_devices} x {plan.hardware.name}"
        _say(f"planned for {devices}: {speed:,.0f} pieces/s, {hours:.2f} hours")
        planned = {"planned_pieces_per_second": speed, "planned_hours": hours}
        self.tracked.log_metrics(step, planned)

    def add(self, state: TrainState, sizes: Sizes, waited: float) -> None:
        """Add an update, made or skipped.

        Args:
            state: after it.
            sizes: of its batch.
            waited: seconds that all updates of this process have waited for data.
        """
        window = self._window
        window["updates"] += 1
        window["flops"] += self._flops(state.model.encoder.num_layers, sizes)
        window["waited"] = waited - self._total["waited"]
        for name, value in vars(sizes).items():
            window[name] += value

    def _flops(self, num_layers: int, sizes: Sizes) -> float:
        model = self._model.model_copy(update={"num_hidden_layers": num_layers})
        return training_flops(model, self._vocab_size, sizes)

    @contextmanager
    def not_training(self) -> Iterator[None]:
        """Leave the time of the block out of what the updates take."""
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self._began += time.perf_counter() - began
        self._cpu_began += time.process_time() - cpu_began

    def note_skipped(self, state: TrainState, update: Update) -> None:
        """Report that ``update`` was skipped."""
        norm, loss = update.metrics["grad_norm"], update.metrics["masked_lm_loss"]
        _say(
            f"step {update.step:,} was skipped (not finite): gradient norm {norm:.3g}, masked LM "
            f"loss {loss:.3g}; {state.skipped_in_a_row} in a row, {state.num_skipped} in all",
            logging.WARNING,
        )

    def report(self, state: TrainState) -> None:
        """Report the updates since the last call."""
        window, made = self._window, state.unreported
        window["seconds"] = time.perf_counter() - self._began
        window["cpu_seconds"] = time.process_time() - self._cpu_began
        means = {name: sum(p[name] for p in made) / len(made) for name in (made[0] if made else ())}
        computed = {
            **means,
            # With Muon, the last group has the linear maps.
            "learning_rate": state.optimizer.param_groups[-1]["lr"],
            "skipped_steps": float(state.num_skipped),
            **_trust_ratios(state),
        }
        state.history.append({"step": state.step, **computed})
        point = computed | self._speed(window)
        self._show(state.step, point | (self._system.measure() if self._system else {}))
        depth = self._depth(state.model.encoder.num_layers)
        place = f"step {state.step:,}/{self._settings.num_steps:,}{depth}"
        left = f"{_clock(self._seconds_left(state.step))} left"
        _say("  ".join([place, *_progress(point), left]))
        for name, value in window.items():
            self._total[name] += value
        window.clear()
        state.unreported = []
        self._start_clocks()

    def _seconds_left(self, step: int) -> float:
        """Return the seconds from ``step`` on: later updates may compute more layers."""
        window, num_left = self._window, self._settings.num_steps - step
        if not num_left:
            return 0.0
        sums: dict[str, Any] = {each.name: window[each.name] for each in fields(Sizes)}
        later = depths(self._settings, self._model.num_hidden_layers, step)
        flops = sum(share * self._flops(num_layers, Sizes(**sums)) for num_layers, share in later)
        return window["seconds"] * flops / window["flops"] * num_left / window["updates"]

    def note_scores(self, step: int, scores: dict[str, Estimate], num_layers: int) -> None:
        """Report the held-out scores of ``step``, with so many layers."""
        _say(f"step {step:,}{self._depth(num_layers)}, held-out: {say_scores(scores)}")
        self.track_scores(step, scores)

    def track_scores(self, step: int, scores: dict[str, Estimate]) -> None:
        """Have the curves show the held-out scores of ``step``."""
        self._show(step, {f"held_out/{name}": value for name, value in point_of(scores).items()})

    def _depth(self, num_layers: int) -> str:
        most = self._model.num_hidden_layers
        return f" ({num_layers} of {most} layers)" if num_layers < most else ""

    def summarise(
        self, state: TrainState, after: dict[str, Estimate], checkpoint_seconds: float
    ) -> None:
        """Report what the run took and reached.

        Args:
            state: after the last update.
            after: its held-out scores.
            checkpoint_seconds: that the training spent on checkpoints.
        """
        if self._total["updates"]:
            self._summarise_updates(state.step, checkpoint_seconds)
        else:
            _say("no update was left to do")
        if state.num_skipped:
            _say(f"{state.num_skipped} updates were skipped (not finite)")
        _say(f"held-out, after: {say_scores(after)}")
        self.track_scores(state.step, after)
        if self._endpoint is not None:
            self._endpoint.close()

    def track_result(self, manifest: str, curves: str, checkpoints: Iterable[str]) -> None:
        """Log the result of the run: its model, the checkpoints that are kept, and its files.

        Args:
            manifest: its URI.
            curves: URI of their picture.
            checkpoints: URI of each.
        """
        from albert_core.tracking.server import output_of

        model = output_of(manifest, model_digest(model_folder_of(manifest)))
        self.tracked.log_model(model)
        for uri in checkpoints:
            with suppress(IntegrityError, OSError, ValueError):  # of one that is damaged
                digest, step = checkpoint_digest(uri), int(uri.rpartition("-")[2])
                checkpoint = replace(model, kind="checkpoint", folder=uri, digest=digest, step=step)
                self.tracked.log_model(checkpoint)
        for uri in (manifest, curves):
            self.tracked.log_artifact(uri)

    def _summarise_updates(self, step: int, checkpoint_seconds: float) -> None:
        speed, total, plan = self._speed(self._total), self._total, self._plan
        utilisation = "unknown (the device is not known)"
        if plan is not None:
            share, peak = speed["model_flops_utilisation"], plan.peak_flops / 1e12
            utilisation = f"{share:.3f} of {peak:,.3g} TFLOP/s ({plan.hardware.peak_basis})"
        spent = {"checkpoint": checkpoint_seconds, "tracking": self.tracked.seconds}
        shares = {f"{what}_share": seconds / total["seconds"] for what, seconds in spent.items()}
        _say(
            f"{total['updates']:,.0f} updates in {_clock(total['seconds'])}, "
            f"{speed['pieces_per_second']:,.0f} pieces/s; model FLOPs utilisation {utilisation}; "
            f"of the time, data wait {speed['data_wait_share']:.2%}, "
            f"checkpoint {shares['checkpoint_share']:.2%}, "
            f"tracking {shares['tracking_share']:.2%}; peak memory {speed['peak_memory_gb']:.1f} GB"
        )
        if plan is not None:
            shares |= self._compare_with_plan(plan)
        self.tracked.log_metrics(step, shares)

    def _compare_with_plan(self, plan: RunPlan) -> dict[str, float]:
        """Report how far off the plan was; return the ratios of the measured values to it."""
        total, ranks = self._total, self._ranks
        is_cpu = plan.hardware.kind == "cpu"
        # The ranks have equal parts of each update, so this one's time is like that of the others.
        seconds = total["cpu_seconds"] * ranks.world_size if is_cpu else total["seconds"]
        rates = total["flops"] / seconds, total["num_pieces"] / seconds
        _say(plan.say_speed(*rates))
        planned = replace(plan, num_devices=ranks.world_size).memory
        # On a CPU, the plan is of the whole process.
        peak = peak_memory(ranks.device, 0 if is_cpu else self._memory_before)
        _say(planned.say_peak(peak))
        ratio = plan.speed_to_plan(rates[0])
        return {"speed_to_plan": ratio, "memory_to_plan": peak / planned.peak}

    def _speed(self, window: dict[str, float]) -> dict[str, float]:
        """Return the metrics of how the run goes: of all ranks, but the memory of this one."""
        seconds = window["seconds"]
        flops = window["flops"] / seconds
        speed = {
            "pieces_per_second": window["num_pieces"] / seconds,
            "model_tflops_per_second": flops / 1e12,
            "data_wait_share": window["waited"] / seconds,
            "peak_memory_gb": peak_memory(self._ranks.device) / 1e9,
        }
        if self._plan is not None:
            speed["model_flops_utilisation"] = flops / self._plan.peak_flops
        return speed

    def _show(self, step: int, metrics: dict[str, float]) -> None:
        self.tracked.log_metrics(step, metrics)
        if self._endpoint is not None:
            self._endpoint.show(step, metrics)


def _trust_ratios(state: TrainState) -> dict[str, float]:
    ratios = state.optimizer.trust_ratios
    if ratios is None:
        return {}
    low, mean, high = torch.stack([ratios.min(), ratios.mean(), ratios.max()]).tolist()
    return {"trust_ratio_min": low, "trust_ratio_mean": mean, "trust_ratio_max": high}


def used_memory(device: torch.device) -> int:
    """Return the bytes in use: by tensors on the GPU, else by this process without mapped files."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _memory_of_process()["RssAnon"]


def peak_memory(device: torch.device, before: int | None = None) -> int:
    """Return the most bytes used so far: of the GPU, else of this process.

    Args:
        device: that trains.
        before: bytes from `used_memory` at an earlier time. What is returned is then how far the
            peak lies above them, and files that this process maps, such as shards, do not count.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device)) - (before or 0)
    of_process = _memory_of_process()
    if before is None:
        return of_process["VmHWM"]
    mapped = of_process["VmRSS"] - of_process["RssAnon"]
    return of_process["VmHWM"] - mapped - before


def _memory_of_process() -> dict[str, int]:
    """Return the bytes of this process that are in memory, by the kernel's names.

    VmHWM is the peak of VmRSS.
    """
    told = re.findall(r"(?m)^(\w+):\s+(\d+) kB$", _STATUS.read_text())
    return {name: int(kb) * 1024 for name, kb in told}


def _say(message: str, level: int = logging.INFO) -> None:
    log.log(level, "pretraining: %s", message)


def _progress(point: dict[str, float]) -> list[str]:
    """Return the parts of a progress line, without losses if no update was made."""
    parts = [part.format_map(point) for name, part in _PROGRESS.items() if name in point]
    if "masked_lm_loss" not in point:
        parts.insert(0, "every update skipped")
    if point["skipped_steps"]:
        parts.append(f"{point['skipped_steps']:.0f} skipped")
    return parts


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes_and_seconds = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{hours}:{minutes_and_seconds}" if hours else minutes_and_seconds.removeprefix("0")


def say_scores(scores: dict[str, Estimate]) -> str:
    """Return scores, each with its interval, for a log line."""
    return ", ".join(f"{name} {score}" for name, score in scores.items())


def draw_curves(
    history: Points, evaluations: Points, examples: ExamplesResult, pair_task: str | None
) -> bytes:
    """Return a PNG of the run.

    Args:
        history: points of the training with step, learning_rate, and, where an update was made,
            masked_lm_loss and the pair task's accuracy.
        evaluations: points with step, the same scores on held-out examples, and, if there are
            minimal pairs, their accuracy and the ends of its interval.
        examples: that it trained on. Lines to compare with show what the frequency of pieces and
            the lengths of segments give away.
        pair_task: what is learned from pairs, as metrics call it; None for nothing.
    """
    from matplotlib.figure import Figure  # takes a second to load, and is needed at the end

    panels = [("masked_lm_loss", "Masked LM loss", "tab:blue", examples.unigram_nats, "unigram")]
    if pair_task is not None:
        title, by_lengths = pair_task.replace("_", "-").capitalize(), examples.length_only_accuracy
        name = f"{pair_task}_accuracy"
        panels.append((name, f"{title} accuracy", "tab:orange", by_lengths, "lengths alone"))
    if any(PAIRS_ACCURACY in point for point in evaluations):
        panels.append((PAIRS_ACCURACY, "Minimal pairs accuracy", "black", 0.5, "chance"))
    panels.append(("learning_rate", "Learning rate", "tab:green", np.nan, ""))
    figure = Figure(figsize=(3 * len(panels), 3.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        name, title, color, known, known_as = panel
        if found := _columns(history, "step", name):
            axes.plot(*found, color=color, label="training")
        if found := _columns(evaluations, "step", name):
            axes.plot(*found, "o-", color="black", ms=3, lw=1, label="held-out")
        if found := _columns(evaluations, "step", f"{name}_low", f"{name}_high"):
            axes.fill_between(*found, color="black", alpha=0.15, lw=0, label="95 % interval")
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if name.endswith("_loss"):
            axes.set(ylabel="nats per prediction")
        if name.endswith("_accuracy"):
            axes.set(ylim=(0.3, 1.02))
        if known_as:
            axes.axhline(known, color="tab:gray", linestyle="--", label=known_as)
            axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _columns(points: Points, *names: str) -> list[list[float]]:
    """Return the values of each name, from the points that have all; [] if none has."""
    complete = [point for point in points if point.keys() >= set(names)]
    return [[point[name] for point in complete] for name in names] if complete else []
