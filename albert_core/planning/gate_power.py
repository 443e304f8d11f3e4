"""Which gain the gate of the registry can find, before anything is trained for it."""

import math
from collections.abc import Mapping
from statistics import NormalDist

_SEED_SD, _DISAGREEMENT, _POWER, _WISHED = 0.01, 0.15, 0.8, 0.01
"""What is supposed: the standard deviation between seeds (about that of GLUE's tasks of some
thousand examples, Dodge et al. 2020), and the share of examples that two models answer unlike; the
power, and the gain that is wished for."""


def power(num_seeds: int, clusters: Mapping[str, int], confidence: float) -> str:
    """Return what the gate can find, as a sentence, before anything is fine-tuned.

    Args:
        num_seeds: fine-tunings of each model on each task.
        clusters: how many independent clusters of examples dev has, by task; at least one task.
        confidence: that the gate asks for.
    """
    if num_seeds == 1:
        return (
            "with one seed (evaluation.num_seeds) the gate decides nothing: nobody knows what a "
            "seed does. Give at least 2; 5 find smaller gains."
        )
    number = len(clusters)
    variance = 2 * number * _SEED_SD**2 / num_seeds
    variance += sum(_DISAGREEMENT / size for size in clusters.values())
    quantiles = sum(map(NormalDist().inv_cdf, (confidence, _POWER)))
    found = quantiles * math.sqrt(variance) / number
    each = 2 * (quantiles / _WISHED) ** 2 / number  # half of the variance is left to each of both
    sizes = ", ".join(f"{size:,} of {name}" for name, size in clusters.items())
    return (
        f"with {num_seeds} seeds, and {sizes} in dev, the gate finds a gain of "
        f"{100 * found:.1f} points in {_POWER:.0%} of all cases; {100 * _WISHED:g} point takes "
        f"about {math.ceil(2 * _SEED_SD**2 * each)} seeds and {_DISAGREEMENT * each:,.0f} examples "
        f"of each task, if seeds differ by {100 * _SEED_SD:g} point and models on "
        f"{_DISAGREEMENT:.0%} of them"
    )
