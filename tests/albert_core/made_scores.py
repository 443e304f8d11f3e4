"""Pretrained models with the scores of fine-tunings that never were, as their stages write them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_core.conversion.model_files import model_digest
from albert_core.metrics import SHARE, estimate, jackknife_table
from albert_core.stage import manifest, storage
from albert_core.text.arrow_files import write_arrow
from tests.albert_core.tiny_model import save_tiny_model
from tests.made_results import made_result

NUM_EXAMPLES = 400
SPREAD = 0.005
"""Between the accuracies of one seed and the next."""


def write_stage(work: str, name: str, **changes: Any) -> str:
    """Return the manifest of a stage that wrote nothing else."""
    plan = manifest.StagePlan(
        name,
        changes.get("settings", {}),
        changes.get("inputs", {}),
        changes.get("code", "code"),
        {},
        changes.get("input_manifests", {}),
    )
    return plan.write(work, [], [], made_result(name))


def pretrained(work: str, seed: int, **went_on_from: str) -> str:
    """Return the manifest of a pretraining that never was, with a model and all before it.

    It may have gone on from the manifest of another ``pretraining``.
    """
    corpus = write_stage(work, "corpus")
    vocab = write_stage(work, "vocab", input_manifests={"corpus": corpus})
    examples = write_stage(work, "examples", input_manifests={"corpus": corpus, "vocab": vocab})
    before = {"examples": examples, "vocab": vocab} | went_on_from
    inputs = {"seed": str(seed)} | went_on_from
    plan = manifest.StagePlan("pretraining", {}, inputs, "code", {}, before)
    folder = plan.folder(work)
    save_tiny_model(f"{folder}/model", seed)
    model = manifest.shards_in(folder, "model")
    return plan.write(work, model, [], made_result("pretraining"))


def model_of(pretraining: str) -> str:
    """Return the folder of its model."""
    return f"{pretraining.rpartition('/')[0]}/model"


def scored(
    work: str,
    pretraining: str,
    score: float | Mapping[str, float],
    dev: str = "dev",
    num_seeds: int = 3,
) -> str:
    """Return the manifest of the scores of a model.

    Args:
        work: folder for all results.
        pretraining: the model's manifest.
        score: accuracy of the middle seed, on one task or by the tasks' names. The first examples
            are the easy ones.
        dev: stands for the digest of the dev sets.
        num_seeds: fine-tunings of each task.
    """
    by_task = score if isinstance(score, Mapping) else {"sst-2": score}
    folder = model_of(pretraining)
    uris = [
        finetuned(work, folder, task, value + SPREAD * (seed - num_seeds // 2), seed, dev)
        for task, value in by_task.items()
        for seed in range(num_seeds)
    ]
    return scores_of(work, uris)


def scores_of(work: str, finetunings: Sequence[str]) -> str:
    """Return the manifest of the scores of these fine-tunings."""
    manifests = {f"finetuning-{manifest.read_manifest(uri).key}": uri for uri in finetunings}
    inputs = {name: manifest.read_manifest(uri).content for name, uri in manifests.items()}
    return write_stage(work, "scores", inputs=inputs, input_manifests=manifests)


def finetuned(
    work: str,
    model_folder: str,
    task: str,
    score: float,
    seed: int,
    dev: str = "dev",
    constant: float = 0.1,
) -> str:
    """Return the manifest of one fine-tuning of the model with this accuracy."""
    beside = f"{model_folder.rpartition('/')[0]}/{manifest.MANIFEST}"
    before = {"pretraining": beside} if storage.exists(beside) else {}
    plan = manifest.StagePlan(
        "finetuning",
        {"finetuning": {"num_steps": 1}, "task": task, "seed": seed},
        {"model": model_digest(model_folder), "train": "train", "dev": dev},
        f"score {score}",  # another score, another folder
        {},
        before | {"task": write_stage(work, "task")},
    )
    folder = plan.folder(work)
    num_right = round(score * NUM_EXAMPLES)
    is_right = (np.arange(NUM_EXAMPLES) < num_right).astype(np.float64)
    found = {"accuracy": SHARE.of(is_right, np.ones(NUM_EXAMPLES))}
    write_arrow(jackknife_table(found, None), f"{folder}/jackknife.arrow")
    described = {"task": {"labels": ["no", "yes"]}, "settings": {}}
    storage.write_bytes(f"{folder}/model/task.json", json.dumps(described).encode())
    result = made_result(
        "finetuning",
        task=task,
        title=task.upper(),
        metric="accuracy",
        scores={name: estimate(sample).model_dump() for name, sample in found.items()},
        constant_scores={"accuracy": constant},
    )
    return plan.write(work, [], [], result)
