"""Ctrl-C and SIGTERM while `albert` runs a flow: it ends soon and leaves nothing behind."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from infra.serve import marked
from tests.conftest import wait_until
from tests.generated_text import write_source
from tests.test_end_to_end import ALBERT, SMALLER

PROJECT = Path(__file__).parents[3]
MESSAGE = "stopped; the same command continues from here"
MARK = "ALBERT_STOPPED_TEST"


@pytest.fixture
def folder(tmp_path: Path, empty_prefect_database: Path) -> Path:
    """A folder with a source and a work folder, in which flows were run before."""
    (tmp_path / "work").mkdir()
    shutil.copy(empty_prefect_database, tmp_path / "work")
    write_source(tmp_path / "source")
    return tmp_path


def start(tmp_path: Path) -> "subprocess.Popen[str]":
    """Start the whole way in a process group of its own, as a shell does."""
    environment = os.environ | {"PREFECT_HOME": str(tmp_path / "prefect"), MARK: str(tmp_path)}
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        environment.pop(name, None)
    settings = [f"--set={name}={value!r}" for name, value in SMALLER.items()]
    places = [f"--work={tmp_path / 'work'}", f"--source={tmp_path / 'source'}"]
    return subprocess.Popen(
        [ALBERT, "pretrain", *places, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        process_group=0,
    )


def states(work: Path) -> list[str]:
    """Return the state of each flow run that Prefect's database has."""
    if not (work / "prefect.db").exists():
        return []
    with closing(sqlite3.connect(work / "prefect.db")) as database:
        return [state for (state,) in database.execute("select state_type from flow_run")]


def check_end(process: "subprocess.Popen[str]", number: int, tmp_path: Path) -> None:
    """Send the signal to the whole group, as a terminal does, and look at what is left."""
    os.killpg(process.pid, number)
    began = time.monotonic()
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 12, said
    assert process.returncode == 128 + number, said
    assert said.count(MESSAGE) == 1
    assert "Traceback" not in said
    assert marked(MARK, str(tmp_path)) == []
    assert "RUNNING" not in states(tmp_path / "work")


@pytest.mark.slow
def test_ctrl_c_in_a_stage_ends_all_of_it(folder: Path) -> None:
    process = start(folder)
    wait_until(lambda: list(folder.glob("work/corpus/*/begun.json")), 120)
    check_end(process, signal.SIGINT, folder)
    assert states(folder / "work") == ["CRASHED"]


IN_A_SERIALIZER = """
import os, signal, sys, time, typer
from flows.commands import by_hand

try:
    with by_hand._stopping():
        try:
            if sys.argv[1] == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
        except KeyboardInterrupt as interrupt:
            raise ValueError("a serializer failed") from interrupt
        raise ValueError("a defect")
except typer.Exit as stopped:
    os._exit(stopped.exit_code)
"""


@pytest.mark.parametrize(
    ("what", "status", "said"), [("stop", 143, MESSAGE), ("no", 1, "a defect")]
)
def test_an_interrupt_that_a_library_makes_an_error_of_its_own_is_a_stop(
    what: str, status: int, said: str
) -> None:
    argv = [sys.executable, "-c", IN_A_SERIALIZER, what]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    assert said in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_any_moment_it_ends_and_the_next_run_goes_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    moments = random.Random(number)
    for run in range(10):
        folder = tmp_path / str(run)
        folder.mkdir()
        write_source(folder / "source")
        process = start(folder)
        time.sleep(moments.uniform(3, 25))  # Python alone takes a second or two to start
        check_end(process, number, folder)
    said, _ = start(folder).communicate(timeout=600)
    assert "version 1" in said
