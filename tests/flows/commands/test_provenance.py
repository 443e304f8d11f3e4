"""`albert lineage`, `rebuild` and `trace`: what a registered model was made of."""

import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from albert_core.config import RegistrySettings, TrainingSettings
from albert_core.registry import register_finetuned
from albert_core.registry.versions import RegisteredVersion, model_folder_of
from albert_core.stage import errors, results, storage
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.provenance import Call, called_as
from albert_core.stage.results import Lineage, place_in
from albert_core.stage.settings import Settings
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import Ints
from albert_core.training.loader import ExampleShards, Rows, UpdateLoader
from albert_core.training.ranks import ALONE
from flows.commands import provenance
from flows.commands.main import main
from flows.commands.provenance import ModelLineage, check, read_model_lineage, rebuild, trace
from pipelines import clean_corpus, train_vocab
from pipelines.config import CleaningSettings, SourceSettings, VocabularySettings
from tests.albert_core.tiny_finetuned import made_finetuning
from tests.flows.conftest import Tiny, refresh, run_in_this_process
from tests.generated_text import write_jsonl, write_source
from tests.test_end_to_end import ALBERT, PROJECT, run_flow

CHAMPION, VERSION = "models:/albert-tiny@champion", "models:/albert-tiny/1 @champion"
NOTHING: Mapping[str, list[str]] = defaultdict(list)
MADE_OF = {
    "corpus", "vocab", "examples", "task", "pretraining", "zero-shot", "finetuning", "scores",
}  # fmt: skip


@contextmanager
def work_folder_away(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave of the work folder only what is the registry's, as on another machine."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    away = Path(f"{tiny.work}-away")
    away.mkdir()
    folders = [path for path in Path(tiny.work).iterdir() if not path.name.startswith("ml")]
    for folder in folders:
        folder.rename(away / folder.name)
    yield
    for folder in folders:
        (away / folder.name).rename(folder)
    away.rmdir()


def test_the_registry_alone_leads_from_the_model_to_the_source_files(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with work_folder_away(tiny, monkeypatch):
        found = read_model_lineage(CHAMPION, str(tmp_path))
    assert found.title == VERSION
    stages = {each["place"]: each for each in provenance.lineage_json(found)["stages"]}
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
    files = provenance.files_of_corpus(corpus) or []
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


def plan_of(stage: str, code: str = "code", **libraries: str) -> StagePlan:
    return StagePlan(stage, {}, {}, code, libraries)


def test_what_a_function_made_says_so_and_is_not_made_again(tmp_path: Path) -> None:
    uri = plan_of("corpus").write(str(tmp_path), [], [], Settings())
    found = read_model_lineage(uri, str(tmp_path))
    assert re.search(r"recipe +not recorded", provenance.lineage_text(found))
    with pytest.raises(errors.IntegrityError, match="does not say how the stage was called"):
        check(found)


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


def test_a_registered_model_is_made_again_from_the_registry_alone_and_is_equal(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALBERT_WORKERS", "1")
    into = str(tmp_path / "rebuilt")
    with work_folder_away(tiny, monkeypatch):
        found = read_model_lineage(CHAMPION, str(tmp_path))
        notes = check(found)
        assert not any(notes.values())
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        done = rebuild(found, notes, into, run_in_this_process)
    assert {each.stage for each in done.stages} == MADE_OF
    assert done.is_equal, provenance.rebuild_text(done)
    assert done.model
    for each in done.stages:
        assert each.manifest.startswith(into)
        assert read_manifest(each.manifest).content == each.content
    assert "Equal in every stage, bit for bit." in provenance.rebuild_text(done)


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
    text = provenance.rebuild_text(done)
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
    assert "No rebuilt folder holds the registered model." in provenance.rebuild_text(done)


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


def documents_of(examples: str, kind: str) -> list[str]:
    """Return of each row of a kind the document, in order."""
    folder, manifest = Path(examples).parent, read_manifest(examples)
    tables = [read_arrow(str(folder / shard.path)) for shard in manifest.shards_of(kind)]
    return [each for table in tables for each in table["document_id"].to_pylist()]


@pytest.fixture(scope="module")
def trained(tiny: Tiny) -> str:
    """A document of the second file that was trained on."""
    found = documents_of(tiny.manifests["examples"], "train")
    return next(each for each in found if each.startswith("1.jsonl#"))


def uses_of(found: provenance.Trace) -> dict[str, str]:
    return {use.place.partition("/")[0]: use.how for use in found.uses}


def test_a_document_is_found_in_shard_and_row_and_in_all_that_was_made_of_it(
    tiny: Tiny, trained: str
) -> None:
    found = trace(trained, tiny.work)
    assert found.in_current_corpus
    [in_corpus] = [each for each in found.occurrences if each.kind == "documents"]
    [row] = in_corpus.rows
    assert read_arrow(in_corpus.uri)["id"][row].as_py() == trained
    [in_examples] = [each for each in found.occurrences if each.kind == "train"]
    documents = documents_of(tiny.manifests["examples"], "train")
    assert in_examples.rows == [n for n, each in enumerate(documents) if each == trained]
    uses = uses_of(found)
    assert "trained on a sample" in uses["vocab"]
    assert f"trained on up to {len(in_examples.rows)} examples of it" in uses["pretraining"]
    assert place_in(tiny.manifests["pretraining"]) in uses["finetuning"]
    assert "task" not in uses
    [(version, how)] = found.versions.items()
    assert version == VERSION
    assert any(place_in(tiny.manifests["pretraining"]) in each for each in how)


def test_a_version_that_was_fine_tuned_from_a_registered_model_is_found(
    copied: Tiny, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")
    own = shutil.copy(registry, copied.work)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{own}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "with files of its own")
    folder = model_folder_of(CHAMPION, copied.work)
    finetuned = made_finetuning(copied.work, "sst-2", 0.5, model_folder=folder)
    register_finetuned.run(RegistrySettings(model_name="albert"), finetuned, work=copied.work)
    found = trace(trained, copied.work).versions
    assert found.keys() == {VERSION, "models:/albert-sst-2/1 @champion"}


def test_the_first_update_with_a_document_is_found_and_the_checkpoints_after_it(tiny: Tiny) -> None:
    documents = documents_of(tiny.manifests["examples"], "train")
    made = read_manifest(tiny.manifests["pretraining"]).settings["training"]
    settings = TrainingSettings.model_validate(made)
    order: list[int] = []

    class Noting(ExampleShards):
        def rows(self, indices: Ints) -> Rows:
            order.extend(indices.tolist())
            return super().rows(indices)

    shards, count = Noting(tiny.manifests["examples"], "train"), settings.num_steps
    with UpdateLoader(shards, settings, ALONE, first_example=0, num_updates=count) as loader:
        assert len(list(loader)) == count
    first: dict[str, int] = {}
    for place, row in enumerate(order):
        first.setdefault(documents[row], place // settings.batch_size + 1)
    late = next(name for name, step in first.items() if step > 1)
    for document in {documents[order[0]], late}:
        [use] = [u for u in trace(document, tiny.work).uses if u.place.startswith("pretraining")]
        assert use.first_step == first[document]
        steps = [int(uri.rpartition("-")[2]) for uri in use.checkpoints]
        assert steps == [step for step in (10, 20) if step >= first[document]]


def test_a_held_out_document_was_scored_on_and_may_be_in_the_task(tiny: Tiny) -> None:
    document = documents_of(tiny.manifests["examples"], "held_out")[0]
    uses = uses_of(trace(document, tiny.work))
    assert "its sentences may be in it" in uses["task"]
    assert uses["pretraining"].startswith("scored on it as a held-out document")


def test_the_current_corpus_is_the_one_that_a_run_made_or_found_last(
    copied: Tiny, trained: str
) -> None:
    file = copied.source / "1.jsonl"
    whole = file.read_text()
    file.write_text(
        "".join(line for line in whole.splitlines(True) if f'"{trained[8:]}"' not in line)
    )
    for text, is_there in ((file.read_text(), False), (whole, True)):
        file.write_text(text)
        refresh(copied.source, copied.work)
        assert trace(trained, copied.work).in_current_corpus is is_there


def test_a_rejected_document_is_in_no_corpus_and_nothing_is_made_of_it(copied: Tiny) -> None:
    (copied.source / "9.txt").write_text("Too short.")
    source = SourceSettings(uri=str(copied.source))
    corpus = clean_corpus.run(source, CleaningSettings(keep_rejected=True), copied.work)
    train_vocab.run(VocabularySettings(vocab_size=200, refresh="train"), corpus, copied.work)
    found = trace("9.txt", copied.work)
    assert [each.kind for each in found.occurrences] == ["rejected"]
    assert not found.in_current_corpus
    assert not found.uses
    assert not found.versions


def test_an_unknown_id_is_told(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "1.jsonl#nothing", f"--work={tiny.work}"]) == 1
    assert "No corpus, no examples and no receipt here knows this id." in capsys.readouterr().out


def receipt_of(made: Tiny, purge: str) -> str:
    return made.make("receipt", "pipelines.removal", "corpus", "examples", purge=purge)


def test_a_removed_documents_receipt_names_the_versions_and_the_trace_goes_on_after_a_purge(
    copied: Tiny, trained: str
) -> None:
    before = trace(trained, copied.work)
    assert before.in_current_corpus
    assert list(before.versions) == [VERSION]
    number = int(trained.partition("#d")[2])
    left = [n for n in range(20, 40) if n != number]
    write_jsonl(copied.source / "1.jsonl", left)
    made = refresh(copied.source, copied.work)
    uri = receipt_of(made, "no")
    provenance.name_affected_versions(uri, copied.work)
    assert provenance.named_versions(uri) == [VERSION]
    receipt = json.loads(Path(uri).read_text())
    assert receipt["documents"] == [trained]
    assert receipt["registered_versions"] == {"made_of_them": [VERSION], "not_looked_through": []}
    told = Path(uri).read_bytes()
    assert receipt_of(made, "no") == uri
    provenance.name_affected_versions(uri, copied.work)
    assert Path(uri).read_bytes() == told

    after = trace(trained, copied.work)
    assert not after.in_current_corpus
    assert after.receipts == [uri]
    assert {each.place for each in after.occurrences} == {e.place for e in before.occurrences}
    assert "named in removal-" in provenance.trace_text(after)

    assert receipt_of(made, "yes") == uri
    provenance.name_affected_versions(uri, copied.work)
    purged = trace(trained, copied.work)
    assert purged.occurrences == []
    assert list(purged.versions) == [VERSION]
    assert purged.receipts == [uri]
    others = trace(f"1.jsonl#d{left[0]}", copied.work)
    assert others.in_current_corpus
    for stage in ("pretraining", "finetuning"):
        assert uses_of(others)[stage].startswith("unknown: made of ")
    assert list(others.versions) == [VERSION]
    assert {place_in(made.manifests["corpus"])} == {
        each.place for each in others.occurrences if each.kind == "documents"
    }


def version_of(name: str, *places: str) -> RegisteredVersion:
    tags = {f"manifest.{n}": f"/w/{place}/manifest.json" for n, place in enumerate(places)}
    return RegisteredVersion(name, "1", (), "", tags)


def test_versions_of_other_corpora_are_clean_and_those_of_absent_ones_unknown() -> None:
    old, new, far = (f"corpus/{n:016x}" for n in range(3))
    examples, run, unknown = f"examples/{4:016x}", f"pretraining/{5:016x}", f"vocab/{6:016x}"
    receipt: dict[str, Any] = {
        "in_no_shard_of": [{"manifest": f"/w/{new}/manifest.json"}],
        "earlier_results_with_them": [f"/w/{old}", f"/w/{new}/test_overlaps.jsonl", "/w/units/u"],
        "models_made_of_them": [f"/w/{run}/manifest.json"],
        "vocabularies_made_of_them": [],
        "may_be_made_of_them": [f"/w/{unknown}/manifest.json"],
    }
    versions = [
        version_of("of-the-old-one", old, examples),
        version_of("of-a-run-of-it", far, run),
        version_of("of-the-new-one", new),
        version_of("of-another-work-folder", far),
        version_of("of-a-vocabulary-of-text-that-is-gone", new, unknown),
    ]
    assert provenance.affected_versions(receipt, versions, {old, new}) == {
        "made_of_them": ["models:/of-a-run-of-it/1", "models:/of-the-old-one/1"],
        "not_looked_through": [
            "models:/of-a-vocabulary-of-text-that-is-gone/1",
            "models:/of-another-work-folder/1",
        ],
    }
