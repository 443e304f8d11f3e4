"""The reader of GLUE's tasks."""

import logging
from pathlib import Path

import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import TASKS, TaskFiles, find_files, read_examples
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


def test_a_labelled_file_without_a_header_has_glues_columns_and_quotes_mean_nothing(
    tmp_path: Path,
) -> None:
    content = b'gj04\t1\t\t"No, he said.\ngj04\t0\t*\tIt "is\x0bso.\r\n'
    found = read_file("cola", tmp_path / "train.tsv", content)
    assert found.texts_a == ['"No, he said.', 'It "is\x0bso.']
    assert (targets(found), found.ids) == ([1, 0], ["0", "1"])


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    found = read_file("sst-2", tmp_path / "train.tsv", "label\tsource\tsentence\n0\tx\tbad\n")
    assert (found.texts_a, targets(found), found.ids) == (["bad"], [0], ["0"])


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
        ("cola", "", r"train\.tsv has no rows"),
        ("cola", "x\t1\t\ta\nx\t1\ta\n", r"train\.tsv, line 2: 3 tab-separated fields, expected 4"),
        ("cola", "x\t1\t\ta\n\nx\t1\t\ta\n", r"line 2: 1 tab-separated fields"),
        ("cola", "x\t2\t\ta\n", r"line 1: found '2', expected one of 0, 1 as label"),
        ("cola", "x\t1\t\ta\nx\t1\t\t \n", r"line 2: no text"),
        ("cola", b"x\t1\t\ta\nx\t1\t\t\xff\n", r"line 2: not UTF-8"),
        ("cola", "x\t1\ta\n", "line 1: 3 tab-separated fields, expected 4: source, label"),
        ("sst-2", "sentence\tlabels\ngood\t1\n", "line 2: no column 'label'; found sentence, lab"),
        ("sst-2", "good\t1\nbad\t0\n", "line 2: no column 'sentence'; found good, 1"),
        ("rte", f"{PAIR}0\tA.\tB.\tyes\n", "line 2: found 'yes', expected one of entailment"),
        ("rte", f"{PAIR}0\t\t\tentailment\n", "line 2: no text"),
        ("rte", PAIR, "has no rows"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tn/a\n", "found 'n/a', expected a number"),
        ("sts-b", "sentence1\tsentence2\tscore\nA.\tB.\tnan\n", "found 'nan', expected a number"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_file(name, tmp_path / "train.tsv", content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\tgood\n1\tbad\n", "line 2: no column 'sentence'; found 0, good"),
        ("index\tsentence\n0\ta\n1\tb\n0\tc\n", "line 4: id '0' is that of line 2 too"),
    ],
)
def test_a_test_file_needs_its_header_and_unique_ids(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_file("sst-2", tmp_path / "test.tsv", content, "test")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("11\t12\n13\t14\n", r"dev_ids\.tsv: 1 of its 2 pairs, such as 13 14,"),
        ("11\t12\n13\n", r"dev_ids\.tsv, line 2: 1 tab-separated fields"),
    ],
)
def test_a_list_of_dev_pairs_that_does_not_fit_microsofts_file_is_refused(
    tmp_path: Path, pairs: str, message: str
) -> None:
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", f"{header}1\t11\t12\tA.\tB.\n")
    write(tmp_path / "MRPC/dev_ids.tsv", pairs)
    with pytest.raises(TaskError, match=message):
        read("mrpc", tmp_path, "dev")
