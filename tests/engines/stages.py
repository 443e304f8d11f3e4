"""The text stages as processes of their own, on the engine that an environment names."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from albert_core.stage.command import stage_argv
from albert_core.stage.manifest import read_manifest
from tests.engines.real import PROJECT

LOCAL = {"ALBERT_ENGINE": "local", "ALBERT_WORKERS": "1"}
NAMES = {"clean_corpus": "corpus", "train_vocab": "vocab", "make_examples": "examples"}
_OURS = (
    b"pipelines.engine.job_server",
    b"albert-beam-worker",
    b"pipelines.engine.worker_process",
    b"-job-server.jar",
)
_GONE_SECONDS = 30.0
_STAGE_SECONDS = 300.0


@dataclass
class Stages:
    """The three stages in one work folder."""

    recipe: Path
    work: Path
    environment: Mapping[str, str]
    manifests: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def contents(self) -> dict[str, str]:
        """The digest of what each stage has made."""
        return {name: read_manifest(uri).content for name, uri in self.manifests.items()}

    def elsewhere(self, work: Path, environment: Mapping[str, str]) -> "Stages":
        """Return the last stage, on the same corpus and vocabulary, in another work folder."""
        inputs = {stage: self.manifests[stage] for stage in ("corpus", "vocab")}
        return Stages(self.recipe, work, environment, inputs)

    def make_all(self) -> None:
        """Run the three stages."""
        for module in NAMES:
            self.make(module)

    def make(self, module: str) -> None:
        """Run one stage, to which the manifests known so far are given."""
        begin = time.monotonic()
        done = finish(self.start(module))
        assert done.status == 0, done.output
        self.seconds[module] = time.monotonic() - begin
        self.manifests[NAMES[module]] = done.manifest

    def start(self, module: str) -> "subprocess.Popen[str]":
        """Start one stage."""
        argv = stage_argv(
            f"pipelines.{module}", str(self.recipe), work=str(self.work), **self.manifests
        )
        return start(argv, self.environment)


@dataclass(frozen=True)
class Done:
    """The end of a stage."""

    status: int
    output: str

    @property
    def manifest(self) -> str:
        """The URI of its manifest."""
        return self.output.splitlines()[-1].removeprefix("manifest: ")


def start(argv: list[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a stage's process on an engine."""
    return subprocess.Popen(
        argv,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(stage: "subprocess.Popen[str]") -> Done:
    """Wait for the end of a stage; where that fails, end it and say what it said."""
    try:
        output = stage.communicate(timeout=_STAGE_SECONDS)[0]
    except BaseException as error:
        stage.terminate()
        raise AssertionError(stage.communicate()[0]) from error
    return Done(stage.returncode, output)


def wait_for(happened: Callable[[], bool], stage: "subprocess.Popen[str]") -> None:
    """Wait until something has happened while the stage runs."""
    while not happened():
        if stage.poll() is not None:
            raise AssertionError(f"the stage has ended: {stage.communicate()[0]}")
        time.sleep(0.02)


def processes(*wanted: bytes) -> list[int]:
    """Return the processes of this test whose command line has one of these words.

    A test's processes are those that have its temporary folder in their environment, so that
    others' work on the same machine is not taken for its own.
    """
    ours = f"TMPDIR={os.environ['TMPDIR']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours in environment and any(word in command for word in wanted):
            found.append(int(folder.name))
    return sorted(found)


def left_behind(temporary: Path) -> list[str]:
    """Return the processes, and what is in a temporary folder, that do not go by themselves."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        there = [str(path) for path in temporary.iterdir()]
        there += [f"process {pid}" for pid in processes(*_OURS)]
        if not there or time.monotonic() > deadline:
            return there
        time.sleep(0.5)
