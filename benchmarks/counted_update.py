"""What an update costs a GPU, counted without one: kernels and bytes, eager and compiled.

    python -m benchmarks.counted_update [--models base-v2 large-v2] [--results FOLDER]

The update runs on fake tensors, which have shapes and no values, by the rules of autocast on CUDA
and on the fast paths of CUDA. Eager operations are counted one by one. A compiled layer goes
through Dynamo, AOTAutograd and Inductor as it would on a GPU, up to Inductor's scheduler with
Triton's rules of fusion; no code is generated for its kernels.

The model of time: products at 790 TFLOP/s, attention at 300, all other kernels 3 microseconds each
and 3.8 TB/s. Its rates are assumed: no GPU has measured them.
"""

# ruff: noqa: SLF001 - what Inductor does has no public names

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import compile_fx, config, debug, ir, scheduler
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from albert_core.config import TrainingSettings
from albert_core.model import albert, attention, execution, losses
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning import model_size, run_plan
from albert_core.training import step
from albert_core.training.optimizer import build_optimizer, clip, norms_of
from benchmarks import harness, pretraining
from flows.recipe import load_recipe

NUM_SEQUENCES = {"base-v2": 64, "large-v2": 32, "xlarge-v2": 16, "xxlarge-v2": 8}
LENGTH = 512
PRODUCTS_PER_S, ATTENTION_PER_S, BYTES_PER_S, SECONDS_A_KERNEL = 790e12, 300e12, 3.8e12, 3e-6
CPU = torch.device("cpu")
ATTENTION = {"_flash_attention_forward", "_flash_attention_backward"}
OF_PRODUCTS = {"addmm", "mm"} | ATTENTION
WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero"}
_NO_KERNEL = {"_unsafe_view", "device", "empty", "empty_like", "empty_strided", "lift_fresh"}
_NO_KERNEL |= {"new_empty", "promote_types", "reshape", "split_with_sizes"}
_FAST_PATHS = ("kernel", "casts", "stream")
_H200 = DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=132,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)


@dataclass
class Cost:
    """Kernels by kind, and the bytes that they read and write."""

    number: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, num_bytes: int) -> None:
        """Count a kernel."""
        self.number[kind] += 1
        self.bytes[kind] += num_bytes

    @property
    def num_others(self) -> int:
        """Kernels outside products and attention."""
        return sum(n for kind, n in self.number.items() if kind not in OF_PRODUCTS)

    @property
    def gb_of_others(self) -> float:
        """Gigabytes outside products and attention."""
        return sum(n for kind, n in self.bytes.items() if kind not in OF_PRODUCTS) / 1e9


class Kernels(TorchDispatchMode):
    """Counts what is run in its context, outside what is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost, self._is_in_graph = Cost(), False
        self.product_flops = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return true: else Dynamo would compile nothing in the context."""
        return True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result, name = function(*args, **(kwargs or {})), function.__name__.partition(".")[0]
        if name in ("addmm", "mm"):
            first, second = args[-2:]
            self.product_flops += 2 * first.shape[0] * first.shape[1] * second.shape[1]
        if not (self._is_in_graph or function.is_view or name in _NO_KERNEL):
            tensors = (t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor))
            self.cost.add(name, sum(map(_bytes_of, tensors)))
        return result

    def compile(self, function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        """Return what `torch.compile` does, with graphs that are counted and run eagerly."""
        counted_graph: Any = self._counted  # it makes no code
        return torch._dynamo.optimize(
            partial(compile_fx.compile_fx, inner_compile=counted_graph), dynamic=dynamic
        )(function)

    def _counted(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        kernels = scheduled(graph, inputs, options.get("is_backward", False))

        def run(arguments: list[Any]) -> Any:
            for kind, num_bytes in kernels:
                self.cost.add(kind, num_bytes)
            given, self._is_in_graph = list(arguments), True
            arguments.clear()
            try:
                return graph.forward(*given)
            finally:
                self._is_in_graph = False

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def scheduled(graph: Any, inputs: Sequence[Any], is_backward: bool) -> list[tuple[str, int]]:
    """Return the kind and the bytes of each kernel that Inductor makes of a graph."""
    cast(Any, view_to_reshape)(graph)
    with torch.no_grad():
        fake_mode = compile_fx.fake_tensor_prop(graph, inputs)
    compile_fx._recursive_record_original_output_strides(graph)
    with V.set_fake_mode(fake_mode), V.set_debug_handler(debug.DebugContext()):
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
        lowering = GraphLowering(
            graph, inputs, shape_env=fake_mode.shape_env, is_backward=is_backward
        )
        with V.set_graph_handler(lowering):
            lowering.run(*inputs)
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            nodes = lowering.scheduler.nodes
            return [_kernel_of(node) for node in nodes if _has_kernel(node)]


def _has_kernel(node: scheduler.BaseSchedulerNode) -> bool:
    return not isinstance(node, scheduler.NopKernelSchedulerNode) and not isinstance(
        node.node, ir.MultiOutput
    )


def _kernel_of(node: scheduler.BaseSchedulerNode) -> tuple[str, int]:
    num_bytes = int(node.get_read_write_buffers_sizes())
    if not node.is_extern():
        return "fused sum" if node.is_reduction() else "fused", num_bytes
    name = str(getattr(node.node, "python_kernel_name", None)).removesuffix(".default")
    return name.rpartition(".")[2], num_bytes


def _bytes_of(tensor: Tensor) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return torch.Size(size for size, stride in sizes if stride).numel() * tensor.element_size()


@contextmanager
def as_on_cuda(kernels: Kernels) -> Iterator[None]:
    """Take CUDA's fast paths in the block, and let autocast do layer norms in float32."""
    layer_norm = F.layer_norm

    def by_autocast(x: Tensor, *others: Any, **named: Any) -> Tensor:
        return layer_norm(x.float() if torch.is_autocast_enabled("cpu") else x, *others, **named)

    with ExitStack() as stack:
        for place, name, value in (
            (execution, "is_fast", lambda path, *_: path in _FAST_PATHS),
            (F, "layer_norm", by_autocast),
            (albert, "initialise", lambda *_, **__: None),  # fake weights have no values
            (torch, "compile", kernels.compile),
            (DeviceProperties, "create", lambda _: _H200),
            (scheduler, "_is_gpu_triton_backend", lambda *_: True),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        stack.enter_context(config.patch(cpu_backend="triton", fallback_random=True))
        try:
            yield
        finally:
            attention._layout_on.cache_clear()  # of fake tensors
            losses._compiled_sum.cache_clear()
            torch._dynamo.reset()


@dataclass(frozen=True)
class Update:
    """An update of one micro-batch, counted."""

    of_batch: Cost
    """There and back."""
    of_optimizer: Cost
    """The norm, clipping and LAMB."""
    seconds: float
    share_of_peak: float
    """Of an H200, in the operations of `training_flops`."""


def counted(name: str, compiled: bool) -> Update:
    """Return what an update of a recipe costs: one micro-batch of full sequences, and LAMB."""
    kernels, settings = Kernels(), TrainingSettings(precision="bfloat16", compile=compiled)
    model_settings = load_recipe(name).model
    rows = pretraining.random_rows(np.full(NUM_SEQUENCES[name], LENGTH))
    sizes = pretraining.sizes_of(rows)
    with as_on_cuda(kernels), FakeTensorMode() as mode:
        batch = rows.batch().each(mode.from_tensor)
        attention._layout_on(batch.runs, CPU)  # made once a batch, and kept
        model = AlbertForPretraining(model_settings, pretraining.VOCAB_SIZE).train()
        execution.set_layer_execution(model.encoder.blocks, compiled, False)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with kernels:
            step._backward(model, batch, sizes, settings, CPU, "sentence_order")
        of_batch, kernels.cost = kernels.cost, Cost()
        optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
        optimizer.step()  # makes its state
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        with kernels:
            norm = torch.linalg.vector_norm(norms_of(gradients, of=gradients))
            clip(gradients, norm, settings.max_grad_norm)
            optimizer.step(made=norm.isfinite())
    layers, hidden = model_settings.num_hidden_layers, model_settings.hidden_size
    attention_flops = 12 * layers * hidden * sizes.sum_of_squares
    seconds = kernels.product_flops / PRODUCTS_PER_S + attention_flops / ATTENTION_PER_S
    for cost in (of_batch, kernels.cost):
        seconds += cost.num_others * SECONDS_A_KERNEL + cost.gb_of_others * 1e9 / BYTES_PER_S
    flops = model_size.training_flops(model_settings, pretraining.VOCAB_SIZE, sizes)
    peak = run_plan.find_hardware("h200").peak_tflops["bfloat16"] * 1e12
    return Update(of_batch, kernels.cost, seconds, flops / seconds / peak)


def measure(options: argparse.Namespace, _: Path) -> tuple[dict[str, Any], str]:
    """Count the updates that are asked for."""
    result: dict[str, Any] = {}
    rows, kinds = [], []
    for name in options.models:
        for way in ("eager", "compiled"):
            case, found = f"{name}, {way}", counted(name, way == "compiled")
            batch = found.of_batch
            figures = [batch.num_others, round(batch.gb_of_others, 1)]
            figures += [found.of_optimizer.num_others, round(found.seconds * 1e3, 1)]
            figures.append(round(found.share_of_peak, 3))
            rows.append([case, *figures])
            by_bytes = batch.bytes.most_common()
            table = [[kind, batch.number[kind], round(n / 1e9, 2)] for kind, n in by_bytes]
            kinds.append(f"{case}\n{harness.table(['kind', 'kernels', 'GB'], table)}")
            result[case] = {"figures": figures, "kinds": table}
    head = ["case", "kernels outside products and attention", "GB of those", "LAMB's kernels"]
    shown = harness.table([*head, "ms, modelled", "share of an H200, modelled"], rows)
    return result, "\n\n".join([*kinds, shown])


def main() -> None:
    """Count what is asked for."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=NUM_SEQUENCES, default=list(NUM_SEQUENCES))
    harness.run(parser, {"counted_update": measure})


if __name__ == "__main__":
    main()
