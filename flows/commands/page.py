"""How commands lay out a text answer of several parts."""

from collections.abc import Iterable, Mapping


def page(title: str, head: Iterable[str], branches: Mapping[str, Iterable[str]]) -> str:
    """Return a title, the lines of ``head``, and each branch's heading with its lines indented."""
    lines = [title, "=" * len(title), *head]
    for heading, rows in branches.items():
        lines += ["", heading, *(f"  {row}" for row in rows)]
    return "\n".join(lines)
