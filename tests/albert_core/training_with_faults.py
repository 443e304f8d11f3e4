"""The training stage in a process of its own, with faults planted and what it sees recorded.

``FAULTS`` in the environment is JSON:

bad_rank    the rank on which the others happen; 0 if absent
bad_steps   updates, from 0, in which a gradient is NaN
kill_step   in this update the rank is killed, ``kill_delay`` seconds from its beginning
stop_step   in this update the rank gets SIGTERM
stop_launcher_step  in this update the rank's launcher gets SIGTERM
seen        folder to which each rank appends what examples it is given: a line for each update
"""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from albert_core.model.attention import lengths_of
from albert_core.stage.command import stage_main
from albert_core.training import pretrain, pretraining
from albert_core.training.preemption import ending_when_told_to
from albert_core.training.shards import Batch, UpdateBatch
from albert_core.training.step import TrainState, Update, train_step

FAULTS: dict[str, Any] = json.loads(os.environ.get("FAULTS", "{}"))


def names_of(batch: Batch) -> list[str]:
    """Return a name for each example: a digest of its real pieces and where its masks are."""
    lengths = lengths_of(batch.runs)
    is_prediction = torch.zeros(batch.num_pieces, dtype=torch.bool)
    is_prediction[batch.masked_lm_positions] = True
    names = []
    for ids, masked in zip(
        batch.input_ids.split(lengths), is_prediction.split(lengths), strict=True
    ):
        content = repr((ids.tolist(), masked.nonzero()[:, 0].tolist())).encode()
        names.append(hashlib.sha256(content).hexdigest()[:16])
    return names


def main() -> None:
    """Run the stage."""
    rank = int(os.environ.get("RANK", "0"))
    is_bad = rank == FAULTS.get("bad_rank", 0)

    def faulty_step(state: TrainState, batch: UpdateBatch, *rest: Any, **options: Any) -> Update:
        step = state.step

        def seen() -> Iterator[Batch]:
            names: list[str] = []
            for micro_batch in batch.micro_batches:
                names += names_of(micro_batch)
                yield micro_batch
            if "seen" in FAULTS:
                world_size = int(os.environ.get("WORLD_SIZE", "1"))
                line = {"step": step, "rank": rank, "world_size": world_size, "names": names}
                with Path(FAULTS["seen"], f"rank-{rank}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")

        if is_bad and step == FAULTS.get("stop_step"):
            os.kill(os.getpid(), signal.SIGTERM)
        if is_bad and step == FAULTS.get("stop_launcher_step"):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(0.5)
        if is_bad and step == FAULTS.get("kill_step"):
            delay = FAULTS.get("kill_delay", 0.0)
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        factor = float("nan") if is_bad and step in FAULTS.get("bad_steps", []) else 1.0
        planted = next(state.model.parameters()).register_hook(lambda gradient: gradient * factor)
        update = train_step(state, replace(batch, micro_batches=seen()), *rest, **options)
        planted.remove()
        return update

    pretraining.train_step = faulty_step  # type: ignore[attr-defined]
    with ending_when_told_to():
        stage_main(pretrain.run)


if __name__ == "__main__":
    main()
