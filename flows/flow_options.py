"""What every flow has: the names of its runs, and what is done as they begin and end.

A flow process that is killed ends no task of its own: Prefect 3.8 makes the flow run Crashed, by
its worker or by an automation, and leaves its tasks Running for ever. The next flow run ends them.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.states import Crashed

from flows.tracked_flow import end_tracking


def run_name() -> str:
    """Return the name of the flow run that is about to begin, e.g. ``tiny, 2026-11-21 03:00``."""
    parameters = runtime.flow_run.parameters
    subject = parameters.get("model") or Path(parameters["recipe"]).stem
    began = runtime.flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{subject.removeprefix('models:/')}, {began:%Y-%m-%d %H:%M}"


FLOWS = ("refresh-corpus", "pretrain-albert", "evaluate-albert")
"""Whose tasks they are: a server may have other projects' too."""
_UNDER_WAY = [StateType.RUNNING, StateType.PENDING]
_MESSAGE = "The process of its flow run ended without it."


def end_orphaned_tasks(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Make every such task run Crashed; a hook of flows, for when they begin."""
    ended = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(TERMINAL_STATES)))
    )
    under_way = TaskRunFilter(
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNDER_WAY))
    )
    ours = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
    done: set[UUID] = set()
    with get_client(sync_client=True) as client:
        while found := [
            task_run.id
            for task_run in client.read_task_runs(
                flow_filter=ours, flow_run_filter=ended, task_run_filter=under_way
            )
            if task_run.id not in done
        ]:
            for task_run_id in found:
                client.set_task_run_state(task_run_id, Crashed(message=_MESSAGE), force=True)
            done.update(found)


_ENDS = ("on_completion", "on_failure", "on_cancellation", "on_crashed")
FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": run_name,
    "on_running": [end_orphaned_tasks],
    **{end: [end_tracking] for end in _ENDS},
}
"""Options of Prefect's `flow`."""
