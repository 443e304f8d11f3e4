"""One update in float64, in one process or as ranks of several."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.data import ExampleShards
from albert_core.distributed import Ranks
from albert_core.example_order import example_order
from albert_core.model import AlbertForPretraining
from albert_core.optimizer import build_optimizer
from albert_core.train_step import TrainState, UpdateBatch, train_step

NUM_EXAMPLES = 8


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
        micro_batches=(shards.batch(order[places]) for places in parts[rank]),
        num_predictions=float(len(shards.batch(order).masked_lm_labels)),
        num_sequences=NUM_EXAMPLES,
    )
    ranks = Ranks(rank, len(parts), torch.device("cpu"))
    update = train_step(state, batch, TrainingSettings(), ranks)
    if rank == 0:
        torch.save([network.state_dict(), update.metrics], Path(folder, "after.pt"))
