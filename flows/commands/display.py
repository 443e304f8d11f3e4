"""What a terminal shows of a flow that is run by hand: a progress bar for each stage."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prefect.logging.configuration import setup_logging
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

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


class _Done(ProgressColumn):
    """How much is done of what is to do, and how fast, in the stage's own units."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        if not task.total or not unit:
            return Text("")
        scale, unit = (1e6, "MB") if unit == "bytes" else (1, unit)
        speed = f", {task.speed / scale:,.1f}/s" if task.speed else ""
        return Text(f"{task.completed / scale:,.0f}/{task.total / scale:,.0f} {unit}{speed}")


class _Bar(stage_task.StageBar):
    """The bar of a stage, with its latest line: losses, rates, counts."""

    def __init__(self, progress: Progress, stage: str) -> None:
        self._progress = progress
        name = stage.replace("_", " ")
        self._bar = progress.add_task(name, total=None, mark=" ", unit="", line="")

    def say(self, line: str) -> None:
        said = line.partition(": ")[2] or line
        if said.startswith("step "):
            said = said.partition("  ")[2]  # the bar has the number
        if not said.startswith("done, wrote"):
            self._progress.update(self._bar, line=said)

    def advance(self, progress: StageProgress) -> None:
        self._progress.update(
            self._bar, completed=progress.done, total=progress.total, unit=progress.unit
        )

    def end(self, mark: str) -> None:
        self._progress.update(self._bar, mark=mark, total=1, completed=1, unit="")
        self._progress.stop_task(self._bar)


@contextmanager
def _shown(progress: Progress, stage: str) -> Iterator[_Bar]:
    bar = _Bar(progress, stage)
    try:
        yield bar
    except BaseException:
        bar.end("✗")
        raise
    bar.end("✓")


@contextmanager
def display(verbose: bool) -> Iterator[None]:
    """Show the stages of flows in the block: bars in a terminal, else lines.

    Args:
        verbose: show every line of Prefect and the stages, with the command line of each stage.
    """
    setup_logging()  # what Prefect would do later, so that its handlers are there
    console = Console(stderr=True)
    handlers = list(logging.getLogger().handlers)
    if not verbose:
        for handler in handlers:
            handler.addFilter(_is_news)
            if not is_json():
                handler.setFormatter(_PLAIN)
    if verbose or is_json() or not (console.is_terminal and sys.stdout.isatty()):
        yield
        return
    for handler in handlers:
        handler.addFilter(_is_warning)
    whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bars = Progress(
        TextColumn("{task.fields[mark]} {task.description:<13}", table_column=whole),
        BarColumn(16),
        _Done(table_column=whole),
        TimeElapsedColumn(table_column=whole),
        TimeRemainingColumn(compact=True, table_column=whole),
        TextColumn("{task.fields[line]}", style="dim", table_column=rest),
        console=console,
        expand=True,
    )
    shown_before = stage_task.show_stage
    stage_task.show_stage = partial(_shown, bars)
    try:
        with bars:
            yield
    finally:
        stage_task.show_stage = shown_before


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ONLY_VERBOSE)
