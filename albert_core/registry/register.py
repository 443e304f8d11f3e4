"""Stage: a pretrained model and its scores -> a version in the registry, perhaps champion.

Its tags say what the version was made of, down to the corpus, how it scored, and what the gate
decided.
"""

import logging
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import model_digest
from albert_core.registry.champion import DIGEST_TAG, STAGE, Candidate, enter, lineage_of
from albert_core.registry.gate import Measured
from albert_core.registry.measured import data_digest, measure, read_measured
from albert_core.registry.versions import ServedCode
from albert_core.stage import storage
from albert_core.stage.code_version import code_digest, library_versions
from albert_core.stage.command import stage_main
from albert_core.stage.environment import shown_tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import FINETUNING
from albert_core.stage.manifest import Manifest, StagePlan, digest_of, read_manifest

log = logging.getLogger(STAGE)

SERVED = ServedCode(
    module="albert_core.registry.served_model",
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
    scores: str,
    champion_scores: str = "",
    work: str = "work",
) -> str:
    """Register the model and make it champion if the gate says so; return the manifest.

    Args:
        registry: settings.
        pretraining: manifest of the model.
        scores: manifest of its scores, over tasks and seeds.
        champion_scores: manifest of the present champion's scores on the same tasks; without it,
            those that it was registered with.
        work: folder for all results.

    Raises:
        IntegrityError: a manifest or a file is missing.
        RegistryError: the scores are another model's, or the registry does not answer.
    """
    candidate = read_candidate(registry.model_name, pretraining, scores)

    def champion_measured(client: MlflowClient, champion: ModelVersion) -> Mapping[str, Measured]:
        if champion_scores:
            try:
                return read_scores(champion_scores, champion.tags.get(DIGEST_TAG, ""))
            except RegistryError as error:
                log.warning("%s: the champion changed meanwhile: %s", STAGE, error)
        return read_measured(client, champion)

    return enter(
        _plan(registry, candidate, scores, work), work, registry, candidate, champion_measured
    )


def read_candidate(name: str, pretraining: str, scores: str) -> Candidate:
    """Return the model of one manifest with the scores of the other.

    Raises:
        IntegrityError: a manifest or a file is missing.
        RegistryError: the scores are another model's.
    """
    model = read_manifest(pretraining)
    folder = storage.join(pretraining.rpartition("/")[0], model.facts["model_folder"])
    digest = model_digest(folder)
    return Candidate(
        name=name,
        model_folder=folder,
        digest=digest,
        measured=read_scores(scores, digest),
        over_seeds=True,
        lineage=lineage_of(pretraining, scores),
        served=SERVED,
    )


def read_scores(scores: str, digest: str) -> dict[str, Measured]:
    """Return how the model with this digest does, by task.

    Args:
        scores: manifest of a table of scores.
        digest: of the model's files.

    Raises:
        IntegrityError: a manifest or the predictions are missing.
        RegistryError: the scores are another model's.
    """
    uris = list(read_manifest(scores).input_manifests.values())
    found = {uri: manifest for uri in uris if (manifest := read_manifest(uri)).stage == FINETUNING}
    own = {uri for uri, manifest in found.items() if manifest.inputs["model"] == digest}
    others = found.keys() - own
    # A task may start from the model that was fine-tuned on MNLI.
    started = {_finetuned_digest(uri, found[uri]) for uri in own} if own and others else set()
    for uri in sorted(others):
        if (other := found[uri].inputs["model"]) not in started:
            raise RegistryError(
                f"{scores} has scores of the model {other[:12]} (in {uri}), but they were to be of "
                f"the model {digest[:12]}. Fine-tune that one on all tasks and score it."
            )
    data_of = {
        manifest.facts["task"]: digest_of([data_digest(manifest), uri in own])
        for uri, manifest in found.items()
    }
    return measure(list(found), data_of)


def _finetuned_digest(uri: str, finetuning: Manifest) -> str:
    return model_digest(storage.join(uri.rpartition("/")[0], finetuning.facts["model_folder"]))


def _plan(registry: RegistrySettings, candidate: Candidate, scores: str, work: str) -> StagePlan:
    pretraining = next(iter(candidate.lineage))
    return StagePlan(
        stage=STAGE,
        settings={"registry": registry.model_dump()},
        inputs={
            "pretraining": candidate.lineage[pretraining].content,
            "scores": digest_of(read_manifest(scores).inputs),
            "model": candidate.digest,
            "registry": digest_of(shown_tracking_uri(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(SERVED.module)])[:16],
        libraries=library_versions(*SERVED.requirements),
        input_manifests={"pretraining": pretraining, "scores": storage.absolute(scores)},
    )


if __name__ == "__main__":
    stage_main(run)
