"""The files for the servers of GLUE and SQuAD."""

import json
from typing import Any

import pyarrow as pa
import pytest

from albert_core.finetuning.finetuning import submission_files
from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import TASKS
from albert_core.tasks.examples import Split


def files(name: str, split: Split = "test", **columns: Any) -> dict[str, bytes]:
    return submission_files(TASKS[name], split, pa.table(columns))


def test_labels_are_written_as_text_below_the_servers_header() -> None:
    found = files("rte", id=["0", "1"], prediction=["entailment", "not_entailment"], score=[1, 2])
    assert found == {"RTE.tsv": b"index\tprediction\n0\tentailment\n1\tnot_entailment\n"}


def test_each_glue_task_has_its_servers_file() -> None:
    tasks = [task for task in TASKS.values() if task.kind == "classification"]
    names = [name for task in tasks for name in files(task.name, id=["0"], prediction=["x"])]
    stems = ["CoLA", "SST-2", "MRPC", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    assert names == [f"{stem}.tsv" for stem in stems]
    assert files("cola", split="dev", id=["0"], prediction=["1"]).keys() == {"CoLA.dev.tsv"}
    assert files("race", id=["a"], prediction=["A"]) == {}


def test_similarities_are_numbers_from_0_to_5() -> None:
    found = files("sts-b", id=["0", "1", "2"], prediction=[-0.2, 5.5, 1 / 3])
    assert found == {"STS-B.tsv": b"index\tprediction\n0\t0\n1\t5\n2\t0.333333\n"}
    with pytest.raises(TaskError, match="nan is no finite number"):
        files("sts-b", id=["0"], prediction=[float("nan")])


def test_answers_are_a_json_object_of_ids() -> None:
    found = files("squad-1.1", split="dev", id=["a", "b"], prediction=["Él", ""])
    assert found.keys() == {"squad-1.1.dev.predictions.json"}
    assert json.loads(found["squad-1.1.dev.predictions.json"]) == {"a": "Él", "b": ""}


def test_probabilities_of_no_answer_have_the_order_of_the_scores() -> None:
    scores = [-1e6, -1e3, -30.0, -1.0, 0.0, 2.0, 1e6]
    ids = [str(number) for number in range(len(scores))]
    found = files("squad-2.0", "dev", id=ids, prediction=ids, null_score=scores)
    shares = list(json.loads(found["squad-2.0.dev.na_probs.json"]).values())
    assert shares == sorted(shares)
    assert (shares[0], shares[4], shares[-1]) == (0.0, 0.5, 1.0)
