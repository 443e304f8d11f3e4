"""What the gate compares: computed from fine-tunings, kept with a version and read back from it."""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from mlflow import MlflowClient

from albert_core.conversion.model_files import model_digest
from albert_core.intervals import CLUSTER_SHARE
from albert_core.registry.gate import ByTask, Measured
from albert_core.registry.versions import RegisteredVersion, fetch
from albert_core.stage import storage
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import FINETUNING, model_folder_of
from albert_core.stage.manifest import Manifest, digest_of, read_manifest
from albert_core.stage.results import FinetuningResult
from albert_core.text.arrow_files import read_arrow

_FILE = "measured.json"
"""Among the files of a version: `Measured` by task."""


def read_scores(scores: str, digest: str) -> dict[str, Measured]:
    """Return how the model with this digest does, by task.

    Scores of two pretrained models are comparable if the files of the task and the settings of the
    fine-tuning are the same, except the seed.

    Args:
        scores: manifest of a table of scores.
        digest: of the model's files.

    Raises:
        IntegrityError: a manifest or the predictions are missing.
        RegistryError: the scores are another model's.
    """
    read = {uri: read_manifest(uri) for uri in read_manifest(scores).input_manifests.values()}
    found = {uri: manifest for uri, manifest in read.items() if manifest.stage == FINETUNING}
    own = {uri for uri, manifest in found.items() if manifest.inputs["model"] == digest}
    others = sorted(found.keys() - own)
    # A task may start from the model that was fine-tuned on MNLI.
    started = {model_digest(model_folder_of(uri)) for uri in own} if others else set()
    for uri in others:
        if (other := found[uri].inputs["model"]) not in started:
            raise RegistryError(
                f"{scores} has scores of the model {other[:12]} (in {uri}), expected the model "
                f"{digest[:12]}. Fine-tune that one on all tasks and score it."
            )
    data_of = {}
    for uri, manifest in found.items():
        files = {name: value for name, value in manifest.inputs.items() if name != "model"}
        settings = {name: value for name, value in manifest.settings.items() if name != "seed"}
        task = manifest.result_as(FinetuningResult).task
        data_of[task] = digest_of([digest_of([files, settings]), uri in own])
    return measure(found, data_of)


def measure(finetunings: Mapping[str, Manifest], data_of: Mapping[str, str]) -> dict[str, Measured]:
    """Return how a model does on each task, from fine-tunings of it.

    Args:
        finetunings: their manifests by URI, in any order; several of a task differ in their seed.
        data_of: by the task's name, a digest of what makes its scores comparable.

    Raises:
        IntegrityError: a file is missing.
        RegistryError: a score is not a number.
    """
    by_seed = sorted(finetunings.items(), key=lambda run: run[1].settings["seed"])
    runs: dict[str, list[Measured]] = {}
    for uri, manifest in by_seed:
        result = manifest.result_as(FinetuningResult)
        runs.setdefault(result.task, []).append(_measure_run(uri, result, data_of[result.task]))
    return {
        task: replace(
            of_task[0],
            scores=tuple(each.score for each in of_task),
            without=np.mean([each.without for each in of_task], axis=0),
        )
        for task, of_task in sorted(runs.items())
    }


def write_measured(measured: ByTask, folder: Path) -> None:
    """Write to ``folder`` how a candidate does, which later candidates are compared with."""
    arrays = {
        task: {"without": each.without.tolist(), "shares": each.shares.tolist()}
        for task, each in measured.items()
    }
    found = {task: vars(each) | arrays[task] for task, each in measured.items()}
    (folder / _FILE).write_text(json.dumps(found), encoding="utf-8")


def read_measured(client: MlflowClient, version: RegisteredVersion) -> dict[str, Measured]:
    """Return what was written when ``version`` was registered; nothing if nothing was.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = fetch(client, version, _FILE, scratch)
        found = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return {
        task: Measured(
            data=each["data"],
            scores=tuple(each["scores"]),
            without=np.array(each["without"]),
            shares=np.array(each["shares"]),
            constant=each["constant"],
        )
        for task, each in found.items()
    }


def _measure_run(uri: str, result: FinetuningResult, data: str) -> Measured:
    """Return how one fine-tuning does in what counts in the paper's average.

    That is the mean of F1 and exact match for SQuAD, else the key metric.
    """
    names = list(result.scores) if result.kind == "spans" else [result.metric]
    score = mean(result.scores[name].value for name in names)
    if not math.isfinite(score):
        raise RegistryError(
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
