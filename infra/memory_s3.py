"""An S3 protocol server that keeps everything in memory, with one bucket: for tests and trials.

``python -m infra.memory_s3 --port 9000 --bucket albert``. When it ends, what it held is gone.
"""

import argparse
import signal
import sys
import urllib.request
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.memory_s3", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", required=True, help="made at the start")
    options = parser.parse_args(argv)
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # before its threads begin
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(options.host, options.port, verbose=False)
    server.start()
    bucket = f"http://{options.host}:{options.port}/{options.bucket}"
    request = urllib.request.Request(bucket, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
    signal.sigwait(wanted)
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
