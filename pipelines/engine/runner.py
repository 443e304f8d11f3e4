"""Which Beam runner a stage runs on, with which options. See docs/engines.md.

ALBERT_ENGINE          local (the default), dask, flink, spark, portable or dataflow
ALBERT_ENGINE_ADDRESS  of Dask's scheduler, the Flink or Spark master, or Beam's job service
ALBERT_WORKERS         worker processes of the local engine (default: the cores there are)
ALBERT_BEAM_OPTIONS    more Beam options, which override the others; `AlbertOptions` among them

The bytes of a stage's result are the same on all of them.
"""

import argparse
import json
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc  # type: ignore[import-untyped]
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from apache_beam.transforms import combiners
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from grpc import _server

from albert_core.stage import errors, storage
from albert_core.stage.command import RUN_AGAIN_STATUS, worker_count
from albert_core.stage.errors import AlbertError, ConfigError, OutageError
from pipelines.engine import job_server, steps
from pipelines.engine.progress import Progress

CONNECT_SECONDS = 10.0
_RUNNERS = "apache_beam.runners"
_WORKER_COMMAND = "albert-beam-worker"
_ENGINE_RETRIES = 3
_RETRY_MILLIS = 2000
_WORKERS_STAY_MILLIS = 60_000
"""How long Flink and Spark keep Python workers for the next step of the same job."""
_LONGEST_JOB_SECONDS = 30 * 86_400
"""How long Beam watches a job; by default a job of more than five minutes would fail."""
_ADDED_BY_BEAM = " [while running "
_RAISED_IN_WORKER = re.compile(
    rf".*albert_core\.stage\.errors\.(\w+): (.*?)(?:{re.escape(_ADDED_BY_BEAM)}|\n\n|\Z)",
    re.DOTALL,
)
"""Matches the last error of ours in a text, whichever runner wrapped it."""
_OF_A_STEP = re.compile(r"\[while running |pipelines/engine/steps\.py")
"""Matches the text of an error that a step raised."""
_NOT_INSTALLED = re.compile(
    rf"No module named '(albert_core|pipelines)\S*|Cannot run program \S*{_WORKER_COMMAND}.*"
)
_LONGEST_CAUSE = 400

log = logging.getLogger(__name__)
# Beam logs every worker's traceback, which is raised here as well.
logging.getLogger("apache_beam.runners.portability").setLevel(logging.CRITICAL)
logging.getLogger().addFilter(lambda record: record.module != "portable_runner")


def _wait(result: PipelineResult) -> None:
    result.wait_until_finish()


@dataclass(frozen=True)
class Engine:
    """A Beam runner, its options, and how to use it well."""

    runner: PipelineRunner | str
    options: Sequence[str] = ()
    num_batches: int | None = None
    """How many batches the elements are dealt into before they travel; None: one each."""
    wait: Callable[[Any], None] = _wait
    is_remote: bool = False
    """Whether the workers can be lost while this process goes on."""


class AlbertOptions(PipelineOptions):
    """Where a text stage runs. What is not given is taken from the environment."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--albert_engine",
            default=os.environ.get("ALBERT_ENGINE") or "local",
            help=f"one of {', '.join(_ENGINES)}",
        )
        parser.add_argument(
            "--albert_engine_address",
            default=os.environ.get("ALBERT_ENGINE_ADDRESS"),
            help="of Dask's scheduler, the Flink or Spark master, or Beam's job service",
        )


def run_pipeline(
    transform: beam.PTransform[Any, Any],
    elements: Iterable[Any],
    scratch: str,
    progress: Progress,
) -> list[Any]:
    """Run ``transform`` on ``elements`` and return what it gives, sorted by its keys.

    Args:
        transform: to a collection of (key, value that JSON can hold), of portable steps only:
            those of `pipelines.engine.steps`, GroupByKey and CombineGlobally, one after the other.
        elements: small descriptions of work, such as file names, those with the most work first:
            the engines deal them out to their workers beforehand.
        scratch: a folder that the workers can write to.
        progress: what to count while it runs.

    Raises:
        AlbertError: as `engine_pipeline` does, also if a worker does not see ``scratch``.
    """
    report = storage.join(scratch, "report.json")
    seen = storage.join(scratch, "driver-was-here")
    storage.write_bytes(seen, b"")
    with progress, engine_pipeline(scratch) as (pipeline, engine):
        build(pipeline, transform, _dealt(list(elements), engine.num_batches), seen, report)
    return [value for _, value in json.loads(storage.read_bytes(report))]


@contextmanager
def engine_pipeline(scratch: str) -> Iterator[tuple[beam.Pipeline, Engine]]:
    """Give an empty pipeline and the engine asked for, which runs it when the block ends.

    Afterwards ``pipeline.result`` has Beam's metrics.

    Args:
        scratch: a folder that the workers can write to; the pipeline's ``temp_location``.

    Raises:
        AlbertError: one that a worker raised, as it raised it.
        ConfigError: the engine asked for is unknown, not installed or out of reach, or a worker
            has other code or libraries.
        OutageError: a worker, the engine or a store was lost on the way.
    """
    is_remote = False
    try:
        with _ending_when_a_worker_dies(), ExitStack() as running:
            engine = choose_engine(scratch, running)
            is_remote = engine.is_remote
            options = _options(f"--temp_location={scratch}", *engine.options)
            pipeline = beam.Pipeline(engine.runner, options)
            # Made for transforms of other languages; a stage that is killed would leave it there.
            shutil.rmtree(pipeline.local_tempdir)
            yield pipeline, engine
            pipeline.result = pipeline.run()  # where Beam's own block leaves it
            engine.wait(pipeline.result)
    except Exception as error:
        raised = _as_raised_in_worker(error, is_remote)
        if raised is error:
            raise
        raise raised from error


def build(
    pipeline: beam.Pipeline,
    transform: beam.PTransform[Any, Any],
    batches: Sequence[Sequence[Any]],
    seen: str,
    report: str,
) -> None:
    """Add to ``pipeline`` all that a stage does: from batches of elements to its report."""
    # Without the reshuffle, Beam fuses all up to the first GroupByKey into one task.
    created = pipeline | "Create" >> beam.Create(batches, reshuffle=True)
    elements = created | "Each" >> steps.each_to_many(_each, seen)
    # A combiner joins the reports where they are made, before any of them travels.
    reports = elements | transform | "Together" >> combiners.ToList().without_defaults()
    _ = reports | "Report" >> steps.each(_write_report, report)


def choose_engine(scratch: str, running: ExitStack) -> Engine:
    """Return the engine that the environment asks for.

    Args:
        scratch: a folder that the workers can write to.
        running: gets what was started for the engine, to be ended after it.

    Raises:
        ConfigError: it is unknown, lacks its address or package, or is unreachable.
    """
    name = _options().albert_engine
    if name not in _ENGINES:
        raise ConfigError(f"ALBERT_ENGINE={name!r} must be one of {', '.join(_ENGINES)}")
    return _ENGINES[name](scratch, running)


def _local(scratch: str, running: ExitStack) -> Engine:
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
    """Have Beam's servers listen on the loopback address, and not on every one as it asks for.

    Whoever reaches them can send a worker a function to run. Beam has no setting for it.
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


def _dask(scratch: str, running: ExitStack) -> Engine:
    address = _address("dask", "the scheduler's, such as tcp://host:8786")
    if not (find_spec("dask") and find_spec("distributed")):
        raise ConfigError(
            "ALBERT_ENGINE=dask needs Dask: pip install -e '.[dask]' in the project's folder, here "
            "and on every worker"
        )
    from pipelines.engine import dask_cluster

    # Dask's default of 128 elements a partition would be all of them, on one worker. And no
    # step after the first has more partitions than the first.
    return Engine(
        f"{_RUNNERS}.dask.dask_runner.DaskRunner",
        [f"--dask_client_address={address}", "--dask_partition_size=1"],
        num_batches=dask_cluster.num_threads(address) * dask_cluster.PARTITIONS_PER_THREAD,
        wait=dask_cluster.wait,
    )


def _flink(scratch: str, running: ExitStack) -> Engine:
    address = _address("flink", "the master's, such as host:8081, or [local]")
    _require_java("flink")
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


def _spark(scratch: str, running: ExitStack) -> Engine:
    address = _address("spark", "the master's, such as spark://host:7077, or local[4]")
    _require_java("spark")
    from apache_beam.runners.portability.spark_runner import SparkJarJobServer

    if address.startswith("spark://"):
        masters = address.removeprefix("spark://").split(",")
        _require_listener(masters, f"no Spark master answers at ALBERT_ENGINE_ADDRESS={address}")
    workers = _WORKERS_HERE if address.startswith("local") else _worker_processes()
    return _with_job_server(SparkJarJobServer, [f"--spark_master_url={address}"], workers, running)


def _portable(scratch: str, running: ExitStack) -> Engine:
    address = _address("portable", "of a Beam job service, such as host:8099")
    _require_listener([address], f"nothing answers at ALBERT_ENGINE_ADDRESS={address}")
    if not job_server.answers(address, CONNECT_SECONDS):
        raise ConfigError(
            f"what answers at ALBERT_ENGINE_ADDRESS={address} is not a Beam job service. "
            "docs/engines.md says how to start one."
        )
    kept = running.enter_context(job_server.keeper())
    return _asking(address, kept, _worker_processes())


def _dataflow(scratch: str, running: ExitStack) -> Engine:
    if not find_spec("apitools"):
        raise ConfigError("ALBERT_ENGINE=dataflow needs pip install 'apache-beam[gcp]' gcsfs")
    if storage.local_path(scratch) is not None:
        raise ConfigError(
            f"Dataflow's workers can't see {scratch}: give sources and a work folder that begin "
            "with gs://"
        )
    return Engine(f"{_RUNNERS}.dataflow.dataflow_runner.DataflowRunner")


_ENGINES: dict[str, Callable[[str, ExitStack], Engine]] = {
    "local": _local,
    "dask": _dask,
    "flink": _flink,
    "spark": _spark,
    "portable": _portable,
    "dataflow": _dataflow,
}


def _with_job_server(
    kind: type[Any],
    options: Sequence[str],
    workers: Sequence[str],
    running: ExitStack,
    flink_master: str = "",
) -> Engine:
    """Return the engine behind a job server of this kind, started for this stage."""
    kept = running.enter_context(job_server.keeper(flink_master))
    of_server = [
        *options,
        f"--artifacts_dir={kept.folder}/artifacts",
        f"--job_server_jvm_properties=-Djava.io.tmpdir={kept.folder}",
    ]
    command, endpoint = kind(_options(*of_server)).subprocess_cmd_and_endpoint()
    kept.start(command, endpoint)
    return _asking(endpoint, kept, [*options, *workers])


def _asking(endpoint: str, kept: job_server.Keeper, options: Sequence[str]) -> Engine:
    """Return the engine behind a job service."""

    def wait(result: Any) -> None:
        kept.watch(endpoint, result._job_id)  # noqa: SLF001 - it has no other name
        result.wait_until_finish()
        kept.forget()

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


def _address(engine: str, which: str) -> str:
    address: str | None = _options().albert_engine_address
    if not address:
        raise ConfigError(f"ALBERT_ENGINE={engine} needs ALBERT_ENGINE_ADDRESS, {which}")
    return address


def _options(*of_engine: str) -> AlbertOptions:
    """Return the engine's options and those of ALBERT_BEAM_OPTIONS, which take precedence."""
    return AlbertOptions([*of_engine, *shlex.split(os.environ.get("ALBERT_BEAM_OPTIONS", ""))])


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
            with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
                return
        except (ValueError, OverflowError, socket.gaierror) as error:
            raise ConfigError(f"{otherwise} ({error}). Give host:port.") from error
        except OSError as error:
            problems.append(str(error))
    raise OutageError(f"{otherwise} ({'; '.join(problems)}). Start it; docs/engines.md says how.")


def _flink_slots(master: str) -> int:
    """Return how many tasks at a time Flink has room for; 0 if it starts task managers as needed.

    Raises:
        ConfigError: what answers is not Flink.
        OutageError: nothing answers.
    """
    host, _, port = master.partition("://")[2].rstrip("/").rpartition(":")
    what = f"no Flink master answers at ALBERT_ENGINE_ADDRESS={master}"
    _require_listener([f"{host}:{port}"], what)
    try:
        return int(job_server.flink_answer(master.rstrip("/"), "/overview")["slots-total"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{what}, but something else does ({error}). Give the address of the REST service of "
            "Flink's job manager, such as host:8081."
        ) from error


def _require_java(engine: str) -> None:
    """Raise ConfigError unless the job server, a Java program, can be started."""
    if not shutil.which("java"):
        raise ConfigError(
            f"ALBERT_ENGINE={engine} needs Java 11 or 17 here, for Beam's job server. Or start "
            "that elsewhere and give ALBERT_ENGINE=portable."
        )


_WORKERS_HERE = ["--environment_type=LOOPBACK"]
"""For a master that runs in the job server: the workers are threads of this process."""


def _worker_processes() -> list[str]:
    """Return options for Python workers without containers; Beam's own default needs Docker."""
    if _options().view_as(PortableOptions).environment_type:
        return []
    command = Path(sys.executable).with_name(_WORKER_COMMAND)
    return ["--environment_type=PROCESS", f"--environment_option=process_command={command}"]


def _dealt(elements: list[Any], num_batches: int | None) -> list[list[Any]]:
    """Deal ``elements`` out in turn; there may be fewer of them than batches."""
    number = len(elements) if num_batches is None else num_batches
    return [elements[first::number] for first in range(number)]


def _each(batch: Sequence[Any], seen: str) -> Iterator[Any]:
    if not storage.exists(seen):
        raise ConfigError(
            f"the worker on {socket.gethostname()} doesn't see {seen}. Give a work folder that all "
            "machines share."
        )
    yield from batch


def _write_report(together: list[tuple[Any, Any]], uri: str) -> str:
    results = sorted(together, key=lambda keyed: str(keyed[0]).zfill(20))
    storage.write_bytes(uri, json.dumps(results).encode())
    return uri


@contextmanager
def _ending_when_a_worker_dies() -> Iterator[None]:
    """End this process when a worker process dies: the embedded runner would wait forever."""

    def end(failure: threading.ExceptHookArgs) -> None:
        if "Worker subprocess exited" in str(failure.exc_value):
            log.error("a Beam worker process died (%s): run the stage again", failure.exc_value)
            os._exit(RUN_AGAIN_STATUS)
        if issubclass(failure.exc_type, grpc.RpcError):
            log.warning("a connection of Beam's broke (%s)", failure.exc_type.__name__)
        else:
            previous(failure)

    previous = threading.excepthook
    threading.excepthook = end
    try:
        yield
    finally:
        threading.excepthook = previous


def _as_raised_in_worker(error: Exception, is_remote: bool) -> Exception:
    """Return the AlbertError that Beam wrapped in the text of ``error``, or ``error`` itself.

    Args:
        error: raised by a runner.
        is_remote: whether the engine may have failed where no step did.
    """
    text = str(error)
    if isinstance(error, AlbertError):
        return type(error)(text.partition(_ADDED_BY_BEAM)[0])
    if raised := _RAISED_IN_WORKER.match(text):
        kind: type[AlbertError] = getattr(errors, raised.group(1))
        return kind(raised.group(2))
    if "Unable to fetch remote job server jar" in text:
        return ConfigError(
            f"{error}. Give --flink_job_server_jar or --spark_job_server_jar in "
            "ALBERT_BEAM_OPTIONS; docs/engines.md names the file."
        )
    if missing := _NOT_INSTALLED.search(text):
        return ConfigError(
            f"a worker lacks this project ({missing.group()}). Install the same version of it on "
            "all machines, in the same place, or name the place in ALBERT_BEAM_OPTIONS."
        )
    if is_remote and not _OF_A_STEP.search(text):
        cause = " ".join(text.split())[:_LONGEST_CAUSE]
        return OutageError(
            f"the engine lost a worker, or was lost itself ({cause}). Run the stage again: it "
            "continues from what is done."
        )
    return error
