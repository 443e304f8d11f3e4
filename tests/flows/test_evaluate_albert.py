import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from albert_core import registry as registry_room
from albert_core.stage import storage
from albert_core.stage.errors import TaskError
from flows import evaluate_albert, stage_task
from flows.done_before import RecipeRun
from flows.evaluate_albert import newest_task_folder
from tests.flows.made_manifests import made_manifest

pytestmark = pytest.mark.usefixtures("prefect_server")


class FakeStages:
    """Stands for all stages: writes manifests and remembers what was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []

    def run_stage(self, module: str, run: RecipeRun, environment: Any = None, **inputs: str) -> str:
        stage = module.rpartition(".")[2]
        self.calls.append((stage, inputs))
        key = "-".join([stage, inputs.get("task", ""), inputs.get("seed", "")])
        uri = storage.join(run.work, stage, key, "manifest.json")
        facts = {"text": "the table", "page": "scores.html", "model": "tiny"}
        manifest = made_manifest("finetuning", {"model_folder": "model"} | facts)
        storage.write_bytes(uri, manifest.model_dump_json().encode())
        storage.write_bytes(f"{uri.rpartition('/')[0]}/scores.md", b"# Scores")
        return uri

    def of(self, stage: str) -> list[dict[str, str]]:
        return [inputs for name, inputs in self.calls if name == stage]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> FakeStages:
    fake = FakeStages()
    monkeypatch.setattr(evaluate_albert, "run_stage", fake.run_stage)
    monkeypatch.setattr(stage_task, "begin_tracking", lambda *_: None)
    versions = SimpleNamespace(model_folder_of=lambda uri, work: f"/found/{uri[8:]}")
    monkeypatch.setitem(sys.modules, "albert_core.registry.versions", versions)
    monkeypatch.setattr(registry_room, "versions", versions, raising=False)
    return fake


@pytest.fixture
def task_folder(tmp_path: Path) -> str:
    """A folder of which only the names count."""
    for name in ("CoLA", "RTE", "MNLI"):
        dev = "dev_matched" if name == "MNLI" else "dev"
        for split in ("train", dev):
            storage.write_bytes(f"{tmp_path}/tasks/GLUE/{name}/{split}.tsv", b"")
    return f"{tmp_path}/tasks"


def test_each_task_that_is_there_is_done_with_each_seed_and_the_rest_is_named(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    work = f"{tmp_path}/work"
    text = evaluate_albert.evaluate_albert(
        "models:/albert-tiny@champion", task_folder, seeds=2, work=work
    )
    assert text.startswith("the table\n")
    assert f"{work}/tabulate/tabulate--/scores.html" in text
    finetunings = stages.of("finetune")
    assert [(each["task"], each["seed"]) for each in finetunings] == [
        (task, seed) for task in ("mnli", "cola", "rte") for seed in ("12345", "12346")
    ]
    assert {each["model_folder"] for each in finetunings} == {"/found/albert-tiny@champion"}
    assert {each["task_folder"] for each in finetunings} == {task_folder}
    (scoring,) = stages.of("tabulate")
    assert scoring["model"] == "albert-tiny@champion"
    assert len(json.loads(scoring["finetunings"])) == 6
    assert scoring["contamination"] == ""
    missing = json.loads(scoring["missing"])
    assert {"race", "sst-2", "squad-1.1"} <= missing.keys()
    assert not {"mnli", "cola", "rte"} & missing.keys()


def test_what_starts_from_mnli_starts_from_the_run_of_the_same_seed(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    work = f"{tmp_path}/work"
    evaluate_albert.evaluate_albert(
        f"{tmp_path}/some/model",
        task_folder,
        tasks=["rte"],
        seeds=2,
        work=work,
        overrides=['evaluation.from_mnli=["rte"]'],
    )
    assert [(each["task"], each["model_folder"]) for each in stages.of("finetune")] == [
        ("mnli", f"{tmp_path}/some/model"),
        ("mnli", f"{tmp_path}/some/model"),
        ("rte", f"{work}/finetune/finetune-mnli-12345/model"),
        ("rte", f"{work}/finetune/finetune-mnli-12346/model"),
    ]
    assert stages.of("tabulate")[0]["model"] == "some/model"


def test_with_the_corpus_known_the_overlap_is_looked_for(
    stages: FakeStages, task_folder: str, tmp_path: Path
) -> None:
    evaluate_albert.evaluate_albert(
        "/m", task_folder, ["cola"], 1, work=f"{tmp_path}/work", corpus="/corpus/manifest.json"
    )
    assert [name for name, _ in stages.calls] == ["finetune", "contamination", "tabulate"]
    assert stages.of("contamination") == [
        {"corpus": "/corpus/manifest.json", "task_folder": task_folder}
    ]
    assert stages.of("tabulate")[0]["contamination"].endswith("contamination--/manifest.json")


def test_several_run_at_a_time_where_the_environment_says_so(
    stages: FakeStages, task_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_FINETUNING_PROCESSES", "2")
    evaluate_albert.evaluate_albert("/m", task_folder, ["cola", "rte"], 2, work=f"{tmp_path}/w")
    found = json.loads(stages.of("tabulate")[0]["finetunings"])
    assert [Path(uri).parent.name for uri in found] == [
        f"finetune-{task}-{seed}" for task in ("cola", "rte") for seed in (12345, 12346)
    ]


def test_without_a_folder_the_task_generated_last_is_done(
    stages: FakeStages, tmp_path: Path
) -> None:
    manifest = made_manifest("task")
    folder = f"{tmp_path}/task/{manifest.key}"
    storage.write_bytes(f"{folder}/manifest.json", manifest.model_dump_json().encode())
    for split in ("train", "dev"):
        storage.write_bytes(f"{folder}/CoLA/{split}.tsv", b"")
    evaluate_albert.evaluate_albert("/m", seeds=1, work=str(tmp_path))
    (finetuning,) = stages.of("finetune")
    assert (finetuning["task"], finetuning["task_folder"]) == ("cola", f"{folder}/CoLA")
    assert json.loads(stages.of("tabulate")[0]["missing"]) == {}


def test_without_a_generated_task_a_folder_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no generated task: give task_folder"):
        newest_task_folder(str(tmp_path))
