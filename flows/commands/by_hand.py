"""Run a flow by hand: skip what was done before, show progress bars, and end soon after Ctrl-C.

Ctrl-C ends it within ten seconds and with one line: the stages are told immediately and the flow
run becomes Crashed. What takes too long is killed: every stage resumes from what it wrote. SIGTERM
does the same, but gives the stages ALBERT_STOP_SECONDS to save their work.
`flows.prefect_server` says which server the flow speaks to.
"""

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import typer

from albert_core.stage import errors
from albert_core.stage.credentials import visible
from albert_core.stage.log import is_json, say
from albert_core.stage.machine import stop_seconds
from albert_core.stage.progress import StageProgress
from flows.recipe import NotDoneError, load_recipe

if TYPE_CHECKING:
    from prefect import Flow
    from rich.progress import Progress

    from flows.stage_task import ShowStage

_STOPPED = "stopped; the same command continues from here"
_STAGE_SECONDS = 5.0
"""The time that stages have after Ctrl-C to save their work."""
_CLOSING_SECONDS = 3.5
"""The time that everything else has after the stages."""
_OF_ANY_MODEL = {"model": {"max_position_embeddings": 1 << 16}}
"""In place of a model's own recipe, which the flow reads: no text is too long for it."""
_PLAIN = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
_FAILED_STATE = "Finished in state Failed"
_ONLY_VERBOSE = re.compile(
    "Beginning flow run|Finished in state Completed|Hook |Running hook |View at |by hand: "
)
_EVENT_LOGGERS = ("prefect.events.clients", "prefect._internal.concurrency")
"""Loggers of Prefect that tell each event, one every 30 seconds, which a server that is gone does
not take; a sentence at the end tells that it is gone."""
_ACCOUNT = re.compile(r"(?!documents: ).*: [\d,]+ in = ")
"""A line that tells less of a stage than the one before it, with its scores."""


def run_flow(name: str, work: str, verbose: bool, **options: Any) -> None:
    """Run the flow of this name, unless all of it was done before, and print what it returns.

    What was done before, and a mistake in the settings or the source, is found without a server.

    Args:
        name: name of the flow and of its module.
        work: folder for all results.
        verbose: whether to print every line.
        options: the flow's other parameters.
    """
    with _stopping() as kept:  # and only then the imports that take long
        is_json()  # refuses a wrong ALBERT_LOG_FORMAT
        named = _OF_ANY_MODEL if options["recipe"] is None else options["recipe"]
        recipe = load_recipe(named, options["overrides"] or (), options.get("source"))
        if "source" in options:
            recipe.source.check_given()
        flow: Flow[..., str] = getattr(import_module(f"flows.{name}"), name)
        try:
            result = str(flow.fn(work=work, **options))
        except NotDoneError:
            from flows.prefect_server import prefect_server
            from pipelines.examples.held_out import is_held_out
            from pipelines.source_files import check_source

            if "source" in options:
                check_source(recipe.source, partial(is_held_out, settings=recipe.examples))
            say("starting the flow: not everything was done before", sys.stderr)
            with prefect_server(work) as server, _display(verbose):
                if server is not None:
                    kept.add(server.pid)
                result = str(flow(work=work, **options))
    say(result if is_json() else f"\n{visible(result)}", sys.stdout)


@contextmanager
def _stopping() -> Iterator[set[int]]:
    """Let Ctrl-C or SIGTERM stop the block, and say that it did; only the first signal counts.

    The set that is yielded is for the numbers of the processes that are stopped last: the server
    that records the end.

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
    except (KeyboardInterrupt, Exception) as error:
        # A library may turn the interrupt into an error of its own, as pydantic's serializer does.
        if not taken and not isinstance(error, KeyboardInterrupt):
            raise
        say(_STOPPED, sys.stderr, logging.WARNING)
        _kill_children()
        raise typer.Exit(128 + (taken or [signal.SIGINT])[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill_children(kept: Collection[int] = ()) -> None:
    """Kill all processes that this one started, directly or not, except those ``kept``."""
    for process in psutil.Process().children(recursive=True):
        if process.pid not in kept:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _display(verbose: bool) -> Iterator[None]:
    """Show the stages of flows in the block: as bars in a terminal, else as lines.

    This process's handlers of log lines are changed for good: it runs one flow.

    Args:
        verbose: show every line of Prefect and the stages, with the command line of each stage.
    """
    from prefect.logging.configuration import setup_logging
    from rich import progress as columns
    from rich.console import Console
    from rich.table import Column

    from flows import flow_run, stage_task

    setup_logging()  # what Prefect would do later, so that its handlers are there
    logging.raiseExceptions = verbose  # each line that the server does not take would be told
    for name in flow_run.PREFECT_LOGGERS:
        logger = logging.getLogger(name)
        logger.addFilter(partial(_is_for_terminal, logger))
    for name in () if verbose else _EVENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    console = Console(stderr=True)
    shows_lines = verbose or is_json() or not (console.is_terminal and sys.stdout.isatty())
    for handler in logging.getLogger().handlers:
        if not verbose:
            handler.addFilter(lambda record: not _ONLY_VERBOSE.match(record.getMessage()))
            if not is_json():
                handler.setFormatter(_PLAIN)
        if not shows_lines:
            handler.addFilter(lambda record: record.levelno >= logging.WARNING)
    if shows_lines:
        yield
        return
    whole, rest = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bars = columns.Progress(
        columns.TextColumn("{task.fields[mark]} {task.description:<13}", table_column=whole),
        columns.BarColumn(16),
        columns.TextColumn("{task.fields[amount]}", table_column=whole),
        columns.TimeElapsedColumn(table_column=whole),
        columns.TimeRemainingColumn(compact=True, table_column=whole),
        columns.TextColumn("{task.fields[line]}", style="dim", table_column=rest),
        console=console,
        expand=True,
    )
    shown_before, stage_task.show_stage = stage_task.show_stage, partial(_bar, bars)
    try:
        with bars:
            yield
    finally:
        stage_task.show_stage = shown_before


@contextmanager
def _bar(bars: "Progress", stage: str) -> "Iterator[ShowStage]":
    """Show the bar of a stage, with its latest line: losses, rates, counts."""
    bar = bars.add_task(stage.replace("_", " "), total=None, mark=" ", amount="", line="")

    def show(said: str | StageProgress) -> None:
        if isinstance(said, StageProgress):
            bars.update(bar, completed=said.done, total=said.total)
            scale, unit = (1e6, "MB") if said.unit == "bytes" else (1, said.unit)
            speed = bars.tasks[bar].speed
            rate = f", {speed / scale:,.1f}/s" if speed else ""
            amount = f"{said.done / scale:,.0f}/{said.total / scale:,.0f} {unit}{rate}"
            bars.update(bar, amount=amount if said.total and unit else "")
            return
        line = said.partition(": ")[2] or said
        if line.startswith("step "):
            line = line.partition("  ")[2]  # the bar has the number
        if not line.startswith("done, wrote") and not _ACCOUNT.match(line):
            bars.update(bar, line=line)

    mark = "✗"
    try:
        yield show
        mark = "✓"
    finally:
        bars.update(bar, mark=mark, total=1, completed=1, amount="")
        bars.stop_task(bar)


def _is_for_terminal(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Return whether the terminal shows the record; if not, send it to the server alone.

    An error that is shown in one sentence at the end is not shown by Prefect as well. ``logger``
    itself has the handler that sends to the server; its parent has the terminal's.
    """
    from httpx import HTTPError  # as Prefect's client raises it

    from flows.flow_run import without_traceback

    error = record.exc_info[1] if record.exc_info else None
    is_told = isinstance(error, errors.AlbertError | HTTPError)
    is_told = is_told or (error is not None and bool(errors.explained(error)))
    if not is_told and not record.getMessage().startswith(_FAILED_STATE):
        return True
    without_traceback(record)
    for handler in logger.handlers:
        handler.handle(record)
    return False
