"""Run a flow by hand: only what was not done before, and so that Ctrl-C ends it soon.

Ctrl-C ends it within ten seconds and with one line: the stages are told immediately and the flow
run becomes Crashed. What takes too long is killed: every stage goes on from what it wrote. SIGTERM
does the same, but gives the stages ALBERT_STOP_SECONDS to save what they have.
`flows.prefect_server` says which server the flow speaks to.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import typer
from prefect.logging.configuration import setup_logging
from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from albert_core.stage.errors import AlbertError
from albert_core.stage.log import StageProgress, is_json, say
from albert_core.stage.settings import stop_seconds
from flows import flow_run
from flows.recipe import NotDoneError, Recipe, load_recipe

if TYPE_CHECKING:
    from prefect import Flow


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
def _shown(bars: rich_progress.Progress, stage: str) -> Iterator[flow_run.ShowStage]:
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
    shown_before, flow_run.show_stage = flow_run.show_stage, partial(_shown, bars)
    try:
        with bars:
            yield
    finally:
        flow_run.show_stage = shown_before


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


_STOPPED = "stopped; the same command goes on from here"
_STAGE_SECONDS = 5.0
"""The time that stages have after Ctrl-C to save what they have."""
_CLOSING_SECONDS = 3.5
"""The time that everything else has after them."""


def run_flow(name: str, work: str, verbose: bool, **options: Any) -> None:
    """Run the flow of this name, unless all of it was done before, and print what it returns.

    What was done before, and a mistake in the settings or the source, is found without a server.

    Args:
        name: name of the flow and of its module.
        work: folder for all results.
        verbose: whether to print every line.
        options: the flow's other parameters.
    """
    with _stopping() as kept:
        is_json()  # refuses a wrong ALBERT_LOG_FORMAT
        given = options["recipe"]
        named = {} if given is None else given  # the flow reads that of a model to evaluate
        recipe = load_recipe(named, options["overrides"] or (), options.get("source"))
        if "source" in options:
            recipe.source.check_given()
        flow: Flow[..., str] = getattr(import_module(f"flows.{name}"), name)
        try:
            result = str(flow.fn(work=work, **options))
        except NotDoneError:
            if "source" in options:
                _check_source(recipe)
            result = _in_flow_run(flow, kept, verbose, work=work, **options)
    say(result if is_json() else f"\n{result}", sys.stdout)


def _check_source(recipe: Recipe) -> None:
    from pipelines.examples.pairs import is_held_out
    from pipelines.source_files import check_source

    check_source(recipe.source, partial(is_held_out, settings=recipe.examples))


def _in_flow_run(flow: "Flow[..., str]", kept: set[int], verbose: bool, **options: Any) -> str:
    from flows.prefect_server import prefect_server

    say("starting the flow: not everything was done before", sys.stderr)
    with prefect_server(options["work"]) as server, display(verbose):
        if server is not None:
            kept.add(server.pid)
        return str(flow(**options))


@contextmanager
def _stopping() -> Iterator[set[int]]:
    """Let Ctrl-C or SIGTERM stop the block, and say that it did; only the first signal counts.

    The set that is yielded is for the numbers of the processes that are stopped last: the server
    that notes the end.

    Raises:
        typer.Exit: the block was stopped; with the status of a process that the signal ended.
    """
    kept: set[int] = set()
    taken: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
        if not taken:
            taken.append(number)
            threading.Thread(target=end_in_time, daemon=True).start()
            raise KeyboardInterrupt

    def end_in_time() -> None:
        time.sleep(_STAGE_SECONDS if taken[0] == signal.SIGINT else stop_seconds())
        _kill_children(kept)
        time.sleep(_CLOSING_SECONDS)
        say(_STOPPED, sys.stderr, logging.WARNING)
        _kill_children()
        os._exit(128 + taken[0])

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield kept
    except KeyboardInterrupt:
        say(_STOPPED, sys.stderr, logging.WARNING)
        _kill_children()
        raise typer.Exit(128 + (taken or [signal.SIGINT])[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill_children(kept: set[int] | None = None) -> None:
    """Kill all processes that this one started, directly or not, except those ``kept``."""
    for process in psutil.Process().children(recursive=True):
        if process.pid not in (kept or ()):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
