"""State that is sharded over the ranks, by FSDP. Functions that take it also take whole tensors.

A rank keeps its part of the first dimension of every tensor. The weights are gathered once an
update, before its first micro-batch, and stay until its last backward pass, which sums the
gradients into the ranks' parts. Gathering them layer by layer would save nothing, because ALBERT's
layers are one layer. A device therefore still holds the weights and gradients whole, and only its
part of everything else.

Source: Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO", section 5.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from albert_core.training.ranks import Ranks


def shard_state(model: nn.Module, ranks: Ranks) -> None:
    """Shard the weights of ``model`` over the ranks, in place; make the optimizer afterwards.

    Args:
        model: on the ranks' device, with the same weights on each.
        ranks: at least two.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
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
