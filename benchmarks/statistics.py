"""How often intervals contain the truth, and how often the gate errs, on data of known truth.

    python -m benchmarks.statistics [--repeats N] [--processes N] [--results FOLDER]

The real intervals, the real choice on dev and the real gate meet simulated documents, answers and
models. Beside each stands what the obvious method does: the percentile bootstrap over examples, or
over documents; the best evaluation, or threshold, on the examples that are scored; a champion that
keeps the scores by which it became one.

An example is answered right if a normal number lies below what the run's score asks for. The
number has three parts: the example's own difficulty, which all models meet; what the model makes of
the example, and of the article that it shares with others; and what the run does. Their shares say
how alike two runs answer: with the usual ones, two runs with 85 % right disagree on 12 % of the
examples, two models on 15 %. What a run scores in the long run is the model's true score and the
seed's share, normal with the task's standard deviation.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from albert_core.config import RegistrySettings
from albert_core.finetuning.finetuning import halves
from albert_core.metrics import METRICS, RATIO, SHARE, Sample, estimate, jackknife
from albert_core.registry.gate import ByTask, Measured, first_gate, gate
from albert_core.tasks.squad import AnswerScores, apply_threshold, best_threshold
from albert_core.text.records import Bools, Ints
from albert_core.text.seeds import derive_seed
from benchmarks import harness

Floats = NDArray[np.float64]
Draw = np.random.Generator
Shares = tuple[float, float, float]
Drawing = tuple[Sample, Ints, float]
"""A score's sample, the cluster of each example, and the truth."""
Drawn = Callable[[Draw], Drawing]

ROOT_SEED = 12345
USUAL: Shares = (0.5, 0.2, 0.3)
"""Of the example, the model and the run."""
ALIKE: Shares = (0.8, 0.17, 0.03)
"""Runs of one model answer almost alike: then what a run does is counted only once."""
_GRID = np.linspace(0.5, 0.9995, 400)
_SETTINGS = RegistrySettings()


@dataclass(frozen=True)
class SimulatedTask:
    """A task, and how models do on it."""

    name: str
    metric: str
    num_examples: int
    score: float
    """The first champion's true one, 0..1."""
    seed_sd: float
    """Standard deviation of the true scores of runs that differ in their seed."""
    positive_share: float = 0.5
    """Of class 1 among the targets."""
    cluster_size: int = 1
    """Examples of an article."""
    cluster_share: float = 0.0
    """Of what a model makes of an example: what it makes of the article."""


MNLI = SimulatedTask("mnli", "accuracy", 9815, 0.845, 0.002)
COLA = SimulatedTask("cola", "matthews", 1043, 0.55, 0.013, 0.69)
MRPC = SimulatedTask("mrpc", "f1", 408, 0.91, 0.010, 0.68)
RTE = SimulatedTask("rte", "accuracy", 277, 0.70, 0.020)
RACE = SimulatedTask("race", "accuracy", 2000, 0.70, 0.005, cluster_size=40, cluster_share=0.3)
GLUE = (COLA, MRPC, RTE)
"""With the sizes of GLUE's dev sets. Scores and the spread between seeds are about those published
for models of base size (Dodge et al. 2020, Mosbach et al. 2021)."""


@dataclass(frozen=True)
class SimulatedModel:
    """A model whose true scores are known, and what it makes of the examples of dev."""

    truth: Mapping[str, float]
    seed: int

    def measured(
        self,
        tasks: Sequence[SimulatedTask],
        num_seeds: int,
        draw: Draw,
        shares: Shares = USUAL,
        dev: int = 0,
        by_cluster: bool = True,
    ) -> dict[str, Measured]:
        """Return how new fine-tunings of the model do.

        Args:
            tasks: their names differ.
            num_seeds: runs on each task.
            draw: of what the runs do.
            shares: of the example, the model and the run, in what an answer depends on.
            dev: number of the dev sets.
            by_cluster: whether the jackknife knows the articles.
        """
        found = {}
        for task in tasks:
            examples = np.random.default_rng(derive_seed(dev, "dev", task.name))
            size, cluster = task.num_examples, np.arange(task.num_examples) // task.cluster_size
            difficulty = examples.standard_normal(size)
            targets = (examples.random(size) < task.positive_share).astype(np.int64)
            own = np.random.default_rng(derive_seed(self.seed, "model", task.name))
            mine = np.sqrt(1 - task.cluster_share) * own.standard_normal(size)
            mine += np.sqrt(task.cluster_share) * own.standard_normal(cluster[-1] + 1)[cluster]
            runs = []
            for _ in range(num_seeds):
                score = self.truth[task.name] + task.seed_sd * draw.standard_normal()
                parts = (difficulty, mine, draw.standard_normal(size))
                number = sum(share**0.5 * part for share, part in zip(shares, parts, strict=True))
                is_right = number < norm.ppf(_share_right(task, score))
                answers = np.where(is_right, targets, 1 - targets)
                sample = METRICS[task.metric].of(targets, answers)
                runs.append(jackknife(sample, cluster if by_cluster else None))
            found[task.name] = Measured(
                data=task.name,
                scores=tuple(run.value for run in runs),
                without=np.mean([run.without for run in runs], axis=0),
                shares=runs[0].shares,
                constant=max(task.positive_share, 0.5) if task.metric == "accuracy" else 0.0,
            )
        return found


def simulate(
    tasks: Sequence[SimulatedTask],
    num_seeds: int,
    gain: float,
    seed: int,
    shares: Shares = USUAL,
    by_cluster: bool = True,
) -> tuple[ByTask, ByTask]:
    """Return how a candidate whose true scores are higher by ``gain``, and a champion, do."""
    draw = np.random.default_rng(derive_seed(seed, "runs"))
    found = []
    for which, more in (("candidate", gain), ("champion", 0.0)):
        truth = {task.name: task.score + more for task in tasks}
        model = SimulatedModel(truth, derive_seed(seed, which))
        found.append(model.measured(tasks, num_seeds, draw, shares, seed, by_cluster))
    return found[0], found[1]


def _share_right(task: SimulatedTask, score: float) -> float:
    """Return how many of all answers are right where the metric is ``score``."""
    if task.metric == "accuracy":
        return float(np.clip(score, 0.001, 0.999))
    return float(np.interp(score, _scores(task.metric, task.positive_share), _GRID))


@cache
def _scores(metric: str, positive_share: float) -> Floats:
    """Return the metric at each share of right answers in `_GRID`, of both classes alike."""
    labels, said = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    right = np.where(labels == said, _GRID[:, None], 1 - _GRID[:, None])
    weights = right * np.where(labels == 1, positive_share, 1 - positive_share)
    return METRICS[metric].score(weights @ METRICS[metric].of(labels, said).terms)


# Intervals


def _clusters(draw: Draw, number: int, size: int, sigma: float, has_large: bool = False) -> Ints:
    """Return the cluster of each example; sizes are lognormal, one may have half of all."""
    sizes = np.maximum(1, np.round(size * np.exp(sigma * draw.standard_normal(number))))
    if has_large:
        sizes[0] = sizes[1:].sum()
    return np.repeat(np.arange(number), sizes.astype(int))


def documents(number: int, sigma: float = 0.0, has_large: bool = False) -> Drawn:
    """Return a draw of held-out predictions."""

    def drawn(draw: Draw) -> Drawing:
        cluster = _clusters(draw, number, 40, sigma, has_large)
        nats = 5 + 0.5 * draw.standard_normal(number)[cluster]
        nats += 2.5 * draw.standard_normal(len(cluster))
        return RATIO.of(nats, np.ones(len(nats))), cluster, 5.0

    return drawn


def articles(number: int, size: int, sigma: float = 0.5) -> Drawn:
    """Return a draw of answers whose share of right ones differs from article to article."""
    share, icc = 0.7, 0.03

    def drawn(draw: Draw) -> Drawing:
        cluster = _clusters(draw, number, size, sigma)
        odds = (share * (1 / icc - 1), (1 - share) * (1 / icc - 1))
        is_right = draw.random(len(cluster)) < draw.beta(*odds, number)[cluster]
        return SHARE.of(is_right, np.ones(len(cluster))), cluster, share

    return drawn


def answers(metric: str, number: int, positive: float, share: float) -> Drawn:
    """Return a draw of independent answers, of both classes right with the same probability."""

    def drawn(draw: Draw) -> Drawing:
        if metric in ("pearson", "spearman"):
            x = draw.standard_normal(number)
            y = share * x + (1 - share**2) ** 0.5 * draw.standard_normal(number)
            truth = share if metric == "pearson" else 6 / np.pi * np.arcsin(share / 2)
            return METRICS[metric].of(x, y), np.arange(number), float(truth)
        targets = (draw.random(number) < positive).astype(np.int64)
        said = np.where(draw.random(number) < share, targets, 1 - targets)
        truth = share
        if metric != "accuracy":
            truth = float(np.interp(share, _GRID, _scores(metric, positive)))
        return METRICS[metric].of(targets, said), np.arange(number), truth

    return drawn


INTERVALS: dict[str, Drawn] = {
    **{f"loss, {n} documents": documents(n) for n in (2, 5, 10)},
    **{f"loss, {n} documents, lognormal": documents(n, 1.5) for n in (5, 20, 200)},
    **{f"loss, {n} documents, one with half": documents(n, 0, True) for n in (5, 50)},
    "accuracy 0.97 of 30": answers("accuracy", 30, 0.5, 0.97),
    "accuracy 0.7 of 277": answers("accuracy", 277, 0.5, 0.7),
    **{f"{m}, 277, 10 % positive": answers(m, 277, 0.1, 0.9) for m in ("f1", "matthews")},
    "f1, 100, 10 % positive, 0.7 right": answers("f1", 100, 0.1, 0.7),
    **{f"{m} 0.9 of 100": answers(m, 100, 0.5, 0.9) for m in ("pearson", "spearman")},
    "spearman 0.97 of 100": answers("spearman", 100, 0.5, 0.97),
    "30 questions, 5 articles": articles(5, 6, sigma=0),
    "SQuAD, 10 articles": articles(10, 60),
    "SQuAD, 48 articles": articles(48, 60),
    **{f"passages, {n} documents, lognormal": articles(n, 2, 1.5) for n in (5, 20)},
}


def percentile(
    sample: Sample, cluster: Ints, draw: Draw, resamples: int = 200
) -> tuple[float, ...]:
    """Return the ends of the percentile bootstrap interval over clusters."""
    sums = np.stack([np.bincount(cluster, weights=column) for column in sample.terms.T], axis=1)
    number = len(sums)
    times = draw.multinomial(number, np.full(number, 1 / number), resamples).astype(np.float64)
    return tuple(np.quantile(sample.metric.score(times @ sums), (0.025, 0.975)))


def coverage(
    name: str, repeats: int, intervals: Sequence[str] = ("before", "now")
) -> dict[str, float]:
    """Return how often the interval, and the percentile bootstrap's, contain the truth.

    Args:
        name: of the case in `INTERVALS`.
        repeats: samples to draw.
        intervals: those to count: "before" is the bootstrap's, "now" is ours.

    Returns:
        The share that contains the truth, of draws with an interval; and which share of draws has
        none.
    """
    draw, without = np.random.default_rng(derive_seed(ROOT_SEED, name)), 0
    contains: dict[str, list[bool]] = {interval: [] for interval in intervals}
    for _ in range(repeats):
        sample, cluster, truth = INTERVALS[name](draw)
        for interval, each in contains.items():
            if interval == "now":
                found = estimate(sample, cluster)
                low, high = found.low, found.high
            else:
                is_single = "SQuAD" in name or "questions" in name
                clusters = np.arange(len(cluster)) if is_single else cluster
                low, high = percentile(sample, clusters, draw)
            if low is None or high is None:
                without += 1
            else:
                each.append(low <= truth <= high)
    shares = {interval: float(np.mean(each)) for interval, each in contains.items()}
    return {**shares, "without_interval": without / repeats}


# The choice on dev


def chosen(evaluations: int, of_example: Floats, draw: Draw) -> tuple[Sample, Sample]:
    """Return the best of evaluations that are equally good, 0.7 in truth: on all, cross-fitted."""
    number = len(of_example)
    parts = 0.8**0.5 * of_example + 0.2**0.5 * draw.standard_normal((evaluations, number))
    samples = [SHARE.of(each < norm.ppf(0.7), np.ones(number)) for each in parts]
    both = halves(np.arange(number))
    best = [max(samples, key=lambda each: each.part(half).value) for half in both]
    return max(samples, key=lambda each: each.value), best[0].merged(both[0], best[1])


def choice(evaluations: int, repeats: int) -> dict[str, float]:
    """Return by how much the score of the best evaluation on 277 examples is above its truth."""
    draw = np.random.default_rng(derive_seed(ROOT_SEED, "choice", evaluations))
    found = [chosen(evaluations, draw.standard_normal(277), draw) for _ in range(repeats)]
    before, now = np.mean([[way.value for way in ways] for ways in found], axis=0).tolist()
    return {"before": before - 0.7, "now": now - 0.7}


def threshold(number: int, repeats: int) -> dict[str, float]:
    """Return by how much F1 is above its truth where SQuAD 2.0's threshold is searched on it."""
    draw = np.random.default_rng(derive_seed(ROOT_SEED, "threshold", number))

    def questions(size: int) -> tuple[AnswerScores, list[str], Bools, Floats]:
        has_answer = draw.random(size) < 0.5
        scores = np.where(has_answer, draw.random(size) < 0.6, 0.0)
        belief = 1 / (1 + np.exp(1.2 * (2 * has_answer - 1) - draw.standard_normal(size) * 1.5))
        return {"exact_match": scores, "f1": scores}, ["text"] * size, has_answer, belief

    def f1(found: tuple[Any, ...], at: float) -> Floats:
        scores, _, has_answer, belief = found
        return apply_threshold(scores, belief, has_answer, at)["f1"]

    def best(found: tuple[Any, ...], rows: Bools) -> float:
        scores, texts, has_answer, belief = found
        of_rows = texts[: int(rows.sum())]
        return best_threshold(scores["f1"][rows], of_rows, has_answer[rows], belief[rows])[1]

    new, both, found = questions(20_000), halves(np.arange(number)), []
    for _ in range(repeats):
        dev = questions(number)
        at = best(dev, np.ones(number, bool))
        apart = np.where(both[0], f1(dev, best(dev, both[1])), f1(dev, best(dev, both[0])))
        found.append(np.array([f1(dev, at).mean(), apart.mean()]) - f1(new, at).mean())
    before, now = np.mean(found, axis=0).tolist()
    return {"before": before, "now": now}


# The gate


@dataclass(frozen=True)
class Decisions:
    """What the gate decides about many times."""

    name: str
    tasks: tuple[SimulatedTask, ...]
    num_seeds: int
    gain: float = 0.0
    shares: Shares = USUAL
    by_cluster: bool = True


EQUAL = [
    *(Decisions(f"RTE, {n} seeds", (RTE,), n) for n in (2, 3, 5)),
    Decisions("RTE, runs alike, 3 seeds", (RTE,), 3, shares=ALIKE),
    Decisions("CoLA, 3 seeds", (COLA,), 3),
    Decisions("three tasks of GLUE, 2 seeds", GLUE, 2),
    Decisions("three tasks of GLUE, 5 seeds", GLUE, 5),
    Decisions("RACE, 3 seeds, runs alike, by passage", (RACE,), 3, shares=ALIKE),
    Decisions("RACE, 3 seeds, runs alike, by question", (RACE,), 3, shares=ALIKE, by_cluster=False),
]
_THOUSAND = SimulatedTask("a task of 1,000", "accuracy", 1000, 0.8, 0.01)
BETTER = [
    *(
        Decisions(f"{task.name}, {n} seeds, +{100 * gain:g}", (task,), n, gain)
        for task in (_THOUSAND, MNLI)
        for n in (3, 5)
        for gain in (0.01, 0.02)
    ),
    Decisions("a task of 1,000, 3 seeds, +3.7", (_THOUSAND,), 3, 0.037),
    *(Decisions(f"three of GLUE, {n} seeds, +2", GLUE, n, 0.02) for n in (2, 5)),
]


def promoted(case: Decisions, repeats: int) -> dict[str, float]:
    """Return which share of candidates is promoted, with its 95 % interval."""
    count = 0
    for number in range(repeats):
        seed = derive_seed(ROOT_SEED, "gate", case.name, number)
        models = simulate(case.tasks, case.num_seeds, case.gain, seed, case.shares, case.by_cluster)
        count += gate(_SETTINGS, *models).is_promoted
    found = binomtest(count, repeats).proportion_ci(0.95)
    return {"share": count / repeats, "low": float(found.low), "high": float(found.high)}


def unlike_choices(repeats: int) -> dict[str, float]:
    """Return how often the best of 20 evaluations is promoted over the best of 3 that are equal."""
    draw = np.random.default_rng(derive_seed(ROOT_SEED, "unlike choices"))
    counts = {"before": 0, "now": 0}
    for _ in range(repeats):
        shared, *own = draw.standard_normal((3, 1000))
        examples = [0.7**0.5 * shared + 0.3**0.5 * each for each in own]
        models = (chosen(20, examples[0], draw), chosen(3, examples[1], draw))
        for way, samples in zip(counts, zip(*models, strict=True), strict=True):
            found = [jackknife(sample) for sample in samples]
            ours, theirs = (
                {"a": Measured("", (j.value,), j.without, j.shares, 0.5)} for j in found
            )
            counts[way] += gate(_SETTINGS, ours, theirs, over_seeds=False).is_promoted
    return {way: count / repeats for way, count in counts.items()}


def first_at_chance(repeats: int) -> dict[str, float]:
    """Return how often a model that answers by chance becomes the first champion."""
    task, count = replace(RTE, score=0.5, seed_sd=0.005), 0
    for number in range(repeats):
        model, _ = simulate((task,), 2, 0.0, derive_seed(ROOT_SEED, "first", number))
        count += first_gate(_SETTINGS, model).is_promoted
    return {"before": 1.0, "now": count / repeats}


# Refreshes


def refreshed(
    tasks: Sequence[SimulatedTask],
    gains: Mapping[str, float],
    refreshes: int,
    is_now: bool,
    seed: int,
) -> dict[str, float]:
    """Return what becomes of a model that is refreshed so many times.

    Args:
        tasks: that models are compared on, with three seeds each.
        gains: by how much each candidate's true score is higher than the champion's, by task.
        refreshes: their number.
        is_now: whether the champion is scored afresh, and earlier champions count; False: it keeps
            the scores by which it became champion.
        seed: of everything.

    Returns:
        How often a candidate was promoted; the champion's score in the registry less its truth at
        the end, the mean over the tasks; and the change of its true score on each task.
    """
    draw = np.random.default_rng(derive_seed(seed, "runs"))
    champion = SimulatedModel({task.name: task.score for task in tasks}, derive_seed(seed, -1))
    kept = [champion.measured(tasks, 3, draw, dev=seed)]
    for number in range(refreshes):
        truth = {name: score + gains[name] for name, score in champion.truth.items()}
        candidate = SimulatedModel(truth, derive_seed(seed, number))
        ours = candidate.measured(tasks, 3, draw, dev=seed)
        theirs = champion.measured(tasks, 3, draw, dev=seed) if is_now else kept[-1]
        if gate(_SETTINGS, ours, theirs, earlier=kept[:-1] if is_now else []).is_promoted:
            champion = candidate
            kept.append(ours)
    last = champion.measured(tasks, 3, draw, dev=seed) if is_now else kept[-1]
    above_truth = [each.score - champion.truth[name] for name, each in last.items()]
    return {
        "promotions": len(kept) - 1,
        "above_truth": float(np.mean(above_truth)),
        **{f"change_{task.name}": champion.truth[task.name] - task.score for task in tasks},
    }


_LARGE = tuple(replace(MNLI, name=f"large {n}", num_examples=5000) for n in (1, 2, 3))
REFRESHES: dict[str, tuple[tuple[SimulatedTask, ...], dict[str, float], int]] = {
    "50 equal": (GLUE, {task.name: 0.0 for task in GLUE}, 50),
    "50 of -0.3 points": (GLUE, {task.name: -0.003 for task in GLUE}, 50),
    "50 of +0.5 points": (GLUE, {task.name: 0.005 for task in GLUE}, 50),
    "8 of +1.5, one task -1": (_LARGE, {"large 1": 0.015, "large 2": 0.015, "large 3": -0.01}, 8),
}


def refreshes(name: str, is_now: bool, chains: int) -> dict[str, float]:
    """Return the means over many chains of refreshes."""
    seeds = [derive_seed(ROOT_SEED, "refreshes", name, chain) for chain in range(chains)]
    found = [refreshed(*REFRESHES[name], is_now, seed) for seed in seeds]
    return {key: float(np.mean([chain[key] for chain in found])) for key in found[0]}


def jobs(repeats: int) -> Iterator[tuple[str, str, Callable[..., Any], tuple[Any, ...]]]:
    """Yield the part of the results, the case, and the call that measures it."""
    for name in INTERVALS:
        yield "coverage", name, coverage, (name, repeats)
    for number in (5, 20):
        yield "choice", f"best of {number} evaluations on 277", choice, (number, repeats)
    for number in (30, 100, 500, 2000):
        yield "choice", f"threshold on {number:,}", threshold, (number, repeats // 4)
    yield "choice", "share promoted, best of 20 against best of 3", unlike_choices, (repeats,)
    yield "choice", "share promoted first, at chance", first_at_chance, (repeats,)
    for case in EQUAL:
        yield "equal", case.name, promoted, (case, repeats)
    for case in BETTER:
        yield "better", case.name, promoted, (case, repeats // 5)
    for name in REFRESHES:
        for is_now in (False, True):
            what = f"{name}, {'now' if is_now else 'before'}"
            yield "refreshes", what, refreshes, (name, is_now, max(repeats // 20, 1))


def measure(options: argparse.Namespace, _folder: Path) -> tuple[dict[str, Any], str]:
    """Simulate all cases; the same numbers on any number of processes."""
    wanted = list(jobs(options.repeats))
    result: dict[str, Any] = {"repeats": options.repeats}
    rows = []
    with ProcessPoolExecutor(options.processes, initializer=harness.end_with_parent) as pool:
        futures = [pool.submit(function, *args) for *_, function, args in wanted]
        for (part, case, *_), future in zip(wanted, futures, strict=True):
            numbers = result.setdefault(part, {})[case] = future.result()
            said = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
            rows.append([part, case, said])
    return result, harness.table(["part", "case", "found"], rows)


def main() -> None:
    """Simulate what is asked for."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=1000, help="of a case; of some fewer")
    parser.add_argument("--processes", type=int, default=2)
    harness.run(parser, {"statistics": measure})


if __name__ == "__main__":
    main()
