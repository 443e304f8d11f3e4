"""Serve the project on this machine: Prefect, MLflow and a worker, until Ctrl-C.

``albert serve``. Everything listens on the loopback address only and keeps its data in the work
folder. `infra.production` is the same for a team.
"""

import sys
from collections.abc import Sequence

from flows.prefect_server import DATABASE, SERVED, note_served
from infra.services import LOOPBACK, Servers, option_parser, run_until_stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit status."""
    options = option_parser("albert serve").parse_args(argv)
    servers = Servers(host=LOOPBACK, **vars(options))

    def start() -> str:
        work = servers.work
        servers.prepare()
        servers.start_mlflow(
            *("--backend-store-uri", f"sqlite:///{work / 'mlflow.db'}"),
            *("--no-serve-artifacts", "--default-artifact-root", str(work / "mlartifacts")),
        )
        servers.start_prefect(f"sqlite+aiosqlite:///{work / DATABASE}", ["worker"])
        note_served(work, f"{servers.prefect_url}/api")
        return servers.greeting(
            {},
            [
                "prefect deployment ls",
                "prefect deployment schedule ls refresh-corpus/refresh-corpus",
            ],
        )

    try:
        return run_until_stopped(servers, start, servers.check)
    finally:
        (servers.work / SERVED).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
