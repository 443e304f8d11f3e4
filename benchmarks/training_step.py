"""A training step against Hugging Face's `AlbertForPreTraining`: same model, batch and optimizer.

    python benchmarks/training_step.py

Both are run in turn in one process on random pieces; the ratio is the median of the rounds'. On a
CPU only the ratio means anything.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AlbertConfig
from transformers import AlbertForPreTraining as HuggingFaceAlbert

from albert_core.config import ModelSettings, TrainingSettings
from albert_core.conversion import hf_config
from albert_core.data import Batch
from albert_core.distributed import Ranks
from albert_core.model import AlbertForPretraining
from albert_core.optimizer import build_optimizer
from albert_core.training import TrainState, train_step

NUM_SEQUENCES, LENGTH, NUM_PREDICTIONS, VOCAB_SIZE = 8, 128, 20, 30_000
ROUNDS = 5
IGNORED = -100


def random_batch() -> Batch:
    """Return B full sequences of random pieces."""
    generator = torch.Generator().manual_seed(0)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    positions = torch.rand(NUM_SEQUENCES, LENGTH, generator=generator).argsort(1)
    return Batch(
        input_ids=draw(VOCAB_SIZE, NUM_SEQUENCES, LENGTH),
        attention_mask=torch.ones(NUM_SEQUENCES, LENGTH, dtype=torch.bool),
        token_type_ids=(torch.arange(LENGTH) > LENGTH // 2).long().repeat(NUM_SEQUENCES, 1),
        masked_lm_positions=positions[:, :NUM_PREDICTIONS].sort(1).values,
        masked_lm_labels=draw(VOCAB_SIZE, NUM_SEQUENCES, NUM_PREDICTIONS),
        masked_lm_weights=torch.ones(NUM_SEQUENCES, NUM_PREDICTIONS),
        sentence_order_labels=draw(2, NUM_SEQUENCES),
    )


def hugging_face_step(batch: Batch, settings: ModelSettings) -> Callable[[], object]:
    """Return a function that does one update of Hugging Face's model."""
    config = {k: v for k, v in hf_config(settings, VOCAB_SIZE).items() if k != "albert_core"}
    model = HuggingFaceAlbert(AlbertConfig(**config)).train()
    optimizer = build_optimizer(model, "lamb", 1e-3, 0.01)
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels.scatter_(1, batch.masked_lm_positions, batch.masked_lm_labels)

    def step() -> None:
        loss = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask.long(),
            token_type_ids=batch.token_type_ids,
            labels=labels,
            sentence_order_label=batch.sentence_order_labels,
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_step(batch: Batch, settings: ModelSettings) -> Callable[[], object]:
    """Return a function that does one update of ours."""
    model = AlbertForPretraining(settings, VOCAB_SIZE)
    state = TrainState(model=model, optimizer=build_optimizer(model, "lamb", 1e-3, 0.01))
    ranks = Ranks(0, 1, torch.device("cpu"))
    return lambda: train_step(state, [batch], TrainingSettings(), ranks)


def cpu_seconds(step: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def main() -> None:
    """Time both in turn and print a line of JSON."""
    batch, settings = random_batch(), ModelSettings()
    theirs, ours = hugging_face_step(batch, settings), our_step(batch, settings)
    theirs(), ours()
    rounds = [(cpu_seconds(theirs), cpu_seconds(ours)) for _ in range(ROUNDS)]
    result = {
        "model": "albert-base, float32",
        "batch": f"{NUM_SEQUENCES} x {LENGTH}",
        "hugging_face_cpu_s": round(statistics.median(a for a, _ in rounds), 2),
        "ours_cpu_s": round(statistics.median(b for _, b in rounds), 2),
        "times_faster": round(statistics.median(a / b for a, b in rounds), 2),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
