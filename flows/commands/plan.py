"""What a run of a recipe takes on some hardware: ``albert plan --recipe base``."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.planning import model_size, run_plan
from albert_core.planning.model_size import TrainingMemory
from albert_core.planning.run_plan import Hardware
from albert_core.stage import results, storage
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from flows.recipe import Recipe
from flows.report import Report

_GIB = 2**30
_HOURS_PER_DAY = 24
_MANY_HOURS = 2
_MANY_DEVICES = 8
"""With more, the exchange of gradients begins to count."""
_NOTE = (
    "Measured: here or on such a device. Published: a data sheet's. Extrapolated: to a width that "
    "is not\namong the known ones. All else is arithmetic on these. --utilisation, --peak-tflops, "
    "--memory-gib and\n--price-per-hour put your own figures in their place; the end of a run says "
    "how far off speed and memory\nwere. Evaluations and checkpoints are not in it."
)
_MANY_NOTE = (
    f"\nNor is the exchange of gradients: beyond {_MANY_DEVICES} devices it begins to count, more "
    "so for BERT,\nwhose gradients are ten times as large."
)
_TABLE_ROW = "{:<5}  {:<24}  {:>14}  {:>11}  {:>11}  {:>5}  {}"
_NOT_OF_A_BATCH = ("model", "vocab_size", "num_shards", "by_muon")
_MEMORY_PARTS = ("weights", "gradients", "optimizer_state", "activations", "update", "total")

Rows = list[tuple[str, str]]


def plan_recipe(
    recipe: Recipe, hardware: Hardware, num_devices: int = 1, examples: str | None = None
) -> run_plan.RunPlan:
    """Return what pretraining by this recipe takes.

    Args:
        recipe: the settings of the run.
        hardware: each of the devices.
        num_devices: that share each update's batch.
        examples: number of training examples, or the URI of their manifest, whose lengths are then
            counted. Without a manifest, lengths are those of English text.

    Raises:
        ConfigError: there are more devices than examples in a batch.
    """
    settings = recipe.examples
    plan = run_plan.RunPlan(
        model=recipe.model,
        training=recipe.training,
        vocab_size=recipe.vocabulary.largest_size,
        sizes=run_plan.ExampleSizes.assumed(settings.max_seq_length, settings.masked_lm_prob),
        max_seq_length=settings.max_seq_length,
        max_predictions=settings.max_predictions,
        hardware=hardware,
        num_devices=num_devices,
    )
    if examples is None:
        return plan
    if examples.isdecimal():
        return replace(plan, num_train=int(examples))
    sizes, made = _measured(storage.absolute(examples))
    return replace(
        plan,
        vocab_size=made.vocab_size,
        sizes=sizes,
        max_seq_length=made.max_seq_length,
        max_predictions=made.max_predictions,
        num_train=made.num_train,
    )


def plan_as_text(name: str, plan: run_plan.RunPlan) -> str:
    """Return the plan of the recipe with this name, for a terminal."""
    counts, hardware = vars(plan.parameters), plan.hardware
    groups = {
        "Model": [
            ("parameters", f"{plan.parameters.with_heads:,}"),
            *((f"  {part.replace('_', ' ')}", f"{n:,}") for part, n in counts.items() if n),
        ],
        "Memory of one device": _memory_rows(plan),
        "Speed": _speed_rows(plan),
        "Run": _run_rows(plan),
        "Where the figures are from": [
            ("utilisation", f"{_say_basis(plan)}: {plan.reached.source}"),
            ("mean example", f"{plan.example.basis}: {plan.example.source}"),
            ("price", f"{hardware.price_basis}: {hardware.price_source}"),
        ],
    }
    if plan.training.batch_size != run_plan.PAPER.batch_size and plan.training.optimizer == "lamb":
        groups["The paper's run with this batch (users' advice, not the paper's)"] = _advice_rows(
            plan
        )
    note = _NOTE + (_MANY_NOTE if plan.num_devices > _MANY_DEVICES else "")
    title = f"{name} on {plan.num_devices} x {hardware.description}"
    command = f"albert pretrain --recipe {name} --source <your text>"
    return Report(title, groups, note=note, commands=command).text()


def plan_as_json(plan: run_plan.RunPlan) -> dict[str, Any]:
    """Return the plan's figures, units in their names."""
    memory, hardware = plan.memory, plan.hardware
    whole, checkpointed = _without_and_with_checkpointing(memory)
    return {
        "hardware": hardware.name,
        "num_devices": plan.num_devices,
        "precision": plan.training.precision,
        "parameters": vars(plan.parameters)
        | {name.replace(" ", "_"): n for name, n in plan.parameters.by_convention().items()},
        "micro_batch": {n: value for n, value in vars(memory).items() if n not in _NOT_OF_A_BATCH},
        "memory_bytes": _figures(memory, _MEMORY_PARTS),
        "memory_bytes_checkpointed": _figures(checkpointed, _MEMORY_PARTS),
        "usable_bytes": plan.usable_bytes,
        "fits": plan.fits,
        "largest_micro_batch": whole.largest_micro_batch(plan.usable_bytes),
        "largest_micro_batch_checkpointed": checkpointed.largest_micro_batch(plan.usable_bytes),
        "examples": vars(plan.example),
        **_figures(plan, ("flops_per_piece", "peak_tflops", "utilisation", "pieces_per_second")),
        "utilisation_basis": plan.utilisation_basis,
        "utilisation_source": plan.reached.source,
        **_figures(plan.training, ("num_steps", "batch_size")),
        **_figures(plan, ("num_pieces", "hours", "cost_usd")),
        **_figures(hardware, ("peak_basis", "usd_per_hour", "price_basis", "price_source")),
        "paper_run_with_this_batch": run_plan.batch_advice(plan.training.batch_size),
    }


def _figures(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def parameter_table() -> str:
    """Return the number of parameters of every model in the paper, ours beside the paper's."""
    header = ("table", "model", "without pooler", "with pooler", "with heads", "paper", "is ours")
    lines = [_TABLE_ROW.format(*header)]
    lines.append("-" * len(lines[0]))
    for published in model_size.PUBLISHED_SIZES:
        counts = [f"{count:,}" for count in published.counts.by_convention().values()]
        printed, matching = "", ""
        if published.millions is not None:
            printed = f"{published.millions}M"
            matching = " or ".join(published.matching) or "none of them"
        cells = (published.table or "-", published.row, *counts, printed, matching)
        lines.append(_TABLE_ROW.format(*cells).rstrip())
    return "\n".join(lines)


def _measured(manifest_uri: str) -> tuple[run_plan.ExampleSizes, results.ExamplesResult]:
    """Return the mean size of the training examples of this manifest, and its result."""
    folder, manifest = manifest_uri.rpartition("/")[0], read_manifest(manifest_uri)
    shards = manifest.shards_of("train")
    table = pa.concat_tables(read_arrow(storage.join(folder, shard.path)) for shard in shards)
    lengths = pc.list_value_length(table["input_ids"]).to_numpy()
    num_predictions = pc.sum(pc.list_value_length(table["masked_lm_positions"])).as_py()
    sizes = run_plan.ExampleSizes.of_lengths(lengths, num_predictions, manifest_uri)
    return sizes, manifest.result_as(results.ExamplesResult)


def _memory_rows(plan: run_plan.RunPlan) -> Rows:
    memory, memory_gib = plan.memory, plan.hardware.memory_gib
    executed = "with" if memory.activation_checkpointing else "without"
    fits = "fits" if plan.fits else "does NOT fit"
    whole, checkpointed = _without_and_with_checkpointing(memory)
    usable = (
        f"{plan.usable_bytes / _GIB:.1f} of {memory_gib:.1f} GiB; {run_plan.RESERVED_SHARE:.0%} for"
    )
    micro_batch = f"{memory.num_sequences} x {memory.length} pieces, {executed} checkpointing"
    rows = [
        ("usable", f"{usable} libraries and allocator [assumed]"),
        ("micro-batch of the recipe", f"{micro_batch}: {fits}"),
        ("without checkpointing", _say_memory(plan, whole)),
        ("with checkpointing", _say_memory(plan, checkpointed)),
    ]
    if plan.num_devices > 1:
        cut = replace(memory, num_shards=plan.num_devices)
        need = ""
        if plan.training.shard_state:
            need = "; as the recipe has it"
        elif cut.total <= plan.usable_bytes and not plan.fits:
            need = "; needed"
        rows.append(("training.shard_state", f"{_say_memory(plan, cut)}{need}"))
    return rows


def _without_and_with_checkpointing(memory: TrainingMemory) -> list[TrainingMemory]:
    return [replace(memory, activation_checkpointing=chosen) for chosen in (False, True)]


def _say_memory(plan: run_plan.RunPlan, memory: TrainingMemory) -> str:
    return (
        f"{memory.total / _GIB:.2f} GiB ({memory.state / _GIB:.2f} weights, gradients, optimizer; "
        f"{memory.activations / _GIB:.2f} activations); "
        f"{memory.largest_micro_batch(plan.usable_bytes):,} x fit"
    )


def _speed_rows(plan: run_plan.RunPlan) -> Rows:
    training, sizes = plan.training, plan.example
    recomputing = ", as a quarter is computed again" if training.activation_checkpointing else ""
    utilisation = f"{plan.utilisation:.3f}{recomputing} [{plan.utilisation_basis}]"
    peak = f"{plan.peak_tflops:,.4g} TFLOP/s in {training.precision} [{plan.hardware.peak_basis}]"
    example = f"{sizes.num_pieces:,.0f} real pieces, {sizes.num_predictions:.0f} predictions"
    return [
        ("peak of one device", peak),
        ("model FLOPs utilisation", utilisation),
        ("mean example", f"{example} [{sizes.basis}]"),
        ("operations of a piece", f"{plan.flops_per_piece / 1e9:,.4g} GFLOP"),
        ("real pieces a second", f"{plan.pieces_per_second:,.0f}"),
    ]


def _say_basis(plan: run_plan.RunPlan) -> str:
    basis, points = plan.utilisation_basis, plan.reached.by_hidden_size
    if basis != "extrapolated":
        return basis
    return (
        f"extrapolated to H {plan.model.hidden_size} from {plan.reached.basis} shares of "
        f"H {points[0][0]} to {points[-1][0]}"
    )


def _run_rows(plan: run_plan.RunPlan) -> Rows:
    training, hardware = plan.training, plan.hardware
    num_passes = -(-training.batch_size // (plan.memory.num_sequences * plan.num_devices))
    updates = f"{training.num_steps:,} of {training.batch_size:,} examples"
    seconds = plan.hours * run_plan.SECONDS_PER_HOUR / training.num_steps
    cost = f"{plan.cost_usd:,.2f} USD at {hardware.usd_per_hour:,.2f} an hour and device"
    rows = [
        ("updates", f"{updates}: up to {num_passes:,} micro-batches a device, {seconds:,.3g} s"),
        ("real pieces", f"{plan.num_pieces / 1e6:,.0f} million"),
    ]
    if plan.num_train:
        epochs = plan.num_examples / plan.num_train
        rows.append(("epochs", f"{epochs:,.2f} of {plan.num_train:,} examples"))
    time, cost = _say_hours(plan.hours), f"{cost} [{hardware.price_basis}]"
    return [*rows, ("time", time), ("cost", cost)]


def _say_hours(hours: float) -> str:
    if hours < _MANY_HOURS:
        return f"{60 * hours:,.1f} minutes"
    days = f" ({hours / _HOURS_PER_DAY:,.1f} days)" if hours > _HOURS_PER_DAY else ""
    return f"{hours:,.1f} hours{days}"


def _advice_rows(plan: run_plan.RunPlan) -> Rows:
    advice, training = run_plan.batch_advice(plan.training.batch_size), plan.training
    rate = f"{advice['learning_rate']:.3g}; the recipe has {training.learning_rate:g}"
    return [
        ("learning_rate", rate),
        ("warmup_steps", f"{advice['warmup_steps']:,}; the recipe has {training.warmup_steps:,}"),
        ("num_steps", f"{advice['num_steps']:,}; the recipe has {training.num_steps:,}"),
    ]
