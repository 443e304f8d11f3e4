"""Serve the project on this machine: Prefect, MLflow and a worker, until Ctrl-C.

``albert serve``. Everything listens on the loopback address only and
keeps its data in the work folder. `infra.production` is the same for a team.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.prefect_server import DATABASE, SERVED, note_served
from infra.services import (
    PREFECT,
    Services,
    deploy,
    flow_environment,
    local_folder,
    refuse_taken,
    run_until_stopped,
    start_prefect,
    start_worker,
)

HOST = "127.0.0.1"
PREFECT_PORT, MLFLOW_PORT = 4200, 5000


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit status."""
    options = _options(argv)
    work: Path = options.work
    prefect_url = f"http://{HOST}:{options.prefect_port}"
    mlflow_url = f"http://{HOST}:{options.mlflow_port}"
    services = Services(work / "logs", flow_environment(work, prefect_url, mlflow_url))

    def start() -> str:
        refuse_taken(HOST, Prefect=options.prefect_port, MLflow=options.mlflow_port)
        _start(services, work, prefect_url, mlflow_url)
        note_served(work, f"{prefect_url}/api")
        return _greeting(prefect_url, mlflow_url, services)

    try:
        return run_until_stopped(services, start, services.check)
    finally:
        (work / SERVED).unlink(missing_ok=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="albert serve", description=main.__doc__)
    environment = os.environ.get
    parser.add_argument(
        "--work",
        type=local_folder,
        default=environment("ALBERT_WORK", "work"),
        help="local folder for all data (ALBERT_WORK, else 'work')",
    )
    parser.add_argument(
        "--prefect-port", type=int, default=environment("ALBERT_PREFECT_PORT", str(PREFECT_PORT))
    )
    parser.add_argument(
        "--mlflow-port", type=int, default=environment("ALBERT_MLFLOW_PORT", str(MLFLOW_PORT))
    )
    return parser.parse_args(argv)


def _start(services: Services, work: Path, prefect_url: str, mlflow_url: str) -> None:
    work.mkdir(parents=True, exist_ok=True)
    print(f"starting Prefect and MLflow, with their data in {work}", flush=True)
    database = f"sqlite+aiosqlite:///{work / DATABASE}"
    start_prefect(services, HOST, _port(prefect_url), database)
    services.start(
        *("MLflow", sys.executable, "-m", "mlflow", "server"),
        *("--host", HOST, "--port", str(_port(mlflow_url)), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{work / 'mlflow.db'}"),
        *("--no-serve-artifacts", "--default-artifact-root", str(work / "mlartifacts")),
    )
    services.wait_until_up(PREFECT, f"{prefect_url}/api/health")
    print("deploying the flows", flush=True)
    deploy(services)
    start_worker(services, "worker")
    services.wait_until_up("MLflow", f"{mlflow_url}/health")


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _greeting(prefect_url: str, mlflow_url: str, services: Services) -> str:
    return (
        f"\nPrefect  {prefect_url}\nMLflow   {mlflow_url}\nlogs     {services.logs}\n\n"
        "In another terminal, with the environment active:\n\n"
        f"  export PREFECT_API_URL={prefect_url}/api\n"
        "  prefect deployment run pretrain-albert/pretrain-albert\n"
        "  prefect deployment ls\n"
        "  prefect deployment schedule ls refresh-corpus/refresh-corpus\n\n"
        "Ctrl-C stops everything."
    )


if __name__ == "__main__":
    sys.exit(main())
