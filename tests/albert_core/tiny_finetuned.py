"""A fine-tuned model with random weights and a tiny vocabulary; and one of them in the registry."""

from typing import Any

import pyarrow as pa
import torch

from albert_core.config import FinetuningSettings, RegistrySettings
from albert_core.finetuning.finetuned_model import problem_of, save_finetuned
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
    work: str, task: str, score: float, seed: int = 0, name: str = ""
) -> RegistrationResult:
    """Register the model of a fine-tuning that never was."""
    uri = made_finetuning(work, task, score, seed)
    registration = register_finetuned.run(RegistrySettings(model_name="tiny"), uri, name, work)
    return read_manifest(registration).result_as(RegistrationResult)


def made_finetuning(work: str, task: str, score: float, seed: int = 0) -> str:
    """Write what a fine-tuning would; return its manifest."""
    plan = StagePlan(
        "finetuning", {"seed": seed, "score": score}, {"model": "m", "dev": "d"}, "code", {}
    )
    save_tiny_finetuned(f"{plan.folder(work)}/model", task, run=seed)
    key = TASKS[task].metrics[0]
    write_arrow(_predictions(task, score), f"{plan.folder(work)}/dev.arrow")
    result = made_result(
        "finetuning",
        task=task, kind=TASKS[task].kind, metric=key, score=score, scores={key: score},
    )  # fmt: skip
    return plan.write(work, shards_in(plan.folder(work), "model"), [], result)


def _predictions(task: str, share_right: float) -> pa.Table:
    """Return the predictions of a fine-tuned model for 40 examples, the first of them right."""
    is_right = [i < 40 * share_right for i in range(40)]
    if TASKS[task].kind == "spans":
        values = [float(right) for right in is_right]
        return pa.table({"f1": values, "exact_match": values})
    if TASKS[task].kind == "regression":
        numbers = [float(i) for i in range(40)]
        return pa.table({"target": numbers, "prediction": numbers[::-1]})
    one, other, *_ = TASKS[task].labels
    found = [one if right else other for right in is_right]
    return pa.table({"target": [one] * 40, "prediction": found})
