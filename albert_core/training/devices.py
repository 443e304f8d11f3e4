"""On which devices this process trains, and on which a run did.

The environment says it, not the recipe. The order in which numbers are summed depends on the ranks,
on each one's threads, on the width of the processor's vectors and on the device: runs that differ
in one of them differ by rounding.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from pydantic import ValidationError

from albert_core.config import Precision
from albert_core.model.execution import device_here
from albert_core.stage import errors, manifest, results, settings, storage
from albert_core.training.ranks import Ranks

_WAITS = timedelta(minutes=30)
"""How long a rank waits for the others in one sum. The first one alone counts the first weights,
writes and reports, which takes it minutes; a lost connection is noticed at once."""
MACHINES = "machines.json"
"""Beside a run's manifest: what it ran on, from its first process to its last."""
_LIST = "machines"

log = logging.getLogger(__name__)


@contextmanager
def ranks_of_environment(
    precision: Precision = "float32", deterministic: bool = False
) -> Iterator[Ranks]:
    """Give this process's place among those that train, from the environment that torchrun sets.

    At the end the ranks wait for each other, and all but the first end as processes. When one
    fails, it leaves immediately, and the others find out. With ``PJRT_DEVICE`` set, the place is
    that of the one process of `albert_core.training.tpu`. See `device_here` for the arguments.

    Raises:
        ConfigError: ``PJRT_DEVICE`` is set, but torch_xla is not installed, or there are several
            processes; or there are more processes on this host than GPUs, or torch cannot use the
            GPU.
    """
    if "PJRT_DEVICE" in os.environ:
        from albert_core.training.tpu import tpu_ranks  # needs torch_xla

        yield tpu_ranks()
        return
    rank, world_size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    device = device_here(precision, deterministic, local_rank)
    has_gpu = device.type == "cuda"
    if has_gpu:
        if local_rank >= torch.cuda.device_count():
            raise errors.ConfigError(
                f"there is no GPU for process {local_rank} of this host, whose GPUs are 0 to "
                f"{torch.cuda.device_count() - 1}. Start as many as there are GPUs: see "
                "ALBERT_TRAINING_PROCESSES and CUDA_VISIBLE_DEVICES."
            )
        torch.cuda.set_device(device)
    votes = None
    if world_size > 1:
        _end_with_the_launcher()
        meeting = os.environ.get(settings.MEETING_FILE)
        with Ranks(rank, world_size, device).ending_when_alone():
            dist.init_process_group(
                "nccl" if has_gpu else "gloo",
                init_method=f"file://{meeting}" if meeting else "env://",
                rank=rank,
                world_size=world_size,
                timeout=_WAITS,
                device_id=device if has_gpu else None,
            )
            # What the processes agree on must not wait for their GPUs.
            votes = dist.new_group(backend="gloo", timeout=_WAITS) if has_gpu else None
    ranks = Ranks(rank, world_size, device, votes=votes)
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
    now = results.Machine(
        ranks=world_size,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        vectors=torch.backends.cpu.get_cpu_capability(),
    )
    before = noted_machines(folder)
    if now not in before:
        noted = [machine.model_dump() for machine in (*before, now)]
        storage.write_bytes(storage.join(folder, MACHINES), manifest.sealed({_LIST: noted}))


def noted_machines(folder: str) -> list[results.Machine]:
    """Return what the run in ``folder`` computed on, each once; several if it was moved.

    Of a damaged list nothing is known any more, which is logged.
    """
    uri = storage.join(folder, MACHINES)
    if not storage.exists(uri):
        return []
    try:
        return [results.Machine(**each) for each in manifest.unsealed(uri)[_LIST]]
    except (errors.IntegrityError, KeyError, TypeError, ValidationError) as error:
        log.warning("%s: what the run computed on before is not known any more (%s)", uri, error)
        return []
