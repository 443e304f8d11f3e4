"""Fine-tuning a tiny model on a task that can be learned."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from mlflow import MlflowClient

from albert_core import finetuning as stage
from albert_core.config import FinetuningSettings
from albert_core.contract import storage
from albert_core.contract.arrow_files import read_arrow
from albert_core.contract.errors import ConfigError, IntegrityError, TaskError, TrainingError
from albert_core.contract.manifest import Manifest, check_shard, read_manifest
from albert_core.contract.records import CLS, SEP
from albert_core.finetuning import pack_texts, rows_of_update
from albert_core.metrics import matthews
from albert_core.tasks.glue import LabelledTexts
from albert_core.tracking import open_client
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

LABEL_WORDS = ("bado kelu", "vowa zati")


@pytest.fixture(scope="module", autouse=True)
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        store = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
        yield


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("pretraining") / "model")
    save_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("task")
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


@pytest.fixture(scope="module")
def finished(
    model_folder: str, task_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Manifest, str]:
    work = str(tmp_path_factory.mktemp("work"))
    uri = stage.run(settings(), model_folder, task_folder, work=work)
    return read_manifest(uri), work


def read_predictions(manifest: Manifest, work: str) -> pa.Table:
    folder = f"{work}/finetuning/{manifest.key}"
    (shard,) = manifest.shards_of("predictions")
    check_shard(shard, folder)
    return read_arrow(f"{folder}/{shard.path}")


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
    rows = read_predictions(*finished).to_pandas()
    assert rows["row"].tolist() == list(range(60))
    assert rows["label"].tolist() == [0, 1] * 30
    assert ((rows["score"] > 0.5) == (rows["prediction"] == 1)).all()
    score = matthews(rows["label"].to_numpy(), rows["prediction"].to_numpy())
    assert score == finished[0].facts["score"]


def test_the_run_in_mlflow_has_the_curves(finished: tuple[Manifest, str]) -> None:
    manifest, work = finished
    client: MlflowClient = open_client(work)
    run = client.get_run(manifest.facts["mlflow_run_id"])
    assert run.info.run_name == "finetuning-cola"
    assert run.info.status == "FINISHED"
    assert run.data.tags["model_digest"] == manifest.inputs["model"]
    assert run.data.params["finetuning.num_steps"] == "60"
    points = client.get_metric_history(run.info.run_id, "dev/matthews")
    assert [point.step for point in points] == [20, 40, 60]
    names = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert names == ["manifest.json", "predictions.arrow"]


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
        again = stage.run(settings(), str(tmp_path), f"{task_folder}/CoLA", work=work)
    assert again.endswith(f"{manifest.key}/manifest.json")
    assert "finetuning: done already" in caplog.text


def test_two_runs_end_with_the_same_bytes(
    model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    def content(work: Path) -> str:
        few = settings(num_steps=8, evaluation_steps=3)
        torch.rand(3)  # whatever was drawn before
        return read_manifest(stage.run(few, model_folder, task_folder, work=str(work))).content

    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_the_manifests_of_its_inputs_are_found(task_folder: str, tmp_path: Path) -> None:
    save_tiny_model(f"{tmp_path}/pretraining/abc/model", seed=1)
    model_manifest = f"{tmp_path}/pretraining/abc/manifest.json"
    storage.write_bytes(model_manifest, b"{}")
    few = settings(num_steps=1, warmup_steps=0)
    uri = stage.run(few, f"{tmp_path}/pretraining/abc/model", task_folder, work=f"{tmp_path}/w")
    assert read_manifest(uri).input_manifests == {"pretraining": model_manifest}


def test_a_progress_line_says_how_it_goes_and_how_long_it_takes(
    model_folder: str, task_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = settings(num_steps=4, warmup_steps=0, evaluation_steps=2)
    with caplog.at_level(logging.INFO):
        stage.run(few, model_folder, task_folder, work=str(tmp_path))
    lines = [r.getMessage() for r in caplog.records if "step 2/4" in r.getMessage()]
    assert len(lines) == 1
    assert "matthews" in lines[0]
    assert lines[0].endswith("0:00 left")


def test_a_loss_that_is_not_finite_ends_it(
    model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    few = settings(num_steps=8, warmup_steps=0, evaluation_steps=4, learning_rate=1e30)
    with pytest.raises(TrainingError, match=r"by step 4. Lower finetuning\.learning_rate"):
        stage.run(few, model_folder, task_folder, work=str(tmp_path))
    assert not list(tmp_path.glob("finetuning/*/manifest.json"))
    (run_id,) = tmp_path.glob("finetuning/*/mlflow_run_id")
    client = open_client(str(tmp_path))
    assert client.get_run(run_id.read_text()).info.status == "FAILED"


def test_a_model_with_too_few_positions_is_refused(
    model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    long = settings(max_seq_length=MAX_POSITIONS + 1)
    with pytest.raises(ConfigError, match=f"has {MAX_POSITIONS} positions"):
        stage.run(long, model_folder, task_folder, work=str(tmp_path))


def test_a_missing_file_is_said(model_folder: str, task_folder: str, tmp_path: Path) -> None:
    work = str(tmp_path / "work")
    with pytest.raises(IntegrityError, match=r"config\.json is missing"):
        stage.run(settings(), str(tmp_path), task_folder, work=work)
    with pytest.raises(TaskError, match=r"SST-2/train\.tsv is missing"):
        stage.run(settings(task="sst-2"), model_folder, task_folder, work=work)


def test_an_epoch_sees_every_row_once_and_the_next_follows_without_a_gap() -> None:
    seen = np.concatenate([rows_of_update(step, 4, 10, seed=1) for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()
    assert rows_of_update(2, 4, 10, seed=1).tolist() == seen[8:12].tolist()
    assert rows_of_update(2, 4, 10, seed=2).tolist() != seen[8:12].tolist()


def test_a_long_text_loses_its_tail_and_the_pieces_add_up() -> None:
    texts = LabelledTexts(["bado", "bado " * 50], np.array([0, 1]))
    whole = tiny_vocab().encode(texts.texts)
    packed = pack_texts(texts, "dev", tiny_vocab(), max_seq_length=16)
    assert packed.sequences[0] == [CLS, *whole[0], SEP]
    assert packed.sequences[1] == [CLS, *whole[1][:14], SEP]
    assert packed.pieces.what == "dev pieces"
    assert packed.pieces.dropped == {"too_long": len(whole[1]) - 14}


def test_a_batch_is_padded_to_its_longest_and_masked_only_then() -> None:
    texts = LabelledTexts(["bado kelu", "bado", "bado"], np.array([0, 1, 0]))
    packed = pack_texts(texts, "dev", tiny_vocab(), max_seq_length=16)
    ids, mask = packed.batch(np.array([1, 0]), torch.device("cpu"))
    assert mask is not None
    assert ids.shape == mask.shape == (2, len(packed.sequences[0]))
    assert mask.sum(dim=1).tolist() == [len(packed.sequences[1]), len(packed.sequences[0])]
    assert packed.batch(np.array([1, 2]), torch.device("cpu"))[1] is None
