"""Stage: a pretrained model and its scores -> a version in the registry, perhaps champion.

Its tags say what the version was made of, down to the corpus, and how it scored.
"""

from mlflow.entities.model_registry import ModelVersion
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from albert_core.config import RegistrySettings
from albert_core.contract import storage
from albert_core.contract.code_version import code_digest, library_versions
from albert_core.contract.errors import RegistryError
from albert_core.contract.manifest import Manifest, StagePlan, digest_of, read_manifest
from albert_core.contract.stage_command import stage_main
from albert_core.finetuning import model_digest
from albert_core.model_registry.champion import DIGEST_TAG, STAGE, Candidate, enter, lineage_of
from albert_core.model_registry.model_versions import ServedCode
from albert_core.tracking import shown_tracking_uri

SERVED = ServedCode(
    module="albert_core.model_registry.registered_model",
    signature=ModelSignature(
        inputs=Schema([ColSpec("string", "text"), ColSpec("string", "text_b", required=False)]),
        params=ParamSchema(
            [ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]
        ),
    ),
    requirements=("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas"),
)


def run(
    registry: RegistrySettings,
    pretraining: str,
    finetuning: str,
    champion_finetuning: str = "",
    work: str = "work",
) -> str:
    """Register the model and make it champion if it is the best; return the manifest.

    Args:
        registry: settings.
        pretraining: manifest of the model.
        finetuning: manifest of its scores.
        champion_finetuning: manifest of the present champion's scores on the same task, if any.
        work: folder for all results.

    Raises:
        RegistryError: the scores are another model's, or the registry does not answer.
    """
    candidate = read_candidate(registry.model_name, pretraining, finetuning)

    def champion_score(champion: ModelVersion) -> float | None:
        return _measured(champion, candidate.task, champion_finetuning)

    return enter(_plan(registry, candidate, work), work, registry, candidate, champion_score)


def read_candidate(name: str, pretraining: str, finetuning: str) -> Candidate:
    """Return the model of one manifest with the scores of the other.

    Raises:
        IntegrityError: a manifest or a file is missing.
        RegistryError: the scores are another model's.
    """
    model, scores = read_manifest(pretraining), read_manifest(finetuning)
    folder = storage.join(pretraining.rpartition("/")[0], model.facts["model_folder"])
    digest = model_digest(folder)
    if scores.inputs.get("model") != digest:
        raise RegistryError(
            f"{finetuning} scores the model {str(scores.inputs.get('model'))[:12]}, but "
            f"{pretraining} is of the model {digest[:12]}. Fine-tune the model in {folder}."
        )
    lineage = lineage_of(pretraining, finetuning)
    return Candidate(name, folder, digest, scores, task_digest(scores), lineage, SERVED)


def task_digest(scores: Manifest) -> str:
    """Return a digest of what makes scores comparable: the task's files and the settings."""
    files = {name: digest for name, digest in scores.inputs.items() if name != "model"}
    return digest_of([files, scores.settings])


def _plan(registry: RegistrySettings, candidate: Candidate, work: str) -> StagePlan:
    nearest = list(candidate.lineage.items())[:2]
    return StagePlan(
        stage=STAGE,
        settings={"registry": registry.model_dump()},
        inputs={
            **{manifest.stage: manifest.content for _, manifest in nearest},
            "task": candidate.task,
            "model": candidate.digest,
            "registry": digest_of(shown_tracking_uri(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(SERVED.module)])[:16],
        libraries=library_versions(*SERVED.requirements),
        input_manifests={manifest.stage: uri for uri, manifest in nearest},
    )


def _measured(champion: ModelVersion, task: str, finetuning: str) -> float | None:
    """Return the champion's score in this fine-tuning's manifest, if it is the champion's."""
    if not finetuning:
        return None
    scores = read_manifest(finetuning)
    is_its = scores.inputs.get("model") == champion.tags.get(DIGEST_TAG)
    return float(scores.facts["score"]) if is_its and task_digest(scores) == task else None


if __name__ == "__main__":
    stage_main(run)
