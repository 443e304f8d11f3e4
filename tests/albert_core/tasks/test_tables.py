"""GLUE's tables, and those of a user's own task."""

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from albert_core.config import EvaluationSettings, OwnTaskSettings
from albert_core.stage.errors import ConfigError, TaskError
from albert_core.tasks.catalogue import TASKS, TaskFiles, find_files, own_files, read_examples
from albert_core.tasks.examples import Split, TextExamples
from albert_core.tasks.tables import GLUE
from tests.albert_core.tasks.task_files import DATA, GLUE_ROWS, write, write_glue

ROWS_OF_GLUE = """
cola train 8551 Our friends won't buy this analysis, let alone
cola dev 1043 The sailors rode the breeze clear of the rocks.
cola test 1063 Bill whistled past the house.
sst-2 train 67349 hide new secretions from the parental units
sst-2 dev 872 it 's a charming and often affecting journey .
sst-2 test 1821 uneasy mishmash of styles and genres .
sts-b train 5749 A plane is taking off.
sts-b dev 1500 A man with a hard hat is dancing.
sts-b test 1379 A girl is styling her hair.
rte train 2490 No Weapons of Mass Destruction Found in Iraq Yet.
rte dev 277 Dana Reeve, the widow of the actor
rte test 3000 Mangla was summoned after Madhumita's sister
wnli train 635 I stuck a pin through a carrot.
wnli dev 71 The drain is clogged with hair.
wnli test 146 Maude and Dora had seen the trains
mrpc train 3667 Amrozi accused his brother , whom he called
mrpc dev 408 He said the foodservice pie business doesn 't
mrpc test 1725 PCCW 's chief operating officer , Mike Butcher ,
qqp train 8999 How do I get inside University College London
qqp dev 1000 Who is the stupidest character in Game of Thrones?
mnli train 8999 Our hearts are particularly heavy this year
mnli dev 1000 Salt kept the town fed.
qnli train 8999 What sector has expanded radiply by selling
qnli dev 1000 How long after the annexation of Kresy
ax test 1104 The cat sat on the mat.
"""
PAIR = "index\tsentence1\tsentence2\tlabel\n"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")


def text_examples(files: TaskFiles, split: Split) -> TextExamples:
    examples = read_examples(files, split)
    assert isinstance(examples, TextExamples)
    return examples


def read(name: str, folder: str | Path, split: Split) -> TextExamples:
    return text_examples(find_files(TASKS[name], str(folder)), split)


def read_file(name: str, path: Path, content: str | bytes, split: Split = "train") -> TextExamples:
    return text_examples(TaskFiles(TASKS[name], {split: (write(path, content),)}), split)


def targets(examples: TextExamples) -> list[float]:
    assert examples.targets is not None
    return list(examples.targets.tolist())


@needs_data
def test_the_published_files_are_read_whole() -> None:
    for line in ROWS_OF_GLUE.strip().splitlines():
        name, split, num_rows, first = line.split(" ", 3)
        examples = read(name, DATA, split)  # type: ignore[arg-type]
        assert len(examples) == len(examples.texts_a) == int(num_rows)
        assert examples.texts_a[0].startswith(first)
        assert (examples.targets is None) == (split == "test")
        assert not examples.skipped
        assert (examples.texts_b is None) == (name in {"cola", "sst-2"})
        if split != "test" and name != "sts-b":
            assert set(targets(examples)) == set(range(len(TASKS[name].labels)))


@needs_data
def test_mrpc_is_made_of_microsofts_files_as_glue_makes_it(tmp_path: Path) -> None:
    (tmp_path / "MRPC").mkdir()
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv"):
        (tmp_path / "MRPC" / name).symlink_to(DATA / "glue/MRPC" / name)
    assert len(read("mrpc", tmp_path, "train")) == 3668
    raw, published = read("mrpc", tmp_path, "dev"), read("mrpc", DATA / "glue", "dev")
    rows = [set(zip(e.texts_a, e.texts_b or [], strict=True)) for e in (raw, published)]
    assert rows[0] == rows[1]
    assert sorted(targets(raw)) == sorted(targets(published))
    test = read("mrpc", tmp_path, "test")
    assert test.texts_a == read("mrpc", DATA / "glue", "test").texts_a
    assert sum(targets(test)) == 1147  # Microsoft's file has labels


def test_each_task_is_read_from_glues_layout(tmp_path: Path) -> None:
    folder = write_glue(tmp_path / "glue_data")
    expected = {"cola": [1, 0], "sst-2": [1, 0], "mrpc": [1], "sts-b": [3.8], "qqp": [1, 0]}
    expected |= {"mnli": [2], "qnli": [1], "rte": [0], "wnli": [1]}
    for name, found in expected.items():
        assert targets(read(name, folder, "train")) == found, name
        assert read(name, tmp_path, "train").texts_a == read(name, folder, "train").texts_a
    assert [targets(read(name, folder, "dev")) for name in ("mnli", "mnli-mm")] == [[0], [1]]
    assert [read(name, folder, "test").ids for name in ("mnli", "mnli-mm")] == [["0"], ["1"]]
    assert read("ax", folder, "test").targets is None
    assert set(expected) | {"mnli-mm", "ax"} == set(GLUE)
    pair = read("sts-b", folder, "dev")
    assert (pair.ids, pair.texts_a, pair.texts_b) == (["7"], ["One."], ["Two."])


def test_the_labelled_diagnostic_set_is_read_as_dev(tmp_path: Path) -> None:
    columns = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain"
    content = f"{columns}\tPremise\tHypothesis\tLabel\nx\t\t\t\tNews\tA.\tB.\tneutral\n"
    write(tmp_path / "diagnostic/diagnostic-full.tsv", content)
    found = read("ax", tmp_path, "dev")
    assert (found.texts_a, found.texts_b, found.ids) == (["A."], ["B."], ["0"])
    assert found.targets == [2]


def test_odd_rows_of_qqp_are_skipped_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = GLUE_ROWS["QQP/train.tsv"] + "3\t5\t6\tHow?\tWhy?\t0\tx\n"
    with caplog.at_level(logging.WARNING):
        found = read_file("qqp", tmp_path / "train.tsv", content)
    assert (found.ids, found.texts_b) == (["0", "2"], ["Which?", ""])
    assert found.skipped == {"short_row": 2, "long_row": 1}
    assert "2 rows skipped (short_row)" in caplog.text


def test_an_odd_row_of_qqps_test_file_is_refused(tmp_path: Path) -> None:
    content = GLUE_ROWS["QQP/test.tsv"] + "1\tHow?\n"
    with pytest.raises(TaskError, match=r"test\.tsv, line 3: 2 tab-separated fields, expected 3"):
        read_file("qqp", tmp_path / "test.tsv", content, "test")


def test_a_labelled_file_without_a_header_has_glues_columns_and_quotes_mean_nothing(
    tmp_path: Path,
) -> None:
    content = b'gj04\t1\t\t"No, he said.\ngj04\t0\t*\tIt "is\x0bso.\r\n'
    found = read_file("cola", tmp_path / "train.tsv", content)
    assert found.texts_a == ['"No, he said.', 'It "is\x0bso.']
    assert (targets(found), found.ids) == ([1, 0], ["0", "1"])


@pytest.mark.parametrize(("label", "expected"), [("-1", None), ("", None), ("1", [1])])
def test_labels_of_a_test_file_are_targets_unless_they_are_hidden(
    tmp_path: Path, label: str, expected: list[int] | None
) -> None:
    content = f"index\tsentence\tlabel\n4\tgood\t{label}\n"
    found = read_file("sst-2", tmp_path / "test.tsv", content, "test")
    assert found.ids == ["4"]
    assert (None if found.targets is None else targets(found)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sst-2 test", "0\tgood\n1\tbad\n", "line 2: no column 'sentence'; found '0', 'good'"),
        ("sst-2 test", "index\tsentence\n0\ta\n1\tb\n0\tc\n", "line 4: id '0' is that of line 2"),
        ("cola", "", r"train\.tsv has no rows"),
        ("cola", "x\t1\t\ta\nx\t1\ta\n", r"train\.tsv, line 2: 3 tab-separated fields, expected 4"),
        ("cola", "x\t2\t\ta\n", r"line 1: found '2', expected one of '0', '1' as label"),
        ("cola", "x\t1\t\ta\nx\t1\t\t \n", r"line 2: no text"),
        ("cola", b"x\t1\t\ta\nx\t1\t\t\xff\n", r"line 2: not UTF-8"),
        ("cola", "x\t1\ta\n", "line 1: 3 tab-separated fields, expected 4: source, label"),
        (
            "sst-2",
            "sentence\tlabels\ngood\t1\n",
            "line 2: no column 'label'; found 'sentence', 'lab",
        ),
        ("rte", f"{PAIR}0\tA.\tB.\tyes\n", "line 2: found 'yes', expected one of 'entailment"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tn/a\n", "found 'n/a', expected a number"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tnan\n", "found 'nan', expected a number"),
    ],
)
def test_a_malformed_file_of_glue_is_refused_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    name, _, split = name.partition(" ")
    with pytest.raises(TaskError, match=message):
        read_file(name, tmp_path / "train.tsv", content, "test" if split else "train")


def test_microsofts_rows_are_divided_by_the_list_of_dev_pairs_which_must_fit(
    tmp_path: Path,
) -> None:
    rows = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t11\t12\tA.\tB.\n0\t21\t22\tC.\tD.\n"
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", rows)
    write(tmp_path / "MRPC/dev_ids.tsv", "11\t12\n")
    assert [read("mrpc", tmp_path, split).texts_a for split in ("train", "dev")] == [["C."], ["A."]]
    refused = {"13\t14": ": 1 of its 2 pairs, such as 13 14,", "13": ", line 2: 1 tab-separated"}
    for added, message in refused.items():
        write(tmp_path / "MRPC/dev_ids.tsv", f"11\t12\n{added}\n")
        with pytest.raises(TaskError, match=rf"dev_ids\.tsv{message}"):
            read("mrpc", tmp_path, "dev")


# A user's own task

ROWS = [("Works well, really.", "good"), ('He said "no".', "bad"), ("Ça va.", "fair")]


def settings(folder: Path, ending: str = "tsv", **more: Any) -> OwnTaskSettings:
    files = {split: f"{folder}/{split}.{ending}" for split in ("train", "dev")}
    values = {"name": "reviews", **files, "text_columns": ["text"], **more}
    return OwnTaskSettings.read(values, "a recipe")


def read_own(task: OwnTaskSettings, split: Split = "train") -> TextExamples:
    return text_examples(own_files(task), split)


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
    found = read_own(settings(tmp_path, ending))
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
    found = read_own(task)
    assert (found.texts_a, found.texts_b) == (["One.", "Three."], ["Two.", "Four."])
    assert targets(found) == [0.5, -100.0]
    assert own_files(task).task.metrics == ("spearman", "pearson", "mse")


def test_equal_numbers_are_refused_but_in_a_test_file(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.tsv", "text\tlabel\nOne.\t2.5\nTwo.\t2.50\n")
    task = settings(tmp_path, kind="regression", test=f"{tmp_path}/test.tsv")
    with pytest.raises(TaskError, match=r"train.tsv: all numbers in column 'label' are 2.5"):
        read_own(task)
    assert targets(read_own(task, "test")) == [2.5, 2.5]


@pytest.mark.parametrize(("first", "second"), [("1e40", "2e40"), ("0", "-1e31"), ("0", "1e-31")])
def test_numbers_whose_squares_or_weights_would_not_be_finite_are_refused(
    first: str, second: str, tmp_path: Path
) -> None:
    write(tmp_path / "train.tsv", f"text\tlabel\nOne.\t{first}\nTwo.\t{second}\n")
    with pytest.raises(TaskError, match=r"train.tsv: the numbers in column 'label' are from .*1e"):
        read_own(settings(tmp_path, kind="regression"))


def test_an_example_is_in_another_set_if_one_there_has_its_texts(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tnext\tlabel\nA.\tB.\t1\nB.\tA.\t2\nC.\tC.\t1\n")
    write(tmp_path / "dev.tsv", "text\tnext\tlabel\nC.\tC.\t2\nA.\tA.\t1\nA.\tB.\t1\n")
    for columns, expected in ((["text", "next"], 2), (["text"], 3)):
        task = settings(tmp_path, text_columns=columns)
        assert read_own(task, "dev").num_in(read_own(task)) == expected


def test_a_row_that_names_no_cluster_is_one_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tlabel\tby\n" + "a\t1\tx\nb\t2\t\nc\t1\tx\nd\t2\t\n")
    found = read_own(settings(tmp_path, cluster_column="by")).clusters
    assert found is not None
    assert found[0] == found[2]
    assert len(set(found.tolist())) == 3


def test_a_column_without_a_name_names_no_clusters(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ",text,label\n0,a,x\n1,b,y\n0,c,x\n")  # as pandas writes it
    assert read_own(settings(tmp_path, "csv")).clusters is None


def test_labels_have_the_order_that_the_settings_give(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    task = settings(tmp_path, labels=["good", "fair", "bad"], metric="matthews")
    assert own_files(task).task.metrics == ("matthews", "accuracy")
    assert targets(read_own(task)) == [0, 2, 1]


def test_a_long_text_of_a_csv_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", f"text,label\n{'long ' * 40_000},a\nshort,b\n")
    assert len(read_own(settings(tmp_path, "csv")).texts_a[0]) == 200_000


def test_whole_numbers_have_their_own_order(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tlabel\na\t10\nb\t9\n")
    assert own_files(settings(tmp_path)).task.labels == ("9", "10")


def test_labels_that_are_numbers_or_truth_values_are_read_as_json_writes_them(
    tmp_path: Path,
) -> None:
    labels = ("true", "3", "3.0", "0.5")
    lines = (f'{{"text": "a", "label": {label}}}\n' for label in labels)
    write(tmp_path / "train.jsonl", "".join(lines))
    assert own_files(settings(tmp_path, "jsonl")).task.labels == ("0.5", "3", "true")


def test_a_test_file_needs_no_labels(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv")
    task = settings(tmp_path, test=f"{tmp_path}/test.tsv")
    write(tmp_path / "test.tsv", "text\nNew.\n")
    assert read_own(task, "test").targets is None
    write(tmp_path / "test.tsv", "text\tlabel\nNew.\tfair\n")
    assert read_own(task, "test").targets == [1]


@pytest.mark.parametrize("damage", ["footer", "text"])
def test_a_damaged_parquet_file_is_refused(damage: str, tmp_path: Path) -> None:
    path, text = tmp_path / "train.parquet", pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": text, "label": ["a"]}), path)
    if damage == "footer":
        content = bytearray(path.read_bytes())
        content[-20:-8] = bytes(12)
        content[-300:-200] = b"\xff" * 100
        path.write_bytes(content)
    with pytest.raises(TaskError, match="is not a parquet file"):
        own_files(settings(tmp_path, "parquet"))


def test_a_missing_label_of_a_parquet_file_is_named_with_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, None]}), tmp_path / "train.parquet")
    with pytest.raises(TaskError, match="line 2: no label"):
        own_files(settings(tmp_path, "parquet"))


OF_A_ROW = "".join(f"a\t{n}\n" for n in [*range(11), 0])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", "txt\tlabel\nfine\tgood\n", "line 2: no column 'text'; found 'txt', 'label'"),
        ("train.tsv", "text\tlabel\nfine\tgood\nbad\t \n", "line 3: no label in column 'label'"),
        ("train.jsonl", '{"text": "a", "label": null}', "line 1: no label in column 'label'"),
        ("train.jsonl", '{"text": "a", "label": NaN}', "line 1: no label in column 'label'"),
        ("train.tsv", "text\ttext\tlabel\na\tb\tc\n", "two columns are called 'text'"),
        ("train.tsv", "", r"train\.tsv has no rows"),
        ("train.tsv", "text\tlabel\n", r"train\.tsv has no rows"),
        ("train.tsv", f"text\tlabel\n{OF_A_ROW}", "has 11 different labels in 12 rows"),
        ("train.tsv", "text\tlabel\nfine\tgood\n", "1 different labels, expected at least 2"),
        ("train.csv", 'text,label\n"fine,good\n', "line 2: not CSV"),
        ("train.csv", "text,label\nfine\n", "line 2: 1 comma-separated fields"),
        ("train.jsonl", '{"text": "a", "label": 1}\n{', r"line 2: not JSON"),
        ("train.jsonl", '{"text": "a \\ud83d", "label": 1}', "line 1: half of a surrogate pair"),
        ("train.jsonl", "[1]", r"line 1: found '\[1\]', expected a JSON object"),
        ("train.jsonl", '{"text": ["a"], "label": 1}', "column 'text' is a list"),
        ("train.parquet", "text", "is not a parquet file"),
        ("train.xlsx", "text", r"its name must end in \.tsv, \.csv, \.jsonl or"),
    ],
)
def test_a_malformed_file_of_ones_own_is_refused_with_its_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(TaskError, match=message):
        read_own(settings(tmp_path, name.rpartition(".")[2]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "regression", "metric": "accuracy"}, "metric 'accuracy' is none of regression"),
        ({"metric": "pearson"}, "metric 'pearson' is none of classification"),
        ({"kind": "regression", "labels": ["a", "b"]}, "regression has no labels"),
        ({"labels": ["a", "a"]}, "must be at least two different ones"),
        ({"labels": ["a"]}, "must be at least two different ones"),
        ({"text_columns": ["label"]}, "must differ: texts, and the label"),
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
