"""The activation functions by the names that configurations give them."""
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def gelu_tanh(x: Tensor) -> Tensor:
    """Return x times the normal distribution function of x, by its approximation with a tanh.

    Source: Hendrycks and Gimpel 2016; google-research/albert `modeling.py`, `gelu`.
    """
    # On a CPU a tanh costs more than looking up the value and the slope of each bfloat16.
    if x.dtype == torch.bfloat16 and x.device.type == "cpu" and not torch.compiler.is_compiling():
        value: Tensor = _LookUp.apply(x, *_bfloat16_tables())
        return value
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "linear": nn.Identity(),
}


class _LookUp(torch.autograd.Function):
    """A function of single numbers, by the table of its values and that of its slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        places = x.view(torch.uint16).int().flatten()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(slopes.index_select(0, places).view_as(x))
        return values.index_select(0, places).view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        [slope] = ctx.saved_tensors
        return gradient * slope, None, None


@cache
@torch.inference_mode(mode=False)  # else they would not do for training
def _bfloat16_tables() -> tuple[Tensor, Tensor]:
    """Return the values of `gelu_tanh`, and its slopes, of all 65,536 bfloat16, by their bits.

    All threads share them, and none changes them.
    """
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = numbers.double()
    slopes = torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate="tanh")
    return F.gelu(x, approximate="tanh").bfloat16(), slopes.bfloat16()
