"""A Prefect task for each stage: a name, retries, and the stage's lines in the run's log."""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import Logger, LoggerAdapter, getLogger
from typing import Any, ParamSpec, TypeVar

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import exponential_backoff

from albert_core.stage.command import stage_argv
from albert_core.stage.credentials import hide_credentials_in_logs
from albert_core.stage.environment import shown_tracking_uri, whole_number, work_folder
from albert_core.stage.log import FORMAT, is_json, read_line, use_format
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.outage import is_passing
from flows.recipe import Recipe, load_recipe, save_recipe
from flows.stage_page import ProgressPage, save_stage_page
from flows.stage_process import (
    distributed_argv,
    limits_of,
    run_stage_process,
)
from flows.tracked_flow import begin_tracking, note_stage, stage_environment

P = ParamSpec("P")
R = TypeVar("R")

TRAINING = "albert_core.training.pretrain"
_RETRIES = 4
_FIRST_DELAY_SECONDS = 10
"""Before the second try; twice as long before each further one."""


if os.environ.get(FORMAT) == "json":  # here, for Prefect's own first lines of a flow run
    use_format(getLogger())


@dataclass(frozen=True)
class RecipeRun:
    """One run of a recipe: its settings, where they were saved, where results go."""

    recipe: Recipe
    recipe_uri: str
    work: str


def start_run(
    recipe: str, source: str | None, work: str | None, overrides: Sequence[str] | None
) -> RecipeRun:
    """Read the recipe, save it resolved, and return what every stage needs.

    Args:
        recipe: see `load_recipe`.
        source: the reader's own text; None for the recipe's.
        work: the folder for all results; None for ALBERT_WORK, else ``work``.
        overrides: see `load_recipe`.
    """
    resolved = load_recipe(recipe, overrides or (), source)
    folder = work_folder(work)
    uri = save_recipe(resolved, folder)
    hide_credentials_in_logs()
    is_json()  # a wrong value is a mistake of the settings
    begin_tracking(folder, resolved.name, uri)
    return RecipeRun(resolved, uri, folder)


def stage_task(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a task called ``name``, tried again after what passes by itself.

    That is a stage that was killed, preempted, lost a worker or fell silent, and a server that
    does not answer; a mistake in the settings or the data is not tried again.

    What was computed already is decided by the stage, by its manifest, not by Prefect's cache.
    """
    return task(
        name=name,
        cache_policy=NO_CACHE,
        retries=_RETRIES,
        retry_delay_seconds=exponential_backoff(_FIRST_DELAY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_may_pass,
    )


def run_stage(
    module: str, run: RecipeRun, environment: Mapping[str, str] | None = None, **inputs: str
) -> str:
    """Run the stage in ``module`` as a process of its own; return its manifest's URI.

    Args:
        module: that has the stage.
        run: the recipe and the work folder.
        environment: variables that the process is to have besides this one's.
        inputs: of the stage, by the names of its parameters.
    """
    argv = stage_argv(module, run.recipe_uri, **inputs, work=run.work)
    if module == TRAINING:
        argv = _distributed(argv)
    log = get_run_logger()
    log.info("by hand: %s", shlex.join(argv))
    began = time.time()
    with ProgressPage(module.rpartition(".")[2]) as page:
        manifest = run_stage_process(
            argv,
            partial(_relay, log),
            environment={**stage_environment(), **(environment or {})},
            limits=limits_of(module),
            on_progress=page.report,
        )
    save_stage_page(manifest, shown_tracking_uri(run.work))
    note_stage(manifest, began)
    return manifest


def read_stage(manifest: str) -> tuple[Manifest, str]:
    """Return a manifest and its folder."""
    return read_manifest(manifest), manifest.rpartition("/")[0]


def _relay(log: Logger | LoggerAdapter[Any], line: str) -> None:
    """Log a line of a stage as the flow's own, with what it names in JSON."""
    level, message, ids = read_line(line)
    log.log(level, "%s", message, extra=dict(ids))


def _distributed(argv: list[str]) -> list[str]:
    """Return the training's command line for ALBERT_TRAINING_PROCESSES processes, 1 if unset."""
    return distributed_argv(argv, whole_number("ALBERT_TRAINING_PROCESSES", 1))


def _may_pass(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return is_passing(error)
