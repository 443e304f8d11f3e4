"""How the layers are computed, not what: in which precision, compiled, again on the way back."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from albert_core.config import Precision
from albert_core.model.albert import AlbertForPretraining
from albert_core.model.dense import then_and_again


def set_layer_execution(
    model: AlbertForPretraining, compiled: bool, activation_checkpointing: bool
) -> None:
    """Change how each block of ``model`` is computed, in place; names of weights stay.

    A block that layers share is compiled once. Activation checkpointing keeps each block's input
    only, and computes the rest again in the backward pass, with the same dropout.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for block in [*model.encoder.attentions, *model.encoder.feed_forwards]:
        if compiled:
            block.compile()
        if activation_checkpointing:
            # The instance's own attribute, which is called instead of the class's method.
            forward = partial(
                checkpoint, block.forward, use_reentrant=False, context_fn=then_and_again
            )
            block.forward = forward


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which matrix products are of ``precision``; weights stay float32."""
    if precision == "float32":
        return nullcontext()
    # Without the cache each use of a shared weight has its own cast, so that autograd sums the
    # uses' gradients in float32.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
