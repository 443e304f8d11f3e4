"""What made a result: the code that it depends on, the call, the commit and the machine."""

import ast
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from albert_core.stage.settings import Settings

_LOGGERS = ("log", "logging", "warnings")
_SETTINGS = ("Settings", "TaskHyperparameters")
"""The bases of settings; other classes that derive from them have methods only."""
FIRST_PARTY = ("albert_core", "pipelines", "flows")
HOW_NOT_WHAT = (
    "albert_core.planning",
    "albert_core.stage",
    "albert_core.tracking",
    "albert_core.training.run_log",
    "pipelines.engine",
)
"""Rooms and modules that decide where, how fast and how visibly a stage runs, not what it makes."""


@cache
def code_digest(module: str) -> str:
    """Return a digest of what ``module`` and every project module it reaches do.

    What cannot change a result does not count, so it causes no rebuild: comments, docstrings and
    layout, the words of errors and log lines, the fields of settings (their values are in a
    result's key), and `HOW_NOT_WHAT`.
    """
    digest = hashlib.sha256()
    for name, source in sorted(reachable_sources(module, HOW_NOT_WHAT).items()):
        digest.update(f"{name}\n{_meaning(source)}\n".encode())
    return digest.hexdigest()[:16]


def library_versions(*names: str) -> dict[str, str]:
    """Return the installed version of each library in ``names``, and Python's.

    Python's counts because its Unicode tables decide what is a letter.
    """
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found | {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def reachable_sources(module: str, without: Collection[str] = ()) -> dict[str, str]:
    """Return the source of ``module`` and of every project module it reaches, by name.

    Nothing is imported, so that a result can be looked up without torch or Beam.

    Args:
        module: where to begin.
        without: rooms and modules to leave out, with everything reached only through them.
    """
    sources: dict[str, str] = {}
    queue = [_real_name(module)]
    while queue:
        name = queue.pop()
        path = _file_of(name)
        if path is None or name in sources:
            continue
        sources[name] = path.read_text(encoding="utf-8")
        queue.extend(found for found in _imports(sources[name]) if not _is_in(found, without))
    return sources


def _real_name(module: str) -> str:
    """Return the name under which a module is imported, even if it runs as a program."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module if spec is None else str(spec.name)


def _file_of(module: str) -> Path | None:
    """Return the file of a project module or package; None if there is none of this name."""
    package, *inner = module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*inner)
    files = (path / "__init__.py", path.parent / f"{path.name}.py")
    return next((file for file in files if file.is_file()), None)


def _is_in(module: str, rooms: Collection[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _imports(source: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.split(".")[0] in FIRST_PARTY and _file_of(name)]


@cache
def _meaning(source: str) -> str:
    return ast.dump(_Meaning().visit(_tree(source)))


class _Meaning(ast.NodeTransformer):
    """Removes what cannot change a result from a syntax tree."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove docstrings, other strings that are not used, and log lines."""
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            owner = value.func.value
            if isinstance(owner, ast.Name) and owner.id in _LOGGERS:
                return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Remove the message of an error."""
        if isinstance(node.exc, ast.Call):
            node.exc, node.cause = node.exc.func, None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Remove the fields of settings."""
        if any(isinstance(base, ast.Name) and base.id in _SETTINGS for base in node.bases):
            node.body = [item for item in node.body if not isinstance(item, ast.AnnAssign)]
        return self.generic_visit(node)


COMMIT = "ALBERT_COMMIT"
"""Variable that names the commit where the code is not a git checkout, as in an image."""
UNKNOWN_COMMIT = "an unknown commit"
_ROOT = Path(__file__).parents[2]
_GIT_SECONDS = 10
_DIGITS = 12


class Call(Settings):
    """A stage's command line."""

    module: str
    recipe: dict[str, dict[str, Any]]
    """The sections that the stage reads, resolved."""
    options: dict[str, str]
    """The other options by name, without the work folder."""
    rest: dict[str, Any] = Field(default_factory=dict)
    """Of the recipe, resolved: what the stage does not read."""


class Provenance(Settings):
    """How a result was made. None of it is in the result's key."""

    call: Call | None
    """None: the stage was called as a function."""
    commit: str
    """Of the code, in git; empty: unknown."""
    has_local_changes: bool
    """Whether files differ from the commit's."""
    machine: dict[str, str | int]
    """Its cores, cpu and system."""

    def __str__(self) -> str:
        """Return the commit of the code, for a person."""
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
        machine=_machine(),
    )


@cache
def code_commit() -> tuple[str, bool]:
    """Return the commit of this project's code, and whether its files differ from it.

    If the code is not in a git checkout of its own, the commit is that in the variable `COMMIT`, or
    empty.
    """
    try:
        top, commit = _git("rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top).resolve() == _ROOT.resolve():
            return commit, bool(_git("status", "--porcelain"))
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return os.environ.get(COMMIT, ""), False


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    return done.stdout.strip()


@cache
def _machine() -> dict[str, str | int]:
    """Return what a person wants to know of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else platform.processor() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
    }
