"""A user's own task."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_core.config import EvaluationSettings, OwnTaskSettings
from albert_core.stage.errors import ConfigError, TaskError
from albert_core.tasks.catalogue import own_files, read_examples
from albert_core.tasks.examples import Split, TextExamples
from tests.albert_core.tasks.task_files import write

ROWS = [("Works well, really.", "good"), ('He said "no".', "bad"), ("Ça va.", "fair")]


def settings(folder: Path, ending: str = "tsv", **more: Any) -> OwnTaskSettings:
    files = {split: f"{folder}/{split}.{ending}" for split in ("train", "dev")}
    values = {"name": "reviews", **files, "text_columns": ["text"], **more}
    return OwnTaskSettings.read(values, "a recipe")


def read(task: OwnTaskSettings, split: Split = "train") -> TextExamples:
    examples = read_examples(own_files(task), split)
    assert isinstance(examples, TextExamples)
    return examples


def targets(examples: TextExamples) -> list[float]:
    assert examples.targets is not None
    return list(examples.targets.tolist())


def write_rows(path: Path) -> None:
    """Write ROWS in the format that the path's ending names."""
    if path.suffix == ".tsv":
        write(path, "label\ttext\r\n" + "".join(f"{label} \t{text}\r\n" for text, label in ROWS))
    elif path.suffix == ".csv":
        quoted = (f'{label},"{text.replace(chr(34), chr(34) * 2)}"\n' for text, label in ROWS)
        write(path, "\ufefflabel,text\n\n" + "".join(quoted))
    elif path.suffix == ".jsonl":
        rows = (json.dumps({"text": text, "label": label, "extra": [1]}) for text, label in ROWS)
        write(path, "\n".join(rows))
    else:
        texts, labels = zip(*ROWS, strict=True)
        pq.write_table(pa.table({"text": texts, "label": labels}), path)


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_examples(tmp_path: Path, ending: str) -> None:
    write_rows(tmp_path / f"train.{ending}")
    found = read(settings(tmp_path, ending))
    assert found.texts_a == [text for text, _ in ROWS]
    assert found.texts_b is None
    assert found.ids == ["0", "1", "2"]
    assert targets(found) == [2, 0, 1]
    assert own_files(settings(tmp_path, ending)).task.labels == ("bad", "fair", "good")


def test_a_few_lines_of_toml_are_a_task_of_pairs_with_scores(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "a\tb\tsimilarity\nOne.\tTwo.\t0.5\nThree.\tFour.\t-1e2\n")
    toml = f"""
    [[own_tasks]]
    name = "similar"
    train = "{tmp_path}/train.tsv"
    dev = "{tmp_path}/train.tsv"
    text_columns = ["a", "b"]
    label_column = "similarity"
    kind = "regression"
    metric = "spearman"
    """
    (task,) = EvaluationSettings.read(tomllib.loads(toml), "a recipe").own_tasks
    found = read(task)
    assert (found.texts_a, found.texts_b) == (["One.", "Three."], ["Two.", "Four."])
    assert targets(found) == [0.5, -100.0]
    assert own_files(task).task.metrics == ("spearman", "pearson", "mse")


def test_labels_have_the_order_that_the_settings_give(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    task = settings(tmp_path, labels=["good", "fair", "bad"], metric="matthews")
    assert own_files(task).task.metrics == ("matthews", "accuracy")
    assert targets(read(task)) == [0, 2, 1]


def test_a_long_text_of_a_csv_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", f"text,label\n{'long ' * 40_000},a\nshort,b\n")
    assert len(read(settings(tmp_path, "csv")).texts_a[0]) == 200_000


def test_labels_that_are_numbers_or_truth_values_are_read_as_json_writes_them(
    tmp_path: Path,
) -> None:
    write(tmp_path / "train.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": 3}\n')
    assert own_files(settings(tmp_path, "jsonl")).task.labels == ("3", "true")


def test_a_test_file_needs_no_labels(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    task = settings(tmp_path, test=f"{tmp_path}/test.tsv")
    write(tmp_path / "test.tsv", "text\nNew.\n")
    assert read(task, "test").targets is None
    write(tmp_path / "test.tsv", "text\tlabel\nNew.\tfair\n")
    assert read(task, "test").targets == [1]


def test_a_label_that_train_does_not_have_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    write(tmp_path / "dev.tsv", "text\tlabel\nNew.\tawful\n")
    with pytest.raises(TaskError, match=r"dev\.tsv, line 2: found 'awful', expected one of bad"):
        read(settings(tmp_path), "dev")


def test_a_missing_label_of_a_parquet_file_is_named_with_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, None]}), tmp_path / "train.parquet")
    with pytest.raises(TaskError, match="line 2: no label"):
        own_files(settings(tmp_path, "parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", "text\tlabel\nfine\tgood\nfine\n", "line 3: 1 tab-separated fields"),
        ("train.tsv", "txt\tlabel\nfine\tgood\n", "line 2: no column 'text'; found txt, label"),
        ("train.tsv", "text\tlabel\nfine\tbad\n \tgood\n", "line 3: no text"),
        ("train.tsv", "text\tlabel\nfine\tgood\nbad\t \n", "line 3: no label in column 'label'"),
        ("train.jsonl", '{"text": "a", "label": null}', "line 1: no label in column 'label'"),
        ("train.jsonl", '{"text": "a", "label": NaN}', "line 1: no label in column 'label'"),
        ("train.tsv", "text\ttext\tlabel\na\tb\tc\n", "two columns are called 'text'"),
        ("train.tsv", "", "0 different labels, expected at least 2"),
        ("train.tsv", "text\tlabel\nfine\tgood\n", "1 different labels, expected at least 2"),
        ("train.csv", 'text,label\n"fine,good\n', "line 2: not CSV"),
        ("train.csv", "text,label\nfine\n", "line 2: 1 comma-separated fields"),
        ("train.jsonl", '{"text": "a", "label": 1}\n{', r"line 2: not JSON"),
        ("train.jsonl", "[1]", r"line 1: found '\[1\]', expected a JSON object"),
        ("train.jsonl", '{"text": ["a"], "label": 1}', "column 'text' is a list"),
        ("train.parquet", "text", "is not a parquet file"),
        ("train.xlsx", "text", r"its name must end in \.tsv, \.csv, \.jsonl or"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(TaskError, match=message):
        read(settings(tmp_path, name.rpartition(".")[2]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "regression", "metric": "accuracy"}, "metric 'accuracy' is none of regression"),
        ({"metric": "pearson"}, "metric 'pearson' is none of classification"),
        ({"kind": "regression", "labels": ["a", "b"]}, "regression has no labels"),
        ({"labels": ["a", "a"]}, "must be at least two different ones"),
        ({"labels": ["a"]}, "must be at least two different ones"),
        ({"text_columns": []}, "text_columns"),
        ({"text_columns": ["a", "b", "c"]}, "text_columns"),
        ({"name": "My Task"}, "name"),
        ({"delimiter": ";"}, "unknown setting 'delimiter'"),
    ],
)
def test_settings_that_fit_no_task_are_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **more)


def test_f1_needs_two_labels(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    with pytest.raises(TaskError, match="has 3 labels, but its metric f1 needs 2"):
        own_files(settings(tmp_path, metric="f1"))
