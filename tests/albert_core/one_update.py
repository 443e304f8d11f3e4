"""Updates in float64, in one process or as ranks of several."""

import os
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import Ranks, shard_state
from albert_core.training.shards import ExampleShards, Rows, UpdateBatch, UpdateSizes
from albert_core.training.step import TrainState, train_step

NUM_EXAMPLES = 8


def sizes_of(rows: Rows) -> UpdateSizes:
    """Return those of an update over ``rows``."""
    return UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum()))


def updates_of(
    rank: int,
    parts: list[list[list[int]]],
    examples: str,
    model: ModelSettings,
    folder: str,
    cases: list[dict[str, Any]],
) -> None:
    """Do three updates of each case over places 0..7 of the order.

    The first rank saves the weights and metrics of each case to ``folder``/after.pt.

    Args:
        rank: of this process.
        parts: the places of each micro-batch of each rank; one rank joins no other.
        examples: manifest.
        model: its shape.
        folder: where ranks meet and the weights go.
        cases: optimizer; shard: whether the state is cut.
    """
    if len(parts) > 1:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        meeting = f"file://{folder}/ranks"
        dist.init_process_group("gloo", meeting, rank=rank, world_size=len(parts))
    ranks = Ranks(rank, len(parts), torch.device("cpu"))
    shards = ExampleShards(examples, "train")
    after = [after_updates(shards, parts[rank], model, ranks, **case) for case in cases]
    if rank == 0:
        torch.save(after, Path(folder, "after.pt"))
    if len(parts) > 1:
        ranks.wait()
        dist.destroy_process_group()
        os._exit(0)  # threads of the libraries can abort an interpreter that is being taken down


def after_updates(
    shards: ExampleShards,
    parts: list[list[int]],
    model: ModelSettings,
    ranks: Ranks,
    optimizer: Literal["lamb", "adamw"],
    shard: bool,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Return weights and metrics; gradients are clipped hard, so that the whole's norm counts."""
    torch.manual_seed(1)
    network = AlbertForPretraining(model, shards.manifest.facts["vocab_size"]).double()
    if shard:
        shard_state(network, ranks)
    built = build_optimizer(network, optimizer, 0.01, 0.01)
    state = TrainState(model=network, optimizer=built)
    settings = TrainingSettings(max_grad_norm=0.1)
    order = example_order(0, NUM_EXAMPLES, len(shards), 1)
    for _ in range(3):
        batch = UpdateBatch(
            sizes=sizes_of(shards.rows(order)),
            micro_batches=(shards.batch(order[places]) for places in parts),
        )
        update = train_step(state, batch, settings, ranks)
    tensors: dict[str, torch.Tensor] = state.tensors()["model"]
    return tensors, update.metrics
