"""What a run of a recipe will take on some hardware: ``albert plan --recipe base``."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from albert_core.planning.hardware import Hardware, find_hardware
from albert_core.planning.parameters import PUBLISHED_SIZES, PublishedSize
from albert_core.planning.run_plan import (
    MANY_DEVICES,
    PAPER_BATCH_SIZE,
    RESERVED_SHARE,
    ExampleSizes,
    RunPlan,
    batch_advice,
    plan_run,
)
from albert_core.planning.training_memory import TrainingMemory
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from flows.recipe import Recipe
from flows.report import Report

_GIB = 2**30
_HOURS_PER_DAY = 24
_MANY_HOURS = 2
_SECONDS_PER_HOUR = 3600
_NOTE = (
    "Measured: here or on such a device. Published: a data sheet's. All else is arithmetic on "
    "these.\n--utilisation, --peak-tflops, --memory-gib and --price-per-hour put your own figures "
    "in their place;\nthe end of a run says how far off the speed was. Evaluations and checkpoints "
    "are not in it."
)
_MANY_NOTE = (
    f"\nNor is the exchange of gradients: beyond {MANY_DEVICES} devices it begins to count, more "
    "so for BERT,\nwhose gradients are ten times as large."
)


def plan_recipe(
    recipe: Recipe, hardware: Hardware, num_devices: int = 1, examples: str | None = None
) -> RunPlan:
    """Return what pretraining by this recipe takes.

    Args:
        recipe: the settings of the run.
        hardware: each of the devices.
        num_devices: that share each update's batch.
        examples: URI of the manifest of the examples to train on, whose lengths are then counted;
            None: lengths as English text gives them.

    Raises:
        ConfigError: there are more devices than examples in a batch.
    """
    if examples is None:
        sizes = ExampleSizes.assumed(recipe.examples.max_seq_length, recipe.examples.masked_lm_prob)
        vocab_size = recipe.vocabulary.vocab_size
        longest = recipe.examples.max_seq_length, recipe.examples.max_predictions
    else:
        facts = read_manifest(examples).facts
        sizes, vocab_size = count_lengths(examples), facts["vocab_size"]
        longest = facts["max_seq_length"], facts["max_predictions"]
    return plan_run(
        recipe.model, recipe.training, vocab_size, sizes, *longest, hardware, num_devices
    )


def read_examples(examples: str | None) -> tuple[int | None, str | None]:
    """Return how many training examples there are and the URI of their manifest, if known.

    Args:
        examples: the number alone, or the manifest.
    """
    if examples is None or examples.isdecimal():
        return (None if examples is None else int(examples)), None
    manifest = storage.absolute(examples)
    return read_manifest(manifest).facts["num_train"], manifest


def own_hardware(
    name: str,
    peak_tflops: float | None,
    memory_gib: float | None,
    utilisation: float | None,
    price_per_hour: float | None,
) -> Hardware:
    """Return the device of this name with one's own figures in the place of those given.

    Raises:
        ConfigError: there is no such device, or a figure is impossible.
    """
    return find_hardware(name).with_given(
        peak_tflops=_positive("--peak-tflops", peak_tflops),
        memory_gib=_positive("--memory-gib", memory_gib),
        utilisation=_positive("--utilisation", utilisation, at_most=1),
        usd_per_hour=_positive("--price-per-hour", price_per_hour),
    )


def count_lengths(manifest_uri: str) -> ExampleSizes:
    """Return how long the training examples of this manifest are."""
    folder = manifest_uri.rpartition("/")[0]
    shards = read_manifest(manifest_uri).shards_of("train")
    tables = [read_arrow(storage.join(folder, shard.path)) for shard in shards]
    lengths, predictions = (
        pc.list_value_length(pa.chunked_array([c for t in tables for c in t[name].chunks]))
        for name in ("input_ids", "masked_lm_positions")
    )
    return ExampleSizes.of_lengths(
        lengths.to_numpy().astype(np.int64), pc.sum(predictions).as_py(), manifest_uri
    )


def plan_as_text(name: str, plan: RunPlan, num_examples: int | None = None) -> str:
    """Return the plan for a terminal.

    Args:
        name: of the recipe.
        plan: of its run.
        num_examples: training examples that there are; None: not known.
    """
    setup = plan.setup
    groups = {
        "Model": _parameter_rows(plan),
        "Memory of one device": _memory_rows(plan),
        "Speed": _speed_rows(plan),
        "Run": _run_rows(plan, num_examples),
        "Where the figures are from": _source_rows(plan),
    }
    if plan.training.batch_size != PAPER_BATCH_SIZE:
        groups["The paper's run with this batch (users' advice, not the paper's)"] = _advice_rows(
            plan
        )
    note = _NOTE
    if setup.devices.num_devices > MANY_DEVICES:
        note += _MANY_NOTE
    title = f"{name} on {setup.devices.num_devices} x {setup.devices.hardware.description}"
    command = f"albert pretrain --recipe {name} --source <your text>"
    return Report(title, groups, note, command).text()


def plan_as_json(plan: RunPlan) -> dict[str, Any]:
    """Return the plan's figures, units in their names."""
    setup, hardware = plan.setup, plan.setup.devices.hardware
    share = hardware.utilisation[setup.devices.precision]
    advice = batch_advice(plan.training.batch_size)
    return {
        "hardware": hardware.name,
        "num_devices": setup.devices.num_devices,
        "precision": setup.devices.precision,
        "parameters": vars(plan.parameters)
        | {name.replace(" ", "_"): n for name, n in plan.parameters.by_convention().items()},
        "micro_batch": vars(plan.micro_batch),
        "memory_bytes": vars(plan.memory()) | {"total": plan.memory().total},
        "memory_bytes_checkpointed": vars(plan.memory(True)) | {"total": plan.memory(True).total},
        "usable_bytes": plan.usable_bytes,
        "fits": plan.fits,
        "largest_micro_batch": plan.largest_micro_batch(False),
        "largest_micro_batch_checkpointed": plan.largest_micro_batch(True),
        "examples": vars(setup.sizes),
        "flops_per_piece": setup.flops_per_piece,
        "peak_tflops": hardware.peak_tflops[setup.devices.precision],
        "peak_basis": hardware.peak_basis,
        "utilisation": setup.utilisation,
        "utilisation_basis": share.basis,
        "utilisation_source": share.source,
        "pieces_per_second": setup.predicted_pieces_per_second,
        "num_steps": plan.training.num_steps,
        "batch_size": plan.training.batch_size,
        "num_pieces": plan.num_pieces,
        "hours": plan.hours,
        "cost_usd": plan.cost_usd,
        "usd_per_hour": hardware.price.usd_per_hour,
        "price_basis": hardware.price.basis,
        "price_source": hardware.price.source,
        "paper_run_with_this_batch": vars(advice),
    }


def parameter_table() -> str:
    """Return the number of parameters of every model in the paper, ours beside the paper's."""
    header = ("table", "model", "without pooler", "with pooler", "with heads", "paper", "is ours")
    rows = [header, *map(_table_row, PUBLISHED_SIZES)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column in (0, 1, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _positive(option: str, value: float | None, at_most: float = float("inf")) -> float | None:
    if value is not None and not 0 < value <= at_most:
        limit = "above 0" if at_most == float("inf") else f"above 0, at most {at_most:g}"
        raise ConfigError(f"{option} is {value:g}, but must be {limit}")
    return value


def _parameter_rows(plan: RunPlan) -> list[tuple[str, str]]:
    counts = plan.parameters
    parts = [(f"  {part.replace('_', ' ')}", f"{n:,}") for part, n in vars(counts).items() if n]
    return [("parameters", f"{counts.with_heads:,}"), *parts]


def _memory_rows(plan: RunPlan) -> list[tuple[str, str]]:
    chosen = plan.micro_batch
    there = f"{plan.usable_bytes / _GIB:.1f} of {plan.setup.devices.hardware.memory_gib:.1f} GiB"
    executed = "with" if chosen.activation_checkpointing else "without"
    fits = "fits" if plan.fits else "does NOT fit"
    rows = [
        ("without checkpointing", _say_memory(plan.memory(False), plan.largest_micro_batch(False))),
        ("with checkpointing", _say_memory(plan.memory(True), plan.largest_micro_batch(True))),
    ]
    if plan.setup.devices.num_devices > 1:
        cut = plan.sharded
        need = "; needed" if cut.fits and not plan.fits else ""
        need = "; as the recipe has it" if plan.training.shard_state else need
        said = _say_memory(cut.memory(), cut.largest_micro_batch())
        rows.append(("training.shard_state", f"{said}{need}"))
    return [
        ("usable", f"{there}; {RESERVED_SHARE:.0%} for libraries and allocator [assumed]"),
        (
            "micro-batch of the recipe",
            f"{chosen.num_sequences} x {chosen.length} pieces, {executed} checkpointing: {fits}",
        ),
        *rows,
    ]


def _say_memory(memory: TrainingMemory, largest: int) -> str:
    lasting = memory.weights + memory.gradients + memory.optimizer_state
    return (
        f"{memory.total / _GIB:.2f} GiB ({lasting / _GIB:.2f} weights, gradients, optimizer; "
        f"{memory.activations / _GIB:.2f} activations); {largest} x fit"
    )


def _speed_rows(plan: RunPlan) -> list[tuple[str, str]]:
    setup, hardware = plan.setup, plan.setup.devices.hardware
    peak = (
        f"{hardware.peak_tflops[setup.devices.precision]:,.4g} TFLOP/s in {setup.devices.precision}"
    )
    basis = hardware.utilisation[setup.devices.precision].basis
    recomputing = (
        ", as a quarter is computed again" if setup.devices.activation_checkpointing else ""
    )
    example = (
        f"{setup.sizes.num_pieces:,.0f} real pieces, {setup.sizes.num_predictions:.0f} predictions"
    )
    return [
        ("peak of one device", f"{peak} [{hardware.peak_basis}]"),
        ("model FLOPs utilisation", f"{setup.utilisation:.3f}{recomputing} [{basis}]"),
        ("mean example", f"{example} [{setup.sizes.basis}]"),
        ("operations of a piece", f"{setup.flops_per_piece / 1e9:,.4g} GFLOP"),
        ("real pieces a second", f"{setup.predicted_pieces_per_second:,.0f}"),
    ]


def _run_rows(plan: RunPlan, num_examples: int | None) -> list[tuple[str, str]]:
    training, price = plan.training, plan.setup.devices.hardware.price
    num_passes = -(
        -training.batch_size // (plan.micro_batch.num_sequences * plan.setup.devices.num_devices)
    )
    updates = f"{training.num_steps:,} of {training.batch_size:,} examples"
    seconds = plan.hours * _SECONDS_PER_HOUR / training.num_steps
    cost = f"{plan.cost_usd:,.2f} USD at {price.usd_per_hour:,.2f} an hour and device"
    rows = [
        ("updates", f"{updates}: up to {num_passes:,} micro-batches a device, {seconds:,.3g} s"),
        ("real pieces", f"{plan.num_pieces / 1e6:,.0f} million"),
    ]
    if num_examples:
        epochs = plan.num_examples / num_examples
        rows.append(("epochs", f"{epochs:,.2f} of {num_examples:,} examples"))
    return [
        *rows,
        ("time", _say_hours(plan.hours)),
        ("cost", f"{cost} [{price.basis}]"),
    ]


def _say_hours(hours: float) -> str:
    if hours < _MANY_HOURS:
        return f"{60 * hours:,.1f} minutes"
    days = f" ({hours / _HOURS_PER_DAY:,.1f} days)" if hours > _HOURS_PER_DAY else ""
    return f"{hours:,.1f} hours{days}"


def _source_rows(plan: RunPlan) -> list[tuple[str, str]]:
    hardware, share = (
        plan.setup.devices.hardware,
        plan.setup.devices.hardware.utilisation[plan.setup.devices.precision],
    )
    return [
        ("utilisation", f"{share.basis}: {share.source}"),
        ("mean example", f"{plan.setup.sizes.basis}: {plan.setup.sizes.source}"),
        ("price", f"{hardware.price.basis}: {hardware.price.source}"),
    ]


def _advice_rows(plan: RunPlan) -> list[tuple[str, str]]:
    advice, training = batch_advice(plan.training.batch_size), plan.training
    return [
        ("learning_rate", f"{advice.learning_rate:.3g}; the recipe has {training.learning_rate:g}"),
        ("warmup_steps", f"{advice.warmup_steps:,}; the recipe has {training.warmup_steps:,}"),
        ("num_steps", f"{advice.num_steps:,}; the recipe has {training.num_steps:,}"),
    ]


def _table_row(published: PublishedSize) -> tuple[str, ...]:
    counts = published.counts
    matching = " or ".join(published.matching) or "none of them"
    return (
        published.table or "-",
        published.row,
        f"{counts.without_pooler:,}",
        f"{counts.with_pooler:,}",
        f"{counts.with_heads:,}",
        "" if published.millions is None else f"{published.millions}M",
        "" if published.millions is None else matching,
    )
