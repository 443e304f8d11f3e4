"""Registering a tiny model, the champion's rule, and using a version in a fresh process."""

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient

from albert_core import registry as stage
from albert_core.config import ModelSettings, RegistrySettings
from albert_core.contract import storage
from albert_core.contract.errors import RegistryError
from albert_core.contract.manifest import Manifest, StagePlan, read_manifest
from albert_core.conversion.huggingface import Architecture
from albert_core.conversion.model_folder import load_model_folder, save_model_folder
from albert_core.finetuning import model_digest
from albert_core.model import AlbertForPretraining
from albert_core.model_registry import champion as champion_rule
from albert_core.model_registry import model_versions
from albert_core.model_registry.model_versions import (
    MODEL_ARTIFACT,
    champion_folder,
    model_folder_of,
)
from albert_core.tracking import experiment_id, open_client
from tests.albert_core.tiny_model import MAX_POSITIONS, save_tiny_model
from tests.albert_core.tiny_vocab import tiny_vocab

SENTENCES = ["bado [MASK] kelu ra vo sa.", "[MASK] nosa 12 [MASK]"]


@pytest.fixture(scope="module", autouse=True)
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        yield str(tmp_path_factory.mktemp("work"))


@pytest.fixture(scope="module")
def client(work: str) -> MlflowClient:
    return open_client(work)


def holder(client: MlflowClient, name: str, alias: str) -> str:
    return str(client.get_model_version_by_alias(name, alias).version)


def write_stage(work: str, name: str, facts: dict[str, Any], **changes: Any) -> str:
    plan = StagePlan(
        name,
        changes.get("settings", {}),
        changes.get("inputs", {}),
        "code",
        {},
        changes.get("input_manifests", {}),
    )
    return plan.write(work, [], [], facts)


def pretrained(work: str, seed: int) -> str:
    """Return the manifest of a pretraining that never was, with a model and all before it."""
    corpus = write_stage(work, "corpus", {})
    vocab = write_stage(work, "vocab", {}, input_manifests={"corpus": corpus})
    examples = write_stage(work, "examples", {}, input_manifests={"corpus": corpus, "vocab": vocab})
    uri = write_stage(
        work,
        "pretraining",
        {"model_folder": "model"},
        inputs={"seed": str(seed)},
        input_manifests={"examples": examples, "vocab": vocab},
    )
    save_tiny_model(f"{uri.rpartition('/')[0]}/model", seed)
    return uri


def scored(work: str, pretraining: str, score: float, dev: str = "dev") -> str:
    """Return the manifest of a fine-tuning that never was."""
    return write_stage(
        work,
        "finetuning",
        {
            "task": "cola",
            "metric": "matthews",
            "score": score,
            "scores": {"matthews": score, "accuracy": 0.5},
        },
        inputs={"model": model_digest(f"{pretraining.rpartition('/')[0]}/model"), "dev": dev},
        settings={"score": "not a setting", "num_steps": 1},
        input_manifests={"pretraining": pretraining, "task": write_stage(work, "task", {})},
    )


def register(work: str, name: str, seed: int, score: float, **options: Any) -> Manifest:
    pretraining = pretrained(work, seed)
    finetuning = scored(work, pretraining, score, options.pop("dev", "dev"))
    settings = RegistrySettings(model_name=name, min_score_gain=options.pop("min_score_gain", 0.0))
    return read_manifest(stage.run(settings, pretraining, finetuning, work=work, **options))


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
    assert first.facts["reason"] == "the first champion, with matthews 0.250"
    assert first.facts["model_uri"] == "models:/tiny/1"
    assert first.facts["champion_score"] == 0.25
    assert holder(client, "tiny", "champion") == first.facts["version"]
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_its_tags_lead_down_to_the_corpus(first: Manifest, work: str, client: MlflowClient) -> None:
    version = client.get_model_version("tiny", first.facts["version"])
    for name in ("corpus", "vocab", "examples", "pretraining", "finetuning", "task"):
        manifest = read_manifest(version.tags[f"manifest.{name}"])
        assert manifest.stage == name
        assert manifest.key == version.tags[f"lineage.{name}"]
    assert version.tags["score.matthews"] == "0.25"
    assert version.tags["metric"] == "matthews"
    assert version.run_id is not None
    lineage = [file.path for file in client.list_artifacts(version.run_id, "lineage")]
    assert f"lineage/corpus-{version.tags['lineage.corpus']}" in lineage
    assert client.get_run(version.run_id).info.status == "FINISHED"


def test_the_version_is_self_contained_and_has_no_pickle(first: Manifest, work: str) -> None:
    folder = Path(model_folder_of("models:/tiny@champion", work))
    root = folder.parents[1]
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert "registered_model.py" in files
    assert {"artifacts/model/model.safetensors", "artifacts/model/tokenizer.json"} <= files
    assert not [name for name in files if name.endswith((".pkl", ".bin", ".pt", ".pth"))]
    code = (root / "registered_model.py").read_text()
    assert "albert_core" not in code
    requirements = (root / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in requirements} >= set(stage.SERVED.requirements)
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
    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

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


def test_a_deleted_version_is_registered_again(work: str, client: MlflowClient) -> None:
    register(work, "deleted", 0, 0.5)
    client.delete_model_version("deleted", "1")
    again = register(work, "deleted", 0, 0.5)
    assert again.facts["version"] == "2"
    assert holder(client, "deleted", "champion") == "2"


def test_only_a_better_one_becomes_champion(work: str, client: MlflowClient) -> None:
    register(work, "rule", 0, 0.5)
    equal = register(work, "rule", 1, 0.5)
    assert equal.facts["alias"] is None
    assert equal.facts["champion_score"] == 0.5
    assert equal.facts["reason"] == (
        "not better than the champion: matthews 0.5000 against 0.5000 of version 1"
    )
    better = register(work, "rule", 2, 0.75)
    assert better.facts["alias"] == "champion"
    assert holder(client, "rule", "champion") == "3"
    assert holder(client, "rule", "previous") == "1"
    too_little = register(work, "rule", 3, 0.8, min_score_gain=0.1)
    assert too_little.facts["alias"] is None
    assert "by more than 0.1" in too_little.facts["reason"]


def test_scores_on_other_data_are_not_compared_but_the_champions_new_ones_are(work: str) -> None:
    register(work, "data", 0, 0.9, dev="old dev")
    other = register(work, "data", 1, 0.95, dev="new dev")
    assert other.facts["alias"] is None
    assert "was not scored on the same task data" in other.facts["reason"]
    champion = scored(work, pretrained(work, 0), 0.6, dev="new dev")
    compared = register(work, "data", 2, 0.7, dev="new dev", champion_finetuning=champion)
    assert compared.facts["alias"] == "champion"
    assert "0.7000 against 0.6000 of version 1" in compared.facts["reason"]


def test_an_alias_that_a_person_moved_is_reported_and_left(work: str, client: MlflowClient) -> None:
    register(work, "moved", 0, 0.5)
    register(work, "moved", 1, 0.6)
    client.set_registered_model_alias("moved", "champion", "1")
    again = register(work, "moved", 1, 0.6)
    assert again.facts["alias"] is None
    assert again.facts["reason"].endswith("now version 1 is champion")
    assert holder(client, "moved", "champion") == "1"


def test_the_scores_of_another_model_are_refused(work: str) -> None:
    one, other = pretrained(work, 0), pretrained(work, 1)
    with pytest.raises(RegistryError, match="Fine-tune the model in"):
        stage.run(RegistrySettings(), one, scored(work, other, 0.5), work=work)


def test_the_champions_folder_is_found(first: Manifest, work: str) -> None:
    folder = champion_folder("tiny", work)
    assert folder is not None
    assert model_digest(folder) == read_digest(first)
    assert champion_folder("nobody", work) is None


def read_digest(manifest: Manifest) -> str:
    return manifest.inputs["model"]


def test_a_model_far_away_is_downloaded_once(
    first: Manifest, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_versions, "_local_source", lambda *_: None)
    folder = model_folder_of("models:/tiny@champion", work)
    assert folder.startswith(f"{work}/registered_models/")
    assert model_digest(folder) == read_digest(first)
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
    with pytest.raises(RegistryError, match=r"the registry at http://127\.0\.0\.1:9 refuses"):
        champion_folder("tiny", str(tmp_path))


def serve(folder: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself, on import
        from albert_core.model_registry import registered_model
    assert registered_model.MODEL_ARTIFACT == MODEL_ARTIFACT
    model = registered_model.AlbertPyfunc()
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
