"""Which Beam runner a stage runs on, with which options. See infra/engines/README.md.

ALBERT_ENGINE          local (the default), dask, flink, spark, portable or dataflow
ALBERT_ENGINE_ADDRESS  of Dask's scheduler, the Flink or Spark master, or Beam's job service
ALBERT_WORKERS         worker processes of the local engine (default: the cores there are)
ALBERT_BEAM_OPTIONS    more Beam options; they come last, so they win

The bytes of a stage's result are the same on all of them.
"""

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
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from albert_core.contract import errors, storage
from albert_core.contract.errors import AlbertError, ConfigError
from albert_core.contract.stage_command import RUN_AGAIN_STATUS, worker_count
from pipelines.progress import Progress

ON_EACH_HOST = "localhost:50000"
"""Where each Flink or Spark host has its pool of Python workers, unless the options say so."""
CONNECT_SECONDS = 20.0
_RUNNERS = "apache_beam.runners"
_ADDED_BY_BEAM = " [while running "
_RAISED_IN_WORKER = re.compile(
    rf".*albert_core\.contract\.errors\.(\w+): (.*?)(?:{re.escape(_ADDED_BY_BEAM)}|\n\n|\Z)",
    re.DOTALL,
)
"""What follows the last mention of an error, whichever runner wraps it."""

log = logging.getLogger(__name__)
# Beam logs every worker's traceback, which is raised here as well.
logging.getLogger("apache_beam.runners.portability").setLevel(logging.CRITICAL)


def _wait(result: PipelineResult) -> None:
    result.wait_until_finish()


@dataclass(frozen=True)
class Engine:
    """A Beam runner, its options, and how to use it well."""

    runner: PipelineRunner | str
    options: Sequence[str] = ()
    num_batches: int | None = None
    """Into how many batches the elements are dealt before they travel; None is one for each."""
    wait: Callable[[Any], None] = _wait


def run_pipeline(
    transform: Callable[[PCollection[Any]], PCollection[Any]],
    elements: Iterable[Any],
    scratch: str,
    progress: Progress,
) -> list[Any]:
    """Run ``transform`` on ``elements`` and return what it gives, sorted by its keys.

    Args:
        transform: to a collection of (key, value that JSON can hold), of portable steps only:
            Map, FlatMap and GroupByKey, one after the other.
        elements: small descriptions of work, such as file names, those with the most work first:
            the engines deal them out to their workers beforehand.
        scratch: a folder that the workers can write to.
        progress: what to count while it runs.

    Raises:
        AlbertError: one that a worker raised, as it raised it.
        ConfigError: the engine asked for is unknown, not installed or out of reach.
    """
    report = storage.join(scratch, "report.json")
    try:
        with progress, _ending_when_a_worker_dies():
            engine = choose_engine(scratch)
            options = [*engine.options, *shlex.split(os.environ.get("ALBERT_BEAM_OPTIONS", ""))]
            pipeline = beam.Pipeline(engine.runner, PipelineOptions(options))
            build(pipeline, transform, _dealt(list(elements), engine.num_batches), report)
            engine.wait(pipeline.run())
    except Exception as error:
        raised = _as_raised_in_worker(error)
        if raised is error:
            raise
        raise raised from error
    return [value for _, value in json.loads(storage.read_bytes(report))]


def build(
    pipeline: beam.Pipeline,
    transform: Callable[[PCollection[Any]], PCollection[Any]],
    batches: Sequence[Sequence[Any]],
    report: str,
) -> None:
    """Add to ``pipeline`` all that a stage does: from batches of elements to its report."""
    # Without the reshuffle, Beam fuses all up to the first GroupByKey into one task.
    created = pipeline | "Create" >> beam.Create(batches, reshuffle=True)
    elements = created | "Each" >> beam.FlatMap(_each)
    keyed = transform(elements) | "ToOneKey" >> beam.Map(_to_one_key)
    together = keyed | "Together" >> beam.GroupByKey()
    _ = together | "Report" >> beam.Map(_write_report, report)


def choose_engine(scratch: str) -> Engine:
    """Return the engine that the environment asks for.

    Raises:
        ConfigError: it is unknown, lacks its address or package, or is out of reach.
    """
    name = os.environ.get("ALBERT_ENGINE") or "local"
    if name not in _ENGINES:
        raise ConfigError(f"ALBERT_ENGINE={name!r} must be one of {', '.join(_ENGINES)}")
    return _ENGINES[name](scratch)


def _local(scratch: str) -> Engine:
    workers = worker_count()
    if workers == 1:
        return Engine(FnApiRunner())
    # The worker processes log their start and end to stderr, whatever the log level asked for.
    worker_log = storage.local_path(storage.join(scratch, "workers.log"))
    command = f"{shlex.quote(sys.executable)} -m apache_beam.runners.worker.sdk_worker_main"
    if worker_log is not None:
        worker_log.parent.mkdir(parents=True, exist_ok=True)
        command += f" 2>>{shlex.quote(str(worker_log))}"
    environment = SubprocessSDKEnvironment.from_command_string(command)
    return Engine(FnApiRunner(default_environment=environment), [f"--direct_num_workers={workers}"])


def _dask(scratch: str) -> Engine:
    address = _address("dask", "the scheduler's, such as tcp://host:8786")
    if not (find_spec("dask") and find_spec("distributed")):
        raise ConfigError(
            "ALBERT_ENGINE=dask needs Dask: pip install -e '.[dask]' in the project's folder, here "
            "and on every worker"
        )
    from pipelines import dask_cluster

    num_threads = dask_cluster.check_workers(address, scratch)
    # Dask's default of 128 elements a partition would be all of them, on one worker. And no
    # step after the first has more partitions than the first.
    return Engine(
        f"{_RUNNERS}.dask.dask_runner.DaskRunner",
        [f"--dask_client_address={address}", "--dask_partition_size=1"],
        num_batches=num_threads * dask_cluster.PARTITIONS_PER_THREAD,
        wait=dask_cluster.wait,
    )


def _flink(scratch: str) -> Engine:
    address = _address("flink", "the master's, such as host:8081, or [local]")
    _require_java("flink")
    return Engine(
        f"{_RUNNERS}.portability.flink_runner.FlinkRunner",
        [f"--flink_master={address}", *([] if address == "[local]" else _worker_pool())],
    )


def _spark(scratch: str) -> Engine:
    address = _address("spark", "the master's, such as spark://host:7077, or local[4]")
    _require_java("spark")
    return Engine(
        f"{_RUNNERS}.portability.spark_runner.SparkRunner",
        [
            f"--spark_master_url={address}",
            *([] if address.startswith("local") else _worker_pool()),
        ],
    )


def _portable(scratch: str) -> Engine:
    address = _address("portable", "of a Beam job service, such as host:8099")
    _require_listener(address)
    return Engine(
        f"{_RUNNERS}.portability.portable_runner.PortableRunner",
        [f"--job_endpoint={address}", *_worker_pool()],
    )


def _dataflow(scratch: str) -> Engine:
    if not find_spec("apitools"):
        raise ConfigError("ALBERT_ENGINE=dataflow needs pip install 'apache-beam[gcp]' gcsfs")
    if storage.local_path(scratch) is not None:
        raise ConfigError(
            f"Dataflow's workers can't see {scratch}: give sources and a work folder that begin "
            "with gs://"
        )
    return Engine(f"{_RUNNERS}.dataflow.dataflow_runner.DataflowRunner")


_ENGINES: dict[str, Callable[[str], Engine]] = {
    "local": _local,
    "dask": _dask,
    "flink": _flink,
    "spark": _spark,
    "portable": _portable,
    "dataflow": _dataflow,
}


def _address(engine: str, which: str) -> str:
    address = os.environ.get("ALBERT_ENGINE_ADDRESS")
    if not address:
        raise ConfigError(f"ALBERT_ENGINE={engine} needs ALBERT_ENGINE_ADDRESS, {which}")
    return address


def _require_listener(address: str) -> None:
    """Raise ConfigError unless a server answers, for which Beam itself would wait five minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at ALBERT_ENGINE_ADDRESS={address} ({error}). Start Beam's job "
            "service there; infra/engines/README.md says how."
        ) from error


def _require_java(engine: str) -> None:
    """Raise ConfigError unless the job server, a Java program, can be started."""
    if not shutil.which("java"):
        raise ConfigError(
            f"ALBERT_ENGINE={engine} needs Java 11 or 17 here, for Beam's job server. Or start "
            "that elsewhere and give ALBERT_ENGINE=portable."
        )


def _worker_pool() -> list[str]:
    """Return options for Python workers without containers; Beam's own default needs Docker."""
    if "--environment_type" in os.environ.get("ALBERT_BEAM_OPTIONS", ""):
        return []
    return ["--environment_type=EXTERNAL", f"--environment_config={ON_EACH_HOST}"]


def _dealt(elements: list[Any], num_batches: int | None) -> list[list[Any]]:
    """Deal ``elements`` out like cards; there may be fewer of them than batches."""
    number = len(elements) if num_batches is None else num_batches
    return [elements[first::number] for first in range(number)]


def _each(batch: Sequence[Any]) -> Iterator[Any]:
    yield from batch


def _to_one_key(keyed: tuple[Any, Any]) -> tuple[int, tuple[Any, Any]]:
    return 0, keyed


def _write_report(together: tuple[int, Iterable[tuple[Any, Any]]], uri: str) -> str:
    results = sorted(together[1], key=lambda keyed: str(keyed[0]).zfill(20))
    storage.write_bytes(uri, json.dumps(results).encode())
    return uri


@contextmanager
def _ending_when_a_worker_dies() -> Iterator[None]:
    """End this process when a worker process dies: the embedded runner would wait for ever."""

    def end(failure: threading.ExceptHookArgs) -> None:
        if "Worker subprocess exited" in str(failure.exc_value):
            log.error("a Beam worker process died (%s): run the stage again", failure.exc_value)
            os._exit(RUN_AGAIN_STATUS)
        if failure.thread and failure.thread.name == "beam_control_read":
            log.warning("the connection to a Beam worker broke (%s)", failure.exc_type.__name__)
        else:
            previous(failure)

    previous = threading.excepthook
    threading.excepthook = end
    try:
        yield
    finally:
        threading.excepthook = previous


def _as_raised_in_worker(error: Exception) -> Exception:
    """Return the AlbertError that Beam wrapped in the text of ``error``, or ``error`` itself."""
    if isinstance(error, AlbertError):
        return type(error)(str(error).partition(_ADDED_BY_BEAM)[0])
    if raised := _RAISED_IN_WORKER.match(str(error)):
        kind: type[AlbertError] = getattr(errors, raised.group(1))
        return kind(raised.group(2))
    if "Unable to fetch remote job server jar" in str(error):
        return ConfigError(
            f"{error}. Give --flink_job_server_jar or --spark_job_server_jar in "
            "ALBERT_BEAM_OPTIONS; infra/engines/README.md names the file."
        )
    return error
