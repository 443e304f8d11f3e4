"""What a run of a recipe takes on some hardware: `albert plan --recipe base`."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from albert_core.planning import model_size, run_plan
from albert_core.planning.model_size import TrainingMemory
from albert_core.planning.run_plan import Hardware
from albert_core.stage import results, storage
from albert_core.stage.errors import ConfigError
from albert_core.stage.lineage import manifest_of
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from flows.recipe import Recipe
from flows.report import Report, Row

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
_MEMORY_PARTS = (
    *("weights", "gradients", "optimizer_state", "activations", "update", "total"),
    *("process", "peak"),
)


def plan_recipe(
    recipe: Recipe, hardware: Hardware, num_devices: int, examples: str | None
) -> run_plan.RunPlan:
    """Return what pretraining by this recipe takes.

    Args:
        recipe: the settings of the run.
        hardware: each of the devices.
        num_devices: devices that share each update's batch.
        examples: number of training examples, or the URI of their manifest, whose lengths are then
            counted. Without a manifest, lengths are those of English text.

    Raises:
        ConfigError: there are more devices than examples in a batch, or ``examples`` are none.
    """
    settings = recipe.examples
    plan = run_plan.RunPlan(
        model=recipe.model,
        training=recipe.training,
        vocab_size=recipe.vocabulary.largest_size,
        sizes=run_plan.ExampleSizes.assumed(
            settings.max_seq_length, settings.masked_lm_prob, settings.max_predictions
        ),
        max_seq_length=settings.max_seq_length,
        max_predictions=settings.max_predictions,
        hardware=hardware,
        num_devices=num_devices,
    )
    if examples is None:
        return plan
    if examples.isdecimal() and int(examples):
        return replace(plan, num_train=int(examples))
    if re.fullmatch(r"[-+\d.,_ eE]*", examples):
        raise ConfigError(
            f"--examples is {examples!r}, expected a whole number above 0, or the URI of the "
            "examples' manifest."
        )
    uri = manifest_of(examples) or storage.absolute(examples)
    folder, manifest = uri.rpartition("/")[0], read_manifest(uri)
    if not manifest.shards_of("train"):
        raise ConfigError(f"{uri} lists no examples to train on. Give the manifest of examples.")
    shards = (storage.join(folder, shard.path) for shard in manifest.shards_of("train"))
    table = pa.concat_tables(map(read_arrow, shards))
    lengths = pc.list_value_length(table["input_ids"]).to_numpy()
    num_predictions = pc.sum(pc.list_value_length(table["masked_lm_positions"])).as_py()
    made = manifest.result_as(results.ExamplesResult)
    known = ("vocab_size", "max_seq_length", "max_predictions", "num_train")
    sizes = run_plan.ExampleSizes.mean_of(lengths, num_predictions, uri)
    return replace(plan, sizes=sizes, **_figures(made, known))


def plan_as_text(name: str, plan: run_plan.RunPlan, overrides: Sequence[str]) -> str:
    """Return the plan for a terminal.

    Args:
        name: of the recipe, or where it is.
        plan: what it takes.
        overrides: settings that differ from the recipe's.
    """
    counts, hardware, training = vars(plan.parameters), plan.hardware, plan.training
    given = " --set ".join(map(shlex.quote, [name, *overrides]))
    groups = {
        "Model": [
            ("vocabulary", f"{plan.vocab_size:,} pieces"),
            ("parameters", f"{plan.parameters.with_heads:,}"),
            *((f"  {part.replace('_', ' ')}", f"{n:,}") for part, n in counts.items() if n),
        ],
        "Memory of one device": _memory_rows(plan),
        "Speed": _speed_rows(plan),
        "Run": _run_rows(plan),
        "Where the figures are from": [
            ("utilisation", f"{_basis(plan)}: {plan.reached.source}"),
            ("mean example", f"{plan.example.basis}: {plan.example.source}"),
            ("price", f"{hardware.price_basis}: {hardware.price_source}"),
        ],
    }
    if training.batch_size != run_plan.PAPER.batch_size and training.optimizer == "lamb":
        advice = run_plan.batch_advice(training.batch_size)
        formats = {"learning_rate": ".3g", "warmup_steps": ",", "num_steps": ","}
        groups["The paper's run with this batch (users' advice, not the paper's)"] = [
            (field, f"{advice[field]:{form}}; the recipe has {getattr(training, field):{form}}")
            for field, form in formats.items()
        ]
    return Report(
        title=f"{name} on {plan.num_devices} x {hardware.description}",
        groups=groups,
        note=_NOTE + (_MANY_NOTE if plan.num_devices > _MANY_DEVICES else ""),
        commands=f"albert pretrain --recipe {given} --source <your text>",
    ).text()


def plan_as_json(plan: run_plan.RunPlan) -> dict[str, Any]:
    """Return the plan's figures, with units in their names."""
    memory, hardware, training = plan.memory, plan.hardware, plan.training
    whole, checkpointed = _without_and_with_checkpointing(memory)
    conventions = plan.parameters.by_convention()
    return {
        "hardware": hardware.name,
        **_figures(plan, ("num_devices",)),
        **_figures(training, ("precision", "num_steps", "batch_size")),
        "parameters": vars(plan.parameters)
        | {name.replace(" ", "_"): count for name, count in conventions.items()},
        "micro_batch": _figures(memory, (n for n in vars(memory) if n not in _NOT_OF_A_BATCH)),
        "memory_bytes": _figures(memory, _MEMORY_PARTS),
        "memory_bytes_checkpointed": _figures(checkpointed, _MEMORY_PARTS),
        "largest_micro_batch": whole.largest_micro_batch(plan.usable_bytes),
        "largest_micro_batch_checkpointed": checkpointed.largest_micro_batch(plan.usable_bytes),
        "examples": vars(plan.example),
        **_figures(plan, ("usable_bytes", "fits", "flops_per_piece", "peak_tflops")),
        **_figures(plan, ("utilisation", "utilisation_basis", "pieces_per_second")),
        "utilisation_source": plan.reached.source,
        **_figures(plan, ("num_pieces", "hours", "cost_usd")),
        **_figures(hardware, ("peak_basis", "usd_per_hour", "price_basis", "price_source")),
        "paper_run_with_this_batch": run_plan.batch_advice(training.batch_size),
    }


def parameter_counts() -> list[dict[str, Any]]:
    """Return the number of parameters of every model in the paper, ours beside the paper's."""
    return [
        {
            "table": published.table,
            "model": published.row,
            **published.counts.by_convention(),
            "paper": published.millions and f"{published.millions}M",
            "is ours": published.matching,
        }
        for published in model_size.PUBLISHED_SIZES
    ]


def parameter_table() -> str:
    """Return `parameter_counts` as text."""
    counts = parameter_counts()
    lines = [_TABLE_ROW.format(*counts[0])]
    lines.append("-" * len(lines[0]))
    for row in counts:
        table, model, *ours, printed, matching = row.values()
        matches = " or ".join(matching) or ("none of them" if printed else "")
        cells = (table or "-", model, *(f"{count:,}" for count in ours), printed or "", matches)
        lines.append(_TABLE_ROW.format(*cells).rstrip())
    return "\n".join(lines)


def _figures(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _memory_rows(plan: run_plan.RunPlan) -> list[Row]:
    memory = plan.memory
    usable = f"{plan.usable_bytes / _GIB:.1f} of {plan.hardware.memory_gib:.1f} GiB for tensors"
    batch = f"{memory.num_sequences} x {memory.length} pieces"
    executed = "with" if memory.activation_checkpointing else "without"
    fits = "fits" if plan.fits else "does NOT fit"
    whole, checkpointed = _without_and_with_checkpointing(memory)
    rows = [
        (
            "usable",
            f"{usable}; {run_plan.RESERVED_SHARE:.0%} for libraries and allocator [assumed]",
        ),
        ("micro-batch of the recipe", f"{batch}, {executed} checkpointing: {fits}"),
        ("without checkpointing", _memory(plan, whole)),
        ("with checkpointing", _memory(plan, checkpointed)),
    ]
    if memory.process:
        process, whole_peak = (f"{size / _GIB:.2f} GiB" for size in (memory.process, memory.peak))
        said = f"{process} beside the tensors [measured]; {whole_peak} with those of the recipe"
        rows.append(("the process itself", said))
    if plan.num_devices > 1:
        cut = replace(memory, num_shards=plan.num_devices)
        need = ""
        if plan.training.shard_state:
            need = "; as the recipe has it"
        elif cut.total <= plan.usable_bytes and not plan.fits:
            need = "; needed"
        rows.append(("training.shard_state", _memory(plan, cut) + need))
    return rows


def _without_and_with_checkpointing(memory: TrainingMemory) -> list[TrainingMemory]:
    return [replace(memory, activation_checkpointing=chosen) for chosen in (False, True)]


def _memory(plan: run_plan.RunPlan, memory: TrainingMemory) -> str:
    return (
        f"{memory.total / _GIB:.2f} GiB ({memory.state / _GIB:.2f} weights, gradients, optimizer; "
        f"{memory.activations / _GIB:.2f} activations); "
        f"{memory.largest_micro_batch(plan.usable_bytes):,} x fit"
    )


def _speed_rows(plan: run_plan.RunPlan) -> list[Row]:
    training, sizes = plan.training, plan.example
    is_planned = training.activation_checkpointing and plan.utilisation_basis != "given"
    recomputing = ", as a quarter is computed again" if is_planned else ""
    peak = f"{plan.peak_tflops:,.4g} TFLOP/s in {training.precision} [{plan.hardware.peak_basis}]"
    example = f"{sizes.num_pieces:,.0f} real pieces, {sizes.num_predictions:.0f} predictions"
    return [
        ("peak of one device", peak),
        (
            "model FLOPs utilisation",
            f"{plan.utilisation:.3f}{recomputing} [{plan.utilisation_basis}]",
        ),
        ("mean example", f"{example} [{sizes.basis}]"),
        ("operations of a piece", f"{plan.flops_per_piece / 1e9:,.4g} GFLOP"),
        ("real pieces a second", f"{plan.pieces_per_second:,.0f}"),
    ]


def _basis(plan: run_plan.RunPlan) -> str:
    basis, points = plan.utilisation_basis, plan.reached.by_hidden_size
    if basis != "extrapolated":
        return basis
    return (
        f"extrapolated to H {plan.model.hidden_size} from {plan.reached.basis} shares of "
        f"H {points[0][0]} to {points[-1][0]}"
    )


def _run_rows(plan: run_plan.RunPlan) -> list[Row]:
    training, hardware, hours = plan.training, plan.hardware, plan.hours
    num_passes = -(-training.batch_size // (plan.memory.num_sequences * plan.num_devices))
    updates = f"{training.num_steps:,} of {training.batch_size:,} examples"
    seconds = hours * run_plan.SECONDS_PER_HOUR / training.num_steps
    cost = f"{plan.cost_usd:,.2f} USD at {hardware.usd_per_hour:,.2f} an hour and device"
    days = f" ({hours / _HOURS_PER_DAY:,.1f} days)" if hours > _HOURS_PER_DAY else ""
    time = f"{60 * hours:,.1f} minutes" if hours < _MANY_HOURS else f"{hours:,.1f} hours{days}"
    rows = [
        ("updates", f"{updates}: up to {num_passes:,} micro-batches a device, {seconds:,.3g} s"),
        ("real pieces", f"{plan.num_pieces / 1e6:,.0f} million"),
    ]
    if plan.num_train:
        epochs = plan.num_examples / plan.num_train
        rows.append(("epochs", f"{epochs:,.2f} of {plan.num_train:,} examples"))
    return [*rows, ("time", time), ("cost", f"{cost} [{hardware.price_basis}]")]
