"""What Prefect's pages call a run: what it works on, and when it began."""

from datetime import UTC, datetime
from pathlib import Path

from prefect import runtime


def run_name() -> str:
    """Return the name of the flow run that is about to begin, e.g. ``tiny, 2026-11-21 03:00``."""
    parameters = runtime.flow_run.parameters
    subject = parameters.get("model") or Path(parameters["recipe"]).stem
    began = runtime.flow_run.scheduled_start_time or datetime.now(UTC)
    return f"{subject.removeprefix('models:/')}, {began:%Y-%m-%d %H:%M}"
