"""What a finished pretraining leaves: the model's folder, metrics, curves and the manifest."""

import json
from typing import Any

from albert_core.conversion.model_folder import save_model_folder
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage import storage
from albert_core.stage.manifest import Account, Manifest, Shard, StagePlan, shard_of, shards_in
from albert_core.training.run_log import draw_curves
from albert_core.training.speed import OF_THE_MACHINE
from albert_core.training.start import read_vocabulary
from albert_core.training.step import PAIR_TASKS, TrainState

MODEL_FOLDER, METRICS, CURVES = "model", "metrics.jsonl", "curves.png"


def write_result(
    plan: StagePlan,
    work: str,
    model: AlbertForPretraining,
    state: TrainState,
    examples: Manifest,
    facts: dict[str, Any],
) -> str:
    """Write all of it, the manifest last; return the manifest's URI.

    Args:
        plan: of the run.
        work: folder for all results.
        model: with the trained weights, whole.
        state: after the last update.
        examples: that it was trained on.
        facts: for the manifest, besides those that are told by ``state`` and ``examples``.
    """
    folder = plan.folder(work)
    tokenizer = read_vocabulary(plan.input_manifests["vocab"])
    save_model_folder(model, tokenizer, storage.join(folder, MODEL_FOLDER))
    lines = (json.dumps(point) + "\n" for point in _points(state))
    storage.write_bytes(storage.join(folder, METRICS), "".join(lines).encode())
    objective, unigram_nats = examples.facts["objective"], examples.facts["unigram_nats"]
    curves = draw_curves(state.history, state.evaluations, unigram_nats, PAIR_TASKS[objective])
    storage.write_bytes(storage.join(folder, CURVES), curves)
    facts = {
        "step": state.step,
        "model_folder": MODEL_FOLDER,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "objective": objective,
        "evaluations": state.evaluations,
        "skipped_steps": state.guard.num_skipped,
        "unigram_nats": unigram_nats,
        **facts,
    }
    return plan.write(work, _shards(folder), [_examples_account(state)], facts)


def _points(state: TrainState) -> list[dict[str, float]]:
    return [
        {name: value for name, value in point.items() if name not in OF_THE_MACHINE}
        for point in state.history
    ]


def _shards(folder: str) -> list[Shard]:
    metrics = shard_of(storage.join(folder, METRICS), folder, "metrics", 1)
    return [*shards_in(folder, MODEL_FOLDER), metrics]


def _examples_account(state: TrainState) -> Account:
    taken, skipped = state.examples_taken, state.examples_skipped
    return Account(
        what="examples trained on",
        total=taken,
        kept=taken - skipped,
        dropped={"skipped_update": skipped},
    )
