"""Stage: a fine-tuned model -> a version in the registry, champion if the gate says so.

The weights that were scored are the model itself, so that no seed is noise, only the choice of
dev's examples. Both models' best evaluations were chosen on that dev set.

``python -m albert_core.registry.register_finetuned --recipe=... --finetuning=<its manifest>``
"""

from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.types.schema import Array

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import model_digest, read_task
from albert_core.registry.champion import STAGE, Candidate, enter, lineage_of
from albert_core.registry.measured import measure, read_measured
from albert_core.registry.versions import ServedCode
from albert_core.stage import storage
from albert_core.stage.command import stage_main
from albert_core.stage.environment import shown_tracking_uri
from albert_core.stage.manifest import StagePlan, digest_of, read_manifest
from albert_core.stage.provenance import code_digest, library_versions

REQUIREMENTS = (
    "torch", "transformers", "tokenizers", "safetensors", "sentencepiece", "numpy", "pandas",
    "pyarrow", "pydantic", "fsspec", "protobuf", "scipy",
)  # fmt: skip
_CODE = "albert_core.registry.served_task_model"
_TAKES_ALONG = "albert_core.finetuning.finetuned_model"


def run(registry: RegistrySettings, finetuning: str, name: str = "", work: str = "work") -> str:
    """Register a fine-tuned model; make it champion if it is better; return the manifest.

    Args:
        registry: settings.
        finetuning: its manifest.
        name: of the registered model; empty: registry.model_name and the task's name.
        work: folder for all results.

    Raises:
        IntegrityError: a file is missing or damaged.
        RegistryError: the registry does not answer.
    """
    candidate = read_candidate(name, registry.model_name, finetuning)
    scores = candidate.lineage[storage.absolute(finetuning)]
    plan = StagePlan(
        stage=STAGE,
        settings={"registry": registry.model_dump(), "name": candidate.name},
        inputs={
            "finetuning": digest_of([scores.key, scores.content]),
            "model": candidate.digest,
            "registry": digest_of(shown_tracking_uri(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(_CODE)])[:16],
        libraries=library_versions(*REQUIREMENTS),
        input_manifests={"finetuning": finetuning},
    )
    return enter(plan, work, registry, candidate, read_measured)


def read_candidate(name: str, model_name: str, finetuning: str) -> Candidate:
    """Return the fine-tuned model of a manifest.

    Versions are compared if they were scored on the same dev set by the same metric, whatever
    they were trained with.

    Args:
        name: of the registered model; empty: see ``model_name``.
        model_name: what stands before the task's name otherwise.
        finetuning: the manifest's URI.

    Raises:
        IntegrityError: a manifest or a file is missing.
    """
    scores = read_manifest(finetuning)
    facts = scores.facts
    folder = storage.join(finetuning.rpartition("/")[0], facts["model_folder"])
    kind = str(read_task(folder)["task"]["kind"])
    data = digest_of([facts["task"], facts["metric"], scores.inputs["dev"]])
    return Candidate(
        name=name or f"{model_name}-{facts['task']}",
        model_folder=folder,
        digest=model_digest(folder),
        measured=measure([finetuning], {facts["task"]: data}),
        over_seeds=False,
        lineage=lineage_of(finetuning),
        served=ServedCode(_CODE, _signature(kind), REQUIREMENTS, _TAKES_ALONG),
    )


def _signature(kind: str) -> ModelSignature:
    """Return what a version of this kind of task takes; see `prediction.COLUMNS`."""
    columns: dict[str, list[ColSpec | TensorSpec]] = {
        "choice": [
            ColSpec("string", "article"),
            ColSpec("string", "question"),
            ColSpec(Array(DataType.string), "options"),
        ],
        "spans": [ColSpec("string", "question"), ColSpec("string", "context")],
    }
    if kind not in columns:
        columns[kind] = [ColSpec("string", "text"), ColSpec("string", "text_b", required=False)]
    return ModelSignature(inputs=Schema(columns[kind]))


if __name__ == "__main__":
    stage_main(run)
