"""How many fine-tunings run at a time, and which devices each of them sees."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from albert_core.contract.whole_numbers import whole_number

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
