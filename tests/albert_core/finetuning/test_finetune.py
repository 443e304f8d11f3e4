"""Fine-tuning a tiny model on a task that can be learned."""

import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import Tensor, nn

from albert_core.config import (
    EvaluationSettings,
    FinetuningSettings,
    OwnTaskSettings,
    SpanSettings,
    TaskHyperparameters,
)
from albert_core.conversion.huggingface import load_encoder
from albert_core.conversion.model_files import check_model, model_digest
from albert_core.finetuning import finetune as stage
from albert_core.finetuning.finetuned_model import FinetunedModel
from albert_core.finetuning.finetuning import (
    PAPER,
    Finetuner,
    Hyperparameters,
    halves,
    hyperparameters_of,
    submission_files,
)
from albert_core.metrics import METRICS, SHARE
from albert_core.model.albert import AlbertModel
from albert_core.scores.table import build_table, estimates_of, score_cell
from albert_core.stage import results, storage
from albert_core.stage.errors import (
    AlbertError,
    ConfigError,
    IntegrityError,
    TaskError,
    TrainingError,
)
from albert_core.stage.manifest import Manifest, StagePlan, check_shard, read_manifest, shards_in
from albert_core.tasks.catalogue import TASKS
from albert_core.tasks.examples import Split, Task
from albert_core.tasks.problem import (
    TARGET,
    Head,
    Inputs,
    Outputs,
    PooledHead,
    Scored,
    Sequences,
)
from albert_core.tasks.spans import SpanProblem
from albert_core.text.arrow_files import read_arrow
from albert_core.tracking.server import open_client
from tests.albert_core.tasks import task_files
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model, tiny_settings
from tests.albert_core.tiny_vocab import tiny_sentences
from tests.made_results import made_result

pytestmark = pytest.mark.usefixtures("one_tracking_database")
LABEL_WORDS = ("bado kelu", "vowa zati")
FEW: dict[str, Any] = {"num_steps": 2, "warmup_steps": 0, "batch_size": 2}


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A manifest of a pretraining that never was."""
    plan, work = StagePlan("pretraining", {}, {}, "", {}), str(tmp_path_factory.mktemp("first"))
    save_tiny_model(f"{plan.folder(work)}/model")
    shards = shards_in(plan.folder(work), "model")
    return plan.write(work, shards, [], made_result("pretraining"))


@pytest.fixture(scope="module")
def model_folder(pretraining: str) -> str:
    return pretraining.replace("manifest.json", "model")


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("task")
    test = "".join(f"{row}\tbado kelu\n" for row in range(7))
    task_files.write(folder / "CoLA/test.tsv", f"index\tsentence\n{test}")
    for split, num_rows in {"train": 200, "dev": 60}.items():
        rows = (
            f"x\t{row % 2}\t\t{LABEL_WORDS[row % 2]} {' '.join(sentence.split()[: row % 5])}\n"
            for row, sentence in enumerate(tiny_sentences(num_rows, seed=num_rows))
        )
        task_files.write(folder / f"CoLA/{split}.tsv", "".join(rows))
    return str(folder)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> OwnTaskSettings:
    """A task of one's own: texts of two kinds, at about 4,000 and at about 6,000."""
    folder = tmp_path_factory.mktemp("prices")
    for split, num_rows in {"train": 200, "dev": 60}.items():
        rows = (
            {"text": f"{LABEL_WORDS[n % 2]} {text.split()[0]}", "label": 4000 + n % 2 * 2000 + n}
            for n, text in enumerate(tiny_sentences(num_rows, seed=num_rows))
        )
        task_files.write(folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    uris: Any = {split: f"{folder}/{split}.jsonl" for split in ("train", "dev")}
    return OwnTaskSettings(name="prices", text_columns=["text"], kind="regression", **uris)


def finetune(
    model_folder: str,
    task_folder: str,
    work: str,
    task: str = "cola",
    seed: int = 1,
    own: Sequence[OwnTaskSettings] = (),
    **changes: Any,
) -> str:
    """Run the stage; return its manifest."""
    small: dict[str, Any] = {
        "num_steps": 60,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "warmup_steps": 5,
        "max_seq_length": 32,
        "evaluation_steps": 20,
    }
    settings = FinetuningSettings(**small | changes)
    evaluation = EvaluationSettings(own_tasks=list(own))
    inputs = (settings, evaluation, model_folder, task_folder, task, str(seed))
    done = stage.stage_plan(*inputs).done(work)
    uri = stage.run(*inputs, work)
    assert done in (None, uri)
    return uri


def result_of(uri: str) -> results.FinetuningResult:
    return read_manifest(uri).result_as(results.FinetuningResult)


@pytest.fixture(scope="module")
def finished(
    model_folder: str, task_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Manifest, str]:
    work = str(tmp_path_factory.mktemp("work"))
    return read_manifest(finetune(model_folder, task_folder, work)), work


def read_predictions(manifest: Manifest, work: str, split: str) -> pa.Table:
    folder = f"{work}/finetuning/{manifest.key}"
    path = manifest.result_as(results.FinetuningResult).predictions[split]
    (shard,) = [shard for shard in manifest.shards if shard.path == path]
    check_shard(shard, folder)
    return read_arrow(f"{folder}/{path}")


def test_a_task_that_can_be_learned_is_learned_and_the_predictions_give_the_score(
    finished: tuple[Manifest, str], pretraining: str
) -> None:
    result = finished[0].result_as(results.FinetuningResult)
    assert (result.task, result.metric, result.num_examples) == ("cola", "matthews", 60)
    assert result.score.value > 0.9
    assert (result.num_clusters, result.num_choices) == (60, 3)
    assert list(result.scores) == ["matthews", "accuracy"]
    assert result.best_step in (20, 40, 60)
    rows = read_predictions(*finished, "dev").to_pandas()
    assert rows["target"].tolist() == ["0", "1"] * 30
    columns = (rows[name].astype(int).to_numpy() for name in ("target", "prediction"))
    assert METRICS["matthews"](*columns) == pytest.approx(result.score.value, abs=0.1)
    assert finished[0].input_manifests == {"pretraining": pretraining}
    accounts = [account.what for account in finished[0].accounts]
    splits = ("train", "dev", "test")
    assert accounts == [f"{split} {what}" for split in splits for what in ("rows", "pieces")]


def test_the_test_set_is_predicted_in_the_servers_format(finished: tuple[Manifest, str]) -> None:
    manifest, work = finished
    assert read_predictions(manifest, work, "test").num_rows == 7
    files = ["submission/CoLA.dev.tsv", "submission/CoLA.tsv"]
    assert [shard.path for shard in manifest.shards_of("submission")] == files
    lines = storage.read_bytes(f"{work}/finetuning/{manifest.key}/{files[1]}").decode().splitlines()
    assert lines[:2] == ["index\tprediction", "0\t0"]
    assert len(lines) == 8


def test_the_fine_tuned_model_can_be_fine_tuned_again(
    finished: tuple[Manifest, str], task_folder: str, tmp_path: Path
) -> None:
    manifest, work = finished
    model_folder = manifest.result_as(results.FinetuningResult).model_folder
    folder = f"{work}/finetuning/{manifest.key}/{model_folder}"
    again = finetune(folder, task_folder, str(tmp_path), num_steps=1, warmup_steps=0)
    assert result_of(again).num_steps == 1
    assert load_encoder(folder)[0].settings.hidden_dropout_prob == 0


def test_mlflow_has_the_curves_and_the_fine_tuned_model_with_its_score(
    finished: tuple[Manifest, str],
) -> None:
    manifest, work = finished
    client, result = open_client(work), manifest.result_as(results.FinetuningResult)
    run = client.get_run(str(result.mlflow_run_id))
    assert run.info.run_name.startswith("CoLA, seed 1: ")
    assert run.info.status == "FINISHED"
    assert run.data.tags["model_digest"] == manifest.inputs["model"]
    assert run.data.params["used.num_steps"] == "60"
    points = client.get_metric_history(run.info.run_id, "dev/matthews")
    assert [point.step for point in points] == [20, 40, 60]
    names = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert names == ["manifest.json", "predictions"]
    assert run.inputs is not None
    contexts = {each.dataset.name: each.tags[0].value for each in run.inputs.dataset_inputs}
    assert contexts == {"CoLA/train": "train", "CoLA/dev": "dev", "CoLA/test": "test"}
    assert run.outputs is not None
    [output] = run.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (model.model_type, model.name) == ("fine-tuned", "albert-cola")
    [score] = [each for each in model.metrics or () if each.key == "dev/matthews"]
    assert (score.value, score.step, score.dataset_name) == (
        result.score.value, result.best_step, "CoLA/dev"
    )  # fmt: skip


def test_the_same_again_is_done_already_also_with_a_copy_of_the_model(
    finished: tuple[Manifest, str],
    model_folder: str,
    task_folder: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manifest, work = finished
    shutil.copytree(model_folder, tmp_path / "copy")
    task_files.write(tmp_path / "manifest.json", "another program's")
    for folder in (model_folder, f"{tmp_path}/copy"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            uri = finetune(folder, f"{task_folder}/CoLA", work)
        assert uri.endswith(f"{manifest.key}/manifest.json")
        assert "finetuning: done already" in caplog.text


def test_a_look_reads_no_weights_and_a_changed_model_is_still_noticed(
    pretraining: str, task_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(pretraining).parent
    run = shutil.copytree(place, tmp_path / "pretraining" / place.name)
    folder, weights = str(run / "model"), run / "model/model.safetensors"
    copy = str(shutil.copytree(folder, tmp_path / "elsewhere"))
    whole = model_digest(copy)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "sha256_of", None)
        assert model_digest(folder) == model_digest(copy) == whole
    check_model(folder, whole)
    changed = weights.read_bytes()[:-1] + b"x"
    weights.write_bytes(changed)
    with pytest.raises(IntegrityError, match="changed after it was written"):
        finetune(folder, task_folder, f"{tmp_path}/work", **FEW)
    with pytest.raises(IntegrityError, match="does not contain the model that was found there"):
        check_model(folder, whole)  # as of another fine-tuning, once the first set it aside
    Path(copy, "model.safetensors").write_bytes(changed + b"x")
    assert model_digest(copy) != whole


@pytest.mark.parametrize(
    ("num_steps", "rate", "message"),
    [
        (4, 1e30, r"by step 4. Lower finetuning\.learning_rate"),
        # The loss of the only update is finite; the weights after it are not.
        (1, 1e38, "logits for dev of fine-tuning on cola is nan by step"),
    ],
)
def test_a_loss_or_prediction_that_is_not_finite_ends_it(
    num_steps: int, rate: float, message: str, model_folder: str, task_folder: str, tmp_path: Path
) -> None:
    wanted: dict[str, Any] = {"num_steps": num_steps, "warmup_steps": 0, "learning_rate": rate}
    with pytest.raises(TrainingError, match=message):
        finetune(model_folder, task_folder, str(tmp_path), **wanted)
    assert not list(tmp_path.glob("finetuning/*/manifest.json"))
    (run_id,) = tmp_path.glob("finetuning/*/mlflow_run_id")
    assert open_client(str(tmp_path)).get_run(run_id.read_text()).info.status == "FAILED"


def test_numbers_far_from_0_are_learned_and_the_saved_model_gives_them_too(
    prices: OwnTaskSettings, model_folder: str, tmp_path: Path
) -> None:
    uri = finetune(model_folder, "", str(tmp_path), "prices", own=[prices])
    manifest = read_manifest(uri)
    assert manifest.result_as(results.FinetuningResult).score.value > 0.95
    rows = read_predictions(manifest, str(tmp_path), "dev").to_pandas()
    assert (rows["prediction"] - rows["target"]).abs().mean() < 300
    texts = [row["text"] for row in map(json.loads, Path(prices.dev).read_text().splitlines())]
    folder = results.model_folder_of(uri)
    found = FinetunedModel(folder).predict([{"text": text} for text in texts])
    assert [one["value"] for one in found] == pytest.approx(rows["prediction"].tolist(), abs=0.01)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        value = model(**tokenizer(texts[0], return_tensors="pt")).logits.item()
    assert value == pytest.approx(rows["prediction"][0], abs=0.01)


def test_a_dev_set_that_is_the_training_set_is_told(
    prices: OwnTaskSettings, model_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = prices.model_copy(update={"dev": prices.train})
    finetune(model_folder, "", str(tmp_path), "prices", own=[own], **FEW)
    assert "prices: 200 of 200 examples of dev have the texts of a training example" in caplog.text


def test_a_label_that_may_mean_none_is_told_unless_the_settings_name_it(
    model_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "text\tlabel\n" + "bado\t0\nvowa\t1\nkelu\t-1\n"
    uri = task_files.write(tmp_path / "train.tsv", rows)
    task = OwnTaskSettings(name="nli", text_columns=["text"], train=uri, dev=uri)
    named = task.model_copy(update={"labels": ["-1", "0", "1"]})
    for own, number in ((named, 0), (task, 1)):
        finetune(model_folder, "", str(tmp_path), "nli", own=[own], **FEW)
        assert caplog.text.count("nli: 1 of 3 training examples have the label '-1'") == number


def test_numbers_of_glue_are_learned_as_they_are(
    model_folder: str, all_task_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PooledHead, "learn_standardised", None)
    finetune(model_folder, all_task_files, str(tmp_path), "sts-b", **FEW)


@pytest.mark.parametrize(("task", "optimizer"), [("cola", "adamw"), ("prices", "muon")])
def test_a_run_that_was_stopped_and_killed_ends_with_the_same_bytes(
    task: str,
    optimizer: str,
    prices: OwnTaskSettings,
    model_folder: str,
    task_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some: dict[str, Any] = {
        "num_steps": 24, "evaluation_steps": 8, "checkpoint_steps": 4, "encoder_dropout_prob": 0.1
    }  # fmt: skip
    some |= {"task": task, "own": [prices], "optimizer": optimizer}
    whole, killed = (f"{tmp_path}/{name}" for name in ("whole", "killed"))
    expected = read_manifest(finetune(model_folder, task_folder, whole, **some))
    update, started = Finetuner.update, []

    def ending(self: Finetuner) -> Any:
        started.append(self.step)
        if started == [*range(10)]:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.step == 19 and started.count(19) == 1:
            raise KeyboardInterrupt
        return update(self)

    monkeypatch.setattr(Finetuner, "update", ending)
    for ended in (SystemExit, KeyboardInterrupt):
        with pytest.raises(ended):
            finetune(model_folder, task_folder, killed, **some)
        torch.rand(3)  # something is drawn in between
    resumed = read_manifest(finetune(model_folder, task_folder, killed, **some))
    assert started[:20] == [*range(20)]
    assert started[20] in (12, 16)  # the last checkpoint may not have been complete
    found, wanted = ([(s.path, s.sha256) for s in m.shards] for m in (resumed, expected))
    assert found == wanted
    assert not list(tmp_path.glob("killed/finetuning/*/checkpoints"))
    told = [
        open_client(work).get_metric_history(str(made.result["mlflow_run_id"]), "train/loss")
        for work, made in ((killed, resumed), (whole, expected))
    ]
    ours, theirs = ({point.step: point.value for point in points} for points in told)
    assert ours == theirs


def test_other_seeds_give_other_models(model_folder: str, task_folder: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        finetune(model_folder, task_folder, str(tmp_path), seed=seed, **FEW)
    one, other = tmp_path.glob("finetuning/*/model/model.safetensors")
    assert one.read_bytes() != other.read_bytes()


@pytest.fixture(scope="module")
def all_task_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tasks of the paper, each in the layout in which it is distributed."""
    folder = tmp_path_factory.mktemp("tasks")
    task_files.write_glue(folder / "glue")
    columns = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain"
    content = f"{columns}\tPremise\tHypothesis\tLabel\n\t\t\t\t\tA.\tB.\tneutral\n"
    task_files.write(folder / "glue/diagnostic/diagnostic-full.tsv", content)
    task_files.write_race(folder / "RACE")
    answered = task_files.squad_question("q1", ("cat", 2))
    unanswered = task_files.squad_question("q2", is_impossible=True)
    for split in ("train", "dev"):
        task_files.write_squad(folder / f"squad/{split}-v1.1.json", [answered])
        task_files.write_squad(folder / f"squad/{split}-v2.0.json", [answered, unanswered])
    return str(folder)


@pytest.mark.parametrize("task", ["mrpc", "sts-b", "mnli", "squad-1.1", "squad-2.0", "race"])
def test_every_kind_of_task_is_fine_tuned_and_scored_from_its_original_layout(
    task: str, model_folder: str, all_task_files: str, tmp_path: Path
) -> None:
    few: dict[str, Any] = FEW | {"max_seq_length": None}
    manifest = read_manifest(finetune(model_folder, all_task_files, str(tmp_path), task, **few))
    result = manifest.result_as(results.FinetuningResult)
    counted = {account.what.partition(" ")[0] for account in manifest.accounts}
    assert counted == {"train", *result.predictions}
    assert set(result.scores) == set(TASKS[task].metrics)
    assert result.metric == TASKS[task].metrics[0]
    assert not result.score.is_above(result.score.value)
    if task == "mnli":
        assert {"mnli-mm.dev", "mnli-mm.test", "ax.dev", "ax.test"} <= set(result.predictions)
        scores = estimates_of(result)
        assert {"accuracy of mnli-mm", "matthews of ax"} <= set(scores)
        table = build_table("mine", [result])
        _, mismatched = score_cell("mnli", table.tasks["mnli"]).split("/")
        assert float(mismatched) == pytest.approx(
            100 * scores["accuracy of mnli-mm"].value, abs=0.05
        )


def test_questions_to_train_on_whose_answer_is_in_no_window_are_counted_and_warned_of(
    model_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = "A cat sat on a mat. " * 10
    answers = {"q1": ("cat", 2), "q2": (context.strip(), 0)}
    train = [task_files.squad_question(name, answer) for name, answer in answers.items()]
    task_files.write_squad(tmp_path / "train-v1.1.json", train, context)
    task_files.write_squad(tmp_path / "dev-v1.1.json")
    uri = finetune(model_folder, str(tmp_path), f"{tmp_path}/work", "squad-1.1", **FEW)
    account = read_manifest(uri).account("train answers")
    assert str(account) == "train answers: 2 in = 1 kept, 1 dropped (in_no_window 1, no_pieces 0)"
    [line] = [line for line in caplog.messages if "no window" in line]
    assert line.startswith(
        "squad-1.1: the answers to 1 of 2 questions to train on are in no window"
    )
    assert "set finetuning.spans.doc_stride to a quarter of finetuning.max_seq_length" in line


def test_a_dev_set_of_unanswerable_questions_alone_is_scored(
    model_folder: str, tmp_path: Path
) -> None:
    questions = [
        task_files.squad_question("q1", ("cat", 2)),
        task_files.squad_question("q2", is_impossible=True),
    ]
    task_files.write_squad(tmp_path / "train-v2.0.json", questions)
    task_files.write_squad(tmp_path / "dev-v2.0.json", questions[1:])
    uri = finetune(model_folder, str(tmp_path), f"{tmp_path}/work", "squad-2.0", **FEW)
    result = result_of(uri)
    assert result.scores["f1"].value == result.constant_scores["f1"] == 1.0
    assert str(result.scores["f1"]) == "1.000 [0.207, 1.000]"  # of a single question


def test_the_best_on_a_half_of_dev_has_no_threshold_that_was_searched_on_the_other(
    model_folder: str, all_task_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[list[float]] = []
    score, note_scores = SpanProblem.score, Finetuner.note_scores

    def share_searched(self: SpanProblem, *given: Any) -> Scored:
        searched = 1.0 if given[3] is None else given[3].mean()
        sample = SHARE.of(np.full(2, searched), np.ones(2))
        return replace(score(self, *given), samples={"f1": sample, "exact_match": sample})

    def noting(self: Finetuner, scores: list[float], outputs: Outputs) -> None:
        noted.append(scores)
        note_scores(self, scores, outputs)

    monkeypatch.setattr(SpanProblem, "score", share_searched)
    monkeypatch.setattr(Finetuner, "note_scores", noting)
    finetune(model_folder, all_task_files, str(tmp_path), "squad-2.0", **FEW)
    assert noted == [[1.0, 0.5, 0.5]]


def test_each_setting_of_an_own_task_but_its_places_is_in_the_key(
    model_folder: str, tmp_path: Path
) -> None:
    lines = [f"t {n}\t{n % 2}\t{n % 3}\t1\n" for n in range(6)]
    rows = "".join(["text\tlabel\tother\tcustomer\n", *lines])
    keys = []
    cases: list[tuple[str, dict[str, Any]]] = [
        ("here", {}),
        ("there", {}),
        ("here", {"label_column": "other"}),
        ("here", {"metric": "matthews"}),
        ("here", {"cluster_column": "customer"}),
    ]
    for folder, changes in cases:
        uris: dict[str, Any] = {
            split: f"{tmp_path}/{folder}/{split}.tsv" for split in ("train", "dev")
        }
        for uri in uris.values():
            storage.write_bytes(uri, rows.encode())
        own = OwnTaskSettings(name="mine", text_columns=["text"], **uris, **changes)
        plan = stage.stage_plan(
            FinetuningSettings(), EvaluationSettings(own_tasks=[own]), model_folder, "", "mine", "1"
        )
        keys.append(plan.key)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_only_tasks_with_spans_depend_on_their_settings(model_folder: str, tmp_path: Path) -> None:
    table = tmp_path / "rows.tsv"
    table.write_text("text\tlabel\na\t0\nb\t1\n")
    own = OwnTaskSettings(name="mine", text_columns=["text"], train=str(table), dev=str(table))
    evaluation = EvaluationSettings(own_tasks=[own])
    one, other = FinetuningSettings(), FinetuningSettings(spans=SpanSettings(n_best=30))
    plans = (
        stage.stage_plan(each, evaluation, model_folder, "", "mine", "1") for each in (one, other)
    )
    assert next(plans).key == next(plans).key
    assert one.of_task("squad-1.1", True) != other.of_task("squad-1.1", True)


def test_only_muon_depends_on_the_rate_of_what_it_leaves_to_adam() -> None:
    def asked(**changed: Any) -> dict[str, Any]:
        return FinetuningSettings(**changed).of_task("rte", False)

    assert asked(adam_learning_rate=1e-3) == asked()
    assert asked(adam_learning_rate=1e-3, optimizer="muon") != asked(optimizer="muon")


def test_what_a_fine_tuning_depends_on_tells_a_tasks_steps_from_epochs() -> None:
    steps = FinetuningSettings(num_epochs=3, per_task={"rte": TaskHyperparameters(num_steps=100)})
    epochs = FinetuningSettings(num_steps=100, per_task={"rte": TaskHyperparameters(num_epochs=3)})
    asked = [each.of_task("rte", False) for each in (steps, epochs)]
    assert [(each["num_steps"], each["num_epochs"]) for each in asked] == [(100, None), (None, 3)]


def test_dev_is_halved_by_cluster_and_the_same_way_each_time() -> None:
    clusters = np.repeat(np.arange(9), 4)
    first, second = halves(clusters)
    assert (first ^ second).all()
    assert len(set(clusters[first])) == 5
    assert not set(clusters[first]) & set(clusters[second])
    assert (halves(clusters)[0] == first).all()
    of_one_cluster = halves(np.zeros(10, np.int64))
    assert [half.sum() for half in of_one_cluster] == [5, 5]
    assert [half.tolist() for half in halves(np.zeros(1, np.int64))] == [[True], [True]]


def test_a_model_that_always_gives_one_label_is_scored_as_on_all_of_dev() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1], [24, 26]))
    for half in halves(np.arange(50), labels):
        assert [np.mean(labels[half] == label) for label in (0, 1)] == [0.48, 0.52]


def test_clusters_of_unequal_size_give_halves_of_about_as_many_examples() -> None:
    clusters = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 2 ** np.arange(8)))
    first, second = halves(clusters)
    assert {first.sum(), second.sum()} == {128, 127}
    assert not set(clusters[first]) & set(clusters[second])
    assert all(0.4 < half[:100].mean() < 0.6 for half in halves(np.arange(200)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_seq_length": MAX_POSITIONS + 1}, ConfigError, f"has {MAX_POSITIONS} positions"),
        ({"task": "ax"}, TaskError, "predicted by a model of 'mnli'"),
        ({"task": "cula"}, TaskError, "there is no task 'cula'"),
        ({"task": "sst-2"}, TaskError, "'sst-2' is not complete: expected train.tsv, dev.tsv"),
        ({"model_folder": "/nowhere"}, IntegrityError, r"config\.json is missing"),
    ],
)
def test_what_cannot_be_done_is_refused(
    changes: dict[str, Any],
    error: type[AlbertError],
    message: str,
    model_folder: str,
    task_folder: str,
    tmp_path: Path,
) -> None:
    inputs = {"model_folder": model_folder, "task_folder": task_folder, "work": str(tmp_path)}
    with pytest.raises(error, match=message):
        finetune(**inputs | changes)


def test_a_malformed_file_is_found_before_the_training(model_folder: str, tmp_path: Path) -> None:
    task_files.write_glue(tmp_path / "glue")
    task_files.write_race(tmp_path / "RACE")
    with (tmp_path / "glue/CoLA/test.tsv").open("a") as file:
        file.write("too\tmany\tfields\n")
    for passage in (tmp_path / "RACE/train").glob("*/*.txt"):
        values = json.loads(passage.read_text())
        del values["answers"]
        passage.write_text(json.dumps(values))
    work = f"{tmp_path}/work"
    with pytest.raises(TaskError, match=r"CoLA/test.tsv, line \d+: 3 tab-separated fields"):
        finetune(model_folder, str(tmp_path), work)
    with pytest.raises(TaskError, match=r"RACE/train/.*: the train set of 'race' has no labels"):
        finetune(model_folder, str(tmp_path), work, "race")
    assert not list(Path(work).rglob("*checkpoint*"))


def files(name: str, split: Split = "test", **columns: Any) -> dict[str, bytes]:
    return submission_files(TASKS[name], split, pa.table(columns))


def test_labels_are_written_as_text_below_the_servers_header() -> None:
    found = files("rte", id=["0", "1"], prediction=["entailment", "not_entailment"], score=[1, 2])
    assert found == {"RTE.tsv": b"index\tprediction\n0\tentailment\n1\tnot_entailment\n"}


def test_each_glue_task_has_its_servers_file() -> None:
    tasks = [task for task in TASKS.values() if task.kind == "classification"]
    names = [name for task in tasks for name in files(task.name, id=["0"], prediction=["x"])]
    stems = ["CoLA", "SST-2", "MRPC", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]
    assert names == [f"{stem}.tsv" for stem in stems]
    assert files("cola", split="dev", id=["0"], prediction=["1"]).keys() == {"CoLA.dev.tsv"}
    assert files("race", id=["a"], prediction=["A"]) == {}


def test_similarities_are_numbers_from_0_to_5() -> None:
    found = files("sts-b", id=["0", "1", "2"], prediction=[-0.2, 5.5, 1 / 3])
    assert found == {"STS-B.tsv": b"index\tprediction\n0\t0.0\n1\t5.0\n2\t0.3333333333333333\n"}
    with pytest.raises(TaskError, match="nan is no finite number"):
        files("sts-b", id=["0"], prediction=[float("nan")])


def test_a_large_number_of_a_submission_keeps_all_its_digits() -> None:
    task = Task(name="price", title="price", kind="regression", metrics=("pearson",))
    predictions = pa.table({"id": ["0", "1"], "prediction": [20231105.0, 1234567.4]})
    found = submission_files(task, "test", predictions)
    assert found == {"price.tsv": b"index\tprediction\n0\t20231105.0\n1\t1234567.4\n"}


def test_answers_are_a_json_object_of_ids() -> None:
    found = files("squad-1.1", split="dev", id=["a", "b"], prediction=["Él", ""])
    assert found.keys() == {"squad-1.1.dev.predictions.json"}
    assert json.loads(found["squad-1.1.dev.predictions.json"]) == {"a": "Él", "b": ""}


def test_probabilities_of_no_answer_have_the_order_of_the_scores() -> None:
    scores = [-1e6, -1e3, -30.0, -1.0, 0.0, 2.0, 1e6]
    ids = [str(number) for number in range(len(scores))]
    found = files("squad-2.0", "dev", id=ids, prediction=ids, null_score=scores)
    shares = list(json.loads(found["squad-2.0.dev.na_probs.json"]).values())
    assert shares == sorted(shares)
    assert (shares[0], shares[4], shares[-1]) == (0.0, 0.5, 1.0)


MODEL = tiny_settings(
    embedding_size=16,
    hidden_size=32,
    intermediate_size=64,
    max_position_embeddings=40,
    initializer_range=0.2,  # so wide a draw learns in a few updates
)
CPU = torch.device("cpu")


def made_inputs(num_units: int, per_unit: int = 1, targets: Any = None) -> Inputs:
    """Return sequences of 3 to 12 pieces, of which the first tells the label: 7 or 8."""
    draws = np.random.default_rng(num_units)
    labels = np.arange(num_units * per_unit) % 2
    pairs = [
        ([7 + int(label), *draws.integers(10, 40, draws.integers(0, 9)).tolist()], None)
        for label in labels
    ]
    found = labels if targets is None else targets
    return Inputs(Sequences.of(pairs), {TARGET: found}, [], sequences_per_unit=per_unit)


def made_finetuner(
    head: Head | None = None, inputs: Inputs | None = None, wanted: Any = (), **settings: Any
) -> Finetuner:
    """Return one that has made no update, with the hyperparameters ``wanted`` and ``settings``."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "num_steps": 30,
        "batch_size": 8,
        "learning_rate": 2e-3,
        "warmup_steps": 3,
        "encoder_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "max_seq_length": 40,
        "evaluation_steps": 10,
    }
    return Finetuner(
        AlbertModel(MODEL, 50),
        head or PooledHead(MODEL, 2, 0.0),
        inputs or made_inputs(48),
        Hyperparameters(**values | dict(wanted)),
        FinetuningSettings(**settings),
        seed=5,
        device=CPU,
    )


def trained(finetuner: Finetuner) -> Finetuner:
    while not finetuner.is_done:
        finetuner.update()
    return finetuner


def weights_of(finetuner: Finetuner) -> list[Tensor]:
    return [value.clone() for value in finetuner.model.state_dict().values()]


def note(finetuner: Finetuner, score: float, *of_halves: float) -> None:
    """Let dev's only output be the score."""
    outputs = {"score": np.array([score])}
    finetuner.note_scores([score, *(of_halves or (score, score))], outputs)


def test_outputs_come_in_the_order_of_the_units() -> None:
    finetuner, dev = made_finetuner(micro_batch_pieces=40), made_inputs(23)
    together = finetuner.outputs(dev)["logits"]
    for unit in range(23):
        with torch.no_grad():
            batch = dev.batch(np.array([unit]), CPU)
            alone = finetuner.head.outputs(finetuner.encoder, batch)["logits"]
        np.testing.assert_allclose(together[unit], alone[0], atol=1e-5)


def test_micro_batches_change_nothing_beyond_rounding() -> None:
    found = []
    for pieces in (16_384, 20):
        wanted = {"num_steps": 5, "warmup_steps": 0}
        finetuner = made_finetuner(wanted=wanted, micro_batch_pieces=pieces)
        finetuner.model.double()
        found.append(weights_of(trained(finetuner)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_gradients_are_shortened_to_just_the_norm_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    finetuner, norms = made_finetuner(max_grad_norm=0.001), []
    parameters = list(finetuner.model.double().parameters())

    def step() -> None:
        norms.append(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))

    monkeypatch.setattr(finetuner.optimizer, "step", step)
    finetuner.update()
    assert [norm.item() for norm in norms] == [pytest.approx(0.001, rel=1e-9)]


def test_it_ends_when_nothing_gets_better() -> None:
    finetuner = made_finetuner(patience=2)
    note(finetuner, 0.5)
    note(finetuner, 0.5)
    assert not finetuner.is_done
    note(finetuner, 0.1)
    assert finetuner.is_done


def test_the_best_weights_are_those_of_the_best_score() -> None:
    finetuner = made_finetuner(wanted={"encoder_dropout_prob": 0.1})
    finetuner.update()
    note(finetuner, 0.9)
    best = weights_of(finetuner)
    finetuner.update()
    note(finetuner, 0.8)
    assert not all(map(torch.equal, weights_of(finetuner), best))
    finetuner.take_best()
    assert all(map(torch.equal, weights_of(finetuner), best))
    assert (finetuner.best[0].step, finetuner.best[0].num_worse) == (1, 1)


def test_of_equal_scores_the_last_is_kept_and_none_is_a_better_one() -> None:
    finetuner = made_finetuner(patience=4)
    for _ in range(3):
        finetuner.update()
        note(finetuner, 0.5)
    last = weights_of(finetuner)
    assert not finetuner.is_done
    finetuner.update()
    note(finetuner, 0.4)
    assert [(best.step, best.num_worse) for best in finetuner.best] == [(3, 3)] * 3
    finetuner.take_best()
    assert all(map(torch.equal, weights_of(finetuner), last))


def test_a_number_is_learned() -> None:
    targets = np.arange(48) % 2 * 2.0 - 1
    inputs = made_inputs(48, targets=targets)
    finetuner = trained(made_finetuner(PooledHead(MODEL, 1, 0.0), inputs, {"num_steps": 80}))
    assert np.abs(finetuner.outputs(inputs)["logits"][:, 0] - targets).mean() < 0.3


def test_by_muon_the_linear_maps_of_layers_move_by_a_rate_of_their_own() -> None:
    finetuner = made_finetuner(
        wanted={"warmup_steps": 0}, optimizer="muon", adam_learning_rate=1e-12
    )
    names = finetuner.model.state_dict().keys()
    before = weights_of(finetuner)
    finetuner.update()
    found = zip(names, before, weights_of(finetuner), strict=True)
    moved = {name for name, old, new in found if not torch.allclose(old, new)}
    is_map = re.compile(r"encoder\.(attentions|feed_forwards)\.\d+\.(?!norm).*weight")
    assert moved == {name for name in names if is_map.fullmatch(name)}


def test_equal_numbers_are_learned_too() -> None:
    head = PooledHead(MODEL, 1, 0.0)
    head.learn_standardised(np.full(48, 7.0))
    assert (head.mean, head.deviation) == (7.0, 1.0)


def test_numbers_that_are_far_from_0_and_near_each_other_stay_apart() -> None:
    head, inputs = PooledHead(MODEL, 1, 0.0), made_inputs(24)
    finetuner = made_finetuner(head, inputs)
    distances = finetuner.outputs(inputs)["logits"]
    head.learn_standardised(np.array([1.7e9 - 60, 1.7e9 + 60]))
    found = finetuner.outputs(inputs)["logits"]
    np.testing.assert_allclose(found, distances * 60 + 1.7e9, rtol=0, atol=1e-4)


def test_the_right_option_is_learned_also_in_bfloat16() -> None:
    # The right one of two options is the one whose first piece is 8: each unit's second.
    inputs = made_inputs(40, per_unit=2, targets=np.ones(40, np.int64))
    head = PooledHead(MODEL, 1, 0.0, num_options=2)
    logits = trained(made_finetuner(head, inputs, precision="bfloat16")).outputs(inputs)["logits"]
    assert logits.shape == (40, 2)
    assert (logits.argmax(axis=1) == 1).mean() > 0.95


def test_each_half_keeps_the_outputs_that_are_best_on_it_also_over_a_restart() -> None:
    first = made_finetuner()
    for of_halves in ((0.1, 0.9), (0.8, 0.2)):
        note(first, sum(of_halves), *of_halves)
    again = made_finetuner()
    again.restore(first.state())
    note(again, 0.3, 0.7, 0.3)
    found = [(best.score, best.tensors["score"].item()) for best in again.best[1:]]
    assert found == [(0.8, 1.0), (0.9, 1.0)]
    assert again.num_evaluations == 3


def found(task: str, num_examples: int = 1000, positions: int = 512, **said: Any) -> dict[str, Any]:
    settings = FinetuningSettings(**said)
    return hyperparameters_of(task, settings, positions, num_examples).model_dump()


def test_without_settings_they_are_the_papers_and_complete() -> None:
    assert found("cola") == {
        "num_steps": 5336,
        "batch_size": 16,
        "learning_rate": 1e-5,
        "warmup_steps": 320,
        "encoder_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "max_seq_length": 512,
        "evaluation_steps": 100,
    }
    assert found("squad-1.1")["max_seq_length"] == 384
    assert all(set(found(task)) == set(Hyperparameters.model_fields) for task in PAPER)


def test_settings_for_the_task_override_those_for_all() -> None:
    per_task = {"rte": {"learning_rate": 7e-5}}
    both: dict[str, Any] = {"learning_rate": 5e-5, "batch_size": 8, "per_task": per_task}
    assert (found("rte", **both)["learning_rate"], found("rte", **both)["batch_size"]) == (7e-5, 8)
    assert found("wnli", **both)["learning_rate"] == 5e-5


def test_fewer_updates_have_the_papers_share_of_warm_up() -> None:
    assert found("sst-2", num_steps=1000)["warmup_steps"] == 1000 * 1256 // 20935
    assert found("sst-2", num_steps=1000, warmup_steps=7)["warmup_steps"] == 7


def test_epochs_replace_steps_and_steps_replace_epochs() -> None:
    assert found("mrpc", num_epochs=3, num_examples=3668)["num_steps"] == 3 * 3668 // 32
    assert found("mrpc", num_epochs=0.001, warmup_steps=0)["num_steps"] == 1
    per_task = {"mrpc": {"num_steps": 9}}
    assert found("mrpc", num_epochs=3, per_task=per_task)["num_steps"] == 9


def test_a_task_that_is_not_in_the_paper_has_five_epochs() -> None:
    own = found("tickets", num_examples=640)
    assert (own["num_steps"], own["warmup_steps"], own["batch_size"]) == (100, 10, 32)


def test_the_papers_length_is_cut_to_the_models_positions_but_a_set_one_is_refused() -> None:
    assert found("cola", positions=64)["max_seq_length"] == 64
    assert found("cola", positions=64, max_seq_length=64)["max_seq_length"] == 64
    with pytest.raises(ConfigError, match="max_seq_length is 128, but the model has 64 positions"):
        found("cola", positions=64, max_seq_length=128)


def test_a_warm_up_without_end_is_refused() -> None:
    with pytest.raises(ValidationError, match="must be below num_steps"):
        TaskHyperparameters(num_steps=5, warmup_steps=5)
    with pytest.raises(ConfigError, match="warmup_steps is 5 for cola, but there are only 5"):
        found("cola", warmup_steps=5, per_task={"cola": {"num_steps": 5}})


def test_steps_and_epochs_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        TaskHyperparameters(num_steps=5, num_epochs=1)
