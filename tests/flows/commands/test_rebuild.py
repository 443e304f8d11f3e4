"""A model made again from its lineage, and what is said when it does not come out equal."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage.errors import IntegrityError, SourceError
from albert_core.stage.lineage import PRETRAINING, Lineage, Result
from albert_core.stage.manifest import Manifest, StagePlan, read_manifest
from albert_core.stage.provenance import Call, called_as
from albert_core.stage.settings import Settings
from flows.commands.lineage import ModelLineage, read_model_lineage
from flows.commands.rebuild import as_text, check, rebuild
from tests.flows.commands.test_lineage import work_folder_away
from tests.flows.tiny_way import Tiny, run_in_this_process, write_source
from tests.generated_text import write_jsonl
from tests.test_end_to_end import ALBERT, PROJECT, run_flow

CHAMPION = "models:/albert-tiny@champion"
STAGES = [
    "corpus", "vocab", "examples", "pretraining", "task", "zero-shot", "finetuning", "scores",
]  # fmt: skip


def test_a_registered_model_is_made_again_from_the_registry_alone_and_is_equal(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    into = str(tmp_path / "rebuilt")
    with work_folder_away(tiny, monkeypatch):
        found = read_model_lineage(CHAMPION, str(tmp_path))
        assert check(found) == []
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        done = rebuild(found, into, run_in_this_process)
    assert sorted(each.stage for each in done.stages) == sorted(STAGES)
    assert done.is_equal, as_text(done)
    assert done.model
    for each in done.stages:
        assert each.manifest.startswith(into)
        assert read_manifest(each.manifest).content == each.content
    assert "Equal in every stage, bit for bit." in as_text(done)


def test_a_changed_missing_or_new_source_file_is_named_before_anything_is_made(
    tiny: Tiny, source: Path
) -> None:
    found = read_model_lineage(CHAMPION, tiny.work)
    changed = source / "1.jsonl"
    changed.touch()
    assert check(found) == []
    changed.write_text(changed.read_text().replace("river", "brook", 1))
    (source / "2.jsonl").unlink()
    write_jsonl(source / "3.jsonl", [900])
    with pytest.raises(SourceError, match="source files: ") as told:
        check(found)
    for line in ("1 new (3.jsonl)", "1 removed (2.jsonl)", "1 changed (1.jsonl)"):
        assert line in str(told.value)
    assert check(found, anyway=True) == [str(told.value).partition(". The")[0]]


class MadeStages:
    """Stands for the stages: what they make depends on what they are told to change."""

    def __init__(self, then: Lineage, into: str) -> None:
        self.then = {each.manifest.stage: each.manifest for each in then.results.values()}
        self.into = into
        self.commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
        self.changes: dict[str, dict[str, Any]] = {}
        """Stage -> fields of its manifest."""

    def run(self, argv: list[str], environment: Mapping[str, str]) -> str:
        stage = next(s for s, m in self.then.items() if module_of(m) in argv)
        self.commands[stage] = (argv, environment)
        manifest = self.then[stage].model_copy(update=self.changes.get(stage, {}))
        path = Path(self.into, stage, manifest.key[::-1], "manifest.json")
        path.parent.mkdir(parents=True)
        path.write_text(manifest.model_dump_json())
        return str(path)


def module_of(manifest: Manifest) -> str:
    assert manifest.provenance is not None
    assert manifest.provenance.call is not None
    return manifest.provenance.call.module


def called(module: str, plan: StagePlan, work: Path, **options: str) -> Result:
    """Return the empty result of a stage that was called by its command line."""
    with called_as(Call(module=module, recipe={}, options=options)):
        uri = plan.write(str(work), [], [], Settings())
    return Result(uri, read_manifest(uri))


@pytest.fixture
def found(tiny: Tiny) -> ModelLineage:
    found = read_model_lineage(tiny.manifests["pretraining"], tiny.work)
    return dataclasses.replace(found, title="the model")


@pytest.fixture
def stages(found: ModelLineage, tmp_path: Path) -> MadeStages:
    return MadeStages(found.lineage, str(tmp_path))


def with_other_shards(manifest: Manifest, kind: str) -> list[Any]:
    return [
        shard.model_copy(update={"sha256": "0" * 64}) if shard.kind == kind else shard
        for shard in manifest.shards
    ]


def test_inputs_are_those_that_were_made_anew_and_the_machine_is_set_as_it_was(
    found: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    machine = {"ranks": 3, "threads": 5, "device": "cpu", "vectors": "AVX2"}
    [run] = found.lineage.of_stage(PRETRAINING)
    run.manifest.result["machines"] = [machine]
    assert rebuild(found, str(tmp_path), stages.run).is_equal
    argv, environment = stages.commands["pretraining"]
    corpus = stages.then["corpus"].key[::-1]
    assert f"--corpus={tmp_path}/corpus/{corpus}/manifest.json" in stages.commands["vocab"][0]
    assert f"--work={tmp_path}" in argv
    assert "--nproc-per-node=3" in argv
    set_as_it_was = {"OMP_NUM_THREADS": "5", "ATEN_CPU_CAPABILITY": "avx2"}
    assert environment == {"MLFLOW_TRACKING_URI": "", **set_as_it_was}
    recipe = next(each for each in argv if each.startswith("--recipe=")).partition("=")[2]
    assert json.loads(Path(recipe).read_text())["training"]["num_steps"] == 20


def test_a_list_of_results_is_one_of_those_that_were_made_anew(tmp_path: Path) -> None:
    corpus = called("stage_0", StagePlan("corpus", {}, {}, "", {}), tmp_path)
    options = {"corpora": json.dumps([corpus.uri]), "title": "0/model"}
    vocab = called("stage_1", StagePlan("vocab", {}, {}, "", {}), tmp_path, **options)
    found, into = ModelLineage("x", Lineage([vocab, corpus])), str(tmp_path / "now")
    stages = MadeStages(found.lineage, into)
    assert rebuild(found, into, stages.run).is_equal
    argv, _ = stages.commands["vocab"]
    assert f'--corpora=["{into}/corpus/{corpus.manifest.key[::-1]}/manifest.json"]' in argv
    assert "--title=0/model" in argv


def test_a_vocabulary_that_was_kept_is_given_because_its_text_may_be_gone(
    found: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    [vocab] = found.lineage.of_stage("vocab")
    vocab.manifest.settings["kept"] = "vocab/0123456789abcdef"
    rebuild(found, str(tmp_path), stages.run)
    recipe = next(each for each in stages.commands["vocab"][0] if each.startswith("--recipe="))
    given = json.loads(Path(recipe.partition("=")[2]).read_text())["vocabulary"]["model"]
    assert given == f"{vocab.folder}/spiece.model"
    assert Path(given).exists()


def test_the_first_stage_that_differs_is_named_with_its_files_and_why(
    found: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    vocab, run = stages.then["vocab"], stages.then["pretraining"]
    stages.changes["vocab"] = {
        "shards": with_other_shards(vocab, "spiece.model"),
        "code": "another",
        "libraries": vocab.libraries | {"sentencepiece": "9"},
    }
    stages.changes["pretraining"] = {"shards": with_other_shards(run, "model")}
    done = rebuild(found, str(tmp_path), stages.run)
    assert [each.is_equal for each in done.stages] == [True, False, True, True, False]
    assert not done.is_equal
    text = as_text(done)
    assert "The first stage that differs is vocab, in spiece.model. Likely because" in text
    assert "the code differs: " in text
    assert f"sentencepiece was {vocab.libraries['sentencepiece']} and is 9" in text
    assert done.stages[4].causes == [f"it is made of vocab/{vocab.key}, which differs already"]


def test_weights_and_documents_that_differ_are_put_down_to_the_machine_and_the_source(
    found: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    corpus, run = stages.then["corpus"], stages.then["pretraining"]
    machines = [run.result["machines"][0] | {"vectors": "DEFAULT"}]
    stages.changes["corpus"] = {
        "shards": with_other_shards(corpus, "documents"),
        "inputs": corpus.inputs | {"source_files": "other"},
    }
    stages.changes["pretraining"] = {
        "shards": with_other_shards(run, "model"),
        "result": run.result | {"machines": machines},
    }
    [first, *_, last] = rebuild(found, str(tmp_path), stages.run).stages
    assert first.causes == ["its input source_files has changed"]
    [cause] = last.causes
    assert '"vectors": "DEFAULT"' in cause


def test_a_registered_model_that_is_in_no_rebuilt_folder_is_told(
    tiny: Tiny, tmp_path: Path
) -> None:
    found = read_model_lineage(CHAMPION, tiny.work)
    assert found.version is not None
    version = dataclasses.replace(found.version, tags={"model_digest": "0" * 64})
    lineage = Lineage(list(found.lineage.results.values())[:1])
    other = dataclasses.replace(found, version=version, lineage=lineage)
    done = rebuild(other, str(tmp_path), MadeStages(lineage, str(tmp_path)).run)
    assert all(each.is_equal for each in done.stages)
    assert not done.is_equal
    assert "No rebuilt folder holds the registered model." in as_text(done)


def test_what_differs_beforehand_or_was_made_without_a_call_is_told_before_anything_is_made(
    tmp_path: Path,
) -> None:
    plan = StagePlan("vocab", {}, {}, "another", {"numpy": "0.1"})
    notes = check(ModelLineage("x", Lineage([called("albert_core.text.seeds", plan, tmp_path)])))
    assert "the code differs from then" in notes[0]
    assert "numpy was 0.1 and is " in notes[1]
    uri = StagePlan("vocab", {}, {}, "code", {}).write(str(tmp_path), [], [], Settings())
    with pytest.raises(IntegrityError, match="does not say how the stage was called"):
        check(read_model_lineage(uri, ""))


@pytest.mark.long
def test_a_model_of_the_flow_and_of_two_ranks_is_rebuilt_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, work = write_source(tmp_path / "source", 40), tmp_path / "work"
    monkeypatch.setenv("ALBERT_TRAINING_PROCESSES", "2")
    first = run_flow(source, work)
    assert first.status == 0, first.output
    monkeypatch.delenv("ALBERT_TRAINING_PROCESSES")
    (work / "corpus").rename(tmp_path / "away")

    def typed(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(ALBERT), "rebuild", CHAMPION, f"--work={work}", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)

    done = typed()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Equal in every stage, bit for bit." in done.stdout
    write_jsonl(source / "1.jsonl", range(40, 79))
    refused = typed()
    assert refused.returncode == 2
    assert "source files: 1 changed (1.jsonl)" in refused.stderr
    different = typed("--anyway", f"--into={tmp_path}/other", "--json")
    assert different.returncode == 1
    stages = {each["stage"]: each for each in json.loads(different.stdout)["stages"]}
    assert stages["corpus"]["causes"] == ["its input source_files has changed"]
    assert not stages["pretraining"]["is_equal"]
