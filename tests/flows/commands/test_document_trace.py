"""`albert trace`: what was made of a document, and which versions a receipt names."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from albert_core.config import RegistrySettings, TrainingSettings
from albert_core.registry import register_finetuned
from albert_core.registry.version_files import model_folder_of
from albert_core.registry.versions import RegisteredVersion
from albert_core.stage.lineage import place_in
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.records import Ints
from albert_core.training import cooccurrence
from albert_core.training.batches import Rows
from albert_core.training.loader import UpdateLoader
from albert_core.training.ranks import ALONE
from albert_core.training.shards import ExampleShards
from flows.commands import document_trace
from flows.commands.document_trace import trace
from flows.commands.main import main
from pipelines import clean_corpus, train_vocab
from pipelines.config import CleaningSettings, SourceSettings, VocabularySettings
from tests.albert_core.tiny_finetuned import made_finetuning
from tests.flows.conftest import CHAMPION, VERSION, Tiny, refresh
from tests.generated_text import write_jsonl


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


def uses_of(found: document_trace.Trace) -> dict[str, str]:
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


def test_first_weights_from_counts_of_a_document_are_told_and_all_checkpoints_are_after_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = documents_of(tiny.manifests["examples"], "train")
    monkeypatch.setattr(cooccurrence, "COUNTED_PIECES", 3)  # fewer than one has: one is counted
    for document in {documents[0], next(each for each in documents if each != documents[0])}:
        [use] = [u for u in trace(document, tiny.work).uses if u.place.startswith("pretraining")]
        is_counted = document == documents[0]
        assert ("first weights from counts of 1 examples of it" in use.how) is is_counted
        assert (use.first_step == 0) is is_counted
        assert not is_counted or len(use.checkpoints) == 2


def test_the_first_update_with_a_document_is_found_and_the_checkpoints_after_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_trace, "_counted", lambda *_: 0)
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
    document_trace.name_affected_versions(uri, copied.work)
    assert document_trace.named_versions(uri) == [VERSION]
    receipt = json.loads(Path(uri).read_text())
    assert receipt["documents"] == [trained]
    assert receipt["registered_versions"] == {"made_of_them": [VERSION], "not_looked_through": []}
    told = Path(uri).read_bytes()
    assert receipt_of(made, "no") == uri
    document_trace.name_affected_versions(uri, copied.work)
    assert Path(uri).read_bytes() == told

    after = trace(trained, copied.work)
    assert not after.in_current_corpus
    assert after.receipts == [uri]
    assert {each.place for each in after.occurrences} == {e.place for e in before.occurrences}
    assert "named in removal-" in document_trace.trace_text(after)

    assert receipt_of(made, "yes") == uri
    document_trace.name_affected_versions(uri, copied.work)
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
    assert document_trace.affected_versions(receipt, versions, {old, new}) == {
        "made_of_them": ["models:/of-a-run-of-it/1", "models:/of-the-old-one/1"],
        "not_looked_through": [
            "models:/of-a-vocabulary-of-text-that-is-gone/1",
            "models:/of-another-work-folder/1",
        ],
    }
