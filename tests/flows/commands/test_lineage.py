"""What a registered model was made of, as the registry alone tells it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from albert_core.stage import lineage
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.settings import Settings
from albert_core.stage.storage import sha256_of
from flows.commands.lineage import ModelLineage, as_json, as_text, read_model_lineage, source_files
from flows.commands.main import main
from tests.flows.tiny_way import Tiny
from tests.test_end_to_end import PROJECT

STAGES = {
    "corpus", "vocab", "examples", "task", "pretraining", "zero-shot", "finetuning", "scores",
}  # fmt: skip


@contextmanager
def work_folder_away(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave of the work folder only what is the registry's, as on another machine."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    away = Path(f"{tiny.work}-away")
    away.mkdir()
    folders = [Path(tiny.work, stage) for stage in (*STAGES, "registration", "recipes")]
    for folder in folders:
        folder.rename(away / folder.name)
    try:
        yield
    finally:
        for folder in folders:
            (away / folder.name).rename(folder)
        away.rmdir()


@pytest.fixture(scope="module")
def elsewhere(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> ModelLineage:
    """The lineage of the champion, asked where the work folder is not."""
    with pytest.MonkeyPatch.context() as patch, work_folder_away(tiny, patch):
        empty = str(tmp_path_factory.mktemp("elsewhere"))
        return read_model_lineage("models:/albert-tiny@champion", empty)


def test_the_registry_alone_leads_from_the_model_to_the_source_files(
    tiny: Tiny, elsewhere: ModelLineage
) -> None:
    assert elsewhere.title == "models:/albert-tiny/1 @champion"
    stages = {each["place"]: each for each in as_json(elsewhere)["stages"]}
    assert {each.manifest.stage for each in elsewhere.lineage.results.values()} == STAGES
    for result in elsewhere.lineage.results.values():
        assert result.uri == tiny.manifests[result.manifest.stage]
        assert result.manifest == read_manifest(result.uri)
        assert stages[result.place]["content"] == result.manifest.content
    [corpus] = elsewhere.lineage.of_stage("corpus")
    files = source_files(corpus) or []
    assert {file.name: file.sha256 for file in files} == {
        path.name: sha256_of(str(path)) for path in tiny.source.iterdir()
    }


def test_it_tells_recipe_code_and_machine_of_every_stage(elsewhere: ModelLineage) -> None:
    stages = {each["place"].split("/")[0]: each for each in as_json(elsewhere)["stages"]}
    for stage in stages.values():
        assert stage["provenance"]["call"]["module"]
        assert stage["provenance"]["machine"]["cpu"]
        assert stage["code"]
    assert stages["vocab"]["differs_from_defaults"]["vocabulary.vocab_size"] == 150
    pretraining = stages["pretraining"]
    assert pretraining["differs_from_defaults"]["training.num_steps"] == 20
    assert "training.seed" not in pretraining["differs_from_defaults"]
    assert pretraining["provenance"]["call"]["recipe"]["training"]["seed"] == 12345
    assert pretraining["libraries"]["torch"]
    [machine] = pretraining["result"]["machines"]
    assert machine["ranks"] == 1
    assert machine["threads"] >= 1
    assert stages["finetuning"]["result"]["mlflow_run_id"]


def test_a_person_reads_what_differs_from_the_defaults_and_which_files_there_were(
    tiny: Tiny, elsewhere: ModelLineage
) -> None:
    text = as_text(elsewhere)
    assert "training.num_steps 20" in text
    assert "3 source files" in text
    assert "documents: 60 in = 60 kept" in text
    assert tiny.manifests["corpus"] in text
    assert re.search(r"scores +passage-source [01]\.", text)
    for file in tiny.source.iterdir():
        assert f"{sha256_of(str(file))[:12]}" in text
        assert file.name in text


@pytest.mark.parametrize("inner", ["", "manifest.json", "model", "checkpoints/step-00000020"])
def test_a_folder_of_a_run_will_do_as_well(
    tiny: Tiny, inner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tiny.manifests["pretraining"]).parent
    assert main(["lineage", str(folder / inner), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stages = [each["place"].split("/")[0] for each in found["stages"]]
    assert stages == ["corpus", "vocab", "examples", "task", "pretraining"]
    assert found["version"] is None
    assert sum(len(files) for files in found["source_files"].values()) == 3


def test_every_stage_has_a_place() -> None:
    stages = set()
    for part in ("albert_core", "pipelines"):
        for source in (file.read_text() for file in PROJECT.glob(f"{part}/**/*.py")):
            for name in re.findall(r"^ +stage=([A-Z_]+),$", source, re.MULTILINE):
                given = re.findall(rf'^{name} = "?(\w+)"?$', source, re.MULTILINE) or [name]
                stages.add(getattr(lineage, given[0], given[0]))
    assert stages == set(lineage.STAGES)


def test_what_is_nothing_here_is_one_message(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lineage", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("error: there is no manifest.json at ")
    assert main(["lineage", "models:/albert-tiny/9", f"--work={tiny.work}"]) == 2
    assert "models:/albert-tiny/9 is not in the registry" in capsys.readouterr().err


def test_a_result_of_before_calls_were_noted_says_so(tmp_path: Path) -> None:
    uri = StagePlan("corpus", {"x": 1}, {}, "code", {}).write(str(tmp_path), [], [], Settings())
    text = as_text(read_model_lineage(uri, str(tmp_path)))
    assert re.search(r"recipe +not recorded", text)
