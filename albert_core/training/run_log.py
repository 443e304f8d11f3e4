"""What a person sees of a pretraining run: progress lines, speed, MLflow's curves, a summary."""

import io
import logging
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from albert_core.checkpoint import checkpoint_digest
from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.conversion.model_files import model_digest
from albert_core.planning.model_size import training_flops
from albert_core.planning.run_plan import (
    SECONDS_PER_HOUR,
    ExampleSizes,
    RunPlan,
    hardware_called,
    processor_name,
    this_cpu,
)
from albert_core.stage.errors import IntegrityError
from albert_core.stage.lineage import model_folder_of
from albert_core.stage.results import Estimate, ExamplesResult
from albert_core.training.held_out import PAIRS_ACCURACY, point_of
from albert_core.training.loader import ExampleShards, UpdateSizes
from albert_core.training.ranks import Ranks
from albert_core.training.step import TrainState, Update

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from albert_core.tracking.run import TrackedRun

OF_THE_MACHINE = frozenset(
    {
        "pieces_per_second",
        "model_tflops_per_second",
        "model_flops_utilisation",
        "data_wait_share",
        "peak_memory_gb",
    }
)
"""Metrics that say how a run went, not what it computed: no two runs have the same."""
MEASURING_SECONDS = 0.3
"""How long the peak of a CPU is measured at the start of a run."""

_BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024
_STATUS = Path("/proc/self/status")
_KINDS_OF_MEMORY = ("VmHWM", "VmRSS", "RssAnon")
_WIDTH = 1024
_SAMPLE = 100_000
"""Examples whose lengths the plan is made from; they lie in random order."""

Points = Sequence[dict[str, float]]

log = logging.getLogger("pretraining")


@dataclass(frozen=True, kw_only=True)
class ExpectedSpeed:
    """What the devices of a run could do, and what it is planned to do on them."""

    peak_flops: float | None
    """Operations a second of all ranks' devices together; None if unknown."""
    peak_source: str
    """Where that is from, or why it is unknown."""
    plan: RunPlan | None
    """None for devices that nothing is known about."""


def expected_speed(
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
    first_step: int = 0,
) -> ExpectedSpeed:
    """Return what a run on ``examples`` is expected to reach; every rank must call this.

    ``first_step`` updates are done already: those after it may compute more layers.

    The peak of a GPU is looked up by its name. That of a CPU is measured: `MEASURING_SECONDS` of
    matrix products, on all ranks at the same time.
    """
    kind = ranks.device.type
    name = torch.cuda.get_device_name(ranks.device) if kind == "cuda" else kind
    hardware = hardware_called(processor_name() if kind == "cpu" else name)
    if kind == "cpu":
        mine, source = measured_peak_flops(settings.precision), "measured at the start"
    elif hardware is not None:
        mine, source = hardware.peak_tflops[settings.precision] * 1e12, "the vendor's"
    else:
        mine, source = float("nan"), f"{name} is not known"
    total = ranks.sum(torch.tensor(mine, dtype=torch.float64, device=ranks.device)).item()
    plan = None
    if kind == "cpu" and hardware is None:
        num_cores = torch.get_num_threads() * ranks.world_size
        hardware = this_cpu(num_cores, total / 1e12)
    if hardware is not None:
        lengths, num_predictions = examples.sizes(np.arange(min(_SAMPLE, len(examples))))
        of_sample = int(num_predictions.sum())
        plan = RunPlan(
            model=model,
            training=settings,
            vocab_size=examples.result.vocab_size,
            sizes=ExampleSizes.of_lengths(lengths, of_sample, "the run's examples"),
            max_seq_length=examples.result.max_seq_length,
            max_predictions=examples.result.max_predictions,
            hardware=hardware,
            num_devices=ranks.world_size if kind == "cuda" else 1,
            first_step=min(first_step, settings.num_steps - 1),
        )
    peak_flops = None if np.isnan(total) else total
    return ExpectedSpeed(peak_flops=peak_flops, peak_source=source, plan=plan)


def measured_peak_flops(precision: Precision) -> float:
    """Return the operations a second of matrix products on all of this process's threads.

    It is measured in the threads' own time, which other processes do not change.
    """
    one, other = (torch.randn(_WIDTH, _WIDTH).to(getattr(torch, precision)) for _ in range(2))
    _ = one @ other  # the first one is planned
    num_products, began = 0, time.process_time()
    end = time.perf_counter() + MEASURING_SECONDS
    while time.perf_counter() < end or num_products == 0:
        _ = one @ other
        num_products += 1
    seconds = (time.process_time() - began) / torch.get_num_threads()
    return num_products * 2 * _WIDTH**3 / seconds


@dataclass
class _Progress:
    """What this process has done in some time; pieces and operations are those of all ranks."""

    num_updates: int = 0
    """Skipped ones included."""
    num_pieces: int = 0
    """Real ones."""
    num_flops: float = 0.0
    """By the model's own products."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """That the threads of this process worked."""
    waited: float = 0.0
    """Seconds of waiting for data."""

    def add(self, other: "_Progress") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class RunLog:
    """Reports a run while it goes on; only the first rank has one.

    Args:
        model: the model's settings.
        settings: of the run.
        vocab_size: V.
        ranks: all of them, of which this is the first.
        expected: speed of the devices.
        memory_before: bytes from `used_memory` before there was a model.
        tracked: the run in MLflow.
    """

    def __init__(
        self,
        model: ModelSettings,
        settings: TrainingSettings,
        vocab_size: int,
        ranks: Ranks,
        expected: ExpectedSpeed,
        memory_before: int,
        tracked: "TrackedRun",
    ) -> None:
        from albert_core.tracking.run import MetricsEndpoint, SystemMetrics

        self.tracked = tracked
        self._model, self._settings, self._vocab_size = model, settings, vocab_size
        self._ranks, self._device, self._expected = ranks, ranks.device, expected
        self._memory_before = memory_before
        self._endpoint = MetricsEndpoint.of_environment(tracked.key)
        self._system = SystemMetrics() if settings.system_metrics else None
        self._total, self._window = _Progress(), _Progress()
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def say_plan(self, step: int) -> None:
        """Report how fast the updates from ``step`` on are planned to be, if that is known."""
        plan = self._expected.plan
        if plan is None:
            return
        speed = plan.pieces_per_second
        num_examples = (self._settings.num_steps - step) * self._settings.batch_size
        hours = num_examples * plan.sizes.num_pieces / speed / SECONDS_PER_HOUR
        devices = f"{plan.num_devices} x {plan.hardware.name}"
        log.info(
            "pretraining: planned for %s: %s pieces/s, %.2f hours", devices, f"{speed:,.0f}", hours
        )
        planned = {"planned_pieces_per_second": speed, "planned_hours": hours}
        self.tracked.log_metrics(step, planned)

    def add(self, state: TrainState, sizes: UpdateSizes, update: Update, waited: float) -> None:
        """Add an update.

        Args:
            state: after it.
            sizes: of its batch.
            update: made or skipped.
            waited: seconds that all updates of this process have waited for data.
        """
        self._window.num_updates += 1
        self._window.num_pieces += sizes.num_pieces
        computed = {"num_hidden_layers": state.model.encoder.num_layers}
        model = self._model.model_copy(update=computed)
        self._window.num_flops += training_flops(model, self._vocab_size, sizes)
        self._window.waited = waited - self._total.waited
        if not update.skipped:
            state.unreported.append(update.metrics)

    @contextmanager
    def not_training(self) -> Iterator[None]:
        """Leave the time of the block out of what the updates take."""
        began, cpu_began = time.perf_counter(), time.process_time()
        yield
        self._began += time.perf_counter() - began
        self._cpu_began += time.process_time() - cpu_began

    def note_skipped(self, state: TrainState, update: Update) -> None:
        """Report that ``update`` was skipped."""
        log.warning(
            "pretraining: step %s was skipped (not finite): gradient norm %.3g, masked LM loss "
            "%.3g; %d in a row, %d in all",
            f"{state.step:,}",
            update.metrics["grad_norm"],
            update.metrics["masked_lm_loss"],
            state.skipped_in_a_row,
            state.num_skipped,
        )

    def report(self, state: TrainState) -> None:
        """Report the updates since the last call."""
        window, num_steps = self._window, self._settings.num_steps
        window.seconds = time.perf_counter() - self._began
        window.cpu_seconds = time.process_time() - self._cpu_began
        made = state.unreported
        means = {name: sum(p[name] for p in made) / len(made) for name in (made[0] if made else ())}
        point = {
            **means,
            # With Muon, the last group has the blocks' matrices.
            "learning_rate": state.optimizer.param_groups[-1]["lr"],
            "skipped_steps": float(state.num_skipped),
            **_trust_ratios(state),
            **self._speed(window),
        }
        state.history.append({"step": state.step, **point})
        self._show(state.step, point | (self._system.measure() if self._system else {}))
        seconds_left = window.seconds / window.num_updates * (num_steps - state.step)
        log.info("pretraining: %s", _progress_line(state.step, num_steps, point, seconds_left))
        self._total.add(window)
        self._window, state.unreported = _Progress(), []
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def note_scores(self, step: int, scores: dict[str, Estimate]) -> None:
        """Report the held-out scores of ``step``."""
        log.info("pretraining: step %s, held-out: %s", f"{step:,}", say_scores(scores))
        self._track_scores(step, scores)

    def summarise(
        self, state: TrainState, after: dict[str, Estimate], checkpoint_seconds: float
    ) -> None:
        """Report what the run took and reached.

        Args:
            state: after the last update.
            after: its held-out scores.
            checkpoint_seconds: that the training spent on checkpoints.
        """
        spent = {"checkpoint": checkpoint_seconds, "tracking": self.tracked.seconds}
        if self._total.num_updates:
            self._summarise_updates(state.step, spent)
        else:
            log.info("pretraining: no update was left to do")
        if state.num_skipped:
            log.info("pretraining: %d updates were skipped (not finite)", state.num_skipped)
        log.info("pretraining: held-out, after: %s", say_scores(after))
        self._track_scores(state.step, after)
        if self._endpoint is not None:
            self._endpoint.close()

    def track_result(self, manifest: str, curves: str, checkpoints: Iterable[str]) -> None:
        """Log what the run made: its model, the checkpoints that are kept, and how it went.

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

    def _track_scores(self, step: int, scores: dict[str, Estimate]) -> None:
        self._show(step, {f"held_out/{name}": value for name, value in point_of(scores).items()})

    def _summarise_updates(self, step: int, spent: dict[str, float]) -> None:
        total, expected = self._total, self._expected
        flops_per_second = total.num_flops / total.seconds
        pieces_per_second = total.num_pieces / total.seconds
        utilisation = f"unknown ({expected.peak_source})"
        if (peak := expected.peak_flops) is not None:
            share, tflops = flops_per_second / peak, peak / 1e12
            utilisation = f"{share:.3f} of {tflops:,.3g} TFLOP/s ({expected.peak_source})"
        shares = {
            what: s / total.seconds for what, s in {"data wait": total.waited, **spent}.items()
        }
        log.info(
            "pretraining: %s updates in %s, %s pieces/s; model FLOPs utilisation %s; of the time, "
            "%s; peak memory %.1f GB",
            f"{total.num_updates:,}",
            _clock(total.seconds),
            f"{pieces_per_second:,.0f}",
            utilisation,
            ", ".join(f"{what} {share:.2%}" for what, share in shares.items()),
            peak_memory(self._device) / 1e9,
        )
        last = {f"{what}_share": shares[what] for what in spent}
        if expected.plan is not None:
            last |= self._compare_with_plan(expected.plan)
        self.tracked.log_metrics(step, last)

    def _compare_with_plan(self, plan: RunPlan) -> dict[str, float]:
        """Report how far off the plan was; return the ratios of what was found to it."""
        total, ranks = self._total, self._ranks
        is_cpu = plan.hardware.kind == "cpu"
        # The ranks have equal parts of each update, so this one's time is like that of the others.
        seconds = total.cpu_seconds * ranks.world_size if is_cpu else total.seconds
        rates = total.num_flops / seconds, total.num_pieces / seconds
        log.info("pretraining: %s", plan.say_speed(*rates))
        planned = replace(plan, num_devices=ranks.world_size).memory
        peak = peak_memory(ranks.device, self._memory_before)
        log.info("pretraining: %s", planned.say_peak(peak))
        ratio = plan.speed_to_plan(rates[0])
        return {"speed_to_plan": ratio, "memory_to_plan": peak / planned.total}

    def _speed(self, window: _Progress) -> dict[str, float]:
        """Return what `OF_THE_MACHINE` names: for all ranks, but memory of this one."""
        flops = window.num_flops / window.seconds
        speed = {
            "pieces_per_second": window.num_pieces / window.seconds,
            "model_tflops_per_second": flops / 1e12,
            "data_wait_share": window.waited / window.seconds,
            "peak_memory_gb": peak_memory(self._device) / 1e9,
        }
        if self._expected.peak_flops is not None:
            speed["model_flops_utilisation"] = flops / self._expected.peak_flops
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

    VmHWM is the peak of VmRSS. Where the kernel does not tell, all are the peak that it counts for
    the process and for what it was forked from.
    """
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    told = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    if told.keys() >= set(_KINDS_OF_MEMORY):
        return {kind: told[kind] * 1024 for kind in _KINDS_OF_MEMORY}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_OF_MAXRSS
    return dict.fromkeys(_KINDS_OF_MEMORY, peak)


def _progress_line(step: int, num_steps: int, point: dict[str, float], seconds_left: float) -> str:
    """Return the progress line of ``point``, whose losses are absent if no update was made."""
    parts = [f"step {step:,}/{num_steps:,}"]
    if "masked_lm_loss" not in point:
        parts.append("every update skipped")
    for task, name in (
        ("masked_lm", "masked LM"),
        ("sentence_order", "order"),
        ("next_sentence", "next sentence"),
    ):
        if f"{task}_loss" in point:
            parts.append(f"{name} {point[f'{task}_loss']:.3f} ({point[f'{task}_accuracy']:.0%})")
    if "grad_norm" in point:
        parts.append(f"grad {point['grad_norm']:.2f}")
    if "trust_ratio_mean" in point:
        parts.append(f"trust {point['trust_ratio_min']:.2g}..{point['trust_ratio_max']:.2g}")
    parts.append(f"lr {point['learning_rate']:.2e}")
    parts.append(f"{point['pieces_per_second']:,.0f} pieces/s")
    if "model_flops_utilisation" in point:
        parts.append(f"MFU {point['model_flops_utilisation']:.0%}")
    parts.append(f"data wait {point['data_wait_share']:.0%}")
    parts.append(f"{point['peak_memory_gb']:.1f} GB")
    if point["skipped_steps"]:
        parts.append(f"{point['skipped_steps']:.0f} skipped")
    return "  ".join([*parts, f"{_clock(seconds_left)} left"])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
        examples: that it trained on. What the frequency of pieces and the lengths of segments give
            away is drawn as lines to compare with.
        pair_task: what is learned from pairs, as metrics call it; None for nothing.
    """
    from matplotlib.figure import Figure  # takes a second to load, and is needed at the end

    has_pairs = any(PAIRS_ACCURACY in point for point in evaluations)
    number = 2 + (pair_task is not None) + has_pairs
    figure = Figure(figsize=(3 * number, 3.2), layout="constrained")
    losses, *others = figure.subplots(1, number)
    _draw(losses, "masked_lm_loss", history, evaluations, "tab:blue")
    losses.axhline(examples.unigram_nats, color="tab:gray", linestyle="--", label="unigram")
    losses.set(title="Masked LM loss", ylabel="nats per prediction")
    if pair_task is not None:
        _draw(others[0], f"{pair_task}_accuracy", history, evaluations, "tab:orange")
        by_lengths = examples.length_only_accuracy
        others[0].axhline(by_lengths, color="tab:gray", linestyle="--", label="lengths alone")
        title = f"{pair_task.replace('_', '-').capitalize()} accuracy"
        others[0].set(title=title, ylim=(0.3, 1.02))
    if has_pairs:
        _draw(others[-2], PAIRS_ACCURACY, [], evaluations, "black")
        others[-2].axhline(0.5, color="tab:gray", linestyle="--", label="chance")
        others[-2].set(title="Minimal pairs accuracy", ylim=(0.3, 1.02))
    _draw(others[-1], "learning_rate", history, [], "tab:green")
    others[-1].set(title="Learning rate")
    for axes in (losses, *others):
        axes.set(xlabel="step")
        axes.grid(alpha=0.3)
    for axes in (losses, *others[:-1]):
        axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _draw(axes: "Axes", name: str, history: Points, evaluations: Points, color: str) -> None:
    points = [(point["step"], point[name]) for point in history if name in point]
    if points:
        axes.plot(*zip(*points, strict=True), color=color, label="training")
    held_out = [(point["step"], point[name]) for point in evaluations if name in point]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="black", ms=3, lw=1, label="held-out")
    reach = [
        (point["step"], point[f"{name}_low"], point[f"{name}_high"])
        for point in evaluations
        if f"{name}_low" in point
    ]
    if reach:
        steps, low, high = zip(*reach, strict=True)
        axes.fill_between(steps, low, high, color="black", alpha=0.15, lw=0, label="95 % interval")
