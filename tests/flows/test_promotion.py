"""Through the flow, with the real registry: who is promoted, who is not, and back again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from albert_core.config import RegistrySettings
from albert_core.conversion.model_files import model_digest
from albert_core.registry import register
from albert_core.stage.manifest import read_manifest
from albert_core.stage.results import RegistrationResult
from albert_core.tracking.server import open_client
from flows import pretrain_albert
from flows.commands.main import main
from flows.recipe import RecipeRun
from tests.albert_core.made_scores import finetuned, pretrained, scores_of, write_stage

NAME = "albert-tiny"
pytestmark = pytest.mark.usefixtures("prefect_server")


class Stages:
    """The registry's stage is real; what comes before it is made in no time."""

    def __init__(self, work: str) -> None:
        self.work, self.seed = work, 0
        self.accuracy: dict[str, float] = {}
        """By the model's digest."""
        self.seeds: list[list[int]] = []
        """Of the fine-tunings of each model that was scored."""

    def next_model(self, accuracy: float) -> None:
        self.seed += 1
        folder = read_manifest(pretrained(self.work, self.seed))
        self.accuracy[model_digest(f"{self.work}/pretraining/{folder.key}/model")] = accuracy

    def run_stage(self, module: str, run: RecipeRun, environment: Any = None, **inputs: str) -> str:
        stage = module.rpartition(".")[2]
        if stage == "pretrain":
            return pretrained(self.work, self.seed)
        if stage == "finetune":
            folder = inputs["model_folder"]
            accuracy = self.accuracy[model_digest(folder)] + 0.005 * (int(inputs["seed"]) % 2)
            return finetuned(self.work, folder, inputs["task"], accuracy, int(inputs["seed"]))
        if stage == "tabulate":
            uris = json.loads(inputs["finetunings"])
            self.seeds.append([read_manifest(uri).settings["seed"] for uri in uris])
            return scores_of(self.work, uris)
        if stage == "register":
            return register.run(RegistrySettings(model_name=NAME), work=self.work, **inputs)
        names = {"clean_corpus": "corpus", "train_vocab": "vocab", "make_examples": "examples"}
        return write_stage(self.work, names[stage])


@pytest.fixture
def stages(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stages:
    made = Stages(f"{tmp_path}/work")
    (tmp_path / "work").mkdir()
    shutil.copy(empty_database, made.work)
    monkeypatch.setattr("flows.stage_task.run_stage", made.run_stage)
    monkeypatch.setattr(pretrain_albert, "report", lambda run, **made: made["registration"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    for split in ("train", "dev"):
        file = tmp_path / "tasks" / "GLUE" / "RTE" / f"{split}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    return made


def run_flow(stages: Stages, tasks: Path) -> RegistrationResult:
    settings = [f"evaluation.task_folder={tasks}", "evaluation.num_seeds=3"]
    uri = pretrain_albert.pretrain_albert("tiny", work=stages.work, overrides=settings)
    return read_manifest(uri).result_as(RegistrationResult)


def aliases(work: str) -> dict[str, str]:
    found = open_client(work).get_registered_model(NAME).aliases
    return {name: str(version) for name, version in found.items()}


def test_a_better_model_is_promoted_a_worse_and_an_equal_one_are_not_and_there_is_a_way_back(
    stages: Stages, tmp_path: Path
) -> None:
    verdicts = []
    for accuracy in (0.70, 0.80, 0.60, 0.80):
        stages.next_model(accuracy)
        verdicts.append(run_flow(stages, tmp_path / "tasks").verdict)
    assert verdicts == ["first", "promoted", "refused", "refused"]
    # A champion is scored with seeds that no other comparison has.
    assert len({tuple(seeds) for seeds in stages.seeds}) == 1 + 3
    assert aliases(stages.work) == {"champion": "2", "previous": "1", "candidate": "4"}
    assert main(["rollback", NAME, f"--work={stages.work}", "--reason=a test"]) == 0
    assert aliases(stages.work) == {"champion": "1", "previous": "2", "candidate": "4"}
