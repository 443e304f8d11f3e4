"""What a worker's trainings need of the process that runs the worker: time to save."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are adopted on Linux")


def started(folder: Path, *shell: str) -> "subprocess.Popen[bytes]":
    command = [*shell, sys.executable, "-m", "infra.outlive", sys.executable, "-c", WORKER]
    process = subprocess.Popen([*command, str(folder), SAVING], cwd=PROJECT)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_saves_before_all_ends(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path)
    process.send_signal(number)
    assert process.wait(30) == 3
    assert (tmp_path / "saved").exists()


def test_a_worker_from_the_background_of_a_shell_can_be_stopped(tmp_path: Path) -> None:
    # As a shell without job control starts it: SIGINT ignored.
    process = started(tmp_path, "sh", "-c", 'trap "" INT; exec "$@"', "sh")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 3
    assert (tmp_path / "saved").exists()


def test_a_worker_that_ends_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    command = 'sleep 60 >/dev/null 2>&1 & echo $! > "$0/pid"; exit 7'
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "infra.outlive", "sh", "-c", command, str(tmp_path)], cwd=PROJECT
    )
    assert done.returncode == 7
    assert time.monotonic() - began < 30
    subprocess.run(["kill", (tmp_path / "pid").read_text().strip()], check=True)
