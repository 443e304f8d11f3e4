"""A real server that speaks S3, found through the usual environment variables."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import fsspec
import pytest

from albert_core.stage.servers import answers
from infra.serve import PROJECT
from tests.mlflow_server import free_port


@contextlib.contextmanager
def serve_s3(bucket: str) -> Iterator[dict[str, str]]:
    """Serve a new bucket until the block ends; give the variables, which are set here too."""
    port = free_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-m", "infra.memory_s3", str(port), bucket]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=PROJECT)
    try:
        while not answers(f"{variables['AWS_ENDPOINT_URL']}/{bucket}"):
            assert server.poll() is None
            time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            fsspec.filesystem("s3").clear_instance_cache()  # those of a server before this one
            yield variables
    finally:
        fsspec.filesystem("s3").clear_instance_cache()
        server.kill()
        server.wait()
