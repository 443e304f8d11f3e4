"""Scores of a model's fine-tunings, over tasks and seeds, in the paper's columns.

Pure: the facts of manifests go in, a table comes out; `text`, `page` and `plot` show it. Scores are
shares and correlations, 0..1 or -1..1, or errors. Published scores on dev can be laid beside one's
own: those of the ALBERT paper's Table 2 (125,000 steps on Wikipedia and books), of its Tables 9 and
10 (xxlarge, 1.5 million steps, the single model), and of the README of google-research/albert
(version 2, base).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Self

from albert_core.metrics import LOWER_IS_BETTER


@dataclass(frozen=True)
class PublishedScores:
    """A published model's scores."""

    name: str
    source: str
    scores: Mapping[str, tuple[float, ...]]
    """Per cent, by task: F1 and exact match of SQuAD, else the task's first metric alone."""

    @property
    def average(self) -> float:
        """The paper's Avg, 0..1; every row has its five tasks."""
        return mean(mean(self.scores[task]) for task in PAPER_COLUMNS) / 100


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
"""Name in `scoring.published` -> row."""

PAPER_COLUMNS = {
    "squad-1.1": "SQuAD1.1",
    "squad-2.0": "SQuAD2.0",
    "mnli": "MNLI",
    "sst-2": "SST-2",
    "race": "RACE",
}
"""Task -> title, of the paper's Table 2. The mean over these tasks is its Avg."""
GLUE_COLUMNS = ("mnli", "qnli", "qqp", "rte", "sst-2", "mrpc", "cola", "sts-b", "wnli")
"""The tasks of the paper's Table 9, in its order; and WNLI."""
_ORDER = tuple(dict.fromkeys((*PAPER_COLUMNS, *GLUE_COLUMNS)))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fine-tuning, scored on dev."""

    task: str
    title: str
    kind: str
    seed: int
    scores: Mapping[str, float]
    """Metric -> score, the key metric first; "<metric> of <set>" for another labelled set."""
    intervals: Mapping[str, tuple[float, float]]
    """Metric -> low and high end of the 95 % interval."""
    num_examples: int
    """Examples in dev."""
    num_train: int
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Metric -> score of the best constant answer on dev."""

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the run whose manifest has these facts."""
        scores = {str(facts["metric"]): float(facts["score"])} | dict(facts["scores"])
        intervals = {name: (low, high) for name, (low, high) in facts["intervals"].items()}
        for part, estimates in facts.get("other_scores", {}).items():
            for metric, estimate in estimates.items():
                name = f"{metric} of {part.removesuffix('.dev')}"
                scores[name] = estimate["value"]
                intervals[name] = (estimate["low"], estimate["high"])
        names = ("task", "title", "kind", "seed", "num_examples", "num_train")
        return cls(
            scores=scores,
            intervals=intervals,
            baselines=dict(facts["constant_scores"]),
            **{name: facts[name] for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One metric of a task over the seeds."""

    name: str
    median: float
    """The score of the middle run, the worse one if two are in the middle."""
    low: float
    """Low end of the median run's 95 % interval, which is over dev's examples, not over seeds."""
    high: float
    by_seed: Mapping[int, float]
    """Seed -> score; the worst first."""
    baseline: float | None
    """Score of the best constant answer; None if it is not known."""

    @classmethod
    def of_runs(cls, name: str, runs: Sequence[Run]) -> Self:
        """Return the summary of one metric of all the runs of a task."""
        ranked = sorted(runs, key=lambda run: run.scores[name], reverse=name in LOWER_IS_BETTER)
        middle = ranked[(len(ranked) - 1) // 2]
        low, high = middle.intervals[name]
        return cls(
            name=name,
            median=middle.scores[name],
            low=low,
            high=high,
            by_seed={run.seed: run.scores[name] for run in ranked},
            baseline=middle.baselines.get(name),
        )

    @property
    def worst_seed(self) -> int:
        """The seed with the lowest score, or the highest error."""
        return next(iter(self.by_seed))

    @property
    def beats_baseline(self) -> bool | None:
        """Whether the whole interval is better than the best constant answer; None if unknown."""
        if self.baseline is None:
            return None
        is_error = self.name in LOWER_IS_BETTER
        return self.high < self.baseline if is_error else self.low > self.baseline


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """The model on one task, over the seeds."""

    task: str
    title: str
    kind: str
    metrics: tuple[MetricSummary, ...]
    """The key metric first."""
    num_examples: int
    num_train: int
    contamination: float | None
    """Share of dev examples, 0..1, that overlap the pretraining corpus; None if unknown."""

    @property
    def key(self) -> MetricSummary:
        """The key metric."""
        return self.metrics[0]

    @property
    def num_seeds(self) -> int:
        """Number of fine-tunings."""
        return len(self.key.by_seed)

    @property
    def paper_score(self) -> float:
        """What the task counts in the paper's Avg: (F1 + EM) / 2 of SQuAD, else the key metric."""
        counted = self.metrics[: 2 if self.kind == "spans" else 1]
        return mean(metric.median for metric in counted)


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """A model on all tasks, published rows to lay beside it, and what is missing."""

    model: str
    tasks: Mapping[str, TaskScores]
    """Task -> scores: the paper's tasks in its order, then others by name."""
    published: tuple[PublishedScores, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Title of a task that was not scored -> why."""

    @property
    def average(self) -> float | None:
        """The paper's Avg, 0..1; None if one of its five tasks is missing."""
        if self.average_lacks:
            return None
        return mean(self.tasks[task].paper_score for task in PAPER_COLUMNS)

    @property
    def average_lacks(self) -> tuple[str, ...]:
        """The tasks that are missing for the average."""
        return tuple(task for task in PAPER_COLUMNS if task not in self.tasks)


def build_table(
    model: str,
    runs: Iterable[Run],
    contamination: Mapping[str, float] | None = None,
    published: Sequence[PublishedScores] = (),
    missing: Mapping[str, str] | None = None,
) -> ScoreTable:
    """Return the table of ``runs``.

    Args:
        model: what the table calls the model.
        runs: one of each task and seed.
        contamination: by task, the share of dev examples that overlap the pretraining corpus.
        published: rows to lay beside.
        missing: by title, why a task was not scored.

    Raises:
        ValueError: a seed of a task comes twice, or runs of one task differ in their dev set, so
            that there is no median of them.
    """
    of_task: dict[str, list[Run]] = {}
    for run in runs:
        of_task.setdefault(run.task, []).append(run)
    known = [task for task in _ORDER if task in of_task]
    shares = contamination or {}
    return ScoreTable(
        model=model,
        tasks={
            task: _summary(of_task[task], shares.get(task))
            for task in (*known, *sorted(of_task.keys() - set(known)))
        },
        published=tuple(published),
        missing=dict(missing or {}),
    )


def _summary(runs: Sequence[Run], contamination: float | None) -> TaskScores:
    runs = sorted(runs, key=lambda run: run.seed)
    first = runs[0]
    seeds = [run.seed for run in runs]
    sizes = {run.num_examples for run in runs}
    if len(set(seeds)) != len(seeds) or len(sizes) > 1:
        raise ValueError(
            f"{first.task}: seeds {seeds} on dev sets of {sorted(sizes)} examples. Give one run "
            "for each seed, all of the same task files."
        )
    return TaskScores(
        task=first.task,
        title=first.title,
        kind=first.kind,
        metrics=tuple(MetricSummary.of_runs(name, runs) for name in first.scores),
        num_examples=first.num_examples,
        num_train=first.num_train,
        contamination=contamination,
    )
