"""Registering a tiny model, what the gate makes of it, and a version in a fresh process."""

import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from albert_core.config import RegistrySettings
from albert_core.conversion.huggingface import read_tokenizer
from albert_core.conversion.model_files import model_digest
from albert_core.registry import register as stage
from albert_core.registry import (
    register_finetuned,
    registration,
    version_commands,
    version_files,
    versions,
)
from albert_core.registry.candidate import Candidate
from albert_core.registry.gate import gate
from albert_core.registry.measured import measure, read_scores
from albert_core.stage import errors, servers, storage
from albert_core.stage.lineage import place_in
from albert_core.stage.manifest import BEGUN, StagePlan, read_manifest
from albert_core.stage.results import CHAMPION, RegistrationResult
from albert_core.tracking.run import TrackedRun
from albert_core.tracking.server import experiment_id, open_client, output_of
from tests.albert_core.made_scores import finetuned, model_of, pretrained, scored, write_stage
from tests.albert_core.tiny_finetuned import made_finetuning
from tests.albert_core.tiny_model import load_model, logits_of, save_tiny_model

PRETRAINED = ("corpus", "vocab", "examples", "pretraining")
SENTENCE = "bado [MASK] kelu ra vo sa."


@pytest.fixture(scope="module")
def client(work: str) -> MlflowClient:
    return open_client(work)


@pytest.fixture(scope="module")
def first(work: str) -> RegistrationResult:
    """Version 1 of "tiny"."""
    return register(work, "tiny", 0, 0.25)


@pytest.fixture(autouse=True)
def files(first: RegistrationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all later versions go without the code for MLflow: writing it takes seconds."""

    def empty(candidate: Candidate, libraries: object, scratch: Path, *_: object) -> Path:
        folder = scratch / "files"
        shutil.copytree(candidate.output.folder, folder / "artifacts" / "model")
        return folder

    monkeypatch.setattr(registration, "_model_files", empty)


class KilledError(BaseException):
    """The process ends there."""


def holder(client: MlflowClient, name: str, alias: str) -> str:
    return str(client.get_model_version_by_alias(name, alias).version)


def register(
    work: str, name: str, seed: int, score: float | Mapping[str, float], **options: Any
) -> RegistrationResult:
    """Register the model of this seed with scores that never were; options go to both."""
    uri = registered(work, name, seed, score, **options)
    return read_manifest(uri).result_as(RegistrationResult)


def registered(
    work: str, name: str, seed: int, score: float | Mapping[str, float], **options: Any
) -> str:
    """Do what `register` does; return the manifest."""
    pretraining = pretrained(work, seed)
    about = {key: options.pop(key) for key in ("dev", "num_seeds") if key in options}
    inputs = {key: options.pop(key) for key in ("champion_scores",) if key in options}
    settings = RegistrySettings(model_name=name, **options)
    scores = scored(work, pretraining, score, **about)
    return stage.run(settings, pretraining, scores, work=work, **inputs)


# -- a version


def test_a_model_that_may_answer_by_chance_stays_candidate(work: str, client: MlflowClient) -> None:
    made = register(work, "by-chance", 0, 0.11)  # the best constant answer has 0.1
    assert (made.alias, made.verdict) == (None, "refused")
    assert made.reason.startswith("not surely above the best constant answer: +0.0100 on sst-2")
    assert holder(client, "by-chance", "candidate") == "1"
    assert register(work, "by-chance", 1, 0.2).verdict == "first"


def test_a_task_is_compared_with_its_best_champion(work: str) -> None:
    for seed, rte in enumerate((0.80, 0.77, 0.74)):
        gained = {"sst-2": 0.5 + 0.1 * seed, "rte": rte}
        found = register(work, "falling", seed, gained, max_task_drop=0.04)
    assert (found.verdict, found.alias) == ("refused", None)
    assert found.reason.endswith("fell by more than 0.04: rte by 0.0600")


def test_a_version_of_which_no_task_was_scored_is_listed_with_a_dash(
    work: str, client: MlflowClient
) -> None:
    register(work, "by-pairs", 0, 0.5)
    client.delete_model_version_tag("by-pairs", "1", "score")
    assert re.search(r"1  champion +-  first:", version_commands.list_versions("by-pairs", work))


def test_a_score_that_is_no_number_is_not_registered(work: str) -> None:
    uri = finetuned(work, model_of(pretrained(work, 0)), "rte", 0.5, 0)
    manifest = read_manifest(uri)
    manifest.result["scores"]["accuracy"]["value"] = float("nan")
    with pytest.raises(errors.RegistryError, match="accuracy on rte is nan, expected a number"):
        measure({uri: manifest}, {"rte": "data"})


def test_the_first_version_is_champion_and_its_page_says_why(
    first: RegistrationResult, client: MlflowClient
) -> None:
    assert (first.alias, first.verdict, first.model_uri) == ("champion", "first", "models:/tiny/1")
    assert first.reason.startswith("the first champion: above the best constant answer by +0.1500")
    assert holder(client, "tiny", "champion") == first.version
    about = client.get_model_version("tiny", "1").description or ""
    table, dev, gated, more = about.split("\n\n")
    assert table.splitlines()[2:7] == [
        "| text | notes/**: 900 documents, 3.5 MB |",
        "| vocabulary | 4,000 pieces |",
        "| examples | 30,000 of up to 64 pieces |",
        "| size | 500,000 parameters |",
        "| training | 1,200 updates |",
    ]
    assert "masked lm loss 5.750 [5.700, 5.800]" in table
    assert (dev, gated) == ("On dev: sst-2 0.2500.", f"The gate: first, {first.reason}.")
    assert more.endswith("`albert lineage models:/tiny/1` prints them.")
    tags = client.get_model_version("tiny", "1").tags
    assert tags["about.vocabulary"] == "4,000 pieces"
    assert "champion" in (client.get_registered_model("tiny").description or "")
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_a_model_whose_training_went_on_from_an_unfinished_one_is_registered(
    work: str, client: MlflowClient
) -> None:
    begun = StagePlan("pretraining", {}, {"seed": "unfinished"}, "code", {})
    assert begun.find(work) is None
    uri = pretrained(work, 7, pretraining=storage.join(begun.folder(work), BEGUN))
    stage.run(RegistrySettings(model_name="went-on"), uri, scored(work, uri, 0.25), work=work)
    version = client.get_model_version("went-on", "1")
    assert "| training | 1,200 updates |" in (version.description or "")
    places = version.tags["lineage.pretraining"].split(", ")
    assert sorted(places) == sorted([read_manifest(uri).key, begun.key])


def test_its_tags_and_its_run_lead_down_to_the_corpus(
    first: RegistrationResult, work: str, client: MlflowClient
) -> None:
    version, lineage = version_files.read_version("models:/tiny@champion", work)
    for name in ("corpus", "vocab", "examples", "pretraining", "finetuning", "task", "scores"):
        manifest = read_manifest(version.tags[f"manifest.{name}"].split(", ")[0])
        assert manifest.stage == name
        assert manifest.key == version.tags[f"lineage.{name}"].split(", ")[0]
    assert len(version.tags["lineage.finetuning"].split(", ")) == 3
    assert float(version.tags["score.sst-2"]) == float(version.tags["score"]) == 0.25
    assert version.tags["decision.verdict"] == "first"
    assert lineage.results.keys() == version.made_of.keys()
    assert {place: result.uri for place, result in lineage.results.items()} == version.made_of
    run = client.get_run(version.mlflow_run_id)
    assert (run.info.status, run.data.metrics["dev/sst-2"]) == ("FINISHED", 0.25)


def test_a_version_of_a_tracked_training_is_an_output_of_that_training(
    work: str, client: MlflowClient
) -> None:
    pretraining = pretrained(work, 7)
    folder = pretraining.rpartition("/")[0]
    tags = {"recipe": "small", "text": "wiki"}
    with TrackedRun(work, folder, "pretraining", tags) as run:
        run.log_metrics(600, {"held_out/masked_lm_loss": 6.0})
        run.log_metrics(1200, {"held_out/masked_lm_loss": 5.75})
        run.log_model(output_of(pretraining, model_digest(model_of(pretraining))))
    version = register(work, "tracked", 7, 0.5)
    assert version.mlflow_run_id == run.run_id
    found = client.get_run(str(run.run_id))
    assert found.data.metrics["score"] == 0.5
    assert found.outputs is not None
    [output] = found.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    scores = {metric.key: metric.value for metric in model.metrics or ()}
    assert scores == {"held_out/masked_lm_loss": 5.75, "dev/sst-2": 0.5, "score": 0.5}
    [dev] = [metric for metric in model.metrics or () if metric.key == "dev/sst-2"]
    assert (dev.step, dev.dataset_name, dev.dataset_digest) == (1200, "SST-2/dev", "dev")
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "tracked", "version": "1"}]
    assert (model.source_run_id, model.model_type) == (run.run_id, "pretrained")
    tags = client.get_model_version("tracked", "1").tags
    assert (tags["recipe"], tags["text"]) == ("small", "wiki")
    again = register(work, "tracked-again", 7, 0.5)  # must not change the files of the other
    outputs = client.get_run(str(run.run_id)).outputs
    assert (again.version, again.mlflow_run_id) == ("1", run.run_id)
    assert outputs is not None
    assert len(outputs.model_outputs) == 2


def test_the_version_is_self_contained_and_has_no_pickle(work: str) -> None:
    folder = Path(version_files.model_folder_of("models:/tiny@champion", work))
    root = folder.parents[1]
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert [name for name in files if name.endswith(".safetensors")] == [
        "artifacts/model/model.safetensors"
    ]
    assert {"artifacts/model/model.safetensors", "artifacts/model/tokenizer.json"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".bin", ".pt", ".pth"))]
    assert "albert_core" not in (root / "served_model.py").read_text()
    requirements = (root / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in requirements} >= set(stage.SERVED_LIBRARIES)
    assert all("==" in line and "+" not in line for line in requirements)


def test_a_fresh_process_without_this_project_computes_what_the_model_does(work: str) -> None:
    program = f"""
import json, sys, mlflow.artifacts, mlflow.pyfunc, mlflow.transformers
from transformers import AlbertForPreTraining
model = mlflow.pyfunc.load_model("models:/tiny@champion")
assert "albert_core" not in sys.modules
folder = mlflow.artifacts.download_artifacts("models:/tiny@champion")
AlbertForPreTraining.from_pretrained(folder.rstrip("/") + "/artifacts/model")
filled = mlflow.transformers.load_model("models:/tiny@champion")({SENTENCE!r}, top_k=3)
print(json.dumps({{
    "masks": model.predict([{{"text": {SENTENCE!r}}}], params={{"top_k": 3}}).to_dict("records"),
    "example": list(model.predict(model.input_example)),
    "returned": model.metadata.signature.outputs.input_names(),
    "pipeline": [[each["token_str"], each["score"]] for each in filled],
}}))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="/", env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    folder = version_files.model_folder_of("models:/tiny/1", work)
    model, tokenizer = load_model(folder).eval(), read_tokenizer(folder)
    [before], [after] = tokenizer.encode(["bado"]), tokenizer.encode(["kelu ra vo sa."])
    text = torch.tensor([[2, *before, 4, *after, 3]])
    with torch.no_grad():
        masked, _ = logits_of(model, text, None, torch.zeros_like(text), (text[0] == 4).nonzero().T)
    best = masked[0, 0].softmax(-1).topk(3)
    pieces = [tokenizer.pieces[i] for i in best.indices.tolist()]
    assert [row["piece"] for row in found["masks"]] == pieces
    probabilities = [row["probability"] for row in found["masks"]]
    assert probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
    assert [piece for piece, _ in found["pipeline"]] == [piece.lstrip("▁") for piece in pieces]
    assert [p for _, p in found["pipeline"]] == pytest.approx(probabilities, abs=1e-5)
    assert found["example"] == found["returned"] == ["row", "mask", "piece", "probability"]


def test_the_same_again_is_done_already(
    first: RegistrationResult, work: str, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        again = register(work, "tiny", 0, 0.25)
    assert "registration: done already" in caplog.text
    assert again == first
    assert len(client.search_model_versions("name = 'tiny'")) == 1


def test_the_same_again_by_another_path_to_the_work_folder_is_done_already(
    first: RegistrationResult, work: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(work)
    assert register(str(tmp_path / "link"), "tiny", 0, 0.25) == first


def test_the_searches_of_the_documentation_find_what_they_say(work: str) -> None:
    pretraining = pretrained(work, 8)
    folder = pretraining.rpartition("/")[0]
    with TrackedRun(work, folder, "pretraining", {"recipe": "tiny"}) as run:
        run.log_metrics(1200, {"held_out/masked_lm_loss": 5.75})
    register(work, "albert-tiny", 8, {"sst-2": 0.9})
    page = (Path(__file__).parents[3] / "docs/registry.md").read_text()
    code = page.partition("## Search by score\n")[2].partition("```python\n")[2].partition("```")[0]
    said = "print(best['source_run_id'][0], *trainings['run_id'], *good[-1:]['name'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{said}"],
        capture_output=True,
        text=True,
        env=os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db"},
    )
    assert done.stdout.split() == [run.run_id, run.run_id, "tiny"], done.stderr


def test_of_a_model_fine_tuned_from_a_version_the_registry_knows_the_text(
    work: str, caplog: pytest.LogCaptureFixture
) -> None:
    registered_folder = version_files.model_folder_of("models:/tiny@champion", work)
    _, before = version_files.read_version("models:/tiny@champion", work)
    places = {result.place for stage in PRETRAINED for result in before.of_stage(stage)}
    mnli = made_finetuning(work, "mnli", 0.5, model_folder=registered_folder)
    rte = made_finetuning(work, "rte", 0.5, model_folder=model_of(mnli))
    register_finetuned.run(RegistrySettings(model_name="from"), rte, work=work)
    version, lineage = version_files.read_version("models:/from-rte/1", work)
    made_of = [place_in(uri) for uri in (mnli, rte)]
    assert version.made_of.keys() == lineage.results.keys() == {*places, *made_of}
    assert lineage.before(made_of[-1]) == lineage.results.keys()
    about = [tag for tag in version.tags if tag.startswith("about.")]
    assert {"about.text", "about.training", "about.fine_tuning"} <= set(about)
    assert "of which neither" not in caplog.text
    sst_2 = made_finetuning(work, "sst-2", 0.5)
    register_finetuned.run(RegistrySettings(model_name="from"), sst_2, work=work)
    assert "began with the model m, of which neither" in caplog.text


# -- registrations that are interrupted


@pytest.mark.parametrize(
    ("where", "alias"),
    [
        ("albert_core.registry.registration.write_measured", ""),
        ("albert_core.registry.versions.make_candidate", ""),
        ("mlflow.MlflowClient.set_registered_model_alias", "previous"),
        ("mlflow.MlflowClient.delete_registered_model_alias", "candidate"),
    ],
)
def test_a_registration_that_was_killed_is_completed_with_its_evidence(
    where: str, alias: str, work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = "killed " + where.rpartition(".")[2]
    register(work, model, 0, 0.70)
    real = getattr(MlflowClient, where.rpartition(".")[2], None)

    def killed(*given: Any) -> None:
        if real:
            real(*given)
        if not alias or alias in given:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(where, killed)
        with pytest.raises(KilledError):
            register(work, model, 1, 0.75)
    again = register(work, model, 1, 0.75)
    assert (again.version, again.verdict, again.against) == ("2", "promoted", "1")
    assert again.difference == pytest.approx(0.05)
    aliases = client.get_registered_model(model).aliases
    assert {name: str(number) for name, number in aliases.items()} == {
        "champion": "2", "previous": "1",
    }  # fmt: skip
    tags = client.get_model_version(model, "2").tags
    assert (tags["decision"], tags["decision.against"]) == (again.reason, "1")
    condition = f"attributes.run_name LIKE 'registration: {model}, %'"
    runs = client.search_runs([experiment_id(client, work)], condition)
    assert len(runs) == 2
    assert [len(run.outputs.model_outputs) for run in runs if run.outputs] == [1, 1]


def test_a_registry_whose_files_are_unavailable_decides_nothing(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(work, "away", 0, 0.70)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.artifacts.download_artifacts", away)
        with pytest.raises((ConnectionError, errors.RegistryError), match="does not answer"):
            register(work, "away", 1, 0.75)
    assert register(work, "away", 1, 0.75).verdict == "promoted"


def test_a_deleted_version_is_registered_again(work: str, client: MlflowClient) -> None:
    register(work, "deleted", 0, 0.5)
    client.delete_model_version("deleted", "1")
    assert register(work, "deleted", 0, 0.5).version == "2"
    assert holder(client, "deleted", "champion") == "2"


def test_a_version_that_lost_its_files_is_told_apart_and_gets_them_again(
    work: str, client: MlflowClient
) -> None:
    name = "lost"
    inputs = {"pretraining": pretrained(work, 0), "scores": ""}
    inputs["scores"] = scored(work, inputs["pretraining"], 0.5)
    settings = RegistrySettings(model_name=name)
    made = stage.run(settings, **inputs, work=work)
    assert stage.find_done(settings, **inputs, work=work) == made
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_REGISTRY_URI", f"{servers.tracking_uri(work)}?timeout=60")
        assert stage.find_done(settings, **inputs, work=work) == made
    version = versions.champion_of(client, name)
    assert version is not None
    files = Path(version_files.VersionFiles(client, version).folder)
    for needed in ("spiece.model", "tokenizer.json"):
        path = files / "artifacts/model" / needed
        content = path.read_bytes()
        path.unlink()
        assert stage.find_done(settings, **inputs, work=work) is None
        assert version_files.VersionFiles(client, version).are_lost
        path.write_bytes(content)
    shutil.rmtree(files)

    assert stage.find_done(settings, **inputs, work=work) is None
    assert version_commands.champion_to_beat(name, pretrained(work, 1), "key", work) == ""
    assert register(work, name, 1, 0.9).verdict == "undecided"
    assert version_commands.list_versions(name, work).count(version_files.GONE) == 1
    with pytest.raises(errors.RegistryError, match="has lost its files"):
        version_files.model_folder_of(version.uri, work)
    version_commands.promote_version(name, "2", "the other lost its files", work)
    with pytest.raises(errors.RegistryError, match=f"version 1 of {name} has lost its files"):
        version_commands.roll_back_to(name, None, "", work)

    client.set_model_version_tag(name, "1", version_files.CODE_TAG, "of code with other comments")
    assert register(work, name, 0, 0.5).version == "1"
    listed = version_commands.list_versions(name, work)
    assert version_files.GONE not in listed
    assert version_files.CHANGED not in listed
    assert (
        model_digest(version_files.model_folder_of(version.uri, work))
        == version.tags["model_digest"]
    )
    assert len(client.search_model_versions(f"name = '{name}'")) == 2


# -- who becomes champion


def test_one_that_is_no_better_stays_candidate_with_the_reason(
    work: str, client: MlflowClient
) -> None:
    name, score = "worse", 0.60
    register(work, name, 0, 0.70)
    refused = register(work, name, 1, score)
    assert refused.alias is None
    assert holder(client, name, "champion") == "1"
    assert holder(client, name, "candidate") == "2"
    tags = client.get_model_version(name, "2").tags
    assert tags["decision.verdict"] == "refused"
    assert tags["decision"] == refused.reason
    assert tags["decision"].startswith(f"not surely better than the champion: {score - 0.7:+.4f}")
    assert tags["decision.against"] == "1"
    assert float(tags["decision.lower_bound"]) <= 0
    (task,) = json.loads(tags["decision.tasks"])
    assert (task["task"], task["champion"]) == ("sst-2", pytest.approx(0.70))


def test_without_its_champion_the_one_before_is_the_one_to_beat(
    work: str, client: MlflowClient
) -> None:
    for seed, score in enumerate((0.70, 0.80)):
        register(work, "gone", seed, score)
    client.delete_model_version("gone", "2")
    refused = register(work, "gone", 2, 0.60)
    assert (refused.verdict, refused.against) == ("refused", "1")
    assert register(work, "gone", 3, 0.75).verdict == "promoted"


def test_without_the_champions_alias_the_newest_champion_is_the_one_to_beat(
    work: str, client: MlflowClient
) -> None:
    for seed, score in enumerate((0.60, 0.80)):
        register(work, "unnamed", seed, score)
    for alias in (CHAMPION, versions.PREVIOUS):
        client.delete_registered_model_alias("unnamed", alias)
    refused = register(work, "unnamed", 2, 0.70)
    assert (refused.verdict, refused.against) == ("refused", "2")
    assert register(work, "unnamed", 3, 0.90).verdict == "promoted"


def test_an_alias_of_a_version_that_is_not_there_is_not_taken_for_no_champion(work: str) -> None:
    register(work, "dangling", 0, 0.70)
    with closing(sqlite3.connect(f"{work}/mlflow.db")) as database, database:
        aliases = "registered_model_aliases"
        database.execute(f"update {aliases} set version = 0 where name = 'dangling'")
    with pytest.raises(errors.RegistryError, match="'champion' of dangling is that of version 0"):
        register(work, "dangling", 1, 0.60)


def test_a_champion_that_came_during_the_comparison_is_compared_with(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(work, "meanwhile", 0, 0.70)
    register(work, "meanwhile", 1, 0.60)
    calls: list[tuple[Any, ...]] = []

    def slow(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            client.set_registered_model_alias("meanwhile", "champion", "2")
        return gate(*given)

    monkeypatch.setattr(registration, "gate", slow)
    assert register(work, "meanwhile", 2, 0.75).against == "2"
    assert len(calls) == 2


def test_what_cannot_be_compared_is_decided_once_it_can(work: str) -> None:
    register(work, "data", 0, 0.9, dev="old dev")
    other = register(work, "data", 1, 0.95, dev="new dev")
    assert (other.alias, other.verdict) == (None, "undecided")
    assert "was not scored on the same files of sst-2" in other.reason
    new = scored(work, pretrained(work, 0), 0.6, dev="new dev")
    compared = register(work, "data", 1, 0.95, dev="new dev", champion_scores=new)
    assert compared.version == other.version == "2"
    assert compared.verdict == "promoted"
    assert compared.difference == pytest.approx(0.35)
    assert compared.reason.endswith(
        "; the champion was registered with 0.9000 on sst-2, of other files or settings"
    )


def test_without_a_task_of_the_champion_nothing_is_decided(work: str) -> None:
    register(work, "fewer", 0, {"sst-2": 0.6, "rte": 0.8})
    new = scored(work, pretrained(work, 0), 0.6)
    fewer = register(work, "fewer", 1, 0.9, champion_scores=new)
    assert (fewer.verdict, fewer.alias) == ("undecided", None)
    assert fewer.reason.startswith("the candidate was not scored on rte, as the champion was")


def test_scores_of_a_former_champion_are_not_taken_for_the_champions(
    work: str, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, score in ((0, 0.6), (1, 0.9)):
        register(work, "changed", seed, score)
    stale = scored(work, pretrained(work, 0), 0.6)
    late = register(work, "changed", 2, 0.8, champion_scores=stale)
    assert (late.verdict, late.against) == ("refused", "2")
    assert "the champion changed meanwhile" in caplog.text


def test_an_alias_that_a_person_moved_is_reported_and_left(work: str, client: MlflowClient) -> None:
    register(work, "moved", 0, 0.5)
    manifest = registered(work, "moved", 1, 0.6)
    client.set_registered_model_alias("moved", "champion", "1")
    again = register(work, "moved", 1, 0.6)
    assert (again.alias, again.verdict) == (None, "promoted")
    assert again.reason.endswith("now version 1 is champion")
    storage.remove(manifest.rpartition("/")[0])  # without it nothing is decided again either
    lost = register(work, "moved", 1, 0.6)
    assert (lost.version, lost.alias, lost.verdict, lost.against) == ("2", None, "promoted", "1")
    assert holder(client, "moved", "champion") == "1"


def test_what_a_person_promoted_gets_no_verdict_of_the_gate(work: str) -> None:
    register(work, "by-hand", 0, 0.5)
    register(work, "by-hand", 1, 0.6, num_seeds=1)
    version_commands.promote_version("by-hand", "2", "it reads better", work)
    again = register(work, "by-hand", 1, 0.6, num_seeds=1)
    assert (again.alias, again.verdict, again.difference) == ("champion", "undecided", None)


# -- scores


def test_the_scores_of_another_model_are_refused(work: str) -> None:
    one, other = pretrained(work, 0), pretrained(work, 1)
    with pytest.raises(errors.RegistryError, match="Fine-tune that one"):
        stage.run(RegistrySettings(), one, scored(work, other, 0.5), work=work)


def test_a_task_may_start_from_the_model_fine_tuned_on_mnli(work: str) -> None:
    model = pretrained(work, 0)
    mnli = [finetuned(work, model_of(model), "mnli", 0.8, seed) for seed in range(2)]
    rte = []
    for seed, uri in enumerate(mnli):
        save_tiny_model(model_of(uri), 10 + seed)
        rte.append(finetuned(work, model_of(uri), "rte", 0.7, seed))
    inputs = {f"finetuning-{n}": uri for n, uri in enumerate([*mnli, *rte])}
    scores = write_stage(work, "scores", inputs={"all": "four"}, input_manifests=inputs)
    found = read_scores(scores, model_digest(model_of(model)))
    assert {task: each.scores for task, each in found.items()} == {
        "mnli": (0.8, 0.8),
        "rte": (0.7, 0.7),
    }
    straight = scored(work, model, {"rte": 0.7}, num_seeds=2)
    other = read_scores(straight, model_digest(model_of(model)))
    assert other["rte"].data != found["rte"].data


def test_the_champion_to_beat_is_the_champion_unless_it_is_the_candidate(work: str) -> None:
    assert (
        version_commands.champion_to_beat("tiny", pretrained(work, 1), "key", work)
        == "models:/tiny/1"
    )
    assert version_commands.champion_to_beat("tiny", pretrained(work, 0), "key", work) == ""
    assert version_commands.champion_to_beat("nobody", pretrained(work, 0), "key", work) == ""


def test_a_model_with_a_verdict_has_no_champion_to_beat(work: str) -> None:
    name = "decided"

    def to_beat(seed: int, score: float) -> str:
        scores = scored(work, pretrained(work, seed), score)
        settings = RegistrySettings(model_name=name)
        return stage.champion_to_beat(settings, pretrained(work, seed), scores, work)

    register(work, name, 0, 0.5)
    assert to_beat(1, 0.4) == "models:/decided/1"
    assert register(work, name, 1, 0.4).verdict == "refused"
    assert to_beat(1, 0.4) == ""
    assert to_beat(2, 0.9) == "models:/decided/1"
    assert register(work, name, 2, 0.9).verdict == "promoted"
    assert to_beat(0, 0.5) == ""


# -- the files of a version


def test_a_model_on_another_machine_is_downloaded_once(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_files, "_local_folder", lambda _: None)
    folder = version_files.model_folder_of("models:/tiny@champion", work)
    assert folder.startswith(f"{work}/registered_models/")
    assert model_digest(folder) == model_digest(model_of(pretrained(work, 0)))
    monkeypatch.setattr("mlflow.artifacts.download_artifacts", None)
    assert version_files.model_folder_of("models:/tiny/1", work) == folder


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/tiny@nope", "models:/tiny@nope is not in the registry at sqlite"),
        ("models:/nobody/1", "is not in the registry"),
        ("tiny", "expected models:/<name>@<alias>"),
    ],
)
def test_a_model_that_does_not_exist_is_reported(work: str, uri: str, message: str) -> None:
    with pytest.raises(errors.RegistryError, match=message):
        version_files.model_folder_of(uri, work)


@pytest.mark.parametrize("ask", [version_files.model_folder_of, version_files.read_version])
def test_a_version_that_is_not_this_projects_is_refused(
    ask: Callable[[str, str], Any], work: str, client: MlflowClient, tmp_path: Path
) -> None:
    if not client.search_registered_models("name = 'foreign'"):
        client.create_registered_model("foreign")
    run = client.create_run(experiment_id(client, work))
    made = client.create_model_version("foreign", str(tmp_path), run.info.run_id)
    with pytest.raises(errors.RegistryError, match="not registered by this project"):
        ask(f"models:/foreign/{made.version}", work)


def test_an_unavailable_registry_is_reported_without_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(errors.RegistryError, match=r"at http://\*\*\*@127\.0\.0\.1:9 refuses"):
        version_files.model_folder_of("models:/tiny/1", str(tmp_path))
