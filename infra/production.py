"""Serve the project for a team, without containers: databases in Postgres, files in S3.

``albert production``: Postgres, an MLflow server, a Prefect server and some workers on one machine.
A service that ends unexpectedly is restarted. Everything listens on the loopback address, unless
`host` is another one.
"""

import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.servers import answers
from flows.prefect_server import kept_secret
from infra import serve

MEMORY = "memory"
"""The value of `artifacts` for an S3 server that keeps them in memory."""
_BUCKET = "albert"
_DATABASE_USER = "albert"
"""The role that owns the databases."""
_SYSTEM_USER = "postgres"
_DEBIAN = Path("/usr/lib/postgresql")


class ProductionSettings(serve.ServerSettings):
    """The further settings of `albert production`."""

    host: str = serve.LOOPBACK
    """Address that Prefect and MLflow listen on."""
    artifacts: str = ""
    """Place of MLflow's files: `s3://bucket/path`, a folder or `memory`; by default in `work`."""
    mlflow_auth: bool = False
    """Whether MLflow asks for a name and a password."""
    workers: int = 2
    postgres_port: serve.Port = 5433
    """Port of the databases, which listen on the loopback address alone."""
    s3_port: serve.Port = 9000
    postgres_folder: Path | None = None
    """Folder on this machine for the files of the databases; by default in `work`."""


class Production(serve.Services):
    """The services of a team, on this machine.

    They are `Postgres`, `S3` (with artifacts in memory), `MLflow`, `Prefect`, `worker 1`,
    `worker 2` and so on.
    """

    watch = serve.Services.start_ended_again

    def __init__(self, settings: ProductionSettings) -> None:
        super().__init__(settings, settings.host)
        self.settings = settings
        self.postgres = Postgres(
            settings.postgres_folder or self.work / "postgres",
            settings.postgres_port,
            self.work / "secrets" / "postgres-password",
        )

    def start_all(self) -> str:
        """Start all, in order; when all answer, return what to tell the user."""
        serve.refuse_taken(serve.LOOPBACK, {"Postgres": self.settings.postgres_port})
        self.prepare()
        if os.geteuid() == 0:  # Postgres is then another user, who has to pass through
            self.work.chmod(self.work.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
        self.postgres.prepare()
        self.start("Postgres", *self.postgres.command(), is_up=self.postgres.is_up)
        self.wait_until_up("Postgres")
        for database in ("prefect", "mlflow"):
            self.postgres.create_database(database)
        environment = {"MLFLOW_BACKEND_STORE_URI": self.postgres.url("mlflow", "postgresql")}
        artifacts = self.settings.artifacts or str(self.work / "mlartifacts")
        warning = ""
        if artifacts == MEMORY:
            artifacts = f"s3://{_BUCKET}/mlflow"
            environment |= self._s3_in_memory()
            warning = (
                "  IN MEMORY: gone when this stops. ALBERT_ARTIFACTS=s3://bucket/path keeps them."
            )
        options = ["--serve-artifacts", "--artifacts-destination", artifacts]
        if self.settings.mlflow_auth:
            environment |= self._authentication()
            options += ["--app-name", "basic-auth"]
        self.start_mlflow(*options, environment=environment)
        self.start_prefect(
            self.postgres.url("prefect", "postgresql+asyncpg"),
            [f"worker {number + 1}" for number in range(self.settings.workers)],
        )
        facts = {
            "artifacts": f"{artifacts}{warning}",
            "databases": f"Postgres, port {self.postgres.port}, in {self.postgres.folder}",
            "workers": self.settings.workers,
        }
        return self.greeting(facts, [f"export MLFLOW_TRACKING_URI={self.mlflow_url}"])

    def _s3_in_memory(self) -> dict[str, str]:
        """Start the S3 server; return what MLflow needs to reach it.

        Raises:
            ConfigError: moto is not installed.
        """
        if not find_spec("moto"):
            raise ConfigError(
                "artifacts=memory needs moto, which only tests need otherwise: run "
                "`python infra/install.py dev` in the project's folder, or give a folder or s3://."
            )
        port = self.settings.s3_port
        url = f"http://{serve.LOOPBACK}:{port}"
        serve.refuse_taken(serve.LOOPBACK, {"S3": port})
        self.start(
            *("S3", sys.executable, "-m", "infra.memory_s3", str(port), _BUCKET),
            is_up=lambda: answers(f"{url}/{_BUCKET}"),
        )
        self.wait_until_up("S3")
        return {
            "MLFLOW_S3_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "memory",
            "AWS_SECRET_ACCESS_KEY": "memory",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def _authentication(self) -> dict[str, str]:
        """Return what makes MLflow keep its users in a database of their own.

        It takes the password of the first of them, the administrator, from
        MLFLOW_AUTH_ADMIN_PASSWORD.
        """
        self.postgres.create_database("mlflow_users")
        settings = self.postgres.password_file.with_name("mlflow-auth.ini")
        settings.touch(mode=0o600)
        settings.write_text(
            "[mlflow]\n"
            f"database_uri = {self.postgres.url('mlflow_users', 'postgresql')}\n"
            "admin_username = albert\n"
            "default_permission = EDIT\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(),
        }


class Postgres:
    """A cluster that listens on the loopback address and asks for a password.

    Postgres refuses to run as root: for root it runs as the user ``postgres``, who then owns the
    folder.

    Args:
        folder: for the cluster's files, on this machine.
        port: that it listens on.
        password_file: written once, readable by its owner only.

    Raises:
        ServeError: Postgres, or its version that made the folder, is not installed.
    """

    def __init__(self, folder: Path, port: int, password_file: Path) -> None:
        self.folder, self.port, self.password_file = folder, port, password_file
        self._at = ("-h", serve.LOOPBACK, "-p", str(port))
        self._binaries = find_binaries(folder)

    def prepare(self) -> None:
        """Create the cluster, if it is not there.

        Raises:
            ServeError: it cannot be created there.
        """
        if self.folder.exists():
            return
        kept_secret(self.password_file)
        unfinished = self.folder.with_name(f"{self.folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
        unfinished.mkdir(parents=True, mode=0o700)
        with NamedTemporaryFile("w", dir="/tmp") as readable:
            readable.write(self._password())
            readable.flush()
            self._hand_over(unfinished, Path(readable.name))
            self._run(
                *("initdb", "--pgdata", str(unfinished), "--username", _DATABASE_USER),
                *("--auth", "scram-sha-256", "--pwfile", readable.name),
                *("--encoding", "UTF8", "--locale", "C.UTF-8"),
            )
        storage.replace(unfinished, self.folder)

    def command(self) -> list[str]:
        """Return the command line of the server."""
        # Without a socket file: a work folder's path may be too long for one.
        place = ["-D", str(self.folder), *self._at, "-c", "unix_socket_directories="]
        return _unprivileged([str(self._binaries / "postgres"), *place])

    def is_up(self) -> bool:
        """Return whether it takes connections."""
        ready = [str(self._binaries / "pg_isready"), "-q", *self._at]
        return subprocess.run(ready, check=False).returncode == 0

    def create_database(self, name: str) -> None:
        """Create a database, if it is not there."""
        exists = f"select 1 from pg_database where datname = '{name}'"  # noqa: S608 - our own name
        if not self._run("psql", "-d", "postgres", "-tAc", exists).strip():
            self._run("createdb", name)

    def url(self, database: str, driver: str) -> str:
        """Return SQLAlchemy's URL of a database. It has the password: keep it off command lines."""
        return f"{driver}://{_DATABASE_USER}:{self._password()}@{serve.LOOPBACK}:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> str:
        server = {"PGHOST": serve.LOOPBACK, "PGPORT": str(self.port), "PGUSER": _DATABASE_USER}
        done = subprocess.run(
            _unprivileged([str(self._binaries / program), *arguments]),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={**os.environ, **server, "PGPASSWORD": self._password()},
        )
        if done.returncode != 0:
            if "password authentication failed" in done.stderr:
                raise serve.ServeError(
                    f"{self.password_file} does not have the password of the databases in "
                    f"{self.folder}. Put that back, or give another --postgres-folder for new "
                    "databases"
                )
            raise serve.ServeError(
                f"Postgres in {self.folder}: {program} failed: {done.stderr.strip()}"
            )
        return done.stdout

    def _hand_over(self, folder: Path, file: Path) -> None:
        """Give the folder and the file to the user that Postgres runs as.

        Raises:
            ServeError: there is no such user, or it cannot reach the folder.
        """
        if os.geteuid() != 0:
            return
        try:
            user = pwd.getpwnam(_SYSTEM_USER)
        except KeyError as error:
            raise serve.ServeError(
                f"Postgres does not run as root, and there is no user {_SYSTEM_USER!r}: "
                "install Debian's package `postgresql`, or do not be root"
            ) from error
        for path in (folder, file):
            os.chown(path, user.pw_uid, user.pw_gid)
        reach = _unprivileged(["test", "-w", str(folder)])
        if subprocess.run(reach, check=False, cwd="/").returncode != 0:
            raise serve.ServeError(
                f"the user {_SYSTEM_USER!r}, as whom Postgres runs, cannot enter {folder}: "
                "a folder above it is closed to others. Open that (`chmod o+x`), or give "
                "another with --postgres-folder"
            )

    def _password(self) -> str:
        try:
            return self.password_file.read_text()
        except FileNotFoundError as error:
            raise serve.ServeError(
                f"{self.password_file}, the password of the databases in {self.folder}, is "
                "missing. Put it back, or give another --postgres-folder for new databases"
            ) from error


def _unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command line that runs the command as the user ``postgres``, if we are root."""
    if os.geteuid() != 0:
        return list(command)
    user = [f"--reuid={_SYSTEM_USER}", f"--regid={_SYSTEM_USER}", "--init-groups"]
    # The kernel forgets what `tied` asks for when the user changes.
    return ["setpriv", *user, "--pdeathsig=TERM", *command]


def find_binaries(folder: Path | None = None) -> Path:
    """Return the folder with Postgres' programs: Debian's newest, otherwise that on the PATH.

    Args:
        folder: a cluster's files. Only the version that made them can read them.

    Raises:
        ServeError: there are none, or none of the version that made the files.
    """
    made_by = folder / "PG_VERSION" if folder else None
    version = made_by.read_text().strip() if made_by and made_by.exists() else ""
    found = {at.parent.name: at for at in _DEBIAN.glob("*/bin") if (at / "initdb").exists()}
    if found and not version:
        return found[max(found, key=float)]
    if version in found:
        return found[version]
    on_path = shutil.which("initdb")
    if on_path and version in ("", _major_version(on_path)):
        return Path(on_path).resolve().parent
    if version:
        raise serve.ServeError(
            f"Postgres {version}, which made the databases in {folder}, is not on this machine. "
            f"Install it (Debian: `apt-get install postgresql-{version}`). Or, where it is, dump "
            "them (docs/operations.md, Backup), and restore them in another --postgres-folder"
        )
    raise serve.ServeError(
        f"Postgres is not on this machine: neither in {_DEBIAN} nor on the PATH. "
        "Install it (Debian: `apt-get install postgresql`)"
    )


def _major_version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return found[1] if found else ""


def main() -> int:
    """Serve what the environment says until Ctrl-C, SIGTERM or SIGHUP; return the exit status."""
    return serve.run_until_stopped(lambda: Production(ProductionSettings.from_environment()))


if __name__ == "__main__":
    sys.exit(main())
