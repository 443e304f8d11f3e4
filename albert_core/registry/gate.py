"""The gate: whether a candidate is better than the champion, beyond what chance explains.

Pure: scores go in, a decision comes out; it draws nothing at random.

The statistic is the mean over the tasks, as in the paper's tables, of the difference between the
candidate's and the champion's mean score. Two things are left to chance: the seeds of the
fine-tunings, and which examples the dev sets happen to contain. The variance of the statistic is
the sum of two: that of the scores over the seeds, for each model by itself; and the jackknife's
over the clusters of examples, for the difference of the two models, which answer the same examples
(`albert_core.metrics`). The interaction of examples and seeds is in both terms, so that the sum
errs on the safe side. Resampling seeds would do worse: from two or three seeds a bootstrap finds
too little variance.

A task may fall a little at each of many promotions, unseen. So no task may be surely below any
earlier champion either, each looked at with a part of the risk (Bonferroni).

`benchmarks/statistics.py` measures how often the gate errs, and the effect of many refreshes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, mean

import numpy as np

from albert_core.config import RegistrySettings
from albert_core.metrics import Floats, Jackknife, Spread, reach
from albert_core.stage.results import Decision, TaskDifference

MIN_SEEDS = 2
"""One seed has no spread; without it the gate would promote up to one in five equal candidates."""


_SEED_SD, _DISAGREEMENT, _POWER, _WISHED = 0.01, 0.15, 0.8, 0.01
"""Assumptions of `power`: the standard deviation between seeds (about that of GLUE's tasks of some
thousand examples, Dodge et al. 2020), the share of examples that two models answer differently, the
power, and how far above `min_score_gain` the gain to find is."""


@dataclass(frozen=True)
class Measured:
    """The scores of a model on one task."""

    data: str
    """Digest of the files and the settings. Scores are comparable if it is the same."""
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
        """Whether both are numbers, of the same examples, scored in the same way."""
        if other is None or self.data != other.data or len(self.without) != len(other.without):
            return False
        return math.isfinite(self.score) and math.isfinite(other.score)


ByTask = Mapping[str, Measured]
"""A model's scores, by the tasks' names."""


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
        candidate: the candidate's scores.
        champion: the champion's scores, on the same tasks.
        over_seeds: whether the models will be fine-tuned again, so that seeds are noise; False if
            the weights that were scored are the models themselves.
        earlier: scores of earlier champions when they were registered. Those on other examples
            than the candidate's are ignored.

    Returns:
        The decision; "undecided" if the scores can't be compared.
    """
    if problem := _problem(candidate, champion, over_seeds):
        return Decision(verdict="undecided", reason=f"{problem}, so that nothing was decided")
    tasks = []
    for name, ours in sorted(candidate.items()):
        found = _difference({name: ours}, champion, settings.confidence, over_seeds)
        each = [model for model in earlier if ours.is_like(model.get(name))]
        champions = [champion, *(one for one in each if _has_spread(one[name], over_seeds))]
        confidence = 1 - (1 - settings.confidence) / len(champions)
        below = [_difference({name: ours}, one, confidence, over_seeds) for one in champions]
        tasks.append(
            TaskDifference(
                task=name,
                candidate=ours.score,
                champion=champion[name].score,
                difference=found.value,
                low=found.lower,
                high=found.value + found.reach,
                num_clusters=len(ours.shares),
                best=max(one[name].score for one in champions),
                fell=any(
                    one.value < -settings.max_task_drop and one.value + one.reach < 0
                    for one in below
                ),
            )
        )
    found = _difference(candidate, champion, settings.confidence, over_seeds)
    if found.value and not found.reach:
        said = "the examples say nothing of chance: no two of them differ"
        return Decision(verdict="undecided", reason=said)
    fallen = [f"{task.task} by {task.best - task.candidate:.4f}" for task in tasks if task.fell]
    said = f"better than the champion: {found}"
    is_better = found.lower > settings.min_score_gain
    if not is_better:
        said = f"not surely {said}, which must exceed {settings.min_score_gain:g}"
    if fallen:
        said += f"; fell by more than {settings.max_task_drop:g}: {', '.join(fallen)}"
    return Decision(
        verdict="promoted" if is_better and not fallen else "refused",
        reason=said,
        difference=found.value,
        lower_bound=found.lower,
        tasks=tuple(tasks),
    )


def first_gate(settings: RegistrySettings, candidate: ByTask, over_seeds: bool = True) -> Decision:
    """Return whether the candidate is to be the first champion: surely above constant answers.

    The interval of a single seed is over the examples alone.
    """
    over_seeds = over_seeds and all(_has_spread(task, over_seeds) for task in candidate.values())
    constant = {
        name: replace(
            task,
            scores=(task.constant,) * len(task.scores),
            without=np.full_like(task.without, task.constant),
        )
        for name, task in candidate.items()
    }
    if problem := _problem(candidate, constant, over_seeds):
        return Decision(verdict="undecided", reason=f"{problem}, so that nothing was decided")
    found = _difference(candidate, constant, settings.confidence, over_seeds)
    if found.value > 0 and not found.reach:
        unseen = max(_unseen_share(task, settings.confidence) for task in candidate.values())
        found = replace(found, reach=unseen)  # of scores 0..1
    is_first = found.lower > 0
    said = f"not surely above the best constant answer: {found}"
    if is_first:
        said = f"the first champion: above the best constant answer by {found}"
    return Decision(
        verdict="first" if is_first else "refused",
        reason=said,
        difference=found.value,
        lower_bound=found.lower,
    )


def _unseen_share(model: Measured, confidence: float) -> float:
    """Return the largest share of clusters that may be unlike those of dev, of which none differs.

    It is Wilson's bound of the effective number of clusters.
    """
    z, number = NormalDist().inv_cdf(confidence), 1 / np.square(model.shares).sum()
    return float(z * z / (number + z * z))


@dataclass(frozen=True)
class _Difference:
    """The mean difference of two models, and how far the truth may be from it on either side."""

    over: str
    value: float
    reach: float
    confidence: float

    @property
    def lower(self) -> float:
        return self.value - self.reach

    def __str__(self) -> str:
        return (
            f"{self.value:+.4f} on {self.over}, with {self.confidence:.0%} confidence at least "
            f"{self.lower:+.4f}"
        )


def _difference(
    candidate: ByTask, champion: ByTask, confidence: float, over_seeds: bool
) -> _Difference:
    """Return how the candidate differs from a champion, over the candidate's tasks."""
    pairs = [(ours, champion[name]) for name, ours in sorted(candidate.items())]
    spreads = [spread for ours, theirs in pairs if (spread := _over_examples(ours, theirs))]
    if over_seeds:
        models = [model for pair in pairs for model in pair]
        spreads += [Spread.of_mean(np.array(model.scores)) for model in models]
    return _Difference(
        over=next(iter(candidate)) if len(pairs) == 1 else f"the mean of {len(pairs)} tasks",
        value=mean(ours.score - theirs.score for ours, theirs in pairs),
        reach=reach(spreads, confidence) / len(pairs),
        confidence=confidence,
    )


def _over_examples(ours: Measured, theirs: Measured) -> Spread | None:
    """Return how the difference of two models varies with the examples; None if that is unknown."""
    without = ours.without - theirs.without
    return Jackknife(ours.score - theirs.score, without, ours.shares).spread


def _has_spread(model: Measured, over_seeds: bool) -> bool:
    return not over_seeds or len(model.scores) >= MIN_SEEDS


def _problem(candidate: ByTask, champion: ByTask, over_seeds: bool) -> str | None:
    """Return why the two can't be compared, if they can't."""
    if lacking := sorted(candidate.keys() - champion.keys()):
        return f"the champion was not scored on {', '.join(lacking)}"
    if lacking := sorted(champion.keys() - candidate.keys()):
        return f"the candidate was not scored on {', '.join(lacking)}, as the champion was"
    for task, ours in sorted(candidate.items()):
        theirs = champion[task]
        if not ours.is_like(theirs):
            return f"the champion was not scored on the same files of {task} in the same way"
        if _over_examples(ours, theirs) is None:
            return f"dev of {task} has {len(ours.shares)} cluster of examples: there is no spread"
        if not (_has_spread(ours, over_seeds) and _has_spread(theirs, over_seeds)):
            return (
                f"{task} was fine-tuned with 1 seed; give at least {MIN_SEEDS} "
                "(evaluation.num_seeds), because one seed has no spread"
            )
    return None if candidate else "no task was scored"


def power(settings: RegistrySettings, num_seeds: int, clusters: Mapping[str, int]) -> str:
    """Return a sentence about the gain that the gate can find, before anything is fine-tuned.

    Args:
        settings: the gate's confidence, and the gain that must be exceeded.
        num_seeds: fine-tunings of each model on each task.
        clusters: how many independent clusters of examples dev has, by task; at least one task.
    """
    if num_seeds == 1:
        return (
            "with one seed (evaluation.num_seeds) the gate decides nothing about a second model, "
            "because one seed has no spread. Give at least 2; 5 find smaller gains."
        )
    number = len(clusters)
    variance = 2 * number * _SEED_SD**2 / num_seeds
    variance += sum(_DISAGREEMENT / size for size in clusters.values())
    quantiles = sum(map(NormalDist().inv_cdf, (settings.confidence, _POWER)))
    found = settings.min_score_gain + quantiles * math.sqrt(variance) / number
    wished = 100 * (settings.min_score_gain + _WISHED)
    each = 2 * (quantiles / _WISHED) ** 2 / number  # half of the variance is left to each of both
    sizes = ", ".join(f"{size:,} of {name}" for name, size in clusters.items())
    return (
        f"with {num_seeds} seeds, and {sizes} in dev, the gate finds a gain of "
        f"{100 * found:.1f} points in {_POWER:.0%} of all cases; {wished:g} "
        f"point{'s' * (wished != 1)} takes about {math.ceil(2 * _SEED_SD**2 * each)} seeds and "
        f"{_DISAGREEMENT * each:,.0f} examples of each task, if seeds differ by "
        f"{100 * _SEED_SD:g} point and models on {_DISAGREEMENT:.0%} of them"
    )
