"""The ranks of a run: sums over all of them, and state that is sharded over them.

The gradient of a shared layer is final only when the backward pass ends, so there is nothing to
overlap, and one flat sum a step is enough.

With FSDP, a rank keeps its part of the first dimension of every tensor. The weights are gathered
once an update, before its first micro-batch, and stay until its last backward pass, which sums the
gradients into the ranks' parts. Gathering them layer by layer would save nothing, because ALBERT's
layers are one layer. A device therefore still holds the weights and gradients whole, and only its
part of everything else. Functions that take a sharded tensor also take a whole one.

Source: Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO", section 5.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import parameters_to_vector
from torch.utils import _pytree as pytree

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.execution import set_layer_execution
from albert_core.stage.command import RunAgain

_LOST = re.compile(r"\[[^\]\s]*gloo/\S+:\d+\] ")
"""How gloo begins what it says of a connection: it has no error class of its own. What it says of
its arguments begins with "[enforce fail at"."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model, and its device."""

    rank: int
    world_size: int
    device: torch.device
    votes: dist.ProcessGroup | None = field(default=None, kw_only=True)
    """All ranks, for what their processors agree on; None: those of the sums."""
    num_chips: int = field(default=0, kw_only=True)
    """Chips of a TPU that split the sequences of each padded batch; 0: batches are packed."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that evaluates, logs and saves."""
        return self.rank == 0

    def place(
        self, model: AlbertForPretraining, settings: TrainingSettings
    ) -> AlbertForPretraining:
        """Return ``model`` on the device, its layers computed as ``settings`` say."""
        model = model.to(self.device)
        blocks = model.encoder.blocks
        set_layer_execution(blocks, settings.compile, settings.activation_checkpointing)
        return model

    def seed(self, seed: int) -> None:
        """Make all later random draws on the device depend on ``seed`` alone."""
        torch.manual_seed(seed)

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor of a batch on the device; a copy from pinned memory does not block."""
        return tensor.to(self.device, non_blocking=True)

    def any_rank(self, what: bool) -> bool:
        """Return whether ``what`` is true on any rank, without waiting for a device."""
        if self.world_size > 1:
            vote = torch.tensor(float(what))
            with self.ending_when_alone():
                dist.all_reduce(vote, group=self.votes)
            what = bool(vote.item())
        return what

    def begin_pending(self) -> None:
        """Let the device begin what was recorded; CPU and CUDA record nothing."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor`` over all ranks; the same bits on each.

        Raises:
            RunAgain: another rank is gone.
        """
        if self.world_size > 1:
            with self.ending_when_alone():
                dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, model: nn.Module, extra: Tensor) -> Tensor:
        """Replace each gradient by its sum over all ranks; return the sum of ``extra``.

        Args:
            model: on every rank the same parameters have a gradient.
            extra: float (N,), numbers that travel with the gradients.
        """
        if self.world_size == 1:
            return extra
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total = self.sum(torch.cat([parameters_to_vector(gradients), extra]))
        sizes = [gradient.numel() for gradient in gradients]
        *parts, extra = total.split([*sizes, len(extra)])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return extra

    def take_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors, on any device, by those of the first rank.

        Processors of other kinds draw and compute other bits from the same seed.

        Raises:
            RunAgain: another rank is gone.
        """
        if self.world_size > 1:
            with self.ending_when_alone(), torch.no_grad():
                for tensor in tensors:
                    of_first = tensor.to(self.device)
                    dist.broadcast(of_first, 0)
                    tensor.copy_(of_first)

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            with self.ending_when_alone():
                dist.barrier()

    @contextmanager
    def ending_when_alone(self) -> Iterator[None]:
        """Raise `RunAgain` if torch reports in the block that another rank is gone.

        Any other error is this rank's own, and would come again.
        """
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and not _LOST.match(str(error)):
                raise
            reason = str(error).partition("\n")[0][:200]
            log.warning(
                "rank %d: another rank is gone (%s). Its own message says why, if it had time for "
                "one; the same command goes on from the newest checkpoint.",
                self.rank,
                reason,
            )
            raise RunAgain from error


ALONE = Ranks(0, 1, torch.device("cpu"))
"""A single process. Its device does not matter: a sum over one rank moves nothing."""


def shard_state(model: nn.Module, ranks: Ranks) -> None:
    """Shard the weights of ``model`` over the ranks, in place; make the optimizer afterwards.

    Args:
        model: on the ranks' device, with the same weights on each; has ``forward_packed``.
        ranks: at least two.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(model, "forward_packed")
    assert isinstance(model, FSDPModule)
    # A rank's loss is its part of one mean over the update, so gradients are summed.
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo has no other


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights of ``model`` are sharded over ranks."""
    return isinstance(model, FSDPModule)


@contextmanager
def backward_pass(model: nn.Module, ranks: Ranks, is_last: bool) -> Iterator[None]:
    """Sum the gradients over the ranks in the block's backward pass if it is the update's last."""
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_requires_gradient_sync(is_last)
    model.set_reshard_after_backward(is_last)
    with ranks.ending_when_alone() if is_last else nullcontext():
        yield


@contextmanager
def gathered(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Keep the weights whole in the block, so that a rank may use them without the others."""
    if not isinstance(model, FSDPModule):
        yield
        return
    with ranks.ending_when_alone():
        model.unshard()
    try:
        yield
    finally:
        model.reshard()


def parts_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each tensor; changing it changes the tensor."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]


def whole(tree: Any) -> Any:
    """Return ``tree`` with whole tensors. If some are sharded, every rank must call this.

    Gathered tensors are on the CPU, and are gathered one by one, so that the device never needs
    room for all of them.
    """
    return pytree.tree_map_only(DTensor, lambda part: part.full_tensor().cpu(), tree)


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole ``tensor``, equal on every rank, sharded like ``like``, on its device."""
    if not isinstance(like, DTensor):
        return tensor
    on_device = tensor.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)
