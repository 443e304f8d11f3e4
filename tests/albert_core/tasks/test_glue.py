"""The readers of CoLA and SST-2."""

from pathlib import Path

import fsspec
import pytest

from albert_core.contract.errors import TaskError
from albert_core.tasks.glue import TASKS, Split, read_split

COLA, SST_2 = TASKS["cola"], TASKS["sst-2"]
GLUE = Path(__file__).parents[4] / "shared/data/tasks/glue"


def cola_folder(tmp_path: Path, content: bytes) -> str:
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA/train.tsv").write_bytes(content)
    return str(tmp_path)


@pytest.mark.skipif(not GLUE.exists(), reason="the GLUE files are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "split", "num_rows", "first"),
    [
        ("cola", "train", 8551, "Our friends won't buy this analysis, let alone"),
        ("cola", "dev", 1043, "The sailors rode the breeze clear of the rocks."),
        ("sst-2", "train", 67349, "hide new secretions from the parental units"),
        ("sst-2", "dev", 872, "it 's a charming and often affecting journey ."),
    ],
)
def test_the_published_files_are_read_whole(
    name: str, split: Split, num_rows: int, first: str
) -> None:
    rows = read_split(TASKS[name], str(GLUE), split)
    assert len(rows) == len(rows.labels) == num_rows
    assert rows.texts[0].startswith(first)
    assert 0.5 < rows.labels.mean() < 0.8


def test_cola_has_no_header_and_quotes_mean_nothing(tmp_path: Path) -> None:
    folder = cola_folder(tmp_path, b'gj04\t1\t\t"No, he said.\ngj04\t0\t*\tIt "is\x0bso.\r\n')
    rows = read_split(COLA, folder, "train")
    assert rows.texts == ['"No, he said.', 'It "is\x0bso.']
    assert rows.labels.tolist() == [1, 0]


def test_sst_2_has_a_header_and_is_read_from_any_file_system() -> None:
    with fsspec.open("memory://glue/SST-2/dev.tsv", "wb") as file:
        file.write(b"sentence\tlabel\ngood \t1\nbad \t0\n")
    rows = read_split(SST_2, "memory://glue", "dev")
    assert rows.texts == ["good ", "bad "]
    assert rows.labels.tolist() == [1, 0]


def test_the_tasks_own_folder_does_as_well(tmp_path: Path) -> None:
    folder = cola_folder(tmp_path, b"x\t1\t\tA sentence.\n")
    assert len(read_split(COLA, f"{folder}/CoLA", "train")) == 1


def test_a_missing_file_is_said_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"CoLA/dev\.tsv is missing: .*source<tab>label"):
        read_split(COLA, str(tmp_path), "dev")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"train\.tsv has no rows"),
        (b"x\t1\t\ta\nx\t1\ta\n", r"train\.tsv, line 2: 3 tab-separated fields, expected 4"),
        (b"x\t1\t\ta\n\nx\t1\t\ta\n", r"line 2: 1 tab-separated fields"),
        (b"x\t2\t\ta\n", r"line 1: label '2', expected one of 0, 1"),
        (b"x\t1\t\t \n", r"line 1: the sentence is empty"),
        (b"x\t1\t\ta\nx\t1\t\t\xff\n", r"line 2: not UTF-8"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_split(COLA, cola_folder(tmp_path, content), "train")


def test_sst_2_without_its_header_is_refused() -> None:
    with fsspec.open("memory://headless/SST-2/dev.tsv", "wb") as file:
        file.write(b"good \t1\n")
    with pytest.raises(TaskError, match=r"line 1: found .* expected the header"):
        read_split(SST_2, "memory://headless", "dev")
