"""Run a flow by hand: ``python -m flows.pretrain_albert``, with a Prefect server of its own."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from prefect import Flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_EPHEMERAL_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from albert_core.stage import storage
from albert_core.stage.environment import work_folder
from albert_core.stage.errors import AlbertError
from albert_core.stage.log import is_json, say
from flows.recipe import load_recipe, shipped_recipes

DATABASE = "prefect.db"
"""Prefect's database in the work folder: `make serve` shows the runs made by hand as well."""
_STARTUP_SECONDS = 120
_INTERRUPTED_STATUS = 130
_FAILED_STATE = "Finished in state Failed"


def recipe_parser(flow: Flow[..., Any], with_source: bool = True) -> argparse.ArgumentParser:
    """Return a parser of the options that every flow has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {flow.fn.__module__.replace('__main__', f'flows.{flow.fn.__name__}')}",
        description=(flow.description or "").partition("\n")[0],
    )
    shipped = ", ".join(shipped_recipes())
    parser.add_argument("--recipe", default="tiny", help=f"{shipped}, or path of a TOML file")
    if with_source:
        parser.add_argument("--source", help="your own text: file, folder, glob or URI")
    parser.add_argument("--work", help="folder for all results (ALBERT_WORK, else 'work')")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="SECTION.FIELD=VALUE",
        action="append",
        help="a setting that differs from the recipe's; may be repeated",
    )
    return parser


def run_by_hand(flow: Callable[..., object], **options: Any) -> int:
    """Run ``flow`` with ``options``, print what it returns, and return the exit status.

    A mistake in the recipe is found before anything is started. What a user can mend ends in its
    one message, without a traceback.
    """
    try:
        is_json()  # a wrong value is a mistake of the settings
        load_recipe(options["recipe"], options["overrides"] or (), options.get("source"))
        with _own_server(work_folder(options.get("work"))), _one_message():
            result = flow(**options)
    except AlbertError as error:
        _say(f"error: {error}", sys.stderr, logging.ERROR)
        return 1
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from here", sys.stderr, logging.WARNING)
        return _INTERRUPTED_STATUS
    _say(str(result), sys.stdout, logging.INFO)
    return 0


def _say(text: str, stream: TextIO, level: int) -> None:
    """Print what a run ends with, apart from the lines before it."""
    say(text if is_json() else f"\n{text}", stream, level)


def interpreter() -> str:
    """Return this interpreter as the user may type it here."""
    path, here = Path(sys.executable), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextmanager
def _own_server(work: str) -> Iterator[None]:
    """Have Prefect start a server for this process, unless PREFECT_API_URL names one."""
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    logging.getLogger("prefect").addFilter(_is_not_the_end)  # so that the report is the last word
    settings: dict[Any, Any] = {
        PREFECT_SERVER_EPHEMERAL_ENABLED: True,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _STARTUP_SECONDS,
    }
    if (folder := storage.local_path(work)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        settings[PREFECT_SERVER_DATABASE_CONNECTION_URL] = (
            f"sqlite+aiosqlite:///{folder / DATABASE}"
        )
    with temporary_settings(updates=settings, restore_defaults={PREFECT_API_URL}):
        yield


def _is_not_the_end(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Stopping temporary server")


@contextmanager
def _one_message() -> Iterator[None]:
    """Keep Prefect's reports of an AlbertError off the terminal; its server still gets them."""
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "prefect.task_runs")]
    filters = [partial(_is_for_terminal, logger) for logger in loggers]
    for logger, is_for_terminal in zip(loggers, filters, strict=True):
        logger.addFilter(is_for_terminal)
    try:
        yield
    finally:
        for logger, is_for_terminal in zip(loggers, filters, strict=True):
            logger.removeFilter(is_for_terminal)


def _is_for_terminal(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Return whether the record goes the usual way; if not, hand it to the server alone.

    ``logger`` itself has the handler that sends to the server; its parent has the terminal's.
    """
    is_ours = record.exc_info is not None and isinstance(record.exc_info[1], AlbertError)
    if not is_ours and not record.getMessage().startswith(_FAILED_STATE):
        return True
    for handler in logger.handlers:
        handler.handle(record)
    return False
