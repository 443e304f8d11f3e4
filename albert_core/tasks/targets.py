"""Targets from labels and scores as files write them."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from albert_core.contract.errors import TaskError
from albert_core.tasks.examples import Task

HIDDEN = frozenset({"-1", ""})
"""What stands in a test file's label column when the labels are kept back."""


def targets_of(
    task: Task, values: Sequence[str], lines: Sequence[int], uri: str
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return the targets of N examples: int64 (N,) of classification, float64 (N,) of regression.

    Args:
        task: whose labels they are.
        values: N labels or numbers, as the file writes them.
        lines: (N,), the line of each, for messages.
        uri: of the file, for messages.

    Raises:
        TaskError: one is no label of the task, or no number.
    """
    if task.kind == "regression":
        return np.array(
            [_number(value, line, uri) for value, line in zip(values, lines, strict=True)],
            np.float64,
        )
    index_of = {label: index for index, label in enumerate(task.labels)}
    targets = [index_of.get(value, -1) for value in values]
    if -1 in targets:
        row = targets.index(-1)
        raise TaskError(
            f"{uri}, line {lines[row]}: label {values[row]!r}, expected one of "
            f"{', '.join(task.labels)}. Correct or remove the line."
        )
    return np.array(targets, np.int64)


def are_hidden(values: Sequence[str]) -> bool:
    """Return whether the labels are kept back, as test files do."""
    return all(value in HIDDEN for value in values)


def _number(value: str, line: int, uri: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TaskError(
            f"{uri}, line {line}: score {value!r}, expected a number. Correct or remove the line."
        )
    return number
