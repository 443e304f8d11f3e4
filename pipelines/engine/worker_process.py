"""A Python worker of Beam that ends with the process or connection that it serves.

The local engine starts it as ``python -m pipelines.engine.worker_process``, and names its runner in
the environment. Flink and Spark without a container (environment PROCESS) and Beam's worker pool
(EXTERNAL) start it as the command ``albert-beam-worker`` with addresses as arguments, as they
would start `/opt/apache/beam/boot` in Beam's containers. Nothing is downloaded or installed: this
project must be importable already.

Beam's own worker can outlive its runner: blocked on a connection that nobody closes, it would keep
its memory forever.
"""

import argparse
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, TextIO

_UNUSED = frozenset({"boto3", "pandas"})
"""Packages that Beam imports if they are installed, though no stage uses them: half of a worker's
start-up time."""

_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 20.0
"""Time for a running bundle to end after its runner has closed the connection."""


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the runner that the arguments or the environment name, then end the process."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if arguments := list(sys.argv[1:] if argv is None else argv):
        os.environ.update(worker_environment(arguments))
    sys.stderr = _Unfailing(sys.stderr)
    beam_worker = import_beam_worker()
    status = 1
    try:
        log_handler, harness, _ = beam_worker.create_harness(os.environ)
        threading.Thread(target=_end_with_connection, args=(harness,), daemon=True).start()
        harness.run()
        if log_handler:
            log_handler.close()
        status = 0
    except Exception:
        logging.getLogger(__name__).exception("the worker lost its runner")
    finally:
        os._exit(status)  # whatever its other threads wait for


def import_beam_worker() -> ModuleType:
    """Import Beam's worker, as if `_UNUSED` were not installed."""
    hidden = dict.fromkeys(_UNUSED - sys.modules.keys())
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: not to be imported
    from apache_beam.runners.worker import sdk_worker_main

    for name in hidden:
        del sys.modules[name]
    return sdk_worker_main


class _Unfailing(io.TextIOBase):
    """A stream to a file whose disk may be full or read-only.

    Beam prints a step's error before it answers its runner, which would wait forever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _end_with_connection(harness: Any) -> None:
    """End the process some time after the runner has gone, though a bundle may wait for it."""
    while harness._alive:  # noqa: SLF001
        time.sleep(_LOOK_SECONDS)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def worker_environment(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables that tell a worker its id and the services of its runner.

    Source: Beam's sdks/python/container/boot.go.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    parser.add_argument("--control_endpoint", default="")
    parser.add_argument("--logging_endpoint", default="")
    given, _ = parser.parse_known_args(argv)
    worker_id = given.id.strip("'")  # Prism quotes it as if for a shell

    from google.protobuf import json_format

    info = _provision_info(given.provision_endpoint, worker_id)
    control = given.control_endpoint or info.control_endpoint.url
    logging_service = given.logging_endpoint or info.logging_endpoint.url
    return {
        "WORKER_ID": worker_id,
        "CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{control}"',
        "LOGGING_API_SERVICE_DESCRIPTOR": f'url: "{logging_service}"',
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "SEMI_PERSISTENT_DIRECTORY": "",
    }


def _provision_info(endpoint: str, worker_id: str):  # type: ignore[no-untyped-def]  # protobuf
    import grpc  # type: ignore[import-untyped]
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(endpoint) as channel:
        named = grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(named)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return service.GetProvisionInfo(request, wait_for_ready=True, timeout=60).info


if __name__ == "__main__":
    main()
