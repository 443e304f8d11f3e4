"""Training on TPUs by PyTorch/XLA, which nothing else imports. ``PJRT_DEVICE`` asks for it.

XLA records operations and compiles them, once for each graph of operations and shapes. So batches
are padded to one shape, and a graph ends after each micro-batch and after each update. An update
has these graphs, which every later one finds compiled:

1. forward and backward pass of the first micro-batch, which makes the gradients;
2. those of a further micro-batch, which add to them: only where an update has several;
3. the norm of the gradients, and what is read with it in the one wait of an update;
4. clipping and the optimizer's step; of the first update by itself, for it makes the moments.

All chips of one host are one rank: XLA's partitioner (SPMD) splits each batch among them, keeps the
weights on each, and puts in the sums of the gradients. ``training.micro_batch_size`` is that of all
chips together. Several hosts are refused.

Tests run it with ``PJRT_DEVICE=CPU`` on one device and, by ``CPU_NUM_DEVICES=2``, on two. Nothing
was run on a TPU: the speed there, and which models fit, are unknown.

Source: https://docs.pytorch.org/xla/release/r2.9; Xu et al. 2021, "GSPMD".
"""

import logging
import os
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.errors import ConfigError
from albert_core.training.ranks import Ranks


class TpuRanks(Ranks):
    """The one process that trains on all chips of this host."""

    def place(
        self, model: AlbertForPretraining, settings: TrainingSettings
    ) -> AlbertForPretraining:
        """Return ``model`` on each chip, with layer norms that the partitioner can split.

        Raises:
            ConfigError: ``settings`` ask for what does not work here.
        """
        for name in ("compile", "activation_checkpointing"):
            if getattr(settings, name):
                raise ConfigError(
                    f"training.{name} is true, but it does not work with PJRT_DEVICE set, under "
                    "which XLA compiles everything. Set it to false; for less memory, lower "
                    "training.micro_batch_size."
                )
        norms: list[Any] = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
        for norm in norms:
            # The instance's own attribute, which is called instead of the class's method.
            norm.forward = partial(_layer_norm, norm)
        return model.to(self.device)

    def seed(self, seed: int) -> None:
        """Make all later random draws on the chips depend on ``seed`` alone."""
        import torch_xla

        torch_xla.manual_seed(seed, self.device)

    def begin_pending(self) -> None:
        """End the graph that is being recorded, and let the device begin it."""
        import torch_xla

        torch_xla.sync()

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor of a batch, its sequences split among the chips."""
        on_device = tensor.to(self.device)
        if self.num_chips > 1:
            from torch_xla.distributed import spmd

            mesh = spmd.Mesh(list(range(self.num_chips)), (self.num_chips,), ("sequences",))
            spmd.mark_sharding(on_device, mesh, ("sequences", *[None] * (tensor.ndim - 1)))
        return on_device


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Return what ``norm`` does with (T, H), in float32.

    PyTorch/XLA makes a batch norm over its transpose, before which the partitioner gathers all
    sequences on each chip.
    """
    centred = x.float() - x.float().mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + norm.eps)
    return (scaled * norm.weight + norm.bias).to(x.dtype)


def tpu_ranks() -> TpuRanks:
    """Return the rank that trains on all chips of this host.

    Raises:
        ConfigError: torch_xla is not installed, or there are several processes.
    """
    try:
        import torch_xla
        from torch_xla import backends, runtime
    except ImportError as error:
        raise ConfigError(
            f"PJRT_DEVICE is set, which asks for PyTorch/XLA, but {error}. Unset it, or install: "
            "pip install -c infra/tpu/constraints.txt -e '.[tpu]'"
        ) from error
    num_processes = max(runtime.process_count(), int(os.environ.get("WORLD_SIZE", "1")))
    if num_processes > 1:
        raise ConfigError(
            f"PJRT_DEVICE is set, and this is one of {num_processes} processes: only the chips of "
            "one host can train together, and one process has them all. Start one, without the "
            "launcher, on a TPU of one host."
        )
    num_chips = runtime.global_runtime_device_count()
    if num_chips > 1:
        runtime.use_spmd()
    # Setting the precision logs a warning about setting it twice.
    logging.getLogger(backends.__name__).setLevel(logging.ERROR)
    # A TPU's own products of float32 are of bfloat16 factors.
    backends.set_mat_mul_precision("highest")
    return TpuRanks(0, 1, torch_xla.device(), num_chips=num_chips)
