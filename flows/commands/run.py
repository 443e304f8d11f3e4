"""`albert demo`, `pretrain`, `refresh`, `evaluate` and `plan`."""

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from flows.commands import AsJson, Overrides, Recipe, Source, Verbose, Work, answer, only_one


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
    from albert_core.planning.run_plan import HARDWARE

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
    from albert_core.planning.run_plan import find_hardware
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


_Work = Annotated[
    str | None,
    typer.Option(envvar="ALBERT_WORK", help="Local folder for all data. Default: ./work."),
]
_PrefectPort = Annotated[
    int | None,
    typer.Option(envvar="ALBERT_PREFECT_PORT", help="Port of Prefect. Default: 4200."),
]
_MlflowPort = Annotated[
    int | None, typer.Option(envvar="ALBERT_MLFLOW_PORT", help="Port of MLflow. Default: 5000.")
]
_Recipe = Annotated[
    str | None,
    typer.Option(
        envvar="ALBERT_RECIPE", metavar="NAME|FILE", help="Default recipe of the deployments."
    ),
]
_Source = Annotated[
    list[str] | None,
    # Without `envvar`: typer would take a path with spaces in it for several.
    typer.Option(callback=only_one, help="Text that they read by default (ALBERT_SOURCE)."),
]
_TaskFolder = Annotated[
    str | None,
    typer.Option(envvar="ALBERT_TASK_FOLDER", help="Tasks of evaluate-albert by default."),
]


def serve(
    context: typer.Context,
    work: _Work = None,
    prefect_port: _PrefectPort = None,
    mlflow_port: _MlflowPort = None,
    recipe: _Recipe = None,
    source: _Source = None,
    task_folder: _TaskFolder = None,
) -> None:
    """Serve Prefect, MLflow and a worker on this machine until Ctrl-C."""
    _become("infra.serve", context)


def production(
    context: typer.Context,
    work: _Work = None,
    artifacts: Annotated[
        str | None,
        typer.Option(
            envvar="ALBERT_ARTIFACTS",
            help="Where MLflow keeps files: s3://BUCKET/PATH, a folder, or 'memory' for an S3 "
            "server that forgets all when it stops. Default: a folder in the work folder.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(envvar="ALBERT_SERVED_WORKERS", help="Prefect workers. Default: 2."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            envvar="ALBERT_HOST",
            help="Address that Prefect and MLflow listen on; set up authentication before you "
            "open them to others. Default: 127.0.0.1.",
        ),
    ] = None,
    mlflow_auth: Annotated[
        bool,
        typer.Option(
            "--mlflow-auth",
            envvar="ALBERT_MLFLOW_AUTH",
            help="Have MLflow ask for user and password.",
        ),
    ] = False,
    prefect_port: _PrefectPort = None,
    mlflow_port: _MlflowPort = None,
    postgres_port: Annotated[
        int | None,
        typer.Option(envvar="ALBERT_POSTGRES_PORT", help="Port of Postgres. Default: 5433."),
    ] = None,
    s3_port: Annotated[
        int | None,
        typer.Option(
            envvar="ALBERT_S3_PORT", help="Port of the S3 server in memory. Default: 9000."
        ),
    ] = None,
    postgres_folder: Annotated[
        str | None,
        typer.Option(
            envvar="ALBERT_POSTGRES_FOLDER",
            help="Folder for the databases, on a local disk. Default: a folder in the work folder.",
        ),
    ] = None,
    recipe: _Recipe = None,
    source: _Source = None,
    task_folder: _TaskFolder = None,
) -> None:
    """Serve the project for a team: Postgres, MLflow, Prefect and workers, until Ctrl-C."""
    _become("infra.production", context)


def _become(module: str, context: typer.Context) -> NoReturn:
    """Replace this process, which may not know `infra`, by one that runs ``module``.

    It finds the options of the command whose context this is in their environment variables.
    """
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if value is not None:
            os.environ[str(option.envvar or f"ALBERT_{option.name}".upper())] = str(value)
    # With -P, a folder `infra` where the user happens to be is not taken for the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module])  # noqa: S606
