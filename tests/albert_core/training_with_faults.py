"""Updates with faults planted, and what they are given recorded; as a program, the whole stage.

Faults are JSON, in ``FAULTS`` in the environment of the program:

bad_rank    the rank on which the others happen; 0 if absent
bad_steps   updates, from 0, in which a gradient is NaN
kill_step   in this update the rank is killed, ``kill_delay`` seconds from its beginning
stop_step   in this update the rank gets SIGTERM
seen        folder to which each rank appends what examples it is given: a line for each update
"""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from albert_core.model.attention import lengths_of
from albert_core.stage.command import stage_main
from albert_core.training import batches, loader, pretrain, pretraining
from albert_core.training.step import TrainState, Update, train_step


def names_of(batch: batches.Batch) -> list[str]:
    """Return a name for each example: a digest of its real pieces and where its masks are."""
    lengths = lengths_of(batch.runs)
    is_prediction = torch.zeros(len(batch.input_ids), dtype=torch.bool)
    is_prediction[batch.masked_lm_positions] = True
    parts = zip(batch.input_ids.split(lengths), is_prediction.split(lengths), strict=True)
    contents = (repr((ids.tolist(), masked.nonzero()[:, 0].tolist())) for ids, masked in parts)
    return [hashlib.sha256(content.encode()).hexdigest()[:16] for content in contents]


def step_with(faults: dict[str, Any]) -> Callable[..., Update]:
    """Return `train_step` with ``faults``."""
    rank, world_size = (int(os.environ.get(*each)) for each in (("RANK", "0"), ("WORLD_SIZE", "1")))

    def step(state: TrainState, batch: loader.UpdateBatch, *rest: Any) -> Update:
        number, is_bad = state.step, rank == faults.get("bad_rank", 0)

        def seen() -> Iterator[batches.Batch]:
            names: list[str] = []
            for micro_batch in batch.micro_batches:
                names += names_of(micro_batch)
                yield micro_batch
            line = {"step": number, "rank": rank, "world_size": world_size, "names": names}
            with Path(faults["seen"], f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

        if is_bad and number == faults.get("stop_step"):
            os.kill(os.getpid(), signal.SIGTERM)
        if is_bad and number == faults.get("kill_step"):
            delay = faults.get("kill_delay", 0.0)
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        factor = float("nan") if is_bad and number in faults.get("bad_steps", []) else 1.0
        planted = next(state.model.parameters()).register_hook(lambda gradient: gradient * factor)
        micro_batches = seen() if "seen" in faults else batch.micro_batches
        update = train_step(state, replace(batch, micro_batches=micro_batches), *rest)
        planted.remove()
        return update

    return step


if __name__ == "__main__":
    faulty = step_with(json.loads(os.environ["FAULTS"]))
    pretraining.train_step = faulty  # type: ignore[attr-defined]
    stage_main(pretrain.run)
