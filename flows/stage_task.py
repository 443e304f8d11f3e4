"""A Prefect task for each stage: a name, retries, and the stage's lines in the run's log."""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from logging import Logger, LoggerAdapter, getLogger
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from prefect import Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.tasks import exponential_backoff

from albert_core.stage.command import stage_argv
from albert_core.stage.credentials import hide_credentials_in_logs
from albert_core.stage.environment import (
    TRAINING_PROCESSES,
    shown_tracking_uri,
    whole_number,
    work_folder,
)
from albert_core.stage.errors import is_passing
from albert_core.stage.log import FORMAT, StageProgress, is_json, read_line, use_format
from albert_core.stage.manifest import Manifest, read_manifest
from flows.done_before import NotDoneError, RecipeRun, find_done
from flows.recipe import load_recipe, save_recipe
from flows.stage_page import ProgressPage, save_stage_page
from flows.stage_process import distributed_argv, limits_of, run_stage_process
from flows.tracked_flow import begin_tracking, note_stage, stage_environment

P = ParamSpec("P")
R = TypeVar("R")

TRAINING = "albert_core.training.pretrain"
_RETRIES = 4
_FIRST_DELAY_SECONDS = 10
"""Before the second try; twice as long before each further one."""


if os.environ.get(FORMAT) == "json":  # here, for Prefect's own first lines of a flow run
    use_format(getLogger())


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


class StageTask(Task[P, R]):
    """A task that outside of a flow run is a plain function, which finds what was done before."""

    if not TYPE_CHECKING:  # where Prefect's own overloads say it better

        def __call__(self, *args, **kwargs):
            """Run as a task of the present flow run; without one, call the function itself."""
            if not in_flow_run():
                return self.fn(*args, **kwargs)
            return super().__call__(*args, **kwargs)


def in_flow_run() -> bool:
    """Return whether this thread works for a flow run of Prefect's."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def stage_task(name: str) -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """Make a function a task called ``name``, which retries a transient failure.

    That is a stage that was killed, preempted, lost a worker or fell silent, and a server that
    does not answer; a mistake in the settings or the data is not tried again.

    What was computed already is decided by the stage, by its manifest, not by Prefect's cache.
    """
    return lambda function: StageTask(
        function,
        name=name,
        cache_policy=NO_CACHE,
        retries=_RETRIES,
        retry_delay_seconds=exponential_backoff(_FIRST_DELAY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_may_pass,
    )


def find_stage(module: str, run: RecipeRun, **inputs: str) -> str | None:
    """Return what `find_done` does.

    Raises:
        AlbertError: see `find_done`.
        NotDoneError: there is nothing, and no flow run to make it in.
    """
    done = find_done(module, run, **inputs)
    if done is None and not in_flow_run():
        raise NotDoneError(module)
    return done


def run_stage(
    module: str, run: RecipeRun, environment: Mapping[str, str] | None = None, **inputs: str
) -> str:
    """Run the stage in ``module`` as a process of its own, if need be; return its manifest's URI.

    Args:
        module: that has the stage.
        run: the recipe and the work folder.
        environment: variables that the process is to have besides this one's.
        inputs: of the stage, by the names of its parameters.
    """
    began, stage = time.time(), module.rpartition(".")[2]
    if done := find_stage(module, run, **inputs):
        if in_flow_run():
            with show_stage(stage) as bar:
                bar.say("done already")
            get_run_logger().info("%s: done already, %s", stage, done)
            note_stage(done, began)
        return done
    argv = stage_argv(module, run.recipe_uri, **inputs, work=run.work)
    if module == TRAINING:
        argv = _distributed(argv)
    log = get_run_logger()
    log.info("by hand: %s", shlex.join(argv))
    with ProgressPage(stage) as page, show_stage(stage) as bar:

        def take_line(line: str) -> None:
            _relay(log, line)
            bar.say(read_line(line)[1])

        def take_progress(progress: StageProgress) -> None:
            page.report(progress)
            bar.advance(progress)

        manifest = run_stage_process(
            argv,
            take_line,
            environment={**stage_environment(), **(environment or {})},
            limits=limits_of(module),
            on_progress=take_progress,
        )
    save_stage_page(manifest, shown_tracking_uri(run.work))
    note_stage(manifest, began)
    return manifest


class StageBar:
    """Shows a person one stage while it runs. This one shows nothing: its lines are in the log."""

    def say(self, line: str) -> None:
        """Show a line that the stage printed."""

    def advance(self, progress: StageProgress) -> None:
        """Show how far the stage is."""


def _show_nothing(_: str) -> AbstractContextManager[StageBar]:
    return nullcontext(StageBar())


show_stage: Callable[[str], AbstractContextManager[StageBar]] = _show_nothing
"""What shows the stages of this process; a terminal sets it."""


def read_stage(manifest: str) -> tuple[Manifest, str]:
    """Return a manifest and its folder."""
    return read_manifest(manifest), manifest.rpartition("/")[0]


def _relay(log: Logger | LoggerAdapter[Any], line: str) -> None:
    """Log a line of a stage as the flow's own, with what it names in JSON."""
    level, message, ids = read_line(line)
    log.log(level, "%s", message, extra=dict(ids))


def _distributed(argv: list[str]) -> list[str]:
    """Return the training's command line for ALBERT_TRAINING_PROCESSES processes, 1 if unset."""
    return distributed_argv(argv, whole_number(TRAINING_PROCESSES, 1))


def _may_pass(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return is_passing(error)
