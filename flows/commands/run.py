"""`albert demo`, `pretrain`, `refresh`, `evaluate` and `plan`."""

from typing import Annotated, Any

import typer

from flows.commands import AsJson, Overrides, Recipe, Source, Verbose, Work, answer


def demo(
    context: typer.Context, work: Work = "", overrides: Overrides = None, verbose: Verbose = False
) -> None:
    """Go the whole way once, in minutes: the recipe tiny on text that is already here.

    The same as `albert pretrain --recipe tiny`. The text is the documentation of the Python
    packages that are installed.
    """
    _run("pretrain_albert", context, recipe="tiny", source=None)


def pretrain(
    context: typer.Context,
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: Verbose = False,
) -> None:
    """Go the whole way: clean, tokenize, pretrain, fine-tune, score and register.

    What was done before, with the same settings and inputs, is not done again.
    """
    _run("pretrain_albert", context)


def refresh(
    context: typer.Context,
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: Verbose = False,
) -> None:
    """Bring corpus, vocabulary and examples up to date, without training."""
    _run("refresh_corpus", context)


def evaluate(
    context: typer.Context,
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
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="As of `albert pretrain`. Default: the model's own recipe."
        ),
    ] = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: Verbose = False,
) -> None:
    """Fine-tune a model on downstream tasks, with several seeds, and score it."""
    _run("evaluate_albert", context)


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
    answer(as_json, plans.plan_as_text(loaded.name, planned), plans.plan_as_json(planned))


def _run(flow: str, context: typer.Context, **more: Any) -> None:
    """Run a flow with the options of the command whose context this is, and ``more``."""
    from flows.commands.by_hand import run_flow

    options: dict[str, Any] = {**context.params, **more}
    run_flow(flow, **options | {"overrides": options["overrides"] or None})
