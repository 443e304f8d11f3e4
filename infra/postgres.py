"""A Postgres cluster of our own, with the binaries of this machine."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile

from flows.prefect_server import kept_secret
from infra.services import LOOPBACK, ServeError

USER = "albert"
"""The role that owns the databases."""
_SYSTEM_USER = "postgres"
_DEBIAN = Path("/usr/lib/postgresql")


class Postgres:
    """A cluster that listens on the loopback address and asks for a password.

    Postgres refuses to run as root: for root it runs as the user ``postgres``, who then owns the
    folder.

    Args:
        folder: for the cluster's files, on this machine.
        port: that it listens on.
        password_file: written once, readable by its owner only.
    """

    def __init__(self, folder: Path, port: int, password_file: Path) -> None:
        self.folder, self.port, self.password_file = folder, port, password_file
        self._at = ("-h", LOOPBACK, "-p", str(port))

    @cached_property
    def _binaries(self) -> Path:
        return find_binaries()

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
                *("initdb", "--pgdata", str(unfinished), "--username", USER),
                *("--auth", "scram-sha-256", "--pwfile", readable.name),
                *("--encoding", "UTF8", "--locale", "C.UTF-8"),
            )
        unfinished.rename(self.folder)

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
        if not self._client("psql", "-d", "postgres", "-tAc", exists).strip():
            self._client("createdb", name)

    def url(self, database: str, driver: str) -> str:
        """Return SQLAlchemy's URL of a database. It has the password: keep it off command lines."""
        return f"{driver}://{USER}:{self._password()}@{LOOPBACK}:{self.port}/{database}"

    def _client(self, program: str, *arguments: str) -> str:
        return self._run(program, *self._at, "-U", USER, *arguments, password=self._password())

    def _run(self, program: str, *arguments: str, password: str = "") -> str:
        done = subprocess.run(
            _unprivileged([str(self._binaries / program), *arguments]),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={**os.environ, "PGPASSWORD": password},
        )
        if done.returncode != 0:
            raise ServeError(f"Postgres in {self.folder}: {program} failed: {done.stderr.strip()}")
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
            raise ServeError(
                f"Postgres does not run as root, and there is no user {_SYSTEM_USER!r}: "
                "install Debian's package `postgresql`, or do not be root"
            ) from error
        for path in (folder, file):
            os.chown(path, user.pw_uid, user.pw_gid)
        reach = _unprivileged(["test", "-w", str(folder)])
        if subprocess.run(reach, check=False, cwd="/").returncode != 0:
            raise ServeError(
                f"the user {_SYSTEM_USER!r}, as whom Postgres runs, cannot enter {folder}: "
                "a folder above it is closed to others. Open that (`chmod o+x`), or give "
                "another with --postgres-folder"
            )

    def _password(self) -> str:
        try:
            return self.password_file.read_text()
        except FileNotFoundError as error:
            raise ServeError(
                f"{self.password_file}, the password of the databases in {self.folder}, is "
                "missing. Put it back, or give another --postgres-folder for new databases"
            ) from error


def _unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command line that runs the command as the user ``postgres``, if we are root."""
    if os.geteuid() != 0:
        return list(command)
    user = [f"--reuid={_SYSTEM_USER}", f"--regid={_SYSTEM_USER}", "--init-groups"]
    return ["setpriv", *user, *command]


def find_binaries() -> Path:
    """Return the folder with Postgres' programs: Debian's newest, otherwise that on the PATH.

    Raises:
        ServeError: there are none.
    """
    versions = [folder for folder in _DEBIAN.glob("*/bin") if (folder / "initdb").exists()]
    if versions:
        return max(versions, key=lambda folder: float(folder.parent.name))
    on_path = shutil.which("initdb")
    if on_path is None:
        raise ServeError(
            f"Postgres is not on this machine: neither in {_DEBIAN} nor on the PATH. "
            "Install it (Debian: `apt-get install postgresql`)"
        )
    return Path(on_path).resolve().parent
