"""Which fine-tunings an evaluation takes: of which tasks, with which seeds, from which model."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from albert_core.config import EvaluationSettings
from albert_core.stage.environment import whole_number
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
    """All fine-tunings of an evaluation, and the tasks that it can't do."""

    runs: list[Planned]
    """MNLI's first, if others start from it."""
    missing: dict[str, str]
    """Why a task is not done, by its name."""


def planned(
    evaluation: EvaluationSettings, present: Sequence[str], missing: Mapping[str, str]
) -> PlannedTasks:
    """Return what to do.

    Args:
        evaluation: settings.
        present: tasks whose files are there, in order.
        missing: of the others, what was looked for.

    Raises:
        TaskError: a task that was asked for is none, there is nothing to do, or the files of MNLI
            are missing and others are to start from it.
    """
    asked = evaluation.tasks
    if unknown := [name for name in asked if name not in {*present, *missing}]:
        raise TaskError(
            f"there is no task {unknown[0]!r} to fine-tune on; there is "
            f"{', '.join([*present, *missing])}."
        )
    tasks = [name for name in present if name in asked or not asked]
    reasons = {
        name: f"there is no {what}" for name, what in missing.items() if name in asked or not asked
    }
    if not tasks:
        why = "\n  ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise TaskError(f"no task to fine-tune on is there:\n  {why}")
    starting = [name for name in tasks if name in evaluation.from_mnli]
    if starting and MNLI not in present:
        raise TaskError(
            f"evaluation.from_mnli names {', '.join(starting)}, but the files of MNLI are not "
            "there. Add them, or take these tasks out of the setting."
        )
    if starting:
        tasks = [MNLI, *(name for name in tasks if name != MNLI)]
    return PlannedTasks(
        runs=[
            Planned(task, seed, from_mnli=task in starting)
            for task in tasks
            for seed in seeds_of(evaluation)
        ],
        missing=reasons,
    )


def seeds_of(evaluation: EvaluationSettings) -> list[int]:
    """Return the seeds of each task's fine-tunings: the setting and those that follow it."""
    return [evaluation.seed + number for number in range(evaluation.num_seeds)]


PROCESSES = "ALBERT_FINETUNING_PROCESSES"
"""The variable that says how many."""
_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


def num_processes() -> int:
    """Return how many fine-tunings may run at a time: ALBERT_FINETUNING_PROCESSES, else 1.

    Raises:
        ConfigError: that is not a whole number above 0.
    """
    return whole_number(PROCESSES, 1)


class Slots:
    """A place for each of the processes that run at a time.

    Args:
        number: of them.
        devices: the GPUs there are, dealt out in turn; none: the CPU's cores are shared out.
    """

    def __init__(self, number: int, devices: list[str]) -> None:
        self._free: SimpleQueue[dict[str, str]] = SimpleQueue()
        threads = str(max(1, len(os.sched_getaffinity(0)) // number))
        for place in range(number):
            environment = {} if number == 1 or _THREADS in os.environ else {_THREADS: threads}
            if devices and number > 1:
                environment[_VISIBLE] = devices[place % len(devices)]
            self._free.put(environment)

    @contextmanager
    def taken(self) -> Iterator[dict[str, str]]:
        """Wait for a free place; give the variables that a process there is to have."""
        environment = self._free.get()
        try:
            yield environment
        finally:
            self._free.put(environment)


def visible_devices() -> list[str]:
    """Return the GPUs of this machine, as CUDA_VISIBLE_DEVICES names them, without torch."""
    if _VISIBLE in os.environ:
        return [name for name in os.environ[_VISIBLE].split(",") if name]
    found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(found, key=int)
