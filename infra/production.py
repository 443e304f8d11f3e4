"""Serve the project for a team, without containers: databases in Postgres, files in S3.

``albert production``: Postgres, an MLflow server, a Prefect server and some workers on one machine.
What ends unexpectedly is started again. Everything listens on the loopback address, unless told
otherwise.
"""

import os
import secrets
import stat
import sys
from pathlib import Path

from albert_core.stage.command import tell_failure
from albert_core.stage.errors import ConfigError, answers
from infra.postgres import Postgres
from infra.services import LOOPBACK, Servers, ServerSettings, refuse_taken, run_until_stopped

MEMORY = "memory"
"""As the place of artifacts: an S3 server that keeps them in memory."""
POSTGRES, S3 = "Postgres", "S3"
_BUCKET = "albert"
_USERS = "mlflow_users"


class ProductionSettings(ServerSettings):
    """What a team has besides."""

    artifacts: str = ""
    """Where MLflow keeps files: `s3://bucket/path`, a folder, `memory`; without it, in `work`."""
    mlflow_auth: bool = False
    """Whether MLflow asks for a name and a password."""
    workers: int = 2
    postgres_port: int = 5433
    """Of the databases, which listen on the loopback address alone."""
    s3_port: int = 9000
    postgres_folder: Path | None = None
    """For the files of the databases, on this machine; without it, in `work`."""


class Production(Servers):
    """The services of a team, on this machine.

    They are `Postgres`, `S3` (with artifacts in memory), `MLflow`, `Prefect`, `worker 1`,
    `worker 2` and so on.
    """

    def __init__(self, settings: ProductionSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self.postgres = Postgres(
            settings.postgres_folder or self.work / "postgres",
            settings.postgres_port,
            self.work / "secrets" / "postgres-password",
        )
        self._s3_url = f"http://{LOOPBACK}:{settings.s3_port}"
        self._artifacts = settings.artifacts or str(self.work / "mlartifacts")
        if settings.artifacts == MEMORY:
            self._artifacts = f"s3://{_BUCKET}/mlflow"

    def start_all(self) -> str:
        """Start all, in order; when all answer, return what to tell the user.

        Raises:
            ServeError: a port is taken, or a service cannot be started.
        """
        refuse_taken(LOOPBACK, {POSTGRES: self.settings.postgres_port})
        self.prepare()
        if os.geteuid() == 0:  # Postgres is then another user, who has to pass through
            self.work.chmod(self.work.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
        self.postgres.prepare()
        self.start(POSTGRES, *self.postgres.command(), is_up=self.postgres.is_up)
        self.wait_until_up(POSTGRES)
        for database in ("prefect", "mlflow"):
            self.postgres.create_database(database)
        environment = {"MLFLOW_BACKEND_STORE_URI": self.postgres.url("mlflow", "postgresql")}
        if self.settings.artifacts == MEMORY:
            environment |= self._s3_in_memory()
        options = ["--serve-artifacts", "--artifacts-destination", self._artifacts]
        if self.settings.mlflow_auth:
            environment |= self._authentication()
            options += ["--app-name", "basic-auth"]
        self.start_mlflow(*options, environment=environment)
        self.start_prefect(
            self.postgres.url("prefect", "postgresql+asyncpg"),
            [f"worker {number + 1}" for number in range(self.settings.workers)],
        )
        warning = "  IN MEMORY: gone when this stops. ALBERT_ARTIFACTS=s3://bucket/path keeps them."
        facts = {
            "artifacts": self._artifacts + (warning if self.settings.artifacts == MEMORY else ""),
            "databases": f"Postgres, {LOOPBACK}:{self.postgres.port}, in {self.postgres.folder}",
            "workers": self.settings.workers,
        }
        return self.greeting(facts, [f"export MLFLOW_TRACKING_URI={self.mlflow_url}"])

    def _s3_in_memory(self) -> dict[str, str]:
        """Start the S3 server; return what MLflow needs to reach it."""
        port = self.settings.s3_port
        refuse_taken(LOOPBACK, {S3: port})
        self.start(
            *(S3, sys.executable, "-m", "infra.memory_s3", str(port), _BUCKET),
            is_up=lambda: answers(f"{self._s3_url}/{_BUCKET}"),
        )
        self.wait_until_up(S3)
        return {
            "MLFLOW_S3_ENDPOINT_URL": self._s3_url,
            "AWS_ACCESS_KEY_ID": "memory",
            "AWS_SECRET_ACCESS_KEY": "memory",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _authentication(self) -> dict[str, str]:
        """Return what makes MLflow keep its users in a database of their own.

        It takes the password of the first of them, the administrator, from
        MLFLOW_AUTH_ADMIN_PASSWORD.
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


def main() -> int:
    """Serve what the environment says until Ctrl-C or SIGTERM; return the exit status."""
    try:
        production = Production(ProductionSettings.from_environment())
    except ConfigError as error:
        return tell_failure(error)
    return run_until_stopped(production, production.start_all, production.start_ended_again)


if __name__ == "__main__":
    sys.exit(main())
