"""Which engine, with which options; and a stage on real workers, some of which die."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import psutil
import pytest
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

from albert_core.stage import storage
from albert_core.stage.command import stage_argv
from albert_core.stage.errors import AlbertError, ConfigError, OutageError, SourceError
from flows.stage_process import InterruptedStageError, run_stage_process
from pipelines.engine import engines, job_server, runner, steps
from pipelines.engine.work_notes import Progress
from tests.job_service import job_service, worker_pool
from tests.toy_stage import ToySettings
from tests.toy_stage import run as run_toy

CLUSTERS = ("dask", "flink", "spark", "portable")
PROJECT = Path(__file__).parents[3]
WORKER = Path(sys.executable).with_name("albert-beam-worker")


def environment(patch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in ("ENGINE", "ENGINE_ADDRESS", "BEAM_OPTIONS", "WORKERS"):
        patch.delenv(f"ALBERT_{name}", raising=False)
    for name, value in variables.items():
        patch.setenv(f"ALBERT_{name}", value)


def choose(folder: Path) -> engines.Engine:
    """Return the engine that the environment asks for, whose servers have ended again."""
    with ExitStack() as running:
        return engines.choose_engine(str(folder), running)


def toy_argv(folder: Path, **toy: object) -> list[str]:
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps({"toy": toy}))
    return stage_argv("tests.toy_stage", str(recipe), work=str(folder / "work"))


def files_of(work: Path) -> dict[str, bytes]:
    """Return what a toy stage has made, without its notes and hidden files."""
    folders = (work / "numbers", work / "groups")
    return {
        str(f.relative_to(work)): f.read_bytes()
        for folder in folders
        for f in folder.iterdir()
        if not f.name.startswith(".")  # what a killed worker was writing
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    work = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, WORKERS="1")
        run_toy(ToySettings(), str(work))
    return files_of(work)


@pytest.mark.parametrize(
    ("name", "address", "missing", "message"),
    [
        ("ray", "", "", "'ray' must be one of local, dask, flink, spark"),
        *((each, "", "", f"={each} needs ALBERT_ENGINE_ADDRESS, .* such as") for each in CLUSTERS),
        ("dask", "tcp://localhost:8786", "distributed", "needs Dask: python infra/install.py dask"),
        ("dask", "localhost", "", "is not a Dask scheduler's; give one such as tcp://host:8786"),
        ("dataflow", "", "apitools", "needs .*pip install 'apache-beam.gcp.'"),
        ("dataflow", "", "", "that begin with gs://"),
        ("flink", "host:1", "", "needs Java"),
        ("spark", "host:1", "", "needs Java"),
    ],
)
def test_an_engine_that_cannot_be_had_is_refused_with_what_it_needs(
    name: str,
    address: str,
    missing: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment(monkeypatch, ENGINE=name, ENGINE_ADDRESS=address)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engines, "find_spec", lambda package: package != missing)
    with pytest.raises(ConfigError, match=message):
        choose(tmp_path)


@pytest.fixture
def web_page() -> Iterator[str]:
    """A server that is neither Flink's nor Beam's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "address", "kind", "message"),
    [
        ("flink", "localhost:1", OutageError, "no Flink master answers at .*=http://localhost:1"),
        ("spark", "spark://localhost:1", OutageError, "answers at .*=spark://localhost:1"),
        ("portable", "localhost:1", OutageError, "nothing answers at .*=localhost:1"),
        ("flink", "no.such.host.invalid:8081", ConfigError, "no Flink master .* Give host:port"),
        ("flink", "localhost", ConfigError, "no Flink master answers at .* Give host:port"),
        ("flink", "", ConfigError, "but something else does"),
        ("portable", "", ConfigError, "is not a Beam job service"),
    ],
)
def test_an_address_where_the_engine_does_not_answer_is_said_soon(
    name: str,
    address: str,
    kind: type[AlbertError],
    message: str,
    web_page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment(monkeypatch, ENGINE=name, ENGINE_ADDRESS=address or web_page)
    begin = time.monotonic()
    with pytest.raises(kind, match=message):
        run_toy(ToySettings(), str(tmp_path))
    assert time.monotonic() - begin < (5 if kind is OutageError else 15)


def test_a_job_server_is_started_for_the_stage_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\necho $$ > {said}\necho no such jar: "$@"; exec sleep 1\n')
    java.chmod(0o755)
    (tmp_path / "server.jar").touch()
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    option = f"--spark_job_server_jar={tmp_path}/server.jar"
    environment(monkeypatch, ENGINE="spark", ENGINE_ADDRESS="local[2]", BEAM_OPTIONS=option)
    with pytest.raises(ConfigError, match="job server ended at its start") as raised:
        run_toy(ToySettings(), str(tmp_path / "work"))
    assert "--spark-master-url local[2] " in str(raised.value)
    assert not Path(f"/proc/{said.read_text().strip()}").exists()
    assert not list(tmp_path.glob("albert-*"))


def test_options_with_an_open_quote_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, BEAM_OPTIONS="--flink_version '1.20")
    with pytest.raises(
        ConfigError, match=r"ALBERT_BEAM_OPTIONS=.*No closing quotation.*for a shell"
    ):
        choose(tmp_path)


def test_own_options_come_last_and_replace_the_worker_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment(monkeypatch, BEAM_OPTIONS="--sdk_worker_parallelism=2")
    assert f"process_command={WORKER}" in " ".join(engines._worker_processes())
    environment(monkeypatch, BEAM_OPTIONS="--environment_type=DOCKER")
    assert engines._worker_processes() == []


def test_the_engine_is_an_option_of_beam_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = "--albert_engine=portable --albert_engine_address=localhost:1"
    environment(monkeypatch, ENGINE="dask", BEAM_OPTIONS=engine)
    with pytest.raises(OutageError, match=r"nothing answers at .*=localhost:1"):
        choose(tmp_path)


MESSAGE = "a.gz can't be read: 'x'.\n  Mend it."
RAISED = f"albert_core.stage.errors.SourceError: {MESSAGE}"
OF_A_STEP = "TypeError: no number\n  File pipelines/engine/steps.py, in process [while running 'C']"


@pytest.mark.parametrize(
    ("text", "is_remote", "kind", "message"),
    [
        (f"x\n{RAISED} [while running 'Clean-ptransform-3']", True, SourceError, f"^{MESSAGE}$"),
        (f"{RAISED}\n\nthen\n{RAISED} [while running 'C']", False, SourceError, f"^{MESSAGE}$"),
        (f"Job aborted: Traceback\n{RAISED}\n\n\tat org", True, SourceError, f"^{MESSAGE}$"),
        ("SDK worker lost", False, RuntimeError, "^SDK worker lost$"),
        (OF_A_STEP, True, RuntimeError, "no number"),
        ("CANCELLED: by a client", True, OutageError, "the engine lost a worker, .*CANCELLED"),
        ("Job aborted: executor lost", True, OutageError, "Job aborted: executor lost"),
        ("No module named 'pipelines.make_x'", True, ConfigError, "lacks this project"),
        ('Cannot run program "/x/albert-beam-worker"', False, ConfigError, "lacks this project"),
        ("Unable to fetch remote job server jar at x", True, ConfigError, "job_server_jar in"),
    ],
)
def test_an_error_is_what_its_text_tells_of_where_it_was_raised(
    text: str, is_remote: bool, kind: type[Exception], message: str
) -> None:
    found = runner._as_raised_in_worker(RuntimeError(text), is_remote)
    assert type(found) is kind
    assert re.search(message, str(found))


def test_a_store_that_is_unavailable_is_no_defect_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, WORKERS="2")
    with pytest.raises(OutageError, match="ConnectionResetError: the store is away"):
        run_toy(ToySettings(store_away_at=5), str(tmp_path))


def test_a_worker_with_other_code_or_libraries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = replace(steps.each("Abs", abs), installed=steps.installed())
    assert list(step(-1)) == [1]
    other = steps.installed() | {"pyarrow": "1.0"}
    monkeypatch.setattr(steps, "installed", lambda: other)
    with pytest.raises(ConfigError, match=r"has pyarrow 1.0, but the stage was started with \d"):
        list(step(-1))


def test_a_worker_starts_without_libraries_that_only_beam_would_import() -> None:
    started = (
        "import sys; from pipelines.engine.worker_process import import_beam_worker;"
        "import_beam_worker(); assert not {'pandas', 'boto3'} & sys.modules.keys(); import pandas"
    )
    subprocess.run([sys.executable, "-c", started], cwd=PROJECT, check=True, timeout=60)


def test_a_worker_that_does_not_see_the_work_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="work folder that all machines share"):
        list(runner._each([1], f"{tmp_path}/nowhere"))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_arrives_as_it_was_raised(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, WORKERS=workers)
    with pytest.raises(AlbertError) as raised:
        run_toy(ToySettings(failing=5), str(tmp_path))
    assert type(raised.value) is SourceError
    assert str(raised.value) == "number 5 is bad:\n  look at 'it'.\n  Mend it."


def test_both_local_workers_have_half_of_the_work_and_make_the_same_bytes(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, WORKERS="2")
    run_toy(ToySettings(), str(tmp_path))
    workers = [file.name.partition("-")[2] for file in (tmp_path / "workers").iterdir()]
    assert sorted(map(workers.count, set(workers))) == [6, 6]
    assert files_of(tmp_path) == undisturbed


def test_a_killed_worker_ends_the_stage_and_another_run_makes_the_same_bytes(
    undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, WORKERS="2")
    argv = toy_argv(tmp_path, seconds=0.1, deadly=5)
    with pytest.raises(
        InterruptedStageError, match=r"^a Beam worker process was killed by SIGKILL, .* memory"
    ):
        run_stage_process(argv, print)
    assert (tmp_path / "work" / "died").exists()
    assert not (tmp_path / "work" / "groups").exists()
    run_stage_process(argv, print)
    assert files_of(tmp_path / "work") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EXTERNAL", "PROCESS"])
def test_a_job_service_with_workers_without_containers_makes_the_same_bytes(
    kind: str, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as running:
        options = f"--environment_type={kind}"
        if kind == "EXTERNAL":
            pool = running.enter_context(worker_pool(WORKER, tmp_path))
            options += f" --environment_config={pool}"
        if kind == "PROCESS":
            options += f" --environment_option=process_command={WORKER}"
        service = running.enter_context(job_service(tmp_path))
        environment(monkeypatch, ENGINE="portable", ENGINE_ADDRESS=service, BEAM_OPTIONS=options)
        run_stage_process(toy_argv(tmp_path), print)
        assert files_of(tmp_path / "work") == undisturbed
        if kind == "EXTERNAL":
            with pytest.raises(Exception, match=r"number 5 is bad:\n  look at 'it'.\n  Mend it."):
                run_stage_process(toy_argv(tmp_path, failing=5), print)


def test_beams_servers_listen_on_the_loopback_address_only() -> None:
    with engines._listening_on_loopback():
        server = grpc.server(ThreadPoolExecutor(1))
        port = server.add_insecure_port("[::]:0")
        server.start()
    try:
        own = psutil.Process().net_connections("tcp")
        [address] = {each.laddr.ip for each in own if each.laddr.port == port}
        assert address.removeprefix("::ffff:") == "127.0.0.1"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("name", "address"), [("flink", "[local]"), ("spark", "local[2]"), ("portable", "here:8099")]
)
def test_a_pool_of_workers_in_this_process_listens_on_the_loopback_address_only(
    name: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "server.jar"
    jar.touch()
    options = f"--{name}_job_server_jar={jar}"
    if name == "portable":
        options = "--environment_type=LOOPBACK"
        monkeypatch.setattr(engines, "_require_listener", lambda *_: None)
        monkeypatch.setattr(job_server, "answers", lambda *_: True)
    environment(monkeypatch, ENGINE=name, ENGINE_ADDRESS=address, BEAM_OPTIONS=options)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/java")
    monkeypatch.setattr(job_server.Keeper, "start", lambda *_: None)
    asked: list[str] = []

    def bind(_: object, address: str) -> int:
        asked.append(address)
        return 1

    monkeypatch.setattr(grpc._server._Server, "add_insecure_port", bind)
    with ExitStack() as running:
        engines.choose_engine(str(tmp_path), running)
        BeamFnExternalWorkerPoolServicer.start()[1].stop(None)
    assert asked == ["127.0.0.1:0"]


@pytest.mark.timeout(120)  # else the runner waits forever
def test_a_steps_error_is_told_though_the_workers_cannot_write_their_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, WORKERS="2")
    (tmp_path / "workers.log").symlink_to("/dev/full")
    progress = Progress("toy", f"{tmp_path}/progress", 0)
    step = steps.each("Fail", storage.read_bytes)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        runner.run_pipeline("Toy", [step], [f"{tmp_path}/absent"], str(tmp_path), progress)
