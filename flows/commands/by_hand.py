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
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import typer

from albert_core.stage.log import is_json, say
from albert_core.stage.settings import stop_seconds
from flows.recipe import NotDoneError, Recipe, load_recipe

if TYPE_CHECKING:
    from prefect import Flow

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
    from pipelines.source_check import check_source

    check_source(recipe.source, recipe.examples)


def _in_flow_run(flow: "Flow[..., str]", kept: set[int], verbose: bool, **options: Any) -> str:
    from flows.commands.display import display
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
