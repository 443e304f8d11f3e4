"""The stage that lays out the scores of fine-tunings that never were."""

import json
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

from albert_core.config import PublishedRow, ScoringSettings
from albert_core.scores import tabulate as stage
from albert_core.scores.table import PUBLISHED
from albert_core.stage import errors, storage
from albert_core.stage.manifest import Account, Manifest, StagePlan, read_manifest
from albert_core.stage.results import FinetuningResult, ScoresResult, ZeroShotResult
from albert_core.tracking.server import experiment_id, open_client
from tests.albert_core.scores.test_table import made_pair_scores
from tests.made_results import made_result

pytestmark = pytest.mark.usefixtures("one_tracking_database")


def finetuned(work: str, seed: int, score: float, dev: str = "d" * 64, **changes: Any) -> str:
    """Return the manifest of a fine-tuning on a task with the labels "yes" and "no"."""
    inputs = {"model": "a" * 64, "dev": dev, "train": "e" * 64}
    plan = StagePlan("finetuning", {"task": "sst-2", "seed": seed}, inputs, "code", {})
    client = open_client(work)
    mlflow_run = client.create_run(experiment_id(client, work), run_name=f"sst-2-{seed}")
    fields = {
        "task": "sst-2", "title": "SST-2", "seed": seed, "metric": "accuracy",
        "scores": {"accuracy": {"value": score, "low": score - 0.1, "high": score + 0.1}},
        "num_train": 8, "num_examples": 4, "constant_scores": {"accuracy": 0.75},
        "mlflow_run_id": mlflow_run.info.run_id,
    }  # fmt: skip
    return plan.write(work, [], [], made_result("finetuning", **(fields | changes)))


def score(work: str, *finetunings: str, **options: Any) -> Manifest:
    settings = ScoringSettings(published=options.pop("published", []))
    uri = stage.run(settings, "mine", json.dumps(finetunings), work=work, **options)
    return read_manifest(uri)


def test_the_table_is_written_in_all_forms_and_is_the_parent_of_its_runs_in_mlflow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = str(tmp_path)
    runs = [finetuned(work, seed, value) for seed, value in ((1, 0.9), (2, 0.6), (3, 0.8))]
    plan = StagePlan("contamination", {}, {}, "code", {})
    shares = {"sst-2": {"dev": 0.25, "test": 0.5}}
    searched = made_result("contamination", shares=shares, num_judged={"sst-2": {"dev": 3}})
    overlaps = plan.write(work, [], [], searched)
    options = {"missing": '{"race": "no files"}', "contamination": overlaps, "published": ["base"]}
    manifest = score(work, *runs, **options)

    names = ["scores.json", "scores.html", "scores.png"]
    assert [shard.path for shard in manifest.shards] == names
    contents = {n: storage.read_bytes(f"{work}/scores/{manifest.key}/{n}") for n in names}
    cells = ["SST-2", "acc", "80.0", "[70.0, 90.0]", "3", "60.0..90.0", "2", "75.0 !", "4"]
    cells.append("25.0% of 3")
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    assert row.encode() in contents["scores.html"]
    assert b"ALBERT base (paper, Table 2)" in contents["scores.html"]
    assert b"race: no files" in contents["scores.html"]
    assert contents["scores.png"].startswith(b"\x89PNG")
    result = manifest.result_as(ScoresResult)
    assert (result.scores, result.average) == ({"sst-2": {"accuracy": 0.8}}, None)
    assert "Task by task" in result.text
    model = json.loads(contents["scores.json"])
    assert model["average_lacks"] == ["squad-1.1", "squad-2.0", "mnli", "race"]
    task = model["tasks"]["sst-2"]
    assert (task["dev_overlap"], task["metrics"]["accuracy"]["constant_answer"]) == (0.25, 0.75)
    assert task["metrics"]["accuracy"]["by_seed"] == {"1": 0.9, "2": 0.6, "3": 0.8}

    client = open_client(work)
    parent = client.get_run(str(result.mlflow_run_id))
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["sst-2/accuracy"] == 0.8
    for child in (read_manifest(uri).result_as(FinetuningResult).mlflow_run_id for uri in runs):
        assert client.get_run(str(child)).data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.inputs is not None
    sets = [(each.dataset, each.tags[0].value) for each in parent.inputs.dataset_inputs]
    assert {(dataset.name, dataset.digest, context) for dataset, context in sets} == {
        ("SST-2/dev", "d" * 36, "dev"),
        ("SST-2/train", "e" * 36, "train"),
    }
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {"manifest.json", *names}

    with caplog.at_level(logging.INFO):
        assert score(work, *runs, **options) == manifest
    assert "scores: done already" in caplog.text
    assert score(work, *runs).key != manifest.key


@pytest.mark.parametrize(
    ("finetunings", "message"),
    [
        ("[", "must be a JSON list"),
        ("{}", "must be a JSON list"),
        ("[]", "there are no scores"),
        ('["/nowhere/finetuning/0/manifest.json"]', r"manifest\.json is missing"),
    ],
)
def test_malformed_arguments_are_said(finetunings: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((errors.ConfigError, errors.IntegrityError), match=message):
        stage.run(ScoringSettings(), "mine", finetunings, work=str(tmp_path))


def test_the_rows_that_settings_know_are_those_there_are() -> None:
    assert get_args(PublishedRow) == tuple(PUBLISHED)


def scored_pairs(work: str, model: str = "a" * 64) -> str:
    """Return the manifest of a model's scores on two sets of minimal pairs."""
    plan = StagePlan("zero-shot", {}, {"model": model}, "code", {})
    sets = {"blimp": made_pair_scores(0.6, 0.55, 0.65), "mine (1)": made_pair_scores(0.52)}
    accounts = [
        Account(what="blimp pairs", total=200, kept=200),
        Account(what="gone pairs", total=3, kept=0, dropped={"same_pieces": 3}),
    ]
    return plan.write(work, [], accounts, ZeroShotResult(sets=sets))


def test_minimal_pairs_are_in_the_table_its_data_and_mlflow_also_without_a_task(
    tmp_path: Path,
) -> None:
    work = str(tmp_path)
    pairs = scored_pairs(work)
    both = score(work, finetuned(work, 1, 0.8), zero_shot=pairs)
    alone = score(work, zero_shot=pairs)
    for manifest in (both, alone):
        result = manifest.result_as(ScoresResult)
        assert result.minimal_pairs["blimp"].phenomena["kind_1"].accuracy.value == 0.65
        assert "Minimal pairs, zero-shot (chance 50 %)" in result.text
        left_out = "Not all minimal pairs were scored:\n\n- gone pairs: 3 in = 0 kept, 3 dropped"
        assert left_out in result.text
        assert manifest.input_manifests["zero-shot"] == pairs
        data = json.loads(storage.read_bytes(f"{work}/scores/{manifest.key}/scores.json"))
        assert data["minimal_pairs"] == manifest.result["minimal_pairs"]
        run = open_client(work).get_run(str(result.mlflow_run_id))
        assert run.data.metrics["mine -1-_pairs/accuracy"] == 0.52
    assert (len(both.result_as(ScoresResult).tasks), alone.result_as(ScoresResult).tasks) == (1, {})


def test_what_does_not_go_together_makes_no_table(tmp_path: Path) -> None:
    work = str(tmp_path)
    one = finetuned(work, 1, 0.5)
    with pytest.raises(errors.ConfigError, match="sst-2 were scored on different dev sets"):
        score(work, one, finetuned(work, 2, 0.5, dev="another"))
    with pytest.raises(errors.ConfigError, match="which no fine-tuning starts from"):
        score(work, one, zero_shot=scored_pairs(work, "b" * 64))
