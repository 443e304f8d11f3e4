"""`albert models`, `promote` and `rollback`; `lineage`, `trace` and `rebuild`."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from flows.commands.options import AsJson, Model, Work, answer

_Name = Annotated[str, typer.Argument(help="Name of the registered model.")]


def models(
    name: Annotated[str | None, typer.Argument(help="List the versions of this model.")] = None,
    version: Annotated[
        str | None, typer.Argument(help="Explain why this version is champion or not.")
    ] = None,
    work: Work = "",
) -> None:
    """List registered models, the versions of one, or why a version is champion or not."""
    from albert_core.registry import overview

    if name is None:
        typer.echo(overview.list_models(work))
    elif version is None:
        typer.echo(overview.list_versions(name, work))
    else:
        typer.echo(overview.explain_version(name, version, work))


def promote(
    name: _Name,
    version: Annotated[str, typer.Argument(help="Number of the version.")],
    reason: Annotated[str, typer.Option(help="Why. It is kept with the version.")],
    work: Work = "",
) -> None:
    """Make a version champion by hand, whatever the gate decided."""
    from albert_core.registry.overview import promote_version

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
    from albert_core.registry.overview import roll_back_to

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
    from flows.commands import lineage as lineages

    found = lineages.read_model_lineage(model, work)
    answer(as_json, lineages.as_text(found, files), lineages.as_json(found))


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
    from flows.commands import trace as traces

    found = traces.trace(document, work)
    answer(as_json, traces.as_text(found), traces.as_json(found))
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
    from flows.commands import rebuild as rebuilds
    from flows.commands.lineage import read_model_lineage
    from flows.stage_process import run_stage_process

    tell = partial(typer.echo, err=True)

    def run_stage(argv: list[str], environment: Mapping[str, str]) -> str:
        return run_stage_process(argv, tell, environment=environment)

    found = read_model_lineage(model, work)
    folder = storage.absolute(into or f"{work}-rebuilt/{rebuilds.folder_name(found)}")
    for line in rebuilds.check(found, anyway):
        tell(line)
    done = rebuilds.rebuild(found, folder, run_stage)
    answer(as_json, rebuilds.as_text(done), rebuilds.as_json(done))
    raise typer.Exit(not done.is_equal)
