"""A fine-tuned model with random weights and a tiny vocabulary; and one of them in the registry."""

from typing import Any

import numpy as np
import torch

from albert_core.config import FinetuningSettings, RegistrySettings
from albert_core.conversion.model_files import manifest_beside, model_digest
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
from albert_core.metrics import SHARE, estimate, jackknife_table
from albert_core.model.albert import AlbertModel
from albert_core.registry import register_finetuned
from albert_core.stage.manifest import StagePlan, read_manifest, shards_in
from albert_core.stage.results import RegistrationResult
from albert_core.tasks.catalogue import TASKS
from albert_core.tasks.problem import Head
from albert_core.text.arrow_files import write_arrow
from tests.albert_core.tiny_model import VOCAB_SIZE, spread, tiny_settings
from tests.albert_core.tiny_vocab import tiny_vocab
from tests.made_results import made_result


def save_tiny_finetuned(
    folder: str, task: str, shape: dict[str, Any] | None = None, **settings: Any
) -> tuple[AlbertModel, Head]:
    """Write a model to ``folder``; return its encoder and head.

    Args:
        folder: of the model.
        task: its name in the catalogue.
        shape: settings of the encoder that differ from those of `tiny_settings`.
        settings: what is stored with it, among them "spans" of the head.
    """
    torch.manual_seed(0)
    shape = {"max_position_embeddings": 64} | (shape or {})
    encoder = AlbertModel(tiny_settings(**shape), VOCAB_SIZE)
    spans = {"spans": settings.get("spans", {})}
    problem = problem_of(TASKS[task], FinetuningSettings.read(spans, "test"))
    head = problem.head(encoder.settings, 0.1)
    for module in (encoder, head):
        spread(module, 0.3)
    about = {"max_seq_length": 48} | settings
    save_finetuned(folder, encoder, head, tiny_vocab(), TASKS[task], about)
    return encoder.eval(), head.eval()


def register_tiny(
    work: str, task: str, score: float, seed: int = 0, name: str = "", **settings: Any
) -> RegistrationResult:
    """Register the model of a fine-tuning that never was."""
    uri = made_finetuning(work, task, score, seed, **settings)
    registration = register_finetuned.run(RegistrySettings(model_name="tiny"), uri, name, work)
    return read_manifest(registration).result_as(RegistrationResult)


def made_finetuning(
    work: str, task: str, score: float, seed: int = 0, model_folder: str = "", **settings: Any
) -> str:
    """Write what a fine-tuning would, perhaps of the model in a folder; return its manifest."""
    settings |= {"seed": seed, "score": score}
    inputs = {"model": model_digest(model_folder) if model_folder else "m", "dev": "d"}
    beside = manifest_beside(model_folder)
    before = {"pretraining": beside} if beside else {}
    plan = StagePlan("finetuning", settings, inputs, "code", {}, before)
    about: dict[str, Any] = {"run": seed}
    if TASKS[task].kind in ("classification", "regression"):
        about["num_texts"] = 1 if task in ("cola", "sst-2") else 2
    save_tiny_finetuned(f"{plan.folder(work)}/model", task, **about)
    is_right = np.arange(40) < 40 * score
    metrics = TASKS[task].metrics
    found = {name: SHARE.of(is_right, np.ones(40)) for name in metrics}
    write_arrow(jackknife_table(found, None), f"{plan.folder(work)}/jackknife.arrow")
    result = made_result(
        "finetuning",
        task=task,
        kind=TASKS[task].kind,
        metric=metrics[0],
        scores={name: estimate(sample).model_dump() for name, sample in found.items()},
        constant_scores=dict.fromkeys(metrics, 0.1),
    )
    return plan.write(work, shards_in(plan.folder(work), "model"), [], result)
