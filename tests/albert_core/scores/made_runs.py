"""Fine-tunings that never were."""

from collections.abc import Mapping
from typing import Any

from albert_core.stage.results import Estimate, FinetuningResult, PairScore, PairSetScores
from tests.made_results import made_result

TITLES = {
    "squad-1.1": ("SQuAD 1.1", "spans"),
    "squad-2.0": ("SQuAD 2.0", "spans"),
    "mnli": ("MNLI", "classification"),
    "sst-2": ("SST-2", "classification"),
    "race": ("RACE", "choice"),
    "cola": ("CoLA", "classification"),
    "rte": ("RTE", "classification"),
    "my-task": ("Mine & <yours>", "classification"),
}


def made_run(
    task: str,
    scores: Mapping[str, float],
    seed: int = 1,
    baselines: Mapping[str, float] | None = None,
    **changes: Any,
) -> FinetuningResult:
    """Return a fine-tuning whose intervals reach 0.05 to either side; the key metric is first."""
    title, kind = TITLES[task]
    metric = next(iter(scores))
    fields: dict[str, Any] = {
        "task": task,
        "title": title,
        "kind": kind,
        "seed": seed,
        "metric": metric,
        "scores": {
            name: {"value": value, "low": value - 0.05, "high": value + 0.05}
            for name, value in scores.items()
        },
        "num_examples": 500,
        "num_train": 4000,
        "constant_scores": dict(baselines or {}),
    }
    made = made_result("finetuning", **(fields | changes))
    assert isinstance(made, FinetuningResult)
    return made


def paper_runs() -> list[FinetuningResult]:
    """Return what the paper's Table 2 has of ALBERT base, from one seed."""
    return [
        made_run("race", {"accuracy": 0.640}, baselines={"accuracy": 0.25}),
        made_run("squad-1.1", {"f1": 0.893, "exact_match": 0.823}),
        made_run("squad-2.0", {"f1": 0.800, "exact_match": 0.771}),
        made_run("mnli", {"accuracy": 0.816}),
        made_run("sst-2", {"accuracy": 0.903}, baselines={"accuracy": 0.51}),
    ]


def made_pair_scores(whole: float, *phenomena: float) -> PairSetScores:
    """Return scores of a set and of its phenomena, whose intervals reach 0.05 to either side."""

    def score(value: float) -> PairScore:
        interval = Estimate(value=value, low=value - 0.05, high=value + 0.05)
        return PairScore(accuracy=interval, num_pairs=200)

    parts = {f"kind_{number}": score(value) for number, value in enumerate(phenomena)}
    fields = score(whole).model_dump() | {"num_pairs": 200 * (1 + len(parts))}
    return PairSetScores(**fields, phenomena=parts, paradigms=parts)
