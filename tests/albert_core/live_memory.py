"""What a computation keeps and takes, counted tensor by tensor: the same on any machine."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def saved_bytes(compute: Callable[[], object], but: Iterable[Tensor]) -> int:
    """Return the bytes that autograd keeps for the backward pass, each storage once.

    Args:
        compute: the forward pass.
        but: tensors that are there anyway.
    """
    there = {tensor.untyped_storage()._cdata for tensor in but}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in there:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = compute()  # so that no storage is freed, and its number given to another
    del held
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class LiveBytes(TorchDispatchMode):
    """While it is active, counts the bytes of all storages made and not yet freed.

    Args:
        but: tensors that are there anyway.
    """

    def __init__(self, but: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._there = [tensor.untyped_storage() for tensor in but]
        self._known = weakref.WeakValueDictionary({s._cdata: s for s in self._there})

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, Tensor):
                continue
            if leaf.is_mkldnn:  # no storage, and always new
                self._add(leaf, torch.ops.mkldnn._nbytes(leaf))
            elif leaf.untyped_storage()._cdata not in self._known:
                storage = leaf.untyped_storage()
                self._known[storage._cdata] = storage
                self._add(storage, storage.nbytes())
        return result

    def _add(self, owner: object, num_bytes: int) -> None:
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(owner, self._freed, num_bytes)

    def _freed(self, num_bytes: int) -> None:
        self.now -= num_bytes
