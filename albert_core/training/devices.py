"""On which devices this process trains, and on which a run did.

The environment says it, not the recipe. The order in which numbers are summed depends on the ranks,
on each one's threads, on the width of the processor's vectors and on the device: runs that differ
in one of them differ by rounding.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from albert_core.stage import storage
from albert_core.training.ranks import Ranks, joined_ranks


@contextmanager
def ranks_of_environment() -> Iterator[Ranks]:
    """Give this process's place among those that train, as `distributed.joined_ranks` does.

    With ``PJRT_DEVICE`` set it is that of the one process of `albert_core.training.tpu`.

    Raises:
        ConfigError: ``PJRT_DEVICE`` is set, but torch_xla is not installed, or there are several
            processes.
    """
    if "PJRT_DEVICE" in os.environ:
        from albert_core.training import tpu  # needs torch_xla

        yield tpu.tpu_ranks()
        return
    with joined_ranks() as ranks:
        yield ranks


MACHINES = "machines.json"
"""Beside a run's manifest: what it ran on, from its first process to its last."""
RANKS, THREADS, DEVICE, VECTORS = "ranks", "threads", "device", "vectors"

Machine = dict[str, str | int]


def note_machine(folder: str, world_size: int, device: torch.device) -> None:
    """Add what this process computes on to the list in the run's ``folder``, if it is new there."""
    before = noted_machines(folder)
    now = describe_machine(world_size, device)
    if now not in before:
        content = json.dumps([*before, now], indent=1) + "\n"
        storage.write_bytes(storage.join(folder, MACHINES), content.encode())


def noted_machines(folder: str) -> list[Machine]:
    """Return what the run in ``folder`` computed on, each once; several if it was moved."""
    uri = storage.join(folder, MACHINES)
    if not storage.exists(uri):
        return []
    machines: list[Machine] = json.loads(storage.read_bytes(uri))
    return machines


def describe_machine(world_size: int, device: torch.device) -> Machine:
    """Return ranks, threads of each, device, and the vectors that torch computes with."""
    is_cuda = device.type == "cuda"
    return {
        RANKS: world_size,
        THREADS: torch.get_num_threads(),
        DEVICE: torch.cuda.get_device_name(device) if is_cuda else device.type,
        VECTORS: torch.backends.cpu.get_cpu_capability(),
    }
