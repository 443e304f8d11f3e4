"""What a pretraining run will take, before it is paid for: memory, speed, hours and cost.

The time is the model's operations (`planning.flops`) over the rate that training reaches on a
device (`planning.hardware`). The end of a run holds its own speed against it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.planning.flops import training_flops_of, undone_share
from albert_core.planning.hardware import Basis, Hardware
from albert_core.planning.parameters import ParameterCounts, count_parameters
from albert_core.planning.training_memory import (
    MicroBatch,
    TrainingMemory,
    largest_micro_batch,
    training_memory,
)
from albert_core.stage.errors import ConfigError

PAPER_BATCH_SIZE = 4096
PAPER_LEARNING_RATE = 0.00176
PAPER_WARMUP_STEPS = 3125
PAPER_NUM_STEPS = 125_000

RESERVED_SHARE = 0.08
"""Of a device's memory: its libraries, and what its allocator cannot use. Assumed."""
MANY_DEVICES = 8
"""With more, the exchange of gradients begins to count (PLATFORM.md part 3, section 3)."""

_FULL_SHARE = 0.55
_RECOMPUTING_SPEED = 3 / 4
"""With activation checkpointing four passes are made, of which three count."""
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class ExampleSizes:
    """How long examples are: means over all of them."""

    num_pieces: float
    """Real pieces, special ones included."""
    square: float
    """Of the square of that."""
    num_predictions: float
    basis: Basis
    source: str

    @classmethod
    def of_lengths(
        cls, lengths: NDArray[np.int64] | Sequence[int], num_predictions: float, source: str
    ) -> "ExampleSizes":
        """Return those of examples that are there.

        Args:
            lengths: real pieces of each example; at least one.
            num_predictions: of all of them together.
            source: what they are of.
        """
        pieces = np.asarray(lengths, dtype=np.float64)
        return cls(
            num_pieces=float(pieces.mean()),
            square=float(np.square(pieces).mean()),
            num_predictions=num_predictions / len(pieces),
            basis="measured",
            source=source,
        )

    @classmethod
    def assumed(cls, max_seq_length: int, masked_lm_prob: float) -> "ExampleSizes":
        """Return what English text gives: most examples full, the others of any length.

        Real sets have from 0.68 to 0.87 of the longest length on average (REFERENCE.md B.9);
        this gives 0.775.
        """
        rest = 1 - _FULL_SHARE
        num_pieces = max_seq_length * (_FULL_SHARE + rest / 2)
        return cls(
            num_pieces=num_pieces,
            square=max_seq_length**2 * (_FULL_SHARE + rest / 3),
            num_predictions=masked_lm_prob * num_pieces,
            basis="assumed",
            source=f"{_FULL_SHARE:.0%} of the examples full, the others of any length",
        )


@dataclass(frozen=True, kw_only=True)
class TrainingDevices:
    """Devices that train a model of some width together: how fast they are expected to be."""

    hardware: Hardware
    """Each of them."""
    num_devices: int
    precision: Precision
    activation_checkpointing: bool
    hidden_size: int
    """H, which a device's utilisation depends on."""

    @property
    def peak_flops(self) -> float:
        """Operations a second of all of them together."""
        return self.num_devices * self.hardware.peak_tflops[self.precision] * 1e12

    @property
    def utilisation(self) -> float:
        """Share of the peak that the operations done are expected to be, 0..1."""
        share = self.hardware.utilisation[self.precision].at(self.hidden_size)
        return share * (_RECOMPUTING_SPEED if self.activation_checkpointing else 1)


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A model in training on devices: what its speed depends on."""

    model: ModelSettings
    vocab_size: int
    """V, pieces, special ones included."""
    sizes: ExampleSizes
    devices: TrainingDevices

    @property
    def flops_per_piece(self) -> float:
        """The operations of training on one real piece, as a mean over the examples."""
        return training_flops_of(*self._of_an_example) / self.sizes.num_pieces

    @property
    def utilisation(self) -> float:
        """Share of the peak that the model's own operations are expected to be, 0..1.

        They are more than those done (`flops.undone_share`), the more so the fewer
        layers there are. A share that is given is taken as it is.
        """
        share = self.devices.utilisation
        if self.devices.hardware.utilisation[self.devices.precision].basis == "given":
            return share
        return share / (1 - undone_share(*self._of_an_example))

    @property
    def predicted_pieces_per_second(self) -> float:
        """The real pieces that all devices together are expected to train on in a second."""
        return self.utilisation * self.devices.peak_flops / self.flops_per_piece

    @property
    def _of_an_example(self) -> tuple[ModelSettings, int, float, float, float, float]:
        sizes = self.sizes
        return (
            self.model,
            self.vocab_size,
            1.0,
            sizes.num_pieces,
            sizes.square,
            sizes.num_predictions,
        )

    def speed_to_plan(self, flops_per_second: float) -> float:
        """Return how many times as fast as planned a run was that did so many operations."""
        return flops_per_second / self.devices.peak_flops / self.utilisation

    def compared_with_plan(self, flops_per_second: float, pieces_per_second: float) -> str:
        """Return a line for the end of a run: its speed beside the planned one.

        Args:
            flops_per_second: the model's operations, as `planning.flops` counts them, in the
                time that went into updates: without start, evaluations and checkpoints.
            pieces_per_second: real pieces in the same time.
        """
        devices = self.devices
        off = self.speed_to_plan(flops_per_second) - 1
        planned = pieces_per_second / (1 + off)
        return (
            f"{pieces_per_second:,.0f} pieces/s, {abs(off):.0%} {'above' if off >= 0 else 'below'} "
            f"the {planned:,.0f} planned for {devices.num_devices} x {devices.hardware.name}; "
            f"model FLOPs utilisation {flops_per_second / devices.peak_flops:.3f}, planned "
            f"{self.utilisation:.3f} ({devices.hardware.utilisation[devices.precision].basis})"
        )


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run will take. Memory is that of one device, all else that of all of them."""

    setup: TrainingSetup
    training: TrainingSettings
    micro_batch: MicroBatch

    @property
    def parameters(self) -> ParameterCounts:
        """By part."""
        return count_parameters(self.setup.model, self.setup.vocab_size)

    @property
    def usable_bytes(self) -> float:
        """What a device has for tensors."""
        return (1 - RESERVED_SHARE) * self.setup.devices.hardware.memory_gib * 2**30

    @property
    def num_shards(self) -> int:
        """Parts that the state is cut into."""
        return self.setup.devices.num_devices if self.training.shard_state else 1

    @property
    def sharded(self) -> "RunPlan":
        """The same run with the state cut over the devices."""
        training = self.training.model_copy(update={"shard_state": True})
        return replace(self, training=training)

    @property
    def fits(self) -> bool:
        """Whether the recipe's micro-batch does."""
        return self.memory().total <= self.usable_bytes

    @property
    def num_pieces(self) -> float:
        """Real pieces trained on, each as often as it is."""
        return self.num_examples * self.setup.sizes.num_pieces

    @property
    def num_examples(self) -> int:
        """Examples trained on, each as often as it is."""
        return self.training.num_steps * self.training.batch_size

    @property
    def hours(self) -> float:
        """Of training alone, without evaluations and checkpoints."""
        return self.num_pieces / self.setup.predicted_pieces_per_second / _SECONDS_PER_HOUR

    @property
    def cost_usd(self) -> float:
        """Of all devices for these hours."""
        return (
            self.hours
            * self.setup.devices.num_devices
            * self.setup.devices.hardware.price.usd_per_hour
        )

    def memory(self, activation_checkpointing: bool | None = None) -> TrainingMemory:
        """Return what the micro-batch takes, with or without; None: as the recipe has it."""
        return training_memory(
            self.setup.model,
            self.setup.vocab_size,
            self._executed(activation_checkpointing),
            self.num_shards,
        )

    def largest_micro_batch(self, activation_checkpointing: bool | None = None) -> int:
        """Return the most sequences that fit, with or without; None: as the recipe has it."""
        return largest_micro_batch(
            self.setup.model,
            self.setup.vocab_size,
            self._executed(activation_checkpointing),
            self.usable_bytes,
            self.num_shards,
        )

    def _executed(self, activation_checkpointing: bool | None) -> MicroBatch:
        if activation_checkpointing is None:
            return self.micro_batch
        return replace(self.micro_batch, activation_checkpointing=activation_checkpointing)


def plan_run(
    model: ModelSettings,
    training: TrainingSettings,
    vocab_size: int,
    sizes: ExampleSizes,
    max_seq_length: int,
    max_predictions: int,
    hardware: Hardware,
    num_devices: int = 1,
) -> RunPlan:
    """Return what a run takes.

    Memory is that of a micro-batch of the longest examples; time is that of real pieces.

    Args:
        model: the model's settings.
        training: the run's.
        vocab_size: V.
        sizes: of the examples.
        max_seq_length: S of the longest example.
        max_predictions: P of the longest example.
        hardware: each of the devices.
        num_devices: that share each update's batch.

    Raises:
        ConfigError: there are more devices than examples in a batch.
    """
    if not 1 <= num_devices <= training.batch_size:
        raise ConfigError(
            f"{num_devices} devices cannot share a batch of {training.batch_size} examples: give "
            "from 1 device to as many as training.batch_size"
        )
    devices = TrainingDevices(
        hardware=hardware,
        num_devices=num_devices,
        precision=training.precision,
        activation_checkpointing=training.activation_checkpointing,
        hidden_size=model.hidden_size,
    )
    setup = TrainingSetup(model=model, vocab_size=vocab_size, sizes=sizes, devices=devices)
    micro_batch = MicroBatch(
        num_sequences=min(training.micro_batch_size, -(-training.batch_size // num_devices)),
        length=max_seq_length,
        num_predictions=max_predictions,
        precision=training.precision,
        device=hardware.kind,
        activation_checkpointing=training.activation_checkpointing,
    )
    return RunPlan(setup=setup, training=training, micro_batch=micro_batch)


@dataclass(frozen=True, kw_only=True)
class BatchAdvice:
    """The paper's run with another batch."""

    batch_size: int
    learning_rate: float
    warmup_steps: int
    num_steps: int


def batch_advice(batch_size: int) -> BatchAdvice:
    """Return how to make the paper's run with a batch of this size.

    The learning rate goes with the root of the batch, the warm-up stays as many steps, and as
    many examples are seen.

    Source: REFERENCE.md C.4, from the threads of google-research/albert's users; not the paper.
    """
    ratio = batch_size / PAPER_BATCH_SIZE
    return BatchAdvice(
        batch_size=batch_size,
        learning_rate=PAPER_LEARNING_RATE * math.sqrt(ratio),
        warmup_steps=PAPER_WARMUP_STEPS,
        num_steps=round(PAPER_NUM_STEPS / ratio),
    )
