"""The files for GLUE's and SQuAD's servers."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import TASKS
from albert_core.tasks.submission import submission_files


def files(name: str, split: str = "test", **columns: Any) -> dict[str, bytes]:
    return submission_files(TASKS[name], split, pa.table(columns))


def test_labels_are_written_as_text_below_the_servers_header() -> None:
    found = files("rte", id=["0", "1"], prediction=["entailment", "not_entailment"], score=[1, 2])
    assert found == {"RTE.tsv": b"index\tprediction\n0\tentailment\n1\tnot_entailment\n"}


def test_each_glue_task_has_its_servers_file() -> None:
    names = {
        next(iter(files(task.name, id=["0"], prediction=[task.labels[0]])))
        for task in TASKS.values()
        if task.kind == "classification"
    }
    stems = ["CoLA", "SST-2", "MRPC", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    assert names == {f"{stem}.tsv" for stem in stems}
    assert files("cola", split="dev", id=["0"], prediction=["1"]).keys() == {"CoLA.dev.tsv"}


def test_similarities_are_numbers_from_0_to_5() -> None:
    found = files("sts-b", id=["0", "1", "2"], prediction=[-0.2, 5.5, 1 / 3])
    assert found == {"STS-B.tsv": b"index\tprediction\n0\t0\n1\t5\n2\t0.333333\n"}


def test_answers_are_a_json_object_of_ids() -> None:
    found = files("squad-1.1", split="dev", id=["a", "b"], prediction=["Él", ""])
    assert found.keys() == {"squad-1.1.dev.predictions.json"}
    assert json.loads(found["squad-1.1.dev.predictions.json"]) == {"a": "Él", "b": ""}


def test_of_questions_without_answer_the_probability_is_written_too() -> None:
    found = files("squad-2.0", "dev", id=["a", "b"], prediction=["x", "y"], null_score=[0.0, -1e3])
    assert json.loads(found["squad-2.0.dev.na_probs.json"]) == {"a": 0.5, "b": 0.0}


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=20))
def test_probabilities_have_the_order_of_the_scores_and_are_at_most_1(scores: list[float]) -> None:
    ids = [str(number) for number in range(len(scores))]
    found = files("squad-2.0", "dev", id=ids, prediction=ids, null_score=scores)
    shares = list(json.loads(found["squad-2.0.dev.na_probs.json"]).values())
    assert all(0 <= share <= 1 for share in shares)
    assert (np.diff(np.array(shares)[np.argsort(scores)]) >= 0).all()


def test_race_has_no_server() -> None:
    assert files("race", id=["a"], prediction=["A"]) == {}


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("rte", {"id": ["0"], "prediction": ["yes"]}, "'yes' is none of its labels entailment"),
        ("rte", {"id": ["0", "0"], "prediction": ["entailment"] * 2}, "id '0' stands twice"),
        ("rte", {"id": ["0"]}, "have no column 'prediction'; found id"),
        ("squad-2.0", {"id": ["0"], "prediction": ["x"]}, "have no column 'null_score'"),
        ("sts-b", {"id": ["0"], "prediction": [float("nan")]}, "nan is no finite number"),
    ],
)
def test_predictions_that_no_server_takes_are_refused(
    name: str, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        files(name, **columns)
