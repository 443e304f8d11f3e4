"""On which devices this process trains: the environment says it, not the recipe."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from albert_core.distributed import Ranks, joined_ranks


@contextmanager
def ranks_of_environment() -> Iterator[Ranks]:
    """Give this process's place among those that train, as `distributed.joined_ranks` does.

    With ``PJRT_DEVICE`` set it is that of the one process of `albert_core.devices.tpu`.

    Raises:
        ConfigError: ``PJRT_DEVICE`` is set, but torch_xla is not installed, or there are several
            processes.
    """
    if "PJRT_DEVICE" in os.environ:
        from albert_core.devices import tpu  # needs torch_xla

        yield tpu.tpu_ranks()
        return
    with joined_ranks() as ranks:
        yield ranks
