"""The call, the code and the machine that made a stage's result: what it takes to make it again."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from albert_core.stage.settings import Settings

COMMIT = "ALBERT_COMMIT"
"""Variable that names the commit where the code is no git checkout, such as in an image."""
UNKNOWN_COMMIT = "an unknown commit"
RANKS, THREADS, CORES, CPU = "ranks", "threads", "cores", "cpu"
_ROOT = Path(__file__).parents[2]
_GIT_SECONDS = 10
_DIGITS = 12


class Call(Settings):
    """The parts of a stage's command line."""

    module: str
    recipe: dict[str, dict[str, Any]] = Field(
        description="the sections that the stage reads, resolved"
    )
    options: dict[str, str] = Field(description="the other options by name, no work folder")


class Provenance(Settings):
    """How a result was made. No part of it is in the result's key."""

    call: Call | None = Field(description="None: the stage was called as a function")
    commit: str = Field(description="git's of the code; empty: unknown")
    has_local_changes: bool = Field(description="whether files differ from the commit's")
    machine: dict[str, str | int] = Field(
        description="ranks, threads (0: not set), cores, the cpu and the system"
    )

    def __str__(self) -> str:
        """Name the commit of the code."""
        if not self.commit:
            return UNKNOWN_COMMIT
        changes = " with local changes" if self.has_local_changes else ""
        return f"commit {self.commit[:_DIGITS]}{changes}"


_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def called_as(call: Call) -> Iterator[None]:
    """Record ``call`` in the manifests that are written inside the block."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def provenance() -> Provenance:
    """Return the provenance of a result that this process makes now."""
    commit, has_local_changes = code_commit()
    return Provenance(
        call=_call.get(),
        commit=commit,
        has_local_changes=has_local_changes,
        machine=machine(os.environ),
    )


@cache
def code_commit() -> tuple[str, bool]:
    """Return the commit of this project's code, and whether its files differ from it.

    If the code is in no git checkout of its own, the commit is that of the variable `COMMIT`; empty
    if it is not set.
    """
    try:
        top, commit = _git("rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top).resolve() == _ROOT.resolve():
            return commit, bool(_git("status", "--porcelain"))
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return os.environ.get(COMMIT, ""), False


def machine(environment: Mapping[str, str]) -> dict[str, str | int]:
    """Return the properties of this machine and ``environment`` that can change a result's bits."""
    return {
        RANKS: _number(environment.get("WORLD_SIZE"), 1),
        THREADS: _number(environment.get("OMP_NUM_THREADS"), 0),
        CORES: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        CPU: _cpu(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    return done.stdout.strip()


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise


@cache
def _cpu() -> str:
    """Return the processor's name and its widest vectors."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    vectors = next(
        (name for name in ("avx512f", "avx2", "avx") if re.search(rf"\b{name}\b", text)), ""
    )
    return f"{model[1] if model else 'unknown'} {vectors}".strip()
