"""The gate: whether a candidate is better than the champion, beyond what chance explains.

Pure: scores go in, a decision comes out; it draws nothing at random.

The statistic is the mean over the tasks, as in the paper's tables, of the difference between the
candidate's and the champion's mean score. Two things are left to chance: the seeds of the
fine-tunings, and which examples the dev sets happen to contain. The variance of the statistic is
the sum of two: that of the scores over the seeds, for each model by itself; and the jackknife's
over the clusters of examples, for the difference of the two models, which answer the same examples
(`albert_core.intervals`). The interaction of examples and seeds is in both terms, so that the sum
errs on the safe side. Resampling seeds would do worse: from two or three seeds a bootstrap finds
too little variance.

A task may fall a little at each of many promotions, unseen. So no task may be surely below any
earlier champion either, each looked at with a part of the risk (Bonferroni).

`benchmarks/statistics.py` measures how often the gate errs, and what many refreshes do.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, mean

import numpy as np

from albert_core.config import RegistrySettings
from albert_core.intervals import Jackknife, Spread, reach
from albert_core.metrics import Floats
from albert_core.stage.results import TaskDifference, Verdict

MIN_SEEDS = 2
"""One seed has no spread; without it the gate would promote up to one in five equal candidates."""
_SEED_SD, _DISAGREEMENT, _POWER, _WISHED = 0.01, 0.15, 0.8, 0.01
"""What `power` supposes: the standard deviation between seeds (about that of GLUE's tasks of some
thousand examples, Dodge et al. 2020), and the share of examples that two models answer unlike; the
power, and the gain that is wished for."""


@dataclass(frozen=True)
class Measured:
    """The scores of a model on one task."""

    data: str
    """A digest of what makes scores comparable: the files and how it was fine-tuned."""
    scores: tuple[float, ...]
    """One of each fine-tuning, by seed; the better the higher."""
    without: Floats
    """(G,) the mean of these scores without each cluster of dev's examples."""
    shares: Floats
    """(G,) the clusters' shares of the examples."""
    constant: float
    """The score of the best constant answer."""

    @property
    def score(self) -> float:
        """The mean over the fine-tunings."""
        return mean(self.scores)

    def is_like(self, other: "Measured | None") -> bool:
        """Whether both are of the same examples, scored in the same way, and numbers."""
        if other is None or self.data != other.data or len(self.without) != len(other.without):
            return False
        return math.isfinite(self.score) and math.isfinite(other.score)


@dataclass(frozen=True)
class Decision:
    """Whether a candidate becomes champion, and why."""

    verdict: Verdict
    reason: str
    """One sentence that explains the verdict."""
    difference: float | None = None
    """The mean over the tasks; None if nothing was compared."""
    lower_bound: float | None = None
    tasks: tuple[TaskDifference, ...] = ()

    @property
    def is_promoted(self) -> bool:
        """Whether it becomes champion."""
        return self.verdict in ("first", "promoted")


ByTask = Mapping[str, Measured]
"""How a model does, by the tasks' names."""


def gate(
    settings: RegistrySettings,
    candidate: ByTask,
    champion: ByTask,
    over_seeds: bool = True,
    earlier: Sequence[ByTask] = (),
) -> Decision:
    """Return whether the candidate is to replace the champion.

    It is if the lower bound of the mean difference exceeds ``min_score_gain``, and no task fell.
    A task fell if its difference to a champion is below ``-max_task_drop`` and its upper bound
    below 0: by the difference alone, noise in small tasks would refuse up to a third of all better
    candidates.

    Args:
        settings: the confidence and the margins.
        candidate: what was measured.
        champion: the same for the champion, on the same tasks.
        over_seeds: whether the models will be fine-tuned again, so that seeds are noise; False if
            the weights that were scored are the models themselves.
        earlier: champions before, as they were measured when they were registered. What is not of
            the same examples as the candidate's is not looked at.

    Returns:
        The decision; "undecided" if the scores can't be compared.
    """
    if problem := _problem(candidate, champion, over_seeds):
        return Decision("undecided", f"{problem}, so that nothing was decided")
    tasks = tuple(
        _task_difference(settings, task, ours, champion[task], earlier, over_seeds)
        for task, ours in sorted(candidate.items())
    )
    found = _Bounds.of_mean(settings, candidate, champion, over_seeds)
    if found.difference and not found.distance:
        return Decision("undecided", "the examples say nothing of chance: no two of them differ")
    is_better = found.lower > settings.min_score_gain
    is_promoted = is_better and not any(task.fell for task in tasks)
    said = (
        f"better than the champion: {found}"
        if is_better
        else (
            f"not surely better than the champion: {found}, which must exceed "
            f"{settings.min_score_gain:g}"
        )
    )
    if fallen := [
        f"{task.task} by {task.best - task.candidate:.4f}" for task in tasks if task.fell
    ]:
        said += f"; fell by more than {settings.max_task_drop:g}: {', '.join(fallen)}"
    verdict: Verdict = "promoted" if is_promoted else "refused"
    return Decision(verdict, said, found.difference, found.lower, tasks)


def first_gate(settings: RegistrySettings, candidate: ByTask, over_seeds: bool = True) -> Decision:
    """Return whether the candidate is to be the first champion: surely above constant answers.

    The interval of a single seed is over the examples alone.
    """
    over_seeds = over_seeds and all(len(task.scores) >= MIN_SEEDS for task in candidate.values())
    constant = {
        name: replace(
            task,
            scores=(task.constant,) * len(task.scores),
            without=np.full_like(task.without, task.constant),
        )
        for name, task in candidate.items()
    }
    if problem := _problem(candidate, constant, over_seeds):
        return Decision("undecided", f"{problem}, so that nothing was decided")
    found = _Bounds.of_mean(settings, candidate, constant, over_seeds)
    if found.lower > 0 and found.distance:
        said = f"the first champion: above the best constant answer by {found}"
        return Decision("first", said, found.difference, found.lower)
    said = f"not surely above the best constant answer: {found}"
    return Decision("refused", said, found.difference, found.lower)


def power(num_seeds: int, clusters: Mapping[str, int], confidence: float) -> str:
    """Return what the gate can find, as a sentence, before anything is fine-tuned.

    Args:
        num_seeds: fine-tunings of each model on each task.
        clusters: how many independent clusters of examples dev has, by task; at least one task.
        confidence: that the gate asks for.
    """
    if num_seeds < MIN_SEEDS:
        return (
            "with one seed (evaluation.num_seeds) the gate decides nothing: nobody knows what a "
            f"seed does. Give at least {MIN_SEEDS}; 5 find smaller gains."
        )
    number = len(clusters)
    over_seeds = [Spread(_SEED_SD**2 / num_seeds, num_seeds - 1)] * (2 * number)
    over_examples = [Spread(_DISAGREEMENT / size, size) for size in clusters.values()]
    found = sum(reach([*over_seeds, *over_examples], at) for at in (confidence, _POWER)) / number
    quantiles = sum(map(NormalDist().inv_cdf, (confidence, _POWER)))
    each = 2 * (quantiles / _WISHED) ** 2 / number  # half of the variance is left to each of both
    sizes = ", ".join(f"{size:,} of {name}" for name, size in clusters.items())
    num_wished, size_wished = 2 * _SEED_SD**2 * each, _DISAGREEMENT * each
    return (
        f"with {num_seeds} seeds, and {sizes} in dev, the gate finds a gain of "
        f"{100 * found:.1f} points in {_POWER:.0%} of all cases; {100 * _WISHED:g} point takes "
        f"about {math.ceil(num_wished)} seeds and {size_wished:,.0f} examples of each task, if "
        f"seeds differ by {100 * _SEED_SD:g} point and models on {_DISAGREEMENT:.0%} of them"
    )


@dataclass(frozen=True)
class _Bounds:
    """A difference of two models, and how far the truth may be from it on one side."""

    over: str
    difference: float
    distance: float
    confidence: float

    @classmethod
    def of_mean(
        cls, settings: RegistrySettings, ours: ByTask, theirs: ByTask, over_seeds: bool
    ) -> "_Bounds":
        names = sorted(ours)
        spreads = [s for name in names for s in _spreads(ours[name], theirs[name], over_seeds)]
        return cls(
            names[0] if len(names) == 1 else f"the mean of {len(names)} tasks",
            mean(ours[name].score - theirs[name].score for name in names),
            reach(spreads, settings.confidence) / len(names),
            settings.confidence,
        )

    @property
    def lower(self) -> float:
        return self.difference - self.distance

    def __str__(self) -> str:
        return (
            f"{self.difference:+.4f} on {self.over}, with {self.confidence:.0%} confidence at "
            f"least {self.lower:+.4f}"
        )


def _problem(candidate: ByTask, champion: ByTask, over_seeds: bool) -> str | None:
    """Return why the two can't be compared, if they can't."""
    if lacking := sorted(candidate.keys() - champion.keys()):
        return f"the champion was not scored on {', '.join(lacking)}"
    if lacking := sorted(champion.keys() - candidate.keys()):
        return f"the candidate was not scored on {', '.join(lacking)}, as the champion was"
    for task in sorted(candidate):
        ours, theirs = candidate[task], champion[task]
        if not ours.is_like(theirs):
            return f"the champion was not scored on the same files of {task} in the same way"
        if _jackknife(ours, theirs).spread is None:
            return f"dev of {task} has {len(ours.shares)} cluster of examples: there is no spread"
        fewest = min(len(ours.scores), len(theirs.scores))
        if over_seeds and fewest < MIN_SEEDS:
            return (
                f"{task} was fine-tuned with {fewest} seed; give at least {MIN_SEEDS} "
                "(evaluation.num_seeds), without which nobody knows what a seed does"
            )
    return None if candidate else "no task was scored"


def _jackknife(ours: Measured, theirs: Measured) -> Jackknife:
    """Return the difference of two models without each cluster."""
    return Jackknife(ours.score - theirs.score, ours.without - theirs.without, ours.shares)


def _spreads(ours: Measured, theirs: Measured, over_seeds: bool) -> list[Spread]:
    """Return by how much the difference varies: with the examples, and each model's seeds."""
    over_examples = _jackknife(ours, theirs).spread
    assert over_examples is not None
    seeds = [Spread.of_mean(np.array(model.scores)) for model in (ours, theirs) if over_seeds]
    return [over_examples, *seeds]


def _task_difference(
    settings: RegistrySettings,
    task: str,
    ours: Measured,
    champion: Measured,
    earlier: Sequence[ByTask],
    over_seeds: bool,
) -> TaskDifference:
    fewest = MIN_SEEDS if over_seeds else 1
    before = [each[task] for each in earlier if ours.is_like(each.get(task))]
    champions = [champion, *(each for each in before if len(each.scores) >= fewest)]
    risk = (1 - settings.confidence) / len(champions)

    def fell_below(theirs: Measured) -> bool:
        value = ours.score - theirs.score
        upper = value + reach(_spreads(ours, theirs, over_seeds), 1 - risk)
        return value < -settings.max_task_drop and upper < 0

    value = ours.score - champion.score
    distance = reach(_spreads(ours, champion, over_seeds), settings.confidence)
    return TaskDifference(
        task=task,
        candidate=ours.score,
        champion=champion.score,
        difference=value,
        low=value - distance,
        high=value + distance,
        num_clusters=len(ours.shares),
        best=max(each.score for each in champions),
        fell=any(map(fell_below, champions)),
    )
