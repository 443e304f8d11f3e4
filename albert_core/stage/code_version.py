"""Which code a result depends on: a digest of a module and of all it imports of this project."""

import ast
import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

FIRST_PARTY = ("albert_core", "pipelines", "flows")
HOW_NOT_WHAT = frozenset(
    {
        "albert_core.stage.loaded_once",
        "albert_core.stage.provenance",
        "pipelines.engine.dask_cluster",
        "pipelines.engine.runner",
        "pipelines.engine.job_server",
        "pipelines.engine.kept_files",
        "pipelines.engine.progress",
        "pipelines.engine.steps",
    }
)
"""Where and how visibly stages run, and what is noted of it. The same bytes on every engine are
tested, so that a change here rebuilds nothing."""


@cache
def code_digest(module: str) -> str:
    """Return a digest of the syntax of ``module`` and of every project module it reaches.

    Comments, docstrings and layout do not count, so that explaining a line does not rebuild a
    corpus; nor do the modules of `HOW_NOT_WHAT`.
    """
    digest = hashlib.sha256()
    for name, source in sorted(reachable_sources(module, HOW_NOT_WHAT).items()):
        digest.update(f"{name}\n{_meaning(source)}\n".encode())
    return digest.hexdigest()[:16]


def library_versions(*names: str) -> dict[str, str]:
    """Return the installed version of each library in ``names``, and Python's.

    Python's counts because its Unicode tables decide what is a letter.
    """
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def reachable_sources(module: str, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the source of ``module`` and of every project module it reaches, by name.

    Args:
        module: where to begin.
        without: modules to leave out, and what is reached through them alone.
    """
    sources: dict[str, str] = {}
    queue = [module]
    while queue:
        spec = find_spec(queue.pop())
        if spec is None or spec.origin is None or spec.name in sources:
            continue
        name = spec.name  # of "__main__" too, so that a stage run by hand is the same one
        sources[name] = Path(spec.origin).read_text(encoding="utf-8")
        queue.extend(found for found in _imports(sources[name]) if found not in without)
    return sources


def _imports(source: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.split(".")[0] in FIRST_PARTY and _is_module(name)]


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _meaning(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _is_bare_string(item)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_bare_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
