from typing import Any

import pytest

from albert_core.config import EvaluationSettings
from albert_core.stage.errors import TaskError
from flows.finetunings import Planned, planned

PRESENT, MISSING = ["cola", "rte", "mnli"], {"race": "train/N.txt in /data", "ax": "mnli"}


def settings(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings.read({"num_seeds": 2, "seed": 7} | changes, "test")


def test_every_task_that_is_there_is_done_with_every_seed() -> None:
    found = planned(settings(), PRESENT, MISSING)
    assert [(run.task, run.seed) for run in found.runs] == [
        (task, seed) for task in PRESENT for seed in (7, 8)
    ]
    assert not any(run.from_mnli for run in found.runs)
    assert found.missing == {"race": "there is no train/N.txt in /data", "ax": "there is no mnli"}


def test_only_those_asked_for_are_done_and_missed() -> None:
    found = planned(settings(tasks=["race", "rte"]), PRESENT, MISSING)
    assert {run.task for run in found.runs} == {"rte"}
    assert found.missing == {"race": "there is no train/N.txt in /data"}


def test_what_starts_from_mnli_comes_after_it_though_it_was_not_asked_for() -> None:
    wanted = settings(tasks=["rte", "cola"], from_mnli=["rte", "sts-b"], num_seeds=1)
    assert planned(wanted, PRESENT, MISSING).runs == [
        Planned("mnli", 7, from_mnli=False),
        Planned("cola", 7, from_mnli=False),
        Planned("rte", 7, from_mnli=True),
    ]


@pytest.mark.parametrize(
    ("changes", "present", "message"),
    [
        ({"tasks": ["rte", "colla"]}, PRESENT, "there is no task 'colla' to fine-tune on; there"),
        ({"tasks": ["race"]}, PRESENT, r"no task to fine-tune on is there:\n  race: there is no"),
        ({}, [], "no task to fine-tune on is there"),
        ({"from_mnli": ["rte"]}, ["rte"], "names rte, but the files of MNLI are not there"),
    ],
)
def test_what_can_not_be_done_is_said(
    changes: dict[str, Any], present: list[str], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        planned(settings(**changes), present, MISSING)
