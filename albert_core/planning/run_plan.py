"""What a pretraining run takes: memory, speed, hours and cost.

The time is the model's operations (`planning.parameters`) divided by the rate that training reaches
on a device (`planning.hardware`). At its end, a run compares its own speed with the plan.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.planning.hardware import Basis, Hardware, Utilisation
from albert_core.planning.parameters import (
    ParameterCounts,
    count_parameters,
    muon_flops,
    skipped_flops,
    training_flops,
)
from albert_core.planning.training_memory import TrainingMemory
from albert_core.stage.errors import ConfigError

PAPER = TrainingSettings()
"""The run of the paper: its settings are the defaults."""

RESERVED_SHARE = 0.08
"""The share of a device's memory that its libraries take or its allocator cannot use. Assumed."""

_FULL_SHARE = 0.55
_RECOMPUTING_SPEED = 3 / 4
"""With activation checkpointing four passes are made, of which three count."""
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class ExampleSizes:
    """The `Sizes` of the mean example."""

    num_pieces: float
    """Real pieces, special ones included."""
    sum_of_squares: float
    """Mean of the square of an example's real pieces."""
    num_predictions: float
    num_sequences: float = 1.0
    basis: Basis
    source: str

    @classmethod
    def of_lengths(
        cls, lengths: NDArray[np.int64] | Sequence[int], num_predictions: float, source: str
    ) -> "ExampleSizes":
        """Return the mean size of existing examples.

        Args:
            lengths: real pieces of each example; at least one.
            num_predictions: of all of them together.
            source: where the examples are.
        """
        pieces = np.asarray(lengths, dtype=np.float64)
        return cls(
            num_pieces=float(pieces.mean()),
            sum_of_squares=float(np.square(pieces).mean()),
            num_predictions=num_predictions / len(pieces),
            basis="measured",
            source=source,
        )

    @classmethod
    def assumed(cls, max_seq_length: int, masked_lm_prob: float) -> "ExampleSizes":
        """Return what English text yields: most examples full, the others of any length.

        The mean is 0.775 of the longest length. In real sets it was from 0.68 to 0.87.
        """
        rest = 1 - _FULL_SHARE
        num_pieces = max_seq_length * (_FULL_SHARE + rest / 2)
        return cls(
            num_pieces=num_pieces,
            sum_of_squares=max_seq_length**2 * (_FULL_SHARE + rest / 3),
            num_predictions=masked_lm_prob * num_pieces,
            basis="assumed",
            source=f"{_FULL_SHARE:.0%} of the examples full, the others of any length",
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run, and what it takes. Memory is that of one device, all else that of all of them.

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
    def parameters(self) -> ParameterCounts:
        """The number of parameters of each part."""
        return count_parameters(self.model, self.vocab_size)

    @property
    def example(self) -> ExampleSizes:
        """The mean example, with the masks that it is trained with."""
        if self.training.mask_share is None:
            return self.sizes
        return replace(self.sizes, num_predictions=self.training.mask_share * self.sizes.num_pieces)

    @property
    def _most_predictions(self) -> int:
        share = self.training.mask_share
        return self.max_predictions if share is None else round(share * self.max_seq_length)

    @property
    def memory(self) -> TrainingMemory:
        """What the recipe's micro-batch takes."""
        batch_share = -(-self.training.batch_size // self.num_devices)
        return TrainingMemory(
            model=self.model,
            vocab_size=self.vocab_size,
            num_sequences=min(self.training.micro_batch_size, batch_share),
            length=self.max_seq_length,
            num_predictions=self._most_predictions,
            precision=self.training.precision,
            device=self.hardware.kind,
            activation_checkpointing=self.training.activation_checkpointing,
            num_shards=self.num_devices if self.training.shard_state else 1,
            by_muon=self.training.optimizer == "muon",
        )

    @property
    def usable_bytes(self) -> float:
        """What a device has for tensors."""
        return (1 - RESERVED_SHARE) * self.hardware.memory_gib * 2**30

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
        """Where `utilisation` is from, at the model's width."""
        return self.reached.basis_at(self.model.hidden_size)

    @property
    def utilisation(self) -> float:
        """Share of the peak that the model's own operations are expected to be, 0..1.

        Some of them are skipped (`skipped_flops`), and some are done twice; Muon does others, on
        every device. A given share is for the model's own operations already.
        """
        share = self.reached.at(self.model.hidden_size)
        if self.training.activation_checkpointing:
            share *= _RECOMPUTING_SPEED
        if self.reached.basis == "given":
            return share
        skipped = skipped_flops(self.model, self.example) / self._flops_per_example
        return share / (1 - skipped + self._muon_share)

    @property
    def pieces_per_second(self) -> float:
        """The real pieces that all devices together are expected to train on in a second."""
        return self.utilisation * self._peak_flops / self.flops_per_piece

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
        return flops_per_second * self.hardware.num_cores / self._peak_flops / self.utilisation

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
            * training_flops(
                self.model.model_copy(update={"num_hidden_layers": num_layers}),
                self.vocab_size,
                self.example,
            )
            for num_layers, share in self._depths
        )

    @property
    def _depths(self) -> list[tuple[int, float]]:
        """Each number of layers with the share of the updates that compute it.

        Source: `albert_core.training.step.layers_at`.
        """
        num_steps, num_layers = self.training.num_steps, self.model.num_hidden_layers
        num_parts = (num_layers - 1).bit_length()
        ends = (
            self.training.shallow_share * num_steps * np.arange(num_parts + 1) / max(1, num_parts)
        )
        later = np.append(np.maximum(ends, self.first_step), num_steps)
        shares = np.diff(later) / (num_steps - self.first_step)
        depths = [*(2**part for part in range(num_parts)), num_layers]
        return list(zip(depths, shares.tolist(), strict=True))

    @property
    def _muon_share(self) -> float:
        """Muon's operations in units of the model's own, as slow as float32 is; 0 without Muon."""
        if self.training.optimizer != "muon":
            return 0.0
        batch_share = self.training.batch_size / self.num_devices
        of_model = batch_share * self._flops_per_example
        slower = self.peak_tflops / self.hardware.peak_tflops["float32"]
        return muon_flops(self.model) * slower / of_model

    @property
    def _peak_flops(self) -> float:
        """Operations a second of all devices together."""
        return self.num_devices * self.peak_tflops * 1e12


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
