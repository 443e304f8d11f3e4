"""Runs of a deployment, for tests: started, followed, their processes and their results."""

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from albert_core.stage.manifest import read_manifest
from flows.prefect_server import AUTH_FILE
from infra.serve import marked
from tests.test_end_to_end import SMALLER

TERMINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 2.0
_CLIENT = "00000000-0000-4000-8000-000000000001"
TRAINING = "albert_core.training.pretrain"
TINY = SMALLER | {
    "training.num_steps": 160,
    "training.warmup_steps": 10,
    "training.log_steps": 20,
    "training.checkpoint_steps": 20,
    "evaluation.num_seeds": 1,
}
"""Settings of the tiny recipe with which a whole run takes a minute."""


class PrefectApi:
    """Prefect's REST interface, with patience for a server that is unavailable.

    Args:
        url: of the server.
        work: the folder that it serves, with its secret.
    """

    def __init__(self, url: str, work: Path) -> None:
        self.url, self.work = url, work
        self._token = ""

    def headers(self) -> dict[str, str]:
        """Return the headers that the server asks for."""
        secret = base64.b64encode((self.work / AUTH_FILE).read_bytes()).decode()
        of_client = {"Prefect-Csrf-Client": _CLIENT, "Prefect-Csrf-Token": self._token}
        return {"Authorization": f"Basic {secret}", "Content-Type": "application/json", **of_client}

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer to a GET, or with ``body`` to a POST."""
        if body is not None:
            self._token = self.ask(f"/csrf-token?client={_CLIENT}")["token"]
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api{path}", content, self.headers())
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code < 500 or time.monotonic() > deadline:
                    raise AssertionError(f"{path}: {error} {error.read()!r}") from error
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1.0)

    def start(self, name: str, **parameters: object) -> str:
        """Start a run of the deployment ``name``; return its id."""
        deployment = self.ask(f"/deployments/name/{name}/{name}")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask(f"/deployments/{deployment}/create_flow_run", body)["id"])

    def state(self, run_id: str) -> tuple[str, str]:
        """Return type and name of the state of a flow run."""
        state = self.ask(f"/flow_runs/{run_id}")["state"]
        return state["type"], state["name"]

    def await_state(self, run_id: str, types: set[str], seconds: float) -> str:
        """Return the type of the flow run's state as soon as it is one of ``types``."""
        deadline = time.monotonic() + seconds
        while True:
            kind, name = self.state(run_id)
            if kind in types:
                return kind
            assert time.monotonic() < deadline, f"run {run_id} is {name}, not {types}"
            time.sleep(_LOOK_SECONDS)

    def log_of(self, run_id: str) -> str:
        """Return the lines of a flow run's log, the oldest first."""
        lines: list[str] = []
        while True:
            body = {
                "logs": {"flow_run_id": {"any_": [run_id]}},
                "sort": "TIMESTAMP_ASC",
                "offset": len(lines),
            }
            page = self.ask("/logs/filter", body)
            if not page:
                return "\n".join(lines)
            lines += [line["message"] for line in page]

    def artifacts_of(self, run_id: str) -> dict[str, Any]:
        """Return the content of a flow run's artifacts, by their keys."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}}}
        return {found["key"]: found["data"] for found in self.ask("/artifacts/filter", body)}

    def children_of(self, run_id: str) -> list[dict[str, Any]]:
        """Return the flow runs that a flow run has started."""
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}}
        found: list[dict[str, Any]] = self.ask("/flow_runs/filter", body)
        return found

    def cancel(self, run_id: str) -> None:
        """Ask for the cancellation of a flow run, as `prefect flow-run cancel` does."""
        self.ask(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING"}})

    def under_way(self) -> list[str]:
        """Return the flow runs and task runs that the server says are running."""
        running = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
        flows = self.ask("/flow_runs/filter", {"flow_runs": running})
        tasks = self.ask("/task_runs/filter", {"task_runs": running})
        return [f"flow run {run['name']}" for run in flows] + [
            f"task run {run['name']}" for run in tasks
        ]


@dataclass(frozen=True)
class Order:
    """What a run has to do."""

    source: Path
    work: Path
    model_name: str

    def parameters(self) -> dict[str, object]:
        """Return the deployment's parameters."""
        settings = {**TINY, "registry.model_name": self.model_name}
        return {
            "recipe": "tiny",
            "source": str(self.source),
            "work": str(self.work),
            "overrides": [f"{name}={value}" for name, value in settings.items()],
        }


def num_versions(mlflow_url: str, model_name: str) -> int:
    """Return how many versions the registered model has."""
    from mlflow import MlflowClient

    return len(MlflowClient(mlflow_url).search_model_versions(f"name='{model_name}'"))


def digests(work: Path) -> dict[str, str]:
    """Return what was made below ``work``: of each stage the key and a digest of all its files.

    The key of a registration has the model's name in it, which differs from run to run.
    """
    found: dict[str, str] = {}
    for path in sorted(work.glob("*/*/manifest.json")):
        manifest = read_manifest(str(path))
        key = manifest.key if manifest.stage != "registration" else ""
        assert manifest.stage not in found, f"two results of {manifest.stage} in {work}"
        found[manifest.stage] = f"{key} {manifest.content}"
    return found


def flow_process(run_id: str) -> psutil.Process | None:
    """Return the process that runs the flow, if there is one now."""
    inside = marked("PREFECT__FLOW_RUN_ID", run_id)
    flows = [each for each in inside if "prefect" in command(each) and " -c " not in command(each)]
    return max(flows, key=lambda process: process.pid, default=None)


def stage_process(work: Path, module: str = "") -> psutil.Process | None:
    """Return the process of the stage in ``module``, or of any, that works in ``work``."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"--work={work}" in words and "-m" in words[:3] and (not module or module in words):
            return process
    return None


def stage_name(work: Path) -> str:
    """Return the module of the stage that runs now, or a dash."""
    process = stage_process(work)
    words = command(process).split() if process else []
    return words[words.index("-m") + 1] if "-m" in words else "-"


def beam_worker(work: Path) -> psutil.Process | None:
    """Return a worker process of the Beam stage that works in ``work``."""
    stage = stage_process(work)
    try:
        below = stage.children(recursive=True) if stage else []
    except psutil.NoSuchProcess:
        return None
    workers = [
        process for process in below if "pipelines.engine.worker_process" in command(process)
    ]
    return max(workers, key=lambda process: process.pid, default=None)


def is_there(process: psutil.Process) -> bool:
    """Return whether the process runs and is not a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command(process: psutil.Process) -> str:
    """Return the command line of a process; empty if it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
