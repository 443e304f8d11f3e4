"""What a terminal shows of a flow that is run by hand: a progress bar for each stage."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prefect.logging.configuration import setup_logging
from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from albert_core.stage.errors import AlbertError
from albert_core.stage.log import StageProgress, is_json
from flows import stage_task

_PLAIN = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
_ONLY_VERBOSE = (
    "Beginning flow run",
    "Finished in state Completed",
    "Hook ",
    "Running hook ",
    "View at ",
    "by hand: ",
)
_FAILED_STATE = "Finished in state Failed"


class _Done(rich_progress.ProgressColumn):
    """How much is done of what is to do, and how fast, in the stage's own units."""

    def render(self, task: rich_progress.Task) -> Text:
        unit = task.fields["unit"]
        if not task.total or not unit:
            return Text("")
        scale, unit = (1e6, "MB") if unit == "bytes" else (1, unit)
        speed = f", {task.speed / scale:,.1f}/s" if task.speed else ""
        return Text(f"{task.completed / scale:,.0f}/{task.total / scale:,.0f} {unit}{speed}")


@contextmanager
def _shown(bars: rich_progress.Progress, stage: str) -> Iterator[stage_task.ShowStage]:
    """Show the bar of a stage, with its latest line: losses, rates, counts."""
    bar = bars.add_task(stage.replace("_", " "), total=None, mark=" ", unit="", line="")

    def show(line: str = "", progress: StageProgress | None = None) -> None:
        said = line.partition(": ")[2] or line
        if said.startswith("step "):
            said = said.partition("  ")[2]  # the bar has the number
        if progress is not None:
            bars.update(bar, completed=progress.done, total=progress.total, unit=progress.unit)
        elif not said.startswith("done, wrote"):
            bars.update(bar, line=said)

    mark = "✗"
    try:
        yield show
        mark = "✓"
    finally:
        bars.update(bar, mark=mark, total=1, completed=1, unit="")
        bars.stop_task(bar)


@contextmanager
def display(verbose: bool) -> Iterator[None]:
    """Show the stages of flows in the block: as bars in a terminal, else as lines.

    This process's handlers of log lines are changed for good: it runs one flow.

    Args:
        verbose: show every line of Prefect and the stages, with the command line of each stage.
    """
    setup_logging()  # what Prefect would do later, so that its handlers are there
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.addFilter(partial(_is_for_terminal, logger))
    console = Console(stderr=True)
    shows_lines = verbose or is_json() or not (console.is_terminal and sys.stdout.isatty())
    for handler in logging.getLogger().handlers:
        if not verbose:
            handler.addFilter(lambda record: not record.getMessage().startswith(_ONLY_VERBOSE))
            if not is_json():
                handler.setFormatter(_PLAIN)
        if not shows_lines:
            handler.addFilter(lambda record: record.levelno >= logging.WARNING)
    if shows_lines:
        yield
        return
    whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bars = rich_progress.Progress(
        rich_progress.TextColumn("{task.fields[mark]} {task.description:<13}", table_column=whole),
        rich_progress.BarColumn(16),
        _Done(table_column=whole),
        rich_progress.TimeElapsedColumn(table_column=whole),
        rich_progress.TimeRemainingColumn(compact=True, table_column=whole),
        rich_progress.TextColumn("{task.fields[line]}", style="dim", table_column=rest),
        console=console,
        expand=True,
    )
    shown_before, stage_task.show_stage = stage_task.show_stage, partial(_shown, bars)
    try:
        with bars:
            yield
    finally:
        stage_task.show_stage = shown_before


def _is_for_terminal(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Return whether the record goes the usual way; if not, send it to the server alone.

    An AlbertError is told once, at the end, and not by Prefect as well. ``logger`` itself has the
    handler that sends to the server; its parent has the terminal's.
    """
    is_ours = record.exc_info is not None and isinstance(record.exc_info[1], AlbertError)
    if not is_ours and not record.getMessage().startswith(_FAILED_STATE):
        return True
    for handler in logger.handlers:
        handler.handle(record)
    return False
