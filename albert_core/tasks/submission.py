"""Pure: the files for the servers of GLUE and SQuAD, made from a table of predictions."""

import json

import numpy as np
import pyarrow as pa

from albert_core.stage.errors import TaskError
from albert_core.tasks.examples import Split, Task
from albert_core.tasks.squad import no_answer_probability

STS_B_RANGE = (0.0, 5.0)
"""The least and the greatest similarity that the server accepts."""


def submission_files(task: Task, split: Split, predictions: pa.Table) -> dict[str, bytes]:
    """Return the files to hand in, by name.

    For GLUE's tasks, and a user's own, a table with the header "index<tab>prediction"; for SQuAD a
    JSON object of question id to answer, and for 2.0 another one of question id to the probability
    that there is no answer. Only files of the split "test" have the names that GLUE's server
    knows; others have the split in their name. RACE has no server: no file.

    Args:
        task: the task.
        split: the split.
        predictions: a row per example: ``id`` string; ``prediction``, string (label or answer) or,
            for a regression, float64; and if questions may have no answer ``null_score``, float64,
            higher where the model believes that there is no answer.

    Raises:
        TaskError: a score is no finite number.
    """
    ids, values = (predictions[name].to_pylist() for name in ("id", "prediction"))
    if task.kind == "choice":
        return {}
    if task.kind != "spans":
        stem = "MNLI-m" if task.name == "mnli" else task.title
        if task.kind == "regression":
            values = [_number(task, value) for value in values]
        rows = (f"{each}\t{value}\n" for each, value in zip(ids, values, strict=True))
        name = f"{stem}.tsv" if split == "test" else f"{stem}.{split}.tsv"
        return {name: "".join(["index\tprediction\n", *rows]).encode()}
    files = {f"{task.name}.{split}.predictions.json": _json(ids, values)}
    if task.has_answerless:
        # The official evaluation keeps each prediction where this is at most 1.
        shares = no_answer_probability(predictions["null_score"].to_numpy())
        files[f"{task.name}.{split}.na_probs.json"] = _json(ids, shares.tolist())
    return files


def _number(task: Task, value: float) -> str:
    if not np.isfinite(value):
        raise TaskError(f"predictions of {task.name!r}: {value!r} is no finite number.")
    return f"{np.clip(value, *STS_B_RANGE) if task.name == 'sts-b' else value:.6g}"


def _json(ids: list[str], values: list[str] | list[float]) -> bytes:
    return (json.dumps(dict(zip(ids, values, strict=True)), ensure_ascii=False) + "\n").encode()
