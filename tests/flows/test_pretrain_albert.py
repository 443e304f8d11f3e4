import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_core import registry as registry_room
from albert_core.stage import storage
from flows import evaluate_albert, pretrain_albert, refresh_corpus, stage_task
from flows.done_before import RecipeRun
from tests.flows.made_manifests import made_manifest

STAGE_OF = {
    "pipelines.clean_corpus": "corpus",
    "pipelines.train_vocab": "vocab",
    "pipelines.make_examples": "examples",
    "pipelines.make_task": "task",
    "albert_core.training.pretrain": "pretraining",
    "albert_core.finetuning.finetune": "finetuning",
    "albert_core.scores.tabulate": "scores",
    "albert_core.registry.register": "registration",
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
        if stage == "task":
            for split in ("train", "dev"):
                storage.write_bytes(f"{uri.rpartition('/')[0]}/CoLA/{split}.tsv", b"")
        return uri

    def of(self, stage: str) -> list[dict[str, str]]:
        return [inputs for name, inputs in self.calls if name == stage]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    for module in (pretrain_albert, refresh_corpus, evaluate_albert):
        monkeypatch.setattr(module, "run_stage", fake.run_stage)
    monkeypatch.setattr(pretrain_albert, "find_stage", lambda *_, **__: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(stage_task, "begin_tracking", lambda *_: None)
    return fake


def set_champion(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    registry = SimpleNamespace(
        champion_to_beat=lambda name, pretraining, work: address,
        model_folder_of=lambda model_uri, work: "/elsewhere/champion",
    )
    monkeypatch.setitem(sys.modules, "albert_core.registry.versions", registry)
    monkeypatch.setattr(registry_room, "versions", registry, raising=False)


def at(stage: str, *rest: str) -> str:
    return "/".join((stage, "0123456789abcdef", *(rest or ("manifest.json",))))


@pytest.mark.usefixtures("prefect_server")
def test_the_whole_way_goes_from_stage_to_stage(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_champion(monkeypatch, "")
    text = pretrain_albert.pretrain_albert(
        "tiny", work=str(tmp_path), overrides=["evaluation.num_seeds=2"]
    )
    made = {stage: at(stage) for stage in STAGE_OF.values()}
    assert stages.calls[:5] == [
        ("corpus", {}),
        ("vocab", {"corpus": made["corpus"]}),
        ("examples", {"corpus": made["corpus"], "vocab": made["vocab"]}),
        ("task", {"examples": made["examples"], "corpus": made["corpus"]}),
        ("pretraining", {"examples": made["examples"]}),
    ]
    assert [stage for stage, _ in stages.calls[5:]] == ["finetuning"] * 2 + [
        "scores",
        "registration",
    ]
    assert stages.of("finetuning") == [
        {
            "model_folder": at("pretraining", "model"),
            "task_folder": at("task", "CoLA"),
            "task": "cola",
            "seed": seed,
        }
        for seed in ("12345", "12346")
    ]
    assert stages.of("scores")[0]["model"] == "0123456789abcdef/model"
    assert stages.of("registration") == [
        {"pretraining": made["pretraining"], "scores": made["scores"], "champion_scores": ""}
    ]
    assert text.startswith("tiny: albert-tiny, version 3")
    assert f"export MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/mlflow.db" in text


@pytest.mark.usefixtures("prefect_server")
def test_the_champion_is_scored_on_the_same_tasks_with_the_same_seeds(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_champion(monkeypatch, "models:/albert-tiny/2")
    pretrain_albert.pretrain_albert("tiny", work=str(tmp_path))
    ours, theirs = stages.of("finetuning")[:2], stages.of("finetuning")[2:]
    assert {each["model_folder"] for each in theirs} == {"/elsewhere/champion"}
    assert [each | {"model_folder": ""} for each in theirs] == [
        each | {"model_folder": ""} for each in ours
    ]
    assert [each["model"] for each in stages.of("scores")][1] == "albert-tiny/2"
    assert stages.of("registration")[0]["champion_scores"] == at("scores")


@pytest.mark.usefixtures("prefect_server")
def test_the_recipes_own_tasks_go_before_the_generated_one(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_champion(monkeypatch, "")
    for split in ("train", "dev"):
        storage.write_bytes(f"{tmp_path}/tasks/GLUE/RTE/{split}.tsv", b"")
    settings = [f"evaluation.task_folder={tmp_path}/tasks", "evaluation.num_seeds=1"]
    pretrain_albert.pretrain_albert("tiny", work=f"{tmp_path}/work", overrides=settings)
    assert stages.of("task") == []
    assert [each["task"] for each in stages.of("finetuning")] == ["rte"]
    assert stages.of("finetuning")[0]["task_folder"] == f"{tmp_path}/tasks"


@pytest.mark.usefixtures("prefect_server")
def test_a_refresh_ends_with_the_examples_and_what_was_removed(
    stages: FakeStages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.affected_versions.name_affected_versions", lambda *_: [])
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
