"""What a run of pretrain-albert did, from its manifests: on the terminal and as an artifact."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_core.stage.command import NO_RESULT
from albert_core.stage.manifest import Account, Manifest

_SCORES = {
    "masked_lm_loss": "masked LM loss, nats",
    "masked_lm_accuracy": "masked LM accuracy",
    "sentence_order_accuracy": "sentence order accuracy",
    "next_sentence_accuracy": "next sentence accuracy",
}
"""Of pretraining, by name in its manifest; the objective decides which pair score there is."""


@dataclass(frozen=True)
class Report:
    """Rows of name and value in named groups; then a note, and what to type next."""

    title: str
    groups: dict[str, list[tuple[str, str]]]
    note: str
    commands: str

    def text(self) -> str:
        """Return it for a terminal."""
        width = max(len(name) for rows in self.groups.values() for name, _ in rows)
        lines = [self.title, "=" * len(self.title)]
        for group, rows in self.groups.items():
            lines += ["", group, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        return "\n".join([*lines, "", self.note, "", "Next", "", _indented(self.commands)])

    def markdown(self) -> str:
        """Return it for Prefect's pages."""
        lines = [f"# {self.title}"]
        for group, rows in self.groups.items():
            lines += ["", f"## {group}", "", "| | |", "| --- | --- |"]
            lines += [f"| {name} | {value} |" for name, value in rows]
        return "\n".join([*lines, "", self.note, "", "## Next", "", _indented(self.commands)])


def build_report(
    recipe_name: str, made: Mapping[str, Manifest], tracking: str, python: str = "python"
) -> Report:
    """Return the report; every number comes from a manifest.

    Args:
        recipe_name: what the run is called.
        made: the manifests of corpus, examples, pretraining, scores and registration.
        tracking: MLflow's tracking URI.
        python: the interpreter to use the model with.
    """
    registration = made["registration"]
    name, version = registration.facts["name"], registration.facts["version"]
    return Report(
        title=f"{recipe_name}: {name}, version {version}",
        groups={
            "Text": _text_rows(made["corpus"], made["examples"]),
            "Pretraining, on held-out documents (95 % interval)": _pretraining_rows(
                made["pretraining"]
            ),
            "Downstream, the median seed (95 % interval)": _downstream_rows(made["scores"]),
            "Registry": _registry_rows(registration),
        },
        note=_order_note(made["pretraining"]),
        commands=next_commands(registration.facts, tracking, python),
    )


def build_text_report(
    recipe_name: str,
    made: Mapping[str, Manifest],
    uris: Mapping[str, str],
    python: str = "python",
    affected: Sequence[str] = (),
) -> Report:
    """Return what a refresh of the corpus did.

    Args:
        recipe_name: what the run is called.
        made: the manifests of corpus, vocab and examples.
        uris: their URIs, and under "receipt" that of the removal receipt or `NO_RESULT`.
        python: the interpreter to look at the shards with.
        affected: registered versions that were made of removed documents.
    """
    removed = "No document of an earlier corpus is gone."
    if uris["receipt"] != NO_RESULT:
        removed = f"Documents of earlier corpora are gone; the receipt is {uris['receipt']}."
        if affected:
            removed += f" Registered versions made of them: {', '.join(affected)}."
    facts = made["vocab"].facts
    return Report(
        title=f"{recipe_name}: corpus, vocabulary and examples are up to date",
        groups={
            "Text": [
                ("source files", f"{made['corpus'].facts['num_source_files']:,}"),
                ("clean text", f"{made['corpus'].facts['text_bytes'] / 1e6:,.1f} MB"),
                *_text_rows(made["corpus"], made["examples"]),
                ("vocabulary", f"{facts['vocab_size']:,} pieces"),
            ],
            "Manifests": [(stage, uris[stage]) for stage in made],
        },
        note=removed,
        commands=f"{_albert(python)} audit {uris['examples']} --corpus {uris['corpus']}",
    )


def next_commands(facts: Mapping[str, Any], tracking: str, python: str) -> str:
    """Return what to type to use the registered model and to look around."""
    version = f"@{facts['alias']}" if facts["alias"] else f"/{facts['version']}"
    look = (
        ""
        if tracking.startswith("http")
        else f"{python} -m mlflow ui --backend-store-uri {tracking}\n"
    )
    return (
        f"export MLFLOW_TRACKING_URI={tracking}\n"
        f"{python} - <<'END'\n"
        "import mlflow.pyfunc\n"
        f'model = mlflow.pyfunc.load_model("models:/{facts["name"]}{version}")\n'
        'print(model.predict([{"text": "Return the [MASK] of the array."}]))\n'
        "END\n"
        f"{look}"
        f"{_albert(python)} serve"
    )


def interpreter() -> str:
    """Return this interpreter as the user may type it here."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _albert(python: str) -> str:
    """Return the command beside an interpreter as the user may type it."""
    return str(Path(python).with_name("albert"))


def _text_rows(corpus: Manifest, examples: Manifest) -> list[tuple[str, str]]:
    documents, facts = corpus.account("documents"), examples.facts
    total = facts["num_train"] + facts["num_held_out"]
    return [
        ("documents read", f"{documents.total:,}"),
        ("documents kept", f"{documents.kept:,}"),
        *_dropped_rows(documents),
        *(
            (f"to examples: {account.what}", str(account).removeprefix(f"{account.what}: "))
            for account in examples.accounts
        ),
        (
            "examples",
            f"{total:,} = {facts['num_train']:,} to train + {facts['num_held_out']:,} held out",
        ),
        ("padding share", f"{facts['padding_share']:.1%}"),
    ]


def _dropped_rows(account: Account) -> list[tuple[str, str]]:
    rows = [(f"  dropped, {why.replace('_', ' ')}", n) for why, n in account.dropped.items() if n]
    return [(why, f"{n:,}") for why, n in sorted(rows)] or [("  dropped", "0")]


def _pretraining_rows(pretraining: Manifest) -> list[tuple[str, str]]:
    facts = pretraining.facts
    unigram, after = facts["unigram_nats"], facts["after"]["masked_lm_loss"]["value"]
    rows = [("steps", f"{facts['step']:,}"), ("parameters", f"{facts['num_parameters']:,}")]
    rows += [
        (label, f"{_estimate(facts['before'][key])}  ->  {_estimate(facts['after'][key])}")
        for key, label in _SCORES.items()
        if key in facts["after"]
    ]
    side = "below" if after < unigram else "above"
    gain = f"{unigram:.3f}; the model ends {abs(unigram - after):.3f} {side} it"
    return [*rows[:3], ("unigram loss, nats", gain), *rows[3:]]


def _downstream_rows(scores: Manifest) -> list[tuple[str, str]]:
    rows = []
    for task, facts in scores.facts["tasks"].items():
        for number, (metric, found) in enumerate(facts["metrics"].items()):
            low, high = found["interval"]
            score = _estimate({"value": found["median"], "low": low, "high": high})
            if metric == "matthews" and low <= 0 <= high:
                score += "; the interval holds 0, so no better than chance"
            rows.append((f"{task}, {metric}", score))
            by_seed = found["by_seed"].values()
            if number == 0 and len(by_seed) > 1:
                spread = f"{min(by_seed):z.3f} to {max(by_seed):z.3f}"
                rows.append((f"  over {len(by_seed)} seeds", spread))
    return rows


def _registry_rows(registration: Manifest) -> list[tuple[str, str]]:
    facts = registration.facts
    return [
        ("model", f"{facts['name']}, version {facts['version']}"),
        ("alias", facts["alias"] or "none"),
        ("the gate", facts["verdict"]),
        ("because", facts["reason"]),
        *_gate_rows(facts),
        ("address", facts["model_uri"]),
    ]


def _gate_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was compared, task by task."""
    return [(f"  {task['task']}", _compared(task, facts["against"])) for task in facts["tasks"]]


def _compared(task: Mapping[str, Any], version: str) -> str:
    against = f"{task['candidate']:z.4f} against {task['champion']:z.4f} of version {version}"
    bounds = f"[{task['low']:+z.4f}, {task['high']:+z.4f}]"
    return f"{against}: {task['difference']:+z.4f} {bounds}"


def _order_note(pretraining: Manifest) -> str:
    if "sentence_order_accuracy" not in pretraining.facts["after"]:
        return "The examples' objective is not sentence order: nothing of it was learned."
    score = _estimate(pretraining.facts["after"]["sentence_order_accuracy"])
    return (
        f"Sentence order ended at {score}. On natural text it stays near 0.5, a coin's, at so "
        "small a budget: it is learned long after words are."
    )


def _estimate(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:z.3f} [{estimate['low']:z.3f}, {estimate['high']:z.3f}]"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
