import dataclasses
import json
import logging
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from albert_core.stage import settings, storage
from albert_core.stage.errors import AccountingError, IntegrityError
from albert_core.stage.manifest import (
    Account,
    Shard,
    StagePlan,
    check_shard,
    checked,
    newest_manifest,
    read_manifest,
    scratch_folder,
    sealed,
    shard_of,
    shards_in,
    unsealed,
)

PLAN = StagePlan(
    stage="corpus",
    settings={"cleaning": {"min_words": 20, "language": "en"}},
    inputs={"source_files": "a" * 64},
    code="c" * 16,
    libraries={"ftfy": "6.3.1"},
    input_manifests={"source_files": "/data/source"},
)
GOLDEN_KEY = "cb99e3015fc1a537"
DOCUMENTS = Account(what="documents", total=10, kept=7, dropped={"empty": 1, "too_short": 2})


class ToyResult(settings.Settings):
    """A stage's result."""

    num_documents: int
    share: float
    names: tuple[str, ...]
    nothing: None


TOY_RESULT = ToyResult(num_documents=7, share=0.7, names=("a", "b"), nothing=None)


def shard(content: bytes, folder: str, name: str = "documents-00000.arrow") -> Shard:
    uri = storage.join(folder, name)
    storage.write_bytes(uri, content)
    return shard_of(uri, folder, "documents", 7)


def finish(work: Path, plan: StagePlan = PLAN) -> str:
    """Write the manifest of a stage without files; return its URI."""
    return plan.write(str(work), [], [DOCUMENTS], settings.Settings())


def test_an_account_adds_up_and_is_shown_as_a_sentence() -> None:
    with pytest.raises(AccountingError, match="documents: 11 came in, but 7 kept"):
        Account.model_validate({**DOCUMENTS.model_dump(), "total": 11})
    assert str(DOCUMENTS) == "documents: 10 in = 7 kept, 3 dropped (empty 1, too_short 2)"
    everything = Account(what="pieces", total=12_345, kept=12_345)
    assert str(everything) == "pieces: 12,345 in = 12,345 kept"


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_manifest_is_read_back_as_it_was_written(where: str, tmp_path: Path) -> None:
    work = str(tmp_path) if where == "local" else f"memory://{uuid4().hex}"
    folder = PLAN.folder(work)
    made = [shard(name.encode(), folder, name) for name in ("b", "a", "c")]
    made[1] = made[1].model_copy(update={"kind": "held_out"})
    uri = PLAN.write(work, made, [DOCUMENTS], TOY_RESULT)
    manifest = read_manifest(uri)
    assert uri == f"{work}/corpus/{PLAN.key}/manifest.json"
    for name, value in dataclasses.asdict(PLAN).items():
        assert getattr(manifest, name) == value
    assert manifest.key == PLAN.key
    assert manifest.shards_of("documents") == [made[0], made[2]]
    assert manifest.shards_of("held_out") == [made[1]]
    assert manifest.account("documents") == DOCUMENTS
    assert manifest.result_as(ToyResult) == TOY_RESULT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": "0.7"}, "share: Input should be a valid number"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"share": None, "more": 1}, "share: .*; more: Extra"),
        (None, "num_documents: Field required"),
    ],
)
def test_a_result_of_another_version_is_refused(
    change: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    manifest = read_manifest(PLAN.write(str(tmp_path), [], [], TOY_RESULT))
    result = {} if change is None else manifest.result | change
    manifest = manifest.model_copy(update={"result": result})
    place = f"corpus/{PLAN.key}/manifest.json is not a ToyResult"
    end = r"Another version .* delete its folder and run the stage again"
    with pytest.raises(IntegrityError, match=rf"{place}: .*{message}.*{end}"):
        manifest.result_as(ToyResult)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stage": "vocab"}, "it has never been done in this work folder"),
        (
            {"settings": {"cleaning": {"min_words": 7, "language": "en"}}},
            "setting cleaning.min_words was 20 and is 7",
        ),
        (
            {"settings": {"cleaning": {"min_words": 20}}},
            "setting cleaning.language was 'en' and is absent",
        ),
        (
            {"inputs": {"source_files": "b" * 64}},
            "input source_files was aaaaaaaaaaaa and is bbbbbbbbbbbb",
        ),
        ({"libraries": {"ftfy": "6.4"}}, "library ftfy was 6.3.1 and is 6.4"),
        ({"code": "d" * 16}, "the code changed"),
        (
            {"code": "d" * 16, "libraries": {}},
            "library ftfy was 6.3.1 and is absent; the code changed",
        ),
    ],
)
def test_what_the_result_depends_on_changes_its_folder_and_the_log_says_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    finish(tmp_path)
    caplog.set_level(logging.INFO)
    changed = dataclasses.replace(PLAN, **change)
    assert changed.key != PLAN.key
    assert changed.find(str(tmp_path)) is None
    assert caplog.messages == [f"{changed.stage}: to do, because {reason}"]


def test_where_the_inputs_are_does_not_change_the_folder() -> None:
    moved = dataclasses.replace(PLAN, input_manifests={"source_files": "s3://elsewhere"})
    assert moved == PLAN
    assert moved.key == PLAN.key == GOLDEN_KEY


def test_the_log_compares_with_what_was_made_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = dataclasses.replace(PLAN, libraries={"ftfy": "6.4"})
    for plan, when in ((PLAN, 1000), (last, 2000)):
        os.utime(finish(tmp_path, plan), (when, when))
    caplog.set_level(logging.INFO)
    dataclasses.replace(PLAN, libraries={"ftfy": "6.5"}).find(str(tmp_path))
    assert "library ftfy was 6.4 and is 6.5" in caplog.text
    newest = newest_manifest(str(tmp_path / "corpus"))
    assert newest is not None
    assert newest.key == last.key


def test_what_is_made_after_the_clock_was_put_back_is_the_newest(tmp_path: Path) -> None:
    plans = [dataclasses.replace(PLAN, libraries={"ftfy": version}) for version in ("1", "2", "3")]
    ahead = time.time() + 5 * 3600
    os.utime(finish(tmp_path, plans[0]), (ahead, ahead))
    for plan in plans[1:]:
        finish(tmp_path, plan)
        newest = newest_manifest(str(tmp_path / "corpus"))
        assert newest is not None
        assert newest.key == plan.key


def test_folders_without_a_good_manifest_are_no_results(tmp_path: Path) -> None:
    broken = tmp_path / "corpus" / "0123456789abcdef" / "manifest.json"
    broken.parent.mkdir(parents=True)
    broken.write_text('{"stage": "corp')
    (tmp_path / "corpus" / PLAN.key).mkdir(parents=True)
    (tmp_path / "corpus" / "a file").touch()
    assert newest_manifest(str(tmp_path / "corpus")) is None
    assert PLAN.find(str(tmp_path)) is None


@pytest.mark.parametrize(
    "content", [b"", b'{"stage": "corp', b"{}", b"[]", b"\xff\xfe", b"[" * 20_000]
)
def test_a_missing_or_broken_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    uri = tmp_path / "manifest.json"
    with pytest.raises(IntegrityError, match=r"manifest.json is missing: .*Run the same command"):
        read_manifest(str(uri))
    uri.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"manifest.json is not a manifest"):
        read_manifest(str(uri))


def test_a_manifest_whose_accounts_do_not_add_up_is_refused(tmp_path: Path) -> None:
    uri = Path(finish(tmp_path))
    values = json.loads(uri.read_text())
    values["accounts"][0]["kept"] += 1
    del values["digest"]  # as an earlier version wrote it
    uri.write_text(json.dumps(values))
    with pytest.raises(AccountingError, match="documents: 10 came in, but 8 kept"):
        read_manifest(str(uri))


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    made = shard(b"rows", str(tmp_path))
    (tmp_path / made.path).unlink()
    with pytest.raises(IntegrityError, match=r"documents-00000.arrow is missing, but manifest"):
        check_shard(made, str(tmp_path))


def test_what_is_found_damaged_is_set_aside_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = str(tmp_path)
    folder = Path(PLAN.folder(work))
    uri = PLAN.write(work, [shard(b"abc", str(folder), "part/x.arrow")], [DOCUMENTS], TOY_RESULT)
    assert checked(f"{folder}/part/x.arrow") == f"{folder}/part/x.arrow"
    assert checked(f"{folder}/part/other") == f"{folder}/part/other"
    (folder / "part/x.arrow").write_bytes(b"abd")
    with pytest.raises(IntegrityError, match=r"x\.arrow changed .* next run of the stage makes"):
        checked(f"{folder}/part/x.arrow")
    assert sorted(path.name for path in (folder / "damaged").iterdir()) == [
        "manifest.json",
        "part-x.arrow",
    ]
    with caplog.at_level(logging.INFO):
        assert PLAN.find(work) is None
    assert "to do, because one of its files was damaged" in caplog.text
    again = PLAN.write(work, [shard(b"abc", str(folder), "part/x.arrow")], [DOCUMENTS], TOY_RESULT)
    assert again == uri == PLAN.find(work)
    assert not (folder / "damaged").exists()


def test_a_damaged_manifest_is_no_result(tmp_path: Path) -> None:
    uri = Path(finish(tmp_path))
    uri.write_bytes(uri.read_bytes().replace(b"min_words", b"min_xords"))
    assert PLAN.done(str(tmp_path)) is None
    assert not uri.exists()


def test_what_a_killed_process_left_is_no_part_of_a_result(tmp_path: Path) -> None:
    folder = PLAN.folder(str(tmp_path))
    ended, elsewhere = f"{storage.machine_name()}-999999999-ab", "otherhost-1-ab"
    left = [f".{name}~{process}.tmp" for name in "ab" for process in (ended, elsewhere)]
    for name in ("notes.txt", "model/b", *left[:2], *(f"model/{name}" for name in left[2:])):
        storage.write_bytes(f"{folder}/{name}", b"abc")
    made = read_manifest(PLAN.write(str(tmp_path), shards_in(folder, "model"), [], TOY_RESULT))
    assert [each.path for each in made.shards] == ["model/b"]
    assert list(made.notes) == ["notes.txt"]
    assert storage.list_names(f"{folder}/model") == [left[3], "b"]


def test_a_file_beside_the_manifest_is_noted_too(tmp_path: Path) -> None:
    folder = Path(PLAN.folder(str(tmp_path)))
    storage.write_bytes(f"{folder}/made_with.txt", b"units/a\n")
    finish(tmp_path)
    (folder / "made_with.txt").write_bytes(b"units/b\n")
    with pytest.raises(IntegrityError, match=r"made_with\.txt changed after it was written"):
        checked(f"{folder}/made_with.txt")


def test_a_result_of_another_seed_is_not_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_seed = [dataclasses.replace(PLAN, settings={"task": "cola", "seed": n}) for n in (1, 2)]
    finish(tmp_path, of_seed[0])
    with caplog.at_level(logging.INFO):
        assert of_seed[1].find(str(tmp_path)) is None
    assert "to do, because it has never been done in this work folder" in caplog.text


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_scratch_folder_of_its_own_is_gone_at_the_end_even_after_an_error(
    where: str, fails: bool, tmp_path: Path
) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{uuid4().hex}"
    abandoned = storage.join(folder, f".scratch-{storage.machine_name()}-{2**22 + 1}-01234567")
    storage.write_bytes(storage.join(abandoned, "file"), b"")

    def work() -> None:
        with scratch_folder(folder) as one, scratch_folder(folder) as two:
            assert one != two
            assert not storage.exists(abandoned)
            storage.write_bytes(storage.join(one, "a", "b"), b"temporary")
            assert storage.exists(one)
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        work()
    assert storage.list_names(folder) == []


def test_a_scratch_folder_that_others_still_write_to_does_not_hide_why_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(uri: str) -> None:
        raise OSError(f"{uri}: Directory not empty")

    monkeypatch.setattr(storage, "remove", cannot)
    with pytest.raises(ValueError, match="the cause"), scratch_folder(str(tmp_path)):
        raise ValueError("the cause")


def test_a_changed_bit_of_a_sealed_file_is_found_or_means_nothing(tmp_path: Path) -> None:
    content: dict[str, Any] = {"a": 1, "b": {"c": [1, 2.5, "é"]}}
    whole, uri = sealed(content), f"{tmp_path}/sealed.json"
    for bit in range(0, 8 * len(whole), 3):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        storage.write_bytes(uri, bytes(changed))
        with suppress(IntegrityError):
            assert unsealed(uri) == content
