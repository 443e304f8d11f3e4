"""How the model is computed, not what: precision, recomputation, compilation and fast paths.

A fast path does what plain PyTorch does, up to rounding, where PyTorch's own way is slow. The plain
version stands beside each, and `is_fast` alone chooses between the two.

Dimensions: T pieces of a packed batch.
"""

# mypy: disable-error-code="no-untyped-call"
# ruff: noqa: SLF001 - PyTorch has no public names for oneDNN's products

import logging
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, cached_property, partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albert_core.config import Precision
from albert_core.stage.errors import ConfigError
from albert_core.stage.machine import VISIBLE, has_fast_bfloat16, visible_devices

log = logging.getLogger(__name__)

FastPath = Literal["layout", "table", "products", "buckets", "rows", "kernel", "casts", "stream"]


def is_fast(
    path: FastPath, device: torch.device, dtype: torch.dtype, head_size: int | None = None
) -> bool:
    """Return whether ``path`` is faster than plain PyTorch.

    The last column is the time of plain PyTorch over that of the fast path, forward and backward,
    on one core of an AMD EPYC at the sizes of ALBERT base; that of "buckets" is for a whole model,
    whose last layer asks for some rows only. Those on CUDA are counted and not measured
    (`benchmarks/counted_update.py`): the kernel replaces hundreds of small ones a layer, "casts"
    spares a third of all kernels, and "stream" two fifths of the bytes that an update of base moves
    outside products and attention.

    ========== ======================================== ========================== ================
    path       instead of                               taken on                   plain / fast
    ========== ======================================== ========================== ================
    "layout"   casting and laying out a weight each use CPU with oneDNN's products 1.6; bf16: 1.1
    "table"    computing a tanh for each number         CPU, bfloat16              1.9
    "products" fused attention                          CPU, bfloat16              2.8 to 4.6
    "buckets"  attention for each length by itself      CPU                        1.1; bf16: 1.0
    "rows"     a float32 copy of all logits             CPU                        1.9; bf16: 5.3
    "kernel"   attention for each length by itself      CUDA 8.0, half precision   not measured
    "casts"    casting a weight at each of its uses     CUDA, half precision       not measured
    "stream"   float32 between products and in norms    CUDA, half precision       not measured
    ========== ======================================== ========================== ================

    ``benchmarks/README.md`` has the times of whole updates. `torch.compile` gets the plain versions
    of "layout", "table" and "buckets".
    """
    if path == "kernel":
        fits = head_size is not None and head_size % 8 == 0 and head_size <= 256
        is_half = dtype in (torch.bfloat16, torch.float16)
        is_possible = fits and is_half and device.type == "cuda"
        return is_possible and torch.cuda.get_device_capability(device) >= (8, 0)
    if path in ("casts", "stream"):
        return device.type == "cuda" and dtype != torch.float32
    if device.type != "cpu":
        return False
    if path in ("layout", "table", "buckets") and torch.compiler.is_compiling():
        return False
    if path == "layout":
        return _has_products(dtype)
    return dtype == torch.bfloat16 or path not in ("table", "products")


@cache
def _has_products(dtype: torch.dtype) -> bool:
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


# Device, precision, compilation and recomputation


def device_here(
    precision: Precision, deterministic: bool = False, local_rank: int = 0
) -> torch.device:
    """Return the device that this process computes on, as its environment says.

    The first process of a host logs it.

    Args:
        precision: of the matrix products.
        deterministic: whether CUDA shall give the same bits each time. All of the process's later
            work then does, by slower algorithms where torch has them, and an error where not. No
            other work on CUDA may come before.
        local_rank: the number of this process among those of this host, from 0.

    Raises:
        ConfigError: there is a GPU, but torch cannot use it, or has no bfloat16 on it.
    """
    if not torch.cuda.is_available():
        if gpus := visible_devices():
            raise ConfigError(
                f"this machine has {len(gpus)} NVIDIA GPU(s), but torch {torch.__version__} cannot "
                "use them: it was built without CUDA, or for a newer driver. Install a torch for "
                "the CUDA version that nvidia-smi shows (https://pytorch.org/get-started), or set "
                f"{VISIBLE}= (empty) to compute on the CPU."
            )
        if local_rank == 0:
            log.info("on the CPU, %d threads, products in %s", torch.get_num_threads(), precision)
            if precision == "bfloat16" and not has_fast_bfloat16():
                log.warning(
                    "this processor has no products in bfloat16, and an update may take many times "
                    'as long as with precision = "float32" (training.precision, '
                    "finetuning.precision)"
                )
        return torch.device("cpu")
    name = torch.cuda.get_device_name()
    if precision == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"{name} has no products in bfloat16, and torch would emulate them, slowly. Set "
            'precision = "float32" (training.precision, finetuning.precision), or take a GPU of '
            "compute capability 8.0 or higher."
        )
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is refused
        torch.use_deterministic_algorithms(True)
        # Nothing here reads what it did not write, so it need not be the same.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if local_rank == 0:
        bits = "the same bits each time" if deterministic else "the same each time up to rounding"
        log.info("on %s, products in %s, %s", name, precision, bits)
    return torch.device("cuda", local_rank)


def products_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which matrix products have ``precision``; weights stay float32."""
    if precision == "float32":
        return nullcontext()
    # Without the cache each use of a shared weight has its own cast, so that autograd sums the
    # gradients of the uses in float32.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def dtype_of_products(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.dtype:
    """Return the precision of products on ``device`` here, for inputs of ``dtype``."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def use_flash_attention_3(device: torch.device) -> None:
    """Let FlashAttention 3 do all later attention of this process, on Hopper, if it is installed.

    It has no dropout, and raises an error where there should be some.
    """
    if find_spec("flash_attn_interface") and torch.cuda.get_device_capability(device) == (9, 0):
        torch.nn.attention.activate_flash_attention_impl("FA3")
        log.info("attention by FlashAttention 3")


def set_layer_execution(
    blocks: Iterable[nn.Module], compiled: bool, activation_checkpointing: bool
) -> None:
    """Change how each of a model's ``blocks`` is computed, in place; weights keep their names.

    A block that layers share is compiled once, for batches of all shapes. Activation checkpointing
    keeps only each block's input, and computes the rest again in the backward pass, with the same
    dropout.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    for block in blocks:
        # Instances' own attributes, which are called instead of the class's methods.
        if compiled:
            if hasattr(block, "attend_by_length"):
                block.attend_by_length = torch.compiler.disable(block.attend_by_length)
            block.forward = torch.compile(block.forward, dynamic=True)
        if activation_checkpointing:
            block.forward = partial(  # around what is compiled: Dynamo skips a checkpoint in it
                checkpoint, block.forward, use_reentrant=False, context_fn=recomputation_contexts
            )


# Dense layers: oneDNN's products are faster with the weight in an order of its own. The reordering
# costs up to a tenth of a product, and memory, so it pays where a pass uses a weight repeatedly.

_IN_THIS_PASS: ContextVar["dict[nn.Module, _LaidOut] | None"] = ContextVar(
    "_IN_THIS_PASS", default=None
)
"""Each thread has its own: passes of a model in several threads share only its weights."""


def weights_laid_out_once() -> AbstractContextManager[None]:
    """Let a `Linear` on a CPU cast its weight and lay it out only at its first use in the block.

    No weight may change in the block. The gradients of the uses are summed in the weight's own
    precision, whatever the precision of the products.
    """
    return _within({})


def recomputation_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts in which `checkpoint` computes a block, and computes it again."""
    return nullcontext(), _within(_IN_THIS_PASS.get())


@contextmanager
def _within(laid_out: "dict[nn.Module, _LaidOut] | None") -> Iterator[None]:
    before = _IN_THIS_PASS.set(laid_out)
    try:
        yield
    finally:
        _IN_THIS_PASS.reset(before)


class _SumOfUses(torch.autograd.Function):
    """Gives the weights the sum of the gradients of their uses, in the weights' own precision.

    Each use takes the output, a signal, as an input, and adds its gradients to ``total``: one
    tensor for each weight, or one of all, flat. Autograd calls `backward` after the backward pass
    of the last use, although no use has a gradient for the signal itself.
    """

    @staticmethod
    def forward(ctx: Any, total: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.total, ctx.shapes = total, [weight.shape for weight in weights]
        return weights[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        parts = [*ctx.total]
        ctx.total.clear()
        if len(parts) == 1:
            parts = parts[0].split([shape.numel() for shape in ctx.shapes])
        return None, *(part.view(s) for part, s in zip(parts, ctx.shapes, strict=True))


def _add_to(total: list[Tensor], parts: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Add the gradients of a use, which the caller gives away, to those of the uses before."""
    if not total:
        total += [part.to(dtype) for part in parts]
    else:
        for each, part in zip(total, parts, strict=True):
            each.add_(part)


class Linear(nn.Linear):
    """`nn.Linear`, with the fast path "layout" inside `weights_laid_out_once`."""

    def forward(self, x: Tensor, cast: "WeightAndBias | None" = None) -> Tensor:
        """Return (T, outputs) of (T, inputs), using a ``cast`` of the weights if there is one."""
        if cast is not None:
            return F.linear(x, *cast)
        dtype = dtype_of_products(x.device, x.dtype)
        # `is_fast` comes first, because the compiler cannot read a context variable.
        if not is_fast("layout", x.device, dtype) or (laid_out := _IN_THIS_PASS.get()) is None:
            return super().forward(x)
        if self not in laid_out:
            laid_out[self] = _LaidOut(self, dtype)
        used = laid_out[self]
        return _Product.apply(x.to(dtype), used.signal, used)  # type: ignore[no-any-return]


class _LaidOut:
    """A weight as oneDNN's products take it, for both passes, its bias and its gradients so far."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self._weight, self.bias = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)
        self.forward: Tensor = torch.ops.mkldnn._reorder_linear_weight(self._weight)
        self.total: list[Tensor] = []
        self.signal: Tensor = _SumOfUses.apply(self.total, layer.weight, layer.bias)

    @cached_property
    def backward(self) -> Tensor:
        """The transposed weight."""
        laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(self._weight.t())
        return laid_out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signal: Tensor, laid_out: _LaidOut) -> Tensor:
        ctx.save_for_backward(x)
        ctx.laid_out, ctx.sum_dtype = laid_out, signal.dtype
        return _times(x, laid_out.forward, laid_out.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient], [x] = gradients, ctx.saved_tensors
        if ctx.needs_input_grad[1]:  # first, so that no more than one product is alive
            of_use = gradient.t() @ x, gradient.sum(0)
            _add_to(ctx.laid_out.total, of_use, ctx.sum_dtype)
            del of_use
        of_x = _times(gradient, ctx.laid_out.backward, None) if ctx.needs_input_grad[0] else None
        return of_x, None, None


def _times(x: Tensor, laid_out: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid_out, bias, "none", [], "")
    return product


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`, with the fast path "stream": in the precision of its input."""

    def forward(self, x: Tensor, cast: "WeightAndBias | None" = None) -> Tensor:
        """Return (T, H) of (T, H), using a ``cast`` of the weights if there is one."""
        if not is_fast("stream", x.device, x.dtype):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = cast or (self.weight.to(x.dtype), self.bias.to(x.dtype))
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


# On a GPU, a pass casts the weights of a block that layers share once, and sums their gradients in
# one tensor, so that a use needs few kernels.

WeightAndBias = tuple[Tensor, Tensor]
Casts = dict[str, WeightAndBias]
"""Weights in the precision of products, by the names of a block's layers."""


class CastsOfPass:
    """The casts of the blocks that a pass uses, each made at its block's first use."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._made: dict[nn.Module, tuple[list[str], list[Tensor], list[Tensor], Tensor]] = {}

    def of(self, block: nn.Module) -> Casts:
        """Return the casts for one more use of ``block``, none of whose weights may change."""
        if block not in self._made:
            children = block.named_children()
            layers = {name: c for name, c in children if isinstance(c, Linear | LayerNorm)}
            weights = [weight for each in layers.values() for weight in (each.weight, each.bias)]
            casts = [torch.empty_like(weight, dtype=self._dtype) for weight in weights]
            torch._foreach_copy_(casts, [weight.detach() for weight in weights])
            total: list[Tensor] = []
            self._made[block] = list(layers), casts, total, _SumOfUses.apply(total, *weights)
        names, casts, total, signal = self._made[block]
        used = _Use.apply(total, signal, *casts)
        return dict(zip(names, zip(used[::2], used[1::2], strict=True), strict=True))


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, total: list[Tensor], signal: Tensor, *casts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.total, ctx.sum_dtype = total, signal.dtype
        return tuple(cast.view_as(cast) for cast in casts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        _add_to(ctx.total, [flat], ctx.sum_dtype)
        return (None,) * (2 + len(gradients))


# The activation


def gelu_tanh(x: Tensor) -> Tensor:
    """Return x times the normal distribution function of x, approximated with a tanh.

    Source: Hendrycks and Gimpel 2016; google-research/albert `modeling.py`, `gelu`.
    """
    if not is_fast("table", x.device, x.dtype):
        return F.gelu(x, approximate="tanh")
    value: Tensor = _LookUp.apply(x, *_bfloat16_tables())
    return value


class _LookUp(torch.autograd.Function):
    """A function of single numbers, from a table of its values and one of its slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
        places = x.view(torch.uint16).int().flatten()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(slopes.index_select(0, places).view_as(x))
        return values.index_select(0, places).view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [slope] = ctx.saved_tensors
        return gradients[0] * slope, None, None


@cache
@torch.inference_mode(mode=False)  # else they would not do for training
def _bfloat16_tables() -> tuple[Tensor, Tensor]:
    """Return the values and slopes of `gelu_tanh` for all 65,536 bfloat16, by their bits.

    All threads share them, and none changes them.
    """
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = numbers.double()
    slopes = torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate="tanh")
    return F.gelu(x, approximate="tanh").bfloat16(), slopes.bfloat16()
