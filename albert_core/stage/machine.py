"""This machine: its processor and GPUs, and what its environment says of processes and time."""

import ctypes
import os
import platform
import re
import shutil
import signal
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from albert_core.stage.errors import ConfigError

TRAINING_PROCESSES = "ALBERT_TRAINING_PROCESSES"
"""Variable: how many processes a flow starts for a training run on each host."""
TRAINING_HOSTS = "ALBERT_TRAINING_HOSTS"
"""Variable: how many hosts train together."""
FINETUNING_PROCESSES = "ALBERT_FINETUNING_PROCESSES"
"""Variable: how many models a flow fine-tunes at a time."""
MEETING_FILE = "ALBERT_MEETING_FILE"
"""Variable: the rendezvous file of the ranks of one host, set by the launcher."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_FIRST_WITH_BFLOAT16 = 8
"""Major compute capability of Ampere."""
_CPU_INFO = Path("/proc/cpuinfo")
_CPUS_WITH_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo of Intel, AMD and Arm."""
STOP_SECONDS = "ALBERT_STOP_SECONDS"
"""Variable: seconds that a process has between SIGTERM and SIGKILL."""


def whole_number(variable: str, default: int) -> int:
    """Return the number in an environment variable, at least 1; ``default`` if it is not set.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{variable}={text!r} must be a whole number, at least 1")
    return int(text)


def stop_seconds() -> int:
    """Return ALBERT_STOP_SECONDS, by default 120, the notice that clouds give before preemption.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(STOP_SECONDS, 120)


def visible_devices() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them, without torch.

    CUDA numbers them from 0, whatever the driver calls them: a pod with ``/dev/nvidia2`` and
    ``/dev/nvidia5`` has the devices 0 and 1.
    """
    if VISIBLE in os.environ:
        names = os.environ[VISIBLE].split(",")
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [str(number) for number in range(len(_capabilities()))]


def has_fast_bfloat16() -> bool:
    """Return whether all GPUs here, or else the CPU, multiply natively in bfloat16, without torch.

    False on a TPU, which multiplies float32 that way anyway.
    """
    if "PJRT_DEVICE" in os.environ:
        return False
    if visible_devices():
        return min(_capabilities(), default=0) >= _FIRST_WITH_BFLOAT16
    return not _CPUS_WITH_BFLOAT16.isdisjoint(_cpu_info().split())


def compilation_pays() -> bool:
    """Return whether torch.compile is faster here and has what it needs, without torch.

    So it is on GPUs that multiply in bfloat16, where there are Triton and what it builds with: a C
    compiler and Python's headers. XLA compiles everything itself.
    """
    if not (visible_devices() and has_fast_bfloat16() and find_spec("triton")):
        return False
    has_compiler = any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang")))
    return has_compiler and Path(sysconfig.get_path("include"), "Python.h").exists()


def _capabilities() -> list[int]:
    """Return the major compute capability of each GPU of this host; none without a driver."""
    count, device, found = ctypes.c_uint(0), ctypes.c_void_p(), []
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2() == 0:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for number in range(count.value):
            nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device))
            both = ctypes.byref(major), ctypes.byref(minor)
            nvml.nvmlDeviceGetCudaComputeCapability(device, *both)
            found.append(major.value)
        nvml.nvmlShutdown()
    return found


def end_with_parent(number: signal.Signals) -> None:
    """Have Linux send this process a signal when the process that started it ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)


def training_processes(batch_size: int) -> int:
    """Return how many ranks a flow starts: ALBERT_TRAINING_PROCESSES, or one per visible device.

    Args:
        batch_size: examples per update; by default there are no more ranks than that.

    Raises:
        ConfigError: the variable is not a whole number above 0.
    """
    return whole_number(TRAINING_PROCESSES, max(1, min(len(visible_devices()), batch_size)))


def worker_count() -> int:
    """Return how many worker processes a stage may use: ALBERT_WORKERS, or one per core.

    Raises:
        ConfigError: ALBERT_WORKERS is not a whole number above 0.
    """
    return whole_number("ALBERT_WORKERS", len(os.sched_getaffinity(0)))


@cache
def this_machine() -> dict[str, str | int]:
    """Describe this machine for a person."""
    model = re.search(r"^model name\s*: (.*)$", _cpu_info(), re.MULTILINE)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else platform.processor() or "unknown",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_info() -> str:
    return _CPU_INFO.read_text(errors="replace") if _CPU_INFO.exists() else ""
