"""Fine-tuning a tiny model on a task that can be learned."""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from mlflow import MlflowClient

from albert_core.config import EvaluationSettings, FinetuningSettings
from albert_core.conversion.model_folder import load_encoder
from albert_core.finetuning import finetune as stage
from albert_core.finetuning.loop import Finetuner
from albert_core.metrics import METRICS
from albert_core.scores.table import Run, build_table, score_cell
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError, TaskError, TrainingError
from albert_core.stage.manifest import Manifest, check_shard, read_manifest
from albert_core.tasks.catalogue import SCORED_WITH, TASKS
from albert_core.text.arrow_files import read_arrow
from albert_core.tracking.server import open_client
from tests.albert_core.tasks.task_files import (
    squad_question,
    write,
    write_glue,
    write_race,
    write_squad,
)
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_sentences

pytestmark = pytest.mark.usefixtures("one_tracking_database")
LABEL_WORDS = ("bado kelu", "vowa zati")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("pretraining") / "model")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("task")
    test = "".join(f"{row}\tbado kelu\n" for row in range(7))
    storage.write_bytes(f"{folder}/CoLA/test.tsv", f"index\tsentence\n{test}".encode())
    for split, num_rows in {"train": 200, "dev": 60}.items():
        rows = (
            f"x\t{row % 2}\t\t{LABEL_WORDS[row % 2]} {' '.join(sentence.split()[: row % 5])}\n"
            for row, sentence in enumerate(tiny_sentences(num_rows, seed=num_rows))
        )
        storage.write_bytes(f"{folder}/CoLA/{split}.tsv", "".join(rows).encode())
    return str(folder)


def settings(**changes: Any) -> FinetuningSettings:
    small: dict[str, Any] = {
        "num_steps": 60,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "warmup_steps": 5,
        "max_seq_length": 32,
        "evaluation_steps": 20,
    }
    return FinetuningSettings(**(small | changes))


def finetune(
    finetuning: FinetuningSettings,
    model_folder: str,
    task_folder: str,
    work: str,
    task: str = "cola",
    seed: int = 1,
) -> str:
    """Run the stage; return its manifest."""
    return stage.run(
        finetuning, EvaluationSettings(), model_folder, task_folder, task, str(seed), work
    )


@pytest.fixture(scope="module")
def finished(
    model_folder: str, task_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Manifest, str]:
    work = str(tmp_path_factory.mktemp("work"))
    uri = finetune(settings(), model_folder, task_folder, work)
    return read_manifest(uri), work


def read_predictions(manifest: Manifest, work: str, split: str) -> pa.Table:
    folder = f"{work}/finetuning/{manifest.key}"
    path = manifest.facts["predictions"][split]
    (shard,) = [shard for shard in manifest.shards if shard.path == path]
    check_shard(shard, folder)
    return read_arrow(f"{folder}/{path}")


def test_a_task_that_can_be_learned_is_learned(finished: tuple[Manifest, str]) -> None:
    facts = finished[0].facts
    assert facts["task"] == "cola"
    assert facts["metric"] == "matthews"
    assert facts["score"] > 0.9
    assert facts["interval"][0] <= facts["score"] <= facts["interval"][1]
    assert list(facts["scores"]) == ["matthews", "accuracy"]
    assert facts["num_examples"] == 60
    assert facts["best_step"] in (20, 40, 60)


def test_the_predictions_give_the_score(finished: tuple[Manifest, str]) -> None:
    rows = read_predictions(*finished, "dev").to_pandas()
    assert rows["target"].tolist() == ["0", "1"] * 30
    score = METRICS["matthews"](
        rows["target"].astype(int).to_numpy(), rows["prediction"].astype(int).to_numpy()
    )
    assert score == finished[0].facts["score"]


def test_the_test_set_is_predicted_in_the_servers_format(finished: tuple[Manifest, str]) -> None:
    manifest, work = finished
    assert read_predictions(manifest, work, "test").num_rows == 7
    assert manifest.facts["submission"] == ["submission/CoLA.dev.tsv", "submission/CoLA.tsv"]
    uri = f"{work}/finetuning/{manifest.key}/submission/CoLA.tsv"
    lines = storage.read_bytes(uri).decode().splitlines()
    assert lines[:2] == ["index\tprediction", "0\t0"]
    assert len(lines) == 8


def test_the_fine_tuned_model_can_be_fine_tuned_again(
    finished: tuple[Manifest, str], task_folder: str, tmp_path: Path
) -> None:
    manifest, work = finished
    folder = f"{work}/finetuning/{manifest.key}/{manifest.facts['model_folder']}"
    few = settings(num_steps=1, warmup_steps=0)
    again = read_manifest(finetune(few, folder, task_folder, str(tmp_path)))
    assert again.facts["num_steps"] == 1
    assert load_encoder(folder)[0].settings.hidden_dropout_prob == 0


def test_the_run_in_mlflow_has_the_curves(finished: tuple[Manifest, str]) -> None:
    manifest, work = finished
    client: MlflowClient = open_client(work)
    run = client.get_run(manifest.facts["mlflow_run_id"])
    assert run.info.run_name == "finetuning-cola-1"
    assert run.info.status == "FINISHED"
    assert run.data.tags["model_digest"] == manifest.inputs["model"]
    assert run.data.params["used.num_steps"] == "60"
    points = client.get_metric_history(run.info.run_id, "dev/matthews")
    assert [point.step for point in points] == [20, 40, 60]
    names = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert names == ["manifest.json", "predictions"]


def test_the_same_again_is_done_already(
    finished: tuple[Manifest, str],
    model_folder: str,
    task_folder: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manifest, work = finished
    for name in storage.list_folder(model_folder):  # a copy of the model is the same model
        copy = tmp_path / Path(name["name"]).name
        copy.write_bytes(storage.read_bytes(name["name"]))
    with caplog.at_level(logging.INFO):
        again = finetune(settings(), str(tmp_path), f"{task_folder}/CoLA", work)
    assert again.endswith(f"{manifest.key}/manifest.json")
    assert "finetuning: done already" in caplog.text


def test_the_manifests_of_its_inputs_are_found(task_folder: str, tmp_path: Path) -> None:
    save_tiny_model(f"{tmp_path}/pretraining/abc/model", seed=1)
    model_manifest = f"{tmp_path}/pretraining/abc/manifest.json"
    storage.write_bytes(model_manifest, b"{}")
    few = settings(num_steps=1, warmup_steps=0)
    uri = finetune(few, f"{tmp_path}/pretraining/abc/model", task_folder, f"{tmp_path}/w")
    assert read_manifest(uri).input_manifests == {"pretraining": model_manifest}


def test_a_progress_line_says_how_it_goes_and_how_long_it_takes(
    model_folder: str, task_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = settings(num_steps=4, warmup_steps=0, evaluation_steps=2)
    with caplog.at_level(logging.INFO):
        finetune(few, model_folder, task_folder, str(tmp_path))
    lines = [r.getMessage() for r in caplog.records if "step 2/4" in r.getMessage()]
    assert len(lines) == 1
    assert "matthews" in lines[0]
    assert re.search(r"  \d+:\d\d left$", lines[0])


def test_a_loss_that_is_not_finite_ends_it(
    model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    few = settings(num_steps=8, warmup_steps=0, evaluation_steps=4, learning_rate=1e30)
    with pytest.raises(TrainingError, match=r"by step 4. Lower finetuning\.learning_rate"):
        finetune(few, model_folder, task_folder, str(tmp_path))
    assert not list(tmp_path.glob("finetuning/*/manifest.json"))
    (run_id,) = tmp_path.glob("finetuning/*/mlflow_run_id")
    client = open_client(str(tmp_path))
    assert client.get_run(run_id.read_text()).info.status == "FAILED"


def test_a_model_with_too_few_positions_is_refused(
    model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    long = settings(max_seq_length=MAX_POSITIONS + 1)
    with pytest.raises(ConfigError, match=f"has {MAX_POSITIONS} positions"):
        finetune(long, model_folder, task_folder, str(tmp_path))


def test_a_missing_file_is_said(model_folder: str, task_folder: str, tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    with pytest.raises(IntegrityError, match=r"config\.json is missing"):
        finetune(settings(), str(tmp_path), task_folder, work)
    with pytest.raises(TaskError, match="SST-2"):
        finetune(settings(), model_folder, task_folder, work, task="sst-2")


def test_a_run_that_was_killed_ends_with_the_same_bytes(
    model_folder: str, task_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = settings(num_steps=30, evaluation_steps=8, checkpoint_steps=4, encoder_dropout_prob=0.1)
    whole = read_manifest(finetune(some, model_folder, task_folder, f"{tmp_path}/whole"))
    update = Finetuner.update

    def killed(self: Finetuner) -> Any:
        if self.step == 18:
            raise KeyboardInterrupt
        return update(self)

    monkeypatch.setattr(Finetuner, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(some, model_folder, task_folder, f"{tmp_path}/killed")
    monkeypatch.setattr(Finetuner, "update", update)
    torch.rand(3)  # whatever is drawn in between
    resumed = read_manifest(finetune(some, model_folder, task_folder, f"{tmp_path}/killed"))
    assert [(s.path, s.sha256) for s in whole.shards] == [
        (s.path, s.sha256) for s in resumed.shards
    ]
    assert not list(tmp_path.glob("killed/finetuning/*/checkpoints"))


def test_other_seeds_give_other_models(model_folder: str, task_folder: str, tmp_path: Path) -> None:
    few = settings(num_steps=3, warmup_steps=0)
    manifests = [
        read_manifest(finetune(few, model_folder, task_folder, str(tmp_path), seed=seed))
        for seed in (1, 2)
    ]
    one, other = (
        next(shard.sha256 for shard in m.shards if shard.path == "model/model.safetensors")
        for m in manifests
    )
    assert one != other


@pytest.fixture(scope="module")
def all_task_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Every task of the paper, each in the layout in which it is distributed."""
    folder = tmp_path_factory.mktemp("tasks")
    write_glue(folder / "glue")
    columns = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain"
    write(
        folder / "glue/diagnostic/diagnostic-full.tsv",
        f"{columns}\tPremise\tHypothesis\tLabel\n\t\t\t\t\tA.\tB.\tneutral\n",
    )
    write_race(folder / "RACE")
    answered = squad_question("q1", ("cat", 2))
    unanswered = squad_question("q2", is_impossible=True)
    for split in ("train", "dev"):
        write_squad(folder / f"squad/{split}-v1.1.json", [answered])
        write_squad(folder / f"squad/{split}-v2.0.json", [answered, unanswered])
    return str(folder)


@pytest.mark.parametrize("task", [name for name in TASKS if name not in SCORED_WITH])
def test_every_task_is_fine_tuned_and_scored_from_its_original_layout(
    task: str, model_folder: str, all_task_files: str, tmp_path: Path
) -> None:
    few = settings(num_steps=2, warmup_steps=0, batch_size=2, max_seq_length=None)
    facts = read_manifest(
        finetune(few, model_folder, all_task_files, str(tmp_path), task=task)
    ).facts
    assert set(facts["scores"]) <= set(TASKS[task].metrics)
    assert facts["metric"] == TASKS[task].metrics[0]
    assert facts["interval"][0] <= facts["score"] <= facts["interval"][1]
    if task == "mnli":
        assert {"mnli-mm.dev", "mnli-mm.test", "ax.dev", "ax.test"} <= set(facts["predictions"])
        scores = Run.of_facts(facts).scores
        assert {"accuracy of mnli-mm", "matthews of ax"} <= set(scores)
        table = build_table("mine", [Run.of_facts(facts)])
        _, mismatched = score_cell(table.tasks["mnli"]).split("/")
        assert float(mismatched) == pytest.approx(100 * scores["accuracy of mnli-mm"], abs=0.05)


def test_race_may_have_one_of_its_two_groups_only(model_folder: str, tmp_path: Path) -> None:
    write_race(tmp_path / "RACE")
    for split in ("train", "dev"):
        shutil.rmtree(tmp_path / "RACE" / split / "middle")
    few = settings(num_steps=2, warmup_steps=0, batch_size=2)
    facts = read_manifest(
        finetune(few, model_folder, str(tmp_path), str(tmp_path / "work"), task="race")
    ).facts
    assert set(facts["scores"]) == {"accuracy", "accuracy_high"}


def test_a_dev_set_of_unanswerable_questions_alone_is_scored(
    model_folder: str, tmp_path: Path
) -> None:
    questions = [squad_question("q1", ("cat", 2)), squad_question("q2", is_impossible=True)]
    write_squad(tmp_path / "train-v2.0.json", questions)
    write_squad(tmp_path / "dev-v2.0.json", questions[1:])
    few = settings(num_steps=2, warmup_steps=0, batch_size=2)
    facts = read_manifest(
        finetune(few, model_folder, str(tmp_path), str(tmp_path / "work"), task="squad-2.0")
    ).facts
    assert facts["scores"]["f1"] == facts["constant_scores"]["f1"] == 1.0


def test_what_is_malformed_is_said_before_the_training(model_folder: str, tmp_path: Path) -> None:
    write_glue(tmp_path / "glue")
    write_race(tmp_path / "RACE")
    with (tmp_path / "glue/CoLA/test.tsv").open("a") as file:
        file.write("too\tmany\tfields\n")
    for passage in (tmp_path / "RACE/train").glob("*/*.txt"):
        values = json.loads(passage.read_text())
        del values["answers"]
        passage.write_text(json.dumps(values))
    work = str(tmp_path / "work")
    with pytest.raises(TaskError, match=r"CoLA/test.tsv, line \d+: 3 tab-separated fields"):
        finetune(settings(), model_folder, str(tmp_path), work, task="cola")
    with pytest.raises(TaskError, match=r"RACE/train/.*: the train set of 'race' has no labels"):
        finetune(settings(), model_folder, str(tmp_path), work, task="race")
    assert not list(Path(work).rglob("*checkpoint*"))


def test_a_task_without_training_data_of_its_own_is_refused_with_the_one_to_ask_for(
    model_folder: str, all_task_files: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match="predicted by a model of 'mnli'"):
        finetune(settings(), model_folder, all_task_files, str(tmp_path), task="ax")
    with pytest.raises(TaskError, match="there is no task 'cula'"):
        finetune(settings(), model_folder, all_task_files, str(tmp_path), task="cula")
