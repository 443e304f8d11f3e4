"""The stage that lays out the scores of fine-tunings that never were."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from mlflow import MlflowClient

from albert_core.config import PublishedRow, ScoringSettings
from albert_core.scores import tabulate as stage
from albert_core.scores.table import PUBLISHED
from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, IntegrityError
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest, shard_of
from albert_core.stage.results import FinetuningResult, ScoresResult, ZeroShotResult
from albert_core.text.arrow_files import write_arrow
from albert_core.tracking.server import experiment_id, open_client
from tests.albert_core.scores.made_runs import made_pair_scores
from tests.made_results import made_result

TARGETS = ["no", "yes", "no", "no"]

pytestmark = pytest.mark.usefixtures("one_tracking_database")


def finetuned(work: str, seed: int, score: float, task: str = "sst-2", **changes: Any) -> str:
    """Return the manifest of a fine-tuning on a task with the labels "yes" and "no"."""
    plan = StagePlan(
        "finetuning",
        {"task": task, "seed": seed},
        {"model": "a" * 64, "dev": "d" * 64, "train": "e" * 64},
        "code",
        {},
    )
    folder = plan.folder(work)
    predictions = f"{folder}/predictions/dev.arrow"
    write_arrow(pa.table({"target": TARGETS, "score": [score] * 4}), predictions)
    client = open_client(work)
    mlflow_run = client.create_run(experiment_id(client, work), run_name=f"{task}-{seed}")
    fields = {
        "task": task, "title": task.upper(), "seed": seed,
        "metric": "accuracy",
        "scores": {"accuracy": {"value": score, "low": score - 0.1, "high": score + 0.1}},
        "num_train": 8, "num_examples": 4, "constant_scores": {"accuracy": 0.75},
        "mlflow_run_id": mlflow_run.info.run_id,
    }  # fmt: skip
    result = made_result("finetuning", **(fields | changes))
    shards = [shard_of(predictions, folder, "predictions", 4)]
    return plan.write(work, shards, [], result)


def score(work: str, *finetunings: str, **options: Any) -> Manifest:
    settings = ScoringSettings(published=options.pop("published", []))
    uri = stage.run(settings, "mine", json.dumps(finetunings), work=work, **options)
    return read_manifest(uri)


def read_data(manifest: Manifest, work: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(
        storage.read_bytes(f"{work}/scores/{manifest.key}/scores.json")
    )
    return data


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, one_tracking_database: None
) -> tuple[Manifest, str, list[str]]:
    work = str(tmp_path_factory.mktemp("work"))
    runs = [finetuned(work, seed, value) for seed, value in ((1, 0.9), (2, 0.6), (3, 0.8))]
    plan = StagePlan("contamination", {}, {}, "code", {})
    shares = {"sst-2": {"dev": 0.25, "test": 0.5}}
    contamination = plan.write(work, [], [], made_result("contamination", shares=shares))
    manifest = score(
        work,
        *runs,
        published=["base"],
        missing='{"race": "no files"}',
        contamination=contamination,
    )
    return manifest, work, runs


def test_all_forms_of_the_table_are_written(finished: tuple[Manifest, str, list[str]]) -> None:
    manifest, work, _ = finished
    names = ["scores.json", "scores.md", "scores.html", "scores.png"]
    assert [shard.path for shard in manifest.shards] == names
    contents = {n: storage.read_bytes(f"{work}/scores/{manifest.key}/{n}") for n in names}
    assert (
        b"| SST-2 | acc | 80.0 | [70.0, 90.0] | 3 | 60.0..90.0 | 2 | 75.0 ! | 4 | 25.0% |"
        in (contents["scores.md"])
    )
    assert b"ALBERT base (paper, Table 2)" in contents["scores.md"]
    assert b"race: no files" in contents["scores.html"]
    assert contents["scores.png"].startswith(b"\x89PNG")
    assert manifest.result_as(ScoresResult).scores == {"sst-2": {"accuracy": 0.8}}
    assert manifest.result_as(ScoresResult).average is None
    assert "Task by task" in manifest.result_as(ScoresResult).text


def test_the_data_has_every_seed_and_what_a_constant_answer_gets(
    finished: tuple[Manifest, str, list[str]],
) -> None:
    model = read_data(*finished[:2])["models"]["mine"]
    assert model["average_lacks"] == ["squad-1.1", "squad-2.0", "mnli", "race"]
    task = model["tasks"]["sst-2"]
    assert task["dev_overlap"] == 0.25
    metric = task["metrics"]["accuracy"]
    assert metric["by_seed"] == {"1": 0.9, "2": 0.6, "3": 0.8}
    assert (metric["median"]["value"], metric["worst_seed"]) == (0.8, 2)
    assert metric["constant_answer"] == 0.75


def test_mlflow_has_the_table_as_parent_of_the_runs(
    finished: tuple[Manifest, str, list[str]],
) -> None:
    manifest, work, runs = finished
    client: MlflowClient = open_client(work)
    parent = client.get_run(str(manifest.result_as(ScoresResult).mlflow_run_id))
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["sst-2/accuracy"] == 0.8
    children = [read_manifest(uri).result_as(FinetuningResult).mlflow_run_id for uri in runs]
    for child in children:
        assert client.get_run(str(child)).data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.inputs is not None
    digests = {each.dataset.name: each.dataset.digest for each in parent.inputs.dataset_inputs}
    assert digests == {"SST-2/dev": "d" * 36, "SST-2/train": "e" * 36}
    contexts = {each.dataset.name: each.tags[0].value for each in parent.inputs.dataset_inputs}
    assert contexts == {"SST-2/dev": "dev", "SST-2/train": "train"}
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {
        "manifest.json", "scores.json", "scores.md", "scores.html", "scores.png",
    }  # fmt: skip


def test_the_same_again_is_done_already(
    finished: tuple[Manifest, str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    _, work, runs = finished
    with caplog.at_level(logging.INFO):
        score(work, *runs)
        assert "scores: to do" in caplog.text
        score(work, *runs)
    assert "scores: done already" in caplog.text


@pytest.mark.parametrize(
    ("finetunings", "message"),
    [("[", "is not JSON"), ("{}", "must be a JSON list"), ("[]", "there are no scores")],
)
def test_malformed_arguments_are_said(finetunings: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        stage.run(ScoringSettings(), "mine", finetunings, work=str(tmp_path))


def test_a_fine_tuning_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"manifest\.json is missing"):
        score(str(tmp_path), f"{tmp_path}/finetuning/0/manifest.json")


def test_fine_tunings_on_other_data_make_no_table(tmp_path: Path) -> None:
    work = str(tmp_path)
    other = finetuned(work, 2, 0.5, num_examples=5)
    with pytest.raises(ConfigError, match="make no table: sst-2"):
        score(work, finetuned(work, 1, 0.5), other)


def test_the_rows_that_settings_know_are_those_there_are() -> None:
    assert get_args(PublishedRow) == tuple(PUBLISHED)


def scored_pairs(work: str, model: str = "a" * 64) -> str:
    """Return the manifest of a model's scores on two sets of minimal pairs."""
    plan = StagePlan("zero-shot", {}, {"model": model}, "code", {})
    sets = {"blimp": made_pair_scores(0.6, 0.55, 0.65), "mine": made_pair_scores(0.52)}
    return plan.write(work, [], [], ZeroShotResult(sets=sets))


def test_minimal_pairs_are_in_the_table_its_data_and_mlflow_also_without_a_task(
    tmp_path: Path,
) -> None:
    work = str(tmp_path)
    pairs = scored_pairs(work)
    both = score(work, finetuned(work, 1, 0.8), zero_shot=pairs)
    alone = score(work, zero_shot=pairs)
    for manifest in (both, alone):
        result = manifest.result_as(ScoresResult)
        assert result.minimal_pairs["blimp"].accuracy.value == 0.6
        assert "Minimal pairs, zero-shot (chance 50 %)" in result.text
        assert manifest.input_manifests["zero-shot"] == pairs
        data = read_data(manifest, work)["models"]["mine"]["minimal_pairs"]
        assert data["blimp"]["phenomena"]["kind_1"]["accuracy"]["value"] == 0.65
        run = open_client(work).get_run(str(result.mlflow_run_id))
        assert run.data.metrics["mine_pairs/accuracy"] == 0.52
    assert (len(both.result_as(ScoresResult).tasks), alone.result_as(ScoresResult).tasks) == (1, {})


def test_minimal_pairs_of_another_model_are_refused(tmp_path: Path) -> None:
    work = str(tmp_path)
    with pytest.raises(ConfigError, match="which no fine-tuning starts from"):
        score(work, finetuned(work, 1, 0.8), zero_shot=scored_pairs(work, "b" * 64))
