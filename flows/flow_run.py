"""What all flows share: how a run begins and ends.

A flow process that is killed ends none of its tasks. Prefect 3.8 makes its flow run Crashed, by its
worker or by an automation, and leaves the tasks Running forever; and the flow run too, if it was
started by hand. The next flow run ends them.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import dropwhile
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, artifacts
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelling, Crashed

from albert_core.stage import credentials, errors, lock, storage
from albert_core.stage.log import FORMAT, is_json, use_format
from flows import recipe as recipes
from flows.recipe import RecipeChanges, RecipeRun
from flows.report import Report
from flows.stage_task import in_flow_run
from flows.tracking import begin_tracking, end_tracking, tracked_flow

PREFECT_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
"""The loggers whose lines are on the page of a run."""
_LARGEST_SKEW_SECONDS = 60.0
"""Half of the silence after which infra/prefect_rules.yaml takes a run for dead."""

log = logging.getLogger(__name__)
if os.environ.get(FORMAT) == "json":  # here, for Prefect's own first lines of a flow run
    use_format(logging.getLogger())


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
    tell_in_sentences()
    overrides = recipes.with_form(settings, overrides)
    resolved = recipes.load_recipe(recipe, overrides, source)
    folder = storage.work_folder(work)
    if isinstance(recipe, str):  # the source of a model's own recipe is not read again
        check_apart(resolved.source.uri, folder)
    uri = recipes.save_recipe(resolved, folder)
    credentials.hide_credentials_in_logs()
    is_json()  # refuses a wrong ALBERT_LOG_FORMAT
    if flow_run_id:
        _check_clock()
        if storage.local_path(folder):
            lock.take_at_once(folder, _place(flow_run_id))
        begin_tracking(folder, resolved, uri)
    given = {"recipe": recipe, "source": source, "overrides": overrides, "work": work}
    return RecipeRun(resolved, uri, folder, given)


def tell_in_sentences() -> None:
    """Have the page of the present flow run, if there is one, show an AlbertError as its sentence.

    What may raise one before `start_run` calls this first.
    """
    if this_flow_run.id:
        for name in PREFECT_LOGGERS:
            logging.getLogger(name).addFilter(without_traceback)


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


def _run_name() -> str:
    """Return the name of the flow run that is about to begin, e.g. ``tiny, 2026-11-21 03:00``."""
    parameters = this_flow_run.parameters
    subject = parameters.get("model") or Path(parameters["recipe"]).stem
    began = this_flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{subject.removeprefix('models:/')}, {began:%Y-%m-%d %H:%M}"


def _place(flow_run_id: object) -> str:
    """Return the name of the lock that the process of a flow run holds until that has ended."""
    return f"flow-runs/{flow_run_id}"


def end_orphans(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Set what no process works on to Crashed: a hook for the start of a flow run.

    Those are runs that were started by hand with this work folder; tasks of flow runs that have
    ended; and tasks of this one if it crashed and began again. A server may have other projects'
    flows, which are left alone.
    """
    names = ["refresh-corpus", "pretrain-albert", "evaluate-albert"]
    by_hand = {"deployment_id": {"is_null_": True}, "state": {"type": {"any_": ["RUNNING"]}}}
    ended = {"state": {"type": {"any_": TERMINAL_STATES}}, "id": {"any_": [flow_run.id]}}
    unended = {"state": {"type": {"any_": [StateType.RUNNING, StateType.PENDING]}}}
    wanted: dict[str, Any] = {
        "flow_filter": filters.FlowFilter.model_validate({"name": {"any_": names}}),
        "flow_run_filter": filters.FlowRunFilter.model_validate({**ended, "operator": "or_"}),
        "task_run_filter": filters.TaskRunFilter.model_validate(unended),
    }
    crashed: State[Any] = Crashed(message="The process of its flow run ended without it.")
    done: set[UUID] = set()
    work = storage.work_folder(flow_run.parameters.get("work"))
    with get_client(sync_client=True) as client:
        for each in client.read_flow_runs(
            flow_filter=wanted["flow_filter"],
            flow_run_filter=filters.FlowRunFilter.model_validate(by_hand),
        ):
            if each.id != flow_run.id and lock.is_left(work, _place(each.id)):
                client.set_flow_run_state(each.id, crashed, force=True)
                lock.release(work, _place(each.id))
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
    end_tracking(str(flow_run.id), state.type.value)
    lock.release(storage.work_folder(flow_run.parameters.get("work")), _place(flow_run.id))


FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": _run_name,
    "on_running": [end_orphans],
    **{key: [_end_tracking] for key in ("on_completion", "on_failure", "on_crashed")},
    "on_cancellation": [_cancel_children, _end_tracking],
}
"""Options of Prefect's `flow`."""
