"""Pure: the files that GLUE's and SQuAD's servers take, made of a table of predictions."""

import json
import math

import pyarrow as pa

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Task

GLUE_NAMES = {
    "cola": "CoLA",
    "sst-2": "SST-2",
    "mrpc": "MRPC",
    "sts-b": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI-m",
    "mnli-mm": "MNLI-mm",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "ax": "AX",
}
"""Name of each task's file, without ".tsv", as GLUE's server wants it."""
STS_B_RANGE = (0.0, 5.0)
"""The least and the greatest similarity that the server takes."""


def submission_files(task: Task, split: str, predictions: pa.Table) -> dict[str, bytes]:
    """Return the files to hand in, by name.

    Of GLUE's tasks, and of a user's own, one table with the header "index<tab>prediction"; of
    SQuAD's a JSON object of question id to answer, and of 2.0 another one of question id to the
    probability that there is no answer. Only files of the split "test" have the names that GLUE's
    server knows; others have the split in their name. RACE has no server: no file.

    Args:
        task: whose predictions.
        split: of which split.
        predictions: a row an example: ``id`` string; ``prediction``, string (label or answer) or,
            of regression, float64; and of tasks with questions without answer ``null_score``,
            float, higher where the model believes that there is no answer.

    Raises:
        TaskError: a column is missing, an id of a test set stands twice, a label is none of the
            task's, or a score is no finite number.
    """
    if task.kind == "choice":
        return {}
    ids = [str(each) for each in _column(task, predictions, "id")]
    if split == "test" and len(set(ids)) < len(ids):  # other splits are for no server
        twice = next(each for number, each in enumerate(ids) if each in ids[:number])
        raise TaskError(f"predictions of {task.name!r}: id {twice!r} stands twice, expected once.")
    values = _column(task, predictions, "prediction")
    if task.kind != "spans":
        stem = GLUE_NAMES.get(task.name, task.name)
        name = f"{stem}.tsv" if split == "test" else f"{stem}.{split}.tsv"
        rows = [
            f"{each}\t{_written(task, value)}\n" for each, value in zip(ids, values, strict=True)
        ]
        return {name: "".join(["index\tprediction\n", *rows]).encode()}
    files = {f"{task.name}.{split}.predictions.json": _json(dict(zip(ids, values, strict=True)))}
    if task.has_answerless:
        scores = _column(task, predictions, "null_score")
        shares = {each: _probability(score) for each, score in zip(ids, scores, strict=True)}
        files[f"{task.name}.{split}.na_probs.json"] = _json(shares)
    return files


def _column(task: Task, predictions: pa.Table, name: str) -> list[object]:
    if name not in predictions.column_names:
        raise TaskError(
            f"predictions of {task.name!r} have no column {name!r}; found "
            f"{', '.join(predictions.column_names)}."
        )
    values: list[object] = predictions[name].to_pylist()
    return values


def _written(task: Task, value: object) -> str:
    """Return a label or score as the server reads it."""
    if task.kind == "regression":
        if not isinstance(value, float) or not math.isfinite(value):
            raise TaskError(f"predictions of {task.name!r}: {value!r} is no finite number.")
        if task.name == "sts-b":
            value = min(max(value, STS_B_RANGE[0]), STS_B_RANGE[1])
        return f"{value:.6g}"
    if value not in task.labels:
        raise TaskError(
            f"predictions of {task.name!r}: {value!r} is none of its labels "
            f"{', '.join(task.labels)}."
        )
    return str(value)


def _probability(score: object) -> float:
    """Return ``score`` in 0..1, in the same order.

    The official evaluation takes the prediction of each question where this is at most 1.
    """
    assert isinstance(score, float)
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def _json(values: dict[str, object] | dict[str, float]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()
