"""Real servers: S3 by moto, HTTP with ranges and without."""

import contextlib
import gzip
import io
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.s3_server import serve_s3


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A bucket on a server that speaks S3."""
    with serve_s3("corpus"):
        yield "s3://corpus"


class PlainHandler(SimpleHTTPRequestHandler):
    """Python's own: it gives whole files, whatever part is asked for."""

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the file, of which the other side may not want all."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            super().copyfile(source, outputfile)


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
        RangeHandler.num_bytes_sent += end - begin


class PackingHandler(RangeHandler):
    """A server whose files and ranges are of the packed file, for a client that accepts it."""

    def do_GET(self) -> None:
        """Give the part that is asked for."""
        if "gzip" not in self.headers.get("Accept-Encoding", ""):
            super().do_GET()
            return
        packed = gzip.compress(Path(self.translate_path(self.path)).read_bytes())
        begin, end = re.findall(r"\d+", self.headers.get("Range", f"0-{len(packed)}"))
        part = packed[int(begin) : int(end) + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


class StoppingHandler(PlainHandler):
    """A server that breaks off in the middle of a file."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send half of the file."""
        content = source.read()
        super().copyfile(io.BytesIO(content[: len(content) // 2]), outputfile)


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
def http_packing(tmp_path: Path) -> Iterator[str]:
    """Serve the test's folder packed, with ranges."""
    yield from _serve(PackingHandler, tmp_path)


@pytest.fixture
def http_stopping(tmp_path: Path) -> Iterator[str]:
    """Serve half of each file of the test's folder."""
    yield from _serve(StoppingHandler, tmp_path)
