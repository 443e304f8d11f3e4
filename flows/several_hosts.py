"""One training on several hosts: a flow trains on its own, and runs join-training on the others.

``ALBERT_TRAINING_HOSTS`` is their number. Workers of the others take the runs of the deployment
``join-training`` (infra/hosts/several_hosts.yaml), one at a time. The ranks meet at the flow's
host. If a rank is lost, the others notice it at the next sum. If a whole host is lost, nobody
closes its connections, and Prefect notices the missing heartbeats. The stage is then retried on
any hosts that have a worker. If a rank failed on its own, on any host, the stage fails with that
rank's message.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.runtime import flow_run as this_flow_run
from prefect.settings import get_current_settings
from prefect.states import Cancelled

from albert_core.stage.errors import ConfigError, StageError
from flows.prefect_server import free_port
from flows.stage_process import LAUNCHER, InterruptedStageError, run_stage_process

ADDRESS = "ALBERT_TRAINING_ADDRESS"
"""Variable with the name or number by which other hosts reach this one."""
_JOIN = "join-training"
_LOOK_SECONDS = 15.0
_REASON_SECONDS = 30.0
"""Time for the others to say why they ended."""

log = logging.getLogger(__name__)


@flow(name=_JOIN, flow_run_name="host {host}")
def join_training(argv: list[str], host: int) -> None:
    """Train with this host's GPUs, together with the flow that asked for it.

    Args:
        argv: options of `albert_core.training.launcher`.
        host: number of this host; 0 is the one that asked.
    """
    command = [sys.executable, "-m", LAUNCHER, f"--node-rank={host}", *argv]
    run_stage_process(command, get_run_logger().info)


@contextmanager
def others_joining(
    argv: Sequence[str], num_hosts: int
) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Have other hosts join the training ``argv``; give the command line for this one, and a check.

    The check raises `InterruptedStageError` if another host is lost. It and the end of a block that
    was interrupted raise `StageError` if a rank there failed on its own.

    Args:
        argv: as made by `stage_process.distributed_argv` for so many hosts.
        num_hosts: with this one.

    Raises:
        ConfigError: the others can not reach this host by the address that it knows.
    """
    if num_hosts == 1:
        yield list(argv), lambda: None
        return
    of_flow, of_try = f"joins {this_flow_run.id}", str(uuid4())
    options = [
        *(f"--nnodes={num_hosts}", f"--rdzv-id={of_try}"),
        *(f"--master-addr={own_address()}", f"--master-port={free_port('')}"),
        *argv[3:],
    ]
    _dismiss(of_flow)
    for host in range(1, num_hosts):
        parameters = {"argv": options, "host": host}
        tags = [of_flow, of_try]
        run_deployment(f"{_JOIN}/{_JOIN}", parameters=parameters, timeout=0, tags=tags)
    next_look = 0.0

    def check() -> None:
        nonlocal next_look
        if time.monotonic() < next_look:
            return
        next_look = time.monotonic() + _LOOK_SECONDS
        if lost := _lost(of_try):
            raise InterruptedStageError(f"{lost[0].name} of the training is lost")

    try:
        yield [*argv[:3], "--node-rank=0", *options], check
    except BaseException as error:
        try:
            if isinstance(error, InterruptedStageError):  # perhaps a rank elsewhere failed first
                deadline = time.monotonic() + _REASON_SECONDS
                while len(_lost(of_try)) < num_hosts - 1 and time.monotonic() < deadline:
                    time.sleep(1)
        finally:
            _dismiss(of_flow)
        raise


def _lost(tag: str) -> list[FlowRun]:
    """Return the runs with this tag that ended badly; none while Prefect is unavailable.

    Raises:
        StageError: one of them ended by an error of its own.
    """
    try:
        lost = _runs(tag, [StateType.CRASHED, StateType.FAILED])
    except Exception as error:  # noqa: BLE001  no reason to stop a training
        log.debug("Prefect did not say how the other hosts are: %s", error)
        return []
    for run in lost:
        said = (run.state and run.state.message) or ""
        _, _, own = said.partition(f" {StageError.__name__}: ")
        if own:
            # Not because of the interruption here, which would be worth another try.
            raise StageError(f"{run.name} of the training: {own}") from None
    return lost


def own_address() -> str:
    """Return ALBERT_TRAINING_ADDRESS, else the address by which this host reaches Prefect's server.

    Raises:
        ConfigError: that is one of this host only.
    """
    if given := os.environ.get(ADDRESS):
        return given
    server = urlsplit(get_current_settings().api.url or "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.hostname or "127.0.0.1", server.port or 443))  # sends nothing
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        raise ConfigError(
            f"this host reaches Prefect's server at {address}, where no other host reaches this "
            f"one. Set {ADDRESS} to its name or number in the network."
        )
    return address


def _dismiss(tag: str) -> None:
    """End the runs with this tag that wait for a host, or whose host is lost; others end alone."""
    ended = {StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED}
    runs = _runs(tag, [each for each in StateType if each not in ended])
    with get_client(sync_client=True) as client:
        for run in runs:
            client.set_flow_run_state(run.id, Cancelled(message="Its try is over."), force=True)


def _runs(tag: str, states: Sequence[StateType]) -> list[FlowRun]:
    """Return the runs with this tag that are in one of these states."""
    wanted = filters.FlowRunFilter.model_validate(
        {"tags": {"all_": [tag]}, "state": {"type": {"any_": states}}}
    )
    with get_client(sync_client=True) as client:
        return list(client.read_flow_runs(flow_run_filter=wanted))
