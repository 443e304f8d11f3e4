"""How often the gate errs: equal candidates that it promotes, and better ones that it finds.

    python -m benchmarks.promotion_gate [--decisions N] [--of-better N] [--processes N]
        [--results FILE]

Two models whose true scores are known are fine-tuned and scored by simulation, and the real gate
decides about what the real jackknife says of their answers. A candidate with no gain that is
promoted is a false promotion; there may be 5 %. Also counted: candidates that are refused because
a task fell, where none has, or one has by 5 points; and what would happen with one seed, and the
examples alone to say what chance is.

An example is answered right if a normal number lies below what the run's score asks for. The
number has three parts: the example's own difficulty, which both models meet; what the model makes
of the example; and what the run does. Their shares say how alike two runs answer: with the usual
ones, two runs with 85 % right disagree on 12 % of the examples, two models on 15 %. What a run
scores in the long run is the model's true score and the seed's share, normal with the task's
standard deviation.
"""

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

from albert_core.config import RegistrySettings
from albert_core.metrics import jackknife
from albert_core.registry.gate import Measured, gate
from albert_core.text.seeds import derive_seed
from benchmarks.harness import arguments, report, table

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


LIMIT = 0.05
ROOT_SEED = 12345
SEEDS = (2, 3, 5)
GAINS = (0.0, 0.005, 0.01, 0.02)
_BY_NAME = {task.name: task for task in GLUE}
_RTE = _BY_NAME["rte"]
SETTINGS: dict[str, tuple[tuple[SimulatedTask, ...], Shares]] = {
    "the demo's task, Matthews, 1,000": (
        (SimulatedTask("generated", "matthews", 1000, 0.12, 0.03),),
        USUAL,
    ),
    "CoLA, Matthews, 1,043": ((_BY_NAME["cola"],), USUAL),
    "MRPC, F1, 408": ((_BY_NAME["mrpc"],), USUAL),
    "STS-B, Pearson, 1,500": ((_BY_NAME["sts-b"],), USUAL),
    "MNLI, accuracy, 9,815": ((_BY_NAME["mnli"],), USUAL),
    "RTE, accuracy, 277": ((_RTE,), USUAL),
    "RTE, runs alike": ((_RTE,), ALIKE),
    "RTE, each tenth run fails": ((replace(_RTE, failing_share=0.1),), USUAL),
    "WNLI's size, accuracy, 71": ((SimulatedTask("wnli", "accuracy", 71, 0.60, 0.04),), USUAL),
    "CoLA, MRPC and RTE": (tuple(_BY_NAME[name] for name in ("cola", "mrpc", "rte")), USUAL),
    "GLUE, eight tasks": (GLUE, USUAL),
    "GLUE, runs alike": (GLUE, ALIKE),
}
PLOTTED = ("RTE, accuracy, 277", "MNLI, accuracy, 9,815", "GLUE, eight tasks")


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
        shares: of the example, the model and the run, in what an answer depends on.
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


@dataclass(frozen=True)
class Case:
    """What is simulated many times."""

    setting: str
    num_seeds: int
    gain: float
    fallen: str = ""
    """A task whose true score is 5 points lower instead."""


@dataclass(frozen=True)
class Rate:
    """How many of the decisions were so, and the 95 % interval of their share."""

    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int) -> "Rate":
        """Return that of ``count`` among ``total``."""
        interval = binomtest(count, total).proportion_ci(0.95)
        return cls(count / total, float(interval.low), float(interval.high))


def decide_often(case: Case, decisions: int) -> tuple[Rate, Rate]:
    """Return how many candidates were promoted, and how many refused because a task fell."""
    tasks, shares = SETTINGS[case.setting]
    gains = {task.name: -0.05 if task.name == case.fallen else case.gain for task in tasks}
    promoted = fell = 0
    for number in range(decisions):
        names = (case.setting, case.num_seeds, repr(case.gain), case.fallen, number)
        seed = derive_seed(ROOT_SEED, "promotion-gate", *names)
        models = simulate(tasks, case.num_seeds, gains, seed, shares)
        decision = gate(RegistrySettings(), *models, over_seeds=case.num_seeds > 1)
        promoted += decision.is_promoted
        fell += any(task.fell for task in decision.tasks)
    return Rate.of(promoted, decisions), Rate.of(fell, decisions)


def all_cases() -> list[Case]:
    """Return what the table and the picture need."""
    cases = [
        Case(setting, num_seeds, gain)
        for setting in SETTINGS
        for num_seeds in SEEDS
        for gain in (GAINS if "alike" not in setting and "fails" not in setting else GAINS[:1])
    ]
    alone = [Case(setting, 1, 0.0) for setting in SETTINGS]
    falls = [Case("GLUE, eight tasks", num_seeds, 0.01, "rte") for num_seeds in SEEDS]
    return [*cases, *alone, *falls]


def shown(found: dict[Case, tuple[Rate, Rate]]) -> str:
    """Return the shares of promoted candidates, in Markdown."""
    rows = []
    for setting in SETTINGS:
        for num_seeds in (1, *SEEDS):
            equal, fell = found[Case(setting, num_seeds, 0.0)]
            powers = [found.get(Case(setting, num_seeds, gain)) for gain in GAINS[1:]]
            better = ["" if power is None else f"{power[0].share:.1%}" for power in powers]
            seeds = "1, examples alone" if num_seeds == 1 else str(num_seeds)
            said = f"{equal.share:.1%} [{equal.low:.1%}, {equal.high:.1%}]"
            rows.append([setting, seeds, said, *better, f"{fell.share:.1%}"])
    gains = [f"+{100 * gain:g}" for gain in GAINS[1:]]
    head = ["tasks", "seeds", "equal (95 % interval)", *gains, "equal that fell"]
    lines = ["", "GLUE, one point better on all tasks but RTE, which falls by 5:"]
    for num_seeds in SEEDS:
        promoted, fell = found[Case("GLUE, eight tasks", num_seeds, 0.01, "rte")]
        lines.append(f"{num_seeds} seeds: promoted {promoted.share:.1%}, fell {fell.share:.1%}")
    return "\n".join([table(head, rows), *lines])


def draw(found: dict[Case, tuple[Rate, Rate]], path: Path) -> None:
    """Draw the share of promoted candidates over the true gain."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(PLOTTED), figsize=(11, 3.6), sharey=True)
    for panel, setting in zip(panels, PLOTTED, strict=True):
        for num_seeds in SEEDS:
            rates = [found[Case(setting, num_seeds, gain)][0] for gain in GAINS]
            points = [100 * gain for gain in GAINS]
            (line,) = panel.plot(
                points, [rate.share for rate in rates], "o-", label=f"{num_seeds} seeds"
            )
            low, high = [rate.low for rate in rates], [rate.high for rate in rates]
            panel.fill_between(points, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        panel.axhline(LIMIT, color="black", linewidth=0.8, linestyle="--")
        panel.set(title=setting, xlabel="true gain, points", ylim=(0, 1.04))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share that is promoted")
    panels[1].text(1.8, LIMIT + 0.015, "5 %", fontsize=8)
    panels[0].legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def measure(decisions: int, of_better: int, processes: int) -> dict[Case, tuple[Rate, Rate]]:
    """Simulate all cases; the same numbers on any number of processes."""
    cases = sorted(all_cases(), key=lambda case: (case.gain > 0, -case.num_seeds))
    numbers = [of_better if case.gain or case.num_seeds == 1 else decisions for case in cases]
    found = {}
    with ProcessPoolExecutor(processes) as pool:
        for case, rates in zip(cases, pool.map(decide_often, cases, numbers), strict=True):
            found[case] = rates
            print(f"{case}: {rates[0].share:.3f}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Simulate; print a table and a line of JSON; write the picture beside the results."""
    parser = arguments(__doc__, "promotion_gate")
    parser.add_argument("--decisions", type=int, default=2000, help="about equal ones, a case")
    parser.add_argument(
        "--of-better", type=int, default=500, help="about better ones, of each case"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    found = measure(options.decisions, options.of_better, options.processes)
    false = [found[case][0] for case in found if not case.gain and case.num_seeds > 1]
    worst = max(false, key=lambda rate: rate.share)
    result = {
        "decisions": options.decisions,
        "decisions_about_better_ones": options.of_better,
        "worst_share_of_false_promotions": asdict(worst),
        "limit": LIMIT,
        "cases": [
            asdict(case) | {"promoted": asdict(promoted), "fell": asdict(fell)}
            for case, (promoted, fell) in found.items()
        ],
    }
    draw(found, options.results.with_suffix(".png"))
    report(result, shown(found), options.results)
    if worst.low > LIMIT:
        sys.exit(f"{worst.share:.1%} false promotions, above {LIMIT:.0%}")


if __name__ == "__main__":
    main()
