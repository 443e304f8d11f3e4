"""Reports of runs and stages, made from their manifests: for terminals and for Prefect's pages."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_core.stage import manifest, results, storage
from albert_core.stage.command import NO_RESULT
from albert_core.stage.results import SOURCE_FILES

Row = tuple[str, str]
"""A name and a value."""

_SCORES = {
    "masked_lm_loss": "masked LM loss, nats",
    "masked_lm_accuracy": "masked LM accuracy",
    "sentence_order_accuracy": "sentence order accuracy",
    "next_sentence_accuracy": "next sentence accuracy",
    "minimal_pairs_accuracy": "minimal pairs accuracy",
}
"""Score's name in the manifest of a pretraining -> its label. The objective decides which pair
score there is."""
_DIGITS = 12


@dataclass(frozen=True)
class Report:
    """Rows of name and value in named groups, with text before and after them."""

    title: str
    groups: Mapping[str, Sequence[Row]]
    """Groups without rows are not shown."""
    head: str = ""
    note: str = ""
    commands: str = ""
    """What to type next."""

    def text(self) -> str:
        """Return it for a terminal."""
        width = max((len(name) for rows in self.groups.values() for name, _ in rows), default=0)
        lines = [self.title, "=" * len(self.title), *([self.head] if self.head else [])]
        for group, rows in self.groups.items():
            if rows:
                lines += ["", group, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        return self._ended(lines, "Next")

    def markdown(self, with_groups: bool = True) -> str:
        """Return it for the pages of a stage and of MLflow; or only what surrounds the groups."""
        cell = results.in_cell
        lines = [f"# {cell(self.title)}", *(["", self.head] if self.head else [])]
        for group, rows in self.groups.items():
            if rows and with_groups:
                lines += ["", f"## {group}", "", "| | |", "| --- | --- |"]
                lines += [f"| {cell(name)} | {cell(value)} |" for name, value in rows]
        return self._ended(lines, "## Next")

    def table(self) -> list[dict[str, str]]:
        """Return the groups as rows of one table, for an artifact of Prefect's."""
        return [
            {"what": name, "value": value, "part": group}
            for group, rows in self.groups.items()
            for name, value in rows
        ]

    def _ended(self, lines: list[str], heading: str) -> str:
        note = ["", self.note] if self.note else []
        commands = [f"    {line}" for line in self.commands.splitlines()]
        return "\n".join([*lines, *note, *(["", heading, "", *commands] if commands else [])])


def build_report(
    recipe_name: str, made: Mapping[str, manifest.Manifest], tracking: str, work: str
) -> Report:
    """Return the report of the flow pretrain-albert; every number comes from a manifest.

    Args:
        recipe_name: name of the run.
        made: the manifests of corpus, examples, pretraining, scores and registration.
        tracking: MLflow's tracking URI.
        work: folder for all results.
    """
    registered = made["registration"].result_as(results.RegistrationResult)
    pretrained = made["pretraining"].result_as(results.PretrainingResult)
    order = pretrained.after.get("sentence_order_accuracy")
    note = "The examples' objective is not sentence order: nothing of it was learned."
    if following := pretrained.after.get("next_sentence_accuracy"):
        note = f"Next sentence ended at {following}."
    if order is not None:
        note = f"Sentence order ended at {order}."
        if not order.is_above(0.6):
            note += (
                " On natural text it stays near 0.5, a coin's, at so small a budget: it is "
                "learned long after words are."
            )
    return Report(
        title=f"{recipe_name}: {registered.name}, version {registered.version}",
        groups={
            "Text": _text_rows(made["corpus"], made["examples"]),
            "Pretraining, on held-out documents (95 % interval)": _pretraining_rows(pretrained),
            **score_groups(made["scores"].result_as(results.ScoresResult)),
            "Registry": _registry_rows(registered),
            "Results in the work folder": [
                (f"of {name}", f"{each.stage}/{each.key}") for name, each in made.items()
            ],
        },
        note=note,
        commands=_next_commands(registered, tracking, work),
    )


def build_text_report(recipe_name: str, uris: Mapping[str, str], affected: Sequence[str]) -> Report:
    """Return the report of the flow refresh-corpus.

    Args:
        recipe_name: name of the run.
        uris: URIs of the manifests of corpus, vocab, examples and audit; and under "receipt" that
            of the removal receipt or `NO_RESULT`.
        affected: registered versions that were made of removed documents.
    """
    results_of = {stage: uri for stage, uri in uris.items() if stage != "receipt"}
    made = {stage: manifest.read_manifest(uri) for stage, uri in results_of.items()}
    removed = "No document of an earlier corpus is gone."
    if uris["receipt"] != NO_RESULT:
        removed = f"Documents of earlier corpora are gone; the receipt is {uris['receipt']}."
        if affected:
            removed += f" Registered versions made of them: {', '.join(affected)}."
    corpus = made["corpus"].result_as(results.CorpusResult)
    vocab_size = made["vocab"].result_as(results.VocabularyResult).vocab_size
    audit = made["audit"].result_as(results.AuditResult)
    found = f"failed: {', '.join(audit.failed)}" if audit.failed else "passed"
    checked = f"{audit.num_checks} checks, {found}" if audit.num_checks else "not made: too large"
    kept = made["vocab"].settings.get(results.KEPT_VOCAB)
    return Report(
        title=f"{recipe_name}: corpus, vocabulary and examples are up to date",
        groups={
            "Text": [
                ("source files", f"{corpus.num_source_files:,}"),
                *_format_rows(storage.join(uris["corpus"].rpartition("/")[0], SOURCE_FILES)),
                ("clean text", f"{corpus.text_bytes / 1e6:,.1f} MB"),
                ("sentences cut, too long", f"{corpus.num_sentences_cut:,}"),
                *_text_rows(made["corpus"], made["examples"]),
                ("vocabulary", f"{vocab_size:,} pieces{f', kept from {kept}' if kept else ''}"),
                ("audit", checked),
            ],
            "Manifests": list(results_of.items()),
        },
        note=removed,
        commands=f"{_typed('albert')} audit "
        + shlex.join([uris["examples"], "--corpus", uris["corpus"]]),
    )


def stage_report(made: manifest.Manifest, uri: str, tracking: str) -> Report:
    """Return the numbers and links of one stage.

    Args:
        made: its manifest.
        uri: where the manifest is.
        tracking: MLflow's tracking URI, for links.
    """
    files: dict[str, list[int]] = {}
    for shard in made.shards:
        files.setdefault(shard.kind, []).append(shard.num_bytes)
    links = [f"- manifest: {results.in_cell(f'`{uri}`')}"]
    if run_id := made.result.get("mlflow_run_id"):
        page = f"- [MLflow run]({tracking}/#/runs/{run_id})"
        links.append(page if tracking.startswith("http") else f"- MLflow run: `{run_id}`")
    if "model_uri" in made.result:
        links.append(f"- model: `{made.result['model_uri']}`")
    folder = uri.rpartition("/")[0]
    pictures = (shard.path for shard in made.shards if shard.path.endswith((".png", ".svg")))
    code = (f"`{storage.join(folder, path)}`" for path in pictures)
    links += [f"- picture: {results.in_cell(each)}" for each in code]
    return Report(
        title=made.stage,
        head=f"Key `{made.key}`, content `{made.content[:_DIGITS]}`.",
        groups={
            "Accounts": [_after_colon(account) for account in made.accounts],
            "Numbers": list(_numbers(made.result)),
            "Files": [
                (kind, f"{len(sizes):,} files, {sum(sizes) / 1e6:,.2f} MB")
                for kind, sizes in sorted(files.items())
            ],
            "Made of": [
                (name, f"`{made.input_manifests.get(name, digest[:_DIGITS])}`")
                for name, digest in sorted(made.inputs.items())
            ],
        },
        note="\n".join(["## Links", "", *links]),
    )


def _next_commands(registered: results.RegistrationResult, tracking: str, work: str) -> str:
    """Return the commands that load the registered model and, without a server, show the runs."""
    version = f"@{registered.alias}" if registered.alias else f"/{registered.version}"
    python = _typed(Path(sys.executable).name)
    other = "" if work == storage.work_folder(None) else f" --work {shlex.quote(work)}"
    uri = shlex.quote(tracking)
    look = f"\n{python} -m mlflow ui --backend-store-uri {uri}\n{_typed('albert')} serve{other}"
    return (
        f"export MLFLOW_TRACKING_URI={uri}\n"
        f"{python} - <<'END'\n"
        "import mlflow.pyfunc\n"
        f'model = mlflow.pyfunc.load_model("models:/{registered.name}{version}")\n'
        'print(model.predict([{"text": "Return the [MASK] of the array."}]))\n'
        f"END{'' if tracking.startswith('http') else look}"
    )


def _typed(command: str) -> str:
    """Return how to type a command of this environment in this folder."""
    path, here = Path(sys.executable).with_name(command), Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _text_rows(corpus: manifest.Manifest, examples: manifest.Manifest) -> list[Row]:
    documents, made = corpus.account("documents"), examples.result_as(results.ExamplesResult)
    skipped = [each.dropped for each in corpus.accounts if each.what == "source files"]
    dropped = {_spaced(reason): n for reason, n in documents.dropped.items() if n}
    split = f"{made.num_train:,} to train + {made.num_held_out:,} held out"
    return [
        *((f"files left out, {_spaced(why)}", f"{n:,}") for s in skipped for why, n in s.items()),
        ("documents read", f"{documents.total:,}"),
        ("documents kept", f"{documents.kept:,}"),
        *((f"  dropped, {reason}", f"{n:,}") for reason, n in sorted(dropped.items())),
        *([] if dropped else [("  dropped", "0")]),
        *((f"to examples: {what}", n) for what, n in map(_after_colon, examples.accounts)),
        ("examples", f"{made.num_train + made.num_held_out:,} = {split}"),
        ("padding share", f"{made.padding_share:.1%}"),
    ]


def _format_rows(source_files: str) -> list[Row]:
    """Return how many files were read in each format, most first."""
    from pipelines.source_files import read_files

    formats = Counter(file.format for file in read_files(source_files) if file.format)
    return [(f"  read as {name}", f"{n:,}") for name, n in formats.most_common()]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _pretraining_rows(pretrained: results.PretrainingResult) -> list[Row]:
    before, after = pretrained.before, pretrained.after
    below = pretrained.unigram_nats - after["masked_lm_loss"].value
    gain = f"the model ends {abs(below):.3f} {'below' if below > 0 else 'above'} it"
    rows = [("steps", f"{pretrained.step:,}"), ("parameters", f"{pretrained.num_parameters:,}")]
    for key, label in _SCORES.items():
        if key in after:
            rows.append((label, f"{before[key]}  ->  {after[key]}"))
        if key == "masked_lm_loss":
            rows.append(("unigram loss, nats", f"{pretrained.unigram_nats:.3f}; {gain}"))
        if key == "next_sentence_accuracy" and pretrained.objective != "none":
            by_lengths = f"{pretrained.length_only_accuracy:.3f}"
            rows.append(("  from the lengths alone", by_lengths))
    return rows


def score_groups(scores: results.ScoresResult) -> dict[str, list[Row]]:
    """Return the scores of a model on minimal pairs and on tasks, as groups of a report."""
    pairs, tasks = list[Row](), list[Row]()
    for name, each in scores.minimal_pairs.items():
        phenomena = each.phenomena if len(each.phenomena) > 1 else {}
        for label, found in {name: each, **{f"  {n}": e for n, e in phenomena.items()}}.items():
            said = "" if found.is_above_chance else "; not surely above chance"
            pairs.append((_spaced(label), f"{found.accuracy}, {found.num_pairs:,} pairs{said}"))
    for task, of_task in scores.tasks.items():
        for number, (metric, of_metric) in enumerate(of_task.metrics.items()):
            median, constant = of_metric.median, of_metric.constant_answer
            score = str(median)
            if constant is not None and not results.beats_constant(metric, of_metric):
                score += f"; not surely better than {constant:.3g}"
            tasks.append((f"{task}, {metric}", score))
            seeds = of_metric.by_seed.values()
            if number == 0 and constant is not None:
                tasks.append(("  the best constant answer", f"{constant:z.3f}"))
            if number == 0 and len(seeds) > 1:
                spread = f"{min(seeds):z.3f} to {max(seeds):z.3f}"
                tasks.append((f"  over {len(seeds)} seeds", spread))
    return {
        "Minimal pairs, zero-shot (95 % interval; chance is 0.5)": pairs,
        "Downstream, the median seed (95 % interval)": tasks,
    }


def _registry_rows(registered: results.RegistrationResult) -> list[Row]:
    compared = [(f"  {each.task}", each.against(registered.against)) for each in registered.tasks]
    return [
        ("model", f"{registered.name}, version {registered.version}"),
        ("alias", registered.alias or "none"),
        ("the gate", registered.verdict),
        ("because", registered.reason),
        *compared,
        ("address", registered.model_uri),
    ]


def _numbers(result: Mapping[str, Any], prefix: str = "") -> Iterator[Row]:
    """Yield the numbers and short texts of a result, those in groups by their path."""
    for name, value in result.items():
        label = prefix + _spaced(name)
        if name == "settings":
            continue
        if isinstance(value, Mapping) and {"value", "low", "high"} <= value.keys():
            yield label, str(results.Estimate(**value))
        elif isinstance(value, Mapping):
            yield from _numbers(value, f"{label}, ")
        elif isinstance(value, bool | str):
            yield label, str(value)
        elif isinstance(value, int | float):
            yield label, f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _after_colon(account: manifest.Account) -> Row:
    name, _, counts = str(account).partition(": ")
    return name, counts
