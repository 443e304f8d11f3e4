"""One update in float64, in one process or as ranks of several."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.data import ExampleShards, Rows
from albert_core.distributed import Ranks
from albert_core.example_order import example_order
from albert_core.model import AlbertForPretraining
from albert_core.optimizer import build_optimizer
from albert_core.train_step import TrainState, train_step
from albert_core.update_batch import UpdateBatch, UpdateSizes

NUM_EXAMPLES = 8


def sizes_of(rows: Rows) -> UpdateSizes:
    """Return those of an update over ``rows``."""
    return UpdateSizes.of_lengths(rows.lengths, int(rows.num_predictions.sum()))


def update_of(
    rank: int, parts: list[list[list[int]]], examples: str, model: ModelSettings, folder: str
) -> None:
    """Do an update over places 0..7 of the order; the first rank saves its weights to ``folder``.

    Args:
        rank: of this process.
        parts: the places of each micro-batch of each rank; one rank joins no other.
        examples: manifest.
        model: its shape.
        folder: where ranks meet and the weights go.
    """
    if len(parts) > 1:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        meeting = f"file://{folder}/ranks"
        dist.init_process_group("gloo", meeting, rank=rank, world_size=len(parts))
    shards = ExampleShards(examples, "train")
    torch.manual_seed(1)
    network = AlbertForPretraining(model, shards.manifest.facts["vocab_size"]).double()
    state = TrainState(model=network, optimizer=build_optimizer(network, "lamb", 0.01, 0.01))
    order = example_order(0, NUM_EXAMPLES, len(shards), 1)
    batch = UpdateBatch(
        sizes=sizes_of(shards.rows(order)),
        micro_batches=(shards.batch(order[places]) for places in parts[rank]),
    )
    ranks = Ranks(rank, len(parts), torch.device("cpu"))
    update = train_step(state, batch, TrainingSettings(), ranks)
    if rank == 0:
        torch.save([network.state_dict(), update.metrics], Path(folder, "after.pt"))
