"""Dense layers, whose weights a CPU casts and lays out once for all layers that share them.

oneDNN's products are faster with the weight in an order of its own. To put it there costs up to a
tenth of a product, and memory, so it pays where a weight is used again in the same pass.
"""

# mypy: disable-error-code="no-untyped-call"
# ruff: noqa: SLF001 - torch's own names for oneDNN's products begin so

import platform

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_IN_THIS_PASS: ContextVar["dict[nn.Module, _LaidOut] | None"] = ContextVar(
    "_IN_THIS_PASS", default=None
)
"""Each thread has its own: passes of one model in several threads share nothing but its weights."""


def weights_laid_out_once() -> AbstractContextManager[None]:
    """Within, a `Linear` on a CPU casts its weight and lays it out at its first use only.

    No weight may change within. The gradients of the uses are summed in the weight's own
    precision, whatever the products' is.
    """
    return _within({})


def then_and_again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts in which `checkpoint` computes a block, and computes it again."""
    return nullcontext(), _within(_IN_THIS_PASS.get())


@contextmanager
def _within(laid_out: "dict[nn.Module, _LaidOut] | None") -> Iterator[None]:
    before = _IN_THIS_PASS.set(laid_out)
    try:
        yield
    finally:
        _IN_THIS_PASS.reset(before)


class Linear(nn.Linear):
    """`nn.Linear`, and within `weights_laid_out_once` a faster one where oneDNN has it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (T, outputs) of (T, inputs)."""
        laid_out = _IN_THIS_PASS.get()
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        if laid_out is None or torch.compiler.is_compiling() or not _has_product(x, dtype):
            return super().forward(x)
        if self not in laid_out:
            laid_out[self] = _LaidOut(self.weight, self.bias, dtype)
        used = laid_out[self]
        product: Tensor = _Product.apply(x.to(dtype), used.signal, used)
        return product


class _LaidOut:
    """A weight as oneDNN's products take it, for the way there and back; and its gradient.

    The uses add their gradients to the ``sums``. The ``signal`` that each has taken tells autograd
    when the last has done so: their gradients of it are nothing, and those of `_Signal` the sums.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self._weight, self._bias = weight.detach().to(dtype), bias.detach().to(dtype)
        self._there = torch.ops.mkldnn._reorder_linear_weight(self._weight)
        self.sums = _Sum(weight.dtype), _Sum(bias.dtype)
        self.signal: Tensor = _Signal.apply(weight, bias, self.sums)

    @cached_property
    def _back(self) -> Tensor:
        back: Tensor = torch.ops.mkldnn._reorder_linear_weight(self._weight.t())
        return back

    def there(self, x: Tensor) -> Tensor:
        """Return (T, outputs) of (T, inputs)."""
        return _times(x, self._there, self._bias)

    def back(self, gradient: Tensor) -> Tensor:
        """Return (T, inputs) of (T, outputs)."""
        return _times(gradient, self._back, None)


class _Sum:
    """A sum in a precision of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._total: Tensor | None = None

    def add(self, part: Tensor) -> None:
        """Add ``part``, which is the caller's no more."""
        part = part.to(self._dtype)
        self._total = part if self._total is None else self._total.add_(part)

    def take(self) -> Tensor | None:
        """Return the total, or None of no parts, and begin again."""
        total, self._total = self._total, None
        return total


class _Signal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, sums: tuple[_Sum, _Sum]) -> Tensor:
        ctx.sums = sums  # not what is laid out: that has this signal, and would never be freed
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        of_weight, of_bias = ctx.sums
        return of_weight.take(), of_bias.take(), None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signal: Tensor, laid_out: _LaidOut) -> Tensor:
        ctx.save_for_backward(x, signal)
        ctx.laid_out = laid_out
        return laid_out.there(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        x, signal = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            of_weight, of_bias = ctx.laid_out.sums
            of_weight.add(gradient.t() @ x)
            of_bias.add(gradient.sum(0))
        of_x = ctx.laid_out.back(gradient) if ctx.needs_input_grad[0] else None
        return of_x, torch.zeros_like(signal), None


def _times(x: Tensor, laid_out: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid_out, bias, "none", [], "")
    return product


def _has_product(x: Tensor, dtype: torch.dtype) -> bool:
    return x.device.type == "cpu" and _has_products(dtype)


@cache
def _has_products(dtype: torch.dtype) -> bool:
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


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
