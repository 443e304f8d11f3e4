"""How a result was made: the code that it depends on, the call, the commit and the machine."""

import ast
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from albert_core.stage.machine import this_machine
from albert_core.stage.settings import Settings

_LOGGERS = ("log", "logging", "warnings")
_SETTINGS = ("Settings", "TaskHyperparameters", "TrainingExecution")
"""Base classes of settings."""
FIRST_PARTY = ("albert_core", "pipelines", "flows")
HOW_NOT_WHAT = (
    "albert_core.stage",
    "albert_core.tracking",
    "albert_core.training.run_log",
    "pipelines.engine",
)
"""Modules that affect where, how fast and how visibly a stage runs, but not its result."""
_parsing = threading.Lock()
"""Held while a tree is built. Python 3.11 counts its depth in one place for all threads: if the
garbage collector runs a finalizer meanwhile, another thread may interrupt, and both get a
SystemError."""


@cache
def code_digest(module: str) -> str:
    """Return a digest of the code in ``module`` and in every project module that it reaches.

    What cannot change a result is left out, so that it causes no rebuild: comments, docstrings,
    layout, the wording of errors and log lines, the fields of settings (whose values are in the
    key), and the modules of `HOW_NOT_WHAT`.
    """
    digest = hashlib.sha256()
    for name, source in sorted(reachable_sources(module, HOW_NOT_WHAT).items()):
        digest.update(f"{name}\n{_parse(source)[0]}\n".encode())
    return digest.hexdigest()[:16]


def library_versions(*names: str) -> dict[str, str]:
    """Return the installed version of each library in ``names``, and that of Python.

    Python's version matters because its Unicode tables decide what a letter is.
    """
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found | {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def reachable_sources(module: str, without: Collection[str] = ()) -> dict[str, str]:
    """Return module name -> source for ``module`` and every project module that it reaches.

    Nothing is imported, so that a result can be looked up without torch or Beam.

    Args:
        module: the module to start from.
        without: packages and modules to leave out, with everything reached only through them.
    """
    sources: dict[str, str] = {}
    queue = [_real_name(module)]
    while queue:
        name = queue.pop()
        path = _file_of(name)
        if path is None or name in sources:
            continue
        sources[name] = path.read_text(encoding="utf-8")
        queue.extend(found for found in _parse(sources[name])[1] if not _is_in(found, without))
    return sources


def _real_name(module: str) -> str:
    """Return a module's import name, even if it runs as a program."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module if spec is None else str(spec.name)


def _file_of(module: str) -> Path | None:
    """Return the file of a project module or package; None if it does not exist."""
    package, *inner = module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*inner)
    files = (path / "__init__.py", path.parent / f"{path.name}.py")
    return next((file for file in files if file.is_file()), None)


def _is_in(module: str, rooms: Collection[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def syntax_tree(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Return the tree of a module of Python, also where several threads ask for one.

    Args:
        source: the module.
        file: its name in Python's warnings.
    """
    with _parsing:
        return ast.parse(source, file)


@cache
def _parse(source: str) -> tuple[str, list[str]]:
    """Return what a source does, as text, and the project modules that it imports."""
    reader = _Reader()
    meaning = ast.dump(reader.visit(syntax_tree(source)))
    return meaning, [n for n in reader.names if n.split(".")[0] in FIRST_PARTY and _file_of(n)]


class _Reader(ast.NodeTransformer):
    """Collects imported names, and strips a syntax tree of all that cannot change a result."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """Collect the modules."""
        self.names += [alias.name for alias in node.names]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Collect the module and its names, which may be modules too."""
        if node.module and node.level == 0:
            self.names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove docstrings, other unused strings, and log calls."""
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
"""Variable: the commit of code that is not in a git checkout, as in an image."""
_ROOT = Path(__file__).parents[2]
_GIT_SECONDS = 10
_DIGITS = 12


class Call(Settings):
    """A stage's command line."""

    module: str
    recipe: dict[str, dict[str, Any]]
    """The resolved sections that the stage reads."""
    options: dict[str, str]
    """The other options by name, except the work folder."""
    rest: dict[str, Any] = Field(default_factory=dict)
    """The resolved sections that the stage does not read."""


class Provenance(Settings):
    """How a result was made. None of this is part of the key."""

    call: Call | None
    """None if the stage was called as a function."""
    commit: str
    """Git commit of the code; empty if unknown."""
    has_local_changes: bool
    """Whether files differ from the commit."""
    machine: dict[str, str | int]
    """The machine's cores, cpu and system."""

    def __str__(self) -> str:
        """Describe the commit of the code for a person."""
        if not self.commit:
            return "an unknown commit"
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
        machine=this_machine(),
    )


@cache
def code_commit() -> tuple[str, bool]:
    """Return the commit of this project's code, and whether files differ from it.

    Outside a git checkout, the commit is the value of the variable `COMMIT`, or empty.
    """
    try:
        top, commit = _git("rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top).resolve() == _ROOT.resolve():
            return commit, bool(_git("status", "--porcelain"))
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return os.environ.get(COMMIT, ""), False


def _git(*arguments: str) -> str:
    # A refresh of the index would lock it, and end a `git commit` at the same moment.
    command = ["git", "--no-optional-locks", "-C", str(_ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    return done.stdout.strip()
