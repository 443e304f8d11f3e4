"""`albert serve` and `production`: the services of one machine, in the place of this process."""

import os
import sys
from typing import Annotated, NoReturn

import typer

from flows.commands import only_one

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
