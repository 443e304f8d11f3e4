"""Which checkpoint a run begins with: found from its plan and work folder, without a model."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_core.checkpoint import CHECKPOINTS, STATE, save_checkpoint
from albert_core.stage.errors import IntegrityError, TrainingError
from albert_core.stage.manifest import StagePlan
from albert_core.training.beginning import find_beginning
from albert_core.training.ranks import ALONE, Ranks
from tests.albert_core import training_runs as runs


def plan_of(code: str = "code", cut: dict[str, int] | None = None, **training: Any) -> StagePlan:
    """Return the plan of a run on examples that nobody made."""
    settings: dict[str, Any] = {"training": runs.with_settings(**training).of_result}
    if cut:
        settings["cut"] = cut
    inputs = {"examples": "of the examples", "vocab": "of the vocabulary"}
    return StagePlan("pretraining", settings, inputs, code, {"torch": "2"})


def begin(work: Path, plan: StagePlan, *steps: int) -> list[Path]:
    """Have a run begun that left checkpoints of some steps; return their folders."""
    assert plan.find(str(work)) is None
    folder = f"{plan.folder(str(work))}/{CHECKPOINTS}"
    records: list[dict[str, Any]] = [{"step": step, "before": {}} for step in steps]
    weights = {"model": torch.ones(1)}
    return [Path(save_checkpoint(folder, weights, record, 10)) for record in records]


def found_in(work: Path, plan: StagePlan, ranks: Ranks = ALONE) -> tuple[str, int, bool] | None:
    """Return the key of the run, the step, and whether it is the run itself."""
    found = find_beginning(plan, str(work), ranks)
    if found is None:
        return None
    return Path(found.folder).parent.name, found.record["step"], found.is_own


OWN = plan_of()
MEASURED_OTHERWISE = plan_of(max_evaluation_examples=4)


def test_a_run_that_left_no_checkpoint_begins_anew(tmp_path: Path) -> None:
    assert found_in(tmp_path, OWN) is None
    begin(tmp_path, OWN)
    assert found_in(tmp_path, OWN) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "is_own", "step"),
    [((4, 8), (), True, 8), ((4,), (8,), False, 8), ((8,), (4, 8), True, 8), ((), (0,), False, 0)],
)
def test_a_run_begins_where_it_or_one_that_is_measured_otherwise_was_furthest(
    ours: tuple[int, ...], theirs: tuple[int, ...], is_own: bool, step: int, tmp_path: Path
) -> None:
    begin(tmp_path, OWN, *ours)
    begin(tmp_path, MEASURED_OTHERWISE, *theirs)
    key = OWN.key if is_own else MEASURED_OTHERWISE.key
    assert found_in(tmp_path, OWN) == (key, step, is_own)


def test_a_run_of_other_updates_is_no_beginning(tmp_path: Path) -> None:
    begin(tmp_path, plan_of(learning_rate=0.1), 8)
    begin(tmp_path, replace(OWN, inputs={**OWN.inputs, "examples": "of others"}), 8)
    assert found_in(tmp_path, OWN) is None


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one_or_another_run(
    tmp_path: Path,
) -> None:
    older, newest = begin(tmp_path, MEASURED_OTHERWISE, 8, 12)
    (newest / STATE).write_bytes(b"")
    begin(tmp_path, OWN, 4)
    assert found_in(tmp_path, OWN) == (MEASURED_OTHERWISE.key, 8, False)
    (older / STATE).write_bytes(b"")
    assert found_in(tmp_path, OWN) == (OWN.key, 4, True)
    assert older.exists()


def test_a_run_of_which_all_checkpoints_are_damaged_says_so_once(tmp_path: Path) -> None:
    (only,) = begin(tmp_path, OWN, 4)
    (only / STATE).write_bytes(b"")
    with pytest.raises(IntegrityError, match="set aside"):
        find_beginning(OWN, str(tmp_path), ALONE)
    assert find_beginning(OWN, str(tmp_path), ALONE) is None


@pytest.mark.parametrize(
    ("other", "own", "differs"),
    [
        (plan_of(code="older"), OWN, "by other code or libraries"),
        (plan_of(cut={"ranks": 2}), plan_of(cut={"ranks": 1}), r"with ranks 2 \(here 1\)"),
    ],
)
def test_a_run_that_was_begun_otherwise_is_named_by_the_first_rank_only_if_it_is_further(
    other: StagePlan,
    own: StagePlan,
    differs: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (theirs,) = begin(tmp_path, other, 8)
    begin(tmp_path, own, 4)
    assert found_in(tmp_path, own, replace(ALONE, rank=1)) == (own.key, 4, True)
    assert "was begun" not in caplog.text
    assert found_in(tmp_path, own) == (own.key, 4, True)
    place = rf"pretraining/{other.key}, of the same settings and inputs, was begun {differs}"
    assert re.search(rf"{place}.*continue_from = {theirs} goes on from there", caplog.text)
    caplog.clear()
    begin(tmp_path, own, 8)
    assert found_in(tmp_path, own) == (own.key, 8, True)
    assert "was begun" not in caplog.text


def test_ranks_that_find_other_steps_are_told_to_share_a_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, OWN, 4)
    monkeypatch.setattr(Ranks, "sum", lambda _, step: step + 8)
    with pytest.raises(TrainingError, match=r"rank 1 finds step 4 in .*, and other ranks another"):
        find_beginning(OWN, str(tmp_path), Ranks(1, 2, torch.device("cpu")))
    monkeypatch.setattr(Ranks, "sum", lambda _, step: step + 4)
    assert found_in(tmp_path, OWN, Ranks(1, 2, torch.device("cpu"))) == (OWN.key, 4, True)
