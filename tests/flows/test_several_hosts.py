"""A training on several hosts: what the others are asked to run, and how this one is reached."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import exception_to_failed_state

from albert_core.stage.errors import ConfigError, OutageError, StageError, is_transient
from flows import several_hosts
from flows.several_hosts import ADDRESS, others_joining, own_address
from flows.stage_process import LAUNCHER, InterruptedStageError, distributed_argv

SAID = "Flow run encountered an exception:"
"""How Prefect begins the message of a failed run."""
STAGE = ["python", "-m", "albert_core.training.pretrain", "--examples=e"]


class Deployments:
    """Stands for Prefect: notes which runs were asked for, and which tags were dismissed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parameters: list[dict[str, Any]] = []
        self.dismissed: list[str] = []
        monkeypatch.setattr(several_hosts, "run_deployment", self.run)
        monkeypatch.setattr(several_hosts, "_dismiss", self.dismissed.append)
        monkeypatch.setenv(ADDRESS, "gpu1")

    def run(self, name: str, parameters: dict[str, Any], timeout: float, tags: list[str]) -> None:
        assert (name, timeout) == ("join-training/join-training", 0)
        assert tags[0] == self.dismissed[-1]
        assert f"--rdzv-id={tags[1]}" in parameters["argv"]
        self.parameters.append(parameters)


def test_every_other_host_is_asked_for_what_this_one_runs_with_its_own_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Deployments(monkeypatch)
    argv = distributed_argv(STAGE, 8, num_hosts=3)
    with others_joining(argv, 3) as (mine, _):
        assert mine[1:4] == ["-m", LAUNCHER, "--node-rank=0"]
    assert [each["host"] for each in asked.parameters] == [1, 2]
    assert [each["argv"] for each in asked.parameters] == [mine[4:]] * 2
    assert {"--nnodes=3", "--nproc-per-node=8", "--master-addr=gpu1"} <= set(mine)
    assert mine[-3:] == STAGE[1:]
    assert len(asked.dismissed) == 1  # what an earlier try of the run left


def test_when_the_training_fails_the_runs_that_still_wait_for_a_host_are_dismissed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Deployments(monkeypatch)
    with pytest.raises(OutageError), others_joining(distributed_argv(STAGE, 1, 2), 2):
        raise OutageError
    assert len(asked.dismissed) == 2


def test_a_host_that_prefect_hears_nothing_of_ends_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    Deployments(monkeypatch)
    found: list[FlowRun] = []
    monkeypatch.setattr(several_hosts, "_runs", lambda *_: found)
    monkeypatch.setattr(several_hosts, "_LOOK_SECONDS", 0.0)
    with others_joining(distributed_argv(STAGE, 1, 2), 2) as (_, check):
        check()
        found.append(FlowRun(flow_id=uuid4(), name="host 1"))
        with pytest.raises(InterruptedStageError, match="host 1 of the training is lost"):
            check()


def test_the_own_error_of_a_rank_on_another_host_is_the_error_of_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here its ranks only saw that one was gone. Host 2 saw the same, and was told sooner."""
    asked = Deployments(monkeypatch)
    found: list[FlowRun] = []
    told = iter(
        [(2, InterruptedStageError("the stage ended with status 75")), (1, StageError("no"))]
    )

    def runs(*_: Any) -> list[FlowRun]:
        host, error = next(told)
        state = asyncio.run(exception_to_failed_state(error, message=SAID))
        found.append(FlowRun(flow_id=uuid4(), name=f"host {host}", state=state))
        return found

    monkeypatch.setattr(several_hosts, "_runs", runs)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(StageError, match=r"^host 1 of the training: no$") as caught:
        with others_joining(distributed_argv(STAGE, 1, 3), 3):
            raise InterruptedStageError("status 75")
    assert not is_transient(caught.value)
    assert len(asked.dismissed) == 2


def test_on_one_host_nobody_is_asked() -> None:
    argv = distributed_argv(STAGE, 2)
    assert "--standalone" in argv
    with others_joining(argv, 1) as (mine, _):
        assert mine == argv


def test_a_host_that_the_others_can_not_reach_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    with pytest.raises(ConfigError, match=f"at 127.0.0.1, where no other host .* Set {ADDRESS} to"):
        own_address()
