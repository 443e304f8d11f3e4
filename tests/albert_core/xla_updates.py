"""Some updates and an evaluation, for a Python that has PyTorch/XLA: of a test, in a process.

    python -m tests.albert_core.xla_updates EXAMPLES MODEL TRAINING

The arguments are a manifest and the settings as JSON. With ``PJRT_DEVICE`` set, XLA computes. The
last line printed is JSON:

losses      masked LM and sentence order loss of each update
compiled    graphs compiled by the end of each update, and of each of two evaluations
scores      held-out values
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import ExamplesResult
from albert_core.training.batches import Batch
from albert_core.training.held_out import evaluate
from albert_core.training.loader import UpdateLoader
from albert_core.training.optimizer import build_optimizer, learning_rate_at
from albert_core.training.ranks import Ranks, ranks_of_environment
from albert_core.training.shards import ExampleShards
from albert_core.training.step import TrainState, train_step


def num_compiled() -> int:
    """Return how many graphs XLA has compiled."""
    if "PJRT_DEVICE" not in os.environ:
        return 0
    from torch_xla.debug import metrics

    return int(metrics.counter_value("UncachedCompile") or 0)


def on_device(batches: Iterable[Batch], ranks: Ranks) -> Iterator[Batch]:
    """Yield each batch on the device; end its graph after it."""
    for batch in batches:
        yield batch.each(ranks.to_device)
        ranks.begin_pending()


def main(examples: str, model_json: str, training_json: str) -> None:
    """Do the updates of the settings; print what came of them."""
    settings = TrainingSettings.model_validate_json(training_json)
    shards, held_out = (ExampleShards(examples, kind) for kind in ("train", "held_out"))
    losses, compiled = [], []
    with ranks_of_environment() as ranks:
        torch.manual_seed(1)
        shape = ModelSettings.model_validate_json(model_json)
        model = AlbertForPretraining(
            shape, read_manifest(examples).result_as(ExamplesResult).vocab_size
        )
        model = ranks.place(model, settings)
        rates = settings.learning_rate, settings.warmup_steps, settings.num_steps
        optimizer = build_optimizer(model, settings.optimizer, settings.learning_rate, 0.01)
        state = TrainState(model=model, optimizer=optimizer)
        place = {"first_example": 0, "num_updates": settings.num_steps}
        with UpdateLoader(shards, settings, ranks, **place) as loader:
            for taken in loader:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate_at(state.step, *rates, settings.schedule)
                batch = replace(taken, micro_batches=on_device(taken.micro_batches, ranks))
                metrics = train_step(state, batch, settings, ranks).metrics
                losses.append([metrics["masked_lm_loss"], metrics["sentence_order_loss"]])
                compiled.append(num_compiled())
        for _ in range(2):
            scores = evaluate(model, held_out, settings.max_evaluation_examples, ranks=ranks)
            compiled.append(num_compiled())
    values = {name: score.value for name, score in scores.items()}
    print(json.dumps({"losses": losses, "compiled": compiled, "scores": values}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
