"""The speed, hours and cost of a pretraining run on known devices.

The time is the model's operations (`planning.model_size`) divided by the rate that training reaches
on a device. At its end, a run compares its own speed with the plan.

What is known of a device (memory, peak rates, the share of them that training reaches, the price)
comes with its basis (measured, published, modelled or assumed) and its source. All of it is a
default: `Hardware.with_given` replaces it with your own figures.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from albert_core.config import ModelSettings, Precision, TrainingSettings, layer_growth
from albert_core.planning import model_size
from albert_core.planning.model_size import TrainingMemory
from albert_core.stage.errors import ConfigError
from albert_core.text.records import Ints, Sizes

Basis = Literal["measured", "published", "modelled", "extrapolated", "assumed", "given"]

_KNOWN: tuple[Basis, ...] = ("measured", "published", "modelled")
"""The bases of figures that hold for the widths that they name, and not beyond them."""


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The share of a device's peak that training reaches, in operations that are really executed.

    It grows with the width of the layers: a wide product has more operations for each byte.
    """

    by_hidden_size: tuple[tuple[int, float], ...]
    """(H, share 0..1), H ascending."""
    basis: Basis
    source: str
    guessed_below: int = 0
    """Shares of smaller H are assumed, whatever the basis."""

    def at(self, hidden_size: int) -> float:
        """Return the share at H: linear in log H between two points, constant beyond them."""
        widths, shares = np.array(self.by_hidden_size).T
        return float(np.interp(np.log(hidden_size), np.log(widths), shares))

    def basis_at(self, hidden_size: int) -> Basis:
        """Return the basis of the share at H: beyond its points a known one is extrapolated."""
        if hidden_size < self.guessed_below and self.basis in _KNOWN:
            return "assumed"
        narrowest, widest = self.by_hidden_size[0][0], self.by_hidden_size[-1][0]
        is_beyond = not narrowest <= hidden_size <= widest
        return "extrapolated" if is_beyond and self.basis in _KNOWN else self.basis


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device of a kind."""

    name: str
    description: str
    kind: model_size.DeviceKind = "cuda"
    device_names: tuple[str, ...] = ()
    """Its names from torch, if it is a GPU."""
    num_cores: int = 1
    """Cores of a CPU, whose runs are measured in the time of their cores; a GPU is one."""
    memory_gib: float
    """Memory that its driver reports, in 2**30 bytes."""
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
        own: dict[str, Any] = {}
        if peak_tflops is not None:
            peaks = dict.fromkeys(self.peak_tflops, _possible("--peak-tflops", peak_tflops))
            own |= {"peak_tflops": peaks, "peak_basis": "given"}
        if memory_gib is not None:
            own |= {"memory_gib": _possible("--memory-gib", memory_gib)}
        if utilisation is not None:
            share = _possible("--utilisation", utilisation, most=1)
            given = Utilisation(by_hidden_size=((1, share),), basis="given", source="you")
            own |= {"utilisation": dict.fromkeys(self.utilisation, given)}
        if price_per_hour is not None:
            price = _possible("--price-per-hour", price_per_hour)
            own |= {"usd_per_hour": price, "price_basis": "given", "price_source": "you"}
        return replace(self, **own)


def _possible(option: str, value: float, most: float = math.inf) -> float:
    if not 0 < value <= most:
        limit = f", at most {most:g}" if most < math.inf else ""
        raise ConfigError(f"{option} is {value:g}, but must be above 0{limit}")
    return value


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
    """Return what is known of the device with this name from torch, or None."""
    return next((each for each in HARDWARE.values() if device_name in each.device_names), None)


def this_cpu(num_cores: int, peak_tflops: float) -> Hardware:
    """Return this machine's CPU, assumed to be like `cpu2` in all but its peak.

    Args:
        num_cores: that the peak is of.
        peak_tflops: measured, in the precision in question; it is taken for both.
    """
    like = find_hardware("cpu2")
    source = f"the shares of {like.description}, which is another processor"
    return replace(
        like,
        name="this CPU",
        description="this machine's processor",
        num_cores=num_cores,
        peak_tflops=dict.fromkeys(like.peak_tflops, peak_tflops),
        utilisation={
            precision: replace(share, basis="assumed", source=source)
            for precision, share in like.utilisation.items()
        },
    )


_GUESSED_FLOAT32 = Utilisation(
    by_hidden_size=((128, 0.15), (768, 0.60), (4096, 0.75)),
    basis="assumed",
    source="a slower peak is easier to reach; no tensor cores",
)
_HOPPER = Utilisation(
    by_hidden_size=((128, 0.05), (768, 0.40), (1024, 0.45), (2048, 0.52), (4096, 0.51)),
    basis="modelled",
    source="kernels and bytes of an update that is not compiled, at an H200's rates "
    "(benchmarks/counted_update.py), times 0.87 for what is not counted; below H 768 a guess, "
    "far too high if to start kernels takes longer than to run them; nothing was run on one",
    guessed_below=768,
)
_OTHER_GPUS = Utilisation(
    by_hidden_size=((128, 0.05), (768, 0.35), (1024, 0.40), (4096, 0.50)),
    basis="assumed",
    source="BERT large reaches 0.45 of an A100 (NVIDIA DeepLearningExamples), less in eager mode",
)
_CPU_FLOAT32 = Utilisation(
    by_hidden_size=((128, 0.59), (256, 0.68), (768, 0.94), (1024, 0.91), (2048, 0.88)),
    basis="measured",
    source="steps of this project on packed sequences of mixed lengths, CPU seconds, beside "
    "products in the same minutes, 21 November 2026",
)
_CPU_BFLOAT16 = replace(
    _CPU_FLOAT32, by_hidden_size=((128, 0.34), (256, 0.55), (768, 0.79), (1024, 0.82), (2048, 0.82))
)
_RUNPOD, _FROM_MEMORY = "RunPod, on demand, 9 November 2026", "from memory, without date"
_RUNPOD_BEFORE = "RunPod, on demand, 7 October 2026"
_LAMBDA = "Lambda, on demand, 16 November 2026"
_A100 = ("A100-SXM4-80GB", "A100 80GB PCIe", "A100-PCIE-80GB")
_A100_40 = ("A100-SXM4-40GB", "A100-PCIE-40GB")
_RTX = "GeForce RTX 4090"
_GPUS = (
    # Names and GiB; TFLOP/s in float32 and bfloat16, with the share of the latter; USD an hour.
    ("h200", "H200 SXM", ("H200",), 139.8, 67.0, 989.5, _HOPPER, 4.59, _RUNPOD_BEFORE),
    ("b200", "B200 SXM", ("B200",), 178.3, 75.0, 2250.0, _OTHER_GPUS, 6.00, _FROM_MEMORY),
    ("gh200", "GH200, 96 GB", ("GH200 480GB",), 94.5, 67.0, 989.5, _HOPPER, 2.00, _FROM_MEMORY),
    ("h100", "H100 SXM", ("H100 80GB HBM3",), 79.2, 67.0, 989.5, _HOPPER, 3.99, _RUNPOD),
    ("h100-nvl", "H100 NVL", ("H100 NVL",), 93.1, 60.0, 835.5, _HOPPER, 2.80, _FROM_MEMORY),
    ("h100-pcie", "H100 PCIe", ("H100 PCIe",), 79.2, 51.0, 756.0, _HOPPER, 2.40, _FROM_MEMORY),
    ("a100", "A100 SXM, 80 GB", _A100, 79.2, 19.5, 312.0, _OTHER_GPUS, 1.79, _RUNPOD),
    ("a100-40", "A100 SXM, 40 GB", _A100_40, 39.4, 19.5, 312.0, _OTHER_GPUS, 1.99, _LAMBDA),
    ("l40s", "L40S", ("L40S",), 44.4, 91.6, 362.0, _OTHER_GPUS, 0.90, _FROM_MEMORY),
    ("l4", "L4", ("L4",), 22.0, 30.3, 121.0, _OTHER_GPUS, 0.70, _FROM_MEMORY),
    ("a10g", "A10G", ("A10G",), 22.1, 31.5, 70.0, _OTHER_GPUS, 1.00, _FROM_MEMORY),
    ("rtx-4090", _RTX, (_RTX,), 23.5, 82.6, 165.2, _OTHER_GPUS, 0.69, _FROM_MEMORY),
)
HARDWARE = {
    name: Hardware(
        name=name,
        description=f"NVIDIA {description}",
        device_names=tuple(f"NVIDIA {each}" for each in names),
        memory_gib=memory_gib,
        peak_tflops={"float32": float32, "bfloat16": bfloat16},
        utilisation={"float32": _GUESSED_FLOAT32, "bfloat16": share},
        usd_per_hour=usd,
        price_source=source,
    )
    for name, description, names, memory_gib, float32, bfloat16, share, usd, source in _GPUS
}
"""Devices by short name. The peaks of GPUs are from the vendor's data sheets."""
HARDWARE["cpu2"] = Hardware(
    name="cpu2",
    description="2 cores of an AMD EPYC, Zen 4",
    kind="cpu",
    num_cores=2,
    memory_gib=23.0,
    peak_tflops={"float32": 0.193, "bfloat16": 0.42},
    peak_basis="measured",
    utilisation={"float32": _CPU_FLOAT32, "bfloat16": _CPU_BFLOAT16},
    usd_per_hour=0.10,
    price_source="about what the large clouds take for 2 virtual cores",
)

PAPER = TrainingSettings()
"""The run of the paper: its settings are the defaults."""

RESERVED_SHARE = 0.08
"""The share of a device's memory that its libraries take or its allocator cannot use. Assumed."""

_FULL_SHARE = 0.55
_RECOMPUTING_SPEED = 3 / 4
"""Activation checkpointing makes four passes, of which three count."""
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class ExampleSizes(Sizes):
    """Those of the mean example."""

    basis: Basis
    source: str

    @classmethod
    def mean_of(cls, lengths: Ints, num_predictions: int, source: str) -> "ExampleSizes":
        """Return the mean size of existing examples.

        Args:
            lengths: int64 (n,), real pieces of each example; at least one.
            num_predictions: of all of them together.
            source: where the examples are.
        """
        pieces = lengths.astype(np.float64)
        return cls(
            num_pieces=float(pieces.mean()),
            sum_of_squares=float(np.square(pieces).mean()),
            num_predictions=num_predictions / len(pieces),
            basis="measured",
            source=source,
        )

    @classmethod
    def assumed(
        cls, max_seq_length: int, masked_lm_prob: float, max_predictions: float = math.inf
    ) -> "ExampleSizes":
        """Return what English text yields: most examples full, the others of any length.

        The mean is 0.775 of the longest length. In real sets it was from 0.68 to 0.87.
        """
        rest = 1 - _FULL_SHARE
        num_pieces = max_seq_length * (_FULL_SHARE + rest / 2)
        return cls(
            num_pieces=num_pieces,
            sum_of_squares=max_seq_length**2 * (_FULL_SHARE + rest / 3),
            num_predictions=min(masked_lm_prob * num_pieces, max_predictions),
            basis="assumed",
            source=f"{_FULL_SHARE:.0%} of the examples full, the others of any length",
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run and what it takes: memory of one device; all else is of all devices together.

    Memory is planned for a micro-batch of the longest examples, time for real pieces.

    Raises:
        ConfigError: there are more devices than examples in a batch.
    """

    model: ModelSettings
    training: TrainingSettings
    vocab_size: int
    """V, pieces, special ones included."""
    sizes: ExampleSizes
    """The mean example, with the masks that are in the shards."""
    max_seq_length: int
    """S of the longest example."""
    max_predictions: int
    """P of the longest example."""
    hardware: Hardware
    """Each of the devices."""
    num_devices: int = 1
    """They share each update's batch."""
    num_train: int | None = None
    """Number of training examples; None: not known."""
    first_step: int = 0
    """Updates done before; speed is that of the later ones, which may compute more layers."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_devices <= self.training.batch_size:
            raise ConfigError(
                f"{self.num_devices} devices cannot share a batch of {self.training.batch_size} "
                "examples: give from 1 device to as many as training.batch_size"
            )

    @property
    def parameters(self) -> model_size.ParameterCounts:
        """The number of parameters of each part."""
        return model_size.count_parameters(self.model, self.vocab_size)

    @property
    def example(self) -> ExampleSizes:
        """The mean example, with the masks that it is trained with."""
        if self.training.mask_share is None:
            return self.sizes
        return replace(self.sizes, num_predictions=self.training.mask_share * self.sizes.num_pieces)

    @property
    def memory(self) -> TrainingMemory:
        """The memory for the recipe's micro-batch."""
        batch_share = -(-self.training.batch_size // self.num_devices)
        mask_share = self.training.mask_share
        fresh_masks = None if mask_share is None else round(mask_share * self.max_seq_length)
        return TrainingMemory(
            model=self.model,
            vocab_size=self.vocab_size,
            num_sequences=min(self.training.micro_batch_size, batch_share),
            length=self.max_seq_length,
            num_predictions=self.max_predictions if fresh_masks is None else fresh_masks,
            precision=self.training.precision,
            device=self.hardware.kind,
            activation_checkpointing=self.training.activation_checkpointing,
            num_shards=self.num_devices if self.training.shard_state else 1,
            by_muon=self.training.optimizer == "muon",
        )

    @property
    def usable_bytes(self) -> float:
        """Bytes of a device that are left for tensors."""
        return (1 - RESERVED_SHARE) * self.hardware.memory_gib * 2**30 - self.memory.process

    @property
    def fits(self) -> bool:
        """Whether the recipe's micro-batch fits."""
        return self.memory.total <= self.usable_bytes

    @property
    def flops_per_piece(self) -> float:
        """The operations of training on one real piece, as a mean over examples and updates."""
        return self._flops_per_example / self.example.num_pieces

    @property
    def peak_tflops(self) -> float:
        """The peak rate of one device in the run's precision."""
        return self.hardware.peak_tflops[self.training.precision]

    @property
    def reached(self) -> Utilisation:
        """The share of the peak that the device reaches in the run's precision, as far as known."""
        return self.hardware.utilisation[self.training.precision]

    @property
    def utilisation_basis(self) -> Basis:
        """The basis of `utilisation` at the model's width."""
        return self.reached.basis_at(self.model.hidden_size)

    @property
    def utilisation(self) -> float:
        """Share of the peak that the model's own operations are expected to be, 0..1.

        Some of them are skipped (`skipped_flops`), and some are done twice; Muon does others, on
        every device. A given share is for the model's own operations already.
        """
        share = self.reached.at(self.model.hidden_size)
        if self.reached.basis == "given":
            return share
        if self.training.activation_checkpointing:
            share *= _RECOMPUTING_SPEED
        skipped = model_size.skipped_flops(self.model, self.example) / self._flops_per_example
        return share / (1 - skipped + self._muon_share)

    @property
    def pieces_per_second(self) -> float:
        """The real pieces that all devices together are expected to train on in a second."""
        return self.utilisation * self.peak_flops / self.flops_per_piece

    @property
    def num_examples(self) -> int:
        """Examples trained on, each counted as often as it is used."""
        return self.training.num_steps * self.training.batch_size

    @property
    def num_pieces(self) -> float:
        """Real pieces trained on, each counted as often as it is used."""
        return self.num_examples * self.example.num_pieces

    @property
    def hours(self) -> float:
        """The hours of training alone, without evaluations and checkpoints."""
        return self.num_pieces / self.pieces_per_second / SECONDS_PER_HOUR

    @property
    def cost_usd(self) -> float:
        """The cost of all devices for these hours."""
        return self.hours * self.num_devices * self.hardware.usd_per_hour

    def speed_to_plan(self, flops_per_second: float) -> float:
        """Return how many times as fast as planned a run with this rate was.

        Args:
            flops_per_second: the model's operations, as `training_flops` counts them, in a second
                of the updates: of the clock on GPUs, of a core's time on a CPU. Other programs on
                the machine take the clock's time, and not a core's.
        """
        return flops_per_second * self.hardware.num_cores / self.peak_flops / self.utilisation

    def say_speed(self, flops_per_second: float, pieces_per_second: float) -> str:
        """Return a line for the end of a run: its speed beside the planned one.

        Args:
            flops_per_second: see `speed_to_plan`.
            pieces_per_second: real pieces in such a second.
        """
        ratio, is_cpu = self.speed_to_plan(flops_per_second), self.hardware.kind == "cpu"
        return (
            f"{pieces_per_second:,.0f} pieces in a second of {'a CPU core' if is_cpu else 'time'}, "
            f"{ratio:.2f} times the {pieces_per_second / ratio:,.0f} planned for "
            f"{self.num_devices} x {self.hardware.name}; model FLOPs utilisation "
            f"{ratio * self.utilisation:.3f}, planned {self.utilisation:.3f} "
            f"({self.utilisation_basis})"
        )

    @property
    def _flops_per_example(self) -> float:
        """The operations of training on the mean example, as a mean over the updates."""
        return sum(
            share
            * model_size.training_flops(
                self.model.model_copy(update={"num_hidden_layers": num_layers}),
                self.vocab_size,
                self.example,
            )
            for num_layers, share in depths(
                self.training, self.model.num_hidden_layers, self.first_step
            )
        )

    @property
    def _muon_share(self) -> float:
        """Muon's operations, on each device, in units of the model's own; 0 without Muon."""
        if self.training.optimizer != "muon":
            return 0.0
        batch_share = self.training.batch_size / self.num_devices
        return model_size.muon_flops(self.model) / (batch_share * self._flops_per_example)

    @property
    def peak_flops(self) -> float:
        """Operations a second of all devices together."""
        return self.num_devices * self.peak_tflops * 1e12


def depths(training: TrainingSettings, num_layers: int, first_step: int) -> list[tuple[int, float]]:
    """Return each number of layers with the share of the updates that compute it.

    Args:
        training: settings.
        num_layers: L.
        first_step: updates before it do not count; below ``num_steps``.
    """
    num_steps = training.num_steps
    begins, layers = zip(*layer_growth(num_steps, training.shallow_share, num_layers), strict=True)
    shares = np.diff(np.maximum([*begins, num_steps], first_step)) / (num_steps - first_step)
    return list(zip(layers, shares.tolist(), strict=True))


def batch_advice(batch_size: int) -> dict[str, float]:
    """Return the settings that make the paper's run with a batch of this size.

    The learning rate goes with the root of the batch, the warm-up stays as many steps, and as many
    examples are seen. Source: the users of google-research/albert, in its issues; not the paper.
    """
    ratio = batch_size / PAPER.batch_size
    return {
        "batch_size": batch_size,
        "learning_rate": PAPER.learning_rate * math.sqrt(ratio),
        "warmup_steps": PAPER.warmup_steps,
        "num_steps": round(PAPER.num_steps / ratio),
    }
