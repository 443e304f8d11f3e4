"""Which fine-tunings an evaluation needs, and how they share this machine."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from albert_core.config import EvaluationSettings
from albert_core.stage.environment import VISIBLE, visible_devices, whole_number
from albert_core.stage.errors import TaskError

MNLI = "mnli"
"""The task whose fine-tuned model others may start from."""


@dataclass(frozen=True)
class Planned:
    """One fine-tuning."""

    task: str
    seed: int
    from_mnli: bool
    """Whether it starts from the fine-tuning on MNLI with the same seed."""


@dataclass(frozen=True)
class PlannedTasks:
    """All fine-tunings of an evaluation, and the tasks that it cannot do."""

    runs: list[Planned]
    """MNLI comes first if others start from it."""
    missing: dict[str, str]
    """Task -> why it is not done."""


def planned(
    evaluation: EvaluationSettings,
    present: Sequence[str],
    missing: Mapping[str, str],
    has_pairs: bool,
) -> PlannedTasks:
    """Return what to do.

    Args:
        evaluation: settings.
        present: tasks whose files are there, in order.
        missing: other tasks -> the files that were not found.
        has_pairs: whether there are minimal pairs to score, which need no fine-tuning.

    Raises:
        TaskError: a task that was asked for does not exist, there is nothing to do, or others
            start from MNLI and its files are missing.
    """
    known = [*present, *missing]
    asked = evaluation.tasks or known
    if unknown := [name for name in asked if name not in known]:
        raise TaskError(
            f"there is no task {unknown[0]!r} to fine-tune on; there is {', '.join(known)}."
        )
    tasks = [name for name in present if name in asked]
    reasons = {name: f"there is no {what}" for name, what in missing.items() if name in asked}
    if not tasks and (evaluation.tasks or not has_pairs):
        why = "\n  ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise TaskError(f"there is no task to fine-tune on:\n  {why}")
    starting = [name for name in tasks if name in evaluation.from_mnli]
    if starting and MNLI not in present:
        raise TaskError(
            f"evaluation.from_mnli names {', '.join(starting)}, but the files of MNLI are not "
            "there. Add them, or remove these tasks from the setting."
        )
    if starting:
        tasks = [MNLI, *(name for name in tasks if name != MNLI)]
    seeds = range(evaluation.seed, evaluation.seed + evaluation.num_seeds)
    runs = [Planned(task, seed, from_mnli=task in starting) for task in tasks for seed in seeds]
    return PlannedTasks(runs, reasons)


PROCESSES = "ALBERT_FINETUNING_PROCESSES"
_THREADS = "OMP_NUM_THREADS"


def num_processes() -> int:
    """Return how many fine-tunings run at a time: ALBERT_FINETUNING_PROCESSES, else one a GPU.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(PROCESSES, max(1, len(visible_devices())))


class Slots:
    """Places for the processes that run at a time.

    Args:
        number: number of places.
        devices: the GPUs, which the places get in turn; without any, they share the CPU cores.
    """

    def __init__(self, number: int, devices: list[str]) -> None:
        self._free: SimpleQueue[dict[str, str]] = SimpleQueue()
        threads = str(max(1, len(os.sched_getaffinity(0)) // number))
        for place in range(number):
            environment = {} if number == 1 or _THREADS in os.environ else {_THREADS: threads}
            if devices and number > 1:
                environment[VISIBLE] = devices[place % len(devices)]
            self._free.put(environment)

    @contextmanager
    def taken(self) -> Iterator[dict[str, str]]:
        """Wait for a free place; give the environment variables of a process there."""
        environment = self._free.get()
        try:
            yield environment
        finally:
            self._free.put(environment)
