"""An S3 server that keeps everything in memory, with one bucket: for tests and trials.

``python -m infra.memory_s3 PORT BUCKET``. When it ends, its data is gone.
"""

import signal
import sys
import urllib.request

from moto.server import ThreadedMotoServer

HOST = "127.0.0.1"


def main(port: int, bucket: str) -> None:
    """Serve on the loopback address until a signal ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ThreadedMotoServer(HOST, port, verbose=False).start()
    request = urllib.request.Request(f"http://{HOST}:{port}/{bucket}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
