"""Registering a tiny model, what the gate makes of it, and a version in a fresh process."""

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient

from albert_core.config import ModelSettings, RegistrySettings
from albert_core.conversion.huggingface import Architecture
from albert_core.conversion.model_files import model_digest
from albert_core.conversion.model_folder import load_model_folder, save_model_folder
from albert_core.model.albert import AlbertForPretraining
from albert_core.registry import champion as champion_rule
from albert_core.registry import register as stage
from albert_core.registry import versions
from albert_core.registry.candidate import read_scores
from albert_core.registry.gate import gate
from albert_core.registry.versions import MODEL_ARTIFACT, champion_to_beat, model_folder_of
from albert_core.stage import storage
from albert_core.stage.errors import RegistryError
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.tracking.server import experiment_id, open_client
from tests.albert_core.made_scores import finetuned, model_of, pretrained, scored, write_stage
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_vocab

SENTENCES = ["bado [MASK] kelu ra vo sa.", "[MASK] nosa 12 [MASK]"]


pytestmark = pytest.mark.usefixtures("work")


@pytest.fixture(scope="module")
def client(work: str) -> MlflowClient:
    return open_client(work)


def holder(client: MlflowClient, name: str, alias: str) -> str:
    return str(client.get_model_version_by_alias(name, alias).version)


def register(
    work: str, name: str, seed: int, score: float | Mapping[str, float], **options: Any
) -> Manifest:
    """Register the model of this seed with scores that never were; options go to both."""
    pretraining = pretrained(work, seed)
    about = {key: options.pop(key) for key in ("dev", "num_seeds") if key in options}
    inputs = {key: options.pop(key) for key in ("champion_scores",) if key in options}
    settings = RegistrySettings(model_name=name, **options)
    scores = scored(work, pretraining, score, **about)
    return read_manifest(stage.run(settings, pretraining, scores, work=work, **inputs))


@pytest.fixture(scope="module")
def first(work: str) -> Manifest:
    return register(work, "tiny", 0, 0.25)


def in_a_fresh_process(work: str, program: str) -> Any:
    """Return what ``program`` leaves in `result`; this project cannot be imported in it."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json\nprint(json.dumps(result))"],
        capture_output=True,
        text=True,
        cwd="/",
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "MLFLOW_TRACKING_URI": f"sqlite:///{work}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_first_version_is_champion(first: Manifest, work: str, client: MlflowClient) -> None:
    assert first.facts["alias"] == "champion"
    assert first.facts["verdict"] == "first"
    assert first.facts["reason"] == "the first champion: its score is 0.2500"
    assert first.facts["model_uri"] == "models:/tiny/1"
    assert holder(client, "tiny", "champion") == first.facts["version"]
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_its_tags_lead_down_to_the_corpus(first: Manifest, work: str, client: MlflowClient) -> None:
    version = client.get_model_version("tiny", first.facts["version"])
    for name in ("corpus", "vocab", "examples", "pretraining", "finetuning", "task", "scores"):
        manifest = read_manifest(version.tags[f"manifest.{name}"].split(", ")[0])
        assert manifest.stage == name
        assert manifest.key == version.tags[f"lineage.{name}"].split(", ")[0]
    assert len(version.tags["lineage.finetuning"].split(", ")) == 3
    assert float(version.tags["score.sst-2"]) == float(version.tags["score"]) == 0.25
    assert version.tags["decision.verdict"] == "first"
    assert version.run_id is not None
    lineage = [file.path for file in client.list_artifacts(version.run_id, "lineage")]
    assert f"lineage/corpus-{version.tags['lineage.corpus']}" in lineage
    assert client.get_run(version.run_id).info.status == "FINISHED"


def test_its_page_says_how_it_does_what_was_decided_and_how_to_see_what_it_was_made_of(
    first: Manifest, client: MlflowClient
) -> None:
    about = client.get_model_version("tiny", "1").description or ""
    scores, decision, lineage = about.split("\n\n")
    assert scores == "On dev: sst-2 0.2500."
    assert decision == f"The gate: first, {first.facts['reason']}."
    assert lineage.endswith("`albert lineage models:/tiny/1`")


def test_the_version_is_self_contained_and_has_no_pickle(first: Manifest, work: str) -> None:
    folder = Path(model_folder_of("models:/tiny@champion", work))
    root = folder.parents[1]
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert "served_model.py" in files
    assert {"artifacts/model/model.safetensors", "artifacts/model/tokenizer.json"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".bin", ".pt", ".pth"))]
    code = (root / "served_model.py").read_text()
    assert "albert_core" not in code
    requirements = (root / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in requirements} >= set(stage.SERVED_LIBRARIES)
    assert all("==" in line and "+" not in line for line in requirements)


def test_a_fresh_process_fills_masks_embeds_and_orders(first: Manifest, work: str) -> None:
    found = in_a_fresh_process(
        work,
        f"""
import sys, mlflow.pyfunc
model = mlflow.pyfunc.load_model("models:/tiny@champion")
texts = {SENTENCES!r}
pairs = [{{"text": "bado kelu.", "text_b": "ra vo."}}]
rows = [{{"text": text}} for text in texts]
assert "albert_core" not in sys.modules
result = {{
    "masks": model.predict(rows, params={{"top_k": 3}}).to_dict("records"),
    "default": len(model.predict(rows)),
    "embeddings": model.predict(rows, params={{"task": "embed"}})["embedding"].tolist(),
    "order": model.predict(pairs, params={{"task": "sentence_order"}})["probability"].tolist(),
}}
""",
    )
    places = [(row["row"], row["mask"]) for row in found["masks"]]
    assert places == [(0, 0)] * 3 + [(1, 0)] * 3 + [(1, 1)] * 3
    assert found["default"] == 3 * 5
    model, tokenizer = load_model_folder(model_folder_of("models:/tiny/1", work))
    ids = torch.tensor(
        [[2, *tokenizer.encode(["bado"])[0], 4, *tokenizer.encode(["kelu ra vo sa."])[0], 3]]
    )
    nothing = torch.zeros_like(ids)
    place = (ids[0] == 4).nonzero().T
    with torch.no_grad():
        logits, _ = model.eval()(ids, None, nothing, place)
        hidden, _ = model.encoder(ids, None, nothing)
    best = logits[0, 0].softmax(-1).topk(3)
    assert [row["piece"] for row in found["masks"][:3]] == [
        tokenizer.pieces[i] for i in best.indices.tolist()
    ]
    assert [row["probability"] for row in found["masks"][:3]] == pytest.approx(
        best.values.tolist(), abs=1e-5
    )
    assert found["embeddings"][0] == pytest.approx(hidden[0].mean(dim=0).tolist(), abs=1e-5)
    assert 0 < found["order"][0] < 1


def test_transformers_gives_the_same_logits_from_the_same_artifact(
    first: Manifest, work: str
) -> None:
    ids = torch.randint(5, 200, (3, 20), generator=torch.Generator().manual_seed(0))
    found = in_a_fresh_process(
        work,
        f"""
import mlflow.artifacts, torch
from transformers import AlbertForPreTraining
folder = mlflow.artifacts.download_artifacts("models:/tiny@champion")
model = AlbertForPreTraining.from_pretrained(folder.rstrip("/") + "/artifacts/model").eval()
ids = torch.tensor({ids.tolist()})
with torch.no_grad():
    output = model(ids, token_type_ids=(ids > 100).long())
result = [output.prediction_logits.tolist(), output.sop_logits.tolist()]
""",
    )
    model, _ = load_model_folder(model_folder_of("models:/tiny@champion", work))
    everywhere = torch.arange(20).expand(3, 20)
    with torch.no_grad():
        logits, order = model.eval()(ids, None, (ids > 100).long(), everywhere)
    torch.testing.assert_close(torch.tensor(found[0]), logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.tensor(found[1]), order, rtol=0, atol=1e-5)


def test_the_same_again_is_done_already(
    first: Manifest, work: str, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        again = register(work, "tiny", 0, 0.25)
    assert "registration: done already" in caplog.text
    assert again.facts == first.facts
    assert len(client.search_model_versions("name = 'tiny'")) == 1


def test_a_lost_manifest_does_not_make_a_second_version(work: str, client: MlflowClient) -> None:
    before = register(work, "lost", 0, 0.5)
    storage.remove(f"{work}/registration/{before.key}")
    after = register(work, "lost", 0, 0.5)
    assert after.facts["version"] == before.facts["version"] == "1"
    assert after.facts["alias"] == "champion"
    assert len(client.search_model_versions("name = 'lost'")) == 1


def test_the_run_of_a_registration_that_was_killed_is_gone_on_with(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(champion_rule, "log_model", killed)
        with pytest.raises(KilledError):
            register(work, "killed", 0, 0.5)
    experiment = experiment_id(client, work)
    [run] = client.search_runs([experiment], "attributes.run_name = 'registration-killed'")
    client.update_run(run.info.run_id, status="RUNNING")  # as kill -9 leaves it
    version = register(work, "killed", 0, 0.5)
    [found] = client.search_runs([experiment], "attributes.run_name = 'registration-killed'")
    assert found.info.run_id == run.info.run_id == version.facts["mlflow_run_id"]
    assert found.info.status == "FINISHED"


class KilledError(BaseException):
    """The process ends there."""


def killed(*_: object) -> None:
    raise KilledError


def test_a_registration_killed_after_its_version_was_made_is_ended(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(work, "half", 0, 0.7)
    with monkeypatch.context() as patch:
        patch.setattr(champion_rule, "make_candidate", killed)
        with pytest.raises(KilledError):
            register(work, "half", 1, 0.6)
    client.update_run(str(client.get_model_version("half", "2").run_id), status="RUNNING")
    again = register(work, "half", 1, 0.6)
    assert (again.facts["version"], again.facts["verdict"]) == ("2", "refused")
    assert holder(client, "half", "candidate") == "2"
    assert client.get_run(again.facts["mlflow_run_id"]).info.status == "FINISHED"


@pytest.mark.parametrize("name", ["delete_registered_model_alias", "set_registered_model_alias"])
def test_a_promotion_killed_half_way_is_ended_with_its_evidence(
    name: str, work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = f"halfway-{name[:3]}"
    register(work, model, 0, 0.70)
    real = getattr(MlflowClient, name)

    def killed_by_then(self: MlflowClient, of: str, alias: str, *rest: str) -> None:
        real(self, of, alias, *rest)
        if alias == ("candidate" if name.startswith("delete") else "previous"):
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, name, killed_by_then)
        with pytest.raises(KilledError):
            register(work, model, 1, 0.75)
    again = register(work, model, 1, 0.75)
    assert (again.facts["verdict"], again.facts["against"]) == ("promoted", "1")
    assert (holder(client, model, "champion"), holder(client, model, "previous")) == ("2", "1")
    tags = client.get_model_version(model, "2").tags
    assert json.loads(tags["decision.difference"]) == pytest.approx(0.05)
    assert tags["decision"] == again.facts["reason"]
    assert "candidate" not in client.get_registered_model(model).aliases


def test_a_registry_whose_files_are_away_decides_nothing(
    work: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(work, "away", 0, 0.70)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "download_artifacts", away)
        with pytest.raises((ConnectionError, RegistryError), match="does not answer"):
            register(work, "away", 1, 0.75)
    assert register(work, "away", 1, 0.75).facts["verdict"] == "promoted"


def test_without_its_champion_the_one_before_is_the_one_to_beat(
    work: str, client: MlflowClient
) -> None:
    for seed, score in enumerate((0.70, 0.80)):
        register(work, "gone", seed, score)
    client.delete_model_version("gone", "2")
    refused = register(work, "gone", 2, 0.60)
    assert (refused.facts["verdict"], refused.facts["against"]) == ("refused", "1")
    assert register(work, "gone", 3, 0.75).facts["verdict"] == "promoted"


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

    monkeypatch.setattr(champion_rule, "gate", slow)
    assert register(work, "meanwhile", 2, 0.75).facts["against"] == "2"
    assert len(calls) == 2


def test_a_deleted_version_is_registered_again(work: str, client: MlflowClient) -> None:
    register(work, "deleted", 0, 0.5)
    client.delete_model_version("deleted", "1")
    again = register(work, "deleted", 0, 0.5)
    assert again.facts["version"] == "2"
    assert holder(client, "deleted", "champion") == "2"


def test_a_better_one_becomes_champion(work: str, client: MlflowClient) -> None:
    register(work, "better", 0, 0.70)
    better = register(work, "better", 1, 0.75)
    assert better.facts["alias"] == "champion"
    assert (better.facts["verdict"], better.facts["against"]) == ("promoted", "1")
    assert better.facts["difference"] == pytest.approx(0.05)
    assert 0 < better.facts["lower_bound"] < 0.05
    assert holder(client, "better", "champion") == "2"
    assert holder(client, "better", "previous") == "1"
    assert "candidate" not in client.get_registered_model("better").aliases


@pytest.mark.parametrize(("name", "score"), [("equal", 0.70), ("worse", 0.60)])
def test_an_equal_and_a_worse_one_stay_candidates_with_the_reason(
    name: str, score: float, work: str, client: MlflowClient
) -> None:
    register(work, name, 0, 0.70)
    refused = register(work, name, 1, score)
    assert refused.facts["alias"] is None
    assert holder(client, name, "champion") == "1"
    assert holder(client, name, "candidate") == "2"
    tags = client.get_model_version(name, "2").tags
    assert tags["decision.verdict"] == "refused"
    assert tags["decision"] == refused.facts["reason"]
    assert tags["decision"].startswith(f"not surely better than the champion: {score - 0.7:+.4f}")
    assert tags["decision.against"] == "1"
    assert float(tags["decision.lower_bound"]) <= 0
    (task,) = json.loads(tags["decision.tasks"])
    assert (task["task"], task["champion"]) == ("sst-2", pytest.approx(0.70))


def test_one_that_fell_on_a_task_is_refused(work: str) -> None:
    register(work, "fell", 0, {"sst-2": 0.70, "rte": 0.70})
    fell = register(work, "fell", 1, {"sst-2": 0.90, "rte": 0.60})
    assert fell.facts["verdict"] == "refused"
    assert fell.facts["lower_bound"] > 0
    assert fell.facts["reason"].endswith("fell by more than 0.02: rte by 0.1000")
    allowed = register(work, "fell", 2, {"sst-2": 0.90, "rte": 0.60}, max_task_drop=0.2)
    assert allowed.facts["verdict"] == "promoted"


def test_the_setting_says_how_much_better(work: str) -> None:
    register(work, "much", 0, 0.70)
    assert register(work, "much", 1, 0.75, min_score_gain=0.05).facts["verdict"] == "refused"
    assert register(work, "much", 1, 0.75, min_score_gain=0.02).facts["verdict"] == "promoted"


def test_scores_on_other_data_are_not_compared_but_the_champions_new_ones_are(work: str) -> None:
    register(work, "data", 0, 0.9, dev="old dev")
    other = register(work, "data", 1, 0.95, dev="new dev")
    assert (other.facts["alias"], other.facts["verdict"]) == (None, "undecided")
    assert "was not scored on the same files of sst-2" in other.facts["reason"]
    new = scored(work, pretrained(work, 0), 0.6, dev="new dev")
    compared = register(work, "data", 1, 0.95, dev="new dev", champion_scores=new)
    assert compared.facts["version"] == other.facts["version"] == "2"
    assert compared.facts["verdict"] == "promoted"
    assert compared.facts["difference"] == pytest.approx(0.35)


def test_scores_of_one_that_was_champion_are_not_taken_for_the_champions(
    work: str, caplog: pytest.LogCaptureFixture
) -> None:
    for seed, score in ((0, 0.6), (1, 0.9)):
        register(work, "changed", seed, score)
    stale = scored(work, pretrained(work, 0), 0.6)
    late = register(work, "changed", 2, 0.8, champion_scores=stale)
    assert (late.facts["verdict"], late.facts["against"]) == ("refused", "2")
    assert "the champion changed meanwhile" in caplog.text


def test_one_seed_is_not_enough(work: str) -> None:
    register(work, "one-seed", 0, 0.5)
    only = register(work, "one-seed", 1, 0.9, num_seeds=1)
    assert only.facts["verdict"] == "undecided"
    assert "sst-2 was fine-tuned with 1 seed; give at least 2" in only.facts["reason"]


def test_an_alias_that_a_person_moved_is_reported_and_left(work: str, client: MlflowClient) -> None:
    register(work, "moved", 0, 0.5)
    register(work, "moved", 1, 0.6)
    client.set_registered_model_alias("moved", "champion", "1")
    again = register(work, "moved", 1, 0.6)
    assert again.facts["alias"] is None
    assert again.facts["verdict"] == "promoted"
    assert again.facts["reason"].endswith("now version 1 is champion")
    assert holder(client, "moved", "champion") == "1"


def test_what_was_decided_is_not_decided_again(work: str, client: MlflowClient) -> None:
    """Not even when the manifest is lost: a person may have rolled back since."""
    register(work, "decided", 0, 0.5)
    promoted = register(work, "decided", 1, 0.6)
    client.set_registered_model_alias("decided", "champion", "1")
    storage.remove(f"{work}/registration/{promoted.key}")
    again = register(work, "decided", 1, 0.6)
    assert (again.facts["verdict"], again.facts["alias"]) == ("promoted", None)
    assert holder(client, "decided", "champion") == "1"


def test_the_scores_of_another_model_are_refused(work: str) -> None:
    one, other = pretrained(work, 0), pretrained(work, 1)
    with pytest.raises(RegistryError, match="Fine-tune that one"):
        stage.run(RegistrySettings(), one, scored(work, other, 0.5), work=work)


def test_a_task_may_start_from_the_model_fine_tuned_on_mnli(work: str) -> None:
    model = pretrained(work, 0)
    mnli = [finetuned(work, model_of(model), "mnli", 0.8, seed) for seed in range(2)]
    rte = []
    for seed, uri in enumerate(mnli):
        save_tiny_model(model_of(uri), 10 + seed)
        rte.append(finetuned(work, model_of(uri), "rte", 0.7, seed))
    inputs = {f"finetuning-{n}": uri for n, uri in enumerate([*mnli, *rte])}
    scores = write_stage(work, "scores", {}, inputs={"all": "four"}, input_manifests=inputs)
    found = read_scores(scores, model_digest(model_of(model)))
    assert {task: each.scores for task, each in found.items()} == {
        "mnli": (0.8, 0.8),
        "rte": (0.7, 0.7),
    }
    straight = scored(work, model, {"rte": 0.7}, num_seeds=2)
    other = read_scores(straight, model_digest(model_of(model)))
    assert other["rte"].data != found["rte"].data


def test_the_champion_to_beat_is_the_champion_unless_it_is_the_candidate(work: str) -> None:
    register(work, "beat", 0, 0.5)
    assert champion_to_beat("beat", pretrained(work, 1), work) == "models:/beat/1"
    assert champion_to_beat("beat", pretrained(work, 0), work) == ""
    assert champion_to_beat("nobody", pretrained(work, 0), work) == ""


def test_a_model_far_away_is_downloaded_once(
    first: Manifest, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_local_source", lambda *_: None)
    folder = model_folder_of("models:/tiny@champion", work)
    assert folder.startswith(f"{work}/registered_models/")
    assert model_digest(folder) == first.inputs["model"]
    monkeypatch.setattr("mlflow.artifacts.download_artifacts", None)
    assert model_folder_of("models:/tiny/1", work) == folder


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/tiny@nope", "models:/tiny@nope is not in the registry at sqlite"),
        ("models:/tiny/99", "is not in the registry"),
        ("models:/nobody/1", "is not in the registry"),
        ("tiny", "expected models:/<name>@<alias>"),
    ],
)
def test_a_model_that_is_not_there_is_said(
    first: Manifest, work: str, uri: str, message: str
) -> None:
    with pytest.raises(RegistryError, match=message):
        model_folder_of(uri, work)


def test_a_registry_that_is_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match=r"at http://\*\*\*@127\.0\.0\.1:9 refuses"):
        model_folder_of("models:/tiny/1", str(tmp_path))


def serve(folder: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import
        from albert_core.registry import served_model
    assert served_model.MODEL_ARTIFACT == MODEL_ARTIFACT
    model = served_model.AlbertPyfunc()
    model.load_context(SimpleNamespace(artifacts={MODEL_ARTIFACT: folder}))  # type: ignore[arg-type]
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp("served"))
    save_tiny_model(folder)
    return serve(folder)


@pytest.mark.parametrize("task", ["fill_mask", "embed", "sentence_order"])
def test_a_bert_is_served_alike_from_the_files_of_either_class(task: str, tmp_path: Path) -> None:
    shape = {"embedding_size": 16, "hidden_size": 16, "intermediate_size": 24, "sharing": "none"}
    settings = ModelSettings.read(
        shape | {"num_hidden_layers": 2, "num_attention_heads": 2}, "test"
    )
    torch.manual_seed(0)
    model = AlbertForPretraining(settings, tiny_vocab().vocab_size)
    rows = pd.DataFrame({"text": ["bado [MASK] kelu."], "text_b": ["ra vo."]})
    said = []
    for architecture in get_args(Architecture):
        folder = str(tmp_path / architecture)
        save_model_folder(model, tiny_vocab(), folder, architecture)
        said.append(serve(folder).predict(None, rows, {"task": task}))
    one, other = said
    numbers = {"probability", "embedding"} & set(one.columns)
    assert one.drop(columns=numbers).equals(other.drop(columns=numbers))
    for name in numbers:
        np.testing.assert_allclose(np.stack(one[name]), np.stack(other[name]), atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "params", "message"),
    [
        ({"text": ["bado"]}, {}, r"row 0 has no \[MASK\] to fill: 'bado'"),
        ({"text": ["bado " * MAX_POSITIONS + "[MASK]"]}, {}, r"beyond the first 48 pieces"),
        ({"text": ["[MASK]"]}, {"top_k": 0}, "top_k is 0, expected 1 to 200"),
        ({"text": ["[MASK]", None]}, {}, "row 1: text is (None|nan), expected a text"),
        ({"text": [" "]}, {"task": "embed"}, "row 0: text is ' ', expected a text"),
        ({"text": ["a"]}, {"task": "sing"}, "task is 'sing', expected one of fill_mask, embed"),
        ({"text": ["a"]}, {"task": "sentence_order"}, "the column 'text_b' is missing"),
    ],
)
def test_bad_input_of_a_served_model_is_refused(
    served: Any, rows: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        served.predict(None, pd.DataFrame(rows), params)


def test_served_rows_do_not_depend_on_their_batch(served: Any) -> None:
    texts = [("bado kelu " * (i % 7)) + "[MASK]" for i in range(70)]
    together = served.predict(None, pd.DataFrame({"text": texts}), {"top_k": 1})
    assert together["row"].tolist() == list(range(70))
    alone = served.predict(None, pd.DataFrame({"text": texts[41:42]}), {"top_k": 1})
    assert alone["piece"][0] == together["piece"][41]
    assert alone["probability"][0] == pytest.approx(together["probability"][41], abs=1e-5)


def test_a_long_text_to_serve_is_cut(served: Any) -> None:
    rows = pd.DataFrame({"text": ["bado " * 100], "text_b": ["kelu " * 100]})
    assert len(served.predict(None, rows, {"task": "embed"})["embedding"][0]) == 32
    assert len(served.predict(None, rows, {"task": "sentence_order"})) == 1
