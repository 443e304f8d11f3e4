"""`albert serve` and `production`: the services of one machine, in the place of this process."""

import os
import sys
from typing import Annotated, NoReturn

import typer

from flows.commands.options import only_one

_Work = Annotated[
    str | None,
    typer.Option(help="Local folder for all data. Default: ALBERT_WORK, or ./work if unset."),
]
_PrefectPort = Annotated[
    int | None, typer.Option(help="Port of Prefect. Default: ALBERT_PREFECT_PORT, or 4200.")
]
_MlflowPort = Annotated[
    int | None, typer.Option(help="Port of MLflow. Default: ALBERT_MLFLOW_PORT, or 5000.")
]
_Recipe = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Default recipe of the deployments (ALBERT_RECIPE)."),
]
_Source = Annotated[
    list[str] | None,
    typer.Option(callback=only_one, help="Text they read by default (ALBERT_SOURCE)."),
]
_TaskFolder = Annotated[
    str | None,
    typer.Option(help="Tasks that evaluate-albert has by default (ALBERT_TASK_FOLDER)."),
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
            help="Where MLflow keeps files: s3://BUCKET/PATH, a folder, or 'memory' for an S3 "
            "server that forgets all when it stops. Default: ALBERT_ARTIFACTS, or a folder in the "
            "work folder."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of Prefect workers. Default: ALBERT_SERVED_WORKERS, or 2."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address that Prefect and MLflow listen on; set up authentication before you "
            "open them to others. Default: ALBERT_HOST, or 127.0.0.1."
        ),
    ] = None,
    mlflow_auth: Annotated[
        bool,
        typer.Option(
            "--mlflow-auth", help="Have MLflow ask for user and password (ALBERT_MLFLOW_AUTH=true)."
        ),
    ] = False,
    prefect_port: _PrefectPort = None,
    mlflow_port: _MlflowPort = None,
    postgres_port: Annotated[
        int | None, typer.Option(help="Port of Postgres. Default: ALBERT_POSTGRES_PORT, or 5433.")
    ] = None,
    s3_port: Annotated[
        int | None,
        typer.Option(help="Port of the S3 server in memory. Default: ALBERT_S3_PORT, or 9000."),
    ] = None,
    postgres_folder: Annotated[
        str | None,
        typer.Option(
            help="Folder for the databases, on a local disk. Default: ALBERT_POSTGRES_FOLDER, or "
            "a folder in the work folder."
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

    It gets the options of the command whose context this is.
    """
    options = {f"--{name.replace('_', '-')}": value for name, value in context.params.items()}
    flags = [option for option, value in options.items() if value is True]
    values = [f"{o}={v}" for o, v in options.items() if v is not None and not isinstance(v, bool)]
    # With -P, a folder `infra` where the user happens to be is not taken for the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *flags, *values])  # noqa: S606
