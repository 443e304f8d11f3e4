"""A real server that speaks S3, by moto, found by the usual variables of the environment."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import fsspec
import pytest

_START_SECONDS = 180


@contextlib.contextmanager
def serve_s3(bucket: str) -> Iterator[dict[str, str]]:
    """Serve a new bucket until the block ends; give the variables, set here too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            _wait_for(port, server)
            fsspec.filesystem("s3").clear_instance_cache()  # those of a server before this one
            fsspec.filesystem("s3").mkdir(bucket)
            yield variables
    finally:
        fsspec.filesystem("s3").clear_instance_cache()
        server.kill()
        server.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"moto's server did not answer on port {port}")
