"""The ranks of a run: who this process is, and sums over all of them. One rank needs nothing.

Start several with ``torchrun``. The gradient of a shared layer is final only when the backward
pass ends, so there is nothing to overlap and one flat sum a step is enough.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that evaluates, logs and saves."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor`` over all ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace each gradient by its sum over all ranks."""
        if self.world_size == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total = self.sum(parameters_to_vector(gradients))
        for gradient, part in zip(
            gradients, total.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Give this process's place, from the environment that ``torchrun`` sets.

    At the end the ranks wait for each other, and all but the first end as processes.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if has_gpu else "gloo")
    ranks = Ranks(rank, world_size, device)
    try:
        yield ranks
        ranks.wait()
    finally:
        if world_size > 1:
            dist.destroy_process_group()
    if not ranks.is_first:
        # Threads of the libraries can abort an interpreter that is being taken down, and the
        # launcher would then end the first rank too.
        os._exit(0)
