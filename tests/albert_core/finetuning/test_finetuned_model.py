"""The folder of a fine-tuned model, as `transformers` reads it, and its predictions for rows."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from albert_core.config import RegistrySettings
from albert_core.conversion.huggingface import load_encoder
from albert_core.finetuning.finetuned_model import FinetunedModel
from albert_core.registry import register_finetuned
from albert_core.registry.version_files import model_folder_of
from albert_core.stage import errors, storage
from albert_core.tasks.catalogue import TASKS
from albert_core.tracking.server import open_client
from tests.albert_core import tiny_finetuned
from tests.albert_core.tiny_model import encoded
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

BERT = {"embedding_size": 16, "sharing": "none"}
CLASSES = {
    "mnli": transformers.AutoModelForSequenceClassification,
    "sts-b": transformers.AutoModelForSequenceClassification,
    "race": transformers.AutoModelForMultipleChoice,
    "squad-1.1": transformers.AutoModelForQuestionAnswering,
}
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


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    equal = all(torch.equal(found[name], expected[name]) for name in expected)
    return equal and found.keys() == expected.keys()


@pytest.mark.parametrize(
    ("task", "shape"), [*((task, {}) for task in CLASSES), ("mnli", BERT), ("squad-1.1", BERT)]
)
def test_the_folder_is_read_as_it_was_written_also_by_transformers(
    task: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    more = {"classifier_dropout_prob": 0.25}
    encoder, head = tiny_finetuned.save_tiny_finetuned(str(tmp_path), task, shape, **more)
    ours = FinetunedModel(str(tmp_path))
    assert ours.task == TASKS[task]
    assert ours.settings.max_seq_length == 48
    assert ours.tokenizer.model == tiny_vocab().model
    assert ours.encoder.settings == encoder.settings
    assert same(ours.encoder.state_dict(), encoder.state_dict())
    assert same(ours.head.state_dict(), head.state_dict())
    most = 48 if TASKS[task].kind != "spans" else encoder.settings.max_position_embeddings
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).model_max_length == most
    model, report = CLASSES[task].from_pretrained(tmp_path, output_loading_info=True)
    assert type(model).__name__ == model.config.architectures[0]
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    name = "classifier_dropout" if shape == BERT else "classifier_dropout_prob"
    assert getattr(model.config, name) == 0.25
    ids = torch.randint(5, 200, (4, 12), generator=torch.Generator().manual_seed(0))
    types = (torch.arange(12) > 5).long().expand(4, 12)
    with torch.no_grad():
        last, pooled = encoded(encoder, ids, None, types)
        layer = next(each for each in head.modules() if isinstance(each, torch.nn.Linear))
        expected = layer(last if task == "squad-1.1" else pooled)
        if task == "race":  # two questions with two options
            ids, types = ids.reshape(2, 2, 12), types.reshape(2, 2, 12)
            expected = expected.reshape(2, 2)
        output = model.eval()(input_ids=ids, token_type_ids=types)
    if task == "squad-1.1":
        found = torch.stack([output.start_logits, output.end_logits], dim=-1)
    else:
        found = output.logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_of_a_head_without_a_class_in_transformers_the_encoder_is_read(tmp_path: Path) -> None:
    encoder, head = tiny_finetuned.save_tiny_finetuned(str(tmp_path), "squad-2.0")
    assert same(FinetunedModel(str(tmp_path)).head.state_dict(), head.state_dict())
    ids = torch.arange(5, 17)[None]
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert model.config.architectures == ["AlbertModel"]
    with torch.no_grad():
        ours, _ = encoded(encoder, ids, None, torch.zeros_like(ids))
        torch.testing.assert_close(model(ids).last_hidden_state, ours, rtol=0, atol=1e-5)
    assert same(load_encoder(str(tmp_path))[0].state_dict(), encoder.state_dict())


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is missing: .* a fine-tuned model"), (b"{}", "does not describe a task")],
)
def test_a_folder_without_a_task_or_with_a_damaged_one_is_refused(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        storage.write_bytes(f"{tmp_path}/task.json", content)
    with pytest.raises(errors.IntegrityError, match=rf"task\.json {message}"):
        FinetunedModel(str(tmp_path))


@pytest.mark.parametrize(
    ("found", "instead", "message"),
    [
        ('"title"', '"tidle"', r"task\.json does not describe a task .*title"),
        ('"max_seq_length": ', '"max_seq_length": -', r"task\.json .*max_seq_length"),
        ('"classification"', '"spans"', r"model\.safetensors has another head than mnli needs"),
    ],
)
def test_a_folder_whose_task_was_damaged_or_changed_is_refused(
    found: str, instead: str, message: str, tmp_path: Path
) -> None:
    tiny_finetuned.save_tiny_finetuned(str(tmp_path), "mnli")
    text = (tmp_path / "task.json").read_text()
    assert found in text
    (tmp_path / "task.json").write_text(text.replace(found, instead))
    with pytest.raises(errors.IntegrityError, match=message):
        FinetunedModel(str(tmp_path))


@pytest.mark.parametrize("task", ["sst-2", "mnli", "sts-b"])
def test_predictions_are_those_of_transformers(task: str, tmp_path: Path) -> None:
    tiny_finetuned.save_tiny_finetuned(str(tmp_path), task)
    ours = FinetunedModel(str(tmp_path))
    found = ours.predict(ROWS[task])
    assert ours.predict([]) == []
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    columns = map(list, zip(*(row.values() for row in ROWS[task]), strict=True))
    how = {"padding": True, "truncation": True, "max_length": 48, "return_tensors": "pt"}
    with torch.no_grad():
        logits = model(**tokenizer(*columns, **how)).logits
    if task == "sts-b":
        expected = pytest.approx(logits[:, 0].tolist(), abs=1e-5)
        assert [row["value"] for row in found] == expected
        return
    for row, probabilities in zip(found, logits.softmax(-1), strict=True):
        given = list(row["probabilities"].values())
        assert given == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert row["label"] == model.config.id2label[int(probabilities.argmax())]
        assert row["probability"] == max(given)


def test_an_option_is_the_most_probable_one_and_an_answer_a_slice_of_its_context(
    tmp_path: Path,
) -> None:
    tiny_finetuned.save_tiny_finetuned(f"{tmp_path}/race", "race")
    found = FinetunedModel(f"{tmp_path}/race").predict(ROWS["race"])
    for row, said in zip(ROWS["race"], found, strict=True):
        assert said["option"] == row["options"][said["index"]]
        assert said["probability"] == max(said["probabilities"])
        assert sum(said["probabilities"]) == pytest.approx(1, abs=1e-5)
    tiny_finetuned.save_tiny_finetuned(f"{tmp_path}/squad", "squad-1.1")
    for said in FinetunedModel(f"{tmp_path}/squad").predict(ROWS["squad-1.1"]):
        assert said["answer"]
        assert said["answer"] == CONTEXT[said["start"] : said["end"]]
        assert said.keys() == {"answer", "start", "end", "score"}


@pytest.mark.parametrize("empty", ["", None, math.nan])
def test_one_text_of_a_pair_may_be_empty(empty: object, tmp_path: Path) -> None:
    tiny_finetuned.save_tiny_finetuned(str(tmp_path), "mnli", num_texts=2)
    rows = [{"text": "A text.", "text_b": empty}, {"text": empty, "text_b": "A text."}]
    model = FinetunedModel(str(tmp_path))
    assert model.predict(rows) == model.predict(
        [dict.fromkeys(r, "") | {k: v for k, v in r.items() if v == v and v} for r in rows]
    )
    assert len(model.predict(rows[:1])) == 1


@pytest.mark.parametrize(("threshold", "is_answered"), [(0.0, False), (1.0, True)])
def test_the_threshold_of_dev_decides_whether_there_is_an_answer(
    threshold: float, is_answered: bool, tmp_path: Path
) -> None:
    tiny_finetuned.save_tiny_finetuned(str(tmp_path), "squad-2.0", no_answer_threshold=threshold)
    for row in FinetunedModel(str(tmp_path)).predict(ROWS["squad-2.0"]):
        assert bool(row["answer"]) is is_answered
        assert (row["start"] is None) is not is_answered
        assert 0 < row["no_answer_probability"] < 1


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst-2", [{"text": "a"}, {}], "row 1: text is None, expected a text"),
        ("sst-2", [{"text": "a\ud979"}], r"row 0: text is 'a\\ud979', .* half of a surrogate pair"),
        ("sst-2", [{"text": " "}], "row 0: text is ' '"),
        ("mnli", [{"text": "a", "text_b": "b"}, {"text": "a"}], "row 1: text_b is None"),
        ("mnli", [{"text": " ", "text_b": None}], "row 0: text and text_b are empty, expected"),
        (
            "mnli",
            [{"text": "a"}],
            "the rows have text alone; mnli was learned from text and text_b",
        ),
        (
            "sst-2",
            [{"text": "a", "text_b": "b"}],
            "the rows have text and text_b; sst-2 was learned",
        ),
        ("squad-1.1", [{"question": "a"}], "row 0: context is None"),
        ("race", [{"article": "a", "question": "b"}], "row 0: options is None, expected 4 texts"),
        ("race", [{"article": "a", "question": "b", "options": [*"cde", ""]}], "row 0: an option"),
        (
            "race",
            [{"article": "a", "question": "b", "options": math.nan}],
            "options is nan, expected",
        ),
        ("race", [{"article": "a", "question": "b", "options": [*"cd"]}], r"\['c', 'd'\], expecte"),
    ],
)
def test_a_row_without_a_text_is_refused(
    task: str, rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    tiny_finetuned.save_tiny_finetuned(str(tmp_path), task, num_texts=1 + (task == "mnli"))
    with pytest.raises(errors.TaskError, match=message):
        FinetunedModel(str(tmp_path)).predict(rows)


def test_a_new_process_predicts_the_same_with_the_versions_own_code(work: str) -> None:
    tasks = ["mnli", "squad-2.0", "sst-2"]
    for task in tasks:
        assert tiny_finetuned.register_tiny(work, task, 0.5).model_uri == f"models:/tiny-{task}/1"
    folders = {task: model_folder_of(f"models:/tiny-{task}@champion", work) for task in tasks}
    code = f"""
import json, mlflow.pyfunc, mlflow.transformers
rows, said = { ({task: ROWS[task] for task in tasks})!r}, {{}}
for task in rows:
    model = mlflow.pyfunc.load_model(f"models:/tiny-{{task}}@champion")
    said[task] = model.predict(rows[task]).to_dict("records")
    returned = {{column.name: column.required for column in model.metadata.signature.outputs}}
    taken = {{column.name for column in model.metadata.signature.inputs if column.required}}
    assert taken == set(model.metadata.signature.inputs.input_names()) == set(rows[task][0])
    columns = set(model.predict(model.input_example))
    assert {{name for name, required in returned.items() if required}} <= columns <= set(returned)
import albert_core.finetuning.finetuned_model
[mnli] = mlflow.transformers.load_model("models:/tiny-mnli@champion")([
    {{"text": row["text"], "text_pair": row["text_b"]}} for row in rows["mnli"][:1]
])
print(json.dumps([albert_core.finetuning.finetuned_model.__file__, said, mnli]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="/", env=environment
    )
    assert done.returncode == 0, done.stderr
    place, said, mnli = json.loads(done.stdout.splitlines()[-1])
    version = Path(folders["mnli"]).parents[1]
    assert Path(place).is_relative_to(version / "code")
    pickled = {".pkl", ".bin", ".pt", ".pth"}
    assert not [path for path in version.rglob("*") if path.suffix in pickled]
    assert mnli["label"] == said["mnli"][0]["label"]
    assert mnli["score"] == pytest.approx(said["mnli"][0]["probability"], abs=1e-5)
    for task in tasks:
        expected = FinetunedModel(folders[task]).predict(ROWS[task])
        for found, ours in zip(said[task], expected, strict=True):
            assert found.keys() == ours.keys()
            for name, value in ours.items():
                is_number = isinstance(value, float | list | dict)
                assert found[name] == (pytest.approx(value, abs=1e-5) if is_number else value)


def test_the_gate_decides_by_the_examples_of_the_same_dev_set(work: str) -> None:
    scores = {1: 0.5, 2: 0.25, 3: 0.75}
    made = [
        tiny_finetuned.register_tiny(work, "rte", score, seed=seed)
        for seed, score in scores.items()
    ]
    assert [each.verdict for each in made] == ["first", "refused", "promoted"]
    _, worse, better = made
    champion = open_client(work).get_model_version_by_alias("tiny-rte", "champion")
    assert str(champion.version) == better.version == "3"
    assert champion.tags["score.rte"] == "0.75"
    assert worse.reason.startswith("not surely better than the champion: -0.2500 on rte")
    assert (worse.alias, worse.against) == (None, "1")


def test_versions_of_an_own_task_are_compared_if_they_answer_the_same_question(work: str) -> None:
    team = {"label_column": "team", "cluster_column": ""}
    verdicts = [
        tiny_finetuned.register_tiny(work, "rte", score, seed, "own", own_task=asked).verdict
        for seed, (score, asked) in enumerate(
            [
                (0.5, team | {"name": "tickets"}),
                (0.75, team | {"text_columns": ["body"]}),
                (0.9, team | {"label_column": "owner"}),
                (0.9, team | {"cluster_column": "customer"}),
            ]
        )
    ]
    assert verdicts == ["first", "promoted", "undecided", "undecided"]


def test_a_model_that_changed_after_it_was_written_is_not_registered(work: str) -> None:
    uri = tiny_finetuned.made_finetuning(work, "rte", 0.5, seed=9)
    weights = Path(uri).parent / "model/model.safetensors"
    before, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, (before.st_atime, before.st_mtime))
    with pytest.raises(errors.IntegrityError, match="changed after it was written"):
        register_finetuned.run(RegistrySettings(), uri, "changed", work)
