import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.stage.errors import AccountingError, IntegrityError
from albert_core.stage.manifest import (
    Account,
    Shard,
    StagePlan,
    check_shard,
    digest_of,
    newest_manifest,
    read_manifest,
    scratch_folder,
    shard_of,
)

COUNTS = st.integers(0, 10**12)
REASONS = st.dictionaries(st.sampled_from(["duplicate", "empty", "too_short"]), COUNTS)
VALUES = st.dictionaries(st.text(), st.integers() | st.dictionaries(st.text(), st.text()))

PLAN = StagePlan(
    stage="corpus",
    settings={"cleaning": {"min_words": 20, "language": "en"}},
    inputs={"source_files": "a" * 64},
    code="c" * 16,
    libraries={"ftfy": "6.3.1"},
    input_manifests={"source_files": "/data/source"},
)
DOCUMENTS = Account(what="documents", total=10, kept=7, dropped={"empty": 1, "too_short": 2})


def shard(content: bytes, folder: str, name: str = "documents-00000.arrow") -> Shard:
    uri = storage.join(folder, name)
    storage.write_bytes(uri, content)
    return shard_of(uri, folder, "documents", 7)


@given(COUNTS, REASONS)
def test_an_account_that_adds_up_is_accepted(kept: int, dropped: dict[str, int]) -> None:
    account = Account(what="pieces", total=kept + sum(dropped.values()), kept=kept, dropped=dropped)
    assert account.dropped == dropped


@given(COUNTS, REASONS, st.integers(1) | st.integers(max_value=-1))
def test_an_account_that_does_not_add_up_is_a_defect_of_the_stage(
    kept: int, dropped: dict[str, int], error: int
) -> None:
    total = kept + sum(dropped.values()) + error
    with pytest.raises(AccountingError, match=rf"pieces: {total} came in, but {kept} kept"):
        Account(what="pieces", total=total, kept=kept, dropped=dropped)


def test_an_account_says_itself_as_a_sentence() -> None:
    assert str(DOCUMENTS) == "documents: 10 in = 7 kept, 3 dropped (empty 1, too_short 2)"
    everything = Account(what="pieces", total=12_345, kept=12_345)
    assert str(everything) == "pieces: 12,345 in = 12,345 kept"


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_manifest_is_read_back_as_it_was_written(where: str, tmp_path: Path) -> None:
    work = str(tmp_path) if where == "local" else f"memory://{uuid4().hex}"
    made = shard(b"rows", PLAN.folder(work))
    facts = {"num_documents": 7, "share": 0.7, "names": ["a", "b"], "nothing": None}
    uri = PLAN.write(work, [made], [DOCUMENTS], facts)
    manifest = read_manifest(uri)
    assert uri == f"{work}/corpus/{PLAN.key}/manifest.json"
    assert {name: getattr(manifest, name) for name in ("stage", "key", "code")} == {
        "stage": "corpus",
        "key": PLAN.key,
        "code": PLAN.code,
    }
    assert manifest.settings == PLAN.settings
    assert manifest.inputs == PLAN.inputs
    assert manifest.input_manifests == PLAN.input_manifests
    assert manifest.libraries == PLAN.libraries
    assert manifest.shards == [made]
    assert manifest.account("documents") == DOCUMENTS
    assert manifest.facts == facts


def test_shards_are_given_by_kind_and_in_order(tmp_path: Path) -> None:
    folder = PLAN.folder(str(tmp_path))
    shards = [shard(name.encode(), folder, name) for name in ("b", "a", "c")]
    other = shards[1].model_copy(update={"kind": "held_out"})
    uri = PLAN.write(str(tmp_path), [shards[0], other, shards[2]], [], {})
    assert read_manifest(uri).shards_of("documents") == [shards[0], shards[2]]
    assert read_manifest(uri).shards_of("held_out") == [other]


def test_equal_bytes_have_equal_content_whatever_the_way_there(tmp_path: Path) -> None:
    other_plan = dataclasses.replace(PLAN, code="d" * 16)
    made = shard(b"rows", str(tmp_path))
    changed = made.model_copy(update={"sha256": "0" * 64})
    here, there, elsewhere = (
        read_manifest(plan.write(str(tmp_path / name), [shard], [], {"name": name})).content
        for name, plan, shard in (("a", PLAN, made), ("b", other_plan, made), ("c", PLAN, changed))
    )
    assert here == there
    assert here != elsewhere


@given(VALUES)
def test_a_digest_does_not_depend_on_the_order_of_keys(values: dict[str, Any]) -> None:
    backwards = dict(reversed(values.items()))
    assert digest_of(values) == digest_of(backwards)


def test_golden_key() -> None:
    assert PLAN.key == GOLDEN_KEY


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "vocab"},
        {"settings": {"cleaning": {"min_words": 21, "language": "en"}}},
        {"inputs": {"source_files": "b" * 64}},
        {"code": "d" * 16},
        {"libraries": {"ftfy": "6.3.2"}},
    ],
)
def test_whatever_the_result_depends_on_changes_its_folder(change: dict[str, Any]) -> None:
    assert dataclasses.replace(PLAN, **change).key != PLAN.key


def test_where_the_inputs_are_does_not_change_the_folder() -> None:
    moved = dataclasses.replace(PLAN, input_manifests={"source_files": "s3://elsewhere"})
    assert moved.key == PLAN.key
    assert moved == PLAN


def test_a_stage_that_was_never_done_is_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert PLAN.find(str(tmp_path)) is None
    assert "corpus: to do, because it was never done in this folder" in caplog.messages


def test_a_stage_that_is_done_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uri = PLAN.write(str(tmp_path), [], [], {})
    caplog.set_level(logging.INFO)
    assert PLAN.find(str(tmp_path)) == uri
    assert caplog.messages == [f"corpus: done already ({PLAN.folder(str(tmp_path))})"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
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
def test_the_log_says_why_a_stage_is_done_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    PLAN.write(str(tmp_path), [], [], {})
    caplog.set_level(logging.INFO)
    caplog.clear()
    assert dataclasses.replace(PLAN, **change).find(str(tmp_path)) is None
    assert caplog.messages == [f"corpus: to do, because {reason}"]


def test_the_log_compares_with_what_was_made_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = dataclasses.replace(PLAN, libraries={"ftfy": "6.4"})
    for plan, when in ((PLAN, 1000), (last, 2000)):
        os.utime(plan.write(str(tmp_path), [], [], {}), (when, when))
    caplog.set_level(logging.INFO)
    dataclasses.replace(PLAN, libraries={"ftfy": "6.5"}).find(str(tmp_path))
    assert "library ftfy was 6.4 and is 6.5" in caplog.text
    newest = newest_manifest(str(tmp_path / "corpus"))
    assert newest is not None
    assert newest.key == last.key


def test_a_broken_manifest_of_another_result_stops_no_stage(tmp_path: Path) -> None:
    broken = tmp_path / "corpus" / "0123456789abcdef" / "manifest.json"
    broken.parent.mkdir(parents=True)
    broken.write_text('{"stage": "corp')
    assert PLAN.find(str(tmp_path)) is None


def test_folders_without_a_manifest_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "corpus" / PLAN.key).mkdir(parents=True)
    (tmp_path / "corpus" / "a file").touch()
    assert newest_manifest(str(tmp_path / "corpus")) is None
    assert PLAN.find(str(tmp_path)) is None


def test_a_missing_manifest_says_that_the_stage_did_not_finish(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"manifest.json is missing: .*Run it again"):
        read_manifest(str(tmp_path / "manifest.json"))


@pytest.mark.parametrize("content", [b"", b'{"stage": "corp', b"{}", b"[]", b"\xff\xfe"])
def test_a_broken_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    uri = tmp_path / "manifest.json"
    uri.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"manifest.json is not a manifest"):
        read_manifest(str(uri))


def test_a_manifest_whose_accounts_do_not_add_up_is_refused(tmp_path: Path) -> None:
    uri = Path(PLAN.write(str(tmp_path), [], [DOCUMENTS], {}))
    values = json.loads(uri.read_text())
    values["accounts"][0]["kept"] += 1
    uri.write_text(json.dumps(values))
    with pytest.raises(AccountingError, match="documents: 10 came in, but 8 kept"):
        read_manifest(str(uri))


def test_a_shard_describes_the_file_that_was_written(tmp_path: Path) -> None:
    made = shard(b"abc", str(tmp_path), "sub/x.arrow")
    assert made == Shard(
        path="sub/x.arrow",
        kind="documents",
        num_rows=7,
        num_bytes=3,
        sha256="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    )


def test_the_shard_that_was_written_is_accepted(tmp_path: Path) -> None:
    check_shard(shard(b"rows", str(tmp_path)), str(tmp_path))


@given(st.data())
def test_any_changed_bit_of_a_shard_is_noticed(data: st.DataObject) -> None:
    folder = f"memory://{uuid4().hex}"
    content = data.draw(st.binary(min_size=1, max_size=50))
    made = shard(content, folder)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    storage.write_bytes(storage.join(folder, made.path), bytes(changed))
    with pytest.raises(IntegrityError, match=r"it changed after it was written\. Delete"):
        check_shard(made, folder)
    storage.remove(folder)


def test_a_missing_shard_is_noticed(tmp_path: Path) -> None:
    made = shard(b"rows", str(tmp_path))
    (tmp_path / made.path).unlink()
    with pytest.raises(IntegrityError, match=r"documents-00000.arrow is missing, but manifest"):
        check_shard(made, str(tmp_path))


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_scratch_folder_is_gone_at_the_end(where: str, tmp_path: Path) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{uuid4().hex}"
    with scratch_folder(folder) as scratch:
        storage.write_bytes(storage.join(scratch, "a", "b"), b"passing")
        assert storage.exists(scratch)
    assert not storage.exists(scratch)


def test_a_scratch_folder_is_gone_after_an_error(tmp_path: Path) -> None:
    def work() -> None:
        with scratch_folder(str(tmp_path)) as scratch:
            storage.write_bytes(storage.join(scratch, "a"), b"passing")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_scratch_of_dead_processes_is_removed_and_that_of_living_ones_kept(tmp_path: Path) -> None:
    host = storage.machine_name()
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    names = {
        "dead": f".scratch-{host}-{ended.pid}-01234567",
        "living": f".scratch-{host}-{os.getppid()}-01234567",
        "elsewhere": f".scratch-other-{host}-{ended.pid}-01234567",
        "result": f"shard-{host}-{ended.pid}-01234567",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with scratch_folder(str(tmp_path)):
        kept = {what for what, name in names.items() if (tmp_path / name).exists()}
    assert kept == {"living", "elsewhere", "result"}


def test_two_scratch_folders_of_one_process_are_apart(tmp_path: Path) -> None:
    with scratch_folder(str(tmp_path)) as one, scratch_folder(str(tmp_path)) as two:
        assert one != two


GOLDEN_KEY = "cb99e3015fc1a537"
