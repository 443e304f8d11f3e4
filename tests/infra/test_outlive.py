"""The process that runs a worker gives the worker's trainings time to save."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_until

PROJECT = Path(__file__).parents[2]
SAVING = """
import signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def save(*_):
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
(folder / "training").touch()
time.sleep(60)
"""
WORKER = """
import signal, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
training = subprocess.Popen([sys.executable, "-c", sys.argv[2], folder], start_new_session=True)
def leave(*_):
    training.terminate()
    sys.exit(3)
signal.signal(signal.SIGINT, leave)
while not (folder / "training").exists():
    signal.sigtimedwait([], 0.05)
(folder / "ready").touch()
signal.pause()
"""
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Starts a command as a shell without job control does: SIGINT ignored."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_training_saves_before_all_ends(tmp_path: Path, number: signal.Signals) -> None:
    worker = [sys.executable, "-c", WORKER, str(tmp_path), SAVING]
    command = [*IN_THE_BACKGROUND, sys.executable, "-m", "infra.outlive", *worker]
    process = subprocess.Popen(command, cwd=PROJECT)
    wait_until((tmp_path / "ready").exists)
    process.send_signal(number)
    assert process.wait(30) == 3
    assert (tmp_path / "saved").exists()


def test_in_a_container_a_training_saves_also_when_the_worker_ends_by_itself(
    tmp_path: Path,
) -> None:
    gives_up = WORKER.replace("signal.pause()", "signal.sigtimedwait([], 0.5); sys.exit(4)")
    worker = [sys.executable, "-c", gives_up, str(tmp_path), SAVING]
    outlive = [sys.executable, "-m", "infra.outlive", "--container", *worker]
    done = subprocess.run(outlive, cwd=PROJECT, timeout=60)
    assert done.returncode == 4
    assert (tmp_path / "saved").exists()


def test_a_container_ends_though_something_does_not_within_its_time(tmp_path: Path) -> None:
    command = 'trap "" TERM; sleep 600 >/dev/null 2>&1 & echo $! > "$0/pid"; sleep 0.5; exit 5'
    worker = ["sh", "-c", command, str(tmp_path)]
    outlive = [sys.executable, "-m", "infra.outlive", "--container", *worker]
    environment = {**os.environ, "ALBERT_STOP_SECONDS": "1"}
    done = subprocess.run(outlive, cwd=PROJECT, timeout=60, env=environment)
    assert done.returncode == 5
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_nothing_is_waited_for_when_a_worker_ends_without_a_signal(tmp_path: Path) -> None:
    command = 'sleep 600 >/dev/null 2>&1 & echo $! > "$0/pid"; kill -9 $$'
    outlive = [sys.executable, "-m", "infra.outlive", "sh", "-c", command, str(tmp_path)]
    done = subprocess.run(outlive, cwd=PROJECT, timeout=30)
    assert done.returncode == 128 + signal.SIGKILL
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
