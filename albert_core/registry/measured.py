"""What the gate compares: computed from fine-tunings, kept with a version and read back from it."""

import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from albert_core.conversion.model_files import read_task
from albert_core.metrics import Floats, jackknife
from albert_core.registry.gate import Measured
from albert_core.registry.versions import ABSENT
from albert_core.stage import storage
from albert_core.stage.manifest import Manifest, digest_of, read_manifest
from albert_core.text.arrow_files import read_arrow, write_arrow

ARTIFACT = "evaluation.arrow"
"""Artifact of the MLflow run that a version came from: a row for each task, as in `Measured`."""
_DEV = "dev"


def measure(finetunings: Sequence[str], data_of: Mapping[str, str]) -> dict[str, Measured]:
    """Return how a model does on each task, from fine-tunings of it.

    Args:
        finetunings: their manifests, in any order; several of a task differ in their seed.
        data_of: by the task's name, a digest of what makes its scores comparable.

    Raises:
        IntegrityError: a manifest or the predictions are missing.
    """
    of_task: dict[str, list[tuple[str, Manifest]]] = {}
    for uri in finetunings:
        manifest = read_manifest(uri)
        of_task.setdefault(manifest.facts["task"], []).append((uri, manifest))
    return {
        task: _measure_task(data_of[task], sorted(runs, key=lambda run: run[1].settings["seed"]))
        for task, runs in sorted(of_task.items())
    }


def data_digest(finetuning: Manifest) -> str:
    """Return a digest of what makes pretrained models' scores comparable.

    That is the files of the task and the settings of the fine-tuning, but not the seed.
    """
    files = {name: digest for name, digest in finetuning.inputs.items() if name != "model"}
    settings = {name: value for name, value in finetuning.settings.items() if name != "seed"}
    return digest_of([files, settings])


def write_measured(measured: Mapping[str, Measured], uri: str) -> None:
    """Write ``measured`` to ``uri`` as an Arrow file."""
    each = measured.values()
    table = pa.table(
        {
            "task": pa.array(list(measured), pa.string()),
            "data": pa.array([task.data for task in each], pa.string()),
            "scores": pa.array([task.scores for task in each], pa.list_(pa.float64())),
            "values": pa.array([task.values for task in each], pa.list_(pa.float64())),
        }
    )
    write_arrow(table, uri, compression="zstd")


def read_measured(client: MlflowClient, version: ModelVersion) -> dict[str, Measured]:
    """Return what was written when ``version`` was registered; nothing if nothing was.

    Raises:
        MlflowException: the registry or its files do not answer. An OSError likewise.
    """
    run_id = str(version.run_id)
    try:
        names = {file.path for file in client.list_artifacts(run_id)}
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
        return {}
    if ARTIFACT not in names:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        path = client.download_artifacts(run_id, ARTIFACT, scratch)
        return {
            row["task"]: Measured(row["data"], tuple(row["scores"]), np.array(row["values"]))
            for row in read_arrow(path).to_pylist()
        }


def _measure_task(data: str, runs: Sequence[tuple[str, Manifest]]) -> Measured:
    scores, values = zip(*(_measure_run(uri, manifest) for uri, manifest in runs), strict=True)
    return Measured(data, scores, np.mean(values, axis=0))


def _measure_run(uri: str, finetuning: Manifest) -> tuple[float, Floats]:
    """Return what a fine-tuning counts in the paper's average, and the jackknife's values.

    For SQuAD that is the mean of F1 and exact match, else the key metric.
    """
    folder, facts = uri.rpartition("/")[0], finetuning.facts
    predictions = read_arrow(storage.join(folder, facts["predictions"][_DEV]))
    if facts["kind"] == "spans":
        values = (predictions["f1"].to_numpy() + predictions["exact_match"].to_numpy()) / 2
        return float(values.mean()), values
    targets, said = predictions["target"], predictions["prediction"]
    if facts["kind"] == "regression":
        return jackknife(facts["metric"], targets.to_numpy(), said.to_numpy())
    labels = read_task(storage.join(folder, facts["model_folder"]))["task"]["labels"]
    names = list(labels) or sorted({*targets.to_pylist(), *said.to_pylist()})
    number_of = {name: number for number, name in enumerate(names)}
    numbers = [
        np.array([number_of[name] for name in column.to_pylist()], np.int64)
        for column in (targets, said)
    ]
    return jackknife(facts["metric"], *numbers)
