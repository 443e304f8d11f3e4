"""A Postgres of our own: made, served, killed and back."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import postgres
from infra.postgres import Postgres, find_binaries
from infra.services import ServeError, Services
from tests.infra.free_ports import free_ports


def needs_postgres() -> None:
    try:
        find_binaries()
    except ServeError as error:
        pytest.skip(str(error))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user `postgres` may pass through, unlike pytest's."""
    needs_postgres()
    folder = Path(tempfile.mkdtemp(prefix="albert-postgres-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def query(
    cluster: Postgres, sql: str, password: str | None = None
) -> "subprocess.CompletedProcess[str]":
    known = cluster.password_file.read_text() if password is None else password
    psql = [
        str(find_binaries() / "psql"),
        "-h",
        "127.0.0.1",
        "-p",
        str(cluster.port),
        "-U",
        "albert",
    ]
    return subprocess.run(
        [*psql, "-U", "albert", "-d", "mlflow", "-tAc", sql],
        capture_output=True,
        text=True,
        env={**os.environ, "PGPASSWORD": known},
    )


def test_a_killed_postgres_comes_back_with_its_data(folder: Path) -> None:
    [port] = free_ports(1)
    cluster = Postgres(folder / "postgres", port, folder / "secrets" / "password")
    services = Services(folder / "logs", {})
    try:
        cluster.prepare()
        services.start("Postgres", *cluster.command())
        services.wait_until("Postgres", cluster.is_up, str(port))
        for _ in range(2):
            cluster.create_database("mlflow")
        assert query(cluster, "create table kept as select 7 as number").returncode == 0
        refused = query(cluster, "select 1", password="guessed")
        assert "password authentication failed" in refused.stderr

        os.kill(services.pid("Postgres"), signal.SIGKILL)
        deadline = time.monotonic() + 120
        while query(cluster, "select number from kept").stdout != "7\n":
            assert time.monotonic() < deadline, services.log_of("Postgres").read_text()
            services.start_ended_again()
            time.sleep(0.2)
        before = cluster.password_file.read_text()
        cluster.prepare()
        assert cluster.password_file.read_text() == before
        assert cluster.password_file.stat().st_mode & 0o077 == 0

        other = Postgres(folder / "other", port, cluster.password_file)
        other.prepare()
        assert query(cluster, "select number from kept").stdout == "7\n"
        assert cluster.password_file.read_text() == before
        cluster.password_file.unlink()
        with pytest.raises(ServeError, match=r"password, the password of .* is missing\. Put it"):
            cluster.url("mlflow", "postgresql")
    finally:
        services.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the folder over")
def test_a_folder_out_of_reach_of_the_user_postgres_is_named(tmp_path: Path) -> None:
    needs_postgres()
    tmp_path.chmod(0o700)
    cluster = Postgres(tmp_path / "postgres", 1, tmp_path / "password")
    with pytest.raises(ServeError, match=r"cannot enter .*postgres.*chmod o\+x.*--postgres-folder"):
        cluster.prepare()


def test_a_machine_without_postgres_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServeError, match="apt-get install postgresql"):
        find_binaries()
