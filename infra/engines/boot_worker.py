"""Start a Python worker of Beam without a container: what `/opt/apache/beam/boot` does in one.

Flink and Spark start it, by way of the file `boot`, with the addresses of their services; it asks
them for the rest, and becomes Beam's own worker process. Nothing is downloaded or installed:
this project must be importable here already.
"""

import argparse
import os
import sys
from collections.abc import Sequence

WORKER = "apache_beam.runners.worker.sdk_worker_main"


def main(argv: Sequence[str] | None = None) -> None:
    """Become the worker process that the command line describes."""
    environment = worker_environment(argv)
    os.environ.update(environment)
    os.execv(sys.executable, [sys.executable, "-m", WORKER])  # noqa: S606


def worker_environment(argv: Sequence[str] | None = None) -> dict[str, str]:
    """Return the variables from which a worker process learns who it is and whom it serves.

    Source: Beam's sdks/python/container/boot.go.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    parser.add_argument("--control_endpoint", default="")
    parser.add_argument("--logging_endpoint", default="")
    given, _ = parser.parse_known_args(argv)

    from google.protobuf import json_format

    info = _provision_info(given.provision_endpoint, given.id)
    control = given.control_endpoint or info.control_endpoint.url
    logging = given.logging_endpoint or info.logging_endpoint.url
    return {
        "WORKER_ID": given.id,
        "CONTROL_API_SERVICE_DESCRIPTOR": _descriptor(control),
        "LOGGING_API_SERVICE_DESCRIPTOR": _descriptor(logging),
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "SEMI_PERSISTENT_DIRECTORY": "",
    }


def _provision_info(endpoint: str, worker_id: str):  # type: ignore[no-untyped-def]  # protobuf
    import grpc  # type: ignore[import-untyped]
    from apache_beam.portability.api import (
        beam_provision_api_pb2,
        beam_provision_api_pb2_grpc,
    )
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(endpoint) as channel:
        named = grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(named)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return service.GetProvisionInfo(request, wait_for_ready=True, timeout=60).info


def _descriptor(url: str) -> str:
    return f'url: "{url}"'


if __name__ == "__main__":
    main()
