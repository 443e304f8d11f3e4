"""Services that end are started again, and nothing outlives them."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest

from albert_core.stage.errors import AlbertError, ConfigError
from flows import prefect_server
from flows.prefect_server import ALLOWED_HOSTS
from infra import serve
from infra.production import ProductionSettings
from infra.serve import LOOPBACK, ServeError, ServerSettings, Service, Services
from tests.conftest import wait_until

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True);"
    "print('up', flush=True); time.sleep(600)"
)
DEAF = "import signal; signal.signal(2, signal.SIG_IGN)"
SERVED = """
import signal
import sys
from infra.serve import ServerSettings, Services, run_until_stopped
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup

OBEDIENT = "trap 'touch $0.stopped; exit' INT; touch $0.up; while :; do sleep 0.1; done"

class Two(Services):
    def start_all(self):
        for number in range(2):
            self.start(str(number), "sh", "-c", OBEDIENT, str(self.work / str(number)))
        return "all is up"

sys.exit(run_until_stopped(lambda: Two(ServerSettings(work=sys.argv[1]))))
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[serve.ServicesHere]:
    """Services that obey SIGINT, also where a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    services = serve.ServicesHere(ServerSettings(work=tmp_path))
    yield services
    services.stop()
    signal.signal(signal.SIGINT, before)


def start(services: Services, code: str, *, keeps_children: bool = False) -> Service:
    service = services.start(
        *("sleeper", sys.executable, "-c", code),
        is_up=lambda: "up" in (services.logs / "sleeper.log").read_text(),
        keeps_children=keeps_children,
    )
    services.wait_until_up("sleeper")
    return service


def kill(service: Service) -> None:
    os.kill(service.process.pid, signal.SIGKILL)
    wait_until(lambda: service.has_ended)


def runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_what_was_killed_is_started_again_and_that_is_printed(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    service = start(services, SLEEPER)
    killed = service.process.pid
    kill(service)
    assert not service.is_up

    def is_back() -> bool:
        services.start_ended_again()
        return service.log.read_text().count("up") == 2

    wait_until(is_back)
    told = capsys.readouterr().out
    assert "sleeper ended unexpectedly, with status -9; it is started again in 2 s" in told
    assert f"sleeper was started again, with pid {service.process.pid}" in told
    assert service.process.pid != killed


def test_a_work_folder_that_no_stage_would_take_is_not_served(tmp_path: Path) -> None:
    work = tmp_path / "per%41cent"
    with pytest.raises(ConfigError, match="MLflow reads as 'A'"):
        serve.ServicesHere(ServerSettings(work=work)).prepare()
    assert not work.exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"source": "{}/none"}, "there is nothing at .*/none, the source of all runs"),
        ({"task_folder": "{}/none"}, "there is nothing at .*/none, the task_folder of all runs"),
        ({"source": "{}"}, "work folder .* is inside of the source"),
    ],
)
def test_defaults_with_which_every_run_would_fail_are_refused(
    given: dict[str, str], told: str, tmp_path: Path
) -> None:
    defaults = {name: uri.format(tmp_path) for name, uri in given.items()}
    with pytest.raises(ConfigError, match=told):
        serve.ServicesHere(ServerSettings(work=tmp_path / "work", **defaults)).prepare()


def test_prefect_is_started_again_when_the_clock_was_put_back(
    services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "PREFECT", "sleeper")
    service, now = start(services, SLEEPER), serve._clock()
    pids = []
    for moved in (0.0, 3600.0, 3599.0, -3600.0, -3600.0):
        monkeypatch.setattr(serve, "_clock", partial(float.__add__, now, moved))
        services.follow_clock()
        pids.append(service.process.pid)
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4]
    assert capsys.readouterr().out.count("the clock was put back") == 1


@pytest.mark.parametrize("keeps_children", [True, False])
def test_what_a_killed_service_had_started_continues_only_if_it_may_and_never_after_a_stop(
    services: Services, keeps_children: bool
) -> None:
    service = start(services, PARENT, keeps_children=keeps_children)
    [child] = service.process.children(recursive=True)
    kill(service)
    services.start_ended_again()
    if keeps_children:
        assert runs(child)
        services.stop()
        assert not runs(child)
    else:
        wait_until(lambda: not runs(child))


def test_a_variable_finds_the_processes_that_have_it_and_no_other() -> None:
    bearer = subprocess.Popen(["sleep", "600"], env={**os.environ, "OF_THIS_TEST": "marked"})
    try:
        wait_until(lambda: bool(serve.marked("OF_THIS_TEST", "marked")))
        assert [process.pid for process in serve.marked("OF_THIS_TEST", "marked")] == [bearer.pid]
        assert serve.marked("OF_THIS_TEST", "mark") == []
    finally:
        bearer.kill()
        bearer.wait()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("sh", "-c", "echo gone; exit 1"), r"(?s)ended unexpectedly, with status 1.*gone"),
        (("sleep", "600"), r"MLflow did not answer in [1-9] s, .* compute for 0 s.*MLflow\.log"),
    ],
)
def test_a_service_that_does_not_come_up_is_named_with_its_log(
    command: tuple[str, ...], message: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_server, "_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(prefect_server, "_LOOKS_APART_SECONDS", 0.5)
    services.start("MLflow", *command, is_up=lambda: False)
    with pytest.raises(ServeError, match=message):
        services.wait_until_up("MLflow")


def test_a_command_that_fails_is_named_and_one_that_succeeds_is_over(services: Services) -> None:
    services.finish("work pool", "true")
    assert services.by_name == {}
    named = r"(?s)`sh -c echo refused; exit 3` ended with status 3.*work-pool\.log:\n  refused"
    with pytest.raises(ServeError, match=named):
        services.finish("work pool", "sh", "-c", "echo refused; exit 3")


def test_what_ignores_the_signals_is_killed_with_what_it_started(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_STOP_SECONDS", "1")
    service = start(services, f"{DEAF}; {PARENT}")
    family = [service.process, *service.process.children(recursive=True)]
    assert len(family) == 2
    services.stop()
    assert not any(map(runs, family))


def test_a_service_that_hangs_alone_is_not_waited_for_as_a_training_is(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_ALONE_SECONDS", 0.5)
    monkeypatch.setenv("ALBERT_STOP_SECONDS", "600")
    service = start(services, f"{DEAF}; {SLEEPER}")
    services.stop()
    assert not runs(service.process)


def test_what_saves_when_it_is_stopped_has_time_for_it(services: Services, tmp_path: Path) -> None:
    saving = "trap 'sleep 1; touch saved; exit' TERM; touch ready; while :; do sleep 0.1; done"
    child = (
        f"subprocess.Popen(['sh', '-c', {saving!r}], start_new_session=True, cwd={str(tmp_path)!r})"
    )
    service = start(services, f"import subprocess; {child}; {SLEEPER}")
    wait_until((tmp_path / "ready").exists)
    service.stop()
    assert (tmp_path / "saved").exists()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process in a terminal that serves two services, and the terminal's other end."""
    outer, inner = os.openpty()
    argv = [sys.executable, "-c", SERVED, str(tmp_path)]
    served = subprocess.Popen(argv, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    wait_until(lambda: len(list(tmp_path.glob("*.up"))) == 2)
    yield served, outer
    served.kill()
    served.wait()


def test_a_terminal_that_is_closed_stops_all_services_as_ctrl_c_does(
    terminal: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    served, outer = terminal
    os.close(outer)
    served.send_signal(signal.SIGHUP)
    served.wait(60)
    assert sorted(path.name for path in tmp_path.glob("*.stopped")) == ["0.stopped", "1.stopped"]


def test_services_end_when_what_serves_them_is_killed(
    terminal: tuple[subprocess.Popen[bytes], int],
) -> None:
    served, outer = terminal
    services = psutil.Process(served.pid).children()
    assert len(services) == 2
    served.kill()
    wait_until(lambda: not any(map(runs, services)))
    os.close(outer)


@pytest.mark.parametrize("error", [OSError("disk full"), ServeError("gone")])
def test_whatever_ends_the_watch_stops_the_services(
    tmp_path: Path, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Services):
        def start_all(self) -> str:
            started.append(start(self, SLEEPER).process)
            return "all is up"

        def watch(self) -> None:
            raise error

    started: list[psutil.Process] = []
    before = [signal.getsignal(number) for number in serve._STOPPING]
    try:
        assert serve.run_until_stopped(lambda: Failing(ServerSettings(work=tmp_path))) == 2
    finally:
        for number, handler in zip(serve._STOPPING, before, strict=True):
            signal.signal(number, handler)
    captured = capsys.readouterr()
    assert "all is up" in captured.out
    assert f"error: {error}" in captured.err
    assert not runs(started[0])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("garbage", r"db: a database is damaged .*Restore a backup"),
        ("deleted", r"db was deleted or replaced while sleeper used it\. Put back"),
        ("replaced", r"db was deleted or replaced while sleeper used it\. Put back"),
    ],
)
def test_what_is_served_ends_when_a_service_loses_its_database(
    fault: str,
    message: str,
    services: serve.ServicesHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "_DATABASE_SECONDS", 0.0)
    file = tmp_path / "db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE run (name TEXT)")
    service = start(services, SLEEPER)
    services._databases = [serve.Database(file, service)]
    services.watch()
    if fault == "garbage":
        file.write_bytes(file.read_bytes()[::-1])
        services.watch()  # nobody has met it yet
        with service.log.open("a") as log:
            log.write("sqlite3.DatabaseError\n")
    elif fault == "deleted":
        file.unlink()
    else:
        Path(shutil.copy(file, tmp_path / "backup")).replace(file)
    with pytest.raises(AlbertError, match=message):
        services.watch()


def test_servers_that_listen_everywhere_are_reached_at_the_loopback_address(tmp_path: Path) -> None:
    settings = ServerSettings(work=tmp_path, prefect_port=1234, mlflow_port=5678)
    environment = Services(settings, "0.0.0.0").environment
    assert environment["PREFECT_API_URL"] == f"http://{LOOPBACK}:1234/api"
    assert environment["MLFLOW_TRACKING_URI"] == f"http://{LOOPBACK}:5678"


@pytest.mark.parametrize("given", ["", "mlflow.example.org, *.lan"])
def test_mlflow_answers_to_this_machines_names_and_those_given_but_to_no_site_like_an_address(
    tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.server import security_utils  # a second, of every worker that collects

    monkeypatch.setenv(ALLOWED_HOSTS, given)
    services = Services(ServerSettings(work=tmp_path, mlflow_port=5678), "10.1.2.3")
    monkeypatch.setenv(ALLOWED_HOSTS, services.mlflow_hosts())
    allowed = security_utils.get_allowed_hosts_from_env() or []
    own = ["127.0.0.1:5678", "localhost:5678", "[::1]:5678", "10.1.2.3:5678"]
    others = ["10.evil.example:5678", "192.168.evil.example:5678", "evil.example:5678", ""]
    names = {"mlflow.example.org", "gpu.lan"}
    for host in (*own, *others, *names):
        is_meant = host in own or (bool(given) and host in names)
        assert security_utils.is_allowed_host_header(allowed, host) == is_meant


def test_settings_are_variables_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_WORK", "there")
    monkeypatch.setenv("ALBERT_SERVED_WORKERS", "3")
    monkeypatch.setenv("ALBERT_WORKERS", "5")
    monkeypatch.setenv("ALBERT_RECIPE", "tiny")
    monkeypatch.setenv("ALBERT_SOURCE", "texts")
    found = ProductionSettings.from_environment()
    assert (found.work, found.workers, found.recipe) == (Path.cwd() / "there", 3, "tiny")
    assert found.source == f"{Path.cwd()}/texts"
    monkeypatch.setenv("ALBERT_RECIPE", "./own.toml")
    assert ServerSettings.from_environment().recipe == f"{Path.cwd()}/own.toml"
    monkeypatch.setenv("ALBERT_S3_PORT", "many")
    with pytest.raises(ConfigError, match=r"s3_port: .*integer, got 'many'"):
        ProductionSettings.from_environment()
    monkeypatch.setenv("ALBERT_ARTIFACTS", "s3://key:planted4711@bucket/mlflow")
    with pytest.raises(ConfigError, match=r"artifacts: s3://\*\*\*@bucket/mlflow contains cred"):
        ProductionSettings.from_environment()
    monkeypatch.delenv("ALBERT_ARTIFACTS")
    monkeypatch.setenv("ALBERT_S3_PORT", "65536")
    with pytest.raises(ConfigError, match=r"s3_port: .*equal to 65535, got '65536'"):
        ProductionSettings.from_environment()
    monkeypatch.setenv("ALBERT_S3_PORT", "4200")
    with pytest.raises(ConfigError, match=r"can't listen at one port: .*'s3_port': 4200"):
        ProductionSettings.from_environment()
    monkeypatch.setenv("ALBERT_WORK", "s3://bucket/work")
    with pytest.raises(ConfigError, match="is not on this machine"):
        ProductionSettings.from_environment()


@pytest.mark.parametrize("kind", [ServerSettings, ProductionSettings])
def test_the_work_folder_is_where_the_command_is_typed_also_without_a_word(
    kind: type[ServerSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALBERT_WORK", raising=False)
    assert kind.from_environment().work == tmp_path / "work"  # the services' own is the project's
