"""One document from its source to the registered model, before and after its removal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert_core.registry.versions import RegisteredVersion
from albert_core.stage.lineage import place_in, read_work
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.training.order import example_order
from flows.commands.main import main
from flows.commands.trace import (
    Trace,
    affected_versions,
    as_text,
    first_use,
    name_affected_versions,
    trace,
)
from tests.flows.tiny_way import Tiny, refresh, write_source
from tests.generated_text import write_jsonl
from tests.test_end_to_end import run_flow

VERSION = "models:/albert-tiny/1 @champion"


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


def uses_of(found: Trace) -> dict[str, str]:
    return {use.place.partition("/")[0]: use.how for use in found.uses}


def test_a_document_is_found_in_shard_and_row_and_in_all_that_was_made_of_it(
    tiny: Tiny, trained: str
) -> None:
    found = trace(trained, tiny.work)
    assert found.in_newest_corpus
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


def test_the_first_update_with_a_document_is_found_and_the_checkpoints_after_it(tiny: Tiny) -> None:
    documents = documents_of(tiny.manifests["examples"], "train")
    settings = read_manifest(tiny.manifests["pretraining"]).settings["training"]
    taken = settings["num_steps"] * settings["batch_size"]
    order = example_order(0, taken, len(documents), settings["seed"])
    first: dict[str, int] = {}
    for place, row in enumerate(order):
        first.setdefault(documents[row], place // settings["batch_size"] + 1)
    late = next(name for name, step in first.items() if step > 1)
    for document in {documents[order[0]], late}:
        [use] = [u for u in trace(document, tiny.work).uses if u.place.startswith("pretraining")]
        assert use.first_step == first[document]
        steps = [int(uri.rpartition("-")[2]) for uri in use.checkpoints]
        assert steps == [step for step in (10, 20) if step >= first[document]]


def test_rows_that_a_short_run_never_comes_to_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.commands.trace._ORDER_AT_ONCE", 7)
    settings = {"num_steps": 5, "batch_size": 4, "seed": 3}
    order = example_order(0, 100, 100, 3)
    for place in (0, 6, 7, 19):
        assert first_use([int(order[place])], 100, settings) == place // 4 + 1
    assert first_use([int(row) for row in order[20:]], 100, settings) is None
    assert first_use(np.arange(100).tolist(), 100, settings | {"num_steps": 500}) == 1


def test_a_held_out_document_was_scored_on_and_may_be_in_the_task(tiny: Tiny) -> None:
    document = documents_of(tiny.manifests["examples"], "held_out")[0]
    uses = uses_of(trace(document, tiny.work))
    assert "its sentences may be in it" in uses["task"]
    assert uses["pretraining"].startswith("scored on it as a held-out document")


def test_an_unknown_id_is_told(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "1.jsonl#nothing", f"--work={tiny.work}"]) == 1
    assert "No corpus, no examples and no receipt here knows this id." in capsys.readouterr().out


def receipt_of(made: Tiny, purge: str) -> str:
    return made.make("receipt", "pipelines.removal", "examples", purge=purge)


def test_a_removed_documents_receipt_names_the_versions_and_the_trace_goes_on_after_a_purge(
    copied: Tiny, trained: str
) -> None:
    before = trace(trained, copied.work)
    assert before.in_newest_corpus
    assert list(before.versions) == [VERSION]
    number = int(trained.partition("#d")[2])
    left = [n for n in range(20, 40) if n != number]
    write_jsonl(copied.source / "1.jsonl", left)
    made = refresh(copied.source, copied.work)
    uri = receipt_of(made, "no")
    assert name_affected_versions(uri, copied.work) == [VERSION]
    receipt = json.loads(Path(uri).read_text())
    assert receipt["documents"] == [trained]
    assert receipt["registered_versions"] == {"made_of_them": [VERSION], "not_looked_through": []}
    told = Path(uri).read_bytes()
    assert receipt_of(made, "no") == uri
    name_affected_versions(uri, copied.work)
    assert Path(uri).read_bytes() == told

    after = trace(trained, copied.work)
    assert not after.in_newest_corpus
    assert after.receipts == [uri]
    assert {each.place for each in after.occurrences} == {e.place for e in before.occurrences}
    assert "named in removal-" in as_text(after)

    assert receipt_of(made, "yes") == uri
    name_affected_versions(uri, copied.work)
    purged = trace(trained, copied.work)
    assert purged.occurrences == []
    assert list(purged.versions) == [VERSION]
    assert purged.receipts == [uri]
    others = trace(f"1.jsonl#d{left[0]}", copied.work)
    assert others.in_newest_corpus
    assert {place_in(made.manifests["corpus"])} == {
        each.place for each in others.occurrences if each.kind == "documents"
    }


def version_of(name: str, *places: str) -> RegisteredVersion:
    tags = {f"manifest.{n}": f"/w/{place}/manifest.json" for n, place in enumerate(places)}
    return RegisteredVersion(name, "1", (), "", tags)


def test_versions_of_other_corpora_are_clean_and_those_of_absent_ones_unknown() -> None:
    old, new, far = (f"corpus/{n:016x}" for n in range(3))
    examples, run = f"examples/{4:016x}", f"pretraining/{5:016x}"
    receipt: dict[str, Any] = {
        "in_no_shard_of": [{"manifest": f"/w/{new}/manifest.json"}],
        "earlier_results_with_them": [f"/w/{old}", f"/w/{new}/test_overlaps.jsonl", "/w/units/u"],
        "models_made_of_them": [f"/w/{run}/manifest.json"],
        "vocabularies_made_of_them": [],
    }
    versions = [
        version_of("of-the-old-one", old, examples),
        version_of("of-a-run-of-it", far, run),
        version_of("of-the-new-one", new),
        version_of("of-another-work-folder", far),
    ]
    assert affected_versions(receipt, versions, {old, new}) == {
        "made_of_them": ["models:/of-a-run-of-it/1", "models:/of-the-old-one/1"],
        "not_looked_through": ["models:/of-another-work-folder/1"],
    }


def test_without_a_registry_a_receipt_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert name_affected_versions("/nowhere.json", str(tmp_path)) == []
    assert not read_work(str(tmp_path)).results


@pytest.mark.long
def test_one_removed_document_through_the_flow_trace_refresh_receipt_trace(tmp_path: Path) -> None:
    source, work = write_source(tmp_path / "source", 40), tmp_path / "work"
    first = run_flow(source, work)
    assert first.status == 0, first.output
    [examples] = work.glob("examples/*/manifest.json")
    document = documents_of(str(examples), "train")[0]
    file, number = document.split("#d")
    before = trace(document, str(work))
    assert list(before.versions) == [VERSION]
    first_of_file = int(file.partition(".")[0]) * 40
    left = [n for n in range(first_of_file, first_of_file + 40) if n != int(number)]
    write_jsonl(source / file, left)
    again = run_flow(source, work, command="refresh")
    assert again.status == 0, again.output
    assert f"Registered versions made of them: {VERSION}." in again.output
    [receipt] = work.glob("receipts/*.json")
    assert json.loads(receipt.read_text())["documents"] == [document]
    after = trace(document, str(work))
    assert not after.in_newest_corpus
    assert list(after.versions) == [VERSION]
    assert after.receipts == [str(receipt)]
