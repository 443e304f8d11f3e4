"""What several threads get that ask one model at the same time, as MLflow's server does."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.threads import in_threads

_TOLERANCE = 1e-5
Request = TypeVar("Request")


@dataclass
class Tally:
    """How the answers differ from those that one thread gets."""

    wrong: int = 0
    failed: int = 0
    error: str = ""
    """Of the first that failed."""


def asked_at_once(
    ask: Callable[[Request], Any], requests: Sequence[Request], expected: Sequence[Any]
) -> Tally:
    """Ask each request once, eight threads at a time, and compare with what is expected."""

    def answer(request: Request) -> Any:
        try:
            return ask(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            return error

    tally = Tally()
    for said, right in zip(in_threads(answer, requests), expected, strict=True):
        if isinstance(said, Exception):
            tally.failed += 1
            tally.error = tally.error or f"{type(said).__name__}: {said}"
        elif not alike(said, right):
            tally.wrong += 1
    return tally


def alike(one: Any, other: Any) -> bool:
    """Return whether two answers are the same but for the last digits of their numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=_TOLERANCE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)
