"""The command `albert`, one module a group; here, the options that several commands share.

Args:
    recipe: A recipe that comes with the project, such as tiny, base or xxlarge, or the path or URI
        of your own TOML file.
    source: Your own text: a file, folder, glob or URI. Default: the recipe's source.
    overrides: Override a setting of the recipe. Can be given more than once.
    work: Folder for all results. Default: ALBERT_WORK, or ./work if that is unset.
    verbose: Print every line, with the command line of each stage.
    as_json: Print JSON instead of text.
    model: models:/NAME@ALIAS, models:/NAME/VERSION, a manifest, or the folder of a result.
"""

import json
from typing import Annotated, Any

import typer


def _recipes() -> list[str]:
    from flows.recipe import shipped_recipes

    return shipped_recipes()


def _work_folder(work: str) -> str:
    from albert_core.stage.storage import work_folder

    return work_folder(work)


def _only_one(sources: list[str] | None) -> str | None:
    """Return the source that was given, if one was; typer alone would take the last of several."""
    if sources and len(sources) > 1:
        raise typer.BadParameter(
            f"{len(sources)} addresses were given, and one is taken. Give a glob that matches all "
            "files, or a recipe whose source.uri is a list of addresses."
        )
    return sources[0] if sources else None


Recipe = Annotated[str, typer.Option(metavar="NAME|FILE", autocompletion=_recipes)]
Source = Annotated[list[str] | None, typer.Option(callback=_only_one)]
"""The command gets one address or None."""
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE")]
Work = Annotated[str, typer.Option(callback=_work_folder)]
"""The default is an empty text; the command gets the absolute path or URI."""
AsJson = Annotated[bool, typer.Option("--json")]


def answer(as_json: bool, text: str, values: Any) -> None:
    """Print an answer as text, or its values as JSON where that is asked for."""
    say(json.dumps(values, indent=1) if as_json else text)


def say(text: str, err: bool = False) -> None:
    """Print an answer, or what goes with it; it may have names that somebody else gave."""
    from albert_core.stage.credentials import visible

    typer.echo(visible(text), err=err)
