"""Serve the project on this machine: Prefect, MLflow and a worker, until Ctrl-C.

``albert serve``. Everything listens on the loopback address only and keeps its data in the work
folder. `infra.production` is the same for a team.

A service is a process that is started, watched, restarted and stopped with all that it starts.
"""

import os
import shlex
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic
from math import inf
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import Annotated, Self

import psutil
from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from albert_core.stage import errors, lock, storage
from albert_core.stage.command import FAILURE, FAILURE_STATUS
from albert_core.stage.machine import stop_seconds
from albert_core.stage.servers import SERVED, Served, answers, note_served
from albert_core.stage.settings import describe, refuse_credentials
from flows import prefect_server
from flows.prefect_server import ALLOWED_HOSTS
from flows.recipe import load_recipe
from flows.stage_process import tied

PROJECT = Path(__file__).parent.parent
LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.5
PAUSE_SECONDS = 2.0
_MARK = "ALBERT_SERVICE"
"""Variable in the environment of a service and of everything that it starts."""
_KILL_SECONDS = 5.0
_ALONE_SECONDS = 15.0
"""Time to end for a service that has nothing else running: it has nothing to save."""
_PUT_BACK_SECONDS = 30.0
"""More than a clock loses that is only slowed down."""
PREFECT, MLFLOW = "Prefect", "MLflow"
_DATABASE_SECONDS = 5.0
"""Time between two looks at the databases, which may be large."""
_POOL = "albert"
_LOCK = "served"
"""Name of the lock on a work folder that is served."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AUTH, _SERVER_AUTH = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"


class ServeError(errors.AlbertError):
    """A service could not be started, or ended unexpectedly."""


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes that have this variable in their environment.

    Unlike a list of children it includes those that outlived their parent.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                found.append(process)
    return found


@dataclass(eq=False)
class Service:
    """A process, the leader of a session of its own, and everything that it starts.

    It gets SIGTERM when this process dies, even by SIGKILL.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """All variables that it has, with `_MARK`."""
    log: Path
    responds: Callable[[], bool]
    """Whether the service answers, asked while its process runs."""
    keeps_children: bool
    """Whether its children continue when it ends unexpectedly, as the flow runs of a worker do."""
    start_again_at: float | None = None

    def start(self) -> None:
        """Start its process."""
        with self.log.open("ab") as log:
            self.process = psutil.Popen(
                tied(self.command),
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                cwd=PROJECT,
                env=self.environment,
                start_new_session=True,
            )
        self.start_again_at = None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    @property
    def is_up(self) -> bool:
        """Whether its process runs, and the service answers."""
        return not self.has_ended and self.responds()

    @property
    def how_it_ended(self) -> str:
        """The words for its unexpected end, for messages."""
        return f"{self.name} ended unexpectedly, with status {self.process.returncode}"

    @property
    def tail(self) -> str:
        """The end of its log, for messages."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return f". The end of {self.log}:\n  " + "\n  ".join(lines)

    def start_again_if_ended(self) -> None:
        """Start it again `PAUSE_SECONDS` after it ended, and print both."""
        if not self.has_ended:
            return
        if self.start_again_at is None:
            self.start_again_at = time.monotonic() + PAUSE_SECONDS
            if not self.keeps_children:
                _send(self.family(), signal.SIGKILL)
            _say(
                f"{self.how_it_ended}; it is started again in {PAUSE_SECONDS:g} s. Its log: "
                f"{self.log}"
            )
        elif time.monotonic() >= self.start_again_at:
            self.start()
            _say(f"{self.name} was started again, with pid {self.process.pid}")

    def stop(self) -> None:
        """Ask it and everything that it started to end; kill what does not."""
        family = self.family()
        _send({self.process}, signal.SIGINT)
        _send(family - {self.process}, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=min(_ALONE_SECONDS, stop_seconds()))
        if set(alive) - {self.process}:  # a training saves
            _, alive = psutil.wait_procs(alive, timeout=stop_seconds())
        _send(alive, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=_KILL_SECONDS)

    def family(self) -> set[psutil.Process]:
        """Return its process and everything that it has started, as far as they run."""
        own = set()
        if not self.has_ended:  # Postgres hides the environment of its processes
            own = {self.process, *self.process.children(recursive=True)}
        return own | set(marked(_MARK, self.environment[_MARK]))


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _clock() -> float:
    """Return the time of the clock that is set, as seen by one that is not."""
    return time.time() - time.monotonic()


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


Port = Annotated[int, Field(ge=1, le=65_535)]


class ServerSettings(BaseModel):
    """The settings of `albert serve`, which `albert production` has as well."""

    work: Path = Field(default=Path("work"), validate_default=True)
    """Folder for all results, logs and data, on this machine."""
    prefect_port: Port = 4200
    mlflow_port: Port = 5000
    recipe: str | None = None
    """Default of the deployments' parameter, as are `source` and `task_folder`."""
    source: str | None = None
    task_folder: str | None = None

    @classmethod
    def from_environment(cls) -> Self:
        """Return the settings in the variables that `albert`'s options have as well.

        Raises:
            ConfigError: one of them is impossible, or a URI with credentials.
        """
        variables = {name: f"ALBERT_{name.upper()}" for name in cls.model_fields}
        variables["workers"] = "ALBERT_SERVED_WORKERS"  # ALBERT_WORKERS are those of a stage
        given = {name: os.environ.get(variable) for name, variable in variables.items()}
        refuse_credentials(given, "the environment")
        try:
            return cls.model_validate({name: value for name, value in given.items() if value})
        except ValidationError as error:
            raise errors.ConfigError(f"the environment: {describe(error, cls)}") from None

    @model_validator(mode="after")
    def _has_a_port_for_each(self) -> Self:
        ports = {name: port for name, port in self if name.endswith("_port")}
        if len(set(ports.values())) < len(ports):
            raise errors.ConfigError(f"two services can't listen at one port: {ports}")
        return self

    @field_validator("work", "postgres_folder", mode="before", check_fields=False)
    @classmethod
    def _is_here(cls, text: str | Path) -> Path:
        path = storage.local_path(str(text))
        if path is None:
            raise errors.ConfigError(
                f"{text} is not on this machine, where the databases and logs of the services have "
                "to be. Give a local folder here, and workers with ALBERT_WORK at that place"
            )
        return path.absolute()

    @field_validator("recipe", "source", "task_folder")
    @classmethod
    def _is_absolute_or_a_name(cls, given: str | None, info: ValidationInfo) -> str | None:
        is_name = info.field_name == "recipe" and not {"/", "."} & set(given or "")
        return given if is_name or not given else storage.absolute(given)


class Services:
    """An MLflow server, a Prefect server and workers, with their data in a folder.

    Args:
        settings: what is served.
        host: address that Prefect and MLflow listen on.
    """

    has_own_database = False
    """Whether MLflow's database is the file in the work folder that flows by hand use."""

    def __init__(self, settings: ServerSettings, host: str = LOOPBACK) -> None:
        self.work, self.host = settings.work, host
        self._defaults = settings.model_dump(
            include={"recipe", "source", "task_folder"}, exclude_none=True
        )
        self.ports = {PREFECT: settings.prefect_port, MLFLOW: settings.mlflow_port}
        reached_at = LOOPBACK if host == "0.0.0.0" else host  # noqa: S104 - compared
        self.prefect_url = f"http://{reached_at}:{settings.prefect_port}"
        self.mlflow_url = f"http://{reached_at}:{settings.mlflow_port}"
        self.environment = {
            "ALBERT_WORK": str(self.work),
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            "PREFECT_SERVER_API_HOST": self.host,
            "PREFECT_SERVER_API_PORT": str(settings.prefect_port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "5",
            "DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        """Variables of all services, besides this process's."""
        self.logs = self.work / "logs"
        self.by_name: dict[str, Service] = {}
        """The services in the order in which they were started."""
        self._clock = _clock()

    def start_all(self) -> str:
        """Start all, in order; when all answer, return what to tell the user.

        Raises:
            ServeError: a port is taken, or a service cannot be started.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Raise ServeError if a service has ended."""
        for service in self.by_name.values():
            if service.has_ended:
                raise ServeError(f"{service.how_it_ended}{service.tail}")

    def start_ended_again(self) -> None:
        """Start again what has ended."""
        for service in self.by_name.values():
            service.start_again_if_ended()

    def follow_clock(self) -> None:
        """Start the Prefect server again if the clock was put back: it waits for the old time.

        Otherwise it would schedule and restart no run until then.
        """
        before, self._clock = self._clock, _clock()
        if before - self._clock > _PUT_BACK_SECONDS:
            _say("the clock was put back; Prefect is started again")
            self.by_name[PREFECT].stop()
            self.by_name[PREFECT].start()

    watch = check
    """Called repeatedly while the services run; an error that it raises stops all."""

    def start(
        self,
        name: str,
        *command: str,
        environment: Mapping[str, str] | None = None,
        is_up: Callable[[], bool] = lambda: True,
        keeps_children: bool = False,
    ) -> Service:
        """Start a service.

        Args:
            name: of the service.
            command: its program and arguments.
            environment: variables that it alone has, such as passwords.
            is_up: whether it answers; by default it is up while its process runs.
            keeps_children: see `Service`.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name.replace(' ', '-')}.log"
        log.unlink(missing_ok=True)
        mark = {_MARK: uuid.uuid4().hex}
        variables = {**os.environ, **self.environment, **(environment or {}), **mark}
        service = Service(name, command, variables, log, is_up, keeps_children)
        service.start()
        self.by_name[name] = service
        return service

    def finish(self, name: str, *command: str) -> None:
        """Run a command to its end.

        Raises:
            ServeError: it failed.
        """
        service = self.start(name, *command)
        status = service.process.wait()
        del self.by_name[name]
        if status != 0:
            raise ServeError(f"`{' '.join(command)}` ended with status {status}{service.tail}")

    def wait_until_up(self, name: str) -> None:
        """Return as soon as the service answers.

        Raises:
            ServeError: it takes too long, or some service has ended.
        """
        service = self.by_name[name]
        patience = prefect_server.Patience(name, service.process.pid)
        while not service.is_up:
            self.check()
            if patience.is_over():
                raise ServeError(f"{patience}{service.tail}")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all, the last started first."""
        if PREFECT in self.by_name:
            (self.work / SERVED).unlink(missing_ok=True)
        while self.by_name:
            name, service = self.by_name.popitem()
            service.stop()
            with suppress(OSError):  # the terminal was closed
                print(f"  {name} has stopped", flush=True)
        lock.release(str(self.work), _LOCK)

    def prepare(self) -> None:
        """Create the work folder, and lock it until `stop`.

        Raises:
            ServeError: a port is taken, or another process serves the work folder.
            ConfigError: there is no such recipe, source or task folder, or no stage would take the
                source or the work folder.
        """
        from flows.flow_run import check_apart

        storage.work_folder(str(self.work))
        recipe, source = self._defaults.get("recipe"), self._defaults.get("source")
        if source or recipe:
            load_recipe(recipe or "tiny", (), source)
        if source:
            check_apart(source, str(self.work))
        for name in ("source", "task_folder"):
            given = self._defaults.get(name)
            if given and not has_magic(given) and storage.is_there(given) is False:
                raise errors.ConfigError(
                    f"there is nothing at {given}, the {name} of all runs without one of their own"
                )
        self.work.mkdir(parents=True, exist_ok=True)
        if not lock.take_at_once(str(self.work), _LOCK):
            url = prefect_server.served_at(str(self.work))
            raise ServeError(
                f"{self.work} is served already{url and f': {url} is its Prefect server'}. Use "
                "that, stop its `albert serve`, or give another --work"
            )
        refuse_taken(self.host, self.ports)
        print(f"starting the services, with their data in {self.work}", flush=True)

    def mlflow_hosts(self) -> str:
        """Return the names that MLflow answers to: those given, and this machine's own.

        MLflow's default has patterns such as ``10.*``, which other sites can be called.
        """
        interfaces = psutil.net_if_addrs().values()
        here = [a.address for each in interfaces for a in each if a.family == socket.AF_INET]
        names = dict.fromkeys([LOOPBACK, "localhost", "[::1]", self.host, *here])
        own = ",".join(f"{name}:{self.ports[MLFLOW]}" for name in names)
        return f"{os.environ.get(ALLOWED_HOSTS, '')},{own}".lstrip(",")

    def start_mlflow(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """Start the MLflow server."""
        self.start(
            *(MLFLOW, sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", self.host, "--port", str(self.ports[MLFLOW]), *options),
            environment={ALLOWED_HOSTS: self.mlflow_hosts(), **(environment or {})},
            is_up=lambda: answers(f"{self.mlflow_url}/health"),
        )

    def start_prefect(self, database: str, workers: Sequence[str]) -> None:
        """Start the Prefect server, deploy the flows, and start the workers; wait for MLflow too.

        Args:
            database: URL of SQLAlchemy, in the server's environment only: it may hold a password.
            workers: their names.

        Raises:
            ServeError: a service or a deployment failed.
        """
        secret = os.environ.get(_SERVER_AUTH)
        if not secret:
            secret = prefect_server.kept_secret(self.auth_file, prefect_server.USER)
        auth = prefect_server.guarded(secret, self.prefect_url)
        self.environment = {**self.environment, _AUTH: secret}
        command = prefect_server.server_command(self.host, self.ports[PREFECT], "warning")
        with prefect_server.starts_alone(self.work):
            self.start(
                *(PREFECT, *command),
                environment={"PREFECT_SERVER_DATABASE_CONNECTION_URL": database, **auth},
                is_up=lambda: answers(f"{self.prefect_url}/api/health"),
            )
            self.wait_until_up(PREFECT)
        print("deploying the flows", flush=True)
        defaults = [f"--{name.replace('_', '-')}={at}" for name, at in self._defaults.items()]
        self.finish("deploy", sys.executable, "-m", "infra.deployments", "--rules", *defaults)
        for name in workers:
            self.start(
                *(name, sys.executable, "-m", "prefect", "--no-prompt", "worker", "start"),
                *("--pool", _POOL, "--type", "process", "--name", name.replace(" ", "-")),
                keeps_children=True,
            )
        self.wait_until_up(MLFLOW)
        here = Served(f"{self.prefect_url}/api", self.mlflow_url, self.has_own_database)
        note_served(self.work, here)

    @property
    def auth_file(self) -> Path:
        """File with the name and password that Prefect asks for."""
        return self.work / prefect_server.AUTH_FILE

    def greeting(self, facts: Mapping[str, object], commands: Sequence[str]) -> str:
        """Return what to tell the user once all is up.

        Args:
            facts: besides the addresses.
            commands: for another terminal.
        """
        told = {
            PREFECT: self.prefect_url,
            "password": f"{self.auth_file}; Prefect's page asks for its content once",
            MLFLOW: self.mlflow_url,
            **facts,
            "logs": self.logs,
        }
        # The second variable is for names without a slash, see flows/deployment_names.py.
        here = f"export PREFECT_API_URL={self.prefect_url}/api PREFECT_PLUGINS_ENABLED=true"
        secret = f'export {_AUTH}="$(cat {shlex.quote(str(self.auth_file))})"'
        commands = [here, secret, "prefect deployment run pretrain-albert", *commands]
        return "\n".join(
            [
                *("", *(f"{name:<11}{fact}" for name, fact in told.items())),
                *("", "In another terminal, with the environment active:", ""),
                *(*(f"  {command}" for command in commands), "", "Ctrl-C stops everything."),
            ]
        )


def refuse_taken(host: str, ports: Mapping[str, int]) -> None:
    """Raise ServeError if something listens already where a service is to listen."""
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ServeError(
                    f"{name} cannot listen at {host}:{port}: {error.strerror}. Stop what listens "
                    f"there (another `albert serve`?), or give --{name.lower()}-port=..."
                ) from error


class Database:
    """A file of SQLite that a service has open."""

    def __init__(self, file: Path, service: Service) -> None:
        self.file, self.service = file, service
        self._opened, self._log_size = file.stat(), 0

    def check(self) -> None:
        """Raise an error if the file is damaged, or no longer the one that was opened.

        The service would go on, and answer as in an outage: a flow would wait for ever. It prints
        each error of its database, so that is read only when the log has grown.

        Raises:
            ServeError: the file was deleted or replaced.
            AlbertError: it is damaged.
        """
        if not self.file.exists() or not os.path.samestat(self.file.stat(), self._opened):
            raise ServeError(
                f"{self.file} was deleted or replaced while {self.service.name} used it. Put back "
                "what is to be in that place, then run the same command again"
            )
        before, self._log_size = self._log_size, self.service.log.stat().st_size
        if self._log_size != before:
            prefect_server.check_database(self.file)


class ServicesHere(Services):
    """The services of `albert serve`, with databases in SQLite."""

    has_own_database = True
    _databases: Sequence[Database] = ()
    _looked_at = -inf

    def start_all(self) -> str:
        """Start all, in order; when all answer, return what to tell the user."""
        from albert_core.tracking.server import create_database

        self.prepare()
        files = {MLFLOW: self.work / "mlflow.db", PREFECT: self.work / prefect_server.DATABASE}
        create_database(files[MLFLOW])
        for file in files.values():
            prefect_server.check_database(file)
        self.start_mlflow(
            *("--backend-store-uri", f"sqlite:///{files[MLFLOW]}"),
            *("--no-serve-artifacts", "--default-artifact-root", str(self.work / "mlartifacts")),
        )
        self.start_prefect(f"sqlite+aiosqlite:///{files[PREFECT]}", ["worker"])
        self._databases = [Database(file, self.by_name[name]) for name, file in files.items()]
        schedules = "prefect deployment schedule ls refresh-corpus/refresh-corpus"
        return self.greeting({}, ["prefect deployment ls", schedules])

    def watch(self) -> None:
        """Raise an error if a service has ended, or lost its database."""
        self.check()
        if time.monotonic() - self._looked_at >= _DATABASE_SECONDS:
            for database in self._databases:
                database.check()
            self._looked_at = time.monotonic()


def run_until_stopped(make: Callable[[], Services]) -> int:
    """Start services and watch them until a signal comes; then stop all. Return the exit status.

    Args:
        make: gives the services, not yet started.
    """
    # A signal with a handler here is not ignored in the children: a worker that ignores SIGINT,
    # as in a background job of a shell, could not be stopped.
    for number in _STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
            signal.signal(number, signal.default_int_handler)
    services = None
    status = 0
    try:
        services = make()
        print(services.start_all(), flush=True)
        while True:
            services.follow_clock()
            services.watch()
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal was closed
            print("\nstopping", flush=True)
    except (errors.AlbertError, OSError) as error:
        print(f"{FAILURE}{error}", file=sys.stderr, flush=True)
        status = FAILURE_STATUS
    finally:
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        if services is not None:
            services.stop()
    return status


def main() -> int:
    """Serve what the environment says until Ctrl-C, SIGTERM or SIGHUP; return the exit status."""
    return run_until_stopped(lambda: ServicesHere(ServerSettings.from_environment()))


if __name__ == "__main__":
    sys.exit(main())
