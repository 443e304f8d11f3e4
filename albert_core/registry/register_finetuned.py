"""Stage: a fine-tuned model -> a version in the registry, champion if the gate says so.

The weights that were scored are the model itself, so that no seed is noise, only the choice of
dev's examples. Scores are cross-fitted, so that a model that was chosen from more evaluations has
no advantage.

``python -m albert_core.registry.register_finetuned --recipe=... --finetuning=<its manifest>``
"""

import logging
from typing import Any

from albert_core.config import RegistrySettings
from albert_core.conversion import model_files
from albert_core.registry import version_files
from albert_core.registry.candidate import Candidate
from albert_core.registry.measured import measure
from albert_core.registry.registration import enter
from albert_core.stage import command, results, servers
from albert_core.stage.lineage import Lineage, Result, read_lineage
from albert_core.stage.manifest import StagePlan, digest_of, read_manifest
from albert_core.stage.provenance import code_digest, library_versions
from albert_core.tracking.server import output_of

_LIBRARIES = (
    "torch", "transformers", "tokenizers", "safetensors", "sentencepiece", "numpy", "pandas",
    "pyarrow", "pydantic", "fsspec", "protobuf", "scipy",
)  # fmt: skip
_SERVED_MODULE = "albert_core.registry.served_task_model"
_TEXT, _OTHER_TEXT = "The cup is on the table.", "The table is empty."
_EXAMPLES: dict[str, dict[str, Any]] = {
    "choice": {"article": _TEXT, "question": "Where is the cup?"},
    "spans": {"question": "Where is the cup?", "context": _TEXT},
}
"""Kind of task -> a row of its input, without the options, where it is not texts."""

log = logging.getLogger(results.REGISTRATION)


def run(registry: RegistrySettings, finetuning: str, name: str = "", work: str = "work") -> str:
    """Register a fine-tuned model; make it champion if it is better; return the manifest.

    Args:
        registry: settings.
        finetuning: manifest of the fine-tuning.
        name: name of the registered model; empty: registry.model_name and the task's name.
        work: folder for all results.

    Raises:
        IntegrityError: a file is missing or damaged.
        RegistryError: the registry does not answer.
    """
    scores, folder = read_manifest(finetuning), results.model_folder_of(finetuning)
    result, about = scores.result_as(results.FinetuningResult), model_files.read_task(folder)
    task, num_texts = about["task"], about["settings"].get("num_texts")
    example = _EXAMPLES.get(task["kind"], {"text": _TEXT})
    if task["kind"] == "choice":
        example = example | {"options": [f"option {label}" for label in task["labels"]]}
    if num_texts == 2:
        example = example | {"text_b": _OTHER_TEXT}
    # Versions are compared if they were asked the same on the same dev set, and scored by the same
    # metric, whatever they were trained with.
    asked: list[Any] = [result.task, result.metric, scores.inputs["dev"]]
    if own := scores.settings.get("own_task"):
        asked += [own["label_column"], own["cluster_column"], task["kind"], task["labels"]]
    candidate = Candidate(
        name=name or f"{registry.model_name}-{result.task}",
        trained=finetuning,
        output=output_of(finetuning, model_files.model_digest(folder)),
        measured=measure({finetuning: scores}, {result.task: digest_of(asked)}),
        over_seeds=False,
        settings=registry,
        lineage=_lineage_of(finetuning, work),
        served_by=_SERVED_MODULE,
        kind=task["kind"],
        num_texts=num_texts,
        example=example,
    )
    plan = StagePlan(
        stage=results.REGISTRATION,
        settings={"registry": registry.model_dump(), "name": candidate.name},
        inputs={
            "finetuning": digest_of([scores.key, scores.content]),
            "model": candidate.output.digest,
            "registry": digest_of(servers.tracking_name(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(_SERVED_MODULE)])[:16],
        libraries=library_versions(*_LIBRARIES),
        input_manifests={"finetuning": finetuning},
    )
    return enter(plan, work, candidate)


def _lineage_of(finetuning: str, work: str) -> Lineage:
    """Return all that a fine-tuned model was made of.

    A fine-tuning that began with the files of a registered version has no manifest beside them and
    names none. The registry knows by their digest what made them.
    """
    found: dict[str, Result] = {}
    queue = [*read_lineage(finetuning).results.values()]
    while queue:
        result = queue.pop()
        made = result.manifest
        if made.stage == results.FINETUNING and results.PRETRAINING not in made.input_manifests:
            before = [*version_files.lineage_of_model(made.inputs["model"], work).results.values()]
            if before:
                inputs = made.input_manifests | {results.PRETRAINING: before[-1].uri}
                made = made.model_copy(update={"input_manifests": inputs})
                result = Result(result.uri, made)
            else:
                log.warning(
                    "%s began with the model %s, of which neither its manifest nor the registry "
                    "says what it was made of: `albert trace` and the receipts of removals will "
                    "not find this version by the text of that model",
                    result.place,
                    made.inputs["model"][:12],
                )
            queue += before
        found[result.place] = result
    return Lineage(found.values())


if __name__ == "__main__":
    command.stage_main(run)
