"""Pretraining on a CPU: updates and batches against Hugging Face's; what tracking takes of a run.

    python -m benchmarks.pretraining [--only training_step loader tracking] [--rounds 3]
        [--lengths 128 512] [--no-compiled] [--mb 20] [--num-steps 100] [--results FOLDER]

training_step: an update of ALBERT base against `AlbertForPreTraining`, eager and compiled, with the
same weights, batches and optimizer (our LAMB). Full sequences, and updates of the lengths that the
stages give on real English text: the peer pads them in random micro-batches, ours sorts and packs
them. Speed is in real pieces per CPU second. The peak is the machine's in matrix products, as
pieces of the model's own operations: ours divided by it is the share of the peak. Beside it the
memory of a step.

loader: examples of the lengths that the stages give on real English text. Real pieces per CPU
second, of all threads together, against `datasets` with `DataCollatorForLanguageModeling`, if
installed. The peer shuffles, masks single pieces and pads; it has no n-grams, no sentence order and
is not asked for segments, all of which it would pay for. Its format is the fastest that it has.

tracking: a short run of a small ALBERT (3 layers, 256 wide) on real text, once with MLflow in
SQLite and once on a server of its own on this machine. It counts how long the training's own thread
is held up, waits at the end included. A progress line every few seconds and four checkpoints are
far more than a real run has in that time.
"""

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from albert_core.config import ModelSettings, Precision, TrainingSettings
from albert_core.conversion.huggingface import hf_config, to_hf_state, tokenizer_files
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.model_size import training_flops
from albert_core.text import records, tokenizer
from albert_core.text.records import Ints, Sizes
from albert_core.training import loader, ranks, step
from albert_core.training.batches import Rows
from albert_core.training.loader import UpdateBatch
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import LENGTH_MULTIPLE, deal_update, padded_length
from albert_core.training.shards import ExampleShards
from benchmarks import harness, stages
from tests.mlflow_server import MlflowServer

MODEL, VOCAB_SIZE = ModelSettings(), 30_000
MICRO_BATCHES = {128: 16, 512: 4}
"""Length -> sequences in a micro-batch; an update of real lengths has two of them."""
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
UPDATE_TEXT_BYTES = 6_000_000
UPDATE_GOALS = {
    "float32, full": "1.4; peak 0.95",
    "bfloat16, full": "1.5; peak 0.75",
    "bfloat16, real lengths": "1.8",
}
MEMORY_GOAL = 0.6
BATCH_SIZE, UPDATE_SIZE = 256, 4096
"""Of the loader: of a random batch, the same for ours and theirs; and of a whole update."""
LOADER_GOAL = "20 million, 10 times the peer"
TRACKING_TEXT_BYTES, TRACKING_GOAL = 10_000_000, 0.01
_PREDICTED_SHARE = 0.15
_IGNORED = -100
_PEER_EXAMPLES = 4096
"""As many suffice for `datasets`."""


def padded(rows: Rows) -> dict[str, torch.Tensor]:
    """Return ``rows`` as Hugging Face's class takes them, padded to a multiple of eight pieces."""
    width = padded_length(int(rows.lengths.max()))
    is_real = np.arange(width) < rows.lengths[:, None]
    input_ids = np.zeros(is_real.shape, np.int64)
    input_ids[is_real] = rows.input_ids
    labels = np.full(is_real.shape, _IGNORED)
    of_row = np.repeat(np.arange(len(rows)), rows.num_predictions)
    labels[of_row, rows.positions] = rows.labels
    columns = {
        "input_ids": input_ids,
        "attention_mask": is_real,
        "token_type_ids": (np.arange(width) >= rows.segment_b_starts[:, None]) & is_real,
        "labels": labels,
        "sentence_order_label": rows.sentence_order_labels,
    }
    return {name: torch.from_numpy(each.astype(np.int64)) for name, each in columns.items()}


def in_transformers(
    kind: str,
    settings: ModelSettings,
    vocab_size: int,
    state: Mapping[str, torch.Tensor],
    **config: Any,
) -> torch.nn.Module:
    """Return Hugging Face's class "AlbertFor" ``kind`` with the weights ``state``.

    Args:
        kind: of the class.
        settings: of the encoder.
        vocab_size: of the encoder.
        state: all weights of the class by its names; others are ignored.
        **config: further fields of its config.
    """
    fields = hf_config(settings, vocab_size) | config
    fields.pop("albert_core")
    made = getattr(transformers, f"AlbertFor{kind}")(transformers.AlbertConfig(**fields))
    model: torch.nn.Module = made
    assert not model.load_state_dict(state, strict=False).missing_keys
    return model


def same_in_transformers(ours: AlbertForPretraining) -> torch.nn.Module:
    """Return Hugging Face's model with the same weights, in training mode."""
    settings, vocab_size = ours.encoder.settings, len(ours.masked_lm.bias)
    return in_transformers("PreTraining", settings, vocab_size, to_hf_state(ours)).train()


def peer_update(
    run: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    batches: Sequence[dict[str, torch.Tensor]],
    device: str,
    is_bfloat16: bool,
) -> None:
    """Do Hugging Face's update over ``batches``."""
    for batch in batches:
        with torch.autocast(device, torch.bfloat16, enabled=is_bfloat16):
            loss = run(**batch).loss
        (loss / len(batches)).backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def new_state(settings: ModelSettings, device: str = "cpu") -> step.TrainState:
    """Return our model and optimizer before the first update, the same each time."""
    torch.manual_seed(0)
    model = AlbertForPretraining(settings, VOCAB_SIZE).train().to(device)
    return step.TrainState(model=model, optimizer=build_optimizer(model, "lamb", 1e-3, 0.01))


def peer_of(
    settings: ModelSettings,
    batches: Sequence[dict[str, torch.Tensor]],
    how: str,
    device: str,
    is_bfloat16: bool,
) -> Callable[[], None]:
    """Return Hugging Face's update from the same weights, "eager" or "compiled"."""
    torch.manual_seed(0)
    model = same_in_transformers(AlbertForPretraining(settings, VOCAB_SIZE)).to(device)
    optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
    run = torch.compile(model) if how == "compiled" else model
    return partial(peer_update, run, optimizer, batches, device, is_bfloat16)


def random_rows(lengths: Ints) -> Rows:
    """Return sequences of random pieces, of these ``lengths``."""
    draw = np.random.default_rng(0)
    numbers = np.maximum(1, np.round(lengths * _PREDICTED_SHARE)).astype(np.int64)
    positions = [np.sort(draw.permutation(n)[:p]) for n, p in zip(lengths, numbers, strict=True)]
    return Rows(
        input_ids=draw.integers(5, VOCAB_SIZE, lengths.sum()).astype(np.uint16),
        lengths=lengths,
        segment_b_starts=lengths // 2,
        positions=np.concatenate(positions).astype(np.uint16),
        labels=draw.integers(5, VOCAB_SIZE, numbers.sum()).astype(np.uint16),
        num_predictions=numbers,
        sentence_order_labels=draw.integers(0, 2, len(lengths)),
    )


# Updates


@cache
def rows_of(length: int, manifest: str) -> Rows:
    """Return an update: full sequences, or twice as many whose lengths are spread as those of all.

    Those are the middles of as many equal parts of all examples in order of length: a few drawn by
    chance would have more padding than all, or less.
    """
    size = MICRO_BATCHES[length]
    if not manifest:
        return random_rows(np.full(size, length))
    examples = ExampleShards(manifest, "train")
    lengths, _ = examples.sizes(np.arange(len(examples)))
    middles = (np.arange(2 * size) + 0.5) * len(examples) / (2 * size)
    by_length = np.argsort(lengths, kind="stable")[middles.astype(np.int64)]
    return examples.rows(np.random.default_rng(0).permutation(by_length))


def sizes_of(rows: Rows, times: int = 1) -> Sizes:
    """Return the sizes of an update that has ``rows`` so many times."""
    return Sizes.of_lengths(np.tile(rows.lengths, times), times * len(rows.labels))


@cache
def our_update(length: int, precision: Any, manifest: str = "") -> harness.Work:
    """Contestant: our update."""
    state, rows = new_state(MODEL), rows_of(length, manifest)
    settings = TrainingSettings(precision=precision)
    single = list(rows.split(range(1, len(rows) + 1)))
    dealt = deal_update(rows.lengths, 0, 1, MICRO_BATCHES[length] * length)
    parts = [Rows.join([single[place] for place in places]).batch() for places in dealt]
    whole = UpdateBatch(sizes=sizes_of(rows), micro_batches=parts)
    return harness.units(rows.lengths.sum(), step.train_step, state, whole, settings, ranks.ALONE)


@cache
def their_update(
    length: int, precision: str, manifest: str = "", how: str = "eager"
) -> harness.Work:
    """Contestant: Hugging Face's update, of the examples in random order."""
    rows = rows_of(length, manifest)
    size = MICRO_BATCHES[length]
    batches = [padded(part) for part in rows.split([*range(size, len(rows), size), len(rows)])]
    update = peer_of(MODEL, batches, how, "cpu", precision == "bfloat16")
    return harness.units(rows.lengths.sum(), update)


@cache
def peak(length: int, precision: str, manifest: str = "") -> harness.Work:
    """Contestant: the feed-forward's matrix product, as pieces of an update's operations."""
    sizes = sizes_of(rows_of(length, manifest))
    flops_per_piece = training_flops(MODEL, VOCAB_SIZE, sizes) / sizes.num_pieces
    dtype, calls = getattr(torch, precision), 6
    x, weight = (torch.randn(n, MODEL.hidden_size).to(dtype) for n in (2048, 3072))

    def work() -> float:
        for _ in range(calls):
            F.linear(x, weight)
        return calls * 2.0 * 2048 * 3072 * MODEL.hidden_size / flops_per_piece

    return work


def step_memory(contestant: Callable[..., harness.Work], precision: str) -> float:
    """Return the MB that two updates add to this process, at 4 x 512."""

    def status_mb(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(dict(line.split(":", 1) for line in lines)[name].split()[0]) / 1e3

    work = contestant(512, precision)
    peak(512, precision)()  # allocates the library's own workspace for matrix products
    before = status_mb("VmRSS")
    work()
    work()
    return status_mb("VmHWM") - before  # not getrusage's, which begins with the parent's


def measure_updates(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Compare updates, and their memory."""
    origin, manifests = stages.make_examples(folder, UPDATE_TEXT_BYTES, options.lengths)
    cases: dict[str, dict[str, harness.Contestant]] = {}
    goals = {}
    for length, manifest in manifests.items():
        for precision in PRECISIONS:
            for kind, examples in (("full", ""), ("real lengths", manifest)):
                name = f"{precision}, {MICRO_BATCHES[length]} x {length}, {kind}"
                given = (length, precision, examples)
                cases[name] = {
                    "ours": (our_update, *given),
                    "peer": (their_update, *given),
                    "peak": (peak, *given),
                }
                if kind == "full" and not options.no_compiled:
                    cases[name]["compiled peer"] = (their_update, *given, "compiled")
                goals[name] = UPDATE_GOALS.get(f"{precision}, {kind}", "")
    found, shown = harness.compare(cases, options.rounds, "real pieces", goals)
    memory, rows = {}, []
    for precision in PRECISIONS:
        both = [harness.alone(step_memory, each, precision) for each in (our_update, their_update)]
        memory[precision] = both
        rows.append([precision, *(f"{mb:,.0f}" for mb in both), f"{both[0] / both[1]:.2f}"])
    head = ["memory of a step, 4 x 512", "ours, MB", "peer, MB", f"ratio (goal {MEMORY_GOAL})"]
    result = {"text": origin, "cases": found, "memory_mb": memory}
    return result, f"{shown}\n\n{harness.table(head, rows)}"


# Batches


@cache
def in_random_order(manifest: str) -> tuple[ExampleShards, Ints]:
    """Return the examples, and an order of them, in a process with one thread."""
    torch.set_num_threads(1)
    examples = ExampleShards(manifest, "train")
    return examples, np.random.default_rng(0).permutation(len(examples))


@cache
def random_batches(manifest: str, has_fresh_masks: bool) -> harness.Work:
    """Contestant: all examples, in random packed batches; rows are read by the update."""
    examples, order = in_random_order(manifest)
    fresh = loader.FreshMasks(examples.manifest, seed=1) if has_fresh_masks else None

    def work() -> int:
        num_pieces = 0
        for indices in np.split(order, range(UPDATE_SIZE, len(order), UPDATE_SIZE)):
            rows = examples.rows(indices)
            if fresh is not None:
                rows = fresh.draw(rows, indices, np.zeros_like(indices))
            ends = [*range(BATCH_SIZE, len(rows), BATCH_SIZE), len(rows)]
            num_pieces += sum(len(part.batch().input_ids) for part in rows.split(ends))
        return num_pieces

    return work


def whole_updates(manifest: str) -> harness.Work:
    """Contestant: about one epoch in whole updates with fresh masks."""
    examples, _ = in_random_order(manifest)
    settings = TrainingSettings(batch_size=UPDATE_SIZE, micro_batch_size=32, seed=1, masks="fresh")
    num_updates = max(1, len(examples) // UPDATE_SIZE)
    updates = loader.UpdateLoader(
        examples, settings, ranks.ALONE, first_example=0, num_updates=num_updates
    )

    def work() -> int:
        with updates:
            return sum(len(batch.input_ids) for update in updates for batch in update.micro_batches)

    return work


@cache
def their_batches(manifest: str, folder: str) -> harness.Work:
    """Contestant: one epoch of the peer's batches, from a mapped data set of the same examples."""
    import datasets

    datasets.disable_progress_bars()
    examples, order = in_random_order(manifest)
    max_seq_length = examples.result.max_seq_length
    vocab = examples.manifest.input_manifests["vocab"].rpartition("/")[0]
    home = Path(folder, f"peer-{max_seq_length}")
    home.mkdir()
    for name, content in tokenizer_files(tokenizer.Tokenizer.load(vocab), max_seq_length).items():
        (home / name).write_bytes(content)
    rows = examples.rows(np.sort(order)[:_PEER_EXAMPLES])
    ids = np.split(rows.unmasked().astype(np.int32), np.cumsum(rows.lengths)[:-1])
    # With this column the collator need not look for special pieces itself.
    is_special = [(part < records.NUM_SPECIAL).astype(np.int8) for part in ids]
    columns = {"input_ids": ids, "special_tokens_mask": is_special}
    datasets.Dataset.from_dict(columns).save_to_disk(home / "examples")
    collate = transformers.DataCollatorForLanguageModeling(
        transformers.AutoTokenizer.from_pretrained(home),
        mlm_probability=0.15,
        pad_to_multiple_of=LENGTH_MULTIPLE,
    )
    batches = torch.utils.data.DataLoader(
        datasets.load_from_disk(home / "examples"),
        batch_size=BATCH_SIZE,
        shuffle=True,
        collate_fn=collate,
    )
    return lambda: sum(int(batch["attention_mask"].sum()) for batch in batches)


def measure_batches(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Compare batches."""
    origin, manifests = stages.make_examples(folder, int(options.mb * 1e6), options.lengths)
    cases: dict[str, dict[str, harness.Contestant]] = {}
    for length, manifest in manifests.items():
        case = cases[f"{length} pieces"] = {
            "ours, random packed batches, masks of the shards": (random_batches, manifest, False),
            "ours, random packed batches, fresh masks": (random_batches, manifest, True),
            "ours, whole updates, fresh masks": (whole_updates, manifest),
        }
        if find_spec("datasets"):
            case["datasets with its collator"] = (their_batches, manifest, str(folder))
    goals = dict.fromkeys(cases, LOADER_GOAL)
    found, shown = harness.compare(cases, options.rounds, "pieces", goals)
    return {"text": origin, "cases": found}, shown


# Tracking


def train_once(examples: str, work: str, num_steps: int, uri: str) -> dict[str, float]:
    """Train with MLflow at ``uri``, or in a file; return seconds: of all, tracking and saving."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    if uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
    from albert_core.checkpoint import CheckpointWriter
    from albert_core.tracking.run import TrackedRun
    from albert_core.training import pretrain

    settings = TrainingSettings(
        num_steps=num_steps,
        batch_size=16,
        micro_batch_size=16,
        warmup_steps=num_steps // 10,
        log_steps=5,
        checkpoint_steps=num_steps // 4,
        evaluation_steps=num_steps // 2,
        max_evaluation_examples=64,
        precision="bfloat16",
    )
    model = ModelSettings(
        hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024
    )
    begin = time.perf_counter()
    with noted(TrackedRun, "finish") as finish, noted(CheckpointWriter, "wait") as wait:
        pretrain.run(model, settings, examples, work)
    runs, writers = ({call.args[0] for call in each.call_args_list} for each in (finish, wait))
    return {
        "run": time.perf_counter() - begin,
        "tracking": sum(run.seconds for run in runs),
        "tracking_failures": sum(run.num_failures for run in runs),
        "checkpoints": sum(writer.seconds for writer in writers),
    }


def noted(kind: type, method: str) -> Any:
    """Return a context in which the calls of a method are noted, with the object of each."""
    return mock.patch.object(kind, method, autospec=True, side_effect=getattr(kind, method))


def measure_tracking(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """Measure how long tracking and checkpoints hold up a training."""
    origin, manifests = stages.make_examples(folder, TRACKING_TEXT_BYTES, [128])
    cases, rows = {}, []
    with MlflowServer(folder / "server") as server:
        for name, uri in (("SQLite", ""), ("server", server.url)):
            given = (manifests[128], str(folder / name), options.num_steps, uri)
            seconds = cases[name] = harness.alone(train_once, *given)
            each = [seconds["tracking"], seconds["checkpoints"]]
            shares = [f"{part / seconds['run']:.2%}" for part in (sum(each), *each)]
            rows.append([name, f"{seconds['run']:.0f}", *shares])
    head = ["MLflow", "run, s", f"together (goal {TRACKING_GOAL:.0%})", "tracking", "checkpoints"]
    return {"text": origin, "seconds": cases}, harness.table(head, rows)


def main() -> None:
    """Measure what is asked for."""
    parser = harness.arguments(__doc__, rounds=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(MICRO_BATCHES))
    parser.add_argument("--no-compiled", action="store_true", help="without the compiled peer")
    parser.add_argument("--mb", type=float, default=20.0, help="MB of text for the loader")
    parser.add_argument("--num-steps", type=int, default=100, help="updates of the tracked run")
    parts: dict[str, harness.Part] = {
        "training_step": measure_updates,
        "loader": measure_batches,
        "tracking": measure_tracking,
    }
    harness.run(parser, parts)


if __name__ == "__main__":
    main()
