"""Serve the project for a team, without containers: databases in Postgres, files in S3.

``albert production``: Postgres, an MLflow server, a Prefect
server and some workers on one machine. What ends by itself is started again. Everything listens
on the loopback address, unless told otherwise.
"""

import argparse
import os
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from albert_core.stage.errors import answers
from infra.postgres import Postgres
from infra.services import (
    LOOK_SECONDS,
    PREFECT,
    Services,
    deploy,
    flow_environment,
    local_folder,
    refuse_taken,
    run_until_stopped,
    start_prefect,
    start_worker,
)

LOOPBACK = "127.0.0.1"
MEMORY = "memory"
"""As the place of artifacts: an S3 server that keeps them in memory."""
MLFLOW, POSTGRES, S3 = "MLflow", "Postgres", "S3"
_BUCKET = "albert"
_USERS = "mlflow_users"


@dataclass(frozen=True)
class ProductionSettings:
    """Where the services keep their data, and where they listen."""

    work: Path
    """Folder for all results and all data of the services, absolute."""
    artifacts: str = ""
    """Where MLflow keeps files: `s3://bucket/path`, a folder, `memory`; without it, in `work`."""
    mlflow_auth: bool = False
    """Whether MLflow asks for a name and a password."""
    num_workers: int = 2
    host: str = LOOPBACK
    """Address that Prefect and MLflow listen on; the databases listen on the loopback alone."""
    prefect_port: int = 4200
    mlflow_port: int = 5000
    postgres_port: int = 5433
    s3_port: int = 9000
    postgres_folder: Path | None = None
    """Of the databases' files, on this machine; without it, in `work`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the servers, the workers and their flow runs."""


class Production:
    """The services of a team, on this machine.

    The names of the services are `Postgres`, `S3` (with artifacts in memory), `MLflow`,
    `Prefect`, `worker 1`, `worker 2` and so on.
    """

    def __init__(self, settings: ProductionSettings) -> None:
        self.settings = settings
        host = settings.host if settings.host != "0.0.0.0" else LOOPBACK  # noqa: S104 - compared
        self.prefect_url = f"http://{host}:{settings.prefect_port}"
        self.mlflow_url = f"http://{host}:{settings.mlflow_port}"
        self.environment = {
            **flow_environment(settings.work, self.prefect_url, self.mlflow_url),
            **settings.environment,
        }
        """What a client needs to reach the servers, as the workers have it."""
        self.services = Services(settings.work / "logs", self.environment)
        self.postgres = Postgres(
            settings.postgres_folder or settings.work / "postgres",
            settings.postgres_port,
            settings.work / "secrets" / "postgres-password",
        )

    def start(self) -> None:
        """Start all, in order; return when all answer.

        Raises:
            ServeError: a port is taken, or a service cannot be started.
        """
        settings = self.settings
        refuse_taken(settings.host, Prefect=settings.prefect_port, MLflow=settings.mlflow_port)
        refuse_taken(LOOPBACK, Postgres=settings.postgres_port)
        settings.work.mkdir(parents=True, exist_ok=True)
        print(f"starting the services, with their data in {settings.work}", flush=True)
        self._start_postgres()
        self._start_mlflow()
        start_prefect(
            *(self.services, settings.host, settings.prefect_port),
            self.postgres.url("prefect", "postgresql+asyncpg"),
        )
        self.wait_until_up(PREFECT)
        print("deploying the flows", flush=True)
        deploy(self.services)
        for number in range(1, settings.num_workers + 1):
            start_worker(self.services, f"worker {number}")
        self.wait_until_up(MLFLOW)

    def pid(self, name: str) -> int:
        """Return the number of a service's process: the present one, if it was started again."""
        return self.services.pid(name)

    def is_up(self, name: str) -> bool:
        """Return whether a service answers; of a worker, whether its process runs."""
        match name:
            case "Postgres":
                return self.postgres.is_up()
            case "Prefect":
                return answers(f"{self.prefect_url}/api/health")
            case "MLflow":
                return answers(f"{self.mlflow_url}/health")
            case "S3":
                return answers(f"{self._s3_url}/{_BUCKET}")
        return self.services.services[name].process.poll() is None

    def wait_until_up(self, name: str) -> None:
        """Return as soon as a service answers.

        Raises:
            ServeError: it takes too long; or a service has ended, and nobody watches them.
        """
        self.services.wait_until(name, lambda: self.is_up(name), f"its port, as {name}")

    def greeting(self) -> str:
        """Return what to tell the user once all is up."""
        settings = self.settings
        return (
            f"\nPrefect    {self.prefect_url}\nMLflow     {self.mlflow_url}\n"
            f"artifacts  {self._artifacts()}{self._warning()}\n"
            f"databases  Postgres, {LOOPBACK}:{settings.postgres_port}, in {self.postgres.folder}\n"
            f"workers    {settings.num_workers}\nlogs       {self.services.logs}\n\n"
            "In another terminal, with the environment active:\n\n"
            f"  export PREFECT_API_URL={self.prefect_url}/api\n"
            f"  export MLFLOW_TRACKING_URI={self.mlflow_url}\n"
            "  prefect deployment run pretrain-albert/pretrain-albert\n\n"
            "Ctrl-C stops everything."
        )

    def _start_postgres(self) -> None:
        self.postgres.prepare()
        self.services.start(POSTGRES, *self.postgres.command())
        self.wait_until_up(POSTGRES)
        for database in ("prefect", "mlflow"):
            self.postgres.create_database(database)

    def _start_mlflow(self) -> None:
        environment = {"MLFLOW_BACKEND_STORE_URI": self.postgres.url("mlflow", "postgresql")}
        if self.settings.artifacts == MEMORY:
            port = str(self.settings.s3_port)
            refuse_taken(LOOPBACK, S3=self.settings.s3_port)
            self.services.start(
                *(S3, sys.executable, "-m", "infra.memory_s3", "--port", port, "--bucket", _BUCKET)
            )
            environment |= {
                "MLFLOW_S3_ENDPOINT_URL": self._s3_url,
                "AWS_ACCESS_KEY_ID": "memory",
                "AWS_SECRET_ACCESS_KEY": "memory",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            self.wait_until_up(S3)
        if self.settings.mlflow_auth:
            environment |= self._authentication()
        self.services.start(
            *(MLFLOW, sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", self.settings.host, "--port", str(self.settings.mlflow_port)),
            *("--serve-artifacts", "--artifacts-destination", self._artifacts()),
            *(("--app-name", "basic-auth") if self.settings.mlflow_auth else ()),
            environment=environment,
        )

    def _authentication(self) -> dict[str, str]:
        """Return what has MLflow keep its users in a database of their own.

        The first of them, the administrator, it takes from MLFLOW_AUTH_ADMIN_PASSWORD.
        """
        self.postgres.create_database(_USERS)
        settings = self.postgres.password_file.with_name("mlflow-auth.ini")
        settings.touch(mode=0o600)
        settings.write_text(
            "[mlflow]\n"
            f"database_uri = {self.postgres.url(_USERS, 'postgresql')}\n"
            "admin_username = albert\n"
            "default_permission = EDIT\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(),
        }

    @property
    def _s3_url(self) -> str:
        return f"http://{LOOPBACK}:{self.settings.s3_port}"

    def _artifacts(self) -> str:
        if self.settings.artifacts == MEMORY:
            return f"s3://{_BUCKET}/mlflow"
        return self.settings.artifacts or str(self.settings.work / "mlartifacts")

    def _warning(self) -> str:
        if self.settings.artifacts != MEMORY:
            return ""
        return "  IN MEMORY: gone when this stops. ALBERT_ARTIFACTS=s3://bucket/path keeps them."


@contextmanager
def running(settings: ProductionSettings) -> Iterator[Production]:
    """Start the services, watch them from a thread of this process, and stop them at the end."""
    production = Production(settings)
    leave = threading.Event()

    def watch() -> None:
        while not leave.wait(LOOK_SECONDS):
            production.services.start_ended_again()

    watcher = threading.Thread(target=watch, name="watch services")
    try:
        production.start()
        production.services.watched = True
        watcher.start()
        yield production
    finally:
        leave.set()
        if watcher.ident is not None:
            watcher.join()
        production.services.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit status."""
    production = Production(_settings(argv))

    def start() -> str:
        production.start()
        return production.greeting()

    return run_until_stopped(production.services, start, production.services.start_ended_again)


def _settings(argv: Sequence[str] | None) -> ProductionSettings:
    parser = argparse.ArgumentParser(prog="albert production", description=main.__doc__)
    environment = os.environ.get
    parser.add_argument(
        "--work",
        type=local_folder,
        default=environment("ALBERT_WORK", "work"),
        help="local folder for all data (ALBERT_WORK, else 'work')",
    )
    parser.add_argument(
        "--artifacts",
        default=environment("ALBERT_ARTIFACTS", ""),
        help="s3://bucket/path, a folder, or 'memory': an S3 server that forgets all when it ends "
        "(ALBERT_ARTIFACTS, else a folder in the work folder)",
    )
    parser.add_argument(
        "--workers", type=int, dest="num_workers", default=environment("ALBERT_SERVED_WORKERS", "2")
    )
    parser.add_argument(
        "--host",
        default=environment("ALBERT_HOST", LOOPBACK),
        help="address that Prefect and MLflow listen on: put authentication before them first",
    )
    parser.add_argument(
        "--mlflow-auth",
        action="store_true",
        default=environment("ALBERT_MLFLOW_AUTH") == "true",
        help="have MLflow ask for a name and a password (ALBERT_MLFLOW_AUTH=true); see README",
    )
    for service, port in (("prefect", 4200), ("mlflow", 5000), ("postgres", 5433), ("s3", 9000)):
        variable = f"ALBERT_{service.upper()}_PORT"
        parser.add_argument(
            f"--{service}-port", type=int, default=environment(variable, str(port)), help=variable
        )
    parser.add_argument(
        "--postgres-folder",
        type=local_folder,
        default=environment("ALBERT_POSTGRES_FOLDER"),
        help="of the databases' files, on a disk of this machine (default: in the work folder)",
    )
    return ProductionSettings(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
