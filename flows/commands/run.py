"""`albert demo`, `pretrain`, `refresh`, `evaluate` and `plan`.

What was done before is found first; a flow runs for the rest. `flows.prefect_server` says on which
server.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import (
    AsJson,
    Overrides,
    Recipe,
    Source,
    Verbose,
    Work,
    answer,
)

if TYPE_CHECKING:
    from prefect import Flow

    from flows.commands.stopping import Stopping
    from flows.recipe import Recipe as RecipeSettings

_FAILED_STATE = "Finished in state Failed"


def demo(work: Work = None, overrides: Overrides = None, verbose: Verbose = False) -> None:
    """Go the whole way once, in minutes: the recipe tiny on text that is already here.

    The same as `albert pretrain --recipe tiny`. The text is the documentation of the Python
    packages that are installed.
    """
    pretrain("tiny", None, work, overrides, verbose)


def pretrain(
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = None,
    overrides: Overrides = None,
    verbose: Verbose = False,
) -> None:
    """Go the whole way: clean, tokenize, pretrain, fine-tune, score and register.

    What was done before, with the same settings and inputs, is not done again.
    """
    _run("pretrain_albert", work, verbose, recipe=recipe, source=source, overrides=overrides)


def refresh(
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = None,
    overrides: Overrides = None,
    verbose: Verbose = False,
) -> None:
    """Bring corpus, vocabulary and examples up to date, without training."""
    _run("refresh_corpus", work, verbose, recipe=recipe, source=source, overrides=overrides)


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
    verbose: Verbose = False,
) -> None:
    """Fine-tune a model on downstream tasks, with several seeds, and score it."""
    _run(
        "evaluate_albert",
        work,
        verbose,
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
    from albert_core.planning.hardware import find_hardware
    from flows.commands import plan as plans
    from flows.recipe import load_recipe

    if table:
        typer.echo(plans.parameter_table())
        return
    loaded = load_recipe(recipe, overrides or ())
    device = find_hardware(hardware).with_given(
        peak_tflops, memory_gib, utilisation, price_per_hour
    )
    planned = plans.plan_recipe(loaded, device, devices, examples)
    answer(
        as_json,
        lambda: plans.plan_as_text(loaded.name, planned),
        lambda: plans.plan_as_json(planned),
    )


def _run(flow: str, work: str | None, verbose: bool, **options: Any) -> None:
    """Run the flow of that name, if it has work to do, and print what it returns.

    What was done before, and a mistake in settings or source, is found without a server.
    """
    from albert_core.stage.log import is_json, say
    from flows.commands.stopping import stopping
    from flows.recipe import load_recipe

    with stopping() as told:
        is_json()
        source = options.get("source")
        recipe = load_recipe(options["recipe"], options["overrides"] or (), source)
        function = getattr(import_module(f"flows.{flow}"), flow)
        result = _found(function, work, options)
        if result is None:
            result = _made(function, work, options, recipe, told, verbose)
    say(str(result) if is_json() else f"\n{result}", sys.stdout)


def _found(flow: "Flow[..., str]", work: str | None, options: dict[str, Any]) -> str | None:
    """Return what the flow returns if all of it was done before; else None."""
    from flows.done_before import NotDoneError

    try:
        return str(flow.fn(work=work, **options))
    except NotDoneError:
        return None


def _made(
    flow: "Flow[..., str]",
    work: str | None,
    options: dict[str, Any],
    recipe: "RecipeSettings",
    told: "Stopping",
    verbose: bool,
) -> str:
    from albert_core.stage.environment import work_folder
    from albert_core.stage.log import say
    from flows.commands.display import display
    from flows.prefect_server import prefect_server
    from pipelines.source_check import check_source

    if "source" in options:
        check_source(recipe.source, recipe.examples)
    say("starting the flow: not everything was done before", sys.stderr)
    with prefect_server(work_folder(work)) as server, _one_message(), display(verbose):
        if server is not None:
            told.kept.add(server.pid)
        return str(flow(work=work, **options))


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
