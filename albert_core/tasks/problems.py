"""Which problem a task is."""

from typing import Any

from albert_core.config import FinetuningSettings
from albert_core.tasks.examples import Task
from albert_core.tasks.problem import Problem
from albert_core.tasks.spans import SpanProblem
from albert_core.tasks.texts import ChoiceProblem, TextProblem


def problem_of(task: Task, settings: FinetuningSettings) -> Problem[Any]:
    """Return how ``task`` is learned and scored."""
    if task.kind == "choice":
        return ChoiceProblem(task)
    if task.kind == "spans":
        return SpanProblem(task, settings.spans)
    return TextProblem(task)
