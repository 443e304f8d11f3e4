"""The reader of RACE."""

import json
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import TASKS, find_files, read_examples, read_race
from albert_core.tasks.examples import ChoiceExamples, Split
from tests.albert_core.tasks.task_files import passage, write, write_race

RACE = TASKS["race"]


def read(folder: str, split: Split = "train") -> ChoiceExamples:
    examples = read_examples(find_files(RACE, folder), split)
    assert isinstance(examples, ChoiceExamples)
    return examples


def test_the_archives_layout_is_read_middle_first_by_the_passages_numbers(tmp_path: Path) -> None:
    write(tmp_path / "RACE/train/middle/.DS_Store", b"\0")
    for folder in (write_race(tmp_path / "RACE"), str(tmp_path)):
        found = read(folder)
        names = [f"{group}{number}.txt" for group in ("middle", "high") for number in (2, 9, 10)]
        assert found.ids == [f"{name}-{question}" for name in names for question in range(2)]
        assert found.groups == ["middle"] * 6 + ["high"] * 6
        assert found.articles == [f"Passage {n}. A cat sat." for n in (2, 9, 10)] * 2
        assert found.article_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
        assert found.questions == ["Who sat?", "The cat _ ."] * 6
        assert found.options[1] == ("sat", "ran", "slept", "ate")
        assert found.targets is not None
        assert found.targets.tolist() == [3, 0] * 6


def test_the_references_layout_of_one_passage_per_line_is_read_too(tmp_path: Path) -> None:
    for group in ("middle", "high"):
        lines = [json.dumps(passage(n, id=f"{group}{n}.txt")) for n in (9, 2)]
        lines.append(json.dumps({**passage(3), "id": None}))
        write(tmp_path / "dev" / group / "all.txt", "\n\n".join(lines) + "\n\n")
    found = read(str(tmp_path), "dev")
    names = ("middle9.txt", "middle2.txt", "middle-line-5", "high9.txt")
    assert found.ids[:8:2] == [f"{name}-0" for name in names]
    assert found.groups == ["middle"] * 6 + ["high"] * 6


def test_passages_are_not_read_twice_where_both_layouts_are(tmp_path: Path) -> None:
    folder = write_race(tmp_path / "RACE")
    write(tmp_path / "RACE/train/high/all.txt", json.dumps(passage(1)))
    assert len(read(folder)) == 12


def test_answers_that_are_withheld_are_no_targets(tmp_path: Path) -> None:
    values = passage()
    del values["answers"]
    write(tmp_path / "test/high/1.txt", json.dumps(values))
    assert read(str(tmp_path), "test").targets is None
    write(tmp_path / "test/high/2.txt", json.dumps(passage()))
    with pytest.raises(TaskError, match="2 of 4 questions of this split have answers"):
        read(str(tmp_path), "test")


def test_it_is_read_from_any_file_system() -> None:
    with fsspec.open("memory://race/RACE/dev/middle/7.txt", "wb") as file:
        file.write(json.dumps(passage(7)).encode())
    assert read("memory://race", "dev").ids == ["middle7.txt-0", "middle7.txt-1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": [["a", "b", "c"], ["a"] * 4]}, r"high/7\.txt, options\[0\]: .* at least 4"),
        ({"options": [["a"] * 4]}, r"high/7\.txt: .*1 options for 2 questions"),
        (
            {"options": [["a", "b", "c", 4], ["a"] * 4]},
            r"options\[0\]\[3\]: .*valid string, found 4",
        ),
        ({"answers": ["A", "E"]}, r"answers\[1\]: .* be 'A', 'B', 'C' or 'D', found 'E'"),
        ({"answers": ["A"]}, r"1 answers for 2 questions"),
        ({"questions": "Who?"}, r"questions: .* valid list, found 'Who\?'"),
        ({"article": None}, r"article: .* valid string, found None"),
    ],
)
def test_a_malformed_passage_is_refused_with_its_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    uri = write(tmp_path / "high/7.txt", json.dumps(passage() | change))
    with pytest.raises(TaskError, match=message):
        read_race([uri])


WHOLE = json.dumps(passage())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("7.txt", WHOLE[:40], r"high/7\.txt: not JSON .* of 40 .*cut off"),
        ("all.txt", f"{WHOLE}\n{WHOLE[:40]}", r"high/all\.txt, line 2: not JSON"),
        ("all.txt", f"{WHOLE}\n{WHOLE}", r"all\.txt, line 2: id 'high0\.txt' is that of .*line 1"),
        ("7.txt", "[]", "expected a JSON object"),
        ("all.txt", "", "no questions in 1 files"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_race([write(tmp_path / "high" / name, content)])


def test_a_tenth_of_its_twenty_eight_thousand_files_is_read_in_six_seconds(tmp_path: Path) -> None:
    content = json.dumps(passage(article="A cat sat. " * 150))
    for number in range(2_800):
        group = "middle" if number % 4 else "high"
        write(tmp_path / "train" / group / f"{number}.txt", content)
    began = time.process_time()
    files = find_files(RACE, str(tmp_path))
    files.digest("train")
    assert len(read_examples(files, "train")) == 5_600
    assert time.process_time() - began < 6
