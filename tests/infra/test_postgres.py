"""A Postgres of our own: created, served, killed and back."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import production
from infra.production import Postgres, find_binaries
from infra.serve import LOOPBACK, ServeError, ServerSettings, Services
from tests.infra.stack import open_folder
from tests.mlflow_server import free_port


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


def query(cluster: Postgres, sql: str, password: str) -> "subprocess.CompletedProcess[str]":
    psql = [str(find_binaries() / "psql"), "-h", LOOPBACK, "-p", str(cluster.port)]
    return subprocess.run(
        [*psql, "-U", "albert", "-d", "mlflow", "-tAc", sql],
        capture_output=True,
        text=True,
        env={**os.environ, "PGPASSWORD": password},
    )


def test_a_killed_postgres_comes_back_with_its_data(folder: Path) -> None:
    cluster = Postgres(folder / "postgres", free_port(), folder / "secrets" / "password")
    services = Services(ServerSettings(work=folder))
    try:
        cluster.prepare()
        service = services.start("Postgres", *cluster.command(), is_up=cluster.is_up)
        services.wait_until_up("Postgres")
        for _ in range(2):
            cluster.create_database("mlflow")
        password = cluster.password_file.read_text()
        assert cluster.password_file.stat().st_mode & 0o077 == 0
        assert query(cluster, "create table kept as select 7 as number", password).returncode == 0
        refused = query(cluster, "select 1", "guessed")
        assert "password authentication failed" in refused.stderr

        service.process.kill()
        deadline = time.monotonic() + 120
        while query(cluster, "select number from kept", password).stdout != "7\n":
            assert time.monotonic() < deadline, service.log.read_text()
            services.start_ended_again()
            time.sleep(0.2)

        for name in ("postgres", "other"):
            Postgres(folder / name, cluster.port, cluster.password_file).prepare()
            assert cluster.password_file.read_text() == password
        assert query(cluster, "select number from kept", password).stdout == "7\n"
        cluster.password_file.write_text("another")
        with pytest.raises(ServeError, match=r"password does not have the password .* Put that"):
            cluster.create_database("mlflow")
        cluster.password_file.unlink()
        with pytest.raises(ServeError, match=r"password, the password of .* is missing\. Put it"):
            cluster.url("mlflow", "postgresql")
        service.stop()
        assert not cluster.is_up()
    finally:
        services.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the folder over")
def test_a_folder_that_the_user_postgres_cannot_reach_is_named(
    folder: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    cluster = Postgres(tmp_path / "postgres", 1, tmp_path / "password")
    with pytest.raises(ServeError, match=r"cannot enter .*postgres.*chmod o\+x.*--postgres-folder"):
        cluster.prepare()


def test_a_machine_without_postgres_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServeError, match="apt-get install postgresql"):
        find_binaries()


def test_a_cluster_is_served_by_the_version_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = tmp_path / "debian"
    for version in ("9.6", "15", "17"):
        (debian / version / "bin").mkdir(parents=True)
        (debian / version / "bin" / "initdb").touch()
    monkeypatch.setattr(production, "_DEBIAN", debian)
    on_path = tmp_path / "bin" / "initdb"
    on_path.parent.mkdir()
    on_path.write_text("#!/bin/sh\necho 'initdb (PostgreSQL) 14.2 (Debian 14.2-1)'\n")
    on_path.chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    folder = tmp_path / "postgres"
    folder.mkdir()
    for version, binaries in {"15": debian / "15/bin", "14": on_path.parent}.items():
        (folder / "PG_VERSION").write_text(f"{version}\n")
        assert find_binaries(folder) == binaries
    (folder / "PG_VERSION").write_text("16\n")
    with pytest.raises(ServeError, match=r"Postgres 16, .* install postgresql-16.* dump them"):
        Postgres(folder, 1, tmp_path / "password")
    (folder / "PG_VERSION").unlink()
    assert find_binaries(folder) == debian / "17/bin"
