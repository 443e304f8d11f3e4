"""Two models whose true scores are known, fine-tuned and scored as the gate is told of it.

An example is answered right if a normal number lies below what the run's score asks for. The
number has three parts: the example's own difficulty, which both models meet; what the model makes
of the example; and what the run does. Their shares say how alike two runs answer: with the usual
ones, two runs with 85 % right disagree on 12 % of the examples, two models on 15 %. What a run
scores in the long run is the model's true score and the seed's share, normal with the task's
standard deviation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from albert_core.registry.gate import Measured, jackknife
from albert_core.text.seeds import derive_seed

Array = NDArray[np.float64]
Normals = NDArray[np.float32]
Shares = tuple[float, float, float]

USUAL: Shares = (0.5, 0.2, 0.3)
"""Of the example, the model and the run."""
ALIKE: Shares = (0.8, 0.17, 0.03)
"""Runs of one model answer almost alike: then what a run does is counted only once."""
FAILED_RUN_LOSES = 0.15
_GRID = np.linspace(0.5, 0.9995, 400)


@dataclass(frozen=True)
class SimulatedTask:
    """A task, and how models do on it."""

    name: str
    metric: str
    num_examples: int
    score: float
    """The champion's true one, 0..1."""
    seed_sd: float
    """Standard deviation of the true scores of runs that differ in their seed."""
    positive_share: float = 0.5
    """Of class 1 among the targets."""
    failing_share: float = 0.0
    """Of runs that learn next to nothing, as happens on small tasks (Mosbach et al. 2021)."""


GLUE = (
    SimulatedTask("mnli", "accuracy", 9815, 0.845, 0.002),
    SimulatedTask("qqp", "accuracy", 10000, 0.91, 0.001),
    SimulatedTask("qnli", "accuracy", 5463, 0.91, 0.003),
    SimulatedTask("sst-2", "accuracy", 872, 0.925, 0.004),
    SimulatedTask("cola", "matthews", 1043, 0.55, 0.013, 0.69),
    SimulatedTask("sts-b", "pearson", 1500, 0.90, 0.004),
    SimulatedTask("mrpc", "f1", 408, 0.91, 0.010, 0.68),
    SimulatedTask("rte", "accuracy", 277, 0.70, 0.020),
)
"""With the sizes of GLUE's dev sets, but QQP's cut to a quarter. Scores and the spread between
seeds are about those published for models of base size (Dodge et al. 2020, Mosbach et al. 2021)."""


def simulate(
    tasks: Sequence[SimulatedTask],
    num_seeds: int,
    gain: float | Mapping[str, float],
    seed: int,
    shares: Shares = USUAL,
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """Return how a candidate and a champion do on the tasks.

    Args:
        tasks: their names differ.
        num_seeds: runs of each model on each task.
        gain: by how much the candidate's true score is higher, 0.01 being a point; on all tasks,
            or by their names.
        seed: of everything.
        shares: see this module.
    """
    candidate: dict[str, Measured] = {}
    champion: dict[str, Measured] = {}
    for task in tasks:
        generator = np.random.default_rng(derive_seed(seed, "simulated-models", task.name))
        difficulty = generator.standard_normal(task.num_examples, np.float32)
        targets = (generator.random(task.num_examples) < task.positive_share).astype(np.int64)
        more = gain.get(task.name, 0.0) if isinstance(gain, Mapping) else gain
        for measured, score in ((candidate, task.score + more), (champion, task.score)):
            runs = _runs(task, score, num_seeds, difficulty, targets, shares, generator)
            scores, values = zip(*runs, strict=True)
            measured[task.name] = Measured(task.name, scores, np.mean(values, axis=0))
    return candidate, champion


def _runs(
    task: SimulatedTask,
    score: float,
    num_seeds: int,
    difficulty: Normals,
    targets: NDArray[np.int64],
    shares: Shares,
    generator: np.random.Generator,
) -> list[tuple[float, Array]]:
    of_example, of_model, of_run = np.sqrt(np.array(shares, np.float32))
    model = generator.standard_normal(len(difficulty), np.float32)
    found = []
    for _ in range(num_seeds):
        true_score = score + task.seed_sd * generator.standard_normal()
        if generator.random() < task.failing_share:
            true_score -= FAILED_RUN_LOSES
        run = generator.standard_normal(len(difficulty), np.float32)
        if task.metric == "pearson":
            noise = (of_model * model + of_run * run) / np.hypot(of_model, of_run)
            said = true_score * difficulty + np.sqrt(1 - true_score**2) * noise
            found.append(jackknife("pearson", difficulty, said))
        else:
            number = of_example * difficulty + of_model * model + of_run * run
            is_right = number < norm.ppf(_share_right(task, true_score))
            found.append(jackknife(task.metric, targets, np.where(is_right, targets, 1 - targets)))
    return found


def _share_right(task: SimulatedTask, score: float) -> float:
    """Return how many of all answers are right where the metric is ``score``."""
    if task.metric == "accuracy":
        return float(np.clip(score, 0.001, 0.999))
    return float(np.interp(score, _scores(task.metric, task.positive_share), _GRID))


@cache
def _scores(metric: str, positive_share: float) -> Array:
    """Return the metric at each share of right answers in `_GRID`, of both classes alike."""
    positive, negative = positive_share * _GRID, (1 - positive_share) * _GRID
    missed, wrong = positive_share - positive, (1 - positive_share) - negative
    if metric == "f1":
        return 2 * positive / (2 * positive + missed + wrong)
    spread = (positive + wrong) * positive_share * (negative + missed) * (1 - positive_share)
    return (positive * negative - wrong * missed) / np.sqrt(spread)
