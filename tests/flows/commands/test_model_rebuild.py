"""`albert rebuild`: a registered model is made again and compared."""

import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage import errors, storage
from albert_core.stage.lineage import Lineage
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import Call, called_as
from albert_core.stage.settings import Settings
from flows.commands.model_lineage import ModelLineage, lineage_text, read_model_lineage
from flows.commands.model_rebuild import check, rebuild, rebuild_text
from tests.flows.conftest import CHAMPION, MADE_OF, Tiny, run_in_this_process, work_folder_away
from tests.generated_text import write_jsonl, write_source
from tests.test_end_to_end import ALBERT, PROJECT, run_flow

NOTHING: Mapping[str, list[str]] = defaultdict(list)


def plan_of(stage: str, code: str = "code", **libraries: str) -> StagePlan:
    return StagePlan(stage, {}, {}, code, libraries)


def test_what_a_function_made_says_so_and_is_not_made_again(tmp_path: Path) -> None:
    uri = plan_of("corpus").write(str(tmp_path), [], [], Settings())
    found = read_model_lineage(uri, str(tmp_path))
    assert re.search(r"recipe +not recorded", lineage_text(found))
    with pytest.raises(errors.IntegrityError, match="does not say how the stage was called"):
        check(found)


def test_a_registered_model_is_made_again_from_the_registry_alone_and_is_equal(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = str(tmp_path / "rebuilt")
    with work_folder_away(tiny, monkeypatch):
        found = read_model_lineage(CHAMPION, str(tmp_path))
        notes = check(found)
        assert not any(notes.values())
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        done = rebuild(found, notes, into, run_in_this_process)
    assert {each.stage for each in done.stages} == MADE_OF
    assert done.is_equal, rebuild_text(done)
    assert done.model
    for each in done.stages:
        assert each.manifest.startswith(into)
        assert read_manifest(each.manifest).content == each.content
    assert "Equal in every stage, bit for bit." in rebuild_text(done)


def test_a_changed_missing_or_new_source_file_is_named_before_anything_is_made(
    tiny: Tiny, source: Path
) -> None:
    found = read_model_lineage(CHAMPION, tiny.work)
    changed = source / "1.jsonl"
    changed.touch()
    assert not any(check(found).values())
    changed.write_text(changed.read_text().replace("river", "brook", 1))
    (source / "2.jsonl").unlink()
    write_jsonl(source / "3.jsonl", [900])
    with pytest.raises(errors.SourceError, match="source files: ") as told:
        check(found)
    for line in ("1 new (3.jsonl)", "1 removed (2.jsonl)", "1 changed (1.jsonl)"):
        assert line in str(told.value)
    [notes] = filter(None, check(found, anyway=True).values())
    assert f"corpus/{found.lineage.of_stage('corpus')[0].manifest.key}: {notes[0]}. The" in str(
        told.value
    )


class MadeStages:
    """Stands for the stages: what they make depends on what they are told to change."""

    def __init__(self, then: Lineage, into: Path) -> None:
        self.then = {each.manifest.stage: each.manifest for each in then.results.values()}
        self.into = into
        self.commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
        self.changes: dict[str, dict[str, Any]] = {}
        """Stage -> fields of its manifest."""

    def run(self, argv: list[str], environment: Mapping[str, str]) -> str:
        calls = {s: m.provenance and m.provenance.call for s, m in self.then.items()}
        stage = next(stage for stage, call in calls.items() if call and call.module in argv)
        self.commands[stage] = (argv, environment)
        manifest = self.then[stage].model_copy(update=self.changes.get(stage, {}))
        uri = f"{self.into}/{stage}/{manifest.key[::-1]}/manifest.json"
        storage.write_bytes(uri, manifest.model_dump_json().encode())
        return uri

    def recipe_of(self, stage: str) -> dict[str, Any]:
        [uri] = [each[9:] for each in self.commands[stage][0] if each.startswith("--recipe=")]
        return dict(json.loads(Path(uri).read_text()))

    def change_shards(self, stage: str, kind: str, **others: Any) -> None:
        """Give the shards of this kind another content."""
        shards = [
            shard.model_copy(update={"sha256": "0" * 64}) if shard.kind == kind else shard
            for shard in self.then[stage].shards
        ]
        self.changes[stage] = {"shards": shards, **others}


@pytest.fixture
def of_run(tiny: Tiny) -> ModelLineage:
    return read_model_lineage(tiny.manifests["pretraining"], tiny.work)


@pytest.fixture
def stages(of_run: ModelLineage, tmp_path: Path) -> MadeStages:
    return MadeStages(of_run.lineage, tmp_path)


def test_inputs_are_those_that_were_made_anew_and_the_machine_is_set_as_it_was(
    of_run: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    machine = {"ranks": 3, "threads": 5, "device": "cpu", "vectors": "AVX2"}
    [run] = of_run.lineage.of_stage("pretraining")
    run.manifest.result["machines"] = [machine]
    assert rebuild(of_run, NOTHING, str(tmp_path), stages.run).is_equal
    argv, environment = stages.commands["pretraining"]
    corpus = stages.then["corpus"].key[::-1]
    assert f"--corpus={tmp_path}/corpus/{corpus}/manifest.json" in stages.commands["vocab"][0]
    assert f"--work={tmp_path}" in argv
    assert "--nproc-per-node=3" in argv
    set_as_it_was = {"OMP_NUM_THREADS": "5", "ATEN_CPU_CAPABILITY": "avx2"}
    assert environment == {"MLFLOW_TRACKING_URI": "", **set_as_it_was}
    assert stages.recipe_of("pretraining")["training"]["num_steps"] == 20


def test_a_vocabulary_that_was_kept_is_given_because_its_text_may_be_gone(
    of_run: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    [vocab] = of_run.lineage.of_stage("vocab")
    vocab.manifest.settings["kept"] = "vocab/0123456789abcdef"
    rebuild(of_run, NOTHING, str(tmp_path), stages.run)
    given = stages.recipe_of("vocab")["vocabulary"]["model"]
    assert given == f"{vocab.folder}/spiece.model"
    assert Path(given).exists()


def test_the_first_stage_that_differs_is_named_with_its_files_and_why(
    of_run: ModelLineage, stages: MadeStages, tmp_path: Path
) -> None:
    stages.change_shards("vocab", "spiece.model", settings={})
    stages.change_shards("pretraining", "model")
    vocab = f"vocab/{stages.then['vocab'].key}"
    notes = defaultdict(list, {vocab: ["the code differs"]})
    done = rebuild(of_run, notes, str(tmp_path), stages.run)
    assert [each.is_equal for each in done.stages] == [True, False, True, True, False]
    assert not done.is_equal
    text = rebuild_text(done)
    assert "The first stage that differs is vocab, in spiece.model. Likely because" in text
    assert "its settings mean something else now" in text
    assert "the code differs" in text
    assert done.stages[4].causes == [f"it is made of {vocab}, which differs already"]


def test_a_registered_model_that_is_in_no_rebuilt_folder_is_told(
    tiny: Tiny, tmp_path: Path
) -> None:
    found = read_model_lineage(CHAMPION, tiny.work)
    assert found.version is not None
    version = replace(found.version, tags={"model_digest": "0" * 64})
    corpus = Lineage(list(found.lineage.results.values())[:1])
    other = replace(found, version=version, lineage=corpus)
    done = rebuild(other, NOTHING, str(tmp_path), MadeStages(corpus, tmp_path).run)
    assert all(each.is_equal for each in done.stages)
    assert not done.is_equal
    assert "No rebuilt folder holds the registered model." in rebuild_text(done)


def test_other_code_and_libraries_are_told_before_anything_is_made(tmp_path: Path) -> None:
    with called_as(Call(module="albert_core.text.seeds", recipe={}, options={})):
        uri = plan_of("vocab", "another", numpy="0.1").write(str(tmp_path), [], [], Settings())
    [notes] = check(read_model_lineage(uri, "")).values()
    assert "the code differs from then" in notes[0]
    assert "numpy was 0.1 and is " in notes[1]


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
        command = [str(ALBERT), "rebuild", "models:/albert-tiny/1", f"--work={work}", *options]
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
    assert stages["corpus"]["causes"] == [
        "its input source_files has changed",
        "source files: 1 changed (1.jsonl)",
    ]
    assert not stages["pretraining"]["is_equal"]
