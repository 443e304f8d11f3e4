"""The picture of a pretraining run: losses and sentence-order accuracy over its steps."""

import io
from collections.abc import Sequence

from matplotlib.figure import Figure


def draw_curves(history: Sequence[dict[str, float]], unigram_nats: float) -> bytes:
    """Return a PNG of the run.

    Args:
        history: points with step, masked_lm_loss, sentence_order_accuracy, learning_rate.
        unigram_nats: loss of guessing by piece frequency, drawn as a line to compare with.
    """
    steps = [point["step"] for point in history]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    losses, orders, rates = figure.subplots(1, 3)
    losses.plot(steps, [point["masked_lm_loss"] for point in history], color="tab:blue")
    losses.axhline(unigram_nats, color="tab:gray", linestyle="--", label="unigram")
    losses.set(title="Masked LM loss", xlabel="step", ylabel="nats per prediction")
    losses.legend()
    orders.plot(steps, [point["sentence_order_accuracy"] for point in history], color="tab:orange")
    orders.axhline(0.5, color="tab:gray", linestyle="--", label="chance")
    orders.set(title="Sentence-order accuracy", xlabel="step", ylim=(0.3, 1.02))
    orders.legend()
    rates.plot(steps, [point["learning_rate"] for point in history], color="tab:green")
    rates.set(title="Learning rate", xlabel="step")
    for axes in (losses, orders, rates):
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
