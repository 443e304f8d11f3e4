"""On which devices this process trains, and on which a run did.

The environment says it, not the recipe. The order in which numbers are summed depends on the ranks,
on each one's threads, on the width of the processor's vectors and on the device: runs that differ
in one of them differ by rounding.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from albert_core.stage import storage
from albert_core.stage.results import Machine
from albert_core.training.ranks import Ranks

MACHINES = "machines.json"
"""Beside a run's manifest: what it ran on, from its first process to its last."""
_MACHINES = TypeAdapter(list[Machine])


@contextmanager
def ranks_of_environment() -> Iterator[Ranks]:
    """Give this process's place among those that train, from the environment that torchrun sets.

    At the end the ranks wait for each other, and all but the first end as processes. When one
    fails, it leaves immediately, and the others find out. With ``PJRT_DEVICE`` set, the place is
    that of the one process of `albert_core.training.tpu`.

    Raises:
        ConfigError: ``PJRT_DEVICE`` is set, but torch_xla is not installed, or there are several
            processes.
    """
    if "PJRT_DEVICE" in os.environ:
        from albert_core.training.tpu import tpu_ranks  # needs torch_xla

        yield tpu_ranks()
        return
    rank, world_size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        _end_with_the_launcher()
        dist.init_process_group("nccl" if has_gpu else "gloo")
    ranks = Ranks(rank, world_size, device)
    yield ranks
    ranks.wait()
    if world_size > 1:
        dist.destroy_process_group()
    if not ranks.is_first:
        # Threads of the libraries can abort an interpreter that is being taken down, and the
        # launcher would then end the first rank too.
        os._exit(0)


def _end_with_the_launcher() -> None:
    """Have the kernel kill this rank when its launcher dies: a sum over lost ranks can hang."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def note_machine(folder: str, world_size: int, device: torch.device) -> None:
    """Add what this process computes on to the list in the run's ``folder``, unless it is there."""
    now = Machine(
        ranks=world_size,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        vectors=torch.backends.cpu.get_cpu_capability(),
    )
    before = noted_machines(folder)
    if now not in before:
        content = _MACHINES.dump_json([*before, now], indent=1) + b"\n"
        storage.write_bytes(storage.join(folder, MACHINES), content)


def noted_machines(folder: str) -> list[Machine]:
    """Return what the run in ``folder`` computed on, each once; several if it was moved."""
    uri = storage.join(folder, MACHINES)
    return _MACHINES.validate_json(storage.read_bytes(uri)) if storage.exists(uri) else []
