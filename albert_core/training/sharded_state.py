"""The state of a model cut over the ranks (FSDP): weights, gradients and the optimizer's moments.

Of every tensor a rank keeps its part of the first dimension. The weights are gathered once an
update, before its first micro-batch, and stay until its last backward pass, which sums the
gradients into the ranks' parts. To gather them layer by layer would save nothing: ALBERT's layers
are one layer. So a device still holds weights and gradients whole, and its part of all the rest.

A tensor that is not cut is its own part, and a whole: every function here takes it too.

Source: Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO", section 5.
"""
# ruff: noqa: SLF001 - torch's functions over lists of tensors have no public names

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from albert_core.training.ranks import Ranks


def shard_state(model: nn.Module, ranks: Ranks) -> None:
    """Cut the weights of ``model`` over the ranks, in place; the optimizer is to be made after it.

    Args:
        model: on the ranks' device, with the same weights on each; has ``forward_packed``.
        ranks: at least two.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(model, "forward_packed")
    assert isinstance(model, FSDPModule)
    # The loss of a rank is its part of one mean over the update, so gradients are summed.
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def is_sharded(model: nn.Module) -> bool:
    """Return whether the weights of ``model`` are cut over ranks."""
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
    """Hold the weights whole in the block, so that a rank may use them without the others."""
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
    """Return this rank's part of each tensor; to change it changes the tensor."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]


def whole(tree: Any) -> Any:
    """Return ``tree`` with whole tensors; of parts, every rank calls this at once.

    Those gathered are on the CPU, and are gathered one by one, so that the device never needs
    room for all of them.
    """
    return pytree.tree_map_only(DTensor, lambda part: part.full_tensor().cpu(), tree)


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole ``tensor``, the same on every rank, cut as ``like`` is and on its device."""
    if not isinstance(like, DTensor):
        return tensor
    on_device = tensor.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def norms_of(parts: list[Tensor], of: list[Tensor]) -> Tensor:
    """Return (n,), the length of each tensor.

    Args:
        parts: this rank's part of each; at least one.
        of: tensors that are cut as those are whose parts are given.
    """
    norms = torch.stack(torch._foreach_norm(parts))
    if not isinstance(of[0], DTensor):
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=of[0].device_mesh.get_group())
    return squares.sqrt()
