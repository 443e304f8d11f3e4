"""What is known of devices: memory, peak rates, the share of them that training reaches, prices.

Every share and price says whether it was measured, modelled or assumed, where it is from and, for
a price, of when it is. They are defaults, to be replaced by one's own.
"""

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from albert_core.config import Precision
from albert_core.planning.training_memory import DeviceKind
from albert_core.stage.errors import ConfigError

Basis = Literal["measured", "published", "modelled", "assumed", "given"]


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The share of a device's peak that the operations done in training are.

    Those of the model, but for what the last layer leaves out (`flops.undone_share`). It grows
    with the width of the layers: a wide product has more operations for each byte.
    """

    by_hidden_size: tuple[tuple[int, float], ...]
    """(H, share 0..1), H ascending."""
    basis: Basis
    source: str

    def at(self, hidden_size: int) -> float:
        """Return the share at H: on a line over log H between two points, level beyond them."""
        widths, shares = np.array(self.by_hidden_size).T
        return float(np.interp(np.log(hidden_size), np.log(widths), shares))


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a device costs to rent."""

    usd_per_hour: float
    basis: Basis
    source: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device of a kind."""

    name: str
    description: str
    kind: DeviceKind
    device_names: tuple[str, ...]
    """As torch or the operating system calls it."""
    memory_gib: float
    """What its driver reports, in 2**30 bytes."""
    peak_tflops: dict[Precision, float]
    """Dense matrix products, without sparsity."""
    peak_basis: Basis
    utilisation: dict[Precision, Utilisation]
    price: Price

    def with_given(
        self,
        peak_tflops: float | None,
        memory_gib: float | None,
        utilisation: float | None,
        usd_per_hour: float | None,
    ) -> "Hardware":
        """Return the device with one's own figures in the place of those that are not None."""
        changed: dict[str, Any] = {}
        if peak_tflops is not None:
            changed["peak_tflops"] = dict.fromkeys(self.peak_tflops, peak_tflops)
            changed["peak_basis"] = "given"
        if memory_gib is not None:
            changed["memory_gib"] = memory_gib
        if utilisation is not None:
            given = Utilisation(by_hidden_size=((1, utilisation),), basis="given", source="you")
            changed["utilisation"] = dict.fromkeys(self.utilisation, given)
        if usd_per_hour is not None:
            changed["price"] = Price(usd_per_hour=usd_per_hour, basis="given", source="you")
        return replace(self, **changed)


def find_hardware(name: str) -> Hardware:
    """Return the device with this short name.

    Raises:
        ConfigError: there is none.
    """
    if name not in HARDWARE:
        raise ConfigError(
            f"there is no hardware {name!r}; there is {', '.join(HARDWARE)}. For another device, "
            "name the one most like it and give --peak-tflops, --memory-gib, --utilisation and "
            "--price-per-hour."
        )
    return HARDWARE[name]


def hardware_called(device_name: str) -> Hardware | None:
    """Return what is known of the device with this name, or None.

    Args:
        device_name: of `torch.cuda.get_device_name`, or of `processor_name`.
    """
    return next((each for each in HARDWARE.values() if device_name in each.device_names), None)


def processor_name() -> str:
    """Return the name of this machine's processor with the number of cores that we may use."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    return f"{names[0] if names else platform.processor()}, {num_cores} cores"


_ROOFLINE = (
    "roofline of an eager step under autocast at 790 TFLOP/s, times 0.87 (PLATFORM.md part 3, "
    "section 4); below H 768 a guess; nothing was run on one"
)
_HOPPER_BFLOAT16 = Utilisation(
    by_hidden_size=((128, 0.05), (768, 0.31), (1024, 0.36), (2048, 0.42), (4096, 0.47)),
    basis="modelled",
    source=_ROOFLINE,
)
_GUESSED_BFLOAT16 = Utilisation(
    by_hidden_size=((128, 0.05), (768, 0.35), (1024, 0.40), (4096, 0.50)),
    basis="assumed",
    source="BERT large reaches 0.45 of an A100 (NVIDIA DeepLearningExamples), less in eager mode",
)
_GUESSED_FLOAT32 = Utilisation(
    by_hidden_size=((128, 0.15), (768, 0.60), (4096, 0.75)),
    basis="assumed",
    source="a slower peak is easier to reach; no tensor cores",
)


def _nvidia(
    name: str,
    description: str,
    device_names: tuple[str, ...],
    memory_gib: float,
    peak_tflops: tuple[float, float],
    bfloat16: Utilisation,
    price: Price,
) -> Hardware:
    float32_peak, bfloat16_peak = peak_tflops
    return Hardware(
        name=name,
        description=description,
        kind="cuda",
        device_names=device_names,
        memory_gib=memory_gib,
        peak_tflops={"float32": float32_peak, "bfloat16": bfloat16_peak},
        peak_basis="published",
        utilisation={"float32": _GUESSED_FLOAT32, "bfloat16": bfloat16},
        price=price,
    )


def _rent(usd_per_hour: float, source: str) -> Price:
    return Price(usd_per_hour=usd_per_hour, basis="assumed", source=source)


_DEVICES = (
    _nvidia(
        "h200",
        "NVIDIA H200 SXM",
        ("NVIDIA H200",),
        139.8,
        (67.0, 989.5),
        _HOPPER_BFLOAT16,
        _rent(4.59, "RunPod, on demand, 7 October 2026"),
    ),
    _nvidia(
        "h100",
        "NVIDIA H100 SXM",
        ("NVIDIA H100 80GB HBM3",),
        79.2,
        (67.0, 989.5),
        _HOPPER_BFLOAT16,
        _rent(3.99, "RunPod, on demand, 9 November 2026"),
    ),
    _nvidia(
        "a100",
        "NVIDIA A100 SXM, 80 GB",
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
        79.2,
        (19.5, 312.0),
        _GUESSED_BFLOAT16,
        _rent(1.79, "RunPod, on demand, 9 November 2026"),
    ),
    _nvidia(
        "a100-40",
        "NVIDIA A100 SXM, 40 GB",
        ("NVIDIA A100-SXM4-40GB",),
        39.4,
        (19.5, 312.0),
        _GUESSED_BFLOAT16,
        _rent(1.99, "Lambda, on demand, 16 November 2026"),
    ),
    _nvidia(
        "l4",
        "NVIDIA L4",
        ("NVIDIA L4",),
        22.0,
        (30.3, 121.0),
        _GUESSED_BFLOAT16,
        _rent(0.70, "from memory, without date"),
    ),
    _nvidia(
        "rtx-4090",
        "NVIDIA GeForce RTX 4090",
        ("NVIDIA GeForce RTX 4090",),
        23.5,
        (82.6, 165.2),
        _GUESSED_BFLOAT16,
        _rent(0.69, "from memory, without date"),
    ),
)
_CPU_SOURCE = (
    "steps of this project on packed sequences of mixed lengths, CPU seconds, beside products in "
    "the same minutes, 21 November 2026 (at 768: benchmarks/results/training_step.json)"
)
_CPU_2 = Hardware(
    name="cpu2",
    description="2 cores of an AMD EPYC, Zen 4",
    kind="cpu",
    device_names=("AMD EPYC, 2 cores",),
    memory_gib=23.0,
    peak_tflops={"float32": 0.193, "bfloat16": 0.42},
    peak_basis="measured",
    utilisation={
        "float32": Utilisation(
            by_hidden_size=((128, 0.59), (256, 0.68), (768, 0.94), (1024, 0.91), (2048, 0.88)),
            basis="measured",
            source=_CPU_SOURCE,
        ),
        "bfloat16": Utilisation(
            by_hidden_size=((128, 0.34), (256, 0.55), (768, 0.79), (1024, 0.82), (2048, 0.82)),
            basis="measured",
            source=_CPU_SOURCE,
        ),
    },
    price=_rent(0.10, "about what the large clouds take for 2 virtual cores"),
)
HARDWARE = {device.name: device for device in (*_DEVICES, _CPU_2)}
"""By short name. Peaks of GPUs are from the vendor's data sheets."""
