"""Stage 1 on small sources: what is kept, what is dropped and why, and that nothing else is."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albert_core.contract.arrow_files import read_arrow
from albert_core.contract.errors import SourceError
from albert_core.contract.manifest import read_manifest
from pipelines import clean_corpus
from pipelines.config import CleaningSettings, SourceSettings
from tests.generated_text import document, write_jsonl

Clean = Callable[..., str]


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clean:
    """Clean a source in this process; settings of both sections by name."""
    monkeypatch.setenv("ALBERT_WORKERS", "1")

    def run(source: Path | str, **settings: Any) -> str:
        reading = {k: v for k, v in settings.items() if k in SourceSettings.model_fields}
        cleaning = {k: v for k, v in settings.items() if k in CleaningSettings.model_fields}
        work = str(settings.get("work", tmp_path / "work"))
        return clean_corpus.run(
            SourceSettings(uri=str(source), **reading), CleaningSettings(**cleaning), work
        )

    return run


def rows(manifest: str, kind: str = "documents") -> list[dict[str, Any]]:
    shards = read_manifest(manifest).shards_of(kind)
    folder = Path(manifest).parent
    return [row for shard in shards for row in read_arrow(str(folder / shard.path)).to_pylist()]


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


def test_a_source_that_is_bad_throughout_is_refused(clean: Clean, tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"text": document(1)}) + "\n{broken\n{broken\n")
    with pytest.raises(SourceError, match=r"2 of 3 records of the source can't be read"):
        clean(source)
    assert ids(clean(source, max_unreadable_share=0.7))


def test_rejected_documents_are_written_out_with_their_reason(clean: Clean, tmp_path: Path) -> None:
    texts = [document(1), document(1), "Too short."]
    source = write(tmp_path / "s.jsonl", *({"id": str(n), "text": t} for n, t in enumerate(texts)))
    rejected = rows(clean(source, keep_rejected=True), "rejected")
    assert [(row["id"], row["reason"]) for row in rejected] == [
        ("s.jsonl#1", "duplicate"),
        ("s.jsonl#2", "too_short"),
    ]
    assert rejected[1]["text"] == "Too short."


def test_documents_with_the_same_id_get_ids_of_their_own(clean: Clean, tmp_path: Path) -> None:
    texts = [document(1), document(2), document(3)]
    source = write(tmp_path / "s.jsonl", *({"id": "same", "text": text} for text in texts))
    found = ids(clean(source))
    assert found[0] == "s.jsonl#same"
    assert len(set(found)) == 3
    assert all(name.startswith("s.jsonl#same~") for name in found[1:])


def test_what_an_earlier_corpus_has_is_dropped(clean: Clean, tmp_path: Path) -> None:
    earlier = clean(write_jsonl(tmp_path / "earlier.jsonl", range(5)), work=tmp_path / "earlier")
    manifest = clean(write_jsonl(tmp_path / "s.jsonl", range(3, 8)), known_corpora=[earlier])
    assert dropped(manifest) == {"duplicate_of_known_corpus": 2}
    assert len(ids(manifest)) == 3


def test_near_duplicates_of_an_earlier_document_are_dropped(clean: Clean, tmp_path: Path) -> None:
    text = " ".join(document(n) for n in range(10))
    texts = [text, changed(text, 100), changed(text, 2)]
    source = write(tmp_path / "s.jsonl", *({"id": str(n), "text": t} for n, t in enumerate(texts)))
    assert ids(clean(source, near_duplicate_similarity=0.8)) == ["s.jsonl#0", "s.jsonl#2"]
    assert dropped(clean(source, near_duplicate_similarity=0.8)) == {"near_duplicate": 1}
    assert dropped(clean(source)) == {}


def test_overlap_with_a_test_set_is_dropped_and_in_the_ledger(clean: Clean, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(4))
    words = document(2).split()
    (tmp_path / "test.tsv").write_text("1\t" + " ".join(words[3:20]) + "\n")
    manifest = clean(source, test_texts=[str(tmp_path / "*.tsv")])
    assert dropped(manifest) == {"test_overlap": 1}
    [line] = Path(manifest).with_name("test_overlaps.jsonl").read_text().splitlines()
    assert json.loads(line)["document"] not in ids(manifest)
    assert json.loads(line)["num_ngrams"] == 5


def test_documents_asked_to_be_left_out_are_nowhere(clean: Clean, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(4))
    everything = ids(clean(source))
    (tmp_path / "out.txt").write_text(f"{everything[1]}\n")
    manifest = clean(source, excluded_ids=str(tmp_path / "out.txt"), keep_rejected=True)
    assert ids(manifest) == [everything[0], *everything[2:]]
    assert dropped(manifest) == {"excluded": 1}
    assert rows(manifest, "rejected") == []


def test_a_large_file_read_in_ranges_gives_the_documents_of_the_whole(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(40))
    whole = rows(clean(source, work=tmp_path / "whole"))
    monkeypatch.setattr("pipelines.source_files.MAX_UNIT_BYTES", 2000)
    manifest = clean(source, work=tmp_path / "cut")
    assert len(read_manifest(manifest).shards_of("documents")) > 3
    assert rows(manifest) == whole


def test_a_unit_written_in_many_parts_gives_the_same_documents(
    clean: Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", range(40))
    whole = rows(clean(source, work=tmp_path / "whole"))
    monkeypatch.setattr("pipelines.clean_unit.PART_BYTES", 2000)
    manifest = clean(source, work=tmp_path / "cut")
    assert len(read_manifest(manifest).shards_of("documents")) > 3
    assert rows(manifest) == whole
