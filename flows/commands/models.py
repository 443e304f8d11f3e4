"""What `albert` does with what there is: models, their provenance, shards and the work folder."""

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import typer

from flows.commands import AsJson, Model, Work, answer

_Name = Annotated[str, typer.Argument(help="Name of the registered model.")]


def models(
    name: Annotated[str | None, typer.Argument(help="List the versions of this model.")] = None,
    version: Annotated[
        str | None, typer.Argument(help="Explain why this version is champion or not.")
    ] = None,
    work: Work = "",
) -> None:
    """List registered models, the versions of one, or why a version is champion or not."""
    from albert_core.registry import versions

    if name is None:
        typer.echo(versions.list_models(work))
    elif version is None:
        typer.echo(versions.list_versions(name, work))
    else:
        typer.echo(versions.explain_version(name, version, work))


def promote(
    name: _Name,
    version: Annotated[str, typer.Argument(help="Number of the version.")],
    reason: Annotated[str, typer.Option(help="Why. It is kept with the version.")],
    work: Work = "",
) -> None:
    """Make a version champion by hand, whatever the gate decided."""
    from albert_core.registry.versions import promote_version

    typer.echo(promote_version(name, version, reason, work))


def rollback(
    name: _Name,
    to: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Number of the version. Default: the last champion."),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why. It is kept with the version.")
    ] = "no reason given",
    work: Work = "",
) -> None:
    """Make the previous champion, or another version, champion again."""
    from albert_core.registry.versions import roll_back_to

    typer.echo(roll_back_to(name, to, reason, work))


def lineage(
    model: Model,
    work: Work = "",
    files: Annotated[bool, typer.Option("--files", help="List every source file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model was made of, down to the source files.

    For a registered version only the registry is asked, so the work folder may be elsewhere.
    """
    from flows.commands import provenance as lineages

    found = lineages.read_model_lineage(model, work)
    answer(as_json, lineages.lineage_text(found, files), lineages.lineage_json(found))


def trace(
    document: Annotated[
        str, typer.Argument(help="Its id in the corpus: FILE, or FILE#RECORD as in a.jsonl#7.")
    ],
    work: Work = "",
    as_json: AsJson = False,
) -> None:
    """Show where a document went: shards, runs, checkpoints and registered versions.

    The exit status is 1 if nothing here knows the document.
    """
    from flows.commands import provenance as traces

    found = traces.trace(document, work)
    answer(as_json, traces.trace_text(found), dataclasses.asdict(found))
    raise typer.Exit(not found.is_known)


def rebuild(
    model: Model,
    work: Work = "",
    into: Annotated[
        str | None, typer.Option(help="Folder to rebuild in. Default: WORK-rebuilt/NAME-VERSION.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on even if source files have changed since.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a model again from its sources and compare every stage, bit for bit.

    The exit status is 1 if anything came out different.
    """
    from albert_core.stage import storage
    from flows.commands import provenance as rebuilds
    from flows.commands.provenance import read_model_lineage
    from flows.stage_process import run_stage_process

    tell = partial(typer.echo, err=True)

    def run_stage(argv: list[str], environment: Mapping[str, str]) -> str:
        return run_stage_process(argv, tell, environment=environment)

    found = read_model_lineage(model, work)
    folder = storage.absolute(into or f"{work}-rebuilt/{rebuilds.folder_name(found)}")
    notes = rebuilds.check(found, anyway)
    for place, lines in notes.items():
        for line in lines:
            tell(f"{place}: {line}")
    done = rebuilds.rebuild(found, notes, folder, run_stage)
    values = {"is_equal": done.is_equal, **dataclasses.asdict(done)}
    answer(as_json, rebuilds.rebuild_text(done), values)
    raise typer.Exit(not done.is_equal)


_PANEL = "What the shards should be (default: what their manifest says)"


def _expected(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_PANEL)


def audit(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(help="A manifest or its folder, or shard files and globs.")
    ],
    corpus: Annotated[
        str,
        typer.Option(help="Manifest of the corpus. Default: the one the shards' manifest names."),
    ] = "",
    vocab: Annotated[
        str,
        typer.Option(
            help="Folder with spiece.model, or a model file. Default: the one the manifest names."
        ),
    ] = "",
    sample: Annotated[
        int, typer.Option(min=0, help="Rows to look up in the corpus; 0 for all of them.")
    ] = 2000,
    max_seq_length: Annotated[int | None, _expected("Pieces in one example.")] = None,
    max_predictions: Annotated[int | None, _expected("Predictions in one example.")] = None,
    masked_lm_prob: Annotated[float | None, _expected("Share of pieces predicted, 0..1.")] = None,
    max_ngram: Annotated[int | None, _expected("Longest masked span, in words.")] = None,
    objective: Annotated[
        Literal["sop", "nsp", "none"] | None, _expected("How segment pairs were made.")
    ] = None,
    fidelity: Annotated[
        Literal["paper", "google", "unknown"] | None, _expected("Whose rules they were made by.")
    ] = None,
    max_unknown_share: Annotated[
        float | None, _expected("Largest share of unknown pieces, 0..1.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check example shards, whoever wrote them, against what they should be.

    The exit status is 0 if all is within bounds, 1 if something is not, and 2 if there is nothing
    to audit.
    """
    from pipelines import audit as audits

    panels = {each.name: getattr(each, "rich_help_panel", None) for each in context.command.params}
    expected = {name: given for name, given in context.params.items() if panels[name] == _PANEL}
    findings = audits.audit(paths, corpus=corpus, vocab=vocab, sample=sample, expected=expected)
    answer(as_json, audits.table_of(findings), list(map(dataclasses.asdict, findings)))
    raise typer.Exit(any(finding.ok is False for finding in findings))


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, a release of google-research/albert (folder or prefix) or "
            "a pretraining run, with its vocabulary beside it."
        ),
    ],
    folder: Annotated[str, typer.Argument(help="Path or URI of the model folder to write.")],
) -> None:
    """Turn a model trained elsewhere into a model folder that every stage can read."""
    from albert_core.conversion.initial_weights import convert_model

    convert_model(source, folder)
    typer.echo(f"wrote {folder}")


def retention(
    work: Work = "",
    keep_newest: Annotated[int, typer.Option(min=0, help="Keep the newest N of each stage.")] = 2,
    keep_days: Annotated[float, typer.Option(min=0, help="Keep what is younger than this.")] = 30,
    registered: Annotated[
        Literal["all", "aliased"],
        typer.Option(help="Keep what these registered versions were made of."),
    ] = "all",
    other_registry: Annotated[
        bool,
        typer.Option(
            "--other-registry", help="The registry is the same, but its address has changed."
        ),
    ] = False,
    delete: Annotated[
        Literal["yes", "no"], typer.Option(help="Delete what is not needed, or only list it.")
    ] = "no",
    as_json: AsJson = False,
) -> None:
    """List, or delete, results that no registered version and no current result needs."""
    from flows.commands import retention as retentions

    if not other_registry:
        retentions.check_registry(work)
    rules = retentions.Rules(keep_newest, keep_days, registered)
    plan = retentions.plan_for(work, rules, time.time())
    is_done = delete == "yes"
    if is_done:
        retentions.delete(plan, work)
    answer(as_json, retentions.as_text(plan, work, is_done), retentions.as_json(plan))


def send_journals(work: Work = "") -> None:
    """Send MLflow the entries of runs that could not reach it at the time."""
    from albert_core.tracking.run import send_journals as send

    typer.echo(send(work))
