"""Which Beam runner a stage runs on, with which options. See docs/engines.md.

ALBERT_ENGINE          local (the default), dask, flink, spark, portable or dataflow
ALBERT_ENGINE_ADDRESS  of Dask's scheduler, the Flink or Spark master, or Beam's job service
ALBERT_WORKERS         worker processes of the local engine (default: the number of cores)
ALBERT_BEAM_OPTIONS    more Beam options, which override the others; `AlbertOptions` among them

The bytes of a stage's result are the same on all of them.
"""

import argparse
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from grpc import _server  # type: ignore[import-untyped]

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, OutageError, StageError
from albert_core.stage.machine import worker_count
from pipelines.engine import job_server

WORKER_COMMAND = "albert-beam-worker"
_RUNNERS = "apache_beam.runners"
_CONNECT_SECONDS = 10.0
_ENGINE_RETRIES = 3
_RETRY_MILLIS = 2000
_WORKERS_STAY_MILLIS = 60_000
"""Time for which Flink and Spark keep Python workers for the next step of the same job."""
_LONGEST_JOB_SECONDS = 30 * 86_400
"""Time for which Beam watches a job; by default a job of more than five minutes would fail."""
_DASK_PARTITIONS_PER_THREAD = 4
"""Enough to balance pieces of work of unequal size."""
_DASK_CONNECT_SECONDS = 20
_DASK_LOST_SECONDS = 300.0
"""Time to wait for a worker once none is left."""
_DASK_LOOK_SECONDS = 5.0
_LOOPBACK = "LOOPBACK"
_WORKERS_HERE = [f"--environment_type={_LOOPBACK}"]
"""Option for a master that runs in the job server: the workers are threads of this process."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """A Beam runner, its options, and how to use it well."""

    runner: PipelineRunner | str
    options: Sequence[str] = ()
    num_batches: int | None = None
    """Number of batches that the elements are dealt into before they travel; None: one each."""
    wait: Callable[[Any], object] = methodcaller("wait_until_finish")
    """Waits for the end of a running pipeline."""
    is_remote: bool = False
    """Whether the workers can be lost while this process continues."""


class AlbertOptions(PipelineOptions):
    """The engine of a text stage and its address. Defaults come from the environment."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        named = os.environ.get("ALBERT_ENGINE") or "local"
        parser.add_argument("--albert_engine", default=named)
        address = os.environ.get("ALBERT_ENGINE_ADDRESS")
        parser.add_argument("--albert_engine_address", default=address)


def beam_options(*of_engine: str) -> AlbertOptions:
    """Return the engine's options and those of ALBERT_BEAM_OPTIONS, which take precedence.

    Raises:
        ConfigError: the variable is not a list of words as a shell reads it.
    """
    given = os.environ.get("ALBERT_BEAM_OPTIONS", "")
    try:
        own = shlex.split(given)
    except ValueError as error:
        raise ConfigError(
            f"ALBERT_BEAM_OPTIONS={given} cannot be read: {error}. Quote it as for a shell."
        ) from error
    return AlbertOptions([*of_engine, *own])


def choose_engine(scratch: str, running: ExitStack) -> Engine:
    """Return the engine that the environment asks for.

    Args:
        scratch: a folder that the workers can write to.
        running: gets what was started for the engine, to be ended after it.

    Raises:
        ConfigError: the engine is unknown, lacks its address or a program, or another service
            answers at its address.
        OutageError: nothing answers at its address.
    """
    options = beam_options()
    name, address = options.albert_engine, options.albert_engine_address or ""
    if name not in _ENGINES:
        raise ConfigError(f"ALBERT_ENGINE={name!r} must be one of {', '.join(_ENGINES)}")
    which, choose = _ENGINES[name]
    if which and not address:
        raise ConfigError(f"ALBERT_ENGINE={name} needs ALBERT_ENGINE_ADDRESS, {which}")
    if name in _IN_JAVA and not shutil.which("java"):
        raise ConfigError(
            f"ALBERT_ENGINE={name} needs Java 11 or 17 here, for Beam's job server. Or start "
            "that elsewhere and give ALBERT_ENGINE=portable."
        )
    return choose(address, scratch, running)


def _local(_address: str, scratch: str, running: ExitStack) -> Engine:
    workers = worker_count()
    if workers == 1:
        return Engine(FnApiRunner())
    running.enter_context(_listening_on_loopback())
    # The worker processes log their start and end to stderr, whatever the log level asked for.
    worker_log = storage.local_path(storage.join(scratch, "workers.log"))
    command = f"exec {shlex.quote(sys.executable)} -m pipelines.engine.worker_process"
    if worker_log is not None:
        worker_log.parent.mkdir(parents=True, exist_ok=True)
        command += f" 2>>{shlex.quote(str(worker_log))}"
    environment = SubprocessSDKEnvironment.from_command_string(command)
    return Engine(FnApiRunner(default_environment=environment), [f"--direct_num_workers={workers}"])


@contextmanager
def _listening_on_loopback() -> Iterator[None]:
    """Have Beam's servers listen on the loopback address; they ask for every address.

    Whoever reaches them can send a worker a function to run, and Beam has no setting for it.
    """
    kind = _server._Server  # noqa: SLF001
    bind = kind.add_insecure_port

    def bind_to_loopback(server: Any, address: str) -> int:
        return int(bind(server, address.replace("[::]", "127.0.0.1")))

    kind.add_insecure_port = bind_to_loopback
    try:
        yield
    finally:
        kind.add_insecure_port = bind


def _dask(address: str, scratch: str, running: ExitStack) -> Engine:
    if not (find_spec("dask") and find_spec("distributed")):
        raise ConfigError(
            "ALBERT_ENGINE=dask needs Dask: python infra/install.py dask in the project's folder, "
            "here and on every worker"
        )
    if not re.fullmatch(r"\w+://.+:\d+", address):
        raise ConfigError(
            f"ALBERT_ENGINE_ADDRESS={address} is not a Dask scheduler's; "
            "give one such as tcp://host:8786."
        )
    from distributed import Client

    # It logs tracebacks of its own connections; here, one sentence says what went wrong.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    new_client: Any = Client  # untyped
    try:
        client = running.enter_context(
            new_client(address, timeout=_DASK_CONNECT_SECONDS, set_as_default=False)
        )
        client.wait_for_workers(1, timeout=_DASK_CONNECT_SECONDS)
        threads = client.nthreads().values()
    except (OSError, TimeoutError) as error:
        raise OutageError(
            f"no Dask scheduler with a worker answers at ALBERT_ENGINE_ADDRESS={address} "
            f"({error}). Start both; docs/engines.md says how."
        ) from error
    log.info("Dask: %d workers, %d threads", len(threads), sum(threads))
    # Dask's default of 128 elements a partition would be all of them, on one worker. And no
    # step after the first has more partitions than the first.
    return Engine(
        f"{_RUNNERS}.dask.dask_runner.DaskRunner",
        [f"--dask_client_address={address}", "--dask_partition_size=1"],
        num_batches=sum(threads) * _DASK_PARTITIONS_PER_THREAD,
        wait=_wait_for_dask,
    )


def _wait_for_dask(result: Any) -> None:
    """Wait for the end of a stage; raise what a worker raised.

    A worker that dies is not an error: Dask gives its work to others.

    Raises:
        OutageError: the scheduler is lost, or all workers for `_DASK_LOST_SECONDS`.
        StageError: one piece of work has ended worker after worker.
    """
    from distributed import KilledWorker

    last_seen = time.monotonic()
    is_over = False
    try:
        while not is_over:
            try:
                result.wait_until_finish(duration=_DASK_LOOK_SECONDS * 1000)
                is_over = True
            except TimeoutError:
                if result.client.nthreads():
                    last_seen = time.monotonic()
                elif time.monotonic() > last_seen + _DASK_LOST_SECONDS:
                    raise OutageError(
                        f"Dask has had no worker for {_DASK_LOST_SECONDS:.0f} s. Start some."
                    ) from None
        # When the scheduler is gone, Beam's runner reports success: its futures end, as cancelled.
        if any(future.status != "finished" for future in result.futures):
            raise OutageError("the Dask scheduler was lost. Start it, and run the stage again.")
    except KilledWorker as error:
        raise StageError(
            f"{error} Most likely it takes more memory than the workers have: see their logs, "
            "and raise --memory-limit or make source files smaller."
        ) from error
    finally:
        result.client.close()


def _flink(address: str, scratch: str, running: ExitStack) -> Engine:
    from apache_beam.runners.portability.flink_runner import FlinkJarJobServer

    if address == "[local]":
        options = [f"--flink_master={address}"]
        return _with_job_server(FlinkJarJobServer, options, _WORKERS_HERE, running)
    master = address if address.startswith(("http://", "https://")) else f"http://{address}"
    options = [
        f"--flink_master={master}",
        f"--parallelism={max(1, _flink_slots(master))}",
        f"--number_of_execution_retries={_ENGINE_RETRIES}",
        f"--execution_retry_delay={_RETRY_MILLIS}",
    ]
    return _with_job_server(FlinkJarJobServer, options, _worker_processes(), running, master)


def _flink_slots(master: str) -> int:
    """Return how many tasks at a time Flink has room for; 0 if it starts task managers as needed.

    Raises:
        ConfigError: what answers is not Flink.
        OutageError: nothing answers.
    """
    what = f"no Flink master answers at ALBERT_ENGINE_ADDRESS={master}"
    _require_listener([master.partition("://")[2].rstrip("/")], what)
    try:
        return int(job_server.flink_answer(master.rstrip("/"), "/overview")["slots-total"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{what}, but something else does ({error}). Give the address of the REST service of "
            "Flink's job manager, such as host:8081."
        ) from error


def _spark(address: str, scratch: str, running: ExitStack) -> Engine:
    from apache_beam.runners.portability.spark_runner import SparkJarJobServer

    if address.startswith("spark://"):
        masters = address.removeprefix("spark://").split(",")
        _require_listener(masters, f"no Spark master answers at ALBERT_ENGINE_ADDRESS={address}")
    workers = _WORKERS_HERE if address.startswith("local") else _worker_processes()
    return _with_job_server(SparkJarJobServer, [f"--spark_master_url={address}"], workers, running)


def _portable(address: str, scratch: str, running: ExitStack) -> Engine:
    _require_listener([address], f"nothing answers at ALBERT_ENGINE_ADDRESS={address}")
    if not job_server.answers(address, _CONNECT_SECONDS):
        raise ConfigError(
            f"what answers at ALBERT_ENGINE_ADDRESS={address} is not a Beam job service. "
            "docs/engines.md says how to start one."
        )
    kept = running.enter_context(job_server.keeper())
    return _through_job_service(address, kept, _worker_processes(), running)


def _dataflow(_address: str, scratch: str, running: ExitStack) -> Engine:
    if not find_spec("apitools"):
        raise ConfigError("ALBERT_ENGINE=dataflow needs pip install 'apache-beam[gcp]' gcsfs")
    if storage.local_path(scratch) is not None:
        raise ConfigError(
            f"Dataflow's workers can't see {scratch}: give sources and a work folder that begin "
            "with gs://"
        )
    return Engine(f"{_RUNNERS}.dataflow.dataflow_runner.DataflowRunner")


_ENGINES: dict[str, tuple[str, Callable[[str, str, ExitStack], Engine]]] = {
    "local": ("", _local),
    "dask": ("the scheduler's, such as tcp://host:8786", _dask),
    "flink": ("the master's, such as host:8081, or [local]", _flink),
    "spark": ("the master's, such as spark://host:7077, or local[4]", _spark),
    "portable": ("of a Beam job service, such as host:8099", _portable),
    "dataflow": ("", _dataflow),
}
"""Name -> which address it needs, and what makes the engine: address, scratch, running."""
_IN_JAVA = {"flink", "spark"}


def _with_job_server(
    kind: type[Any],
    options: Sequence[str],
    workers: Sequence[str],
    running: ExitStack,
    flink_master: str = "",
) -> Engine:
    """Return the engine behind a job server of this kind, started for this stage."""
    kept = running.enter_context(job_server.keeper(flink_master))
    of_server = beam_options(
        *options,
        f"--artifacts_dir={kept.folder}/artifacts",
        f"--job_server_jvm_properties=-Djava.io.tmpdir={kept.folder}",
    )
    command, endpoint = kind(of_server).subprocess_cmd_and_endpoint()
    kept.start(command, endpoint)
    return _through_job_service(endpoint, kept, [*options, *workers], running)


def _through_job_service(
    endpoint: str, kept: job_server.Keeper, options: Sequence[str], running: ExitStack
) -> Engine:
    """Return the engine behind a job service, whose job is cancelled if this process is killed."""
    of_workers = beam_options(*options).view_as(PortableOptions)
    if of_workers.environment_type == _LOOPBACK:
        running.enter_context(_listening_on_loopback())

    def wait(result: Any) -> None:
        kept.watch(endpoint, result._job_id)  # noqa: SLF001 - it has no other name
        result.wait_until_finish()
        kept.watch(endpoint, job="")  # it has ended: nothing is to be cancelled

    return Engine(
        f"{_RUNNERS}.portability.portable_runner.PortableRunner",
        [
            f"--job_endpoint={endpoint}",
            f"--job_name={kept.folder.name}",
            f"--environment_cache_millis={_WORKERS_STAY_MILLIS}",
            f"--job_server_timeout={_LONGEST_JOB_SECONDS}",
            "--requirements_cache=skip",
            *options,
        ],
        wait=wait,
        is_remote=True,
    )


def _worker_processes() -> list[str]:
    """Return options for Python workers without containers; Beam's own default needs Docker."""
    if beam_options().view_as(PortableOptions).environment_type:
        return []
    command = Path(sys.executable).with_name(WORKER_COMMAND)
    return ["--environment_type=PROCESS", f"--environment_option=process_command={command}"]


def _require_listener(addresses: Sequence[str], otherwise: str) -> None:
    """Raise unless a server answers at one of ``addresses``: Beam itself would wait for minutes.

    Raises:
        ConfigError: one is not an address.
        OutageError: nothing answers.
    """
    problems = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                return
        except (ValueError, OverflowError, socket.gaierror) as error:
            raise ConfigError(f"{otherwise} ({error}). Give host:port.") from error
        except OSError as error:
            problems.append(str(error))
    raise OutageError(f"{otherwise} ({'; '.join(problems)}). Start it; docs/engines.md says how.")
