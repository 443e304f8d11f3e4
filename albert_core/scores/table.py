"""Scores of a model over tasks and seeds in the paper's columns, and on minimal pairs: one table.

The table becomes text for a terminal, a page with a plot, files and a run of MLflow.
Scores are shares and correlations, 0..1 or -1..1, or errors. Published scores on dev can be laid
beside one's own: those of the ALBERT paper's Table 2 (125,000 steps on Wikipedia and books), of its
Tables 9 and 10 (xxlarge, 1.5 million steps, the single model), and of the README of
google-research/albert (version 2, base).
"""

import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from statistics import mean
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from pydantic import computed_field

from albert_core.config import ScoringSettings
from albert_core.stage import errors, results, storage
from albert_core.stage.manifest import Account, Manifest, StagePlan, shard_of
from albert_core.stage.settings import Settings
from albert_core.tracking.run import TrackedRun


class PublishedScores(Settings):
    """A published model's scores."""

    name: str
    source: str
    scores: Mapping[str, tuple[float, ...]]
    """Per cent, by task: F1 and exact match of SQuAD, else the task's first metric alone."""

    @property
    def average(self) -> float:
        """The paper's Avg, 0..1; every row has its five tasks."""
        return mean(mean(self.scores[task]) for task in PAPER_COLUMNS) / 100


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
_ORDER = {task: n for n, task in enumerate(dict.fromkeys((*PAPER_COLUMNS, *GLUE_COLUMNS)))}


def _published(
    name: str, source: str, *scores: float | tuple[float, float], **others: float
) -> PublishedScores:
    """Return a row of the paper's columns, in their order, and of other tasks."""
    of_task = dict(zip(PAPER_COLUMNS, scores, strict=True)) | others
    as_tuples = {n: s if isinstance(s, tuple) else (s,) for n, s in of_task.items()}
    return PublishedScores(name=name, source=source, scores=as_tuples)


_TABLE_2 = "paper, Table 2"
PUBLISHED = {
    "base": _published("ALBERT base", _TABLE_2, (89.3, 82.3), (80.0, 77.1), 81.6, 90.3, 64.0),
    "large": _published("ALBERT large", _TABLE_2, (90.6, 83.9), (82.3, 79.4), 83.5, 91.7, 68.5),
    "xlarge": _published("ALBERT xlarge", _TABLE_2, (92.5, 86.1), (86.1, 83.1), 86.4, 92.4, 74.8),
    "xxlarge": _published("ALBERT xxlarge", _TABLE_2, (94.1, 88.3), (88.1, 85.1), 88.0, 95.2, 82.3),
    "bert-base": _published("BERT base", _TABLE_2, (90.4, 83.2), (80.4, 77.6), 84.5, 92.8, 68.2),
    "bert-large": _published("BERT large", _TABLE_2, (92.2, 85.5), (85.0, 82.2), 86.6, 93.0, 73.9),
    "base-v2": _published(
        "ALBERT base v2", "README of the release", (90.2, 83.2), (82.1, 79.3), 84.6, 92.9, 66.8
    ),
    "xxlarge-1.5m": _published(
        "ALBERT xxlarge, 1.5 million steps",
        "paper, Tables 9 and 10",
        *((94.8, 89.3), (90.2, 87.4), 90.8, 96.9, 86.5),
        **{"cola": 71.4, "mrpc": 90.9, "qnli": 95.3, "qqp": 92.2, "rte": 89.2, "sts-b": 93.0},
    ),
}
"""Name in `scoring.published` -> row."""


class ScoreTable(Settings):
    """A model on all tasks, published rows to lay beside it, and what is missing.

    As JSON it is the file `DATA`, where scores are shares, not per cent.
    """

    model: str
    tasks: Mapping[str, results.TaskScoresResult]
    """Task -> scores: the paper's tasks in its order, then others by name."""
    published: Sequence[PublishedScores]
    missing: Mapping[str, str]
    """Title of a task that was not scored -> why."""
    minimal_pairs: Mapping[str, results.PairSetScores]
    """Set of minimal pairs -> scores of the pretrained model."""
    pair_accounts: Sequence[Account] = ()
    """Of each set of minimal pairs."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def average(self) -> float | None:
        """The paper's Avg, 0..1; None if one of its five tasks is missing."""
        if self.average_lacks:
            return None
        return mean(_paper_score(task, self.tasks[task]) for task in PAPER_COLUMNS)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def average_lacks(self) -> list[str]:
        """The tasks that are missing for the average."""
        return [task for task in PAPER_COLUMNS if task not in self.tasks]


Overlap = tuple[float | None, int]
"""The share of a set's examples that the pretraining corpus contains, 0..1, of those that are long
enough to tell; and their number. None if there are none."""


def build_table(
    model: str,
    runs: Iterable[results.FinetuningResult],
    overlaps: Mapping[str, Overlap] | None = None,
    published: Sequence[PublishedScores] = (),
    missing: Mapping[str, str] | None = None,
    minimal_pairs: Mapping[str, results.PairSetScores] | None = None,
    pair_accounts: Sequence[Account] = (),
) -> ScoreTable:
    """Return the table of ``runs``.

    Args:
        model: name of the model in the table.
        runs: the fine-tunings, one of each task and seed.
        overlaps: by task, that of dev.
        published: rows to lay beside.
        missing: by title, why a task was not scored.
        minimal_pairs: by set, the scores of the pretrained model.
        pair_accounts: of each set.

    Raises:
        ConfigError: a seed of a task comes twice, so that there is no median of its runs.
    """
    of_task: dict[str, list[results.FinetuningResult]] = {}
    for run in runs:
        of_task.setdefault(run.task, []).append(run)
    return ScoreTable(
        model=model,
        tasks={
            task: _summary(of_task[task], *(overlaps or {}).get(task, (None, None)))
            for task in sorted(of_task, key=lambda task: (_ORDER.get(task, len(_ORDER)), task))
        },
        published=published,
        missing=missing or {},
        minimal_pairs=minimal_pairs or {},
        pair_accounts=pair_accounts,
    )


def estimates_of(run: results.FinetuningResult) -> dict[str, results.Estimate]:
    """Return a fine-tuning's scores on dev by metric, the key metric first.

    Those on another labelled set are called "<metric> of <set>".
    """
    found = {name: run.scores[name] for name in dict.fromkeys((run.metric, *run.scores))}
    for part, estimates in run.other_scores.items():
        for name, estimate in estimates.items():
            found[f"{name} of {part.removesuffix('.dev')}"] = estimate
    return found


def of_pairs(score: results.PairScore) -> results.MetricResult:
    """Return a score on minimal pairs, for which nothing is trained, as that of a metric."""
    return results.MetricResult(
        median=score.accuracy, by_seed={}, constant_answer=results.PairScore.CHANCE
    )


def _summary(
    runs: Sequence[results.FinetuningResult], overlap: float | None, judged: int | None
) -> results.TaskScoresResult:
    runs = sorted(runs, key=lambda run: run.seed)
    first, seeds = runs[0], [run.seed for run in runs]
    if len(set(seeds)) != len(seeds):
        raise errors.ConfigError(
            f"these fine-tunings make no table: {first.task}: seeds {seeds}. Give one run for each."
        )
    return results.TaskScoresResult(
        title=first.title,
        num_examples=first.num_examples,
        num_train=first.num_train,
        dev_overlap=overlap,
        dev_judged=judged,
        metrics={name: _over_seeds(name, runs) for name in estimates_of(first)},
    )


def _over_seeds(name: str, runs: Sequence[results.FinetuningResult]) -> results.MetricResult:
    found = [(estimates_of(run)[name], run) for run in runs]
    ranked = sorted(found, key=lambda each: each[0].value, reverse=results.is_error(name))
    middle, run = ranked[(len(ranked) - 1) // 2]
    return results.MetricResult(
        median=middle,
        by_seed={str(run.seed): estimate.value for estimate, run in ranked},
        constant_answer=run.constant_scores.get(name),
    )


def _paper_score(name: str, task: results.TaskScoresResult) -> float:
    """Return what a task counts in the paper's Avg: (F1 + EM) / 2 of SQuAD, else the key metric."""
    counted = [*task.metrics.values()][: 2 if name.startswith("squad") else 1]
    return mean(metric.median.value for metric in counted)


METRIC_NAMES = {
    "accuracy": "acc",
    "accuracy_high": "acc high",
    "accuracy_middle": "acc middle",
    "exact_match": "EM",
    "f1": "F1",
    "mse": "MSE",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
"""Short names; any other metric goes by its own."""
LEGEND = (
    "Scores are per cent, except errors, on dev. Each half of dev is scored by the evaluation that "
    "is the best on the other half; published scores are those of the best on all of it, which is "
    "a little more. Over seeds: the median run with the 95 % interval that its examples give; the "
    "range from the worst to the best seed, and which was the worst. Constant: what the best "
    "constant answer gets; ! where the interval is not clearly better. Overlap: the share of dev's "
    "examples, of those long enough to be found, that are also in the pretraining corpus."
)
PAIRS_LEGEND = (
    "Minimal pairs: per cent of the pairs whose acceptable sentence the pretrained model finds "
    "more likely, the mean over their paradigms; nothing is trained for it. Chance is 50; ! where "
    "the interval is not clearly better."
)
SET_TITLES = {"blimp": "BLiMP", "zorro": "Zorro"}
"""Sets of minimal pairs that are known by a name; any other goes by its own."""
_TERMINAL_COLUMNS = 100
_OTHER_SETS = {"ax": "AX", "mnli-mm": "mm"}
_SECOND_METRICS = {
    "mnli": "accuracy of mnli-mm",
    "mrpc": "f1",
    "qqp": "f1",
    "squad-1.1": "exact_match",
    "squad-2.0": "exact_match",
    "sts-b": "spearman",
}
"""The second metric of tasks that have two in GLUE's own table, or in the paper's."""
_DASH = "–"
_HALF_UP = 1e-9
"""Makes the paper's 80.05 become 80.1, as in the paper, despite its binary representation."""
Rows = list[tuple[str, ...]]
_NOT_IN_NAMES = re.compile(r"[^\w.: -]")
"""Characters that a metric's name can't have in MLflow, which would refuse all of the table."""
DATA, PAGE, PICTURE = "scores.json", "scores.html", "scores.png"


def as_text(table: ScoreTable) -> str:
    """Return the table for a terminal."""
    parts = [part for title, rows in sections(table) for part in (title, _aligned(rows))]
    wrapped = [textwrap.fill(n, _TERMINAL_COLUMNS, subsequent_indent="  ") for n in notes(table)]
    return "\n\n".join(parts + wrapped)


def sections(table: ScoreTable) -> list[tuple[str, Rows]]:
    """Return the parts of the table that are not empty: title and rows, the first a header."""
    found = {
        "In the paper's columns": _paper_rows(table),
        "GLUE and own tasks": _glue_rows(table),
        "Task by task": _detail_rows(table),
        "Minimal pairs, zero-shot (chance 50 %)": _pair_rows(table),
    }
    return [(title, rows) for title, rows in found.items() if rows]


def _paper_rows(table: ScoreTable) -> Rows:
    """Return the paper's Table 2: header, model, published; empty if none of its tasks is there."""
    if not PAPER_COLUMNS.keys() & table.tasks.keys():
        return []
    rows = _in_columns(table, PAPER_COLUMNS, table.published)
    averages = ["Avg", percent(table.average), *(percent(row.average) for row in table.published)]
    return [(row[0], average, *row[1:]) for row, average in zip(rows, averages, strict=True)]


def _glue_rows(table: ScoreTable) -> Rows:
    """Return GLUE's columns and those of own tasks; empty if the paper's columns have them all."""
    own = [task for task in table.tasks if task not in {*PAPER_COLUMNS, *GLUE_COLUMNS}]
    columns = [*(task for task in GLUE_COLUMNS if task in table.tasks), *own]
    new = set(columns) - PAPER_COLUMNS.keys()
    if not new:
        return []
    published = [row for row in table.published if row.scores.keys() & new]
    return _in_columns(table, {task: table.tasks[task].title for task in columns}, published)


def _in_columns(
    table: ScoreTable, titles: Mapping[str, str], published: Sequence[PublishedScores]
) -> Rows:
    """Return a header of ``titles``, by task, the model's row and the published ones."""
    ours = [
        score_cell(task, table.tasks[task]) if task in table.tasks else _DASH for task in titles
    ]
    theirs = [
        ["/".join(f"{value:.1f}" for value in row.scores.get(task, ())) or _DASH for task in titles]
        for row in published
    ]
    names = ["", table.model, *(f"{row.name} ({row.source})" for row in published)]
    return [(name, *row) for name, row in zip(names, [titles.values(), ours, *theirs], strict=True)]


def score_cell(name: str, task: results.TaskScoresResult) -> str:
    """Return a task's score as GLUE's table or the paper's has it: two metrics for some tasks."""
    key, *others = task.metrics
    shown = [key, *(other for other in others if other == _SECOND_METRICS.get(name))]
    return "/".join(percent(task.metrics[metric].median.value) for metric in shown)


def _detail_rows(table: ScoreTable) -> Rows:
    """Return a header and a row for each metric of each task; empty if there are no tasks."""
    rows: Rows = [
        ("task", "metric", "score", "95 % interval", "seeds", "range", "worst", "constant", "dev",
         "overlap")
    ]  # fmt: skip
    for task in table.tasks.values():
        overlap = _DASH if task.dev_overlap is None else f"{task.dev_overlap:.1%}"
        if task.dev_judged is not None:
            overlap += f" of {task.dev_judged:,}"
        for number, (name, metric) in enumerate(task.metrics.items()):
            shown, median, constant = _format_of(name), metric.median, _constant(name, metric)
            of_task = ("",) * 4  # said once, beside the key metric
            if number == 0:
                of_task = (task.title, str(len(metric.by_seed)), f"{task.num_examples:,}", overlap)
            title, seeds, size, shared = of_task
            seed_scores = list(metric.by_seed.items())
            reach, worst = _DASH, _DASH
            if len(seed_scores) > 1:
                reach = f"{shown(seed_scores[0][1])}..{shown(seed_scores[-1][1])}"
                worst = seed_scores[0][0]
            cells = (shown(median.value), median.interval(shown), seeds, reach, worst, constant)
            rows.append((title, metric_name(name), *cells, size, shared))
    return rows if table.tasks else []


def _pair_rows(table: ScoreTable) -> Rows:
    """Return a header, a row for each set of minimal pairs, and under it its phenomena."""
    rows = [
        (
            label,
            percent(score.accuracy.value),
            score.accuracy.interval(percent),
            _constant("accuracy", of_pairs(score)),
            f"{score.num_pairs:,}",
        )
        for name, scores in table.minimal_pairs.items()
        for label, score in (
            (SET_TITLES.get(name, name), scores),
            *((f"  {each.replace('_', ' ')}", score) for each, score in scores.phenomena.items()),
        )
    ]
    header = ("set, phenomenon", "score", "95 % interval", "chance", "pairs")
    return [header, *rows] if rows else []


def _constant(name: str, metric: results.MetricResult) -> str:
    """Return the score of the best constant answer, marked if it is not surely beaten."""
    if metric.constant_answer is None:
        return _DASH
    said = _format_of(name)(metric.constant_answer)
    return said if results.beats_constant(name, metric) else f"{said} !"


def metric_name(name: str) -> str:
    """Return the name of a metric in the tables."""
    metric, _, other = name.partition(" of ")
    short = METRIC_NAMES.get(metric, metric.replace("_", " "))
    return f"{short} {_OTHER_SETS.get(other, other)}".rstrip()


def notes(table: ScoreTable) -> list[str]:
    """Return the paragraphs below the table."""
    said = [LEGEND] if table.tasks else []
    said += [PAIRS_LEGEND] if table.minimal_pairs else []
    if table.average_lacks and PAPER_COLUMNS.keys() & table.tasks.keys():
        lacks = ", ".join(PAPER_COLUMNS[task] for task in table.average_lacks)
        said.append(f"No Avg of {table.model}: it is the mean of five tasks, without {lacks}.")
    if left_out := [account for account in table.pair_accounts if account.kept < account.total]:
        said += ["Not all minimal pairs were scored:", *(f"- {account}" for account in left_out)]
    if table.missing:
        said += ["Not scored:", *(f"- {title}: {why}" for title, why in table.missing.items())]
    return said


def percent(value: float | None) -> str:
    """Return a share as per cent with one digit; a dash for None."""
    return _DASH if value is None else f"{100 * value + _HALF_UP:.1f}"


def _format_of(name: str) -> Callable[[float], str]:
    """Return how scores of a metric are written: errors are no shares."""
    return "{:.3g}".format if results.is_error(name) else percent


def _aligned(rows: Rows) -> str:
    """Return the rows with their columns under each other, a line below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def write_table(
    plan: StagePlan,
    work: str,
    scoring: ScoringSettings,
    model: str,
    done: Mapping[str, Manifest],
    overlaps: Mapping[str, Overlap],
    absent: Mapping[str, str],
    pairs: Manifest | None = None,
) -> str:
    """Write the table; return the manifest.

    Args:
        plan: the plan of the stage.
        work: folder for all results.
        scoring: settings.
        model: name of the model in the table.
        done: the fine-tunings by the URI of their manifest.
        overlaps: by the task's name, that of dev.
        absent: why a task was not scored, by its name.
        pairs: the scores of the pretrained model on minimal pairs, if there are any.

    Raises:
        ConfigError: the fine-tunings do not go together, or ``pairs`` are another model's.
    """
    _check_dev_sets(done.values())
    digests = _models_of(done.values(), pairs, plan)
    minimal_pairs = pairs.result_as(results.ZeroShotResult).sets if pairs else {}
    runs = [manifest.result_as(results.FinetuningResult) for manifest in done.values()]
    published = [PUBLISHED[name] for name in scoring.published]
    accounts = pairs.accounts if pairs else []
    table = build_table(model, runs, overlaps, published, absent, minimal_pairs, accounts)
    folder = plan.folder(work)
    contents = {
        DATA: f"{table.model_dump_json(indent=1)}\n".encode(),
        PAGE: as_page(table, digests).encode(),
        PICTURE: plot(table, "png"),
    }
    uris = [storage.join(folder, name) for name in contents]
    for file, content in zip(uris, contents.values(), strict=True):
        storage.write_bytes(file, content)
    with TrackedRun(work, folder, plan.stage, {"model": model}) as tracked:
        uri = plan.write(
            work,
            [shard_of(file, folder, plan.stage, len(table.tasks)) for file in uris],
            [],
            results.ScoresResult(
                model=model,
                average=table.average,
                scores=_medians(table),
                tasks=dict(table.tasks),
                minimal_pairs=minimal_pairs,
                text=as_text(table),
                page=PAGE,
                mlflow_run_id=tracked.run_id,
            ),
        )
        tracked.log_metrics(0, _metrics_of_run(table))
        _track_inputs(tracked, done)
        for file in (uri, *uris):
            tracked.log_artifact(file)
    return uri


def _check_dev_sets(done: Iterable[Manifest]) -> None:
    """Raise ConfigError if fine-tunings of one task were scored on different dev sets."""
    devs: dict[str, set[str]] = {}
    for made in done:
        devs.setdefault(made.settings["task"], set()).add(made.inputs["dev"])
    if mixed := [task for task, found in devs.items() if len(found) > 1]:
        raise errors.ConfigError(
            f"these fine-tunings make no table: those of {', '.join(mixed)} were scored on "
            "different dev sets. Evaluate again, with the same files for each seed."
        )


def _models_of(done: Collection[Manifest], pairs: Manifest | None, plan: StagePlan) -> set[str]:
    """Return the digests of the models that the scores are of.

    Raises:
        ConfigError: ``pairs`` are the scores of a model that no fine-tuning starts from.
    """
    digests = {manifest.inputs["model"] for manifest in done}
    scored = {pairs.inputs["model"]} if pairs else set()
    if digests and not scored <= digests:
        raise errors.ConfigError(
            f"{plan.input_manifests[results.ZERO_SHOT]} has scores of the model "
            f"{min(scored)[:12]}, which no fine-tuning starts from. Score the model that was "
            "fine-tuned."
        )
    return digests | scored


def _medians(table: ScoreTable) -> dict[str, dict[str, float]]:
    return {
        task: {name: metric.median.value for name, metric in scores.metrics.items()}
        for task, scores in table.tasks.items()
    }


def _metrics_of_run(table: ScoreTable) -> dict[str, float]:
    """Return the scores under the names that they have in MLflow."""
    metrics = {
        f"{task}/{name.replace(' ', '_')}": value
        for task, medians in _medians(table).items()
        for name, value in medians.items()
    }
    for name, found in table.minimal_pairs.items():
        metrics[f"{_NOT_IN_NAMES.sub('-', name)}_pairs/accuracy"] = found.accuracy.value
    if table.average is not None:
        metrics["average"] = table.average
    return metrics


def _track_inputs(tracked: TrackedRun, done: Mapping[str, Manifest]) -> None:
    """Make the fine-tunings children of the run, and log each of their inputs once."""
    sets = {}
    for uri, manifest in done.items():
        tuned = manifest.result_as(results.FinetuningResult)
        for split, digest in manifest.inputs.items():
            sets[f"{tuned.title}/{split}", digest] = uri, split
        tracked.adopt(manifest.stage, uri.rpartition("/")[0], tuned.mlflow_run_id)
    for (name, digest), (uri, split) in sets.items():
        if split == "model":
            tracked.log_used_model(digest)
        else:
            tracked.log_dataset(name, digest, uri, split)


# The page

_STYLE = """
body { margin: 0 auto; max-width: 1080px; padding: 40px 28px; color: #1d2433;
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
section { overflow-x: auto; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; white-space: pre; }
th, td { text-align: right; padding: 6px 0 6px 16px; border-bottom: 1px solid #e8e6e1; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th, footer { color: #6b7280; font-size: 13px; font-weight: 500; }
"""


def as_page(table: ScoreTable, digests: Iterable[str]) -> str:
    """Return the page, which needs no other file.

    Args:
        table: the table to show.
        digests: digests of the models that were fine-tuned or scored, for the footer.
    """
    about = f"Tasks: {len(table.tasks)}. Sets of minimal pairs: {len(table.minimal_pairs)}."
    if table.average is not None:
        about += f" The paper's Avg of five tasks: <b>{percent(table.average)}</b>."
    short = ", ".join(digest[:12] for digest in sorted(digests))
    said = [*notes(table), f"Digest of what was fine-tuned or scored: {short}."]
    title, svg = escape(f"Scores of {table.model}"), plot(table, "svg").decode()
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{title}</h1><p>{about}</p>",
        '<section role="img" aria-label="Scores with their 95 % intervals">',
        svg[svg.index("<svg") :],  # without the prolog of an XML file
        "</section>",
    ]
    for title, (header, *rows) in sections(table):
        lines = [_html_row("th", header), *(_html_row("td", row) for row in rows)]
        lines = [f"<section><h2>{escape(title)}</h2><table>", *lines, "</table></section>"]
        parts.append("".join(lines))
    footer = "".join(f"<p>{escape(note)}</p>" for note in said)
    return "\n".join([*parts, f"<footer>{footer}</footer></body></html>"]) + "\n"


def _html_row(cell: str, row: Iterable[str]) -> str:
    cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
    return f"<tr>{cells}</tr>"


# The plot

_INK, _SOFT, _FAINT = "#1d2433", "#6b7280", "#e8e6e1"
_CONSTANT, _MODEL, _UNPROVEN = "#cfc8bb", "#2454c5", "#c2660a"
_WIDTH, _TASK_HEIGHT, _MARGINS = 10.0, 0.45, 1.4
"""Inches; the margins are those above and below together."""
_LANES = (0.0, -0.14, 0.14, -0.24, 0.24)
"""Vertical offsets of the seeds' dots, so that equal scores stay apart."""
_GRID = 20
_PLOT_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "scores",
    "text.color": _INK,
    "text.parse_math": False,  # a title may have a dollar sign
    "ytick.labelcolor": _INK,
    "xtick.labelcolor": _SOFT,
}


def plot(table: ScoreTable, kind: Literal["png", "svg"]) -> bytes:
    """Return the plot of every task's key metric and every set of pairs, in per cent, as a file.

    The same table gives the same bytes.
    """
    no_date = ["Creator", "Date", "Format", "Type"] if kind == "svg" else ["Software"]
    content = io.BytesIO()
    with rc_context(_PLOT_STYLE):
        draw(table).savefig(content, format=kind, dpi=144, metadata=dict.fromkeys(no_date))
    return content.getvalue()


def draw(table: ScoreTable) -> Figure:
    """Return the plot as a figure whose lines are tasks and sets of pairs, the first on top.

    A line has a dot and a whisker: the median run with its interval.
    """
    lines = [(task.title, *next(iter(task.metrics.items()))) for task in table.tasks.values()]
    for name, scores in table.minimal_pairs.items():
        title = f"{SET_TITLES.get(name, name)} pairs"
        lines.append((title, "accuracy", of_pairs(scores)))

    def worded(of_tasks: str, of_sets: str) -> str:
        both = ((of_tasks, table.tasks), (of_sets, table.minimal_pairs))
        return ", or ".join(words for words, shown in both if shown)

    figure = Figure((_WIDTH, _MARGINS + _TASK_HEIGHT * len(lines)), layout="constrained")
    axes = figure.subplots()
    medians = [key.median for *_, key in lines]
    values = 100 * np.array([median.value for median in medians])
    ends = 100 * np.array([[m.low, m.high] for m in medians], float)
    # Without an interval, its ends are the score itself.
    intervals = np.where(np.isnan(ends), values[:, None], ends)
    seeds = [
        (100 * score, place + _LANES[number % len(_LANES)])
        for place, (*_, key) in enumerate(lines)
        for number, (_, score) in enumerate(sorted(key.by_seed.items()))
        if len(key.by_seed) > 1
    ]
    lowest = min(0, _GRID * int(min(intervals.min(), *(x for x, _ in seeds), 0) // _GRID))
    axes.set(xlim=(lowest, 100), ylim=(len(lines) - 0.4, -0.6))
    axes.set_xticks(range(lowest, 101, _GRID))
    axes.set_yticks(range(len(lines)), [title for title, *_ in lines])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_FAINT)
    axes.axvline(0, color=_SOFT, lw=0.8, zorder=-1)
    constants = [100 * (key.constant_answer or 0) for *_, key in lines]
    # Without a label, nothing is in the legend.
    label = worded("best constant answer", "chance") if any(constants) else None
    axes.barh(range(len(lines)), constants, 0.34, color=_CONSTANT, label=label)
    is_unproven = np.array([results.beats_constant(name, key) is False for _, name, key in lines])
    for rows, colour, label in (
        (~is_unproven, _MODEL, f"{worded('median run', 'pretrained')}; 95 % interval"),
        (is_unproven, _UNPROVEN, f"not surely above {worded('the constant', 'chance')}"),
    ):
        reach = np.abs(intervals[rows] - values[rows, None]).T
        x, y = values[rows], np.flatnonzero(rows)
        shown = label if rows.any() else None
        axes.errorbar(x, y, xerr=reach, fmt="o", color=colour, ms=8, capsize=3.5, label=shown)
    dots = [(seeds, "o", "every seed", _MODEL)]
    for row in table.published:
        scored = [(i, row.scores[t][0]) for i, t in enumerate(table.tasks) if t in row.scores]
        dots.append(([(score, place - 0.3) for place, score in scored], "v", row.name, "none"))
    for points, marker, label, colour in dots:
        x, y = np.array(points).reshape(-1, 2).T
        shown = label if points else None
        axes.plot(x, y, marker, ms=5, mfc=colour, mec=_INK, alpha=0.5, label=shown)
    for place, (_, name, key) in enumerate(lines):
        said = f"{percent(key.median.value)}  {metric_name(name)}"
        axes.text(1.02, place, said, va="center", transform=axes.get_yaxis_transform())
    title = f"{table.model}: per cent {worded('on dev', 'of minimal pairs')}"
    axes.set_title(title, loc="left", weight="bold", pad=12)
    figure.legend(loc="outside lower left", ncols=3, frameon=False)
    return figure
