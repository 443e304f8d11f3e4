"""What a person sees of a pretraining run: progress lines, speed, MLflow's curves, a summary."""

import io
import logging
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.planning.hardware import Hardware, hardware_called, processor_name
from albert_core.planning.parameters import training_flops
from albert_core.planning.run_plan import ExampleSizes, RunPlan
from albert_core.tracking.run import MetricsEndpoint, SystemMetrics, TrackedRun
from albert_core.training.held_out import Evaluation
from albert_core.training.optimizer import Lamb
from albert_core.training.ranks import Ranks
from albert_core.training.shards import ExampleShards, UpdateSizes
from albert_core.training.step import TrainState, Update

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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

_BYTES_OF_MAXRSS = 1 if sys.platform == "darwin" else 1024


class ProgressWindow:
    """The updates since the last progress line.

    Args:
        metrics: of the updates that a resumed run made before it was stopped.
    """

    def __init__(self, metrics: Iterable[dict[str, float]] = ()) -> None:
        self.metrics = list(metrics)
        """Of each update made, but for those skipped."""
        self.num_updates = 0
        """Updates done by this process, those skipped included."""
        self.num_pieces = 0
        """Real pieces in them, all ranks."""
        self.num_flops = 0.0
        """Their floating-point operations, all ranks."""
        self.waited = 0.0
        """Seconds of waiting for data."""
        self._began = time.perf_counter()
        self._left_out = 0.0

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Do not count the block's time: it is no training."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began

    def add(self, update: Update, num_pieces: int, num_flops: float, waited: float) -> None:
        """Add an update.

        Args:
            update: as it was made or skipped.
            num_pieces: real ones, all ranks.
            num_flops: its floating-point operations, by the model's own products, all ranks.
            waited: seconds of waiting for its data.
        """
        self.waited += waited
        self.num_updates += 1
        self.num_pieces += num_pieces
        self.num_flops += num_flops
        if update.skipped is None:
            self.metrics.append(update.metrics)

    @property
    def seconds(self) -> float:
        """Time since the window began, but for what was left out."""
        return time.perf_counter() - self._began - self._left_out

    def means(self) -> dict[str, float]:
        """Return the means over the updates made; empty if all were skipped."""
        return {
            name: sum(point[name] for point in self.metrics) / len(self.metrics)
            for name in (self.metrics[0] if self.metrics else ())
        }

    def speed(self, device: torch.device, peak_flops: float | None) -> dict[str, float]:
        """Return what `OF_THE_MACHINE` names: of all ranks, but memory of this one.

        Args:
            device: of this rank.
            peak_flops: operations a second of all ranks' devices; None: without utilisation.
        """
        seconds = self.seconds
        flops = self.num_flops / seconds
        utilisation = {} if peak_flops is None else {"model_flops_utilisation": flops / peak_flops}
        return {
            "pieces_per_second": self.num_pieces / seconds,
            "model_tflops_per_second": flops / 1e12,
            **utilisation,
            "data_wait_share": self.waited / seconds,
            "peak_memory_gb": peak_memory_bytes(device) / 1e9,
        }


@dataclass(kw_only=True)
class RunTotals:
    """What this process did in all its windows."""

    num_updates: int = 0
    num_pieces: int = 0
    num_flops: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    def add(self, window: ProgressWindow) -> None:
        """Add a window that has ended."""
        self.num_updates += window.num_updates
        self.num_pieces += window.num_pieces
        self.num_flops += window.num_flops
        self.seconds += window.seconds
        self.waited += window.waited

    @property
    def pieces_per_second(self) -> float:
        """Real pieces, all ranks."""
        return self.num_pieces / self.seconds

    def summary(
        self,
        spent: Mapping[str, float],
        peak_memory: int,
        peak_flops: float | None,
        peak_source: str,
    ) -> str:
        """Return what the training took, for a person.

        Args:
            spent: seconds of this thread, by what they went into.
            peak_memory: bytes.
            peak_flops: operations a second of all ranks' devices; None where it is not known.
            peak_source: where that is from, or why it is not known.
        """
        if not self.num_updates:
            return "no update was left to do"
        shares = {"data wait": self.waited} | dict(spent)
        of_time = ", ".join(f"{what} {s / self.seconds:.2%}" for what, s in shares.items())
        utilisation = f"unknown ({peak_source})"
        if peak_flops is not None:
            share = self.num_flops / self.seconds / peak_flops
            utilisation = f"{share:.3f} of {peak_flops / 1e12:,.3g} TFLOP/s ({peak_source})"
        return (
            f"{self.num_updates:,} updates in {_clock(self.seconds)}, "
            f"{self.pieces_per_second:,.0f} pieces/s; model FLOPs utilisation {utilisation}; of "
            f"the time, {of_time}; peak memory {peak_memory / 1e9:.1f} GB"
        )


def trust_ratios(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return least, mean and greatest trust ratio of the last update; empty if it has none."""
    if not isinstance(optimizer, Lamb) or optimizer.trust_ratios is None:
        return {}
    ratios = optimizer.trust_ratios
    low, mean, high = torch.stack([ratios.min(), ratios.mean(), ratios.max()]).tolist()
    return {"trust_ratio_min": low, "trust_ratio_mean": mean, "trust_ratio_max": high}


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory used so far: of the GPU, else of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_OF_MAXRSS


def progress_line(step: int, num_steps: int, point: dict[str, float], seconds_left: float) -> str:
    """Return the progress line of ``point``, whose losses are absent if no update was made."""
    parts = [f"step {step:,}/{num_steps:,}"]
    if "masked_lm_loss" in point:
        parts.append(f"masked LM {point['masked_lm_loss']:.3f} ({point['masked_lm_accuracy']:.0%})")
    else:
        parts.append("every update skipped")
    for task, name in (("sentence_order", "order"), ("next_sentence", "next sentence")):
        if f"{task}_loss" in point:
            parts.append(f"{name} {point[f'{task}_loss']:.3f} ({point[f'{task}_accuracy']:.0%})")
    if "grad_norm" in point:
        parts.append(f"grad {point['grad_norm']:.2f}")
    if "trust_ratio_mean" in point:
        parts.append(f"trust {point['trust_ratio_min']:.2g}..{point['trust_ratio_max']:.2g}")
    parts += [
        f"lr {point['learning_rate']:.2e}",
        f"{point['pieces_per_second']:,.0f} pieces/s",
    ]
    if "model_flops_utilisation" in point:
        parts.append(f"MFU {point['model_flops_utilisation']:.0%}")
    parts += [
        f"data wait {point['data_wait_share']:.0%}",
        f"{point['peak_memory_gb']:.1f} GB",
    ]
    if point["skipped_steps"]:
        parts.append(f"{point['skipped_steps']:.0f} skipped")
    return "  ".join([*parts, f"{_clock(seconds_left)} left"])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


MEASURING_SECONDS = 0.3
"""How long the peak of a CPU is measured, at the start of a run."""

_WIDTH = 1024
_SAMPLE = 100_000
"""Examples whose lengths the plan is made from; they lie in random order."""


@dataclass(frozen=True, kw_only=True)
class ExpectedSpeed:
    """What the devices of a run could do, and what it is planned to do on them."""

    peak_flops: float | None
    """Operations a second of all ranks' devices together; None where it is not known."""
    peak_source: str
    """Where that is from."""
    plan: RunPlan | None
    """None on devices that nothing is known of."""


def expected_speed(
    model: ModelSettings, settings: TrainingSettings, examples: ExampleShards, ranks: Ranks
) -> ExpectedSpeed:
    """Return what a run on ``examples`` is expected to reach; every rank calls this at once.

    The peak of a GPU is looked up by its name. That of a CPU is measured: `MEASURING_SECONDS` of
    matrix products, on all ranks at the same time.
    """
    hardware = hardware_called(_device_name(ranks.device))
    if ranks.device.type == "cpu":
        mine, source = measured_peak_flops(settings.precision), "measured at the start"
    elif hardware is not None:
        mine, source = hardware.peak_tflops[settings.precision] * 1e12, "the vendor's"
    else:
        mine, source = float("nan"), f"{_device_name(ranks.device)} is not known"
    total = ranks.sum(torch.tensor(mine, dtype=torch.float64, device=ranks.device)).item()
    return ExpectedSpeed(
        peak_flops=None if np.isnan(total) else total,
        peak_source=source,
        plan=None if hardware is None else _plan(hardware, model, settings, examples, ranks),
    )


def measured_peak_flops(precision: Precision) -> float:
    """Return the operations a second of matrix products on all of this process's threads.

    By the threads' own time, so that another process that computes now doesn't lower it.
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


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return processor_name()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _plan(
    hardware: Hardware,
    model: ModelSettings,
    settings: TrainingSettings,
    examples: ExampleShards,
    ranks: Ranks,
) -> RunPlan:
    lengths, num_predictions = examples.sizes(np.arange(min(_SAMPLE, len(examples))))
    sizes = ExampleSizes.of_lengths(lengths, int(num_predictions.sum()), "the run's examples")
    facts = examples.manifest.facts
    return RunPlan(
        model=model,
        training=settings,
        vocab_size=facts["vocab_size"],
        sizes=sizes,
        max_seq_length=facts["max_seq_length"],
        max_predictions=facts["max_predictions"],
        hardware=hardware,
        num_devices=ranks.world_size if ranks.device.type == "cuda" else 1,
    )


_SECONDS_PER_HOUR = 3600

log = logging.getLogger("pretraining")


class RunLog:
    """The numbers of a run as it goes; every rank keeps them, the first tells them.

    Args:
        model: the model's settings.
        settings: of the run.
        vocab_size: V.
        ranks: that do the run.
        expected: the devices' speed.
        tracked: the run in MLflow, on the first rank.
        metrics: of the updates since the last progress line, where a run is resumed.
    """

    def __init__(
        self,
        model: ModelSettings,
        settings: TrainingSettings,
        vocab_size: int,
        ranks: Ranks,
        expected: ExpectedSpeed,
        tracked: TrackedRun | None,
        metrics: Iterable[dict[str, float]],
    ) -> None:
        self._model, self._settings, self._vocab_size = model, settings, vocab_size
        self._ranks, self._expected, self._tracked = ranks, expected, tracked
        self._totals = RunTotals()
        self._endpoint, self._system = None, None
        if tracked is not None:
            self._endpoint = MetricsEndpoint.of_environment(tracked.key)
            self._system = SystemMetrics() if settings.system_metrics else None
        self.window = ProgressWindow(metrics)

    def add(self, sizes: UpdateSizes, update: Update, waited: float) -> None:
        """Add an update that has waited so many seconds for its data."""
        flops = training_flops(self._model, self._vocab_size, sizes)
        self.window.add(update, sizes.num_pieces, flops, waited)

    def say_plan(self, step: int) -> None:
        """Tell how fast the updates from ``step`` on are planned to be, where that is known."""
        plan = self._expected.plan
        if plan is None or self._tracked is None:
            return
        speed = plan.pieces_per_second
        num_examples = (self._settings.num_steps - step) * self._settings.batch_size
        hours = num_examples * plan.sizes.num_pieces / speed / _SECONDS_PER_HOUR
        devices = f"{plan.num_devices} x {plan.hardware.name}"
        log.info(
            "pretraining: planned for %s: %s pieces/s, %.2f hours", devices, f"{speed:,.0f}", hours
        )
        planned = {"planned_pieces_per_second": speed, "planned_hours": hours}
        self._tracked.log_metrics(step, planned)

    def note_skipped(self, state: TrainState, update: Update) -> None:
        """Say that ``update`` was skipped."""
        if self._tracked is None:
            return
        log.warning(
            "pretraining: step %s was skipped (%s): gradient norm %.3g, masked LM loss %.3g; "
            "%d in a row, %d in all",
            f"{state.step:,}",
            str(update.skipped).replace("_", " "),
            update.metrics["grad_norm"],
            update.metrics["masked_lm_loss"],
            state.guard.num_in_a_row,
            state.guard.total_skipped,
        )

    def report(self, state: TrainState) -> None:
        """Tell the window that ends here, and begin another."""
        point = {
            **self.window.means(),
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "skipped_steps": float(state.guard.total_skipped),
            **trust_ratios(state.optimizer),
            **self.window.speed(self._ranks.device, self._expected.peak_flops),
        }
        if self._tracked is not None:
            num_steps = self._settings.num_steps
            seconds_an_update = self.window.seconds / self.window.num_updates
            state.history.append({"step": state.step, **point})
            of_machine = self._system.measure() if self._system is not None else {}
            self._tell(self._tracked, state.step, {**point, **of_machine})
            seconds_left = seconds_an_update * (num_steps - state.step)
            log.info("pretraining: %s", progress_line(state.step, num_steps, point, seconds_left))
        self._totals.add(self.window)
        self.window = ProgressWindow()

    def note_scores(self, step: int, scores: Evaluation) -> None:
        """Tell the held-out scores of ``step``."""
        if self._tracked is None:
            return
        log.info("pretraining: step %s, held-out: %s", f"{step:,}", say_scores(scores))
        values = {f"held_out/{name}": score.value for name, score in scores.items()}
        self._tell(self._tracked, step, values)

    def _tell(self, tracked: TrackedRun, step: int, metrics: dict[str, float]) -> None:
        tracked.log_metrics(step, metrics)
        if self._endpoint is not None:
            self._endpoint.show(step, metrics)

    def summarise(self, state: TrainState, after: Evaluation, checkpoint_seconds: float) -> None:
        """Tell what the run took and reached, on the first rank.

        Args:
            state: after the last update.
            after: its held-out scores.
            checkpoint_seconds: that the training spent on checkpoints.
        """
        assert self._tracked is not None
        totals, expected = self._totals, self._expected
        spent = {"checkpoint": checkpoint_seconds, "tracking": self._tracked.seconds}
        memory = peak_memory_bytes(self._ranks.device)
        log.info(
            "pretraining: %s",
            totals.summary(spent, memory, expected.peak_flops, expected.peak_source),
        )
        if totals.num_updates:
            last: dict[str, Any] = {
                f"{what}_share": seconds / totals.seconds for what, seconds in spent.items()
            }
            if expected.plan is not None:
                plan, flops_per_s = expected.plan, totals.num_flops / totals.seconds
                last["speed_to_plan"] = plan.speed_to_plan(flops_per_s)
                compared = plan.compared_with_plan(flops_per_s, totals.pieces_per_second)
                log.info("pretraining: %s", compared)
            self._tracked.log_metrics(state.step, last)
        if total := state.guard.total_skipped:
            reasons = ", ".join(f"{r} {n}" for r, n in state.guard.num_skipped.items() if n)
            log.info("pretraining: %d updates were skipped (%s)", total, reasons.replace("_", " "))
        log.info("pretraining: held-out, after: %s", say_scores(after))
        if self._endpoint is not None:
            self._endpoint.close()


def say_scores(scores: Evaluation) -> str:
    """Return scores, each with its interval, for a log line."""
    return ", ".join(f"{name} {score}" for name, score in scores.items())


Points = Sequence[dict[str, float]]


def draw_curves(
    history: Points,
    evaluations: Points,
    unigram_nats: float,
    pair_task: str | None = "sentence_order",
) -> bytes:
    """Return a PNG of the run.

    Args:
        history: points of the training with step, learning_rate, and, where an update was made,
            masked_lm_loss and the pair task's accuracy.
        evaluations: points with step and the same scores on held-out examples.
        unigram_nats: loss of guessing by piece frequency, drawn as a line to compare with.
        pair_task: what is learnt from pairs, as metrics call it; None for nothing.
    """
    from matplotlib.figure import Figure  # takes a second to load, and is needed at the end

    figure = Figure(figsize=(9 if pair_task else 6, 3.2), layout="constrained")
    losses, *others = figure.subplots(1, 3 if pair_task else 2)
    _draw(losses, "masked_lm_loss", history, evaluations, "tab:blue")
    losses.axhline(unigram_nats, color="tab:gray", linestyle="--", label="unigram")
    losses.set(title="Masked LM loss", xlabel="step", ylabel="nats per prediction")
    if pair_task is not None:
        pairs = others[0]
        _draw(pairs, f"{pair_task}_accuracy", history, evaluations, "tab:orange")
        pairs.axhline(0.5, color="tab:gray", linestyle="--", label="chance")
        title = f"{pair_task.replace('_', '-').capitalize()} accuracy"
        pairs.set(title=title, xlabel="step", ylim=(0.3, 1.02))
        pairs.legend()
    _draw(others[-1], "learning_rate", history, [], "tab:green")
    others[-1].set(title="Learning rate", xlabel="step")
    losses.legend()
    for axes in (losses, *others):
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def _draw(axes: "Axes", name: str, history: Points, evaluations: Points, color: str) -> None:
    points = [(point["step"], point[name]) for point in history if name in point]
    axes.plot(*zip(*points, strict=True), color=color, label="training")
    held_out = [(point["step"], point[name]) for point in evaluations if name in point]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="black", ms=3, lw=1, label="held-out")
