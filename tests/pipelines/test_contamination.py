"""Which share of the downstream sets the corpus has seen."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from albert_core.config import EvaluationSettings, OwnTaskSettings
from albert_core.stage.errors import TaskError
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.results import ContaminationResult
from albert_core.text.arrow_files import read_arrow
from pipelines import contamination
from pipelines.config import ContaminationSettings
from tests.albert_core.tasks.task_files import (
    passage,
    squad_question,
    write,
    write_glue,
    write_squad,
)
from tests.pipelines.conftest import Made, rows_of

OTHER = " ".join(f"unseen{number}" for number in range(20))


def corpus_texts(made: Made) -> list[str]:
    return [row["text"] for row in rows_of(made.corpus, "documents")]


def quotes(made: Made, num_words: int, number: int) -> list[str]:
    """Return runs of words of the corpus, in other case and with other punctuation."""
    random = Random(0)
    found = []
    for text in random.choices(corpus_texts(made), k=number):
        words = text.split()
        begin = random.randrange(len(words) - num_words)
        found.append("; ".join(words[begin : begin + num_words]).upper())
    return found


def run(
    made: Made, task_folder: Path | str, work: Path, ngram_words: int = 13, **evaluation: Any
) -> Manifest:
    words, tasks = ContaminationSettings(ngram_words=ngram_words), EvaluationSettings(**evaluation)
    call = words, tasks, made.corpus, str(task_folder)
    plan = contamination.stage_plan(*call)
    done = plan.done(str(work))
    uri = contamination.run(*call, str(work))
    assert done in (None, uri)
    assert plan.done(str(work)) == uri
    return read_manifest(uri)


def overlaps_in(work: Path) -> list[dict[str, Any]]:
    (uri,) = work.glob("contamination/*/overlaps.arrow")
    rows: list[dict[str, Any]] = read_arrow(str(uri)).to_pylist()
    return rows


def test_every_planted_overlap_is_found_and_nothing_else(made: Made, tmp_path: Path) -> None:
    planted = quotes(made, 13, 25)
    rows = [*planted, *(f"{OTHER} {number}" for number in range(74)), "too short to tell"]
    lines = "".join(f"gj04\t{number % 2}\t\tIt said {text}\n" for number, text in enumerate(rows))
    write(tmp_path / "glue/CoLA/dev.tsv", lines)
    twelve = "".join(f"{n}\t{text}\n" for n, text in enumerate(quotes(made, 12, 40)))
    write(tmp_path / "glue/CoLA/test.tsv", f"index\tsentence\n{twelve}")
    found = run(made, tmp_path, tmp_path / "work")
    result, share = found.result_as(ContaminationResult), 25 / 99
    assert result.shares == {"cola": {"dev": share, "test": None}}
    assert result.num_judged == {"cola": {"dev": 99, "test": 0}}
    assert result.num_examples == {"cola": {"dev": 100, "test": 40}}
    assert found.result["parts"]["cola"] == {
        "dev": {"text_a": {"texts": 100, "long_enough": 99, "overlapping": 25, "share": share}},
        "test": {"text_a": {"texts": 40, "long_enough": 0, "overlapping": 0, "share": None}},
    }
    named = overlaps_in(tmp_path / "work")
    assert [row["id"] for row in named] == [str(number) for number in range(25)]
    assert [row["first"] for row in named] == [text.rstrip(".,") for text in planted]
    assert {row["task"] for row in named} == {"cola"}
    assert found.account("documents searched").kept == len(corpus_texts(made))


def test_parts_of_an_example_are_told_apart(made: Made, tmp_path: Path) -> None:
    seen = quotes(made, 14, 2)
    context = f"{seen[0]} cat"
    questions = [
        squad_question("q1", ("cat", len(context) - 3)),
        squad_question("q2", ("cat", len(context) - 3), question=seen[1]),
    ]
    write_squad(tmp_path / "dev-v1.1.json", questions, context=context)
    values = passage(article=OTHER, options=[["a", "b", "c", seen[1]], ["a", "b", "c", "d"]])
    write(tmp_path / "RACE/test/high/1.txt", json.dumps(values))
    found = run(made, tmp_path, tmp_path / "work")
    result = found.result_as(ContaminationResult)
    assert result.shares == {"squad-1.1": {"dev": 1.0}, "race": {"test": 0.5}}
    parts = result.parts["squad-1.1"]["dev"]
    assert (parts["paragraph"].texts, parts["paragraph"].share) == (1, 1.0)
    assert (parts["question"].texts, parts["question"].long_enough) == (2, 1)
    assert parts["question"].share == 1.0
    parts = result.parts["race"]["test"]
    assert (parts["article"].share, parts["question"].share) == (0.0, 1.0)
    named = [(row["task"], row["id"], row["part"]) for row in overlaps_in(tmp_path / "work")]
    assert named == [
        ("squad-1.1", "q1", "paragraph"),
        ("squad-1.1", "q2", "paragraph"),
        ("squad-1.1", "q2", "question"),
        ("race", "high1.txt-0", "question"),
    ]


def test_it_is_done_once_and_again_when_a_set_changes(made: Made, tmp_path: Path) -> None:
    seen, own = quotes(made, 8, 1)[0], tmp_path / "mine.tsv"
    write(own, f"text\tlabel\n{OTHER}\tx\n{seen}\ty\n")
    task = OwnTaskSettings(name="mine", train=str(own), dev=str(own), text_columns=["text"])
    more: dict[str, Any] = {"own_tasks": [task], "ngram_words": 8}
    found = run(made, "", tmp_path / "work", **more)
    assert found.result_as(ContaminationResult).shares == {"mine": {"dev": 0.5}}
    assert run(made, "", tmp_path / "work", **more).key == found.key
    write(own, f"text\tlabel\n{OTHER}\tx\n{OTHER}\ty\n")
    changed = run(made, "", tmp_path / "work", **more)
    assert changed.key != found.key
    assert changed.result_as(ContaminationResult).shares == {"mine": {"dev": 0.0}}


def test_only_the_tasks_asked_for_that_have_files_and_what_their_models_predict_are_looked_at(
    made: Made, tmp_path: Path
) -> None:
    write_glue(tmp_path)
    missing = {"name": "mine", "train": "no.csv", "dev": "no.csv", "text_columns": ["text"]}
    asked: dict[str, Any] = {"tasks": ["mnli", "rte"], "own_tasks": [missing]}
    found = run(made, tmp_path, tmp_path / "work", **asked)
    assert found.result_as(ContaminationResult).shares.keys() == {"mnli", "mnli-mm", "ax", "rte"}


@pytest.mark.slow
def test_two_workers_find_the_same(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"gj04\t1\t\t{text}\n" for text in [*quotes(made, 15, 30), OTHER])
    write(tmp_path / "CoLA/dev.tsv", lines)
    for workers in ("1", "2"):
        monkeypatch.setenv("ALBERT_WORKERS", workers)
        run(made, tmp_path, tmp_path / workers)
    assert overlaps_in(tmp_path / "1") == overlaps_in(tmp_path / "2") != []


def test_a_folder_without_any_set_is_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has the dev or test set of no task"):
        run(made, tmp_path, tmp_path / "work")
