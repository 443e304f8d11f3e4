"""Fine-tunings that never were."""

from collections.abc import Mapping

from albert_core.scores.table import Run

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
    model: str = "mine",
    baselines: Mapping[str, float] | None = None,
    num_examples: int = 500,
) -> Run:
    """Return a run whose intervals reach 0.05 to either side."""
    title, kind = TITLES[task]
    return Run(
        model=model,
        task=task,
        title=title,
        kind=kind,
        seed=seed,
        metric=next(iter(scores)),
        scores=scores,
        intervals={name: (value - 0.05, value + 0.05) for name, value in scores.items()},
        num_examples=num_examples,
        num_train=4000,
        best_step=80,
        num_steps=100,
        baselines=baselines or {},
    )


def paper_runs(model: str = "mine") -> list[Run]:
    """Return what the paper's Table 2 has of ALBERT base, from one seed."""
    return [
        made_run("race", {"accuracy": 0.640}, model=model, baselines={"accuracy": 0.25}),
        made_run("squad-1.1", {"f1": 0.893, "exact_match": 0.823}, model=model),
        made_run("squad-2.0", {"f1": 0.800, "exact_match": 0.771}, model=model),
        made_run("mnli", {"accuracy": 0.816}, model=model),
        made_run("sst-2", {"accuracy": 0.903}, model=model, baselines={"accuracy": 0.51}),
    ]
