import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_core import model_registry
from albert_core.contract import storage
from flows import evaluate_albert, pretrain_albert, refresh_corpus
from flows.stage_task import RecipeRun
from tests.flows.made_manifests import made_manifest

STAGE_OF = {
    "pipelines.clean_corpus": "corpus",
    "pipelines.train_vocab": "vocab",
    "pipelines.make_examples": "examples",
    "pipelines.make_task": "task",
    "albert_core.training": "pretraining",
    "albert_core.finetuning": "finetuning",
    "albert_core.registry": "registration",
}


class FakeStages:
    """Stands for all stages: writes made manifests and remembers what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.receipt = "none"

    def run_stage(self, module: str, run: RecipeRun, environment: Any = None, **inputs: str) -> str:
        if module == "pipelines.removal":
            self.calls.append(("removal", {}))
            return self.receipt
        stage = STAGE_OF[module]
        self.calls.append((stage, {n: v.removeprefix(f"{run.work}/") for n, v in inputs.items()}))
        manifest = made_manifest(stage)
        uri = storage.join(run.work, stage, manifest.key, "manifest.json")
        storage.write_bytes(uri, manifest.model_dump_json().encode())
        return uri


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    for module in (pretrain_albert, refresh_corpus, evaluate_albert):
        monkeypatch.setattr(module, "run_stage", fake.run_stage)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return fake


def set_champion(monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    registry = SimpleNamespace(champion_folder=lambda name, work: folder)
    monkeypatch.setitem(sys.modules, "albert_core.model_registry.model_versions", registry)
    monkeypatch.setattr(model_registry, "model_versions", registry, raising=False)


def at(stage: str, *rest: str) -> str:
    return "/".join((stage, "0123456789abcdef", *(rest or ("manifest.json",))))


@pytest.mark.usefixtures("prefect_server")
def test_the_whole_way_goes_from_stage_to_stage(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_champion(monkeypatch, None)
    text = pretrain_albert.pretrain_albert("tiny", work=str(tmp_path))
    assert stages.calls == [
        ("corpus", {}),
        ("vocab", {"corpus": at("corpus")}),
        ("examples", {"corpus": at("corpus"), "vocab": at("vocab")}),
        ("task", {"examples": at("examples"), "corpus": at("corpus")}),
        ("pretraining", {"examples": at("examples")}),
        (
            "finetuning",
            {
                "model_folder": at("pretraining", "model"),
                "task_folder": at("task", "CoLA"),
                "task": "cola",
                "seed": "12345",
            },
        ),
        (
            "registration",
            {
                "pretraining": at("pretraining"),
                "finetuning": at("finetuning"),
                "champion_finetuning": "",
            },
        ),
    ]
    assert text.startswith("tiny: albert-tiny, version 3")
    assert f"export MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db" in text


@pytest.mark.usefixtures("prefect_server")
def test_the_champion_is_scored_on_the_same_task(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_champion(monkeypatch, "/elsewhere/champion")
    pretrain_albert.pretrain_albert("tiny", work=str(tmp_path))
    assert stages.calls[-2] == (
        "finetuning",
        {
            "model_folder": "/elsewhere/champion",
            "task_folder": at("task", "CoLA"),
            "task": "cola",
            "seed": "12345",
        },
    )
    assert stages.calls[-1][1]["champion_finetuning"] == at("finetuning")


@pytest.mark.usefixtures("prefect_server")
def test_a_refresh_ends_with_the_examples_and_what_was_removed(
    stages: FakeStages, tmp_path: Path
) -> None:
    text = refresh_corpus.refresh_corpus("tiny", work=str(tmp_path))
    assert [stage for stage, _ in stages.calls] == ["corpus", "vocab", "examples", "removal"]
    assert str(tmp_path / at("examples")) in text
    assert "documents read    " in text
    assert "No document of an earlier corpus is gone." in text
    receipt = tmp_path / "removal-1.json"
    receipt.write_text('{"registered_versions": {"made_of_them": ["models:/m/1 @champion"]}}')
    stages.receipt = str(receipt)
    text = refresh_corpus.refresh_corpus("tiny", work=str(tmp_path))
    assert f"the receipt is {receipt}" in text
    assert "Registered versions made of them: models:/m/1 @champion." in text
