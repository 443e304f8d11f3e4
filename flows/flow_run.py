"""What every flow does as its run begins and ends: its name, its recipe, its orphans, its tracking.

A flow process that is killed ends none of its tasks. Prefect 3.8 makes its flow run Crashed, by its
worker or by an automation, and leaves the tasks Running for ever. The next flow run ends them.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, runtime
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.states import Cancelling, Crashed

from albert_core.stage.credentials import hide_credentials_in_logs
from albert_core.stage.environment import work_folder
from albert_core.stage.log import FORMAT, is_json, use_format
from flows.recipe import RecipeRun, load_recipe, save_recipe
from flows.report import Report
from flows.stage_task import in_flow_run
from flows.tracked_flow import begin_tracking, end_tracking, note_report

if os.environ.get(FORMAT) == "json":  # here, for Prefect's own first lines of a flow run
    use_format(getLogger())


def start_run(
    recipe: str | Mapping[str, Any],
    source: str | None,
    work: str | None,
    overrides: Sequence[str] | None,
) -> RecipeRun:
    """Read the recipe, save it resolved, and return what every stage needs.

    Args:
        recipe: see `load_recipe`.
        source: the user's own text; None for the recipe's.
        work: the folder for all results; None for ALBERT_WORK, else ``work``.
        overrides: see `load_recipe`.
    """
    resolved = load_recipe(recipe, overrides or (), source)
    folder = work_folder(work)
    uri = save_recipe(resolved, folder)
    hide_credentials_in_logs()
    is_json()  # refuses a wrong ALBERT_LOG_FORMAT
    begin_tracking(folder, resolved, uri)
    return RecipeRun(resolved, uri, folder)


def show_report(report: Report, key: str) -> None:
    """Show the report of the present flow run on Prefect's and MLflow's pages; else do nothing."""
    if in_flow_run():
        note_report(report.markdown())
        about = report.markdown(with_groups=False)
        create_table_artifact(report.table(), key=key, description=about)


def run_name() -> str:
    """Return the name of the flow run that is about to begin, e.g. ``tiny, 2026-11-21 03:00``."""
    parameters = runtime.flow_run.parameters
    subject = parameters.get("model") or Path(parameters["recipe"]).stem
    began = runtime.flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{subject.removeprefix('models:/')}, {began:%Y-%m-%d %H:%M}"


_FLOWS = filters.FlowFilter.model_validate(
    {"name": {"any_": ["refresh-corpus", "pretrain-albert", "evaluate-albert"]}}
)
"""Flows whose tasks may be ended: a server may have other projects' too."""
_ENDED = {"state": {"type": {"any_": TERMINAL_STATES}}}
_UNDER_WAY = filters.TaskRunFilter.model_validate(
    {"state": {"type": {"any_": [StateType.RUNNING, StateType.PENDING]}}}
)
_MESSAGE = "The process of its flow run ended without it."


def end_orphaned_tasks(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Make Crashed the task runs that no process works on: a hook for when a flow begins.

    They are those of flow runs that have ended, and of this one if it crashed and began again.
    """
    ended = filters.FlowRunFilter.model_validate(
        {**_ENDED, "id": {"any_": [flow_run.id]}, "operator": "or_"}
    )
    done: set[UUID] = set()
    with get_client(sync_client=True) as client:
        while (
            found := {
                task_run.id
                for task_run in client.read_task_runs(
                    flow_filter=_FLOWS, flow_run_filter=ended, task_run_filter=_UNDER_WAY
                )
            }
            - done
        ):
            for task_run_id in found:
                client.set_task_run_state(task_run_id, Crashed(message=_MESSAGE), force=True)
            done |= found


def cancel_children(_: Flow[..., Any], flow_run: FlowRun, __: State[Any]) -> None:
    """Cancel the runs of deployments that a run had started and waited for: a hook."""
    of_this = filters.FlowRunFilter.model_validate(
        {
            "parent_flow_run_id": {"any_": [flow_run.id]},
            "state": {"type": {"not_any_": TERMINAL_STATES}},
        }
    )
    with get_client(sync_client=True) as client:
        for child in client.read_flow_runs(flow_run_filter=of_this):
            client.set_flow_run_state(child.id, Cancelling())


_ENDS = ("on_completion", "on_failure", "on_cancellation", "on_crashed")
FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": run_name,
    "on_running": [end_orphaned_tasks],
    **{end: [end_tracking] for end in _ENDS},
    "on_cancellation": [cancel_children, end_tracking],
}
"""Options of Prefect's `flow`."""
