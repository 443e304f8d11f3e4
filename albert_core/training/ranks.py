"""Where a run computes: its ranks and their devices.

The environment says it, not the recipe. The order in which numbers are summed depends on the ranks,
on each one's threads, on the width of the processor's vectors and on the device: runs that differ
in one of them differ by rounding.

The gradient of a shared layer is final only when the backward pass ends, so there is nothing to
overlap, and one flat sum a step is enough.
"""

import logging
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from albert_core.config import Precision, TrainingSettings
from albert_core.model import execution
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import errors, manifest, results, storage
from albert_core.stage.command import RunAgain
from albert_core.stage.machine import MEETING_FILE, end_with_parent

_LOST = re.compile(r"\[[^\]\s]*gloo/\S+:\d+\] ")
"""How gloo begins its messages about a connection: it has no error class of its own. Its messages
about arguments begin with "[enforce fail at"."""
_WAITS = timedelta(minutes=30)
"""How long a rank waits for the others in one sum. The first one alone counts the first weights,
writes and reports, which takes it minutes; a lost connection is noticed at once."""
MACHINES = "machines.json"
"""The list of the machines that a run used, beside its manifest."""
_LIST = "machines"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model, and its device."""

    rank: int
    world_size: int
    device: torch.device
    votes: dist.ProcessGroup | None = None
    """All ranks, for what their processors agree on; None: the group of the sums."""
    num_chips: int = 0
    """Chips of a TPU that split the sequences of each padded batch; 0: batches are packed."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reports and writes."""
        return self.rank == 0

    def place(
        self, model: AlbertForPretraining, settings: TrainingSettings
    ) -> AlbertForPretraining:
        """Return ``model`` on the device, its layers computed as ``settings`` say."""
        model = model.to(self.device)
        if self.device.type == "cuda" and not model.encoder.settings.attention_probs_dropout_prob:
            execution.use_flash_attention_3(self.device)
        blocks = model.encoder.blocks
        execution.set_layer_execution(blocks, settings.compile, settings.activation_checkpointing)
        return model

    def seed(self, seed: int) -> None:
        """Make all later random draws on the device depend on ``seed`` alone."""
        torch.manual_seed(seed)

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor of a batch on the device; a copy from pinned memory does not block."""
        return tensor.to(self.device, non_blocking=True)

    def begin_pending(self) -> None:
        """Let the device begin what was recorded; CPU and CUDA record nothing."""

    @property
    def runs_ahead(self) -> bool:
        """Whether this process goes on while the device computes; on a TPU it waits once an update.

        What a CPU was told is done.
        """
        return self.device.type == "cuda"

    def on_its_way(self, tensor: Tensor) -> Callable[[], list[float]]:
        """Begin to copy (N,) numbers from the device; return what waits for them, and no longer."""
        if self.device.type != "cuda":
            return tensor.tolist
        copy, arrived = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
        arrived.record()

        def read() -> list[float]:
            arrived.synchronize()
            return copy.tolist()

        return read

    def total(self, number: int) -> int:
        """Return the sum of ``number`` over all ranks, without waiting for a device.

        Raises:
            RunAgain: another rank is gone.
        """
        summed = torch.tensor(int(number))
        self._together(dist.all_reduce, summed, group=self.votes)
        return int(summed)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor`` over all ranks, with the same bits on each.

        Raises:
            RunAgain: another rank is gone.
        """
        self._together(dist.all_reduce, tensor)
        return tensor

    def sum_gradients(self, model: nn.Module, extra: Tensor) -> Tensor:
        """Replace each gradient by its sum over all ranks; return the sum of ``extra``.

        The backward pass has summed the gradients of a sharded model already.

        Args:
            model: on every rank the same parameters have a gradient.
            extra: float (N,), numbers that travel with the gradients.

        Raises:
            RunAgain: another rank is gone.
        """
        if self.world_size == 1 or isinstance(model, FSDPModule):
            return self.sum(extra)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total = self.sum(parameters_to_vector([*gradients, extra]))
        vector_to_parameters(total, gradients)
        return total[-len(extra) :]

    def take_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors, on any device, by those of the first rank.

        Processors of other kinds draw and compute other bits from the same seed.

        Raises:
            RunAgain: another rank is gone.
        """
        for tensor in tensors if self.world_size > 1 else ():
            of_first = tensor.detach().to(self.device)
            self._together(dist.broadcast, of_first, 0)
            tensor.detach().copy_(of_first)

    def wait(self) -> None:
        """Wait until every rank is here.

        Raises:
            RunAgain: another rank is gone.
        """
        self._together(dist.barrier)

    def _together(self, operation: Callable[..., object], *arguments: Any, **named: Any) -> None:
        if self.world_size > 1:
            with self.ending_when_alone():
                operation(*arguments, **named)

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
            log.warning(
                "rank %d: another rank is gone (%s). Its own message says why, if it had time for "
                "one; the same command goes on from the newest checkpoint.",
                self.rank,
                str(error).partition("\n")[0][:200],
            )
            raise RunAgain from error


ALONE = Ranks(0, 1, torch.device("cpu"))
"""A single process on the CPU."""


@contextmanager
def ranks_of_environment(
    precision: Precision = "float32", deterministic: bool = False
) -> Iterator[Ranks]:
    """Give this process's place among those that train, from the environment that torchrun sets.

    At the end the ranks wait for each other, and all but the first end as processes. When one
    fails, it leaves immediately, and the others find out. With ``PJRT_DEVICE`` set, it is the one
    process that trains on TPUs. See `device_here` for the arguments.

    Raises:
        ConfigError: ``PJRT_DEVICE`` is set, but torch_xla is not installed, or there are several
            processes; or there are more processes on this host than GPUs, or torch cannot use the
            GPU.
    """
    if "PJRT_DEVICE" in os.environ:
        yield _tpu_ranks()
        return
    rank, world_size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    device = execution.device_here(precision, deterministic, local_rank)
    has_gpu = device.type == "cuda"
    if has_gpu:
        if local_rank >= torch.cuda.device_count():
            raise errors.ConfigError(
                f"there is no GPU for process {local_rank} of this host, whose GPUs are 0 to "
                f"{torch.cuda.device_count() - 1}. Start as many as there are GPUs: see "
                "ALBERT_TRAINING_PROCESSES and CUDA_VISIBLE_DEVICES."
            )
        torch.cuda.set_device(device)
    ranks = Ranks(rank, world_size, device)
    if world_size > 1:
        end_with_parent(signal.SIGKILL)  # the launcher: a sum over lost ranks can hang
        meeting = os.environ.get(MEETING_FILE)
        store = dist.FileStore(meeting, world_size) if meeting else None  # type: ignore[attr-defined]
        if store is not None:
            store.set_timeout(_WAITS)
        with ranks.ending_when_alone():
            dist.init_process_group(
                "nccl" if has_gpu else "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=_WAITS,
                device_id=device if has_gpu else None,
            )
            if has_gpu:  # what the processes agree on must not wait for their GPUs
                votes = dist.new_group(backend="gloo", timeout=_WAITS)
                ranks = Ranks(rank, world_size, device, votes)
    yield ranks
    ranks.wait()
    if world_size > 1:
        dist.destroy_process_group()
    if not ranks.is_first:
        # Threads of the libraries can abort an interpreter that is being taken down, and the
        # launcher would then end the first rank too.
        os._exit(0)


def note_machine(folder: str, world_size: int, device: torch.device) -> None:
    """Add what this process computes on to the list in the run's ``folder``, unless it is there."""
    now = results.Machine(
        ranks=world_size,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        vectors=torch.backends.cpu.get_cpu_capability(),
    )
    before = noted_machines(folder)
    if now not in before:
        noted = [machine.model_dump() for machine in (*before, now)]
        storage.write_bytes(storage.join(folder, MACHINES), manifest.sealed({_LIST: noted}))


def noted_machines(folder: str) -> list[results.Machine]:
    """Return what the run in ``folder`` computed on, each once; several if it was moved.

    If the list is damaged, nothing is known any more, which is logged.
    """
    uri = storage.join(folder, MACHINES)
    if not storage.exists(uri):
        return []
    try:
        return [results.Machine(**each) for each in manifest.unsealed(uri)[_LIST]]
    except (errors.IntegrityError, KeyError, TypeError, ValidationError) as error:
        log.warning("%s: what the run computed on before is not known any more (%s)", uri, error)
        return []


# TPUs, by PyTorch/XLA
#
# XLA records operations and compiles them, once for each graph of operations and shapes. So batches
# are padded to one shape, and a graph ends after each micro-batch and after each update. An update
# has these graphs, which every later one finds compiled:
#
# 1. forward and backward pass of the first micro-batch, which makes the gradients;
# 2. those of a further micro-batch, which add to them: only where an update has several;
# 3. the norm of the gradients, and what is read with it in the one wait of an update;
# 4. clipping and the optimizer's step; of the first update by itself, for it makes the moments.
#
# All chips of one host are one rank: XLA's partitioner (SPMD) splits each batch among them, keeps
# the weights on each, and inserts the sums of the gradients. ``training.micro_batch_size`` is that
# of all chips together. Several hosts are refused.
#
# Tests run it with ``PJRT_DEVICE=CPU`` on one device and, with ``CPU_NUM_DEVICES=2``, on two.
# Nothing was run on a TPU: the speed there, and which models fit, are unknown.
#
# Source: https://docs.pytorch.org/xla/release/r2.9; Xu et al. 2021, "GSPMD".


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
                raise errors.ConfigError(
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


def _layer_norm(norm: nn.LayerNorm, x: Tensor, _: None = None) -> Tensor:
    """Return what ``norm`` does with (T, H), in float32; there are no casts of weights here.

    PyTorch/XLA makes a batch norm over its transpose, before which the partitioner gathers all
    sequences on each chip.
    """
    centred = x.float() - x.float().mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + norm.eps)
    return (scaled * norm.weight + norm.bias).to(x.dtype)


def _tpu_ranks() -> TpuRanks:
    """Return the rank that trains on all chips of this host.

    Raises:
        ConfigError: torch_xla is not installed, or there are several processes.
    """
    try:
        import torch_xla
        from torch_xla import backends, runtime
    except ImportError as error:
        raise errors.ConfigError(
            f"PJRT_DEVICE is set, which asks for PyTorch/XLA, but {error}. Unset it, or install "
            "it as infra/tpu/constraints.txt says."
        ) from error
    num_processes = max(runtime.process_count(), int(os.environ.get("WORLD_SIZE", "1")))
    if num_processes > 1:
        raise errors.ConfigError(
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
