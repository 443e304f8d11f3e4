"""A refreshed corpus against one built from scratch, and the receipt for what was removed."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import read_manifest
from albert_core.text.arrow_files import read_arrow
from pipelines import removal
from tests.generated_text import write_jsonl
from tests.pipelines.conftest import Made, make

Change = Callable[[Path], object]

CHANGES: dict[str, Change] = {
    "a new file": lambda source: write_jsonl(source / "1a.jsonl", range(200, 210)),
    "a changed file": lambda source: write_jsonl(source / "1.jsonl", [*range(20, 39), 100]),
    "a removed file": lambda source: (source / "1.jsonl").unlink(),
    "a file that now repeats another": lambda source: shutil.copy(
        source / "2.jsonl", source / "0.jsonl"
    ),
}


pytestmark = pytest.mark.usefixtures("one_worker_and_a_unit_for_each_file")


@pytest.fixture
def before(made: Made, tmp_path: Path) -> Made:
    """A source and what was made of it, to be changed."""
    shutil.copytree(made.source, tmp_path / "source")
    return make(tmp_path / "source", tmp_path / "work")


def shards(manifest: str) -> list[tuple[str, str]]:
    return [(shard.path, shard.sha256) for shard in read_manifest(manifest).shards]


def document_ids(manifest: str, column: str) -> set[str]:
    folder = Path(manifest).parent
    paths = [s.path for s in read_manifest(manifest).shards if s.path.endswith(".arrow")]
    return {i for path in paths for i in read_arrow(str(folder / path))[column].to_pylist()}


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


def test_only_what_depends_on_a_changed_file_is_made_again(
    before: Made, caplog: pytest.LogCaptureFixture
) -> None:
    write_jsonl(before.source / "1.jsonl", [*range(20, 39), 100])
    caplog.set_level(logging.INFO)
    make(before.source, Path(before.work), vocabulary_of=before)
    assert "1 changed (1.jsonl)" in caplog.text
    assert "1 of 3 units of files to clean" in caplog.text
    assert "1 of 3 parts to make" in caplog.text


def test_a_removed_document_is_in_no_shard_and_the_receipt_says_so(before: Made) -> None:
    gone = {f"1.jsonl#d{n}" for n in range(20, 40)}
    (before.source / "1.jsonl").unlink()
    after = make(before.source, Path(before.work))
    receipt = json.loads(Path(removal.run(before.work, after.examples)).read_text())
    assert set(receipt["documents"]) == gone
    assert {c["manifest"] for c in receipt["in_no_shard_of"]} == {after.corpus, after.examples}
    assert not gone & document_ids(after.corpus, "id")
    assert not gone & document_ids(after.examples, "document_id")
    assert str(Path(before.examples).parent) in receipt["earlier_results_with_them"]
    assert not receipt["purged"]


def test_purging_leaves_no_text_of_a_removed_document_anywhere(before: Made) -> None:
    (before.source / "1.jsonl").unlink()
    after = make(before.source, Path(before.work))
    receipt = json.loads(Path(removal.run(before.work, after.examples, purge="yes")).read_text())
    assert receipt["left_after_purge"] == []
    assert not Path(before.corpus).exists()
    assert not Path(before.examples).exists()
    for file in Path(before.work).rglob("*.arrow"):
        assert b"1.jsonl#d20" not in file.read_bytes()
    assert shards(make(before.source, Path(before.work)).examples) == shards(after.examples)


def test_without_a_removed_document_there_is_no_receipt(before: Made) -> None:
    write_jsonl(before.source / "9.jsonl", range(300, 310))
    after = make(before.source, Path(before.work))
    assert removal.run(before.work, after.examples) == removal.NOTHING_REMOVED


def test_a_shard_that_is_not_the_one_written_gets_no_receipt(before: Made) -> None:
    (before.source / "1.jsonl").unlink()
    after = make(before.source, Path(before.work))
    next(Path(after.examples).parent.glob("train-*.arrow")).write_bytes(b"other")
    with pytest.raises(IntegrityError, match="it changed after it was written"):
        removal.run(before.work, after.examples)
