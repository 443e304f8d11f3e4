"""What a run of a recipe finds done already: a look that needs neither a server nor Prefect."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import cast

from albert_core.stage.environment import work_folder
from flows.recipe import Recipe, load_recipe, save_recipe

_ALWAYS_RUN = ("pipelines.contamination", "pipelines.removal")
"""Stages that look themselves, in a process of their own, whether there is something to do."""


@dataclass(frozen=True)
class RecipeRun:
    """One run of a recipe: its settings, where they were saved, where results go."""

    recipe: Recipe
    recipe_uri: str
    work: str


class NotDoneError(Exception):
    """A stage has work to do, but no flow run is under way to do it in."""


def resolve(
    recipe: str, source: str | None, work: str | None, overrides: Sequence[str] | None
) -> RecipeRun:
    """Read the recipe, save it resolved, and return what every stage needs.

    Args:
        recipe: see `load_recipe`.
        source: the reader's own text; None for the recipe's.
        work: the folder for all results; None for ALBERT_WORK, else ``work``.
        overrides: see `load_recipe`.

    Raises:
        ConfigError: a setting is unknown or impossible.
    """
    resolved = load_recipe(recipe, overrides or (), source)
    folder = work_folder(work)
    return RecipeRun(resolved, save_recipe(resolved, folder), folder)


def find_done(module: str, run: RecipeRun, **inputs: str) -> str | None:
    """Return the manifest of what the stage in ``module`` made before of the same; else None.

    Args:
        module: that has the stage.
        run: the recipe and the work folder.
        inputs: of the stage, by the names of its parameters.

    Raises:
        AlbertError: a setting or an input is wrong, as the stage itself would find.
    """
    if module in _ALWAYS_RUN:
        return None
    find = import_module(module).find_done
    given = {**dict(run.recipe), **inputs, "work": run.work}
    return cast(str | None, find(**{name: given[name] for name in signature(find).parameters}))
