"""What a person sees of a pretraining run: log lines, MLflow's curves, a summary at the end."""

import io
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.flops import training_flops
from albert_core.tracking.run import MetricsEndpoint, SystemMetrics, TrackedRun
from albert_core.training.held_out import Evaluation
from albert_core.training.ranks import Ranks
from albert_core.training.shards import UpdateSizes
from albert_core.training.speed import (
    ExpectedSpeed,
    ProgressWindow,
    RunTotals,
    peak_memory_bytes,
    progress_line,
    trust_ratios,
)
from albert_core.training.step import TrainState, Update

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


if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
