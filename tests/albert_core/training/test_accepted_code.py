"""A run that other code began is named, and gone on with if the user consents."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage import lock
from albert_core.stage.manifest import read_manifest
from albert_core.training import pretrain, pretraining
from albert_core.training.preemption import RunAgain
from flows.commands.lineage import as_text, read_model_lineage
from tests.albert_core.training_runs import (
    content_of,
    recipe_file,
    result_of,
    train,
    with_settings,
)
from tests.albert_core.training_with_faults import step_with

PROJECT = Path(__file__).parents[3]
STEP = "albert_core.training.step"
OTHER = {"code_digest": "0123456789abcdef", "module_digests": {STEP: "01234567"}}

Stop = Callable[[int], None]


@pytest.fixture
def stopped(examples: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that trains in this test's folder until it is told to stop in an update."""

    def train_until(step: int, **values: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pretraining, "train_step", step_with({"stop_step": step}))
            with pytest.raises(RunAgain):
                train(examples, tmp_path, **values)
        lock.release_all()  # as the end of this process would

    return train_until


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is another version."""
    for name, found in OTHER.items():
        monkeypatch.setattr(pretrain, name, lambda _, found=found: found)


@pytest.mark.slow
def test_with_consent_a_run_is_gone_on_with_by_a_tree_in_which_a_module_was_edited(
    examples: str, uninterrupted: str, stopped: Callable[..., None], tmp_path: Path
) -> None:
    stopped(8)
    (begun,) = tmp_path.glob("pretraining/*/begun.json")
    tree = tmp_path / "tree"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "albert_core", tree / "albert_core", ignore=without)
    edited = tree / "albert_core" / "training" / "step.py"
    edited.write_text(edited.read_text().replace("_NUM_SCORES = 4", "_NUM_SCORES = 2 + 2"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", pretrain.__name__),
            f"--recipe={recipe_file(tmp_path, with_settings(accept_code=True))}",
            *(f"--examples={examples}", f"--work={tmp_path}"),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"going on with other code than before: {STEP}\n" in done.stdout + done.stderr
    manifest = done.stdout.strip().splitlines()[-1].removeprefix("manifest: ")
    assert content_of(manifest) == content_of(uninterrupted)
    then, now = result_of(manifest).versions
    assert (then.step, then.code) == (0, read_manifest(str(begun)).code)
    assert (now.step, now.code) == (8, read_manifest(manifest).code)
    text = as_text(read_model_lineage(manifest, str(tmp_path)))
    assert f"{now.code}, {now.commit}\n" in text
    assert f"{then.code}, {then.commit}, until step 8; changed then: {STEP}\n" in text


def test_without_consent_a_run_begins_anew_and_says_what_consent_would_save(
    examples: str,
    uninterrupted: str,
    stopped: Callable[..., None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped(8)
    (first,) = tmp_path.glob("pretraining/*")
    request.getfixturevalue("other_code")
    stopped(2)
    assert f"pretraining/{first.name}, of the same settings and inputs, is at step 8" in caplog.text
    assert "--accept-code (training.accept_code = true) goes on from there" in caplog.text
    stopped(4)  # from its own checkpoint, of step 2
    with_consent = train(examples, tmp_path, accept_code=True)
    assert [version.step for version in result_of(with_consent).versions] == [0, 8]
    assert content_of(with_consent) == content_of(uninterrupted)


def test_consent_is_about_code_and_not_about_settings(
    examples: str, stopped: Callable[..., None], tmp_path: Path, other_code: None
) -> None:
    stopped(8)
    manifest = train(examples, tmp_path, accept_code=True, seed=5)
    assert [version.step for version in result_of(manifest).versions] == [0]


def test_a_setting_that_one_version_of_the_code_does_not_have_is_no_difference(
    examples: str,
    stopped: Callable[..., None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped(8)
    (begun,) = tmp_path.glob("pretraining/*/begun.json")
    values = json.loads(begun.read_text())
    del values["digest"]
    del values["settings"]["training"]["shallow_share"]
    values["settings"]["training"]["gone_since"] = 7
    begun.write_text(json.dumps(values))
    request.getfixturevalue("other_code")
    stopped(0)
    assert ", gone_since. --accept-code" in caplog.text
    manifest = train(examples, tmp_path, accept_code=True)
    assert [version.step for version in result_of(manifest).versions] == [0, 8]
