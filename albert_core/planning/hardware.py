"""What is known about devices: memory, peak rates, the share of them that training reaches, prices.

Every share and price tells whether it was measured, published, modelled or assumed, and its source.
All are defaults: `Hardware.with_given` replaces them with your own figures.
"""

import math
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from albert_core.config import Precision
from albert_core.planning.training_memory import DeviceKind
from albert_core.stage.errors import ConfigError

Basis = Literal["measured", "published", "modelled", "extrapolated", "assumed", "given"]

_KNOWN: tuple[Basis, ...] = ("measured", "published", "modelled")
"""What holds for the widths that it names, and not beyond them."""


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The share of a device's peak that training reaches, in operations that are really executed.

    It grows with the width of the layers: a wide product has more operations for each byte.
    """

    by_hidden_size: tuple[tuple[int, float], ...]
    """(H, share 0..1), H ascending."""
    basis: Basis
    source: str

    def at(self, hidden_size: int) -> float:
        """Return the share at H: linear in log H between two points, constant beyond them."""
        widths, shares = np.array(self.by_hidden_size).T
        return float(np.interp(np.log(hidden_size), np.log(widths), shares))

    def basis_at(self, hidden_size: int) -> Basis:
        """Return where the share at H is from: beyond its points a known one is extrapolated."""
        narrowest, widest = self.by_hidden_size[0][0], self.by_hidden_size[-1][0]
        is_beyond = not narrowest <= hidden_size <= widest
        return "extrapolated" if is_beyond and self.basis in _KNOWN else self.basis


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device of a kind."""

    name: str
    description: str
    kind: DeviceKind = "cuda"
    device_names: tuple[str, ...]
    """As torch or `processor_name` calls it."""
    num_cores: int = 1
    """Of a CPU, whose runs are measured in the time of their cores; a GPU is one."""
    memory_gib: float
    """As its driver reports it, in 2**30 bytes."""
    peak_tflops: dict[Precision, float]
    """The rate of dense matrix products, without sparsity."""
    peak_basis: Basis = "published"
    utilisation: dict[Precision, Utilisation]
    usd_per_hour: float
    price_basis: Basis = "assumed"
    price_source: str

    def with_given(
        self,
        peak_tflops: float | None = None,
        memory_gib: float | None = None,
        utilisation: float | None = None,
        price_per_hour: float | None = None,
    ) -> "Hardware":
        """Return the device with your own figures in place of those that are not None.

        Args:
            peak_tflops: in each precision.
            memory_gib: in 2**30 bytes.
            utilisation: share of the peak, above 0, at most 1, whatever the width.
            price_per_hour: USD.

        Raises:
            ConfigError: a figure is impossible.
        """
        for option, value, most in (
            ("--peak-tflops", peak_tflops, math.inf),
            ("--memory-gib", memory_gib, math.inf),
            ("--utilisation", utilisation, 1),
            ("--price-per-hour", price_per_hour, math.inf),
        ):
            if value is not None and not 0 < value <= most:
                limit = f", at most {most:g}" if most < math.inf else ""
                raise ConfigError(f"{option} is {value:g}, but must be above 0{limit}")
        own = self
        if peak_tflops is not None:
            peaks = dict.fromkeys(self.peak_tflops, peak_tflops)
            own = replace(own, peak_tflops=peaks, peak_basis="given")
        if memory_gib is not None:
            own = replace(own, memory_gib=memory_gib)
        if utilisation is not None:
            given = Utilisation(by_hidden_size=((1, utilisation),), basis="given", source="you")
            own = replace(own, utilisation=dict.fromkeys(self.utilisation, given))
        if price_per_hour is not None:
            own = replace(own, usd_per_hour=price_per_hour, price_basis="given", price_source="you")
        return own


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
        device_name: from `torch.cuda.get_device_name` or `processor_name`.
    """
    return next((each for each in HARDWARE.values() if device_name in each.device_names), None)


def this_cpu(num_cores: int, peak_tflops: float) -> Hardware:
    """Return this machine's CPU, all but whose peak is assumed to be as that of `cpu2`.

    Args:
        num_cores: that the peak is of.
        peak_tflops: measured, in the precision in question; it is taken for both.
    """
    like = find_hardware("cpu2")
    source = f"the shares of {like.description}, which is another processor"
    return replace(
        like,
        name="this CPU",
        description=processor_name(),
        num_cores=num_cores,
        peak_tflops=dict.fromkeys(like.peak_tflops, peak_tflops),
        utilisation={
            precision: replace(share, basis="assumed", source=source)
            for precision, share in like.utilisation.items()
        },
    )


def processor_name() -> str:
    """Return the name of this machine's processor with the number of cores we may use."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    return f"{names[0] if names else platform.processor()}, {num_cores} cores"


_GUESSED_FLOAT32 = Utilisation(
    by_hidden_size=((128, 0.15), (768, 0.60), (4096, 0.75)),
    basis="assumed",
    source="a slower peak is easier to reach; no tensor cores",
)
_HOPPER: dict[Precision, Utilisation] = {
    "float32": _GUESSED_FLOAT32,
    "bfloat16": Utilisation(
        by_hidden_size=((128, 0.05), (768, 0.31), (1024, 0.36), (2048, 0.42), (4096, 0.47)),
        basis="modelled",
        source="roofline of an eager step under autocast at 790 TFLOP/s, times 0.87; below H 768 a "
        "guess; nothing was run on one",
    ),
}
_OTHER_GPUS: dict[Precision, Utilisation] = {
    "float32": _GUESSED_FLOAT32,
    "bfloat16": Utilisation(
        by_hidden_size=((128, 0.05), (768, 0.35), (1024, 0.40), (4096, 0.50)),
        basis="assumed",
        source="BERT large reaches 0.45 of an A100 (NVIDIA DeepLearningExamples), less in eager "
        "mode",
    ),
}
_MEASURED = (
    "steps of this project on packed sequences of mixed lengths, CPU seconds, beside products in "
    "the same minutes, 21 November 2026 (at 768: benchmarks/results/training_step.json)"
)


def _gpu(
    name: str,
    description: str,
    device_names: tuple[str, ...],
    memory_gib: float,
    peaks: tuple[float, float],
    utilisation: dict[Precision, Utilisation],
    usd_per_hour: float,
    price_source: str,
) -> Hardware:
    """Return a GPU of NVIDIA; ``peaks`` are those of float32 and bfloat16."""
    return Hardware(
        name=name,
        description=f"NVIDIA {description}",
        device_names=tuple(f"NVIDIA {each}" for each in device_names),
        memory_gib=memory_gib,
        peak_tflops={"float32": peaks[0], "bfloat16": peaks[1]},
        utilisation=utilisation,
        usd_per_hour=usd_per_hour,
        price_source=price_source,
    )


_RUNPOD, _FROM_MEMORY = "RunPod, on demand, 9 November 2026", "from memory, without date"
_RUNPOD_BEFORE = "RunPod, on demand, 7 October 2026"
_LAMBDA = "Lambda, on demand, 16 November 2026"
_A100, _A100_40 = (
    ("A100-SXM4-80GB", "A100 80GB PCIe", "A100-PCIE-80GB"),
    ("A100-SXM4-40GB", "A100-PCIE-40GB"),
)
_RTX = "GeForce RTX 4090"
_DEVICES = (
    _gpu("h200", "H200 SXM", ("H200",), 139.8, (67.0, 989.5), _HOPPER, 4.59, _RUNPOD_BEFORE),
    _gpu("b200", "B200 SXM", ("B200",), 178.3, (75.0, 2250.0), _OTHER_GPUS, 6.00, _FROM_MEMORY),
    _gpu(
        "gh200", "GH200, 96 GB", ("GH200 480GB",), 94.5, (67.0, 989.5), _HOPPER, 2.00, _FROM_MEMORY
    ),
    _gpu("h100", "H100 SXM", ("H100 80GB HBM3",), 79.2, (67.0, 989.5), _HOPPER, 3.99, _RUNPOD),
    _gpu("h100-nvl", "H100 NVL", ("H100 NVL",), 93.1, (60.0, 835.5), _HOPPER, 2.80, _FROM_MEMORY),
    _gpu(
        "h100-pcie", "H100 PCIe", ("H100 PCIe",), 79.2, (51.0, 756.0), _HOPPER, 2.40, _FROM_MEMORY
    ),
    _gpu("a100", "A100 SXM, 80 GB", _A100, 79.2, (19.5, 312.0), _OTHER_GPUS, 1.79, _RUNPOD),
    _gpu("a100-40", "A100 SXM, 40 GB", _A100_40, 39.4, (19.5, 312.0), _OTHER_GPUS, 1.99, _LAMBDA),
    _gpu("l40s", "L40S", ("L40S",), 44.4, (91.6, 362.0), _OTHER_GPUS, 0.90, _FROM_MEMORY),
    _gpu("l4", "L4", ("L4",), 22.0, (30.3, 121.0), _OTHER_GPUS, 0.70, _FROM_MEMORY),
    _gpu("a10g", "A10G", ("A10G",), 22.1, (31.5, 70.0), _OTHER_GPUS, 1.00, _FROM_MEMORY),
    _gpu("rtx-4090", _RTX, (_RTX,), 23.5, (82.6, 165.2), _OTHER_GPUS, 0.69, _FROM_MEMORY),
    Hardware(
        name="cpu2",
        description="2 cores of an AMD EPYC, Zen 4",
        kind="cpu",
        device_names=("AMD EPYC, 2 cores",),
        num_cores=2,
        memory_gib=23.0,
        peak_tflops={"float32": 0.193, "bfloat16": 0.42},
        peak_basis="measured",
        utilisation={
            "float32": Utilisation(
                by_hidden_size=((128, 0.59), (256, 0.68), (768, 0.94), (1024, 0.91), (2048, 0.88)),
                basis="measured",
                source=_MEASURED,
            ),
            "bfloat16": Utilisation(
                by_hidden_size=((128, 0.34), (256, 0.55), (768, 0.79), (1024, 0.82), (2048, 0.82)),
                basis="measured",
                source=_MEASURED,
            ),
        },
        usd_per_hour=0.10,
        price_source="about what the large clouds take for 2 virtual cores",
    ),
)
HARDWARE = {device.name: device for device in _DEVICES}
"""By short name. The peaks of GPUs are from the vendor's data sheets."""
