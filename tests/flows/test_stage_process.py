import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path

import psutil
import pytest

import flows
from albert_core.stage.errors import ConfigError, StageError
from albert_core.stage.progress import StageProgress
from flows.stage_process import (
    STAGE_MODULES,
    InterruptedStageError,
    Limits,
    StageRefusedError,
    limits_of,
    run_stage_process,
)
from tests.conftest import wait_until

STAGE = """
import os, signal, subprocess, sys, time, warnings
from pathlib import Path
how, folder = sys.argv[1], Path(sys.argv[2])
print("step 1", flush=True)
if how == "success":
    print("warning: all is well", file=sys.stderr, flush=True)
    print("manifest: /work/corpus/1/manifest.json")
elif how == "mistake":
    print("error: the source is missing\\n  a.txt\\n  Give another.", file=sys.stderr)
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
    from albert_core.stage.progress import report_progress
    report_progress(30.0, 120.0, "steps")
    report_progress(31.0, 120.0, "steps")
    print("manifest: m")
elif how == "no manifest":
    sys.exit(0)
else:
    child = subprocess.Popen(["sleep", "600"])
    (folder / "child").write_text(str(child.pid))
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stubborn":
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


def test_the_manifest_is_the_result_and_the_other_lines_are_logged_in_the_callers_context(
    tmp_path: Path,
) -> None:
    speaker = ContextVar("speaker", default="nobody")
    speaker.set("the flow")
    lines: list[tuple[str, str]] = []
    argv = argv_of("success", tmp_path)
    manifest = run_stage_process(argv, lambda line: lines.append((speaker.get(), line)))
    assert manifest == "/work/corpus/1/manifest.json"
    assert lines == [("the flow", "step 1"), ("the flow", "warning: all is well")]


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("mistake", StageRefusedError, r"^the source is missing\n  a.txt\n  Give another.$"),
        ("launched mistake", StageError, r"^no examples\n  in x$"),
        ("crash", StageError, r"ended with status 1[\s\S]*RuntimeError: a defect"),
        ("usage", StageError, r"ended with status 2[\s\S]*stage: error: no such option"),
        ("no manifest", StageError, r"ended without naming its manifest[\s\S]*step 1"),
        ("worker lost", InterruptedStageError, "ended with status 75"),
        ("server away", InterruptedStageError, "^the registry does not answer$"),
    ],
)
def test_a_failure_is_told_in_the_stages_own_words_or_last_lines_and_only_some_are_transient(
    tmp_path: Path, how: str, kind: type[StageError], message: str
) -> None:
    with pytest.raises(StageError, match=message) as caught:
        run_stage_process(argv_of(how, tmp_path), print)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("limits", "kind", "message"),
    [
        (Limits(silent_seconds=0.6), InterruptedStageError, r"printed nothing for 0\.01 minutes"),
        (Limits(seconds=2.0), StageError, r"took longer than 0\.00055"),
    ],
)
def test_a_silent_stage_is_stopped_to_be_tried_again_and_one_that_takes_too_long_for_good(
    limits: Limits, kind: type[StageError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StageError, match=message) as caught:
        run_stage_process(argv_of("patient", tmp_path), print, limits=limits)
    assert type(caught.value) is kind
    assert_stopped(tmp_path)


RUNNER = """
import sys
from flows.stage_process import Limits, run_stage_process
limits = Limits(silent_seconds=1.5)
argv = [sys.executable, "-c", sys.argv[1]]
print(run_stage_process(argv, lambda line: print(line, flush=True), limits=limits))
"""
STEADY = """
import time
for number in range(40):
    print(number, flush=True)
    time.sleep(0.1)
print("manifest: m")
"""


def test_the_time_in_which_this_process_was_stopped_itself_is_not_held_against_the_stage() -> None:
    command = [sys.executable, "-c", RUNNER, STEADY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0].endswith("\nm\n")


def assert_stopped(folder: Path, saved: bool = True) -> None:
    wait_until_gone(int((folder / "started").read_text()))
    wait_until_gone(int((folder / "child").read_text()))
    assert (folder / "saved").exists() == saved


def test_progress_is_told_and_not_logged(tmp_path: Path) -> None:
    lines: list[str] = []
    told: list[StageProgress] = []
    run_stage_process(argv_of("progress", tmp_path), lines.append, on_progress=told.append)
    assert told == [StageProgress(30.0, 120.0, "steps")]
    assert told[0].share == 0.25
    assert lines == ["step 1"]


def test_a_killed_stage_is_worth_another_try_and_what_it_had_started_ends_with_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(InterruptedStageError, match="was killed by SIGKILL"):
        run_stage_process(argv_of("killed", tmp_path), print)
    wait_until_gone(int((tmp_path / "child").read_text()))


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Have SIGINT interrupt this process, also where a shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("how", ["patient", "stubborn"])
def test_an_interruption_stops_the_whole_group(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_when_started() -> None:
        wait_for(tmp_path / "started")
        os.kill(os.getpid(), signal.SIGINT)

    interrupt = threading.Thread(target=interrupt_when_started)
    interrupt.start()
    monkeypatch.setenv("ALBERT_STOP_SECONDS", "1")
    with pytest.raises(KeyboardInterrupt):
        run_stage_process(argv_of(how, tmp_path), print)
    interrupt.join()
    assert_stopped(tmp_path, saved=how == "patient")


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


def wait_for(path: Path) -> str:
    return wait_until(lambda: path.exists() and path.read_text(), 20, path) or ""


def wait_until_gone(pid: int) -> None:
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(20)
    zombies = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # that nobody has reaped
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() in zombies


def test_a_stage_has_its_own_limit_or_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALBERT_SILENT_MINUTES", "pretrain=120, clean_corpus=0.5, 60")
    monkeypatch.setenv("ALBERT_STAGE_HOURS", "pretrain=48")
    assert limits_of("albert_core.training.pretrain") == Limits(7200.0, 172_800.0)
    assert limits_of("pipelines.clean_corpus") == Limits(30.0)
    assert limits_of("albert_core.finetuning.finetune") == Limits(3600.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "must be a number above 0") for text in ("soon", "0", "-1", "pretrain=", "nan")),
        ("pretrain=inf", "must be a number above 0"),
        ("pretrian=120", "there is no stage 'pretrian'; there is clean_corpus"),
    ],
)
def test_what_is_no_time_or_no_stage_is_refused(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_STAGE_HOURS", text)
    with pytest.raises(ConfigError, match=f"ALBERT_STAGE_HOURS: .*{message}"):
        limits_of("albert_core.training.pretrain")


def test_every_stage_that_a_flow_runs_may_have_a_limit() -> None:
    [folder] = flows.__path__
    named = {
        module
        for path in Path(folder).glob("*_*.py")
        for module in re.findall(r'"((?:pipelines|albert_core)\.[\w.]+)"', path.read_text())
    }
    stages = {
        name.rpartition(".")[2]
        for name in named
        if {"find_done", "stage_plan"} & vars(import_module(name)).keys()
    }
    assert stages == set(STAGE_MODULES)
