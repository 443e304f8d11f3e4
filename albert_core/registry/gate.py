"""The gate: whether a candidate is better than the champion, beyond what chance explains.

Pure: scores go in, a decision comes out; it draws nothing at random.

The statistic is the mean over the tasks, as in the paper's tables, of the difference between the
candidate's and the champion's mean score. Two things are left to chance: the seeds of the
fine-tunings, and which examples the dev sets happen to contain. The variance of the statistic is
the sum of two: that of the scores over the seeds, for each model by itself; and that of the
jackknife's values (`metrics.jackknife`) over the examples, for the difference of the two models,
which answer the same examples. The interaction of examples and seeds is in both terms, so that the
sum errs on the safe side. The lower bound is a t bound; its degrees of freedom account for how few
seeds the variance is estimated from (Satterthwaite 1946, "An approximate distribution of estimates
of variance components"; Welch 1947). Resampling seeds would do worse: from two or three seeds a
bootstrap finds too little variance.

`benchmarks/promotion_gate.py` measures how often the gate errs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from scipy.stats import t as student

from albert_core.config import RegistrySettings
from albert_core.metrics import Floats, variance_of_mean
from albert_core.stage.results import TaskDifference, Verdict

MIN_SEEDS = 2
"""One seed has no spread; without it the gate would promote up to one in five equal candidates."""
_LEAST_EXAMPLES = 2


@dataclass(frozen=True)
class Measured:
    """The scores of a model on one task."""

    data: str
    """A digest of what makes scores comparable: the files and how it was fine-tuned."""
    scores: tuple[float, ...]
    """One of each fine-tuning, by seed; the better the higher."""
    values: Floats
    """(N,) the jackknife's values of dev's examples, in order, their mean over the fine-tunings."""

    @property
    def score(self) -> float:
        """The mean over the fine-tunings."""
        return mean(self.scores)


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


def gate(
    settings: RegistrySettings,
    candidate: Mapping[str, Measured],
    champion: Mapping[str, Measured],
    over_seeds: bool = True,
) -> Decision:
    """Return whether the candidate is to replace the champion.

    It is if the lower bound of the mean difference exceeds ``min_score_gain``, and no task fell.
    A task fell if its difference is below ``-max_task_drop`` and its upper bound below 0: by the
    difference alone, noise in small tasks would refuse up to a third of all better candidates.

    Args:
        settings: the confidence and the margins.
        candidate: task -> what was measured.
        champion: the same for the champion, on the same tasks.
        over_seeds: whether the models will be fine-tuned again, so that seeds are noise; False if
            the weights that were scored are the models themselves.

    Returns:
        The decision; "undecided" if the scores can't be compared.
    """
    if problem := _problem(candidate, champion, over_seeds):
        return Decision("undecided", f"{problem}, so that nothing was decided")
    parts = {
        task: _parts(candidate[task], champion[task], over_seeds) for task in sorted(candidate)
    }
    tasks = tuple(
        _task_difference(task, candidate[task], champion[task], of_task, settings)
        for task, of_task in parts.items()
    )
    value = mean(task.difference for task in tasks)
    reach = _reach([part for of_task in parts.values() for part in of_task], settings.confidence)
    lower_bound = value - reach / len(tasks)
    is_better = lower_bound > settings.min_score_gain
    is_promoted = is_better and not any(task.fell for task in tasks)
    return Decision(
        "promoted" if is_promoted else "refused",
        _reason(settings, value, lower_bound, is_better, tasks),
        value,
        lower_bound,
        tasks,
    )


def _problem(
    candidate: Mapping[str, Measured], champion: Mapping[str, Measured], over_seeds: bool
) -> str | None:
    """Return why the two can't be compared, if they can't."""
    if lacking := sorted(candidate.keys() - champion.keys()):
        return f"the champion was not scored on {', '.join(lacking)}"
    if lacking := sorted(champion.keys() - candidate.keys()):
        return f"the candidate was not scored on {', '.join(lacking)}, as the champion was"
    for task in sorted(candidate):
        ours, theirs = candidate[task], champion[task]
        if ours.data != theirs.data or len(ours.values) != len(theirs.values):
            return f"the champion was not scored on the same files of {task} in the same way"
        if len(ours.values) < _LEAST_EXAMPLES:
            return f"{task} has {len(ours.values)} example, of which there is no spread"
        fewest = min(len(ours.scores), len(theirs.scores))
        if over_seeds and fewest < MIN_SEEDS:
            return (
                f"{task} was fine-tuned with {fewest} seed; give at least {MIN_SEEDS} "
                "(evaluation.num_seeds), without which nobody knows what a seed does"
            )
    return None if candidate else "no task was scored"


def _parts(candidate: Measured, champion: Measured, over_seeds: bool) -> list[Floats]:
    """Return the samples whose means vary by chance in the two models' difference on one task."""
    parts = [candidate.values - champion.values]
    if over_seeds:
        parts += [np.array(model.scores) for model in (candidate, champion)]
    return parts


def _reach(parts: Sequence[Floats], confidence: float) -> float:
    """Return how far the truth may be, on one side, from a sum of the means of these samples."""
    variances = np.array([variance_of_mean(part) for part in parts])
    known = sum(variances**2 / [len(part) - 1 for part in parts])
    if known == 0:
        return 0.0
    variance = variances.sum()
    return float(student.ppf(confidence, variance**2 / known) * variance**0.5)


def _task_difference(
    task: str,
    candidate: Measured,
    champion: Measured,
    parts: Sequence[Floats],
    settings: RegistrySettings,
) -> TaskDifference:
    value = candidate.score - champion.score
    reach = _reach(parts, settings.confidence)
    return TaskDifference(
        task=task,
        candidate=candidate.score,
        champion=champion.score,
        difference=value,
        low=value - reach,
        high=value + reach,
        num_examples=len(candidate.values),
        fell=value < -settings.max_task_drop and value + reach < 0,
    )


def _reason(
    settings: RegistrySettings,
    value: float,
    lower_bound: float,
    is_better: bool,
    tasks: Sequence[TaskDifference],
) -> str:
    over = tasks[0].task if len(tasks) == 1 else f"the mean of {len(tasks)} tasks"
    found = (
        f"{value:+.4f} on {over}, with {settings.confidence:.0%} confidence at least "
        f"{lower_bound:+.4f}"
    )
    said = (
        f"better than the champion: {found}"
        if is_better
        else f"not surely better than the champion: {found}, which must exceed "
        f"{settings.min_score_gain:g}"
    )
    fallen = [f"{task.task} by {-task.difference:.4f}" for task in tasks if task.fell]
    if fallen:
        said += f"; fell by more than {settings.max_task_drop:g}: {', '.join(fallen)}"
    return said
