"""How often the gate errs: equal candidates that it promotes, and better ones that it finds.

    python benchmarks/promotion_gate.py [--decisions N] [--of-better N] [--processes N]
        [--results FILE]

Two models whose true scores are known are fine-tuned and scored by simulation
(`_simulated_models.py`), and the real gate decides about what the real jackknife says of their
answers. A candidate with no gain that is promoted is a false promotion; there may be 5 %. Also
counted: candidates that are refused because a task fell, where none has, or one has by 5 points;
and what would happen with one seed, and the examples alone to say what chance is.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib.pyplot as plt
from _simulated_models import ALIKE, GLUE, USUAL, Shares, SimulatedTask, simulate
from _stage_runs import hardware, report
from scipy.stats import binomtest

from albert_core.config import RegistrySettings
from albert_core.registry.gate import gate
from albert_core.text.seeds import derive_seed

RESULTS = Path(__file__).parent / "results" / "promotion_gate.json"
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
    "RTE, each tenth run fails": (
        (SimulatedTask("rte", "accuracy", 277, 0.70, 0.02, failing_share=0.1),),
        USUAL,
    ),
    "WNLI's size, accuracy, 71": ((SimulatedTask("wnli", "accuracy", 71, 0.60, 0.04),), USUAL),
    "CoLA, MRPC and RTE": (tuple(_BY_NAME[name] for name in ("cola", "mrpc", "rte")), USUAL),
    "GLUE, eight tasks": (GLUE, USUAL),
    "GLUE, runs alike": (GLUE, ALIKE),
}
PLOTTED = ("RTE, accuracy, 277", "MNLI, accuracy, 9,815", "GLUE, eight tasks")


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
    cases = [
        Case(setting, num_seeds, gain)
        for setting in SETTINGS
        for num_seeds in SEEDS
        for gain in (GAINS if "alike" not in setting and "fails" not in setting else GAINS[:1])
    ]
    alone = [Case(setting, 1, 0.0) for setting in SETTINGS]
    falls = [Case("GLUE, eight tasks", num_seeds, 0.01, "rte") for num_seeds in SEEDS]
    return [*cases, *alone, *falls]


def table(found: dict[Case, tuple[Rate, Rate]]) -> str:
    """Return the shares of promoted candidates, in Markdown."""
    gains = [f"+{100 * gain:g}" for gain in GAINS[1:]]
    heads = ["tasks", "seeds", "equal (95 % interval)", *gains, "equal that fell"]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- |" + " --- |" * (len(heads) - 3)]
    for setting in SETTINGS:
        for num_seeds in (1, *SEEDS):
            equal, fell = found[Case(setting, num_seeds, 0.0)]
            powers = [found.get(Case(setting, num_seeds, gain)) for gain in GAINS[1:]]
            shown = ["" if power is None else f"{power[0].share:.1%}" for power in powers]
            seeds = "1, examples alone" if num_seeds == 1 else str(num_seeds)
            said = f"{equal.share:.1%} [{equal.low:.1%}, {equal.high:.1%}]"
            lines.append(
                f"| {setting} | {seeds} | {said} | {' | '.join(shown)} | {fell.share:.1%} |"
            )
    lines += ["", "GLUE, one point better on all tasks but RTE, which falls by 5:"]
    for num_seeds in SEEDS:
        promoted, fell = found[Case("GLUE, eight tasks", num_seeds, 0.01, "rte")]
        lines.append(f"{num_seeds} seeds: promoted {promoted.share:.1%}, fell {fell.share:.1%}")
    return "\n".join(lines)


def draw(found: dict[Case, tuple[Rate, Rate]], path: Path) -> None:
    """Draw the share of promoted candidates over the true gain."""
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


def as_rows(found: dict[Case, tuple[Rate, Rate]]) -> Sequence[dict[str, Any]]:
    return [
        asdict(case) | {"promoted": asdict(promoted), "fell": asdict(fell)}
        for case, (promoted, fell) in found.items()
    ]


def main() -> None:
    """Simulate; print a table and a line of JSON; write the picture beside the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=2000, help="about equal ones, a case")
    parser.add_argument(
        "--of-better", type=int, default=500, help="about better ones, of each case"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file to write")
    options = parser.parse_args()
    found = measure(options.decisions, options.of_better, options.processes)
    false = [found[case][0] for case in found if not case.gain and case.num_seeds > 1]
    worst = max(false, key=lambda rate: rate.share)
    result = {
        "decisions": options.decisions,
        "decisions_about_better_ones": options.of_better,
        "worst_share_of_false_promotions": asdict(worst),
        "limit": LIMIT,
        "cases": as_rows(found),
        "hardware": hardware(),
    }
    draw(found, options.results.with_suffix(".png"))
    report(result, table(found), options.results)
    if worst.low > LIMIT:
        sys.exit(f"{worst.share:.1%} false promotions, above {LIMIT:.0%}")


if __name__ == "__main__":
    main()
