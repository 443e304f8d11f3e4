"""Which tasks there are, where their files are found, and the reader of RACE."""

import json
import re
import socket
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest

from albert_core.config import OwnTaskSettings
from albert_core.stage import storage
from albert_core.stage.errors import TaskError, is_transient
from albert_core.tasks.catalogue import (
    SCORED_WITH,
    TASKS,
    dev_clusters,
    find_files,
    find_task,
    present_tasks,
    read_examples,
    read_race,
)
from albert_core.tasks.examples import ChoiceExamples, Split, TextExamples
from tests.albert_core.tasks import task_files
from tests.albert_core.tasks.task_files import passage, write, write_race

SQUAD_NAMES = ("train-v1.1.json", "dev-v1.1.json", "train-v2.0.json", "dev-v2.0.json")


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    """A folder with the files of all tasks."""
    task_files.write_glue(tmp_path / "all/glue")
    write_race(tmp_path / "all/RACE")
    for name in SQUAD_NAMES:
        task_files.write_squad(tmp_path / "all/squad" / name)
    return tmp_path / "all"


def own(folder: Path, name: str = "mine", dev: str = "mine.tsv") -> OwnTaskSettings:
    path = write(folder / "mine.tsv", "text\tlabel\nA.\tx\nB.\ty\n")
    return OwnTaskSettings(name=name, train=path, dev=f"{folder}/{dev}", text_columns=["text"])


def names_of(folder: Path | str) -> list[str]:
    return [files.task.name for files in present_tasks(str(folder))[0]]


def test_every_task_is_found_below_one_folder_and_read(everything: Path) -> None:
    present, missing = present_tasks(str(everything), [own(everything)])
    assert missing == {}
    assert [files.task.name for files in present] == [*TASKS, "mine"]
    assert all(len(read_examples(files, split)) for files in present for split in files.splits)


def test_one_archive_or_task_alone_is_found_as_well(everything: Path) -> None:
    whole, _ = present_tasks(str(everything))
    archives = [present_tasks(f"{everything}/{name}")[0] for name in ("glue", "squad", "RACE")]
    assert [len(present) for present in archives] == [11, 2, 1]
    assert [files for present in archives for files in present] == whole
    assert names_of(everything / "glue/RTE") == ["rte"]


def test_archives_are_found_two_folders_further_down(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        task_files.write_squad(tmp_path / f"squad/v1.1/{split}-v1.1.json")
    write_race(tmp_path / "reading/RACE")
    assert names_of(tmp_path) == ["squad-1.1", "race"]


def test_links_to_folders_and_files_are_followed(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    for name in ("glue", "RACE", *(f"squad/{name}" for name in SQUAD_NAMES)):
        (tmp_path / "tasks" / Path(name).name).symlink_to(everything / name)
    present, missing = present_tasks(f"{tmp_path}/tasks/")
    assert missing == {}
    assert all(len(read_examples(files, "dev")) for files in present if files.can_be_learned)


def test_a_link_to_nothing_and_a_folder_are_named(everything: Path) -> None:
    files, dev = find_task("rte", str(everything)), everything / "glue/RTE/dev.tsv"
    dev.unlink()
    dev.symlink_to(everything / "nothing")
    with pytest.raises(TaskError, match=r"glue/RTE/dev\.tsv is missing\. Restore it"):
        find_task("rte", str(everything)).digests()
    dev.unlink()
    dev.mkdir()
    for use in (files.digests, partial(read_examples, files, "dev")):
        with pytest.raises(TaskError, match=r"glue/RTE/dev\.tsv is a folder\."):
            use()


def test_a_server_that_does_not_answer_is_no_missing_file(everything: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}/train.tsv"
    task = own(everything).model_copy(update={"train": uri})
    files = replace(find_task("rte", str(everything)), splits={"train": (uri,), "dev": (uri,)})
    for use in (partial(present_tasks, "", [task]), files.digests):
        with pytest.raises(FileNotFoundError) as caught:
            use()
        assert is_transient(caught.value)


def test_what_is_missing_is_named_with_what_was_looked_for(everything: Path) -> None:
    for name in ("CoLA/dev.tsv", "MRPC/train.tsv", "MNLI/train.tsv"):
        (everything / "glue" / name).unlink()
    (everything / "squad/train-v2.0.json").unlink()
    (everything / "squad/dev-v2.0.json").unlink()
    present, missing = present_tasks(str(everything), [own(everything, "other", dev="nowhere")])
    place = f"in {everything} or, at most two folders further down, in"
    assert missing == {
        "cola": f"dev.tsv {place} CoLA",
        "mrpc": f"train.tsv or msr_paraphrase_train.txt with dev_ids.tsv {place} MRPC",
        "mnli": f"train.tsv {place} MNLI",
        "mnli-mm": "mnli, whose model predicts it",
        "ax": "mnli, whose model predicts it",
        "squad-2.0": f"train-v2.0.json, dev-v2.0.json {place} any folder",
        "other": f"{everything}/nowhere",
    }
    assert {files.task.name for files in present} == TASKS.keys() - missing.keys()


def test_without_any_files_all_tasks_are_missing_but_own_ones(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        present, missing = present_tasks(str(folder))
        assert not present
        assert missing.keys() == TASKS.keys()
    present, missing = present_tasks("", [own(tmp_path)])
    assert ([files.task.name for files in present], missing) == (["mine"], {})


def test_the_documentation_has_each_task_and_the_files_that_are_looked_for(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/evaluation.md"
    rows = dict(re.findall(r"^\| `([a-z0-9.-]+)` \| (.*) \|$", page.read_text(), re.MULTILINE))
    for name, what in present_tasks(str(tmp_path))[1].items():
        files = re.findall(r"[^ ]+\.(?:tsv|txt|json)\b", what)
        assert all(f"`{file}`" in rows[name] for file in files), name
        assert files or name in SCORED_WITH


def test_of_two_folders_the_one_with_a_training_set_is_taken(tmp_path: Path) -> None:
    row = "sentence1\tsentence2\tlabel\nA.\tB.\tentailment\n"
    for name in ("a/RTE/dev.tsv", "a/RTE/test.tsv", "b/RTE/train.tsv"):
        write(tmp_path / name, row)
    files = find_files(TASKS["rte"], str(tmp_path))
    assert files.splits == {"train": (f"{tmp_path}/b/RTE/train.tsv",)}


def test_an_own_task_is_found_by_its_name(tmp_path: Path) -> None:
    tasks = [own(tmp_path), own(tmp_path, "other", dev="nowhere")]
    tasks.append(own(tmp_path, "third").model_copy(update={"test": f"{tmp_path}/none"}))
    assert find_task("mine", "", tasks).task.name == "mine"
    with pytest.raises(TaskError, match=r"'other' is not complete: expected .*nowhere"):
        find_task("other", "", tasks)
    with pytest.raises(TaskError, match=r"'third' is not complete: expected .*/none"):
        find_task("third", "", tasks)
    with pytest.raises(TaskError, match=r"no task 'nobody'; there is cola, .*, mine, other, third"):
        find_task("nobody", "", tasks)


def test_the_task_made_from_held_out_documents_is_found_with_the_labels_of_its_files(
    tmp_path: Path,
) -> None:
    lines = [
        json.dumps({"text": f"Text {n}.", "source": "ab"[n % 2], "document": "xy"[n // 2]})
        for n in range(4)
    ]
    for split in ("train", "dev"):
        assert "passage-source" not in names_of(tmp_path)
        write(tmp_path / f"passage-source/{split}.jsonl", "\n".join(lines))
    files = find_task("passage-source", str(tmp_path))
    assert [each.task for each in present_tasks(str(tmp_path))[0]] == [files.task]
    assert (files.task.labels, files.task.metrics[0]) == (("a", "b"), "accuracy")
    examples = read_examples(files, "dev")
    assert isinstance(examples, TextExamples)
    assert examples.targets is not None
    assert (examples.texts_a[1], examples.targets.tolist()) == ("Text 1.", [0, 1, 0, 1])
    assert examples.clusters is not None
    assert examples.clusters.tolist() == [0, 0, 1, 1]
    assert dev_clusters(str(tmp_path), [], []) == {"passage-source": 2}


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    for name, tasks in (("cola", [own(tmp_path, "cola")]), ("mine", [own(tmp_path)] * 2)):
        with pytest.raises(TaskError, match=f"two tasks are called '{name}'"):
            present_tasks(str(tmp_path), tasks)


def test_the_digest_is_that_of_the_content_wherever_it_is(everything: Path, tmp_path: Path) -> None:
    there = everything.rename(tmp_path / "there")
    task_files.write_glue(everything)
    write_race(everything / "any name")
    for name in SQUAD_NAMES:
        task_files.write_squad(everything / name)
    for task in TASKS.values():
        files, again = (find_files(task, str(folder)) for folder in (there, everything))
        assert files.digest() == again.digest()
        assert files.digests() == again.digests()
        splits = list(files.splits)
        assert len({files.digest(split) for split in splits}) == len(splits)
    race = find_files(TASKS["race"], str(there))
    before = race.digests()
    changed = Path(race.splits["train"][1])
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"article": "Another."}))
    assert race.digest("train") != before["train"]
    assert race.digest("dev") == before["dev"]
    middle, high = (there / "RACE/test" / group for group in ("middle", "high"))
    for name in ("2.txt", "9.txt", "10.txt"):  # the group of a passage counts
        (middle / name).rename(high / f"1{name}")
    assert find_files(TASKS["race"], str(there)).digest("test") != before["test"]


@pytest.mark.skipif(not task_files.DATA.exists(), reason="the real data isn't here")
def test_of_the_real_data_what_is_there_is_found() -> None:
    present, missing = present_tasks(str(task_files.DATA))
    assert missing.keys() == {"mnli-mm", "squad-1.1", "squad-2.0", "race"}
    assert len(present) == 10


# RACE

RACE = TASKS["race"]


def read(folder: str, split: Split = "train") -> ChoiceExamples:
    examples = read_examples(find_files(RACE, folder), split)
    assert isinstance(examples, ChoiceExamples)
    return examples


def test_the_archives_layout_is_read_middle_first_by_the_passages_numbers(tmp_path: Path) -> None:
    for other in (".DS_Store", "all.txt"):
        write(tmp_path / "RACE/train/middle" / other, b"\0")
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


def changed(**change: Any) -> str:
    return json.dumps(passage() | change)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(options=[["a"] * 3, ["a"] * 4]), r"high/7\.txt, options\[0\]: .* at least 4"),
        (changed(options=[["a"] * 4]), r"high/7\.txt: .*1 options for 2 questions"),
        (changed(options=[["a", "b", "c", 4], ["a"] * 4]), r"\[0\]\[3\]: .* string, found 4"),
        (changed(answers=["A", "E"]), r"answers\[1\]: .* be 'A', 'B', 'C' or 'D', found 'E'"),
        (changed(answers=["A"]), r"1 answers for 2 questions"),
        (changed(questions="Who?"), r"questions: .* valid list, found 'Who\?'"),
        (changed(article=None), r"article: .* valid string, found None"),
        (changed()[:40], r"high/7\.txt: not JSON .* of 40 .*cut off"),
        ("[]", "expected a JSON object"),
        (changed(questions=[], options=[], answers=[]), "no questions in 1 files"),
    ],
)
def test_a_malformed_file_is_refused_with_its_field(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        read_race([write(tmp_path / "high/7.txt", content)])


def test_each_folder_is_listed_once_however_many_files_it_has(
    everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Mock(side_effect=storage.list_folder)
    monkeypatch.setattr(storage, "list_folder", listed)
    assert len(present_tasks(str(everything))[0]) == len(TASKS)
    folders = [call.args[0] for call in listed.call_args_list]
    assert f"{everything}/RACE/train/high" in folders
    assert len(set(folders)) == len(folders)


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
