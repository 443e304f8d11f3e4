"""What counts as removed, where its text is found, and what a purge deletes and leaves."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.text.arrow_files import read_arrow
from albert_core.text.seeds import share_of
from pipelines import clean_corpus, make_examples, make_task, removal, train_vocab
from pipelines.config import CleaningSettings, SourceSettings, TaskSettings
from tests.generated_text import document, write_jsonl
from tests.pipelines.conftest import EXAMPLES, VOCABULARY, Made

FIRST = {f"1.jsonl#d{n}" for n in range(20, 40)}


pytestmark = pytest.mark.usefixtures("one_worker_and_a_unit_for_each_file")


@pytest.fixture
def before(made: Made, tmp_path: Path) -> Made:
    """A source of its own and what was made of it."""
    shutil.copytree(made.source, tmp_path / "source")
    return remake(made, tmp_path / "source", tmp_path / "work")


def remake(
    before: Made,
    source: Path,
    work: Path | None = None,
    file_share: float = 1.0,
    **cleaning: Any,
) -> Made:
    """Make the corpus and its examples anew, with the vocabulary of ``before``."""
    to = str(work or before.work)
    settings = SourceSettings(uri=str(source), file_share=file_share)
    corpus = clean_corpus.run(settings, CleaningSettings(**cleaning), to)
    return Made(
        source, to, corpus, before.vocab, make_examples.run(EXAMPLES, corpus, before.vocab, to)
    )


def receipt_of(made: Made, purge: str = "no") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        Path(removal.run(made.work, made.examples, purge)).read_text()
    )
    return found


def nothing_is_removed(made: Made) -> bool:
    return removal.run(made.work, made.examples, "yes") == removal.NOTHING_REMOVED


def texts_below(work: str) -> bytes:
    return b"".join(path.read_bytes() for path in Path(work).rglob("*") if path.is_file())


def write_texts(path: Path, documents: Iterable[tuple[str, str]]) -> None:
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in documents)
    path.write_text("".join(lines))


def test_tasks_of_removed_documents_are_purged_and_others_stay(before: Made) -> None:
    old = make_task.run(TaskSettings(), before.examples, before.corpus, before.work)
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    new = make_task.run(TaskSettings(), after.examples, after.corpus, after.work)
    receipt = receipt_of(after, "yes")
    assert str(Path(old).parent) in receipt["earlier_results_with_them"]
    assert receipt["left_after_purge"] == []
    assert not Path(old).parent.exists()
    assert Path(new).exists()


def test_a_task_whose_corpus_is_gone_or_that_is_unfinished_may_hold_anything(before: Made) -> None:
    task = make_task.run(TaskSettings(), before.examples, before.corpus, before.work)
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    inputs = read_manifest(task).input_manifests
    Path(task).write_text(Path(task).read_text().replace(inputs["corpus"], "/no/where/m.json"))
    other = make_task.run(
        TaskSettings(max_sentences=1000), after.examples, after.corpus, after.work
    )
    Path(other).unlink()
    found = receipt_of(after)["earlier_results_with_them"]
    assert {str(Path(task).parent), str(Path(other).parent)} <= set(found)


def test_a_document_whose_id_was_there_twice_leaves_the_units_too(
    before: Made, tmp_path: Path
) -> None:
    twice = [("same", document(500)), ("same", document(501))]
    write_texts(before.source / "7.jsonl", twice)
    old = remake(before, before.source)
    folder = Path(old.corpus).parent
    ids = [i for p in folder.glob("*.arrow") for i in read_arrow(str(p))["id"].to_pylist()]
    [renamed] = [i for i in ids if "~" in i]
    excluded = tmp_path / "excluded.txt"
    excluded.write_text(renamed)
    after = remake(before, before.source, excluded_ids=str(excluded))
    assert receipt_of(after)["documents"] == [renamed]
    assert receipt_of(after, "yes")["left_after_purge"] == []
    assert document(501)[:60].encode() not in texts_below(after.work)
    assert document(500)[:60].encode() in texts_below(after.work)


def test_a_repeated_id_of_a_removed_file_is_named_once_and_its_texts_go(before: Made) -> None:
    write_texts(before.source / "7.jsonl", [("same", document(500)), ("same", document(501))])
    remake(before, before.source)
    (before.source / "7.jsonl").unlink()
    after = remake(before, before.source)
    receipt = receipt_of(after, "yes")
    assert receipt["documents"] == ["7.jsonl#same"]
    assert receipt["left_after_purge"] == []
    assert document(501)[:60].encode() not in texts_below(after.work)


def test_documents_that_were_only_ever_dropped_are_removed_with_their_file(before: Made) -> None:
    write_jsonl(before.source / "7.jsonl", range(3))
    old = remake(before, before.source)
    assert read_manifest(old.corpus).content == read_manifest(before.corpus).content
    (before.source / "7.jsonl").unlink()
    after = remake(before, before.source)
    receipt = receipt_of(after, "yes")
    assert receipt["documents"] == [f"7.jsonl#d{n}" for n in range(3)]
    assert receipt["left_after_purge"] == []
    for unit in (Path(after.work) / "units").rglob("*.arrow"):
        assert b"7.jsonl#d0" not in unit.read_bytes()
    assert Path(after.examples).exists()


def test_a_source_that_moved_still_has_its_documents_and_lacks_those_removed(
    before: Made, tmp_path: Path
) -> None:
    moved = before.source.rename(tmp_path / "moved")
    write_jsonl(moved / "9.jsonl", range(300, 305))
    after = remake(before, moved)
    assert nothing_is_removed(after)
    assert Path(before.corpus).exists()
    (moved / "1.jsonl").unlink()
    assert set(receipt_of(remake(before, moved))["documents"]) == FIRST


def test_a_changed_file_has_removed_what_it_held_and_holds_no_more(before: Made) -> None:
    write_jsonl(before.source / "1.jsonl", range(20, 39))
    after = remake(before, before.source)
    receipt = receipt_of(after, "yes")
    assert receipt["documents"] == ["1.jsonl#d39"]
    assert receipt["files"] == []
    assert receipt["left_after_purge"] == []
    assert not Path(before.corpus).exists()


def test_what_other_settings_drop_is_not_removed(before: Made) -> None:
    share = max(share_of(0, "source-file", f"{n}.jsonl") for n in range(3))
    sampled = remake(before, before.source, file_share=share)
    assert read_manifest(sampled.corpus).facts["num_source_files"] == 2
    assert nothing_is_removed(sampled)
    words = sorted(len(document(n).split()) for n in range(60))[30]
    strict = remake(before, before.source, min_words=words)
    assert read_manifest(strict.corpus).facts["num_documents"] < 60
    assert nothing_is_removed(strict)
    assert Path(before.examples).exists()


def test_another_source_in_the_same_work_folder_is_let_be(before: Made, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_jsonl(tmp_path / "other" / "0.jsonl", range(700, 730))
    assert nothing_is_removed(remake(before, tmp_path / "other"))


def test_excluded_ids_are_removed_and_a_refresh_finds_the_receipt_of_the_purge(
    before: Made, tmp_path: Path
) -> None:
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("1.jsonl#d20\n")
    after = remake(before, before.source, excluded_ids=str(excluded))
    assert receipt_of(after)["documents"] == ["1.jsonl#d20"]
    purged = removal.run(after.work, after.examples, "yes")
    content = Path(purged).read_text()
    assert json.loads(content)["left_after_purge"] == []
    again = remake(before, before.source, excluded_ids=str(excluded))
    assert removal.run(again.work, again.examples) == purged
    assert Path(purged).read_text() == content
    assert len(list((Path(after.work) / "receipts").iterdir())) == 1


def test_the_same_facts_give_the_same_receipt(before: Made) -> None:
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    first = removal.run(after.work, after.examples)
    content = Path(first).read_text()
    assert removal.run(after.work, after.examples) == first
    assert Path(first).read_text() == content


def test_a_receipt_counts_rows_of_arrow_shards_only(before: Made) -> None:
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    facts = read_manifest(after.examples).facts
    counted = {c["manifest"]: c["num_rows"] for c in receipt_of(after)["in_no_shard_of"]}
    assert counted[after.examples] == facts["num_train"] + facts["num_held_out"]


def test_lists_beside_shards_and_abandoned_files_are_found_and_purged(
    before: Made,
) -> None:
    gone = before.source / "1.jsonl"
    work = Path(before.work)
    host = storage.machine_name()
    unit, lists = work / "units" / "u", work / "corpus" / "c"
    unit.mkdir()
    lists.mkdir()
    overlap = {"document": "1.jsonl#d20", "source": f"file://{gone}"}
    (lists / "test_overlaps.jsonl").write_text(json.dumps(overlap) + "\n")
    unreadable = {"file": f"file://{gone}"}
    (unit / "00000.unreadable.jsonl").write_text(json.dumps(unreadable) + "\n")
    abandoned = work / "corpus" / "k" / f".documents.arrow~{host}-999999999-ab.tmp"
    scratch = work / "vocab" / "k" / f".scratch-{host}-999999999-ab"
    elsewhere = work / "vocab" / "other" / ".spiece.model~otherhost-1-ab.tmp"
    for file in (abandoned, scratch / "sample.tsv", elsewhere):
        file.parent.mkdir(parents=True)
        file.write_text("text")
    gone.unlink()
    after = remake(before, before.source)
    receipt = receipt_of(after, "yes")
    found = {str(path) for path in (unit, lists, abandoned, scratch, elsewhere)}
    assert found <= set(receipt["earlier_results_with_them"])
    assert not any(path.exists() for path in (unit, lists, abandoned, scratch))
    assert receipt["left_after_purge"] == [str(elsewhere)]


def test_a_purge_that_was_interrupted_leaves_no_folder_that_looks_done_and_is_finished_later(
    before: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    remove = storage.remove

    def killed_at_text(uri: str) -> None:
        if uri.endswith((".arrow", ".tfrecord")) and "/parts/" not in uri:
            raise KeyboardInterrupt
        remove(uri)

    monkeypatch.setattr(storage, "remove", killed_at_text)
    with pytest.raises(KeyboardInterrupt):
        removal.run(after.work, after.examples, "yes")
    assert not Path(before.examples).exists()
    monkeypatch.setattr(storage, "remove", remove)
    receipt = receipt_of(after, "yes")
    assert set(receipt["documents"]) == FIRST
    assert receipt["left_after_purge"] == []
    assert not Path(before.corpus).parent.exists()


def test_a_vocabulary_of_removed_documents_is_named_and_stays(before: Made) -> None:
    vocab = train_vocab.run(VOCABULARY, before.corpus, before.work)
    (before.source / "1.jsonl").unlink()
    receipt = receipt_of(remake(before, before.source), "yes")
    assert receipt["vocabularies_made_of_them"] == [vocab]
    assert Path(vocab).exists()


def test_a_current_folder_that_holds_a_removed_document_gets_no_receipt(before: Made) -> None:
    (before.source / "1.jsonl").unlink()
    after = remake(before, before.source)
    [shard] = Path(before.corpus).parent.glob("documents-00001-*.arrow")
    shutil.copy(shard, Path(after.corpus).parent / "rejected-9.arrow")
    with pytest.raises(IntegrityError, match="holds a removed document"):
        removal.run(after.work, after.examples, "yes")
    assert Path(before.corpus).exists()


def test_ids_are_looked_up_as_large_strings() -> None:
    assert removal._unique([]).type == pa.large_string()
    found = removal._unique([pa.array(["b", "a"], pa.large_string())] * 2)
    assert found.to_pylist() == ["a", "b"]


def test_a_model_that_goes_on_from_one_with_removed_text_is_named_too(tmp_path: Path) -> None:
    def trained(number: int, **made_of: str) -> str:
        plan = StagePlan("pretraining", {"number": number}, {}, "code", {}, made_of)
        return plan.write(str(tmp_path), [], [], {})

    examples = f"{tmp_path}/examples/{'0' * 16}"
    first = trained(1, examples=f"{examples}/manifest.json")
    second = trained(2, examples="/clean/manifest.json", pretraining=first)
    third = trained(3, examples="/clean/manifest.json", pretraining=second)
    trained(4, examples="/clean/manifest.json")
    found = removal._made_of(str(tmp_path), "pretraining", [examples])
    assert sorted(found) == sorted([first, second, third])
