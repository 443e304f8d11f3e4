"""`albert demo`, `pretrain`, `refresh`, `evaluate` and `plan`.

A flow that is run by hand has a Prefect server of its own, unless PREFECT_API_URL names one.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

from flows.commands.options import AsJson, Overrides, Recipe, Source, Work, answer

DATABASE = "prefect.db"
"""Prefect's database in the work folder: `albert serve` shows the runs made by hand as well."""
_STARTUP_SECONDS = 120
_INTERRUPTED_STATUS = 130
_FAILED_STATE = "Finished in state Failed"


def demo(work: Work = None, overrides: Overrides = None) -> None:
    """Go the whole way once, in minutes: the recipe tiny on text that is already here.

    The same as `albert pretrain --recipe tiny`. The text is the documentation of the Python
    packages that are installed.
    """
    pretrain("tiny", None, work, overrides)


def pretrain(
    recipe: Recipe = "tiny", source: Source = None, work: Work = None, overrides: Overrides = None
) -> None:
    """Go the whole way: clean, tokenize, pretrain, fine-tune, score and register.

    What was done before, with the same settings and inputs, is not done again.
    """
    _check(recipe, overrides, source)
    from flows.pretrain_albert import pretrain_albert

    _run(pretrain_albert, work, recipe=recipe, source=source, overrides=overrides)


def refresh(
    recipe: Recipe = "tiny", source: Source = None, work: Work = None, overrides: Overrides = None
) -> None:
    """Bring corpus, vocabulary and examples up to date, without training."""
    _check(recipe, overrides, source)
    from flows.refresh_corpus import refresh_corpus

    _run(refresh_corpus, work, recipe=recipe, source=source, overrides=overrides)


def evaluate(
    model: Annotated[
        str, typer.Argument(help="models:/NAME@ALIAS, models:/NAME/VERSION, or a model folder.")
    ],
    task_folder: Annotated[
        str | None,
        typer.Option(
            help="Folder with the public files of GLUE, SQuAD and RACE as distributed. Default: "
            "the recipe's, else the task generated last."
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task", help="Only this task. Can be given more than once. Default: all there are."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Fine-tunings of each task. Default: the recipe's number."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Manifest of the corpus the model was pretrained on, to report how much of each "
            "dev set is in it."
        ),
    ] = None,
    recipe: Recipe = "tiny",
    work: Work = None,
    overrides: Overrides = None,
) -> None:
    """Fine-tune a model on downstream tasks, with several seeds, and score it."""
    _check(recipe, overrides)
    from flows.evaluate_albert import evaluate_albert

    _run(
        evaluate_albert,
        work,
        model=model,
        task_folder=task_folder,
        tasks=tasks,
        seeds=seeds,
        corpus=corpus,
        recipe=recipe,
        overrides=overrides,
    )


def _devices() -> list[str]:
    from albert_core.planning.hardware import HARDWARE

    return list(HARDWARE)


def plan(
    recipe: Recipe = "base",
    overrides: Overrides = None,
    hardware: Annotated[
        str,
        typer.Option(
            help="Kind of device, such as h200, a100 or l4. An unknown name lists them all.",
            autocompletion=_devices,
        ),
    ] = "h200",
    devices: Annotated[int, typer.Option(min=1, help="Number of devices.")] = 1,
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|MANIFEST",
            help="Number of training examples, or the URI of their manifest, whose lengths are "
            "then counted.",
        ),
    ] = None,
    peak_tflops: Annotated[
        float | None, typer.Option(help="Peak of one device in the run's precision, TFLOP/s.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory of one device, in 2**30 bytes.")
    ] = None,
    utilisation: Annotated[
        float | None, typer.Option(help="Share of the peak that is reached, 0..1.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Price of one device for an hour, USD.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the parameters of every model in the paper.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a run will take in memory, hours and money, before it is started."""
    from flows.commands import plan as plans
    from flows.recipe import load_recipe

    if table:
        typer.echo(plans.parameter_table())
        return
    loaded = load_recipe(recipe, overrides or ())
    device = plans.own_hardware(hardware, peak_tflops, memory_gib, utilisation, price_per_hour)
    num_examples, manifest = plans.read_examples(examples)
    planned = plans.plan_recipe(loaded, device, devices, manifest)
    answer(
        as_json,
        lambda: plans.plan_as_text(loaded.name, planned, num_examples),
        lambda: plans.plan_as_json(planned),
    )


def _check(recipe: str, overrides: list[str] | None, source: str | None = None) -> None:
    """Find a mistake in the settings before anything is started."""
    from albert_core.stage.log import is_json
    from flows.recipe import load_recipe

    is_json()
    load_recipe(recipe, overrides or (), source)


def _run(flow: Callable[..., object], work: str | None, **options: Any) -> None:
    """Run ``flow`` and print what it returns."""
    from albert_core.stage.environment import work_folder
    from albert_core.stage.log import is_json, say

    try:
        with _own_server(work_folder(work)), _one_message():
            result = flow(work=work, **options)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here", sys.stderr, logging.WARNING)
        raise typer.Exit(_INTERRUPTED_STATUS) from None
    say(str(result) if is_json() else f"\n{result}", sys.stdout)


@contextmanager
def _own_server(work: str) -> Iterator[None]:
    """Have Prefect start a server for this process, unless PREFECT_API_URL names one."""
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    from prefect import settings

    from albert_core.stage import storage

    logging.getLogger("prefect").addFilter(_is_not_the_end)  # so that the report is the last word
    changes: dict[Any, Any] = {
        settings.PREFECT_SERVER_EPHEMERAL_ENABLED: True,
        settings.PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _STARTUP_SECONDS,
    }
    if (folder := storage.local_path(work)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite+aiosqlite:///{folder / DATABASE}"
        changes[settings.PREFECT_SERVER_DATABASE_CONNECTION_URL] = url
    with settings.temporary_settings(changes, restore_defaults={settings.PREFECT_API_URL}):
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
    from albert_core.stage.errors import AlbertError

    is_ours = record.exc_info is not None and isinstance(record.exc_info[1], AlbertError)
    if not is_ours and not record.getMessage().startswith(_FAILED_STATE):
        return True
    for handler in logger.handlers:
        handler.handle(record)
    return False
