"""Serve the project on this machine: Prefect, MLflow and a worker, until Ctrl-C.

``albert serve``. Everything listens on the loopback address only and keeps its data in the work
folder. `infra.production` is the same for a team.
"""

import sys

from albert_core.stage.command import tell_failure
from albert_core.stage.errors import ConfigError
from flows.prefect_server import DATABASE, SERVED, note_served
from infra.services import LOOPBACK, Servers, ServerSettings, run_until_stopped


def main() -> int:
    """Serve what the environment says until Ctrl-C or SIGTERM; return the exit status."""
    try:
        settings = ServerSettings.from_environment()
    except ConfigError as error:
        return tell_failure(error)
    servers = Servers(settings.model_copy(update={"host": LOOPBACK}))
    work = servers.work

    def start() -> str:
        from albert_core.tracking.server import create_database

        servers.prepare()
        create_database(work / "mlflow.db")
        servers.start_mlflow(
            *("--backend-store-uri", f"sqlite:///{work / 'mlflow.db'}"),
            *("--no-serve-artifacts", "--default-artifact-root", str(work / "mlartifacts")),
        )
        servers.start_prefect(f"sqlite+aiosqlite:///{work / DATABASE}", ["worker"])
        note_served(work, f"{servers.prefect_url}/api")
        schedules = "prefect deployment schedule ls refresh-corpus/refresh-corpus"
        return servers.greeting({}, ["prefect deployment ls", schedules])

    try:
        return run_until_stopped(servers, start, servers.check)
    finally:
        (work / SERVED).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
