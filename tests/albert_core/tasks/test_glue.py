"""The readers of GLUE's tasks."""

import logging
import time
from pathlib import Path

import fsspec
import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import TASKS, TaskFiles, find_files, read_examples
from albert_core.tasks.examples import Split, TextExamples
from albert_core.tasks.glue import GLUE
from tests.albert_core.tasks.task_files import DATA, GLUE_ROWS, write, write_glue

ROWS_OF_GLUE = [
    ("cola", "train", 8551, "Our friends won't buy this analysis, let alone"),
    ("cola", "dev", 1043, "The sailors rode the breeze clear of the rocks."),
    ("cola", "test", 1063, "Bill whistled past the house."),
    ("sst-2", "train", 67_349, "hide new secretions from the parental units"),
    ("sst-2", "dev", 872, "it 's a charming and often affecting journey ."),
    ("sst-2", "test", 1821, "uneasy mishmash of styles and genres ."),
    ("sts-b", "train", 5749, "A plane is taking off."),
    ("sts-b", "dev", 1500, "A man with a hard hat is dancing."),
    ("sts-b", "test", 1379, "A girl is styling her hair."),
    ("rte", "train", 2490, "No Weapons of Mass Destruction Found in Iraq Yet."),
    ("rte", "dev", 277, "Dana Reeve, the widow of the actor"),
    ("rte", "test", 3000, "Mangla was summoned after Madhumita's sister"),
    ("wnli", "train", 635, "I stuck a pin through a carrot."),
    ("wnli", "dev", 71, "The drain is clogged with hair."),
    ("wnli", "test", 146, "Maude and Dora had seen the trains"),
    ("mrpc", "train", 3667, "Amrozi accused his brother , whom he called"),
    ("mrpc", "dev", 408, "He said the foodservice pie business doesn 't"),
    ("mrpc", "test", 1725, "PCCW 's chief operating officer , Mike Butcher ,"),
    ("qqp", "train", 8999, "How do I get inside University College London"),
    ("qqp", "dev", 1000, "Who is the stupidest character in Game of Thrones?"),
    ("mnli", "train", 8999, "Our hearts are particularly heavy this year"),
    ("mnli", "dev", 1000, "Salt kept the town fed."),
    ("qnli", "train", 8999, "What sector has expanded radiply by selling"),
    ("qnli", "dev", 1000, "How long after the annexation of Kresy"),
    ("ax", "test", 1104, "The cat sat on the mat."),
]


def read(name: str, folder: str | Path, split: Split) -> TextExamples:
    examples = read_examples(TASKS[name], find_files(TASKS[name], str(folder)), split)
    assert isinstance(examples, TextExamples)
    return examples


def read_file(name: str, path: Path, content: str | bytes, split: Split = "train") -> TextExamples:
    files = TaskFiles(TASKS[name], {split: (write(path, content),)})
    examples = read_examples(TASKS[name], files, split)
    assert isinstance(examples, TextExamples)
    return examples


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
@pytest.mark.parametrize(("name", "split", "num_rows", "first"), ROWS_OF_GLUE)
def test_the_published_files_are_read_whole(
    name: str, split: Split, num_rows: int, first: str
) -> None:
    examples = read(name, DATA, split)
    assert len(examples) == len(examples.texts_a) == num_rows
    assert examples.texts_a[0].startswith(first)
    assert (examples.targets is None) == (split == "test")
    assert not examples.skipped
    assert (examples.texts_b is None) == (name in {"cola", "sst-2"})
    if examples.targets is not None and name != "sts-b":
        assert set(examples.targets.tolist()) == set(range(len(TASKS[name].labels)))


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_mrpc_is_made_of_microsofts_files_as_glue_makes_it(tmp_path: Path) -> None:
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv"):
        (tmp_path / "MRPC").mkdir(exist_ok=True)
        (tmp_path / "MRPC" / name).symlink_to(DATA / "glue/MRPC" / name)
    assert len(read("mrpc", tmp_path, "train")) == 3668
    raw, published = read("mrpc", tmp_path, "dev"), read("mrpc", DATA / "glue", "dev")
    assert raw.targets is not None
    assert published.targets is not None
    rows = [set(zip(e.texts_a, e.texts_b or [], strict=True)) for e in (raw, published)]
    assert rows[0] == rows[1]
    assert sorted(raw.targets) == sorted(published.targets)
    test = read("mrpc", tmp_path, "test")
    assert test.texts_a == read("mrpc", DATA / "glue", "test").texts_a
    assert test.targets is not None  # Microsoft's file has them
    assert test.targets.mean() == pytest.approx(1147 / 1725)


def test_each_task_is_read_from_glues_layout(tmp_path: Path) -> None:
    folder = write_glue(tmp_path / "glue_data")
    targets = {
        "cola": [1, 0],
        "sst-2": [1, 0],
        "mrpc": [1],
        "sts-b": [3.8],
        "qqp": [1, 0],
        "mnli": [2],
        "qnli": [1],
        "rte": [0],
        "wnli": [1],
    }
    for name, expected in targets.items():
        for where in (folder, str(tmp_path)):
            found = read(name, where, "train")
            assert found.targets is not None
            assert found.targets.tolist() == expected, name
    assert read("mnli", folder, "dev").targets == [0]
    assert read("mnli-mm", folder, "dev").targets == [1]
    assert read("mnli", folder, "test").ids == ["0"]
    assert read("mnli-mm", folder, "test").ids == ["1"]
    assert read("ax", folder, "test").targets is None
    assert set(targets) | {"mnli-mm", "ax"} == set(GLUE)


def test_a_pair_has_its_texts_in_order_and_the_ids_of_the_index(tmp_path: Path) -> None:
    found = read("sts-b", write_glue(tmp_path), "dev")
    assert (found.ids, found.texts_a, found.texts_b) == (["7"], ["One."], ["Two."])


def test_the_labelled_diagnostic_set_is_read_as_dev(tmp_path: Path) -> None:
    header = (
        "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\t"
        "Hypothesis\tLabel\n"
    )
    write(tmp_path / "diagnostic/diagnostic-full.tsv", f"{header}x\t\t\t\tNews\tA.\tB.\tneutral\n")
    found = read("ax", tmp_path, "dev")
    assert (found.texts_a, found.texts_b, found.ids) == (["A."], ["B."], ["0"])
    assert found.targets == [2]


def test_short_rows_of_qqp_are_skipped_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = read("qqp", write_glue(tmp_path), "train")
    assert found.ids == ["0", "2"]
    assert found.texts_b == ["Which?", ""]
    assert found.skipped == {"short_row": 2}
    assert "2 rows skipped (short_row)" in caplog.text


def test_cola_has_no_header_and_quotes_mean_nothing(tmp_path: Path) -> None:
    content = b'gj04\t1\t\t"No, he said.\ngj04\t0\t*\tIt "is\x0bso.\r\n'
    found = read_file("cola", tmp_path / "train.tsv", content)
    assert found.texts_a == ['"No, he said.', 'It "is\x0bso.']
    assert found.targets is not None
    assert found.targets.tolist() == [1, 0]
    assert found.ids == ["0", "1"]


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    found = read_file("sst-2", tmp_path / "train.tsv", "label\tsource\tsentence\n0\tx\tbad\n")
    assert found.texts_a == ["bad"]
    assert found.targets == [0]


def test_a_labelled_file_without_its_header_is_read_in_glues_order(tmp_path: Path) -> None:
    found = read_file("sst-2", tmp_path / "dev.tsv", "good\t1\nbad\t0\n", "dev")
    assert found.texts_a == ["good", "bad"]


@pytest.mark.parametrize("label", ["-1", ""])
def test_hidden_labels_of_a_test_file_are_no_targets(tmp_path: Path, label: str) -> None:
    content = f"index\tsentence\tlabel\n4\tgood\t{label}\n"
    found = read_file("sst-2", tmp_path / "test.tsv", content, "test")
    assert found.targets is None
    assert found.ids == ["4"]


def test_labels_of_a_test_file_that_are_not_hidden_are_targets(tmp_path: Path) -> None:
    found = read_file("sst-2", tmp_path / "test.tsv", "sentence\tlabel\ngood\t1\n", "test")
    assert found.targets == [1]


def test_files_are_read_from_any_file_system() -> None:
    for name in ("SST-2/train.tsv", "SST-2/dev.tsv"):
        with fsspec.open(f"memory://tasks/glue/{name}", "wb") as file:
            file.write(GLUE_ROWS[name].encode())
    assert read("sst-2", "memory://tasks", "train").texts_a == ["good ", "bad "]
    assert read("sst-2", "memory://tasks/glue/SST-2", "dev").targets == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train\.tsv has no rows"),
        ("x\t1\t\ta\nx\t1\ta\n", r"train\.tsv, line 2: 3 tab-separated fields, expected 4"),
        ("x\t1\t\ta\n\nx\t1\t\ta\n", r"line 2: 1 tab-separated fields"),
        ("x\t2\t\ta\n", r"line 1: label '2', expected one of 0, 1"),
        ("x\t1\t\ta\nx\t1\t\t \n", r"line 2: the sentence is empty"),
        (b"x\t1\t\ta\nx\t1\t\t\xff\n", r"line 2: not UTF-8"),
        ("x\t1\ta\n", r"line 1: found 'x.* expected the header source<tab>label"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_file("cola", tmp_path / "train.tsv", content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sst-2", "sentence\tlabels\ngood\t1\n", r"line 1: label 'labels', expected one of 0, 1"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tyes\n", "line 2: label 'yes'"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\t\t\tentailment\n", "sentences are empty"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n", "has no rows"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tn/a\n", "score 'n/a', expected a number"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tnan\n", "score 'nan', expected a number"),
    ],
)
def test_a_malformed_label_or_score_is_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_file(name, tmp_path / "train.tsv", content)


def test_a_test_file_without_its_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"line 1: found .* expected the header"):
        read_file("sst-2", tmp_path / "test.tsv", "0\tgood\n", "test")


def test_an_id_of_a_test_file_that_stands_twice_is_said_with_both_lines(tmp_path: Path) -> None:
    content = "index\tsentence\n0\tgood\n1\tbad\n0\tfair\n"
    with pytest.raises(TaskError, match=r"test\.tsv, line 4: id '0' is that of line 2 too"):
        read_file("sst-2", tmp_path / "test.tsv", content, "test")


def test_pairs_of_dev_that_microsofts_file_lacks_are_said(tmp_path: Path) -> None:
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", f"{header}1\t11\t12\tA.\tB.\n")
    write(tmp_path / "MRPC/dev_ids.tsv", "11\t12\n13\t14\n")
    with pytest.raises(TaskError, match=r"dev_ids\.tsv: 1 of its 2 pairs, such as 13 14,"):
        read("mrpc", tmp_path, "dev")
    write(tmp_path / "MRPC/dev_ids.tsv", "11\t12\n13\n")
    with pytest.raises(TaskError, match=r"dev_ids\.tsv, line 2: 1 tab-separated fields"):
        read("mrpc", tmp_path, "dev")


def test_four_hundred_thousand_rows_of_qqp_are_read_in_seconds(tmp_path: Path) -> None:
    rows = "".join(
        f"{n}\t{n}\t{n + 1}\tWhat is {n}?\tWho is {n}?\t{n % 2}\n" for n in range(404_000)
    )
    began = time.process_time()
    found = read_file(
        "qqp",
        tmp_path / "train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + rows,
    )
    assert len(found) == 404_000
    assert time.process_time() - began < 10
