"""Two ranks (gloo) do the updates of one process in float64, with whole and with sharded state."""

import math
import os
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from albert_core.config import TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.training.optimizer import build_optimizer
from albert_core.training.order import example_order
from albert_core.training.ranks import Ranks, shard_state
from albert_core.training.shards import ExampleShards, UpdateBatch
from albert_core.training.step import Asked, TrainState, Update, train_step
from tests.albert_core.made_examples import sizes_of
from tests.albert_core.training_runs import MODEL

NUM_EXAMPLES = 8
OPTIMIZERS: tuple[Literal["lamb", "adamw", "muon"], ...] = ("lamb", "adamw", "muon")
SETTINGS = TrainingSettings(max_grad_norm=0.1)
"""Gradients are clipped hard, so that the norm of the whole counts."""


class Case:
    """A model that is trained on places 0..7 of the order.

    Args:
        examples: manifest.
        ranks: that train it.
        parts: the places of each micro-batch of this rank.
        optimizer: its name.
        shard: whether the state is sharded.
    """

    def __init__(
        self,
        examples: str,
        ranks: Ranks,
        parts: list[list[int]],
        optimizer: Literal["lamb", "adamw", "muon"],
        shard: bool,
    ) -> None:
        torch.manual_seed(1)
        self.shards, self.ranks, self.parts = ExampleShards(examples, "train"), ranks, parts
        model = AlbertForPretraining(MODEL, self.shards.result.vocab_size).double()
        if shard:
            shard_state(model, ranks)
        self.state = TrainState(
            model=model, optimizer=build_optimizer(model, optimizer, 0.01, 0.01, 0.01)
        )

    def update(self, asked: Asked | None = None) -> Update:
        order = example_order(0, NUM_EXAMPLES, len(self.shards), 1)
        batch = UpdateBatch(
            sizes=sizes_of(self.shards.rows(order)),
            micro_batches=(self.shards.rows(order[places]).batch() for places in self.parts),
        )
        ask = Asked if asked is None else lambda: asked
        return train_step(self.state, batch, SETTINGS, self.ranks, "sentence_order", ask)

    def after_three_updates(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Return weights, moments and the metrics of the last update."""
        for _ in range(3):
            update = self.update()
        return self.state.tensors(), update.metrics

    def after_a_bad_one(self, rank: int) -> tuple[bool, Update]:
        """Give one rank a NaN, SIGTERM and a late clock; return whether the weights stay."""
        asked, before = Asked(), self.state.tensors()["model"]
        before = {name: tensor.clone() for name, tensor in before.items()}
        if self.ranks.rank == rank:
            asked = Asked(stop=True, checkpoint=True)
            pooler = self.state.model.encoder.pooler
            pooler.register_forward_hook(lambda _module, _inputs, output: output * math.nan)
        update = self.update(asked)
        after = self.state.tensors()["model"]
        return all(torch.equal(before[name], after[name]) for name in before), update


def rank_of_two(rank: int, parts: list[list[list[int]]], examples: str, folder: str) -> None:
    """Do what `Case` does with each optimizer, whole and sharded; the first rank saves it."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=2)
    ranks, found = Ranks(rank, 2, torch.device("cpu")), []
    for shard, optimizer in product((False, True), OPTIMIZERS):
        case = Case(examples, ranks, parts[rank], optimizer, shard)
        tensors, metrics = case.after_three_updates()
        stayed, bad = case.after_a_bad_one(1)
        found.append((tensors, metrics, [stayed, bad.skipped, tuple(bad.asked)]))
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))
    ranks.wait()
    dist.destroy_process_group()
    os._exit(0)  # threads of the libraries can abort an interpreter that is being taken down


@pytest.mark.slow
def test_two_ranks_do_the_updates_of_one_process_and_skip_and_stop_together(
    examples: str, tmp_path: Path
) -> None:
    parts = [[[0, 1, 2], [3], [4]], [[5], [6], [7]]]
    spawn(rank_of_two, (parts, examples, str(tmp_path)), nprocs=2)
    alone = Ranks(0, 1, torch.device("cpu"))
    expected = [
        Case(examples, alone, [list(range(NUM_EXAMPLES))], optimizer, shard=False)
        for optimizer in OPTIMIZERS
    ]
    after = [case.after_three_updates() for case in expected]
    found = torch.load(tmp_path / "found.pt")
    for (tensors, metrics), (its_tensors, its_metrics, bad) in zip(after * 2, found, strict=True):
        for what in ("model", "optimizer"):
            ours, theirs = tensors[what], its_tensors[what]
            torch.testing.assert_close(theirs, ours, rtol=1e-11, atol=1e-11)
        assert its_metrics == pytest.approx(metrics, rel=1e-5)  # sums of float32
        assert bad == [True, "not_finite", (True, False, True)]
