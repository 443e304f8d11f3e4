import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import albert_core
from albert_core.contract import storage
from albert_core.contract.errors import TaskError
from flows import evaluate_albert
from flows.evaluate_albert import newest_task_folder
from flows.stage_task import RecipeRun
from tests.flows.made_manifests import made_manifest


def write_manifest(stage: str, work: str) -> str:
    manifest = made_manifest(stage)
    uri = storage.join(work, stage, manifest.key, "manifest.json")
    storage.write_bytes(uri, manifest.model_dump_json().encode())
    return uri


@pytest.mark.usefixtures("prefect_server")
def test_a_registered_model_is_scored_on_the_newest_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = str(tmp_path)
    asked: list[dict[str, str]] = []

    def run_stage(module: str, run: RecipeRun, **inputs: str) -> str:
        asked.append(inputs)
        return write_manifest("finetuning", run.work)

    registry = SimpleNamespace(model_folder_of=lambda uri, work: f"{work}/found/{uri[8:]}")
    monkeypatch.setitem(sys.modules, "albert_core.model_versions", registry)
    monkeypatch.setattr(albert_core, "model_versions", registry, raising=False)
    monkeypatch.setattr(evaluate_albert, "run_stage", run_stage)
    write_manifest("task", work)

    scores = evaluate_albert.evaluate_albert("models:/albert-tiny@champion", work=work)

    assert scores == {"matthews": 0.125, "accuracy": 0.5625}
    task_folder = f"{work}/task/0123456789abcdef/CoLA"
    assert asked == [
        {"model_folder": f"{work}/found/albert-tiny@champion", "task_folder": task_folder}
    ]


def test_without_a_generated_task_one_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no generated task: give task_folder"):
        newest_task_folder(str(tmp_path))
