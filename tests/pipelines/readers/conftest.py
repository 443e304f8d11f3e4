"""Real servers: S3 by moto, HTTP with ranges and without."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

S3_START_SECONDS = 60


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket on a server that speaks S3, found by the usual variables of the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    variables = {
        "AWS_ENDPOINT_URL": endpoint,
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
            yield _new_bucket()
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + S3_START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"moto's server did not answer on port {port}")


def _new_bucket() -> str:
    import fsspec

    fsspec.filesystem("s3").mkdir("corpus")
    return "s3://corpus"


class PlainHandler(SimpleHTTPRequestHandler):
    """Python's own: it gives whole files, whatever part is asked for."""

    num_bytes_sent = 0

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the file, and count it; the other side may not want all of it."""
        try:
            while data := source.read(1 << 16):
                outputfile.write(data)
                type(self).num_bytes_sent += len(data)
        except OSError:
            self.close_connection = True


class RangeHandler(PlainHandler):
    """A server that gives parts of files."""

    num_bytes_sent = 0

    def do_GET(self) -> None:
        """Give the part that is asked for."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        begin = int(asked[1])
        end = min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
        self.send_response(206)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[begin:end])
        type(self).num_bytes_sent += end - begin


class StoppingHandler(PlainHandler):
    """A server that breaks off in the middle of a file."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send half of the file."""
        content = source.read()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the other side may not want all of it
            outputfile.write(content[: len(content) // 2])


def _serve(handler: type[PlainHandler], folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.02))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def http_plain(tmp_path: Path) -> Iterator[str]:
    """Serve the test's folder without ranges."""
    yield from _serve(PlainHandler, tmp_path)


@pytest.fixture
def http_ranges(tmp_path: Path) -> Iterator[str]:
    """Serve the test's folder with ranges."""
    yield from _serve(RangeHandler, tmp_path)


@pytest.fixture
def http_stopping(tmp_path: Path) -> Iterator[str]:
    """Serve half of each file of the test's folder."""
    yield from _serve(StoppingHandler, tmp_path)
