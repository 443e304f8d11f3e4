"""The gate: whether a candidate is better than the champion, beyond what chance explains.

Pure: scores go in, a decision comes out; it draws nothing at random.

The statistic is the mean over the tasks, as in the paper's tables, of the difference between the
candidate's and the champion's mean score. Two things could have made it other than it is: the
seeds of the fine-tunings, and which examples the dev sets happen to hold. Its variance is the sum
of both: of the scores over the seeds, of each model by itself; and of the jackknife's values over
the examples, of the two models' difference, since both answer the same ones. What an example and
a seed do together is in both terms, so that the sum errs on the safe side. The lower bound is a
t bound; its degrees of freedom say how few seeds the variance is known from (Satterthwaite 1946,
"An approximate distribution of estimates of variance components"; Welch 1947). Resampling seeds
would do worse: of two or three seeds a bootstrap finds too little variance.

`benchmarks/promotion_gate.py` says how often it errs.

The jackknife's values say how far a score hangs on which examples were drawn. The mean of an
example's values is what it adds to the score; of an accuracy it is 1 where the
answer is right and 0 where it is not. The variance of the score is that of the values divided by
their number, and that of the difference of two models' scores is that of the differences of their
values: they answer the same examples.

N examples, K classes. Source: Efron and Stein 1981, "The jackknife estimate of variance"; Tukey
1958 for the values ("pseudo-values").
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from albert_core.config import RegistrySettings
from albert_core.metrics import METRICS, Metric

MIN_SEEDS = 2
"""Of one seed nobody knows the spread; examples alone promote up to one in five equal ones."""
_LEAST_EXAMPLES = 2

Verdict = Literal["first", "promoted", "refused", "undecided"]


@dataclass(frozen=True)
class Measured:
    """How a model does on one task."""

    data: str
    """A digest of what makes scores comparable: the files and how it was fine-tuned."""
    scores: tuple[float, ...]
    """Of each fine-tuning, by seed; the better the higher."""
    values: NDArray[np.float64]
    """(N,) of dev's examples, in order, the mean over the fine-tunings; see `jackknife`."""

    @property
    def score(self) -> float:
        """The mean over the fine-tunings."""
        return mean(self.scores)


@dataclass(frozen=True)
class TaskDifference:
    """What a candidate has on one task, beside the champion."""

    task: str
    candidate: float
    champion: float
    difference: float
    low: float
    """Below which the true difference is not, with the confidence asked for; one-sided."""
    high: float
    """Above which it is not, likewise."""
    num_examples: int
    fell: bool
    """By more than the margin, and not by chance alone."""


@dataclass(frozen=True)
class Decision:
    """Whether a candidate becomes champion, and why."""

    verdict: Verdict
    reason: str
    """A sentence."""
    difference: float | None = None
    """The mean over the tasks; None if nothing was compared."""
    lower_bound: float | None = None
    tasks: tuple[TaskDifference, ...] = field(default=())

    @property
    def is_promoted(self) -> bool:
        """Whether it becomes champion."""
        return self.verdict in ("first", "promoted")

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"tasks": [asdict(task) for task in self.tasks]}


@dataclass(frozen=True)
class _Term:
    """A part of a variance, and the degrees of freedom it is known with."""

    variance: float
    freedom: int


@dataclass(frozen=True)
class _Difference:
    """A difference of means and the parts of its variance."""

    value: float
    terms: tuple[_Term, ...]

    def reach(self, confidence: float) -> float:
        """Return how far from it the truth may be on either side, one-sided."""
        variance = sum(term.variance for term in self.terms)
        known = sum(term.variance**2 / term.freedom for term in self.terms)
        if known == 0:
            return 0.0
        return float(student.ppf(confidence, variance**2 / known) * variance**0.5)


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
        candidate: by the tasks' names.
        champion: likewise, of the same tasks.
        over_seeds: whether the models will be fine-tuned again, so that seeds are noise; False if
            the weights that were scored are the models themselves.

    Returns:
        The decision; "undecided" if the scores can't be compared.
    """
    if problem := _problem(candidate, champion, over_seeds):
        return Decision("undecided", f"{problem}, so that nothing was decided")
    differences = {
        task: _difference(candidate[task], champion[task], over_seeds) for task in sorted(candidate)
    }
    tasks = tuple(
        _of_task(task, candidate[task], champion[task], difference, settings)
        for task, difference in differences.items()
    )
    whole = _mean(list(differences.values()))
    lower_bound = whole.value - whole.reach(settings.confidence)
    fallen = [task for task in tasks if task.fell]
    is_better = lower_bound > settings.min_score_gain
    return Decision(
        "promoted" if is_better and not fallen else "refused",
        _reason(settings, whole.value, lower_bound, is_better, tasks),
        whole.value,
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


def _difference(candidate: Measured, champion: Measured, over_seeds: bool) -> _Difference:
    terms = [_term(candidate.values - champion.values)]
    if over_seeds:
        terms += [_term(np.array(model.scores)) for model in (candidate, champion)]
    return _Difference(candidate.score - champion.score, tuple(terms))


def _term(values: NDArray[np.float64]) -> _Term:
    """Return the variance of the mean of ``values``."""
    if np.ptp(values) == 0:  # NumPy's variance of equal values is not always 0
        return _Term(0.0, len(values) - 1)
    return _Term(float(values.var(ddof=1)) / len(values), len(values) - 1)


def _mean(differences: Sequence[_Difference]) -> _Difference:
    number = len(differences)
    terms = tuple(
        _Term(term.variance / number**2, term.freedom)
        for difference in differences
        for term in difference.terms
    )
    return _Difference(mean(difference.value for difference in differences), terms)


def _of_task(
    task: str,
    candidate: Measured,
    champion: Measured,
    difference: _Difference,
    settings: RegistrySettings,
) -> TaskDifference:
    value, reach = difference.value, difference.reach(settings.confidence)
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


Floats = NDArray[np.float64]
Array = NDArray[Any]

MAX_GROUPS = 200
"""Of metrics without a formula here, how many groups of examples are left out in turn."""


def jackknife(metric: str, targets: Array, predictions: Array) -> tuple[float, Floats]:
    """Return the score, and the values of the examples.

    Args:
        metric: a name in `metrics.METRICS`, of those that are the better the higher.
        targets: (N,), N at least 2: integer classes from 0, or numbers.
        predictions: (N,), likewise.

    Returns:
        The score that the metric gives, and float64 (N,). Of a metric without a formula here
        (Spearman's) and more than `MAX_GROUPS` examples the values are of that many groups.
    """
    if metric == "accuracy":
        is_right = (targets == predictions).astype(np.float64)
        return float(is_right.mean()), is_right
    if metric in ("f1", "matthews"):
        return _of_classes(metric, targets, predictions)
    if metric == "pearson":
        return _of_pearson(targets.astype(np.float64), predictions.astype(np.float64))
    return _of_groups(METRICS[metric], targets, predictions)


def _values(score: float, scores_without: Floats, num_parts: int) -> Floats:
    return num_parts * score - (num_parts - 1) * scores_without


def _of_classes(metric: str, targets: Array, predictions: Array) -> tuple[float, Floats]:
    """Examples of one class that are predicted alike have one value."""
    num_classes = 1 + int(max(targets.max(), predictions.max(), 1))
    cell_of = targets * num_classes + predictions
    counts = np.bincount(cell_of, minlength=num_classes**2).astype(np.float64)
    cells = np.flatnonzero(counts)
    tables = np.concatenate([counts[None], counts - np.eye(num_classes**2)[cells]])
    function = _f1 if metric == "f1" else _matthews
    score, *without = function(tables.reshape(-1, num_classes, num_classes))
    of_cell = np.zeros(num_classes**2)
    of_cell[cells] = _values(score, np.array(without), len(targets))
    return float(score), of_cell[cell_of]


def _f1(tables: Floats) -> Floats:
    """Return the F1 of class 1 of tables (..., K, K) of label by prediction."""
    both = tables[..., 1, :].sum(-1) + tables[..., :, 1].sum(-1)
    return _ratio(2 * tables[..., 1, 1], both)


def _matthews(tables: Floats) -> Floats:
    """Return the Matthews correlation of tables (..., K, K) of label by prediction."""
    labels, predictions = tables.sum(-1), tables.sum(-2)
    total = labels.sum(-1)
    right = np.trace(tables, axis1=-2, axis2=-1)
    shared = right * total - (labels * predictions).sum(-1)
    spread = (total**2 - (labels**2).sum(-1)) * (total**2 - (predictions**2).sum(-1))
    return _ratio(shared, np.sqrt(spread))


def _of_pearson(targets: Floats, predictions: Floats) -> tuple[float, Floats]:
    x, y = targets - targets.mean(), predictions - predictions.mean()
    number = len(x)
    # Without example i the sums of squares shrink by this share of its own.
    share = number / (number - 1)
    xx, yy, xy = float(x @ x), float(y @ y), float(x @ y)
    left = np.clip(xx - share * x * x, 0.0, None) * np.clip(yy - share * y * y, 0.0, None)
    without = _ratio(xy - share * x * y, np.sqrt(left))
    score = float(_ratio(np.array(xy), np.array(np.sqrt(xx * yy))))
    return score, _values(score, without, number)


def _of_groups(metric: Metric, targets: Array, predictions: Array) -> tuple[float, Floats]:
    number = min(len(targets), MAX_GROUPS)
    group_of = np.arange(len(targets)) % number
    without = np.array(
        [metric(targets[group_of != i], predictions[group_of != i]) for i in range(number)]
    )
    score = metric(targets, predictions)
    return score, _values(score, without, number)


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return the ratio; 0 where nothing is below, as where all predictions are the same."""
    found: Floats = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return found
