"""The picture of a pretraining run: losses and pair accuracy over its steps."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
