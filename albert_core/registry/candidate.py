"""A pretrained model and its scores become a version of a registered model."""

import logging
from collections.abc import Mapping, Sequence

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
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import FINETUNING
from albert_core.stage.manifest import Manifest, StagePlan, digest_of, read_manifest

log = logging.getLogger(STAGE)

_SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec("string", "text"), ColSpec("string", "text_b", required=False)]),
    params=ParamSchema([ParamSpec("task", "string", "fill_mask"), ParamSpec("top_k", "long", 5)]),
)


def register(
    plan: StagePlan,
    work: str,
    registry: RegistrySettings,
    pretraining: str,
    scores: str,
    champion_scores: str,
    served_by: tuple[str, Sequence[str]],
) -> str:
    """Register the model and make it champion if the gate says so; return the manifest.

    Args:
        plan: of the stage.
        work: folder for all results.
        registry: settings.
        pretraining: manifest of the model.
        scores: manifest of its scores.
        champion_scores: manifest of the champion's scores; empty: those it was registered with.
        served_by: the module that serves the model, and the libraries that it needs.

    Raises:
        IntegrityError: a manifest or a file is missing.
        RegistryError: the scores are another model's, or the registry does not answer.
    """
    module, libraries = served_by
    served = ServedCode(module=module, signature=_SIGNATURE, requirements=tuple(libraries))
    name, digest = registry.model_name, plan.inputs["model"]
    candidate = read_candidate(name, pretraining, digest, scores, served)

    def champion_measured(client: MlflowClient, champion: ModelVersion) -> Mapping[str, Measured]:
        if champion_scores:
            try:
                return read_scores(champion_scores, champion.tags.get(DIGEST_TAG, ""))
            except RegistryError as error:
                log.warning("%s: the champion changed meanwhile: %s", STAGE, error)
        return read_measured(client, champion)

    return enter(plan, work, registry, candidate, champion_measured)


def read_candidate(
    name: str, pretraining: str, digest: str, scores: str, served: ServedCode
) -> Candidate:
    """Return the model of one manifest with the scores of the other.

    Args:
        name: of the registered model.
        pretraining: manifest of the model.
        digest: of the model's files.
        scores: manifest of its scores.
        served: the code that serves it.

    Raises:
        IntegrityError: a manifest or a file is missing.
        RegistryError: the scores are another model's.
    """
    model = read_manifest(pretraining)
    folder = storage.join(pretraining.rpartition("/")[0], model.facts["model_folder"])
    return Candidate(
        name=name,
        model_folder=folder,
        digest=digest,
        measured=read_scores(scores, digest),
        over_seeds=True,
        lineage=lineage_of(pretraining, scores),
        served=served,
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
