"""A fine-tuned model's answers to rows, in this process, and from the registry in another."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from albert_core.finetuning.finetuned_model import load_finetuned
from albert_core.registry.versions import model_folder_of
from albert_core.stage.errors import TaskError
from albert_core.tasks.sequences import Sequences
from albert_core.tracking.server import open_client
from tests.albert_core.tiny_finetuned import register_tiny, save_tiny_finetuned
from tests.albert_core.tiny_vocab import tiny_sentences

TEXTS = [" ".join(text.split()[:4]) for text in tiny_sentences(5, seed=5)]
CONTEXT = " ".join(tiny_sentences(12, seed=6))
ROWS: dict[str, list[dict[str, Any]]] = {
    "sst-2": [{"text": text} for text in TEXTS],
    "mnli": [{"text": text, "text_b": TEXTS[0]} for text in TEXTS],
    "sts-b": [{"text": text, "text_b": TEXTS[0]} for text in TEXTS],
    "race": [{"article": CONTEXT, "question": t, "options": TEXTS[1:5]} for t in TEXTS],
    "squad-1.1": [{"question": text, "context": CONTEXT} for text in TEXTS],
    "squad-2.0": [{"question": text, "context": CONTEXT} for text in TEXTS],
}


@pytest.mark.parametrize("task", ["sst-2", "mnli"])
def test_labels_have_the_probabilities_that_transformers_gives(task: str, tmp_path: Path) -> None:
    save_tiny_finetuned(str(tmp_path), task)
    said = load_finetuned(str(tmp_path)).predict(ROWS[task])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    pairs = [tuple(row.values()) for row in ROWS[task]]
    with torch.no_grad():
        inputs = tokenizer(
            *map(list, zip(*pairs, strict=True)),
            padding=True,
            truncation=True,
            max_length=48,
            return_tensors="pt",
        )
        theirs = model(**inputs).logits.softmax(-1)
    for row, probabilities in zip(said, theirs, strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(
            probabilities.tolist(), abs=1e-5
        )
        assert row["label"] == model.config.id2label[int(probabilities.argmax())]
        assert row["probability"] == max(row["probabilities"].values())


def test_a_number_is_the_one_that_transformers_gives(tmp_path: Path) -> None:
    save_tiny_finetuned(str(tmp_path), "sts-b")
    (said,) = load_finetuned(str(tmp_path)).predict([{"text": "bado kelu", "text_b": "ra vo sa"}])
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        "bado kelu", "ra vo sa", return_tensors="pt"
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert said["value"] == pytest.approx(float(model(**inputs).logits), abs=1e-5)


def test_of_options_the_most_probable_one_is_chosen(tmp_path: Path) -> None:
    save_tiny_finetuned(str(tmp_path), "race")
    for row, said in zip(
        ROWS["race"], load_finetuned(str(tmp_path)).predict(ROWS["race"]), strict=True
    ):
        assert said["option"] == row["options"][said["index"]]
        assert said["probability"] == max(said["probabilities"])
        assert sum(said["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_an_answer_is_a_slice_of_its_context(tmp_path: Path) -> None:
    save_tiny_finetuned(str(tmp_path), "squad-1.1")
    said = load_finetuned(str(tmp_path)).predict(ROWS["squad-1.1"])
    for row in said:
        assert row["answer"]
        assert row["answer"] == CONTEXT[row["start"] : row["end"]]
        assert "no_answer_probability" not in row


def test_transformers_gives_the_same_scores_of_start_and_end(tmp_path: Path) -> None:
    encoder, head = save_tiny_finetuned(str(tmp_path), "squad-1.1")
    model, report = transformers.AutoModelForQuestionAnswering.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    ids = torch.arange(5, 25)[None]
    batch = Sequences.of([(ids[0].tolist(), None)]).batch(np.array([0]), torch.device("cpu"))
    with torch.no_grad():
        ours = head.outputs(encoder, batch)
        theirs = model.eval()(batch.input_ids[None])
    best = theirs.start_logits[0].argmax()
    assert int(ours["starts"][0, 0]) == best
    assert float(ours["start_scores"][0, 0]) == pytest.approx(
        float(theirs.start_logits[0, best]), abs=1e-5
    )


@pytest.mark.parametrize(("threshold", "is_answered"), [(0.0, False), (1.0, True)])
def test_the_threshold_of_dev_decides_whether_there_is_an_answer(
    threshold: float, is_answered: bool, tmp_path: Path
) -> None:
    save_tiny_finetuned(str(tmp_path), "squad-2.0", no_answer_threshold=threshold)
    for row in load_finetuned(str(tmp_path)).predict(ROWS["squad-2.0"]):
        assert bool(row["answer"]) is is_answered
        assert (row["start"] is None) is not is_answered
        assert 0 < row["no_answer_probability"] < 1


def test_rows_said_together_are_said_as_alone(tmp_path: Path) -> None:
    save_tiny_finetuned(str(tmp_path), "mnli")
    model = load_finetuned(str(tmp_path))
    together = model.predict(ROWS["mnli"])
    for row, said in zip(ROWS["mnli"], together, strict=True):
        (alone,) = model.predict([row])
        assert alone["probability"] == pytest.approx(said["probability"], abs=1e-5)
    assert model.predict([]) == []


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst-2", [{"text": "a"}, {}], "row 1: text is None, expected a text"),
        ("sst-2", [{"text": " "}], "row 0: text is ' '"),
        ("mnli", [{"text": "a", "text_b": "b"}, {"text": "a"}], "row 1: text_b is None"),
        ("squad-1.1", [{"question": "a"}], "row 0: context is None"),
        ("race", [{"article": "a", "question": "b"}], "row 0: options is None, expected two"),
        ("race", [{"article": "a", "question": "b", "options": ["c", ""]}], "row 0: an option"),
        (
            "race",
            [{"article": "a", "question": "b", "options": ["c"] * n} for n in (2, 3)],
            r"the rows have \[2, 3\] options",
        ),
    ],
)
def test_a_row_that_lacks_something_is_refused(
    task: str, rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    save_tiny_finetuned(str(tmp_path), task)
    with pytest.raises(TaskError, match=message):
        load_finetuned(str(tmp_path)).predict(rows)


def test_a_fresh_process_says_the_same_with_the_versions_own_code(work: str) -> None:
    tasks = ["mnli", "sts-b", "race", "squad-2.0"]
    for task in tasks:
        registered = register_tiny(work, task, 0.5)
        assert registered.facts["model_uri"] == f"models:/tiny-{task}/1"
    folders = {task: model_folder_of(f"models:/tiny-{task}@champion", work) for task in tasks}
    code = f"""
import json, mlflow.pyfunc
rows = { ({task: ROWS[task] for task in tasks})!r}
said = {{
    task: mlflow.pyfunc.load_model(f"models:/tiny-{{task}}@champion").predict(rows[task])
    for task in rows
}}
import albert_core.finetuning.finetuned_model
found = {{task: frame.to_dict("records") for task, frame in said.items()}}
print(json.dumps([albert_core.finetuning.finetuned_model.__file__, found]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db",
        },
    )
    assert done.returncode == 0, done.stderr
    place, said = json.loads(done.stdout.splitlines()[-1])
    assert Path(place).is_relative_to(Path(folders["mnli"]).parents[1] / "code")
    for task in tasks:
        expected = load_finetuned(folders[task]).predict(ROWS[task])
        for found, ours in zip(said[task], expected, strict=True):
            assert found.keys() == ours.keys()
            for name, value in ours.items():
                is_number = isinstance(value, float | list | dict)
                assert found[name] == (pytest.approx(value, abs=1e-5) if is_number else value)


def test_the_version_has_no_pickle_and_transformers_reads_it(work: str) -> None:
    register_tiny(work, "sst-2", 0.5, name="plain")
    folder = Path(model_folder_of("models:/plain/1", work))
    files = {path.name for path in folder.parents[1].rglob("*") if path.is_file()}
    assert not [name for name in files if name.endswith((".pkl", ".bin", ".pt", ".pth"))]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "0", 1: "1"}


def test_the_gate_decides_by_the_examples_of_the_same_dev_set(work: str) -> None:
    first = register_tiny(work, "rte", 0.5, seed=1)
    worse = register_tiny(work, "rte", 0.25, seed=2)
    equal = register_tiny(work, "rte", 0.5, seed=3)
    better = register_tiny(work, "rte", 0.75, seed=4)
    verdicts = [each.facts["verdict"] for each in (first, worse, equal, better)]
    assert verdicts == ["first", "refused", "refused", "promoted"]
    champion = open_client(work).get_model_version_by_alias("tiny-rte", "champion")
    assert str(champion.version) == better.facts["version"] == "4"
    assert champion.tags["score.rte"] == "0.75"
    assert worse.facts["reason"].startswith("not surely better than the champion: -0.2500 on rte")
    assert (worse.facts["alias"], worse.facts["against"]) == (None, "1")
