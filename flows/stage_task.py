"""A stage as a task of Prefect, which runs in a process of its own unless its result exists."""

import logging
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from prefect import Task, artifacts, get_run_logger
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import AssetContext, FlowRunContext, TaskRunContext
from prefect.runtime import flow_run as this_flow_run
from prefect.tasks import exponential_backoff

from albert_core.stage import command, errors, servers
from albert_core.stage.lineage import place_in
from albert_core.stage.log import read_line
from albert_core.stage.machine import TRAINING_HOSTS, training_processes, whole_number
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.progress import StageProgress
from flows import recipe as recipes
from flows import tracking
from flows.recipe import RecipeRun
from flows.report import Report, stage_report
from flows.several_hosts import others_joining
from flows.stage_process import distributed_argv, limits_of, run_stage_process

P = ParamSpec("P")
R = TypeVar("R")
ShowStage = Callable[[str | StageProgress], None]
"""Takes each line that a stage prints, and each report of its progress."""
TRAINING = "albert_core.training.pretrain"
_RETRIES = 4
_FIRST_DELAY_SECONDS = 10
"""Before the first retry; twice as long before each further one."""
_SECONDS_BETWEEN_REPORTS = 5.0
_CLOSING_SECONDS = 5.0

_told_to_stop: set[str] = set()
"""Ids of the flow runs whose stages end in all threads."""

log = logging.getLogger(__name__)


def in_flow_run() -> bool:
    """Return whether this thread belongs to a flow run of Prefect."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


class StageTask(Task[P, R]):
    """A task that is a plain function outside of a flow run, to find what was done before."""

    if not TYPE_CHECKING:  # where Prefect's own overloads say it better

        def __call__(self, *args, **kwargs):
            """Run as a task of the present flow run; without one, call the function itself."""
            return super().__call__(*args, **kwargs) if in_flow_run() else self.fn(*args, **kwargs)


def task(name: str, run_name: str = "") -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """Make a function a task called ``name``, which retries a transient failure.

    Its runs are called ``run_name``, a template of Prefect's with the function's parameters; by
    default as the task.

    Transient are a stage that was killed, preempted, lost a worker or fell silent, and a server
    that does not answer. A mistake in the settings or the data is not retried.

    The stage's manifest, not Prefect's cache, decides what was computed already.
    """
    return lambda function: StageTask(
        function,
        name=name,
        task_run_name=run_name or name,
        cache_policy=NO_CACHE,
        retries=_RETRIES,
        retry_delay_seconds=exponential_backoff(_FIRST_DELAY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
    )


def _is_transient(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    return errors.is_transient(state.result(raise_on_failure=False))


class Stage(Protocol):
    """A task that runs a stage, unless it was done, and returns its manifest's URI."""

    def __call__(self, run: RecipeRun, **inputs: str) -> str:
        """Run it on its inputs, by the names of its parameters."""


def stage(name: str, module: str, run_name: str = "") -> Stage:
    """Return the task called ``name`` of the stage in ``module``; see `task`."""

    def run_it(run: RecipeRun, **inputs: str) -> str:
        return run_stage(module, run, **inputs)

    run_it.__qualname__ = name  # by which Prefect tells tasks apart
    return task(name, run_name)(run_it)


def find_stage(module: str, run: RecipeRun, **inputs: str) -> str | None:
    """Return what `RecipeRun.find_done` returns.

    Raises:
        NotDoneError: there is nothing, and no flow run to make it in.
    """
    done = run.find_done(module, **inputs)
    if done is None and not in_flow_run():
        raise recipes.NotDoneError(module)
    return done


def run_stage(
    module: str, run: RecipeRun, environment: Mapping[str, str] | None = None, /, **inputs: str
) -> str:
    """Run the stage in ``module`` in a process, unless it was done; return its manifest's URI.

    Args:
        module: module of the stage.
        run: the recipe and the work folder.
        environment: variables that the process gets besides this one's.
        inputs: the stage's inputs, by the names of its parameters.
    """
    began, name = time.time(), module.rpartition(".")[2]
    if done := find_stage(module, run, **inputs):
        if in_flow_run():
            with progress_page(name), show_stage(name) as show:
                show("done already")
            get_run_logger().info("%s: done already, %s", name, done)
            tracking.note_stage(done, began)
        return done
    check_stop()
    run_log = get_run_logger()
    num_hosts = whole_number(TRAINING_HOSTS, 1) if module == TRAINING else 1
    with (
        others_joining(command_of(module, run, **inputs), num_hosts) as (argv, check),
        progress_page(name) as report,
        show_stage(name) as show,
    ):
        run_log.info("by hand: %s", shlex.join(argv))

        def take_line(line: str) -> None:
            level, message, ids = read_line(line)
            run_log.log(level, message, extra=dict(ids))
            show(message)

        def take_progress(progress: StageProgress) -> None:
            report(progress)
            show(progress)

        def check_all() -> None:
            check()
            check_stop()

        manifest = run_stage_process(
            argv,
            take_line,
            environment={**tracking.stage_environment(), **(environment or {})},
            limits=limits_of(module),
            on_progress=take_progress,
            check=check_all,
        )
    save_stage_page(manifest, servers.shown_tracking_uri(run.work))
    tracking.note_stage(manifest, began)
    return manifest


@contextmanager
def stopping_other_threads() -> Iterator[None]:
    """Have the stages in other threads of this flow run stop if this one is told to.

    Signals arrive in the main thread alone, which then waits for the others.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            _told_to_stop.add(str(this_flow_run.id))
        raise


def check_stop() -> None:
    """Raise an error, which is not retried, if this flow run is to end.

    Raises:
        StageError: it was told to stop.
        ConfigError: MLflow said at its start that it takes none of its runs.
    """
    if str(this_flow_run.id) in _told_to_stop:
        raise errors.StageError("the flow run was told to stop; the same command goes on")
    if (tracked := tracking.tracked_flow()) and (refusal := tracked.refusal):
        raise refusal


def command_of(module: str, run: RecipeRun, **inputs: str) -> list[str]:
    """Return the command line of a stage; of a training, for as many ranks as it shall have.

    Raises:
        ConfigError: that is not a whole number above 0.
    """
    argv = command.stage_argv(module, run.recipe_uri, **inputs, work=run.work)
    if module != TRAINING:
        return argv
    ranks = training_processes(run.recipe.training.batch_size)
    return distributed_argv(argv, ranks, whole_number(TRAINING_HOSTS, 1))


def read_stage(manifest: str) -> tuple[Manifest, str]:
    """Return a manifest and its folder."""
    return read_manifest(manifest), manifest.rpartition("/")[0]


def _show_nothing(_: str) -> AbstractContextManager[ShowStage]:
    return nullcontext(lambda _: None)  # the stage's lines are in the log


show_stage: Callable[[str], AbstractContextManager[ShowStage]] = _show_nothing
"""Shows a stage, by its name, while it runs; `flows.commands.by_hand` replaces it."""


@contextmanager
def progress_page(stage: str) -> Iterator[Callable[[StageProgress], None]]:
    """Show the progress of a stage on Prefect's page; give the function that takes each report.

    A block that ends without an error is done, whatever it reported last. A thread tells the server
    from time to time and at the end, so that a slow or unavailable server delays nothing. What it
    misses comes with the next report.
    """
    latest = deque[StageProgress](maxlen=1)
    over = Event()

    def tell() -> None:
        artifact: Any = None
        told, is_over = None, False
        while not is_over:
            is_over = over.wait(_SECONDS_BETWEEN_REPORTS)
            if not latest or latest[0] == told:
                continue
            progress = latest[0]
            with suppress(Exception):  # a page is no reason to end a stage
                if artifact is None:
                    amount = f"{progress.total:,.0f} {progress.unit} in all"
                    artifact = artifacts.create_progress_artifact(
                        100 * progress.share,
                        key=f"{_artifact_key(stage)}-progress",
                        description=f"{stage}: {amount if progress.unit else 'done'}",
                    )
                else:
                    artifacts.update_progress_artifact(artifact, 100 * progress.share)
                told = progress

    # In this thread's context: Prefect finds the run of the artifact there.
    thread = Thread(target=copy_context().run, args=(tell,), daemon=True)
    thread.start()
    try:
        yield latest.append
        latest.append(StageProgress(1.0, 1.0, ""))
    finally:
        over.set()
        thread.join(_CLOSING_SECONDS)


def save_stage_page(manifest: str, tracking: str) -> None:
    """Save what a stage made as an artifact of the run and as an asset; only log a failure.

    Args:
        manifest: URI of its manifest; a command with another result has no page.
        tracking: MLflow's tracking URI, for links.
    """
    try:
        made = read_manifest(manifest)
        report, key = stage_report(made, manifest, tracking), _artifact_key(made.stage)
        name = f"{made.stage} {made.key}"
        artifacts.create_markdown_artifact(report.markdown(), key=key, description=name)
        _materialize(made, manifest, report)
    except errors.IntegrityError:
        return
    except Exception as error:  # noqa: BLE001  the result is there, and counts
        log.warning("the page of %s could not be saved: %s", manifest, error)


def _materialize(made: Manifest, uri: str, report: Report) -> None:
    """Have the present task run tell Prefect, when it ends, of the asset that it made.

    This is what `prefect.assets.materialize` does; there the asset is known before the task runs,
    while the key of a result is known after it.
    """
    task, place = AssetContext.get(), place_in(uri)
    if task is None or not place:
        return
    facts = [row for group in ("Accounts", "Numbers", "Files") for row in report.groups[group]]
    name = made.result.get("model_uri") or f"{made.stage} {made.key}"
    properties = AssetProperties(name=name, description=report.title)
    asset = Asset(key=f"albert://{place}", properties=properties)
    task.downstream_assets.add(asset)
    task.add_asset_metadata(asset.key, {"manifest": uri, "content": made.content, **dict(facts)})
    inputs = filter(None, map(place_in, made.input_manifests.values()))
    task.upstream_assets.update(Asset(key=f"albert://{each}") for each in inputs)


def _artifact_key(name: str) -> str:
    """Return ``name`` as a key of Prefect: lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
