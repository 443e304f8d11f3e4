"""A changed source: its refresh has the bytes of a new build, and what was removed has a receipt.

What counts as removed, where its text is found, and what a purge deletes and leaves.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from albert_core.stage import lock, storage
from albert_core.stage.errors import ConfigError, IntegrityError, SourceError
from albert_core.stage.lineage import read_work
from albert_core.stage.manifest import StagePlan, read_manifest
from albert_core.stage.results import CorpusResult, ExamplesResult
from albert_core.stage.settings import Settings
from albert_core.text.arrow_files import read_arrow, write_arrow
from albert_core.text.seeds import share_of
from pipelines import clean_corpus, make_examples, make_task, removal, train_vocab
from pipelines.config import CleaningSettings, SourceSettings, TaskSettings
from tests.conftest import not_listed
from tests.generated_text import document, write_jsonl
from tests.made_results import replace_in_manifest
from tests.pipelines.conftest import EXAMPLES, VOCABULARY, Made, make

FIRST = {f"1.jsonl#d{n}" for n in range(20, 40)}
"""The documents of the file that is removed."""
CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda source: write_jsonl(source / "1a.jsonl", range(200, 210)),
    "a changed file": lambda source: write_jsonl(source / "1.jsonl", [*range(20, 39), 100]),
    "a removed file": lambda source: (source / "1.jsonl").unlink(),
    "a repeated file": lambda source: shutil.copy(source / "2.jsonl", source / "0.jsonl"),
}

pytestmark = pytest.mark.usefixtures("a_unit_for_each_file")


@pytest.fixture(scope="module")
def first(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A source of its own and what was made of it; both are copied, to be put back."""
    folder = tmp_path_factory.mktemp("removal")
    shutil.copytree(made.source, folder / "now/source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
        first = remake(made, folder / "now/source", folder / "now/work")
    shutil.copytree(folder / "now", folder / "then")
    return first


@pytest.fixture
def before(first: Made) -> Made:
    """The same, as if no test had changed it."""
    now = Path(first.work).parent
    shutil.rmtree(now)
    shutil.copytree(now.with_name("then"), now)
    return first


def remake(
    before: Made,
    source: Path | None = None,
    work: Path | None = None,
    file_share: float = 1.0,
    **cleaning: Any,
) -> Made:
    """Make the corpus and its examples again, with the vocabulary of ``before``."""
    source, to = source or before.source, str(work or before.work)
    settings = SourceSettings(uri=str(source), file_share=file_share)
    corpus = clean_corpus.run(settings, CleaningSettings(**cleaning), to)
    examples = make_examples.run(EXAMPLES, corpus, before.vocab, to)
    return Made(source, to, corpus, before.vocab, examples)


def without_first(before: Made) -> Made:
    """Remove a file from the source and make the corpus and its examples again."""
    (before.source / "1.jsonl").unlink()
    return remake(before)


def receipt_of(made: Made, purge: str = "no") -> dict[str, Any]:
    assert removal.find_done(made.work, made.corpus, made.examples) is None
    uri = removal.run(made.work, made.corpus, made.examples, purge)
    found: dict[str, Any] = json.loads(Path(uri).read_text())
    return found


def purged(made: Made) -> dict[str, Any]:
    """Return the receipt of a purge that left nothing."""
    receipt = receipt_of(made, "yes")
    assert receipt["left_after_purge"] == []
    return receipt


def nothing_is_removed(made: Made) -> bool:
    return removal.run(made.work, made.corpus, made.examples, "yes") == removal.NOTHING_REMOVED


def task_of(made: Made, **task: Any) -> Path:
    return Path(make_task.run(TaskSettings(**task), made.examples, made.corpus, made.work))


def pretrained(work: str, number: int = 0, **made_of: str) -> str:
    """Write a pretraining of these manifests; return its own."""
    plan = StagePlan("pretraining", {"number": number}, made_of, "code", {}, made_of)
    return plan.write(work, [], [], Settings())


def scored_on(task: Path | None, work: str) -> Path:
    """Write a zero-shot result with the pairs of a task, or with none; return its manifest."""
    inputs = {"pretraining": f"{work}/pretraining/{'0' * 16}/manifest.json"}
    made_of = inputs if task is None else inputs | {"task": str(task)}
    plan = StagePlan("zero-shot", {}, {"task": str(task)}, "code", {}, made_of)
    outcomes = Path(plan.folder(work)) / "outcomes"
    outcomes.mkdir(parents=True)
    pairs = pa.table({"good": ["It rains."], "bad": ["Rains it."]})
    write_arrow(pairs, str(outcomes / "generated.arrow"), "zstd")
    return Path(plan.write(work, [], [], Settings()))


def texts_below(work: str) -> bytes:
    return b"".join(path.read_bytes() for path in Path(work).rglob("*") if path.is_file())


def has_text_of(number: int, work: str) -> bool:
    return document(number)[:60].encode() in texts_below(work)


def shards(manifest: str) -> list[tuple[str, str]]:
    return [(shard.path, shard.sha256) for shard in read_manifest(manifest).shards]


def ids_in(manifest: str, column: str = "id") -> set[str]:
    files = Path(manifest).parent.glob("*.arrow")
    return {i for file in files for i in read_arrow(str(file))[column].to_pylist()}


def write_texts(path: Path, documents: Iterable[tuple[str, str]]) -> None:
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in documents)
    path.write_text("".join(lines))


@pytest.mark.parametrize("change", CHANGES)
def test_a_refresh_gives_the_bytes_of_a_build_from_scratch(
    before: Made, tmp_path: Path, change: str
) -> None:
    CHANGES[change](before.source)
    refreshed = make(before.source, Path(before.work))
    scratch = make(before.source, tmp_path / "scratch")
    for name in ("corpus", "vocab", "examples"):
        assert shards(getattr(refreshed, name)) == shards(getattr(scratch, name))
    assert shards(refreshed.corpus) != shards(before.corpus)


def test_a_removed_document_is_in_no_shard_and_the_receipt_says_so(before: Made) -> None:
    after = without_first(before)
    receipt = receipt_of(after)
    assert set(receipt["documents"]) == FIRST
    made = read_manifest(after.examples).result_as(ExamplesResult)
    rows = {checked["manifest"]: checked["num_rows"] for checked in receipt["in_no_shard_of"]}
    assert rows == {after.corpus: 40, after.examples: made.num_train + made.num_held_out}
    assert not FIRST & ids_in(after.corpus)
    assert not FIRST & ids_in(after.examples, "document_id")
    assert str(Path(before.examples).parent) in receipt["earlier_results_with_them"]
    assert not receipt["purged"]
    assert receipt_of(after) == receipt  # the same file, and not written again


def test_purging_leaves_no_text_of_a_removed_document_but_names_its_vocabulary(
    before: Made,
) -> None:
    vocab = train_vocab.run(VOCABULARY, before.corpus, before.work)
    after = without_first(before)
    assert purged(after)["vocabularies_made_of_them"] == [vocab]
    assert Path(vocab).exists()
    assert not Path(before.corpus).exists()
    assert not Path(before.examples).exists()
    for file in Path(before.work).rglob("*.arrow"):
        assert b"1.jsonl#d20" not in file.read_bytes()
    assert shards(remake(before).examples) == shards(after.examples)


def test_what_was_made_of_text_that_a_purge_deleted_is_named_apart_by_later_receipts(
    before: Made,
) -> None:
    vocab = train_vocab.run(VOCABULARY, before.corpus, before.work)
    model = pretrained(before.work, examples=before.examples)
    fine_tuned = pretrained(before.work, number=1, pretraining=model)
    assert purged(without_first(before))["may_be_made_of_them"] == []
    (before.source / "2.jsonl").unlink()
    receipt = receipt_of(remake(before))
    assert receipt["vocabularies_made_of_them"] == receipt["models_made_of_them"] == []
    assert set(receipt["may_be_made_of_them"]) == {vocab, model, fine_tuned}


def test_a_vocabulary_that_was_kept_is_made_of_the_text_that_it_was_trained_on(
    before: Made,
) -> None:
    trained = train_vocab.run(VOCABULARY, before.corpus, before.work)
    write_jsonl(before.source / "1a.jsonl", range(200, 210))
    kept = train_vocab.run(VOCABULARY, remake(before).corpus, before.work)
    model = pretrained(before.work, vocab=kept)
    (before.source / "1a.jsonl").unlink()
    write_jsonl(before.source / "1b.jsonl", range(210, 220))
    assert receipt_of(remake(before))["vocabularies_made_of_them"] == []
    receipt = receipt_of(without_first(before))
    assert receipt["vocabularies_made_of_them"] == [trained, kept]
    assert receipt["models_made_of_them"] == [model]


def test_a_current_result_that_is_damaged_or_holds_a_removed_document_gets_no_receipt(
    before: Made,
) -> None:
    after = without_first(before)
    [shard] = Path(before.corpus).parent.glob("documents-00001-*.arrow")
    copy = Path(shutil.copy(shard, Path(after.corpus).parent / "rejected-9.arrow"))
    with pytest.raises(IntegrityError, match="holds a removed document"):
        removal.run(after.work, after.corpus, after.examples, "yes")
    assert Path(before.corpus).exists()
    copy.unlink()
    next(Path(after.examples).parent.glob("train-*.arrow")).write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"changed after it was written.* is set aside"):
        removal.run(after.work, after.corpus, after.examples)


def test_tasks_that_may_hold_removed_text_are_found_and_purged_and_others_stay(
    before: Made,
) -> None:
    of_removed, of_unknown = task_of(before), task_of(before, max_pairs=50)
    after = without_first(before)
    inputs = read_manifest(str(of_unknown)).input_manifests
    replace_in_manifest(of_unknown, inputs["corpus"], "/no/where/m.json")
    new, unfinished = task_of(after), task_of(after, max_pairs=1000)
    unfinished.unlink()
    scored = scored_on(of_removed, before.work)
    found = {of_removed.parent, of_unknown.parent, unfinished.parent, scored.parent}
    others = [new, scored_on(new, before.work), scored_on(None, before.work)]
    assert set(map(str, found)) <= set(purged(after)["earlier_results_with_them"])
    assert not any(folder.exists() for folder in found)
    assert all(other.exists() for other in others)


def test_a_model_fine_tuned_on_passages_of_removed_documents_is_named(before: Made) -> None:
    task = task_of(before)
    tuned = StagePlan("finetuning", {}, {}, "code", {}, {"task": str(task)})
    uri = tuned.write(before.work, [], [], Settings())
    assert purged(without_first(before))["models_made_of_them"] == [uri]


def test_of_documents_with_the_same_id_only_those_removed_leave_the_units(
    before: Made, tmp_path: Path
) -> None:
    write_texts(before.source / "7.jsonl", [("same", document(500)), ("same", document(501))])
    [renamed] = [each for each in ids_in(remake(before).corpus) if "~" in each]
    excluded = tmp_path / "excluded.txt"
    excluded.write_text(renamed)
    after = remake(before, excluded_ids=str(excluded))
    assert purged(after)["documents"] == [renamed]
    assert has_text_of(500, after.work)
    assert not has_text_of(501, after.work)
    (before.source / "7.jsonl").unlink()
    after = remake(before)
    assert purged(after)["documents"] == ["7.jsonl#same"]
    assert not has_text_of(500, after.work)


@pytest.mark.parametrize(("name", "key"), [("7.csv", None), ("7.jsonl", None), ("7.jsonl", "same")])
def test_of_documents_without_an_id_of_their_own_the_text_that_is_gone_is_removed(
    before: Made, tmp_path: Path, name: str, key: str | None
) -> None:
    def write(numbers: Iterable[int]) -> None:
        texts = [document(number) for number in numbers]
        if name == "7.csv":
            text = "".join(f'"{each}"\n' for each in ["text", *texts])
        else:
            of_id = {} if key is None else {"id": key}
            text = "".join(json.dumps(of_id | {"text": each}) + "\n" for each in texts)
        (before.source / name).write_text(text)

    numbers = [*range(500, 520)]
    write(numbers)
    old = remake(before)
    seen = [number for number in numbers if has_text_of(number, old.work)]
    gone = [seen[0], seen[2], seen[-1]]
    write([number for number in numbers if number not in gone] + [600])
    after = remake(before)
    receipt = purged(after)
    assert len(receipt["documents"]) == 3
    assert all(each.startswith(f"{name}#") for each in receipt["documents"])
    assert [n for n in seen if has_text_of(n, after.work)] == [n for n in seen if n not in gone]
    assert Path(after.examples).exists()
    assert not Path(old.examples).exists()
    assert nothing_is_removed(after)


def test_documents_that_were_only_ever_dropped_are_removed_with_their_file(before: Made) -> None:
    write_jsonl(before.source / "7.jsonl", range(3))
    old = remake(before)
    assert read_manifest(old.corpus).content == read_manifest(before.corpus).content
    (before.source / "7.jsonl").unlink()
    after = remake(before)
    assert purged(after)["documents"] == [f"7.jsonl#d{n}" for n in range(3)]
    for unit in (Path(after.work) / "units").rglob("*.arrow"):
        assert b"7.jsonl#d0" not in unit.read_bytes()
    assert Path(after.examples).exists()


def test_a_source_that_moved_still_has_its_documents_and_lacks_those_removed(
    before: Made, tmp_path: Path
) -> None:
    moved = before.source.rename(tmp_path / "moved")
    write_jsonl(moved / "9.jsonl", range(300, 305))
    after = remake(before, moved)
    assert removal.find_done(after.work, after.corpus, after.examples) == removal.NOTHING_REMOVED
    assert nothing_is_removed(after)
    assert Path(before.corpus).exists()
    (moved / "1.jsonl").unlink()
    assert set(receipt_of(remake(before, moved))["documents"]) == FIRST


def test_only_a_changed_file_is_made_again_and_what_it_holds_no_more_is_removed(
    before: Made, caplog: pytest.LogCaptureFixture
) -> None:
    write_jsonl(before.source / "1.jsonl", range(20, 39))
    with caplog.at_level(logging.INFO):
        after = remake(before)
    for said in ("1 changed (1.jsonl)", "1 of 3 units of files", "1 of 3 parts to make"):
        assert said in caplog.text
    receipt = purged(after)
    assert receipt["documents"] == ["1.jsonl#d39"]
    assert receipt["files"] == []
    assert not Path(before.corpus).exists()


def test_what_other_settings_or_sources_do_not_have_is_not_removed(
    before: Made, tmp_path: Path
) -> None:
    share = max(share_of(0, "source-file", f"{n}.jsonl") for n in range(3))
    sampled = remake(before, file_share=share)
    assert read_manifest(sampled.corpus).result_as(CorpusResult).num_source_files == 2
    assert nothing_is_removed(sampled)
    words = sorted(len(document(n).split()) for n in range(60))[30]
    strict = remake(before, min_words=words)
    assert read_manifest(strict.corpus).result_as(CorpusResult).num_documents < 60
    assert nothing_is_removed(strict)
    (tmp_path / "other").mkdir()
    write_jsonl(tmp_path / "other" / "0.jsonl", range(700, 730))
    assert nothing_is_removed(remake(before, tmp_path / "other"))
    assert Path(before.examples).exists()


@pytest.mark.parametrize("how", ["no folder", "an empty folder", "no answer"])
def test_while_a_source_is_away_a_refresh_of_another_takes_nothing_of_it_for_removed(
    before: Made,
    tmp_path: Path,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_jsonl(other / "0.jsonl", range(700, 730))  # a file of this name is in both
    after = remake(before, other)
    with monkeypatch.context() as patch:
        if how == "no answer":
            patch.setattr(storage, "is_there", lambda _, **__: None)
        else:
            before.source.rename(tmp_path / "away")
        if how == "an empty folder":
            before.source.mkdir()
        assert removal.find_done(after.work, after.corpus, after.examples) is not None
        assert f"3 files of file://{before.source}/ are left out of account" in caplog.text
        assert nothing_is_removed(after)
    assert Path(before.examples).exists()
    if how == "no folder":
        (tmp_path / "away").rename(before.source)
        (before.source / "1.jsonl").unlink()
        assert set(purged(after)["documents"]) == FIRST


@pytest.mark.parametrize("name", ["7.jsonl", "7.csv"])
def test_of_a_changed_file_what_cleaning_now_leaves_out_is_not_removed(
    before: Made, name: str
) -> None:
    lengths = {500: 20, 520: 40, 540: 40}
    texts = {n: " ".join(document(n, length).split()) for n, length in lengths.items()}
    texts[500] += " 春はあけぼの。夏は夜。"  # kept, it is cut where there is no blank

    def write(*numbers: int) -> None:
        if name == "7.csv":
            lines = ["text", *(f'"{texts[number]}"' for number in numbers)]
            (before.source / name).write_text("".join(f"{line}\n" for line in lines))
        else:
            write_texts(before.source / name, [(f"d{n}", texts[n]) for n in numbers])

    write(500, 520)
    assert read_manifest(remake(before).corpus).account("documents").kept == 62
    shutil.copy(before.source / name, before.source / f"0{name}")  # the same rows, but earlier
    write(500, 520, 540)
    min_words = len(texts[500].split()) + 20
    strict = remake(before, min_words=min_words)
    dropped = read_manifest(strict.corpus).account("documents").dropped
    assert dropped == {"duplicate": 1, "too_short": 2}
    assert nothing_is_removed(strict)
    write(500, 540)
    [removed] = receipt_of(remake(before, min_words=min_words))["documents"]
    assert removed.startswith({"7.csv": "7.csv#row-1~", "7.jsonl": "7.jsonl#d520"}[name])


@pytest.fixture
def killed(before: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A run that is killed when it has cleaned one more file, 7.jsonl."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    write_jsonl(before.source / "7.jsonl", [500])
    with monkeypatch.context() as patch:
        patch.setattr(clean_corpus, "_finish", kill)
        with pytest.raises(KeyboardInterrupt):
            remake(before)
    return before


def test_text_that_only_a_killed_run_cleaned_is_removed_with_its_file(killed: Made) -> None:
    (killed.source / "7.jsonl").unlink()
    after = remake(killed)
    assert after.corpus == killed.corpus
    assert has_text_of(500, after.work)
    assert purged(after)["documents"] == ["7.jsonl#d500"]
    assert not has_text_of(500, after.work)
    assert nothing_is_removed(after)


def test_what_a_killed_run_cleaned_is_still_there_after_its_source_moved(
    killed: Made, tmp_path: Path
) -> None:
    after = remake(killed, killed.source.rename(tmp_path / "moved"))
    assert "7.jsonl#d500" in ids_in(after.corpus)
    assert removal.find_done(after.work, after.corpus, after.examples) == removal.NOTHING_REMOVED


def test_excluded_ids_are_removed_and_a_refresh_finds_the_receipt_of_the_purge(
    before: Made, tmp_path: Path
) -> None:
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("1.jsonl#d20\n")
    after = remake(before, excluded_ids=str(excluded))
    assert receipt_of(after)["documents"] == ["1.jsonl#d20"]
    uri = removal.run(after.work, after.corpus, after.examples, "yes")
    content = Path(uri).read_text()
    assert json.loads(content)["left_after_purge"] == []
    again = remake(before, excluded_ids=str(excluded))
    assert removal.run(again.work, again.corpus, again.examples) == uri
    assert Path(uri).read_text() == content
    assert len(list((Path(after.work) / "receipts").iterdir())) == 1


def test_an_excluded_id_counts_with_its_blanks_and_one_that_nothing_has_is_named_apart(
    before: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_texts(before.source / "9.jsonl", [("a ", document(300)), ("b", document(301))])
    excluded = tmp_path / "excluded.txt"
    excluded.write_bytes(b"9.jsonl#a \r\n9.jsonl#b \n1.jsonl#d20\nno.jsonl#1\n \n")
    (before.source / "1.jsonl").unlink()
    after = remake(before, excluded_ids=str(excluded))
    assert "no document of the source has 3 of the 4 ids of cleaning.excluded_ids" in caplog.text
    assert "9.jsonl#b" in ids_in(after.corpus)
    receipt = receipt_of(after)
    assert set(receipt["documents"]) == FIRST | {"9.jsonl#a "}
    assert receipt["excluded_ids_not_found"] == ["9.jsonl#b ", "no.jsonl#1"]
    (corpus,) = [
        each for each in read_work(after.work).of_stage("corpus") if each.uri == after.corpus
    ]
    not_found = corpus.manifest.result_as(CorpusResult).excluded_ids_not_found
    assert not_found == ("1.jsonl#d20", "9.jsonl#b ", "no.jsonl#1")


def test_lists_beside_shards_and_abandoned_files_are_found_and_purged(before: Made) -> None:
    gone = before.source / "1.jsonl"
    work = Path(before.work)
    host = storage.machine_name()
    unit, lists = work / "units" / "u", work / "corpus" / "c"
    unit.mkdir()
    lists.mkdir()
    overlap = {"document": "1.jsonl#d20", "source": f"file://{gone}"}
    (lists / "test_overlaps.jsonl").write_text(json.dumps(overlap) + "\n")
    of_archive = work / "units" / "of_archive"
    for folder, name in ((unit, gone), (of_archive, f"{gone}#member.txt")):
        folder.mkdir(exist_ok=True)
        unreadable = json.dumps({"file": f"file://{name}"})
        (folder / "00000.unreadable.jsonl").write_text(f"{unreadable}\n")
    abandoned = work / "corpus" / "k" / f".documents.arrow~{host}-999999999-ab.tmp"
    scratch = work / "vocab" / "k" / f".scratch-{host}-999999999-ab"
    elsewhere = work / "vocab" / "other" / ".spiece.model~otherhost-1-ab.tmp"
    for file in (abandoned, scratch / "sample.tsv", elsewhere):
        file.parent.mkdir(parents=True)
        file.write_text("text")
    receipt = receipt_of(without_first(before), "yes")
    found = {str(path) for path in (unit, of_archive, lists, abandoned, scratch, elsewhere)}
    assert found <= set(receipt["earlier_results_with_them"])
    assert not any(path.exists() for path in (unit, of_archive, lists, abandoned, scratch))
    assert receipt["left_after_purge"] == [str(elsewhere)]


def test_a_purge_that_was_interrupted_leaves_no_folder_that_looks_done_and_is_finished_later(
    before: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = without_first(before)
    remove = storage.remove

    def killed_at_text(uri: str) -> None:
        if uri.endswith((".arrow", ".tfrecord")) and "/parts/" not in uri:
            raise KeyboardInterrupt
        remove(uri)

    monkeypatch.setattr(storage, "remove", killed_at_text)
    with pytest.raises(KeyboardInterrupt):
        removal.run(after.work, after.corpus, after.examples, "yes")
    assert not Path(before.examples).exists()
    monkeypatch.setattr(storage, "remove", remove)
    assert set(purged(after)["documents"]) == FIRST
    assert not Path(before.corpus).parent.exists()


@pytest.mark.parametrize("content", ["", " \n", None])
def test_a_file_that_is_emptied_or_becomes_a_folder_no_longer_has_its_document(
    before: Made, content: str | None
) -> None:
    file = before.source / "9.txt"
    file.write_text(document(300))
    between = remake(before)
    if content is None:
        file.unlink()
        storage.write_bytes(str(file / "1.txt"), document(301).encode())
    else:
        file.write_text(content)
    assert receipt_of(remake(between))["documents"] == ["9.txt"]


def test_a_training_on_removed_text_that_has_only_begun_is_named(
    before: Made, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = {"examples": before.examples}
    plan = StagePlan("pretraining", {}, {}, "code", {}, inputs)
    assert plan.find(before.work) is None
    lock.release(before.work, f"{plan.stage}/{plan.key}")
    begun = f"{plan.folder(before.work)}/begun.json"
    assert purged(without_first(before))["models_made_of_them"] == [begun]
    assert f"{begun}, an unfinished training, is of removed documents" in caplog.text


def test_where_a_folder_cannot_be_listed_there_is_no_receipt(before: Made) -> None:
    after, folder = without_first(before), Path(before.examples).parent
    with not_listed(folder), pytest.raises(SourceError, match=f"{folder} can't be listed"):
        removal.run(after.work, after.corpus, after.examples)
    assert not (Path(after.work) / "receipts").exists()


def test_another_word_for_purge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--purge=ja: give yes or no"):
        removal.run(str(tmp_path), "", "", "ja")


def test_a_model_that_continues_one_with_removed_text_is_named_too(tmp_path: Path) -> None:
    work, examples = str(tmp_path), f"{tmp_path}/examples/{'0' * 16}"
    first = pretrained(work, examples=f"{examples}/manifest.json")
    second = pretrained(work, examples="/clean/manifest.json", pretraining=first)
    third = pretrained(work, examples="/clean/manifest.json", pretraining=second)
    pretrained(work, examples="/clean/manifest.json")
    found, _ = removal._made_of([examples], read_work(str(tmp_path)))
    assert sorted(each.uri for each in found) == sorted([first, second, third])
