"""What a run of a recipe finds done already: a look that needs neither a server nor Prefect."""

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import cast

from flows.recipe import Recipe

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
