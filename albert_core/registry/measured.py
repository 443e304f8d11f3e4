"""The scores that the gate compares: read from fine-tunings, and kept with a version."""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import numpy as np
from mlflow import MlflowClient

from albert_core.conversion.model_files import model_digest
from albert_core.metrics import CLUSTER_SHARE
from albert_core.registry import version_files
from albert_core.registry.gate import ByTask, Measured
from albert_core.registry.versions import RegisteredVersion
from albert_core.stage import errors, results, storage
from albert_core.stage.manifest import Manifest, digest_of, read_manifest, sealed, unsealed
from albert_core.text.arrow_files import read_arrow

_FILE, _MEASURED = "measured.json", "measured"
"""File of a version with `Measured` by task."""


def read_scores(scores: str, digest: str) -> dict[str, Measured]:
    """Return the scores of the model with this digest, by task.

    Scores of two pretrained models are comparable if the files of the task and the settings of the
    fine-tuning are the same, except the seed.

    Args:
        scores: manifest of a table of scores.
        digest: digest of the model's files.

    Raises:
        IntegrityError: a manifest or the predictions are missing.
        RegistryError: the scores are another model's.
    """
    read = {uri: read_manifest(uri) for uri in read_manifest(scores).input_manifests.values()}
    found = {uri: made for uri, made in read.items() if made.stage == results.FINETUNING}
    own = {uri for uri, made in found.items() if made.inputs["model"] == digest}
    others = sorted(found.keys() - own)
    # A task may start from the model that was fine-tuned on MNLI.
    started = {model_digest(results.model_folder_of(uri)) for uri in own} if others else set()
    for uri in others:
        if (other := found[uri].inputs["model"]) not in started:
            raise errors.RegistryError(
                f"{scores} has scores of the model {other[:12]} (in {uri}), expected the model "
                f"{digest[:12]}. Fine-tune that one on all tasks and score it."
            )
    data_of = {}
    for uri, made in found.items():
        files = {name: value for name, value in made.inputs.items() if name != "model"}
        settings = {name: value for name, value in made.settings.items() if name != "seed"}
        task = made.result_as(results.FinetuningResult).task
        data_of[task] = digest_of([digest_of([files, settings]), uri in own])
    return measure(found, data_of)


def measure(finetunings: Mapping[str, Manifest], data_of: Mapping[str, str]) -> dict[str, Measured]:
    """Return a model's scores on each task, from fine-tunings of it.

    Args:
        finetunings: their manifests by URI, in any order; several of a task differ in their seed.
        data_of: task -> `Measured.data`.

    Raises:
        IntegrityError: a file is missing.
        RegistryError: a score is not a number.
    """
    runs: dict[str, list[Measured]] = {}
    for uri, made in sorted(finetunings.items(), key=lambda run: run[1].settings["seed"]):
        result = made.result_as(results.FinetuningResult)
        runs.setdefault(result.task, []).append(_measure_run(uri, result, data_of[result.task]))
    return {
        task: replace(
            of_task[0],
            scores=tuple(each.score for each in of_task),
            without=np.mean([each.without for each in of_task], axis=0),
        )
        for task, of_task in sorted(runs.items())
    }


def _measure_run(uri: str, result: results.FinetuningResult, data: str) -> Measured:
    """Return the scores of one fine-tuning in the metric that the paper's average uses.

    That is the mean of F1 and exact match for SQuAD, else the key metric.
    """
    names = list(result.scores) if result.kind == "spans" else [result.metric]
    score = mean(result.scores[name].value for name in names)
    if not math.isfinite(score):
        raise errors.RegistryError(
            f"{uri}: {', '.join(names)} on {result.task} is {score}, expected a number. A model "
            "that answers so is not registered; fine-tune again with a lower learning rate."
        )
    table = read_arrow(storage.join(uri.rpartition("/")[0], result.jackknife))
    return Measured(
        data=data,
        scores=(score,),
        without=np.mean([table[name].to_numpy() for name in names], axis=0),
        shares=table[CLUSTER_SHARE].to_numpy(),
        constant=mean(result.constant_scores[name] for name in names),
    )


def write_measured(measured: ByTask, folder: Path) -> None:
    """Write a candidate's scores to ``folder``, for the comparison with later candidates."""
    found = {task: asdict(each) for task, each in measured.items()}
    plain = json.loads(json.dumps(found, default=np.ndarray.tolist))
    (folder / _FILE).write_bytes(sealed({_MEASURED: plain}))


def read_measured(client: MlflowClient, version: RegisteredVersion) -> dict[str, Measured]:
    """Return the scores that were written when ``version`` was registered, if any.

    Raises:
        RegistryError: they changed since.
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = version_files.VersionFiles(client, version).fetch(_FILE, scratch)
        with version_files.naming(version):
            found = unsealed(str(path))[_MEASURED] if path else {}
    for each in found.values():
        each["scores"] = tuple(each["scores"])
        each |= {name: np.array(each[name]) for name in ("without", "shares")}
    return {task: Measured(**each) for task, each in found.items()}
