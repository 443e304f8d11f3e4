"""What runs flows on one machine: a Prefect server, its deployments and workers."""

import sys
from pathlib import Path

from infra.services import Services

DEPLOYMENTS = Path(__file__).with_name("prefect.yaml")
POOL = "albert"
PREFECT = "Prefect"
_PATIENCE = {
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "30",
}
"""Seconds that a query and a connection may take, instead of 10 and 5: beside a training that has
all cores the database may well be slow."""
_COMMAND = (sys.executable, "-m", "prefect", "--no-prompt")


def flow_environment(work: Path, prefect_url: str, mlflow_url: str) -> dict[str, str]:
    """Return the environment of the servers, the workers and their flow runs."""
    return {
        "ALBERT_WORK": str(work),
        "MLFLOW_TRACKING_URI": mlflow_url,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_API_URL": f"{prefect_url}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def start_prefect(services: Services, host: str, port: int, database: str) -> None:
    """Start the Prefect server.

    Args:
        services: to which it is added.
        host: address that it listens on.
        port: that it listens on.
        database: URL of SQLAlchemy, in the server's environment only: it may hold a password.
    """
    environment = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database, **_PATIENCE}
    address = ("--host", host, "--port", str(port))
    services.start(PREFECT, *_COMMAND, "server", "start", *address, environment=environment)


def deploy(services: Services) -> None:
    """Make the pool, the deployments and their rules, or bring them up to date.

    Raises:
        ServeError: the server refused.
    """
    services.finish(
        *("work pool", *_COMMAND, "work-pool", "create", POOL, "--type", "process", "--overwrite")
    )
    services.finish("deploy", *_COMMAND, "deploy", "--all", "--prefect-file", str(DEPLOYMENTS))
    services.finish("rules", sys.executable, "-m", "infra.prefect_rules", "--pool", POOL)


def start_worker(services: Services, name: str) -> None:
    """Start a worker; the flow runs that it has started go on when it ends by itself."""
    services.start(
        *(name, *_COMMAND, "worker", "start", "--pool", POOL, "--type", "process"),
        *("--name", name.replace(" ", "-")),
        keeps_children=True,
    )
