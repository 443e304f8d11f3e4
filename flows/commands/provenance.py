"""The commands `albert lineage`, `albert trace` and `albert rebuild`."""

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from flows.commands.options import AsJson, Model, Work, answer


def lineage(
    model: Model,
    work: Work = None,
    files: Annotated[bool, typer.Option("--files", help="List every source file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model was made of, down to the source files.

    For a registered version only the registry is asked, so the work folder may be elsewhere.
    """
    from albert_core.stage.environment import work_folder
    from flows.commands import lineage as lineages

    found = lineages.read_model_lineage(model, work_folder(work))
    answer(
        as_json,
        lambda: lineages.as_text(found, files),
        lambda: lineages.as_json(found),
    )


def trace(
    document: Annotated[
        str, typer.Argument(help="Its id in the corpus: FILE, or FILE#RECORD as in a.jsonl#7.")
    ],
    work: Work = None,
    as_json: AsJson = False,
) -> None:
    """Show where a document went: shards, runs, checkpoints and registered versions.

    The exit status is 1 if nothing here knows the document.
    """
    from albert_core.stage.environment import work_folder
    from flows.commands import trace as traces

    found = traces.trace(document, work_folder(work))
    answer(as_json, lambda: traces.as_text(found), lambda: traces.as_json(found))
    raise typer.Exit(not found.is_known)


def rebuild(
    model: Model,
    work: Work = None,
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
    from albert_core.stage.environment import work_folder
    from flows.commands import rebuild as rebuilds
    from flows.commands.lineage import read_model_lineage
    from flows.stage_process import run_stage_process

    def run_stage(argv: list[str], environment: Mapping[str, str]) -> str:
        return run_stage_process(argv, _tell, environment=environment)

    work = work_folder(work)
    found = read_model_lineage(model, work)
    folder = storage.absolute(into or f"{work}-rebuilt/{rebuilds.folder_name(found)}")
    for line in rebuilds.check(found, anyway):
        _tell(line)
    done = rebuilds.rebuild(found, folder, run_stage)
    answer(as_json, lambda: rebuilds.as_text(done), lambda: rebuilds.as_json(done))
    raise typer.Exit(not done.is_equal)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
