"""An update of ALBERT base against Hugging Face's `AlbertForPreTraining`, eager and compiled.

    python -m benchmarks.training_step [--no-compiled] [--lengths 128 512] [--rounds 3]
        [--results FILE]

The same weights, batches and optimizer (our LAMB), each in a process of its own with two threads,
in turn. Full sequences, and updates of the lengths that the stages give on real English text: the
peer pads them in random micro-batches, ours sorts and packs them. Speed is in real pieces per CPU
second. Beside it the share of the machine's peak in matrix products, measured in the same rounds,
that the model's own operations reach; and the memory of a step.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait take no CPU time

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion.huggingface import hf_config, to_hf_state
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.model_size import training_flops
from albert_core.training.loader import ExampleShards, Rows, UpdateBatch, UpdateSizes
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import deal_update, padded_length
from albert_core.training.ranks import ALONE
from albert_core.training.step import TrainState, train_step
from benchmarks import harness
from benchmarks.english_text import make_examples

MODEL, VOCAB_SIZE = ModelSettings(), 30_000
MICRO_BATCHES = {128: 16, 512: 4}
"""Length -> sequences in a micro-batch; an update of real lengths has two of them."""
PRECISIONS = ("float32", "bfloat16")
TEXT_BYTES = 6_000_000
GOALS = {
    "float32, full": "1.4; peak 0.95",
    "bfloat16, full": "1.5; peak 0.75",
    "bfloat16, real lengths": "1.8",
}
MEMORY_GOAL = 0.6
_PREDICTED_SHARE = 0.15
_IGNORED = -100


def padded(rows: Rows) -> dict[str, torch.Tensor]:
    """Return ``rows`` as Hugging Face's class takes them, padded to the longest, in eights."""
    width = padded_length(int(rows.lengths.max()))
    is_real = np.arange(width) < rows.lengths[:, None]
    input_ids = np.zeros(is_real.shape, np.int64)
    input_ids[is_real] = rows.input_ids
    labels = np.full(is_real.shape, _IGNORED)
    of_row = np.repeat(np.arange(len(rows)), rows.num_predictions)
    labels[of_row, rows.positions] = rows.labels
    in_b = (np.arange(width) >= rows.segment_b_starts[:, None]) & is_real
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(is_real.astype(np.int64)),
        "token_type_ids": torch.from_numpy(in_b.astype(np.int64)),
        "labels": torch.from_numpy(labels),
        "sentence_order_label": torch.from_numpy(rows.sentence_order_labels.astype(np.int64)),
    }


def in_transformers(
    kind: str,
    settings: ModelSettings,
    vocab_size: int,
    state: Mapping[str, torch.Tensor],
    **config: Any,
) -> torch.nn.Module:
    """Return Hugging Face's class "AlbertFor" ``kind`` with the weights ``state``, by its names.

    Args:
        kind: of the class.
        settings: of the encoder.
        vocab_size: of the encoder.
        state: all weights of the class; others are passed over.
        **config: further fields of its config.
    """
    import transformers

    fields = hf_config(settings, vocab_size) | config
    fields.pop("albert_core")
    model: torch.nn.Module = getattr(transformers, f"AlbertFor{kind}")(
        transformers.AlbertConfig(**fields)
    )
    assert not model.load_state_dict(state, strict=False).missing_keys
    return model


def same_in_transformers(ours: AlbertForPretraining) -> torch.nn.Module:
    """Return Hugging Face's model with the same weights, in training mode."""
    settings, vocab_size = ours.encoder.settings, len(ours.masked_lm.bias)
    return in_transformers("PreTraining", settings, vocab_size, to_hf_state(ours)).train()


def peer_update(
    run: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[dict[str, torch.Tensor]],
    number: int,
    device: str,
    is_bfloat16: bool,
) -> None:
    """Do Hugging Face's update over so many ``batches``."""
    for batch in batches:
        with torch.autocast(device, torch.bfloat16, enabled=is_bfloat16):
            loss = run(**batch).loss
        (loss / number).backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def random_rows(lengths: NDArray[np.int64]) -> Rows:
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


@cache
def rows_of(length: int, manifest: str) -> Rows:
    """Return an update: full sequences, or twice as many whose lengths lie as those of all do.

    Those are the middles of as many equal parts of all examples in order of length: few drawn by
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


@cache
def our_update(length: int, precision: Any, manifest: str = "") -> harness.Work:
    """Contestant: our update."""
    torch.manual_seed(0)
    model, rows = AlbertForPretraining(MODEL, VOCAB_SIZE).train(), rows_of(length, manifest)
    state = TrainState(model=model, optimizer=build_optimizer(model, "lamb", 1e-3, 0.01))
    settings = TrainingSettings(precision=precision)
    budget = MICRO_BATCHES[length] * length
    single = list(rows.split(range(1, len(rows) + 1)))
    dealt = deal_update(rows.lengths, 0, 1, budget)
    parts = [Rows.join([single[place] for place in places]) for places in dealt]
    whole = UpdateBatch(
        sizes=UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum())),
        micro_batches=[part.batch() for part in parts],
    )

    def work() -> float:
        train_step(state, whole, settings, ALONE)
        return float(rows.lengths.sum())

    return work


@cache
def their_update(length: int, precision: str, manifest: str = "", how: str = "") -> harness.Work:
    """Contestant: Hugging Face's update, of the examples in random order."""
    torch.manual_seed(0)
    model = same_in_transformers(AlbertForPretraining(MODEL, VOCAB_SIZE))
    run = torch.compile(model) if how == "compiled" else model
    optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
    rows = rows_of(length, manifest)
    size = MICRO_BATCHES[length]
    batches = [padded(part) for part in rows.split([*range(size, len(rows), size), len(rows)])]

    def work() -> float:
        peer_update(run, optimizer, batches, len(batches), "cpu", precision == "bfloat16")
        return float(rows.lengths.sum())

    return work


@cache
def peak(precision: str) -> harness.Work:
    """Contestant: operations of the feed-forward's own matrix product."""
    dtype, calls = getattr(torch, precision), 6
    x, weight = (torch.randn(n, MODEL.hidden_size).to(dtype) for n in (2048, 3072))

    def work() -> float:
        for _ in range(calls):
            F.linear(x, weight)
        return calls * 2.0 * 2048 * 3072 * MODEL.hidden_size

    return work


def step_memory(contestant: Callable[..., harness.Work], precision: str) -> float:
    """Return the MB that two updates add to this process, at 4 x 512."""
    work = contestant(512, precision)
    peak(precision)()  # the library's own room for matrix products
    before = harness.status_mb("VmRSS")
    work()
    work()
    return harness.status_mb("VmHWM") - before  # not getrusage's, which begins with the parent's


def measure(
    length: int, precision: str, manifest: str, compiled: bool, rounds: int
) -> dict[str, Any]:
    """Return the figures of one case."""
    case = (length, precision, manifest)
    contestants: dict[str, harness.Contestant] = {
        "peak": (peak, precision),
        "ours": (our_update, *case),
        "peer": (their_update, *case),
    }
    if compiled:
        contestants["compiled peer"] = (their_update, *case, "compiled")
    found, rows = harness.in_turns(contestants, rounds), rows_of(length, manifest)
    sizes = UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum()))
    per_piece = training_flops(MODEL, VOCAB_SIZE, sizes) / sizes.num_pieces
    return {
        "pieces_per_cpu_s": vars(found.rate("ours")),
        "share_of_peak": per_piece * found.rate("ours").median / found.rate("peak").median,
        "peak_gflops": found.rate("peak").median / 1e9,
        "padding_share": 1 - float(rows.lengths.mean() / rows.lengths.max()),
        "times": {p: vars(found.times("ours", p)) for p in contestants if p.endswith("peer")},
    }


def shown(result: dict[str, Any]) -> str:
    """Return the figures with their goals, in Markdown."""
    rows: list[list[object]] = []
    for case, figures in result["cases"].items():
        precision, _, kind = case.split(", ")
        found = [figures["times"].get(peer) for peer in ("peer", "compiled peer")]
        each = [harness.Figure(**times) if times else "" for times in found]
        speed = f"{figures['pieces_per_cpu_s']['median']:,.0f}"
        goal = GOALS.get(f"{precision}, {kind}", "")
        rows.append([case, *each, f"{figures['share_of_peak']:.2f}", goal, speed])
    for precision, (ours, peer) in result["memory_mb"].items():
        said = f"{ours:,.0f} MB of {peer:,.0f}: {ours / peer:.2f}"
        name = f"memory of a step, 4 x 512, {precision}"
        rows.append([name, said, "", "", f"at most {MEMORY_GOAL}", ""])
    head = ["case", "times the peer", "times the compiled peer", "share of peak", "goal"]
    return harness.table([*head, "real pieces per CPU s"], rows)


def main() -> None:
    """Measure all cases; print and write the results."""
    parser = harness.arguments(__doc__, "training_step", rounds=3)
    parser.add_argument("--no-compiled", action="store_true", help="without the compiled peer")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(MICRO_BATCHES))
    options = parser.parse_args()
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="albert-bench-") as folder:
        origin, manifests = make_examples(Path(folder), TEXT_BYTES, options.lengths)
        for length, manifest in manifests.items():
            for precision in PRECISIONS:
                name = f"{precision}, {MICRO_BATCHES[length]} x {length}"
                for kind, examples in (("full", ""), ("real lengths", manifest)):
                    compiled = kind == "full" and not options.no_compiled
                    figures = measure(length, precision, examples, compiled, options.rounds)
                    cases[f"{name}, {kind}"] = figures
    both = (our_update, their_update)
    memory = {p: [harness.alone(step_memory, each, p) for each in both] for p in PRECISIONS}
    result = {"text": origin, "cases": cases, "memory_mb": memory}
    result["hardware"] = {"threads": torch.get_num_threads()}
    harness.report(result, shown(result), options.results)


if __name__ == "__main__":
    main()
