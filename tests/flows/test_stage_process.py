import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest

from albert_core.stage.errors import StageError
from albert_core.stage.log import StageProgress
from flows.stage_process import InterruptedStageError, Limits, run_stage_process

STAGE = """
import os, signal, subprocess, sys, time, warnings
from pathlib import Path
how, folder = sys.argv[1], Path(sys.argv[2])
print("step 1", flush=True)
if how == "success":
    print("warning: all is well", file=sys.stderr, flush=True)
    print("manifest: /work/corpus/1/manifest.json")
elif how == "mistake":
    print("error: the source is missing\\n  a.txt\\nGive another.", file=sys.stderr)
    sys.exit(2)
elif how == "launched mistake":
    print("error: no examples\\n  in x\\nE1121 torchrun's own words\\nTraceback", file=sys.stderr)
    sys.exit(1)
elif how == "usage":
    print("usage: stage\\nstage: error: no such option", file=sys.stderr)
    sys.exit(2)
elif how == "crash":
    raise RuntimeError("a defect")
elif how == "worker lost":
    sys.exit(os.EX_TEMPFAIL)
elif how == "server away":
    print("error: the registry does not answer", file=sys.stderr)
    sys.exit(os.EX_TEMPFAIL)
elif how == "progress":
    from albert_core.stage.log import report_progress
    report_progress(30.0, 120.0, "steps")
    report_progress(31.0, 120.0, "steps")
    print("manifest: m")
elif how == "no manifest":
    sys.exit(0)
elif how == "killed":
    child = subprocess.Popen(["sleep", "600"])
    (folder / "child").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
else:
    child = subprocess.Popen(["sleep", "600"])
    (folder / "child").write_text(str(child.pid))
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        def save(*_):
            (folder / "saved").touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
    (folder / "started").write_text(str(os.getpid()))
    time.sleep(600)
"""


def argv_of(how: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", STAGE, how, str(folder)]


def run(how: str, folder: Path, grace_seconds: float = 20.0) -> tuple[str, list[str]]:
    lines: list[str] = []
    return run_stage_process(argv_of(how, folder), lines.append, grace_seconds), lines


def test_the_manifest_is_the_result_and_the_other_lines_are_logged(tmp_path: Path) -> None:
    manifest, lines = run("success", tmp_path)
    assert manifest == "/work/corpus/1/manifest.json"
    assert lines == ["step 1", "warning: all is well"]


def test_the_log_is_called_in_the_callers_context(tmp_path: Path) -> None:
    speaker = ContextVar("speaker", default="nobody")
    heard: list[str] = []
    speaker.set("the flow")
    run_stage_process(argv_of("success", tmp_path), lambda _: heard.append(speaker.get()))
    assert set(heard) == {"the flow"}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("mistake", "the source is missing\n  a.txt\nGive another."),
        ("launched mistake", "no examples\n  in x"),
    ],
)
def test_a_users_mistake_is_the_stages_own_message(tmp_path: Path, how: str, message: str) -> None:
    with pytest.raises(StageError) as caught:
        run(how, tmp_path)
    assert str(caught.value) == message
    assert not isinstance(caught.value, InterruptedStageError)


@pytest.mark.parametrize(
    ("how", "ended", "line"),
    [
        ("crash", "ended with status 1", "RuntimeError: a defect"),
        ("usage", "ended with status 2", "stage: error: no such option"),
        ("no manifest", "ended without naming its manifest", "step 1"),
    ],
)
def test_a_crash_is_told_with_its_status_and_last_lines(
    tmp_path: Path, how: str, ended: str, line: str
) -> None:
    with pytest.raises(StageError) as caught:
        run(how, tmp_path)
    assert ended in str(caught.value)
    assert line in str(caught.value)
    assert not isinstance(caught.value, InterruptedStageError)


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("worker lost", "ended with status 75"),
        ("killed", "was killed by SIGKILL"),
        ("server away", "^the registry does not answer$"),
    ],
)
def test_what_passes_by_itself_is_told_apart_because_it_is_worth_another_try(
    tmp_path: Path, how: str, ended: str
) -> None:
    with pytest.raises(InterruptedStageError, match=ended):
        run(how, tmp_path)


def test_a_stage_that_falls_silent_is_stopped_to_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(InterruptedStageError, match=r"printed nothing for 0\.01 minutes"):
        run_stage_process(argv_of("patient", tmp_path), print, limits=Limits(silent_seconds=0.6))
    assert_stopped(tmp_path)


def test_a_stage_that_takes_too_long_is_stopped_for_good(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"took longer than 0\.001 hours") as caught:
        run_stage_process(argv_of("patient", tmp_path), print, limits=Limits(seconds=3.6))
    assert not isinstance(caught.value, InterruptedStageError)
    assert_stopped(tmp_path)


def assert_stopped(folder: Path) -> None:
    wait_until_gone(int((folder / "started").read_text()))
    wait_until_gone(int((folder / "child").read_text()))
    assert (folder / "saved").exists()


def test_progress_is_told_and_not_logged(tmp_path: Path) -> None:
    lines: list[str] = []
    told: list[StageProgress] = []
    run_stage_process(argv_of("progress", tmp_path), lines.append, on_progress=told.append)
    assert told == [StageProgress(30.0, 120.0, "steps")]
    assert told[0].share == 0.25
    assert lines == ["step 1"]


def test_what_a_killed_stage_had_started_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(StageError):
        run("killed", tmp_path)
    wait_until_gone(int((tmp_path / "child").read_text()))


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Have SIGINT interrupt this process, also where a shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("how", ["patient", "stubborn"])
def test_an_interruption_stops_the_whole_group(tmp_path: Path, how: str) -> None:
    interrupt = threading.Thread(target=interrupt_when_started, args=(tmp_path,))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        run(how, tmp_path, grace_seconds=2.0)
    interrupt.join()
    wait_until_gone(int((tmp_path / "started").read_text()))
    wait_until_gone(int((tmp_path / "child").read_text()))
    assert (tmp_path / "saved").exists() == (how == "patient")


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_stage_is_told_to_stop_when_its_flow_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from flows.stage_process import run_stage_process;"
        "run_stage_process(sys.argv[1:], print)"
    )
    flow = subprocess.Popen([sys.executable, "-c", code, *argv_of("patient", tmp_path)])
    stage = int(wait_for(tmp_path / "started"))
    flow.kill()
    flow.wait()
    wait_until_gone(stage)
    assert (tmp_path / "saved").exists()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def interrupt_when_started(folder: Path) -> None:
    wait_for(folder / "started")
    os.kill(os.getpid(), signal.SIGINT)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)
    return path.read_text()


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether the process is there and not a zombie that nobody has reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(") ")[2].startswith("Z"))
