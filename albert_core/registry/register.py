"""Stage: a pretrained model and its scores -> a version in the registry, perhaps champion.

Its tags name everything that the version was made of, down to the corpus, its scores, and the
decision of the gate.
"""

import json
import logging
import sqlite3
from contextlib import closing
from itertools import chain
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import urlopen

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import is_model, model_digest
from albert_core.stage import command, credentials, results, servers, storage
from albert_core.stage.lineage import Lineage, read_lineage
from albert_core.stage.manifest import StagePlan, digest_of, read_manifest
from albert_core.stage.provenance import code_digest, library_versions

SERVED_MODULE = "albert_core.registry.served_model"
SERVED_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas")
_SERVER_SECONDS = 3
_ALIASES = (
    "select alias, coalesce(storage_location, source) "
    "from model_versions left join registered_model_aliases using (name, version) "
    "where status = 'READY' and name = ? and version = ?"
)
_MODEL = "artifacts/model"
"""The folder of the model among the files of a version."""

log = logging.getLogger(results.REGISTRATION)


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
    from albert_core.registry.candidate import Candidate
    from albert_core.registry.measured import read_scores
    from albert_core.registry.registration import enter
    from albert_core.tracking.server import output_of

    plan = _plan(registry, pretraining, scores, work)
    made_of = [read_lineage(uri).results.values() for uri in (pretraining, scores)]
    candidate = Candidate(
        name=registry.model_name,
        trained=pretraining,
        output=output_of(pretraining, plan.inputs["model"]),
        measured=read_scores(scores, plan.inputs["model"]),
        over_seeds=True,
        settings=registry,
        champion_scores=champion_scores,
        lineage=Lineage(chain(*made_of)),
        served_by=SERVED_MODULE,
        kind="pretrained",
        example={"text": "The [MASK] is on the table."},
    )
    return enter(plan, work, candidate)


def find_done(registry: RegistrySettings, pretraining: str, scores: str, work: str) -> str | None:
    """Return the manifest that `run` would find; None if it has work to do, or that is not known.

    There is work to do if the model could not be compared, or if its version is no longer in the
    registry, has lost its files, or got or lost the alias since.
    """
    done = _plan(registry, pretraining, scores, work).done(work)
    if done is None:
        return None
    result = read_manifest(done).result_as(results.RegistrationResult)
    aliases = _aliases(servers.registry_uri(work), result.name, result.version)
    champion = results.CHAMPION
    is_true = aliases is not None and (champion in aliases) == (result.alias == champion)
    return done if is_true and result.verdict != results.UNDECIDED else None


def champion_to_beat(registry: RegistrySettings, pretraining: str, scores: str, work: str) -> str:
    """Return the address of the version that `run` compares the model with; "" if with none.

    There is none where the gate has decided about the model before, where the champion is of that
    pretraining, or where it has lost its files. The arguments are those of `run`.

    Raises:
        RegistryError: the registry does not answer.
    """
    from albert_core.registry import version_commands

    key = _plan(registry, pretraining, scores, work).key
    return version_commands.champion_to_beat(registry.model_name, pretraining, key, work)


def _aliases(registry: str, name: str, version: str) -> set[str] | None:
    """Return the aliases of a version that is ready; None if it or its files are not found.

    MLflow's client would take longer to import than the whole search for finished work.
    """
    try:
        if file := servers.database_file(registry):
            with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
                rows = database.execute(_ALIASES, (name, version)).fetchall()
            is_whole = rows and is_model(storage.list_names(storage.join(rows[0][1], _MODEL)))
            return {alias for alias, _ in rows} if is_whole else None
        if registry.startswith(("http://", "https://")):
            asked = _asked(registry, "model-versions/get", name=name, version=version)
            found = asked["model_version"]
            if found["status"] != "READY":
                return None
            files = f"logged-models/{found['source'].removeprefix('models:/')}/artifacts"
            asked = _asked(registry, f"{files}/directories", artifact_directory_path=_MODEL)
            is_whole = is_model(file["path"].rpartition("/")[2] for file in asked["files"])
            return set(found.get("aliases", ())) if is_whole else None
    except (OSError, ValueError, LookupError, sqlite3.Error) as error:
        log.debug("%s does not list registered versions: %s", credentials.redacted(registry), error)
    return None


def _asked(registry: str, what: str, **query: str) -> Any:
    """Return what the server of MLflow at the address ``registry`` answers."""
    url = f"{registry.rstrip('/')}/api/2.0/mlflow/{what}?{urlencode(query)}"
    with urlopen(url, timeout=_SERVER_SECONDS) as answer:  # noqa: S310 - http alone
        return json.load(answer)


def _plan(registry: RegistrySettings, pretraining: str, scores: str, work: str) -> StagePlan:
    manifest = read_manifest(pretraining)
    return StagePlan(
        stage=results.REGISTRATION,
        settings={"registry": registry.model_dump()},
        inputs={
            "pretraining": manifest.content,
            "scores": digest_of(read_manifest(scores).inputs),
            "model": model_digest(results.model_folder_of(pretraining)),
            "registry": digest_of(servers.tracking_name(work)),
        },
        code=digest_of([code_digest(__name__), code_digest(SERVED_MODULE)])[:16],
        libraries=library_versions(*SERVED_LIBRARIES),
        input_manifests={
            "pretraining": storage.absolute(pretraining),
            "scores": storage.absolute(scores),
        },
    )


if __name__ == "__main__":
    command.stage_main(run)
