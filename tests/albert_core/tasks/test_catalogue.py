"""Which tasks there are, and where their files are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from albert_core.config import OwnTaskSettings
from albert_core.metrics import METRICS
from albert_core.stage.errors import TaskError
from albert_core.tasks.catalogue import SCORED_WITH, TASKS, find_files, present_tasks, read_examples
from tests.albert_core.tasks.task_files import (
    DATA,
    squad_question,
    write,
    write_glue,
    write_race,
    write_squad,
)

SQUAD_NAMES = ("train-v1.1.json", "dev-v1.1.json", "train-v2.0.json", "dev-v2.0.json")


def write_everything(folder: Path) -> None:
    write_glue(folder / "glue")
    write_race(folder / "RACE")
    for name in SQUAD_NAMES:
        write_squad(folder / "squad" / name, [squad_question("q1", ("cat", 2))])


def own(folder: Path, name: str = "mine") -> OwnTaskSettings:
    path = write(folder / "mine.tsv", "text\tlabel\nA.\tx\nB.\ty\n")
    return OwnTaskSettings(name=name, train=path, dev=path, text_columns=["text"])


def test_every_task_is_found_below_one_folder_and_read(tmp_path: Path) -> None:
    write_everything(tmp_path)
    present, missing = present_tasks(str(tmp_path), [own(tmp_path)])
    assert missing == {}
    assert [files.task.name for files in present] == [*TASKS, "mine"]
    for files in present:
        for split in files.splits:
            assert len(read_examples(files.task, files, split)) > 0


@pytest.mark.parametrize(("name", "num_tasks"), [("glue", 11), ("squad", 2), ("RACE", 1)])
def test_one_archive_alone_is_found_as_well(tmp_path: Path, name: str, num_tasks: int) -> None:
    write_everything(tmp_path)
    present, missing = present_tasks(str(tmp_path / name))
    whole, _ = present_tasks(str(tmp_path))
    assert present == [files for files in whole if files.task.name not in missing]
    assert len(present) == len(TASKS) - len(missing) == num_tasks


def test_archives_are_found_two_folders_further_down(tmp_path: Path) -> None:
    write_squad(tmp_path / "squad/v1.1/train-v1.1.json", [squad_question("q1", ("cat", 2))])
    write_squad(tmp_path / "squad/v1.1/dev-v1.1.json", [squad_question("q1", ("cat", 2))])
    write_race(tmp_path / "reading/RACE")
    present, missing = present_tasks(str(tmp_path))
    assert [files.task.name for files in present] == ["squad-1.1", "race"]
    assert missing["squad-2.0"] == (
        f"train-v2.0.json, dev-v2.0.json in {tmp_path} or, at most two folders further down, in "
        "any folder"
    )


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    write_everything(tmp_path / "elsewhere")
    for name in ("glue", "RACE"):
        (tmp_path / "tasks" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).symlink_to(tmp_path / "elsewhere" / name)
    for name in SQUAD_NAMES:
        (tmp_path / "tasks" / name).symlink_to(tmp_path / "elsewhere/squad" / name)
    present, missing = present_tasks(str(tmp_path / "tasks"))
    assert missing == {}
    assert [files.task.name for files in present] == [*TASKS]
    assert all(len(read_examples(files.task, files, "dev")) for files in present[:6])


def test_a_tasks_own_folder_is_no_other_tasks(tmp_path: Path) -> None:
    write_everything(tmp_path)
    present, _ = present_tasks(str(tmp_path / "glue/RTE"))
    assert [files.task.name for files in present] == ["rte"]


def test_what_is_missing_is_named_with_what_was_looked_for(tmp_path: Path) -> None:
    write_everything(tmp_path)
    (tmp_path / "glue/CoLA/dev.tsv").unlink()
    (tmp_path / "glue/MRPC/train.tsv").unlink()
    (tmp_path / "glue/MNLI/train.tsv").unlink()
    (tmp_path / "squad/train-v2.0.json").unlink()
    absent = own(tmp_path, "other").model_copy(update={"dev": "nowhere.tsv"})
    present, missing = present_tasks(str(tmp_path), [absent])
    place = f"in {tmp_path} or, at most two folders further down, in"
    assert missing == {
        "cola": f"dev.tsv {place} CoLA",
        "mrpc": f"train.tsv or msr_paraphrase_train.txt with dev_ids.tsv {place} MRPC",
        "mnli": f"train.tsv {place} MNLI",
        "mnli-mm": "mnli, whose model predicts it",
        "ax": "mnli, whose model predicts it",
        "squad-2.0": f"train-v2.0.json {place} any folder",
        "other": "nowhere.tsv",
    }
    assert {files.task.name for files in present} == TASKS.keys() - missing.keys()


def test_of_an_empty_or_missing_folder_all_tasks_are_missing(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        present, missing = present_tasks(str(folder))
        assert present == []
        assert missing.keys() == TASKS.keys()
    present, missing = present_tasks("", [own(tmp_path)])
    assert ([files.task.name for files in present], missing) == (["mine"], {})


def test_of_two_folders_the_one_with_a_training_set_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "a/RTE/dev.tsv", "sentence1\tsentence2\tlabel\nA.\tB.\tentailment\n")
    write(tmp_path / "a/RTE/test.tsv", "sentence1\tsentence2\nA.\tB.\n")
    write(tmp_path / "b/RTE/train.tsv", "sentence1\tsentence2\tlabel\nA.\tB.\tentailment\n")
    assert find_files(TASKS["rte"], str(tmp_path)).splits == {
        "train": (f"{tmp_path}/b/RTE/train.tsv",)
    }


def test_a_split_that_is_not_there_is_said(tmp_path: Path) -> None:
    files = find_files(TASKS["cola"], str(tmp_path))
    with pytest.raises(TaskError, match=r"task 'cola' has no dev split: expected train\.tsv, dev"):
        read_examples(TASKS["cola"], files, "dev")


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="two tasks are called 'cola'"):
        present_tasks(str(tmp_path), [own(tmp_path, "cola")])
    with pytest.raises(TaskError, match="two tasks are called 'mine'"):
        present_tasks(str(tmp_path), [own(tmp_path), own(tmp_path)])


def test_the_digest_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("here", "there"):
        write_everything(tmp_path / name)
    for task in TASKS.values():
        here, there = (find_files(task, str(tmp_path / name)) for name in ("here", "there"))
        assert here.digest() == there.digest()
        splits = list(here.splits)
        assert len({here.digest(split) for split in splits}) == len(splits)
    race = find_files(TASKS["race"], str(tmp_path / "there"))
    before = race.digest("train"), race.digest("dev")
    changed = Path(race.splits["train"][1])
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"article": "Another."}))
    assert race.digest("train") != before[0]
    assert race.digest("dev") == before[1]


def test_each_task_has_a_known_metric_and_what_scores_it() -> None:
    for task in TASKS.values():
        if task.kind in ("classification", "regression"):
            assert set(task.metrics) <= METRICS.keys()
        assert task.metrics
        assert bool(task.labels) == (task.kind in ("classification", "choice"))
    assert SCORED_WITH.keys() | set(SCORED_WITH.values()) <= TASKS.keys()
    assert [TASKS[name].metrics[0] for name in ("cola", "sts-b", "squad-2.0", "race")] == [
        "matthews",
        "pearson",
        "f1",
        "accuracy",
    ]


def test_tasks_are_read_without_the_heavy_libraries() -> None:
    code = "import sys, albert_core.tasks.catalogue; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "sklearn", "scipy", "apache_beam"} & set(done.stdout.split())


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_of_the_real_data_what_is_there_is_found() -> None:
    present, missing = present_tasks(str(DATA))
    assert missing.keys() == {"mnli-mm", "squad-1.1", "squad-2.0", "race"}
    assert len(present) == 10
