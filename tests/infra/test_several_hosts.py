"""A training on two hosts, which are network namespaces: one comes late, is killed, and rejoins."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from albert_core.stage.command import RUN_AGAIN_STATUS
from tests.albert_core.training_runs import (
    make_days,
    recipe_file,
    run_with_faults,
    weights_of,
    with_settings,
)
from tests.mlflow_server import free_port
from tests.two_hosts import Host, two_hosts

LAUNCHER = [sys.executable, "-m", "albert_core.training.launcher"]
SETTINGS = with_settings(num_steps=20, checkpoint_steps=1, evaluation_steps=20)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    try:
        with two_hosts() as hosts:
            yield hosts
    except PermissionError as error:
        pytest.skip(f"no network namespaces: {error}")


class Job:
    """What a scheduler starts on each host.

    Args:
        folder: for the recipe and the work folder.
        examples: manifest.
        hosts: that train together, with a rank each.
    """

    def __init__(self, folder: Path, examples: str, hosts: list[Host]) -> None:
        self.hosts, self.port = hosts, free_port()
        self.stage = [
            *("-m", "albert_core.training.pretrain", f"--recipe={recipe_file(folder, SETTINGS)}"),
            *(f"--examples={examples}", f"--work={folder / 'work'}"),
        ]

    def start(self, number: int, waits_seconds: int) -> "subprocess.Popen[str]":
        host = self.hosts[number]
        options = [
            *("--nnodes=2", f"--node-rank={number}", f"--rdzv-conf=timeout={waits_seconds}"),
            *(f"--master-addr={self.hosts[0].address}", f"--master-port={self.port}"),
        ]
        return subprocess.Popen(
            [*host.inside, *LAUNCHER, *options, *self.stage],
            env={**os.environ, "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_host_that_is_late_killed_and_back_leaves_the_weights_of_two_ranks_on_one_host(
    hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    examples = make_days(tmp_path / "days", seed=0, num_documents=60)
    job = Job(tmp_path, examples, hosts)
    alone = job.start(0, waits_seconds=5)
    said, _ = alone.communicate()
    assert alone.returncode == RUN_AGAIN_STATUS, said
    assert "the 2 hosts did not meet at" in said

    first = job.start(0, waits_seconds=600)
    time.sleep(15)
    late = job.start(1, waits_seconds=600)
    while not list(tmp_path.glob("work/pretraining/*/checkpoints/step-00000005/checkpoint.json")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    os.killpg(late.pid, signal.SIGKILL)
    late.communicate()
    said, _ = first.communicate()
    assert first.returncode == RUN_AGAIN_STATUS, said
    assert "rank 0: another rank is gone" in said

    both = [job.start(number, waits_seconds=600) for number in (0, 1)]
    said, said_by_other = (process.communicate()[0] for process in both)
    assert [process.returncode for process in both] == [0, 0], said + said_by_other
    assert "resuming from" in said
    assert said_by_other.endswith("manifest: none\n")

    (tmp_path / "one").mkdir()
    done = run_with_faults(tmp_path / "one", SETTINGS, examples, num_ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    found, expected = (done.splitlines()[-1][10:] for done in (said, done.stdout))
    torch.testing.assert_close(weights_of(found), weights_of(expected), rtol=0, atol=0)
