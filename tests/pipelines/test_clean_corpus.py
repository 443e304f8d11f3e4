"""Stage 1 on small sources: what is kept, what is dropped and why, and that nothing else is."""

import base64
import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage.errors import AccountingError, OutageError, SourceError
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import write_arrow
from albert_core.text.records import Document
from pipelines import clean_corpus, clean_unit, source_files
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.engine import runner
from pipelines.readers import Unreadable, read_documents
from pipelines.source_files import MAX_UNIT_BYTES
from tests.generated_text import document, write_jsonl
from tests.pipelines.conftest import rows_of

Clean = Callable[..., str]


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    """Clean a source in this process; settings of both sections by name."""

    def run(source: Path | str | list[str], **settings: Any) -> str:
        reading = {k: v for k, v in settings.items() if k in SourceSettings.model_fields}
        cleaning = {k: v for k, v in settings.items() if k in CleaningSettings.model_fields}
        work = str(settings.get("work", tmp_path / "work"))
        return clean_corpus.run(
            SourceSettings(uri=source if isinstance(source, list) else str(source), **reading),
            CleaningSettings(**cleaning),
            work,
        )

    return run


def rows(manifest: str, kind: str = "documents") -> list[dict[str, Any]]:
    return rows_of(manifest, kind)


def ids(manifest: str) -> list[str]:
    return [row["id"] for row in rows(manifest)]


def dropped(manifest: str) -> dict[str, int]:
    account = read_manifest(manifest).account("documents")
    assert account.kept == len(rows(manifest))
    return account.dropped


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def changed(text: str, every: int) -> str:
    """Return ``text`` with one word in ``every`` replaced."""
    words = text.split(" ")
    return " ".join("changed" if n % every == every - 1 else w for n, w in enumerate(words))


def test_a_record_that_cannot_be_read_is_kept_with_its_file_offset_and_reason(
    clean: Clean, tmp_path: Path
) -> None:
    good = json.dumps({"id": "a", "text": document(1)}).encode() + b"\n"
    source = tmp_path / "s.jsonl"
    source.write_bytes(good + b'{"id": "b", "text": \n' + good.replace(b'"a"', b'"c"', 1))
    manifest = clean(source)
    [line] = Path(manifest).with_name("unreadable.jsonl").read_text().splitlines()
    letter = json.loads(line)
    assert letter["file"] == source.as_uri()
    assert letter["offset"] == len(good)
    assert letter["reason"] == "not_json"
    assert base64.b64decode(letter["content_base64"]).startswith(b'{"id": "b"')


def test_a_source_with_too_many_bad_records_is_refused_also_when_its_units_are_kept(
    clean: Clean, tmp_path: Path
) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"text": document(1)}) + "\n{broken\n{broken\n")
    with pytest.raises(SourceError, match=r"2 of 3 records of the source can't be read"):
        clean(source)
    assert ids(clean(source, max_unreadable_share=0.7))
    with pytest.raises(SourceError, match=r"2 of 3 records"):
        clean(source, max_unreadable_share=0.6)


@pytest.mark.parametrize("format", ["text", "sentences"])
def test_a_sentence_that_is_too_long_is_cut_and_counted(
    clean: Clean, tmp_path: Path, format: str
) -> None:
    source = tmp_path / "s.txt"
    source.write_text(document(1).replace(".", ",").replace("\n", " "))
    manifest = clean(source, format=format, max_sentence_characters=100)
    [row] = rows(manifest)
    assert 50 < max(map(len, row["text"].split("\n"))) <= 100
    assert read_manifest(manifest).result["num_sentences_cut"] == 1


def test_a_text_is_split_by_the_rules_of_its_own_language(clean: Clean, tmp_path: Path) -> None:
    sentences = [
        "Die alte Brücke über den Bach wurde im 19. Jahrhundert von den Bauern des Dorfes gebaut.",
        "Sie ist aus Holz und hält noch immer, aber das Geländer ist mit Moos bewachsen.",
    ]
    source = write(tmp_path / "s.jsonl", {"text": " ".join(sentences)})
    [row] = rows(clean(source, language="auto"))
    assert row["text"].split("\n") == sentences
    [row] = rows(clean(source, language="en"))
    assert row["text"].split("\n") != sentences


def test_rejected_documents_are_written_out_with_their_reason(clean: Clean, tmp_path: Path) -> None:
    texts = [document(1), document(1), "Too short."]
    source = write(tmp_path / "s.jsonl", *({"id": str(n), "text": t} for n, t in enumerate(texts)))
    rejected = rows(clean(source, keep_rejected=True), "rejected")
    assert [(row["id"], row["reason"]) for row in rejected] == [
        ("s.jsonl#1", "duplicate"),
        ("s.jsonl#2", "too_short"),
    ]
    assert rejected[1]["text"] == "Too short."


def test_every_record_is_kept_or_counted_by_the_reason_why_it_was_dropped(
    clean: Clean, tmp_path: Path
) -> None:
    texts = [document(1), document(1).upper(), "Too short.", "12 34 56 78 " * 20]
    source = write(tmp_path / "s.jsonl", *({"text": text} for text in texts), {"title": "no text"})
    manifest = clean(source)
    assert read_manifest(manifest).account("documents").total == 5
    reasons = ("duplicate", "no_text_field", "too_few_letters", "too_short")
    assert dropped(manifest) == dict.fromkeys(reasons, 1)


def test_documents_with_the_same_id_get_ids_of_their_own(clean: Clean, tmp_path: Path) -> None:
    texts = [document(1), document(2), document(3)]
    source = write(tmp_path / "s.jsonl", *({"id": "same", "text": text} for text in texts))
    found = ids(clean(source))
    assert found[0] == "s.jsonl#same"
    assert len(set(found)) == 3
    assert all(name.startswith("s.jsonl#same~") for name in found[1:])


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_what_an_earlier_corpus_has_is_dropped_also_where_repetition_is_kept(
    drop_duplicates: bool, clean: Clean, tmp_path: Path
) -> None:
    earlier = clean(write_jsonl(tmp_path / "earlier.jsonl", range(5)), work=tmp_path / "earlier")
    source = write_jsonl(tmp_path / "s.jsonl", [3, 4, 5, 5, 6])
    settings = {"known_corpora": [earlier], "drop_duplicates": drop_duplicates}
    assert dropped(clean(source, **settings)) == (
        {"duplicate_of_known_corpus": 2} | ({"duplicate": 1} if drop_duplicates else {})
    )


@pytest.mark.parametrize("of_known_corpus", [False, True])
def test_near_duplicates_of_an_earlier_document_are_dropped(
    of_known_corpus: bool, clean: Clean, tmp_path: Path
) -> None:
    text = " ".join(document(n) for n in range(10))
    like, unlike = ({"id": str(every), "text": changed(text, every)} for every in (100, 2))
    original = write(tmp_path / "a.jsonl", {"id": "0", "text": text})
    nothing_kept = write(tmp_path / "b.jsonl", {"text": "too short"})
    source = write(tmp_path / "s.jsonl", like, unlike)
    settings: dict[str, Any] = {"near_duplicate_similarity": 0.8}
    sources = [str(nothing_kept), str(source)]
    if of_known_corpus:
        settings["known_corpora"] = [clean(original, work=tmp_path / "earlier")]
    else:
        assert dropped(clean([str(original), *sources])) == {"too_short": 1}
        sources.insert(0, str(original))
    manifest = clean(sources, **settings)
    assert ids(manifest)[-1:] == ["s.jsonl#2"]
    reason = "near_duplicate_of_known_corpus" if of_known_corpus else "near_duplicate"
    assert dropped(manifest) == {"too_short": 1, reason: 1}


def test_overlap_with_a_test_set_is_dropped_and_in_the_ledger(clean: Clean, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(4))
    quoted = "1\t" + " ".join(document(2).split()[3:20]) + "\n"
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(quoted.encode()))
    manifest = clean(source, test_texts=[str(tmp_path / "*.tsv.gz")])
    assert dropped(manifest) == {"test_overlap": 1}
    [line] = Path(manifest).with_name("test_overlaps.jsonl").read_text().splitlines()
    assert json.loads(line)["document"] not in ids(manifest)
    assert json.loads(line)["num_ngrams"] == 5
    kept = clean(source, test_texts=[str(tmp_path / "*.tsv.gz")], min_test_overlaps=6)
    assert dropped(kept) == {}
    assert not json.loads(Path(kept).with_name("test_overlaps.jsonl").read_text())["dropped"]
    (tmp_path / "test.tsv").write_text(quoted, "utf-16")
    assert ids(clean(source, test_texts=[str(tmp_path / "test.tsv")])) == ids(manifest)
    pq.write_table(pa.table({"text": [quoted]}), tmp_path / "test.parquet", compression="none")
    with pytest.raises(SourceError, match=r"test.parquet, of cleaning.test_texts, is not text"):
        clean(source, test_texts=[str(tmp_path / "test.parquet")])
    (tmp_path / "few.txt").write_text("Only four words here.")
    with pytest.raises(SourceError, match=r"few.txt, of cleaning.test_texts, has no 13 words"):
        clean(source, test_texts=[str(tmp_path / "few.txt")])


def test_documents_asked_to_be_left_out_are_nowhere(clean: Clean, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(4))
    everything = ids(clean(source))
    (tmp_path / "out.txt").write_text(f"{everything[1]}\n")
    manifest = clean(source, excluded_ids=str(tmp_path / "out.txt"), keep_rejected=True)
    assert ids(manifest) == [everything[0], *everything[2:]]
    assert dropped(manifest) == {"excluded": 1}
    assert rows(manifest, "rejected") == []


@pytest.mark.parametrize(
    "limit",
    ["pipelines.source_files.MAX_UNIT_BYTES", "pipelines.clean_unit.PART_BYTES"],
    ids=["ranges", "parts"],
)
def test_a_large_file_cut_into_ranges_or_parts_gives_the_documents_of_the_whole(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(40))
    whole = rows(clean(source, work=tmp_path / "whole"))
    monkeypatch.setattr(limit, 2000)
    manifest = clean(source, work=tmp_path / "cut")
    assert len(read_manifest(manifest).shards_of("documents")) > 3
    assert rows(manifest) == whole


def test_a_file_without_a_record_is_a_unit_like_others(clean: Clean, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "0.jsonl").touch()
    with pytest.raises(SourceError, match="no document of the source is left: documents: 0 in"):
        clean(tmp_path / "s")


def test_a_file_that_cannot_be_read_now_ends_the_run_and_leaves_nothing_done(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(5))
    monkeypatch.setattr(
        "pipelines.clean_unit.read_documents",
        lambda uri, *_: iter([Unreadable(uri, 7, "not_readable", b"")]),
    )
    with pytest.raises(OutageError, match=r"s.jsonl can't be read from byte 7 on"):
        clean(source)
    monkeypatch.undo()
    assert len(ids(clean(source))) == 5


def test_a_file_that_is_deleted_before_it_is_read_is_an_outage(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(5))

    def after_deletion(*arguments: Any) -> Iterator[Document | Unreadable]:
        source.unlink()
        return read_documents(*arguments)

    monkeypatch.setattr("pipelines.clean_unit.read_documents", after_deletion)
    with pytest.raises(OutageError, match=r"s.jsonl was deleted while it was read"):
        clean(source)


def test_a_file_that_changes_while_it_is_read_ends_the_run(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(5))

    def appended_to(*arguments: Any) -> Iterator[Document | Unreadable]:
        yield from read_documents(*arguments)
        write_jsonl(source, range(6))

    monkeypatch.setattr("pipelines.clean_unit.read_documents", appended_to)
    with pytest.raises(SourceError, match=r"s.jsonl changed while it was read"):
        clean(source)


def test_a_report_that_an_engine_lost_is_noticed(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.source_files._FILES_PER_UNIT", 1)
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", range(number * 5, number * 5 + 5))

    run_pipeline = runner.run_pipeline
    monkeypatch.setattr(runner, "run_pipeline", lambda *given: run_pipeline(*given)[:-1])
    with pytest.raises(AccountingError, match=r"3 parts, but 2 were reported"):
        clean(tmp_path, work=tmp_path.parent / "work")


@pytest.mark.parametrize("ending", ["00000.arrow", "00000.unreadable.jsonl", "unit.json"])
def test_a_unit_with_a_flipped_bit_is_cleaned_again_and_that_is_said(
    ending: str, clean: Clean, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"text": document(1)}) + "\n{broken\n")
    clean(source, max_unreadable_share=0.5)
    expected = clean(source, max_unreadable_share=0.6, work=tmp_path / "undisturbed")
    [file] = (tmp_path / "work" / "units").glob(f"*/{ending}")
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    found = clean(source, max_unreadable_share=0.6)
    assert read_manifest(found).content == read_manifest(expected).content
    assert f"{file} changed after it was written; its files are cleaned again" in caplog.text
    assert file.read_bytes() == whole


def test_a_part_that_is_deleted_before_its_unit_is_noted_is_made_again(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_lose(table: pa.Table, uri: str) -> None:
        write_arrow(table, uri)
        Path(uri).unlink()

    source = write_jsonl(tmp_path / "s.jsonl", range(5))
    expected = clean(source, work=tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr(clean_unit, "write_arrow", write_and_lose)
        with pytest.raises(Exception, match=r"00000\.arrow was deleted while the stage ran"):
            clean(source)
    assert read_manifest(clean(source)).content == read_manifest(expected).content


def test_a_moved_source_is_cleaned_anew(clean: Clean, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "s.jsonl", range(5))
    before = clean(tmp_path / "s.jsonl")
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "s.jsonl").rename(tmp_path / "moved" / "s.jsonl")
    after = clean(moved)
    assert {row["source"] for row in rows(after)} == {moved.as_uri()}
    assert ids(after) == ids(before)


def test_a_corpus_is_found_also_after_one_of_another_source_was_made(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = [write_jsonl(tmp_path / f"{name}.jsonl", range(5)) for name in "ab"]
    caplog.set_level("INFO")
    made = [clean(source) for source in sources]
    assert " removed (" not in caplog.text
    monkeypatch.setattr(source_files, "_QUICK_FILES", 0)
    found = [
        clean_corpus.find_done(
            SourceSettings(uri=str(source)), CleaningSettings(), str(tmp_path / "work")
        )
        for source in sources
    ]
    assert found == made


def test_an_excluded_id_that_is_not_there_is_said(
    clean: Clean, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "C#notes.txt").write_text(document(1))
    source = write_jsonl(tmp_path / "s.jsonl", range(4))
    (tmp_path / "out").write_text("C#notes.txt\nC#notes.txt~0f\ns.jsonl#none\nno-file#1\n")
    manifest = clean(
        [str(source), str(tmp_path / "C#notes.txt")], excluded_ids=str(tmp_path / "out")
    )
    assert dropped(manifest) == {"excluded": 1}
    told = "3 of the 4 ids of cleaning.excluded_ids: 'C#notes.txt~0f', 'no-file#1', 's.jsonl#none'"
    assert f"no document of the source has {told}" in caplog.text


# Which documents repeat


def sent(
    units: list[list[int]], num_partitions: int, first: int
) -> dict[int, list[clean_corpus.Sent]]:
    """Return by partition what parts send; equal numbers stand for equal documents."""
    by_partition: dict[int, list[clean_corpus.Sent]] = {}
    for number, documents in enumerate(units, start=first):
        part = clean_unit.Part(number, "", "")
        hashes = np.array([[n, 0] for n in documents], np.uint64).reshape(-1, 2)
        for partition in range(num_partitions):
            rows = np.flatnonzero(hashes[:, 0] % np.uint64(num_partitions) == partition)
            some = clean_corpus.Sent(part, rows.astype(np.uint32), hashes[rows])
            by_partition.setdefault(partition, []).append(some)
    return by_partition


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=6),
    st.integers(-3, 0),
    st.randoms(),
    st.integers(1, 20),
)
def test_of_equal_documents_the_first_is_kept_in_whichever_order_and_partitions_they_come(
    units: list[list[int]], first: int, random: Random, num_partitions: int
) -> None:
    found = dict[tuple[int, int], bool]()
    for partition, parts in sent(units, num_partitions, first).items():
        random.shuffle(parts)
        marks = list(clean_corpus.find_repeated((partition, parts), num_partitions))
        assert [number for number, _ in marks] == list(range(first + len(units)))
        for number, mark in marks:
            assert mark.part.number == number
            found |= {(number, row): part < 0 for part, _, row in mark.repeats.tolist()}
    expected, before = {}, dict[int, int]()
    for number, documents in enumerate(units, start=first):
        for row, name in enumerate(documents):
            if name in before and number >= 0:
                expected[number, row] = before[name] < 0
            before.setdefault(name, number)
    assert found == expected


def test_documents_meet_in_a_band_once_and_not_themselves() -> None:
    parts = [clean_unit.Part(number, "", "") for number in (-1, 0)]
    rows, bands = np.array([0, 0, 1], np.uint32), np.array([[4], [4], [4]], np.uint64)
    both = [clean_corpus.Sent(part, rows, bands) for part in parts]
    [(number, mark)] = clean_corpus.find_repeated((clean_corpus.BAND, both), 1)
    assert number == 0
    assert mark.repeats.tolist() == [[-1, 0, 0], [-1, 1, 0], [-1, 0, 1], [0, 0, 1]]
    assert mark.earlier_parts == {-1: parts[0], 0: parts[1]}


# What much text makes the engine hold


SORT_BUFFER, WORKER_MEMORY = 16 << 20, 4 << 30
"""Bytes that a record, and all values of a key, must fit in on Flink and Spark."""


def test_of_ten_terabytes_each_record_fits_a_sort_buffer_and_each_keys_values_a_worker(
    clean: Clean, tmp_path: Path
) -> None:
    clean(write_jsonl(tmp_path / "s.jsonl", range(2000)), near_duplicate_similarity=0.8)
    [uri] = map(str, (tmp_path / "work" / "units").rglob("*.arrow"))
    cleaning, part = CleaningSettings(near_duplicate_similarity=0.8), clean_unit.Part(0, uri, uri)
    num_partitions = clean_corpus.num_partitions(10**13)
    num_parts = 10**13 // MAX_UNIT_BYTES
    sent = list(clean_corpus.send_hashes(part, cleaning, num_partitions))
    marks = [m for k, v in sent for _, m in clean_corpus.find_repeated((k, [v]), num_partitions)]
    report = clean_corpus._write_shard((0, marks), str(tmp_path), cleaning)
    largest = max(len(pickle.dumps(each)) for each in (*(v for _, v in sent), *marks, report))
    assert largest < SORT_BUFFER
    assert num_parts * max(len(pickle.dumps(v)) for _, v in sent) < WORKER_MEMORY
    assert len(pickle.dumps(marks)) < WORKER_MEMORY
    assert num_parts * len(json.dumps(report)) < WORKER_MEMORY
