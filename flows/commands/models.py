"""`albert models`, `promote` and `rollback`: the registry, and who is champion."""

from typing import Annotated

import typer

from flows.commands.options import Work

_Name = Annotated[str, typer.Argument(help="Name of the registered model.")]


def models(
    name: Annotated[str | None, typer.Argument(help="List the versions of this model.")] = None,
    version: Annotated[
        str | None, typer.Argument(help="Explain why this version is champion or not.")
    ] = None,
    work: Work = None,
) -> None:
    """List registered models, the versions of one, or why a version is champion or not."""
    from albert_core.registry import overview
    from albert_core.stage.environment import work_folder

    folder = work_folder(work)
    if name is None:
        typer.echo(overview.list_models(folder))
    elif version is None:
        typer.echo(overview.list_versions(name, folder))
    else:
        typer.echo(overview.explain_version(name, version, folder))


def promote(
    name: _Name,
    version: Annotated[str, typer.Argument(help="Number of the version.")],
    reason: Annotated[str, typer.Option(help="Why. It is kept with the version.")],
    work: Work = None,
) -> None:
    """Make a version champion by hand, whatever the gate decided."""
    from albert_core.registry.overview import promote_version
    from albert_core.stage.environment import work_folder

    typer.echo(promote_version(name, version, reason, work_folder(work)))


def rollback(
    name: _Name,
    to: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Number of the version. Default: the last champion."),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why. It is kept with the version.")
    ] = "no reason given",
    work: Work = None,
) -> None:
    """Make the previous champion, or another version, champion again."""
    from albert_core.registry.overview import roll_back_to
    from albert_core.stage.environment import work_folder

    typer.echo(roll_back_to(name, to, reason, work_folder(work)))
