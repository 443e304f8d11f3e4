"""By what call, code and machine a stage's result was made: what is needed to make it again."""

import os
import platform
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
RANKS, THREADS, CORES, CPU = "ranks", "threads", "cores", "cpu"
_ROOT = Path(__file__).parents[2]
_GIT_SECONDS = 10
_UNKNOWN = "unknown"


class Call(Settings):
    """The command line of a stage, by its parts."""

    module: str
    recipe: dict[str, dict[str, Any]] = Field(
        description="the sections that the stage reads, resolved"
    )
    options: dict[str, str] = Field(description="the others by name, the work folder left out")


class Provenance(Settings):
    """How a result came about. Nothing of it is in the result's key."""

    call: Call | None = Field(description="None: the stage was called as a function")
    commit: str = Field(description="of the code, by git; empty: unknown")
    has_local_changes: bool = Field(description="whether files differ from the commit's")
    machine: dict[str, str | int] = Field(
        description="ranks, threads (0: not set), cores, the cpu and the system"
    )


_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def called_as(call: Call) -> Iterator[None]:
    """Say that what is written in the block was made by ``call``."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def provenance() -> Provenance:
    """Return what is known of the result that this process is making."""
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

    The commit is `COMMIT`'s where the code is in no git checkout of its own, empty if unknown.
    """
    try:
        top, commit = _git("rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top).resolve() == _ROOT.resolve():
            return commit, bool(_git("status", "--porcelain"))
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return os.environ.get(COMMIT, ""), False


def machine(environment: Mapping[str, str]) -> dict[str, str | int]:
    """Return what of this machine and ``environment`` may change the last bits of a result."""
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
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or _UNKNOWN
    found = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    fields = {name.strip(): value.strip() for name, value in found.items()}
    flags = fields.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    return f"{fields.get('model name', _UNKNOWN)} {vectors}".strip()
