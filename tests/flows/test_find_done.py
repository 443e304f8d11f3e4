"""What was done is found at once: the same as the stage finds, without what it is done with."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from albert_core.stage.manifest import read_manifest, sealed
from albert_core.stage.results import RegistrationResult
from albert_core.tracking.server import open_client
from albert_core.training import pretrain
from flows.recipe import Recipe, RecipeRun
from tests.flows.conftest import Tiny

HEAVY = {"torch", "apache_beam", "mlflow", "prefect", "transformers", "pandas", "matplotlib"}


def run_of(tiny: Tiny, changes: dict[str, dict[str, object]] | None = None) -> RecipeRun:
    values = json.loads(Path(tiny.manifests["recipe"]).read_text())
    for section, fields in (changes or {}).items():
        values[section].update(fields)
    return RecipeRun(Recipe.model_validate(values), tiny.manifests["recipe"], tiny.work)


def test_finding_needs_nothing_that_the_stages_are_done_with(tiny: Tiny) -> None:
    code = (
        "import json, sys\n"
        "from flows.recipe import Recipe, RecipeRun\n"
        "calls, recipe, work = json.load(sys.stdin)\n"
        "run = RecipeRun(Recipe.model_validate(recipe), '', work)\n"
        "found = [run.find_done(module, **inputs) for module, inputs in calls]\n"
        f"print(json.dumps([found, sorted({HEAVY} & set(sys.modules))]))\n"
    )
    recipe = json.loads(Path(tiny.manifests["recipe"]).read_text())
    given = json.dumps([list(tiny.calls.values()), recipe, tiny.work])
    done = subprocess.run(
        [sys.executable, "-c", code], input=given, capture_output=True, text=True, check=True
    )
    found, loaded = json.loads(done.stdout)
    assert found == [tiny.manifests[stage] for stage in tiny.calls]
    assert loaded == []


def test_a_version_that_lost_its_alias_or_is_gone_is_not_done(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = tiny.calls["registration"]
    made = read_manifest(tiny.manifests["registration"]).result_as(RegistrationResult)
    client = open_client(tiny.work)
    client.delete_registered_model_alias(made.name, "champion")
    try:
        assert run_of(tiny).find_done(module, **inputs) is None
    finally:
        client.set_registered_model_alias(made.name, "champion", made.version)
    assert run_of(tiny).find_done(module, **inputs) == tiny.manifests["registration"]
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "sqlite:////nowhere/at/all.db")
    assert run_of(tiny).find_done(module, **inputs) is None
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://127.0.0.1:9")
    assert run_of(tiny).find_done(module, **inputs) is None


def test_with_dropout_a_training_is_looked_up_with_the_processes_it_would_have(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tiny, {"model": {"hidden_dropout_prob": 0.1}})
    examples = tiny.manifests["examples"]
    of_two, *_ = pretrain._plan(run.recipe.model, run.recipe.training, examples, "", 2)
    made = Path(of_two.folder(str(tmp_path)), "manifest.json")
    made.parent.mkdir(parents=True)
    made.write_bytes(sealed({}))
    run = replace(run, work=str(tmp_path))
    inputs = {"examples": examples, "task_folder": ""}
    assert run.find_done("albert_core.training.pretrain", **inputs) is None
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "2")
    assert run.find_done("albert_core.training.pretrain", **inputs) == str(made)
