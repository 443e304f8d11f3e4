"""What all flows share: how a run begins and ends, its stages, and their tracking in MLflow.

A flow process that is killed ends none of its tasks. Prefect 3.8 makes its flow run Crashed, by its
worker or by an automation, and leaves the tasks Running forever. The next flow run ends them.

Each stage is a task that runs in a process of its own, unless its result exists.

Each flow run has a run of MLflow, in which those of its stages are nested. A stage that trains or
scores tracks itself; its environment tells it which run is its parent. The text stages do not know
MLflow: what they made is logged here, from their manifests. A stage that was done before is not
logged again; a tag points to its run. Tracking never stops a flow: an unavailable server gets
everything later, see `albert_core.tracking.run`.
"""

import json
import logging
import os
import re
import shlex
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from glob import has_magic
from importlib.util import find_spec
from itertools import count, dropwhile
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from uuid import UUID

from prefect import Flow, Task, artifacts, get_run_logger
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType, TaskRun
from prefect.context import AssetContext, FlowRunContext, TaskRunContext
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelling, Crashed
from prefect.tasks import exponential_backoff
from pydantic import BaseModel

from albert_core.stage import command, credentials, errors, servers, storage
from albert_core.stage.command import StageProgress
from albert_core.stage.manifest import MANIFEST, Manifest, read_manifest
from albert_core.stage.results import place_in
from albert_core.stage.settings import TRAINING_HOSTS, training_processes, whole_number
from flows import recipe as recipes
from flows.recipe import Recipe, RecipeChanges, RecipeRun
from flows.report import Report, stage_report
from flows.several_hosts import others_joining
from flows.stage_process import distributed_argv, limits_of, run_stage_process

if TYPE_CHECKING:
    from albert_core.tracking.run import TrackedRun

P = ParamSpec("P")
R = TypeVar("R")
ShowStage = Callable[[str | StageProgress], None]
"""Takes each line that a stage prints, and each report of its progress."""

TRAINING = "albert_core.training.pretrain"
PREFECT_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
"""The loggers whose lines are on the page of a run."""
FLOW_RUNS = "flow_runs"
"""Folder in the work folder, with a folder for each flow run."""
NOTE_TAG = "mlflow.note.content"
"""The tag that MLflow shows at the head of a run's page."""
_FILES = (".html", ".json", ".md", ".model", ".png", ".txt", ".vocab")
"""Endings of the files of a stage that are copied to MLflow: reports, pictures, the vocabulary.
Shards stay where they are; the manifest has their digests."""
_MAX_NOTE_CHARACTERS = 5000
_STATUS = {"COMPLETED": "FINISHED", "FAILED": "FAILED"}
_RETRIES = 4
_FIRST_DELAY_SECONDS = 10
"""Before the first retry; twice as long before each further one."""
_SECONDS_BETWEEN_REPORTS = 5.0
_CLOSING_SECONDS = 5.0
_LARGEST_SKEW_SECONDS = 60.0
"""Half of the silence after which infra/prefect_rules.yaml takes a run for dead."""

log = logging.getLogger(__name__)
if os.environ.get(command.FORMAT) == "json":  # here, for Prefect's own first lines of a flow run
    command.use_format(logging.getLogger())


def in_flow_run() -> bool:
    """Return whether this thread belongs to a flow run of Prefect."""
    return FlowRunContext.get() is not None or TaskRunContext.get() is not None


def start_run(
    recipe: str | Mapping[str, Any],
    source: str | None,
    work: str | None,
    overrides: Sequence[str] | None,
    settings: RecipeChanges = recipes.NO_CHANGES,
) -> RecipeRun:
    """Read the recipe, save it resolved, and return what every stage needs.

    Args:
        recipe: see `load_recipe`.
        source: the user's own text; None for the recipe's.
        work: the folder for all results; None for ALBERT_WORK, else ``work``.
        overrides: see `load_recipe`.
        settings: the form; the overrides take precedence.
    """
    flow_run_id = this_flow_run.id
    if flow_run_id:
        for name in PREFECT_LOGGERS:
            logging.getLogger(name).addFilter(without_traceback)
    overrides = recipes.with_form(settings, overrides)
    resolved = recipes.load_recipe(recipe, overrides, source)
    folder = storage.work_folder(work)
    if isinstance(recipe, str):  # the source of a model's own recipe is not read again
        check_apart(resolved.source.uri, folder)
    uri = recipes.save_recipe(resolved, folder)
    credentials.hide_credentials_in_logs()
    command.is_json()  # refuses a wrong ALBERT_LOG_FORMAT
    if flow_run_id:
        _check_clock()
    if flow_run_id and flow_run_id not in _tracked and find_spec("mlflow"):
        _tracked[flow_run_id] = TrackedFlow(folder, resolved, uri)
    given = {"recipe": recipe, "source": source, "overrides": overrides, "work": work}
    return RecipeRun(resolved, uri, folder, given)


def without_traceback(record: logging.LogRecord) -> bool:
    """Drop the traceback of an AlbertError, whose sentence the record has; return True."""
    if record.exc_info and isinstance(record.exc_info[1], errors.AlbertError):
        record.exc_info = record.exc_text = None
    return True


def check_apart(source: str | list[str], work: str) -> None:
    """Raise ConfigError if the source has the work folder in it, whose files would be read."""
    place = storage.local_path(work)
    for uri in filter(None, [source] if isinstance(source, str) else source):
        path = storage.local_path(uri)
        if not (place and path):
            continue
        pattern = [] if path.exists() else [*dropwhile(_is_literal, path.parts)]
        base = path.parents[len(pattern) - 1].resolve() if pattern else path.resolve()
        place = place.resolve()
        below = place.parts[len(base.parts) :]
        is_hidden = any(part.startswith(".") for part in below)
        if place.is_relative_to(base) and not is_hidden and _matches_below(below, pattern):
            raise errors.ConfigError(
                f"the work folder {work} is inside of the source {uri}, so that its results would "
                "be read as text. Give a --work elsewhere, or move the texts to a folder of theirs."
            )


def _is_literal(part: str) -> bool:
    return not has_magic(part)


def _matches_below(folder: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a glob, or without one the folder it is relative to, has files below another.

    Args:
        folder: the names on the way from there to the other folder.
        pattern: the parts of the glob.
    """
    for name, part in zip(folder, pattern, strict=False):
        if "**" in part:
            return True
        if not fnmatchcase(name, part):
            return False
    return not pattern or len(pattern) > len(folder)


def _check_clock() -> None:
    """Raise ConfigError if the clocks of this machine and of Prefect's server differ.

    Signs of life carry this machine's time, and the server compares it with its own.
    """
    try:
        with get_client(sync_client=True) as client:
            date = parsedate_to_datetime(client.request("GET", "/health").headers["date"])
    except Exception as error:  # noqa: BLE001  no reason not to run
        log.debug("Prefect did not say what time it is: %s", error)
        return
    ahead = time.time() - date.timestamp()
    if abs(ahead) > _LARGEST_SKEW_SECONDS:
        raise errors.ConfigError(
            f"the clock of {socket.gethostname()} is {abs(ahead) / 60:,.0f} minutes "
            f"{'ahead of' if ahead > 0 else 'behind'} that of Prefect's server, which would take "
            "this run for dead, or not notice its death. Set both clocks, then run it again."
        )


def show_report(report: Report, key: str) -> str:
    """Show the report of a flow run on Prefect's and MLflow's pages; return it as text."""
    if in_flow_run():
        if tracked := tracked_flow():
            tracked.note_report(report.markdown())
        description = report.markdown(with_groups=False)
        artifacts.create_table_artifact(report.table(), key=key, description=description)
    return report.text()


class StageTask(Task[P, R]):
    """A task that is a plain function outside of a flow run, to find what was done before."""

    if not TYPE_CHECKING:  # where Prefect's own overloads say it better

        def __call__(self, *args, **kwargs):
            """Run as a task of the present flow run; without one, call the function itself."""
            return super().__call__(*args, **kwargs) if in_flow_run() else self.fn(*args, **kwargs)


def stage_task(name: str, run_name: str = "") -> Callable[[Callable[P, R]], StageTask[P, R]]:
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
    """Return the task called ``name`` of the stage in ``module``; see `stage_task`."""

    def run_it(run: RecipeRun, **inputs: str) -> str:
        return run_stage(module, run, **inputs)

    run_it.__qualname__ = name  # by which Prefect tells tasks apart
    return stage_task(name, run_name)(run_it)


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
            _note_stage(done, began)
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
            level, message, ids = command.read_line(line)
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
            environment={**stage_environment(), **(environment or {})},
            limits=limits_of(module),
            on_progress=take_progress,
            check=check_all,
        )
    save_stage_page(manifest, servers.shown_tracking_uri(run.work))
    _note_stage(manifest, began)
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
    if (tracked := tracked_flow()) and (refusal := tracked.refusal):
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


class TrackedFlow:
    """The MLflow run of the present flow run.

    Args:
        work: folder for all results.
        recipe: the resolved recipe.
        recipe_uri: where it was saved.
    """

    def __init__(self, work: str, recipe: Recipe, recipe_uri: str) -> None:
        from albert_core.tracking.run import TrackedRun

        self._work = work
        self._children: list[TrackedRun] = []
        self._times = defaultdict[str, Iterator[int]](count)
        flow, page = str(this_flow_run.flow_name), str(this_flow_run.ui_url)
        parameters = this_flow_run.parameters
        self._about = about(recipe, parameters.get("model"))
        tags = {
            **self._about,
            "flow": flow,
            "mlflow.source.name": flow,
            "prefect_flow_run": str(this_flow_run.id),
            **({"prefect_page": page} if page.startswith("http") else {}),
        }
        folder = storage.join(work, FLOW_RUNS, str(this_flow_run.id))
        self._run = TrackedRun(work, folder, flow, tags)
        self._run.log_params({**given(parameters), "recipe": recipe.name, "work": work})
        self._run.log_artifact(recipe_uri)

    @property
    def refusal(self) -> errors.ConfigError | None:
        """Why MLflow takes none of the flow's runs, if it said so at their start."""
        return self._run.refusal

    def environment(self) -> dict[str, str]:
        """Return the variables for a stage's run: its tags, and its parent if it is known yet."""
        from albert_core.tracking.run import PARENT_VARIABLE, TAGS_VARIABLE

        parent = self._run.known_run_id or ""
        return {TAGS_VARIABLE: json.dumps(self._about), PARENT_VARIABLE: parent}

    def note_stage(self, uri: str, began: float) -> None:
        """Nest the MLflow run of a stage in this one; log it here if it does not track itself.

        Args:
            uri: URI of its manifest.
            began: when it was started, in seconds since 1970.
        """
        from albert_core.tracking.server import RUN_ID

        try:
            manifest, folder = read_stage(uri)
        except (errors.IntegrityError, OSError):  # a command that leaves no manifest
            return
        tracks_itself = "mlflow_run_id" in manifest.result
        if tracks_itself or storage.exists(storage.join(folder, RUN_ID)):
            self._run.adopt(manifest.stage, folder, manifest.result.get("mlflow_run_id"))
        else:
            self._children.append(self._logged(manifest, uri, began))
        for name, value in _headlines(manifest).items():
            number = next(self._times[name])  # a task has several seeds
            self._run.log_metrics(number, {name: value})
        self._run.log_tags({f"stage.{manifest.stage}": uri})

    def note_receipt(self, uri: str) -> None:
        """Keep the receipt of a removal with the run."""
        self._run.log_artifact(uri, "receipts")
        self._run.log_tags({"removal_receipt": uri})

    def note_report(self, markdown: str) -> None:
        """Show the flow's report at the head of the run's page."""
        self._run.log_tags({NOTE_TAG: markdown[:_MAX_NOTE_CHARACTERS]})

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; wait for a limited time until all is sent."""
        self._run.end(status)
        for run in [*self._children, self._run]:
            run.finish(status)

    def _logged(self, manifest: Manifest, uri: str, began: float) -> "TrackedRun":
        """Log a text stage's run; return it ended, with its last entries on their way."""
        from albert_core.tracking.run import TrackedRun
        from albert_core.tracking.server import PARENT_TAG

        folder = uri.rpartition("/")[0]
        parent = self._run.known_run_id
        tags = {**self._about, **({PARENT_TAG: parent} if parent else {})}
        run = TrackedRun(self._work, folder, manifest.stage, tags, began)
        run.log_params(manifest.settings)
        run.log_metrics(0, dict(_numbers(manifest)))
        for name, digest in manifest.inputs.items():
            run.log_dataset(name, digest, manifest.input_manifests.get(name, uri), "input")
        run.log_dataset(manifest.stage, manifest.content, uri, "made here")
        for name in storage.list_names(folder):
            if name == MANIFEST or name.endswith(_FILES):
                run.log_artifact(storage.join(folder, name))
        if not parent:
            self._run.adopt(manifest.stage, folder)
        run.end("FINISHED")
        return run


_tracked: dict[str, TrackedFlow] = {}
"""Flow run's id -> its tracking."""
_told_to_stop: set[str] = set()
"""Ids of the flow runs whose stages end in all threads."""


def tracked_flow() -> TrackedFlow | None:
    """Return what tracks the present flow run; None without MLflow, or outside of a flow run."""
    return _tracked.get(str(this_flow_run.id))


def _note_stage(manifest: str, began: float) -> None:
    if tracked := tracked_flow():
        tracked.note_stage(manifest, began)


def stage_environment() -> dict[str, str]:
    """Return the variables that tell a stage's process about the present flow run."""
    tracked = tracked_flow()
    known = tracked.environment() if tracked else {}
    return {command.FLOW_RUN: str(this_flow_run.id or ""), **known}


def about(recipe: Recipe, model: str | None) -> dict[str, str]:
    """Return what a flow run is about, as tags that name its MLflow runs.

    Args:
        recipe: the resolved recipe.
        model: the model that the run evaluates, if it does; its text is not known here.
    """
    if model:
        return {"recipe": recipe.name, "model": model.removeprefix("models:/")}
    tags = {"recipe": recipe.name, "model": recipe.registry.model_name}
    uris = [recipe.source.uri] if isinstance(recipe.source.uri, str) else recipe.source.uri
    if not any(uris):
        return tags
    parts = [part for part in uris[0].rstrip("/").split("/") if part and not has_magic(part)]
    others = f" and {len(uris) - 1} more" if uris[1:] else ""
    return {**tags, "text": (parts or uris)[-1] + others}


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a flow run that are not empty, with the filled fields of a form."""
    read = {
        name: each.model_dump(exclude_none=True) if isinstance(each, BaseModel) else each
        for name, each in parameters.items()
    }
    return {name: each for name, each in read.items() if each not in (None, [], {})}


def _headlines(manifest: Manifest) -> dict[str, float]:
    """Return the few metrics of a stage that its flow run shows as well."""
    result, stage = manifest.result, manifest.stage
    found = {f"{stage}/{each.what} kept": float(each.kept) for each in manifest.accounts[:1]}
    for name, estimate in result.get("after", {}).items():
        found[f"held_out/{name}"] = estimate["value"]
    if metric := result.get("metric"):
        found[f"{result['task']}/{metric}"] = result["scores"][metric]["value"]
    if result.get("average") is not None:
        found["average"] = result["average"]
    return {_allowed(name): value for name, value in found.items()}


def _numbers(manifest: Manifest) -> Iterator[tuple[str, float]]:
    """Yield the accounts and the numbers of a stage's result, with names that MLflow allows."""
    for account in manifest.accounts:
        counts = {"in": account.total, "kept": account.kept}
        counts |= {f"dropped/{reason}": number for reason, number in account.dropped.items()}
        for name, number in counts.items():
            yield _allowed(f"{account.what}/{name}"), float(number)
    for name, value in manifest.result.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _allowed(name), float(value)
    yield "shards", float(len(manifest.shards))
    yield "shard_megabytes", sum(shard.num_bytes for shard in manifest.shards) / 1e6


def _allowed(name: str) -> str:
    """Return ``name`` without the characters that MLflow refuses in a metric's name."""
    return re.sub(r"[^\w. :/-]", "", name)


def _run_name() -> str:
    """Return the name of the flow run that is about to begin, e.g. ``tiny, 2026-11-21 03:00``."""
    parameters = this_flow_run.parameters
    subject = parameters.get("model") or Path(parameters["recipe"]).stem
    began = this_flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{subject.removeprefix('models:/')}, {began:%Y-%m-%d %H:%M}"


def end_orphaned_tasks(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Set task runs that no process works on to Crashed: a hook for the start of a flow run.

    They are those of flow runs that have ended, and of this one if it crashed and began again.
    A server may have other projects' flows, whose tasks are left alone.
    """
    names = ["refresh-corpus", "pretrain-albert", "evaluate-albert"]
    ended = {"state": {"type": {"any_": TERMINAL_STATES}}, "id": {"any_": [flow_run.id]}}
    unended = {"state": {"type": {"any_": [StateType.RUNNING, StateType.PENDING]}}}
    wanted: dict[str, Any] = {
        "flow_filter": filters.FlowFilter.model_validate({"name": {"any_": names}}),
        "flow_run_filter": filters.FlowRunFilter.model_validate({**ended, "operator": "or_"}),
        "task_run_filter": filters.TaskRunFilter.model_validate(unended),
    }
    crashed: State[Any] = Crashed(message="The process of its flow run ended without it.")
    done: set[UUID] = set()
    with get_client(sync_client=True) as client:
        while found := {each.id for each in client.read_task_runs(**wanted)} - done:
            for task_run_id in found:
                client.set_task_run_state(task_run_id, crashed, force=True)
            done |= found


def _cancel_children(_: Flow[..., Any], flow_run: FlowRun, __: State[Any]) -> None:
    """Cancel the runs of deployments that a cancelled run waits for: a hook."""
    unended = {"state": {"type": {"not_any_": TERMINAL_STATES}}}
    children = {"parent_flow_run_id": {"any_": [flow_run.id]}, **unended}
    wanted = filters.FlowRunFilter.model_validate(children)
    with get_client(sync_client=True) as client:
        for child in client.read_flow_runs(flow_run_filter=wanted):
            client.set_flow_run_state(child.id, Cancelling())


def _end_tracking(_: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """End the MLflow run of a flow run: a hook for every end of a flow run."""
    if tracked := _tracked.pop(str(flow_run.id), None):
        tracked.end(_STATUS.get(state.type.value, "KILLED"))


FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": _run_name,
    "on_running": [end_orphaned_tasks],
    **{key: [_end_tracking] for key in ("on_completion", "on_failure", "on_crashed")},
    "on_cancellation": [_cancel_children, _end_tracking],
}
"""Options of Prefect's `flow`."""
