"""A Prefect task for each stage: its retries, and what Prefect's page of it shows."""

import logging
import re
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from prefect import Task, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import AssetContext
from prefect.tasks import exponential_backoff

from albert_core.stage.command import stage_argv
from albert_core.stage.errors import IntegrityError, is_transient
from albert_core.stage.lineage import place_in
from albert_core.stage.log import StageProgress, read_line
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.settings import TRAINING_HOSTS, training_processes, whole_number
from albert_core.stage.storage import shown_tracking_uri
from flows.flow_run import in_flow_run, stage_environment, tracked_flow
from flows.recipe import NotDoneError, RecipeRun
from flows.report import Report, stage_report
from flows.several_hosts import others_joining
from flows.stage_process import distributed_argv, limits_of, run_stage_process

P = ParamSpec("P")
R = TypeVar("R")

TRAINING = "albert_core.training.pretrain"
_RETRIES = 4
_FIRST_DELAY_SECONDS = 10
"""Before the second try; twice as long before each further one."""
_SECONDS_BETWEEN_REPORTS = 5.0
_CLOSING_SECONDS = 5.0
_DONE = StageProgress(1.0, 1.0, "")

log = logging.getLogger(__name__)


class StageTask(Task[P, R]):
    """A task that is a plain function outside of a flow run, to find what was done before."""

    if not TYPE_CHECKING:  # where Prefect's own overloads say it better

        def __call__(self, *args, **kwargs):
            """Run as a task of the present flow run; without one, call the function itself."""
            if not in_flow_run():
                return self.fn(*args, **kwargs)
            return super().__call__(*args, **kwargs)


def stage_task(name: str, run_name: str = "") -> Callable[[Callable[P, R]], StageTask[P, R]]:
    """Make a function a task called ``name``, which retries a transient failure.

    Its runs are called ``run_name``, a template of Prefect's with the function's parameters; by
    default as the task.

    Transient are a stage that was killed, preempted, lost a worker or fell silent, and a server
    that does not answer. A mistake in the settings or the data is not tried again.

    What was computed already is decided by the stage, by its manifest, not by Prefect's cache.
    """
    return lambda function: StageTask(
        function,
        name=name,
        task_run_name=run_name or name,
        cache_policy=NO_CACHE,
        retries=_RETRIES,
        retry_delay_seconds=exponential_backoff(_FIRST_DELAY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_may_pass,
    )


def _may_pass(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    return is_transient(state.result(raise_on_failure=False))


def find_stage(module: str, run: RecipeRun, **inputs: str) -> str | None:
    """Return what `RecipeRun.find_done` does.

    Raises:
        NotDoneError: there is nothing, and no flow run to make it in.
    """
    done = run.find_done(module, **inputs)
    if done is None and not in_flow_run():
        raise NotDoneError(module)
    return done


def run_stage(
    module: str, run: RecipeRun, environment: Mapping[str, str] | None = None, **inputs: str
) -> str:
    """Run the stage in ``module`` in a process, unless it was done; return its manifest's URI.

    Args:
        module: module of the stage.
        run: the recipe and the work folder.
        environment: variables that the process gets besides this one's.
        inputs: the stage's inputs, by the names of its parameters.
    """
    began, stage = time.time(), module.rpartition(".")[2]
    if done := find_stage(module, run, **inputs):
        if in_flow_run():
            with progress_page(stage), show_stage(stage) as show:
                show("done already")
            get_run_logger().info("%s: done already, %s", stage, done)
            _note_stage(done, began)
        return done
    run_log = get_run_logger()
    num_hosts = whole_number(TRAINING_HOSTS, 1) if module == TRAINING else 1
    with (
        others_joining(command_of(module, run, **inputs), num_hosts) as (argv, check),
        progress_page(stage) as report,
        show_stage(stage) as show,
    ):
        run_log.info("by hand: %s", shlex.join(argv))

        def take_line(line: str) -> None:
            level, message, ids = read_line(line)
            run_log.log(level, "%s", message, extra=dict(ids))
            show(message)

        def take_progress(progress: StageProgress) -> None:
            report(progress)
            show(progress=progress)

        manifest = run_stage_process(
            argv,
            take_line,
            environment={**stage_environment(), **(environment or {})},
            limits=limits_of(module),
            on_progress=take_progress,
            check=check,
        )
    save_stage_page(manifest, shown_tracking_uri(run.work))
    _note_stage(manifest, began)
    return manifest


def _note_stage(manifest: str, began: float) -> None:
    if tracked := tracked_flow():
        tracked.note_stage(manifest, began)


def command_of(module: str, run: RecipeRun, **inputs: str) -> list[str]:
    """Return the command line of a stage; of a training, for as many ranks as it shall have.

    Raises:
        ConfigError: that is not a whole number above 0.
    """
    argv = stage_argv(module, run.recipe_uri, **inputs, work=run.work)
    if module != TRAINING:
        return argv
    ranks = training_processes(run.recipe.training.batch_size)
    return distributed_argv(argv, ranks, whole_number(TRAINING_HOSTS, 1))


def read_stage(manifest: str) -> tuple[Manifest, str]:
    """Return a manifest and its folder."""
    return read_manifest(manifest), manifest.rpartition("/")[0]


class ShowStage(Protocol):
    """Takes a line that the stage printed, or how far it is."""

    def __call__(self, line: str = "", progress: StageProgress | None = None) -> None:
        """Show one of the two."""


def _show_nothing(_: str) -> AbstractContextManager[ShowStage]:
    def show(line: str = "", progress: StageProgress | None = None) -> None:
        """Show nothing: the stage's lines are in the log."""

    return nullcontext(show)


show_stage: Callable[[str], AbstractContextManager[ShowStage]] = _show_nothing
"""Shows a stage, by its name, while it runs; a terminal replaces it."""


@contextmanager
def progress_page(stage: str) -> Iterator[Callable[[StageProgress], None]]:
    """Show the progress of a stage on Prefect's page; give the function that takes each report.

    A block that ends without an error is done, whatever it reported last. A thread tells the server
    from time to time and at the end, so that a slow or unavailable server holds nothing up. What it
    misses comes with the next report.
    """
    latest = deque[StageProgress](maxlen=1)
    over = threading.Event()

    def tell() -> None:
        artifact: Any = None
        told, is_over = None, False
        while not is_over:
            is_over = over.wait(_SECONDS_BETWEEN_REPORTS)
            if not latest or latest[0] == told:
                continue
            progress = latest[0]
            try:
                if artifact is None:
                    key = f"{artifact_key(stage)}-progress"
                    amount = f": {progress.total:,.0f} {progress.unit} in all"
                    artifact = create_progress_artifact(
                        100 * progress.share,
                        key=key,
                        description=stage + (amount if progress.unit else ": done"),
                    )
                else:
                    update_progress_artifact(artifact, 100 * progress.share)
                told = progress
            except Exception as error:  # noqa: BLE001  a page is no reason to end a stage
                log.debug("%s: the progress was not told (%s)", stage, error)

    # In this thread's context: Prefect finds the run of the artifact there.
    thread = threading.Thread(target=copy_context().run, args=(tell,), daemon=True)
    thread.start()
    try:
        yield latest.append
        latest.append(_DONE)
    finally:
        over.set()
        thread.join(_CLOSING_SECONDS)


def save_stage_page(manifest: str, tracking: str) -> None:
    """Save what a stage made as an artifact of the run and as an asset; failing is no failure.

    Args:
        manifest: URI of its manifest; a command with another result has no page.
        tracking: MLflow's tracking URI, for links.
    """
    try:
        made = read_manifest(manifest)
        report = stage_report(made, manifest, tracking)
        create_markdown_artifact(
            report.markdown(),
            key=artifact_key(made.stage),
            description=f"{made.stage} {made.key}",
        )
        _materialize(made, manifest, report)
    except IntegrityError:
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
    asset = Asset(
        key=f"albert://{place}",
        properties=AssetProperties(name=name, description=report.title),
    )
    task.downstream_assets.add(asset)
    task.add_asset_metadata(asset.key, {"manifest": uri, "content": made.content, **dict(facts)})
    inputs = filter(None, map(place_in, made.input_manifests.values()))
    task.upstream_assets.update(Asset(key=f"albert://{each}") for each in inputs)


def artifact_key(name: str) -> str:
    """Return ``name`` as Prefect wants keys: small letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
