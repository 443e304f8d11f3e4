"""An S3 server that keeps everything in memory, with one bucket: for tests and trials.

``python -m infra.memory_s3 PORT BUCKET``. When it ends, its data is gone.
"""

import signal
import sys
import urllib.request
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

HOST = "127.0.0.1"


def main(port: int, bucket: str) -> None:
    """Serve on the loopback address until a signal ends the process.

    What a browser sends for a page is refused: whoever asks is not asked for a password.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    moto = DomainDispatcherApplication(create_backend_app)

    def only_from_here(
        request: dict[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        if "HTTP_ORIGIN" in request or request.get("HTTP_HOST") != f"{HOST}:{port}":
            start_response("403 Forbidden", [])
            return [b"Not from this address."]
        answer: Iterable[bytes] = moto(request, start_response)
        return answer

    server = make_server(HOST, port, only_from_here, True, request_handler=MotoRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    request = urllib.request.Request(f"http://{HOST}:{port}/{bucket}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
