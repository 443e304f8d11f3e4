"""Scores of fine-tunings, over tasks and seeds, in the paper's columns.

Pure: the facts of manifests go in, a table comes out; how it looks is `text`'s and
`page`'s affair. Scores are shares and correlations, 0..1 or -1..1, or errors.

What the paper and its release report on dev, to lay beside one's own.

Source: REFERENCE.md F: the paper's Table 2 (125,000 steps on Wikipedia and books), Tables 9 and 10
(xxlarge, 1.5 million steps, the single model), and the release's README (version 2, base).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Self

from albert_core.metrics import LOWER_IS_BETTER


@dataclass(frozen=True)
class PublishedScores:
    """One row of a table."""

    name: str
    source: str
    scores: Mapping[str, tuple[float, ...]]
    """Per cent, by task: F1 and exact match of SQuAD, else the task's first metric alone."""


def _table_2(
    name: str,
    squad_1: tuple[float, float],
    squad_2: tuple[float, float],
    mnli: float,
    sst_2: float,
    race: float,
) -> PublishedScores:
    of_task: dict[str, tuple[float, ...]] = {
        "squad-1.1": squad_1,
        "squad-2.0": squad_2,
        "mnli": (mnli,),
        "sst-2": (sst_2,),
        "race": (race,),
    }
    return PublishedScores(name, "paper, Table 2", of_task)


PUBLISHED = {
    "base": _table_2("ALBERT base", (89.3, 82.3), (80.0, 77.1), 81.6, 90.3, 64.0),
    "large": _table_2("ALBERT large", (90.6, 83.9), (82.3, 79.4), 83.5, 91.7, 68.5),
    "xlarge": _table_2("ALBERT xlarge", (92.5, 86.1), (86.1, 83.1), 86.4, 92.4, 74.8),
    "xxlarge": _table_2("ALBERT xxlarge", (94.1, 88.3), (88.1, 85.1), 88.0, 95.2, 82.3),
    "bert-base": _table_2("BERT base", (90.4, 83.2), (80.4, 77.6), 84.5, 92.8, 68.2),
    "bert-large": _table_2("BERT large", (92.2, 85.5), (85.0, 82.2), 86.6, 93.0, 73.9),
    "base-v2": PublishedScores(
        "ALBERT base v2",
        "README of the release",
        {
            "squad-1.1": (90.2, 83.2),
            "squad-2.0": (82.1, 79.3),
            "mnli": (84.6,),
            "sst-2": (92.9,),
            "race": (66.8,),
        },
    ),
    "xxlarge-1.5m": PublishedScores(
        "ALBERT xxlarge, 1.5 million steps",
        "paper, Tables 9 and 10",
        {
            "squad-1.1": (94.8, 89.3),
            "squad-2.0": (90.2, 87.4),
            "mnli": (90.8,),
            "sst-2": (96.9,),
            "race": (86.5,),
            "cola": (71.4,),
            "mrpc": (90.9,),
            "qnli": (95.3,),
            "qqp": (92.2,),
            "rte": (89.2,),
            "sts-b": (93.0,),
        },
    ),
}
"""By the name that settings have for the row."""


PAPER_COLUMNS = ("squad-1.1", "squad-2.0", "mnli", "sst-2", "race")
"""The tasks of the paper's Table 2, whose mean is its Avg."""
GLUE_COLUMNS = ("mnli", "qnli", "qqp", "rte", "sst-2", "mrpc", "cola", "sts-b", "wnli")
"""The tasks of the paper's Table 9, in its order; and WNLI."""
"""Metrics that are errors; all others are shares or correlations."""
_ORDER = tuple(dict.fromkeys((*PAPER_COLUMNS, *GLUE_COLUMNS)))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fine-tuning, scored on dev."""

    model: str
    """What the table calls the model."""
    task: str
    title: str
    kind: str
    seed: int
    metric: str
    """The key metric, by which runs are compared."""
    scores: Mapping[str, float]
    """By metric, the key metric first; of another labelled set "<metric> of <set>"."""
    intervals: Mapping[str, tuple[float, float]]
    """The 95 % intervals, low and high."""
    num_examples: int
    """Of dev."""
    num_train: int
    best_step: int
    num_steps: int
    baselines: Mapping[str, float] = field(default_factory=dict)
    """By metric, what the best constant answer gets on dev."""

    @classmethod
    def of_facts(cls, model: str, facts: Mapping[str, Any]) -> Self:
        """Return the run that a fine-tuning's manifest has these facts of."""
        key = str(facts["metric"])
        scores = {key: float(facts["score"])} | dict(facts["scores"])
        intervals = {name: (low, high) for name, (low, high) in facts["intervals"].items()}
        for part, estimates in facts.get("other_scores", {}).items():
            other = part.removesuffix(".dev")
            for name, estimate in estimates.items():
                scores[f"{name} of {other}"] = estimate["value"]
                intervals[f"{name} of {other}"] = (estimate["low"], estimate["high"])
        names = ("task", "title", "kind", "seed", "num_examples", "num_train", "best_step")
        return cls(
            model=model,
            metric=key,
            scores=scores,
            intervals=intervals,
            num_steps=facts["num_steps"],
            baselines=dict(facts["constant_scores"]),
            **{name: facts[name] for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One metric of a task over the seeds."""

    name: str
    median: float
    """Of an even number of seeds the worse one of the middle, so that it is a run's own."""
    low: float
    """Of the 95 % interval of the median run, which is of the dev set's examples, not of seeds."""
    high: float
    by_seed: Mapping[int, float]
    baseline: float | None
    """What the best constant answer gets; None if it is not known."""

    @property
    def worst(self) -> float:
        """That of the worst seed."""
        return self.by_seed[self.worst_seed]

    @property
    def best(self) -> float:
        """That of the best seed."""
        return self.by_seed[self._ranked()[-1]]

    @property
    def worst_seed(self) -> int:
        """The seed with the lowest score, or the highest error."""
        return self._ranked()[0]

    @property
    def beats_baseline(self) -> bool | None:
        """Whether the whole interval is above the best constant answer; None if unknown."""
        if self.baseline is None:
            return None
        is_error = self.name in LOWER_IS_BETTER
        return self.high < self.baseline if is_error else self.low > self.baseline

    def _ranked(self) -> list[int]:
        """Return the seeds, the worst first."""
        is_error = self.name in LOWER_IS_BETTER
        return sorted(self.by_seed, key=self.by_seed.__getitem__, reverse=is_error)


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """A model on one task, over the seeds."""

    task: str
    title: str
    kind: str
    metrics: tuple[MetricSummary, ...]
    """The key metric first."""
    num_examples: int
    num_train: int
    seeds: tuple[int, ...]
    contamination: float | None
    """Share of dev examples, 0..1, that overlap the pretraining corpus; None if unknown."""

    @property
    def key(self) -> MetricSummary:
        """The key metric."""
        return self.metrics[0]


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """A row of the table: a model on all tasks."""

    name: str
    tasks: Mapping[str, TaskScores]
    """By the task's name, in the table's order."""

    @property
    def average(self) -> float | None:
        """The paper's Avg, 0..1; None if one of its five tasks is missing."""
        if self.average_lacks:
            return None
        return mean(paper_score(self.tasks[task]) for task in PAPER_COLUMNS)

    @property
    def average_lacks(self) -> tuple[str, ...]:
        """The tasks that are missing for the average."""
        return tuple(task for task in PAPER_COLUMNS if task not in self.tasks)


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """Models, published rows to lay beside them, and what is missing."""

    models: tuple[ModelScores, ...]
    published: tuple[PublishedScores, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a task is not there, by its title."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that some model was scored on, in the table's order."""
        return in_order(task for model in self.models for task in model.tasks)


def build_table(
    runs: Iterable[Run],
    contamination: Mapping[str, float] | None = None,
    published: Sequence[PublishedScores] = (),
    missing: Mapping[str, str] | None = None,
) -> ScoreTable:
    """Return the table of ``runs``.

    Args:
        runs: each a model, a task and a seed; models keep their order.
        contamination: by task, the share of dev examples that overlap the pretraining corpus.
        published: rows to lay beside.
        missing: by title, why a task was not scored.

    Raises:
        ValueError: a seed of a model and task comes twice, or runs of one task differ in their
            dev set, so that there is no median of them.
    """
    grouped: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        grouped.setdefault(run.model, {}).setdefault(run.task, []).append(run)
    shares = contamination or {}
    models = [
        ModelScores(
            name=model,
            tasks={task: _summary(of_task[task], shares.get(task)) for task in in_order(of_task)},
        )
        for model, of_task in grouped.items()
    ]
    return ScoreTable(models=tuple(models), published=tuple(published), missing=dict(missing or {}))


def paper_score(scores: TaskScores) -> float:
    """Return what a task counts in the paper's Avg: (F1 + EM) / 2 of SQuAD, else the key metric.

    Source: REFERENCE.md D.5.
    """
    if scores.kind == "spans":
        return mean(metric.median for metric in scores.metrics[:2])
    return scores.key.median


def published_average(row: PublishedScores) -> float:
    """Return the same of a published row, 0..1; rows have all five tasks."""
    return mean(mean(row.scores[task]) for task in PAPER_COLUMNS) / 100


def in_order(tasks: Iterable[str]) -> tuple[str, ...]:
    """Return each task once: the paper's in its order, then others by name."""
    found = set(tasks)
    known = [task for task in _ORDER if task in found]
    return (*known, *sorted(found.difference(_ORDER)))


def _summary(runs: Sequence[Run], contamination: float | None) -> TaskScores:
    first = runs[0]
    seeds = sorted(run.seed for run in runs)
    sizes = {run.num_examples for run in runs}
    if len(set(seeds)) != len(seeds) or len(sizes) > 1:
        raise ValueError(
            f"{first.model} on {first.task}: seeds {seeds} on dev sets of {sorted(sizes)} "
            "examples. Give one run for each seed, all of the same task files."
        )
    return TaskScores(
        task=first.task,
        title=first.title,
        kind=first.kind,
        metrics=tuple(_metric_summary(runs, name) for name in first.scores),
        num_examples=first.num_examples,
        num_train=first.num_train,
        seeds=tuple(seeds),
        contamination=contamination,
    )


def _metric_summary(runs: Sequence[Run], name: str) -> MetricSummary:
    is_error = name in LOWER_IS_BETTER
    ranked = sorted(runs, key=lambda run: (run.scores[name], run.seed), reverse=is_error)
    middle = ranked[(len(ranked) - 1) // 2]
    low, high = middle.intervals[name]
    by_seed = {run.seed: run.scores[name] for run in sorted(runs, key=lambda run: run.seed)}
    return MetricSummary(
        name=name,
        median=middle.scores[name],
        low=low,
        high=high,
        by_seed=by_seed,
        baseline=middle.baselines.get(name),
    )
