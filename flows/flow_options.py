"""What every flow has: the names of its runs, and what is done as they begin and end."""

from typing import Any

from flows.orphaned_tasks import end_orphaned_tasks
from flows.run_names import run_name
from flows.tracked_flow import end_tracking

_ENDS = ("on_completion", "on_failure", "on_cancellation", "on_crashed")
FLOW_OPTIONS: dict[str, Any] = {
    "flow_run_name": run_name,
    "on_running": [end_orphaned_tasks],
    **{end: [end_tracking] for end in _ENDS},
}
"""Options of Prefect's `flow`."""
