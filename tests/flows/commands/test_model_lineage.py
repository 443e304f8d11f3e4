"""`albert lineage`: what a registered model was made of."""

import json
import re
from pathlib import Path

import pytest

from albert_core.stage import results, storage
from albert_core.stage.manifest import read_manifest
from flows.commands.main import main
from flows.commands.model_lineage import files_of_corpus, lineage_json, read_model_lineage
from tests.flows.conftest import CHAMPION, MADE_OF, VERSION, Tiny, work_folder_away
from tests.test_end_to_end import PROJECT


def test_the_registry_alone_leads_from_the_model_to_the_source_files(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with work_folder_away(tiny, monkeypatch):
        found = read_model_lineage(CHAMPION, str(tmp_path))
    assert found.title == VERSION
    stages = {each["place"]: each for each in lineage_json(found)["stages"]}
    assert {each.manifest.stage for each in found.lineage.results.values()} == MADE_OF
    for result in found.lineage.results.values():
        assert result.uri == tiny.manifests[result.manifest.stage]
        assert result.manifest == read_manifest(result.uri)
        stage = stages[result.place]
        assert stage["content"] == result.manifest.content
        assert stage["provenance"]["call"]["module"]
        assert stage["provenance"]["machine"]["cpu"]
        assert stage["code"]
    [corpus] = found.lineage.of_stage("corpus")
    files = files_of_corpus(corpus) or []
    assert {file.name: file.sha256 for file in files} == {
        path.name: storage.sha256_of(str(path)) for path in tiny.source.iterdir()
    }
    of = {place.split("/")[0]: stage for place, stage in stages.items()}
    assert of["vocab"]["differs_from_defaults"]["vocabulary.vocab_size"] == 150
    changed = of["pretraining"]["differs_from_defaults"]
    assert (changed["training.num_steps"], changed.get("training.seed")) == (20, None)
    assert of["pretraining"]["provenance"]["call"]["recipe"]["training"]["seed"] == 12345
    assert of["pretraining"]["libraries"]["torch"]
    [machine] = of["pretraining"]["result"]["machines"]
    assert machine["ranks"] == 1 <= machine["threads"]
    assert of["finetuning"]["result"]["mlflow_run_id"]


@pytest.mark.parametrize("inner", ["", "manifest.json", "model", "checkpoints/step-00000020"])
def test_a_folder_of_a_run_will_do_as_well(
    tiny: Tiny, inner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tiny.manifests["pretraining"]).parent
    assert main(["lineage", str(folder / inner), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stages = " ".join(each["place"].split("/")[0] for each in found["stages"])
    assert (stages, found["version"]) == ("corpus vocab examples task pretraining", None)
    assert sum(len(files) for files in found["source_files"].values()) == 3


def test_every_stage_has_a_place() -> None:
    stages = set()
    for part in ("albert_core", "pipelines"):
        for source in (file.read_text() for file in PROJECT.glob(f"{part}/**/*.py")):
            for name in re.findall(r"^ +stage=(?:results\.)?([A-Z_]+),$", source, re.MULTILINE):
                means = rf'(?:import ([A-Z_]+) as {name}|^{name} = "?(\w+)"?)$'
                given = ["".join(each) for each in re.findall(means, source, re.MULTILINE)]
                stages.add(getattr(results, *(given or [name]), *given))
    assert stages == set(results.STAGES)


def test_what_is_nothing_here_is_one_message(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lineage", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("error: there is no manifest.json at ")
    assert main(["lineage", "models:/albert-tiny/9", f"--work={tiny.work}"]) == 2
    assert "models:/albert-tiny/9 is not in the registry" in capsys.readouterr().err


def test_the_text_tells_recipe_scores_and_source_files(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lineage", CHAMPION, f"--work={tiny.work}"]) == 0
    text = capsys.readouterr().out
    for line in (
        r"decision +\w",
        r"content +[0-9a-f]{12}, [\d,]+ bytes: 1 metrics, \d+ model",
        r"made of +corpus/[0-9a-f]{16}",
        r"made of +source files",
        r"recipe +.*training.num_steps 20",
        r"machine +ranks 1, threads \d+, device cpu",
        r"account +documents: 60 in = ",
        r"files +3 source files, [\d,]+ bytes\n +[0-9a-f]{12} +[\d,]+  0.jsonl",
    ):
        assert re.search(line, text), (line, text)
