"""The commands that start something: flows by hand, and the services of one machine.

A command's `Args` are the help of its own options; `flows.commands` has that of the others.
"""
# ruff: noqa: D417

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from flows.commands import AsJson, Overrides, Recipe, Source, Work, answer


def demo(
    context: typer.Context, work: Work = "", overrides: Overrides = None, verbose: bool = False
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
    verbose: bool = False,
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
    verbose: bool = False,
) -> None:
    """Bring corpus, vocabulary and examples up to date, without training."""
    _run("refresh_corpus", context)


def evaluate(
    context: typer.Context,
    model: str,
    task_folder: str | None = None,
    tasks: Annotated[list[str] | None, typer.Option("--task")] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    corpus: str | None = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME|FILE")] = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: bool = False,
) -> None:
    """Fine-tune a model on downstream tasks, with several seeds, and score it.

    Args:
        model: models:/NAME@ALIAS, models:/NAME/VERSION, or a model folder.
        task_folder: Folder with the public files of GLUE, SQuAD and RACE as distributed. Default:
            the recipe's, else the task generated last.
        tasks: Only this task. Can be given more than once. Default: all there are.
        seeds: Fine-tunings of each task. Default: the recipe's number.
        corpus: Manifest of the corpus the model was pretrained on, to report how much of each dev
            set is in it.
        recipe: As of `albert pretrain`. Default: the model's own recipe.
    """
    _run("evaluate_albert", context)


def _devices() -> list[str]:
    from albert_core.planning.run_plan import HARDWARE

    return list(HARDWARE)


def plan(
    recipe: Recipe = "base",
    overrides: Overrides = None,
    hardware: Annotated[str, typer.Option(autocompletion=_devices)] = "h200",
    devices: Annotated[int, typer.Option(min=1)] = 1,
    examples: Annotated[str | None, typer.Option(metavar="NUMBER|MANIFEST")] = None,
    peak_tflops: float | None = None,
    memory_gib: float | None = None,
    utilisation: float | None = None,
    price_per_hour: float | None = None,
    table: bool = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a run will take in memory, hours and money, before it is started.

    Args:
        hardware: Kind of device, such as h200, a100 or l4. An unknown name lists them all.
        devices: Number of devices.
        examples: Number of training examples, or the URI of their manifest, whose lengths are then
            counted.
        peak_tflops: Peak of one device in the run's precision, TFLOP/s.
        memory_gib: Memory of one device, in 2**30 bytes.
        utilisation: Share of the peak that is reached, 0..1.
        price_per_hour: Price of one device for an hour, USD.
        table: Print the parameters of every model in the paper.
    """
    from albert_core.planning.run_plan import find_hardware
    from flows.commands import plan as plans
    from flows.recipe import load_recipe

    if table:
        typer.echo(plans.parameter_table())
        return
    loaded = load_recipe(recipe, overrides or ())
    device = find_hardware(hardware)
    device = device.with_given(peak_tflops, memory_gib, utilisation, price_per_hour)
    planned = plans.plan_recipe(loaded, device, devices, examples)
    answer(as_json, plans.plan_as_text(loaded.name, planned), plans.plan_as_json(planned))


def _run(flow: str, context: typer.Context, **more: Any) -> None:
    """Run a flow with the options of the command whose context this is, and ``more``."""
    from flows.commands.by_hand import run_flow

    options: dict[str, Any] = {**context.params, **more}
    run_flow(flow, **options | {"overrides": options["overrides"] or None})


_Recipe = Annotated[str | None, typer.Option(metavar="NAME|FILE")]


def serve(
    context: typer.Context,
    work: str | None = None,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    recipe: _Recipe = None,
    source: Source = None,
    task_folder: str | None = None,
) -> None:
    """Serve Prefect, MLflow and a worker on this machine until Ctrl-C.

    Args:
        work: Local folder for all data. Default: ./work.
        prefect_port: Port of Prefect. Default: 4200.
        mlflow_port: Port of MLflow. Default: 5000.
        recipe: Default recipe of the deployments.
        source: Text that they read by default (ALBERT_SOURCE).
        task_folder: Tasks of evaluate-albert by default.
    """
    _become("infra.serve", context)


def production(
    context: typer.Context,
    work: str | None = None,
    artifacts: str | None = None,
    workers: Annotated[int | None, typer.Option(envvar="ALBERT_SERVED_WORKERS")] = None,
    host: str | None = None,
    mlflow_auth: bool = False,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    postgres_port: int | None = None,
    s3_port: int | None = None,
    postgres_folder: str | None = None,
    recipe: _Recipe = None,
    source: Source = None,
    task_folder: str | None = None,
) -> None:
    """Serve the project for a team: Postgres, MLflow, Prefect and workers, until Ctrl-C.

    Args:
        work: Local folder for all data. Default: ./work.
        artifacts: Where MLflow keeps files: s3://BUCKET/PATH, a folder, or 'memory' for an S3
            server that forgets all when it stops. Default: a folder in the work folder.
        workers: Prefect workers. Default: 2.
        host: Address that Prefect and MLflow listen on; set up authentication before you open them
            to others. Default: 127.0.0.1.
        mlflow_auth: Have MLflow ask for user and password.
        prefect_port: Port of Prefect. Default: 4200.
        mlflow_port: Port of MLflow. Default: 5000.
        postgres_port: Port of Postgres. Default: 5433.
        s3_port: Port of the S3 server in memory. Default: 9000.
        postgres_folder: Folder for the databases, on a local disk. Default: a folder in the work
            folder.
        recipe: Default recipe of the deployments.
        source: Text that they read by default (ALBERT_SOURCE).
        task_folder: Tasks of evaluate-albert by default.
    """
    _become("infra.production", context)


def variable_of(option: str) -> str:
    """Return the environment variable of an option of the services."""
    return f"ALBERT_{option}".upper()


def _become(module: str, context: typer.Context) -> NoReturn:
    """Replace this process by one that runs ``module`` of `infra`, which may not be imported here.

    It finds the options of the command whose context this is in their environment variables.
    """
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if value is not None:
            os.environ[str(option.envvar or variable_of(str(option.name)))] = str(value)
    # With -P, a folder `infra` where the user happens to be is not taken for the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module])  # noqa: S606
