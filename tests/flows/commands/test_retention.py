"""Deleting what is not needed from a work folder with a registered model."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from albert_core.stage import lock, storage
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import read_work
from albert_core.stage.lock import Owner
from albert_core.stage.manifest import StagePlan, check_shard, shard_of
from flows.commands.main import main
from flows.commands.retention import Rules, check_registry, delete, find_entries, plan_for
from tests.flows.tiny_way import Tiny

NOTHING_NEW = Rules(keep_newest=0, keep_days=0)


def plan(number: int, stage: str = "corpus", **made_of: str) -> StagePlan:
    return StagePlan(stage, {"number": number}, {}, "code", {}, made_of)


def write(work: str, number: int, stage: str = "corpus", **made_of: str) -> str:
    """Write a result with one shard and a list beside it; return its manifest."""
    made = plan(number, stage, **made_of)
    folder = made.folder(work)
    storage.write_bytes(f"{folder}/a.arrow", b"x" * (number + 1))
    storage.write_bytes(f"{folder}/begun.json", b"{}")
    return made.write(work, [shard_of(f"{folder}/a.arrow", folder, "documents", 1)], [], {})


def age(uri: str, days: float) -> None:
    """Let a result be as old as that."""
    folder = Path(uri).parent
    then = time.time() - days * 86_400
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (then, then))


def bytes_in(work: str) -> int:
    return sum(entry.num_bytes for entry in find_entries(work))


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """A work folder without a registry: three corpora, two vocabularies, a year old."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    work = str(tmp_path)
    corpora = [write(work, number) for number in range(3)]
    vocabs = [write(work, n, "vocab", corpus=corpora[n]) for n in range(2)]
    for number, uri in enumerate([*corpora, *vocabs]):
        age(uri, 400 - number)
    return work, [*corpora, *vocabs]


def test_a_dry_run_deletes_nothing_and_says_so(
    old: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    work, uris = old
    before = bytes_in(work)
    assert main(["retention", f"--work={work}", "--keep-newest=1"]) == 0
    text = capsys.readouterr().out
    assert "Nothing was deleted. --delete=yes does it." in text
    assert bytes_in(work) == before
    assert all(Path(uri).exists() for uri in uris)
    assert main(["retention", f"--work={work}", "--keep-newest=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"]["total"] == before
    named = {each["name"] for each in [*found["kept"], *found["not_needed"]]}
    assert named == {"/".join(uri.split("/")[-3:-1]) for uri in uris}
    assert all(each["why"] for each in found["kept"])


def test_the_bytes_before_are_those_kept_and_those_deleted(old: tuple[str, list[str]]) -> None:
    work, (first, second, third, old_vocab, vocab) = old
    before = bytes_in(work)
    made = plan_for(work, Rules(keep_newest=1), time.time())
    delete(made, work)
    account = made.account
    assert account.total == before
    assert account.kept == bytes_in(work)
    assert 0 < account.kept < before
    assert [Path(uri).exists() for uri in (first, second, third, old_vocab, vocab)] == [
        False, True, True, False, True,
    ]  # fmt: skip
    assert not Path(first).parent.exists()


def test_a_deletion_that_is_killed_leaves_no_manifest_without_its_shards_or_inputs(
    old: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = old
    remove = storage.remove
    num_calls = 0
    for survived in range(12):
        made = plan_for(work, NOTHING_NEW, time.time())
        num_calls = 0

        def killed(uri: str, limit: int = survived % 3) -> None:
            nonlocal num_calls
            if num_calls == limit:
                raise KeyboardInterrupt
            num_calls += 1
            remove(uri)

        monkeypatch.setattr(storage, "remove", killed)
        try:
            delete(made, work)
        except KeyboardInterrupt:
            pass
        finally:
            monkeypatch.setattr(storage, "remove", remove)
            lock.release_all()
        lineage = read_work(work)
        for result in lineage.results.values():
            for shard in result.manifest.shards:
                check_shard(shard, result.folder)
            assert result.inputs <= lineage.results.keys()
    delete(plan_for(work, NOTHING_NEW, time.time()), work)
    assert find_entries(work) == []


def test_what_is_being_made_stays_however_old_it_is(
    old: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, (corpus, *_) = old
    running = plan(7, "examples", corpus=corpus)
    assert running.find(work) is None  # which notes what it is begun with
    lock.release_all()
    age(f"{running.folder(work)}/begun.json", 400)
    storage.write_bytes(f"{work}/units/old/unit.json", b"{}")
    age(f"{work}/units/old/unit.json", 400)
    storage.write_bytes(f"{running.folder(work)}/part.arrow", b"x")
    age(f"{running.folder(work)}/part.arrow", 400)
    name = f"examples-{running.key}"
    other = lock._claim_at(storage.join(work, lock.CLAIMS, name))
    assert other.take(Owner.this_process())
    try:
        made = plan_for(work, NOTHING_NEW, time.time())
        kept = {entry.name: why for entry, why in made.kept.items()}
        assert kept == {
            f"examples/{running.key}": "it is being made",
            "/".join(corpus.split("/")[-3:-1]): f"examples/{running.key} is made of it",
            "units/old": "a stage is being made, which may use it",
        }
    finally:
        other.release()
    made = plan_for(work, NOTHING_NEW, time.time())
    assert not made.kept


def test_what_an_unfinished_run_was_begun_with_stays_with_it(old: tuple[str, list[str]]) -> None:
    work, (corpus, *_) = old
    running = plan(7, "pretraining", corpus=corpus)
    assert running.find(work) is None
    lock.release_all()
    made = plan_for(work, Rules(keep_newest=0, keep_days=30), time.time())
    kept = {entry.name: why for entry, why in made.kept.items()}
    place = f"pretraining/{running.key}"
    assert kept == {
        place: "younger than 30 days",
        "/".join(corpus.split("/")[-3:-1]): f"{place} is made of it",
    }


@pytest.fixture
def copied(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The work folder of a registered model, to be changed; the registry is the same one."""
    ignored = shutil.ignore_patterns("mlartifacts", "mlflow.db*")
    work = str(shutil.copytree(tiny.work, tmp_path / "work", ignore=ignored))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tiny.work}/mlflow.db")
    return work


def test_all_that_a_registered_version_is_made_of_stays_and_what_only_saves_work_may_go(
    copied: str,
) -> None:
    made = plan_for(copied, NOTHING_NEW, time.time())
    kept = {entry.area: why for entry, why in made.kept.items()}
    assert set(kept) == {
        "corpus", "vocab", "examples", "task", "pretraining", "finetuning", "scores",
        "registration",
    }  # fmt: skip
    assert set(kept.values()) == {"models:/albert-tiny/1 @champion is made of it"}
    assert {entry.area for entry in made.superfluous} == {"units", "parts", "recipes"}
    delete(made, copied)
    assert not list(Path(copied).rglob("units/*/*"))
    assert not list(Path(copied, "parts").iterdir())
    for result in read_work(copied).results.values():
        for shard in result.manifest.shards:
            check_shard(shard, result.folder)


def test_units_and_parts_of_the_newest_results_stay(copied: str) -> None:
    made = plan_for(copied, Rules(keep_newest=1, keep_days=0), time.time())
    assert made.superfluous == []


def test_versions_without_an_alias_need_not_stay(
    copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from albert_core.registry import version_lineage

    versions = version_lineage.registered_versions(copied)

    def without_alias(work: str) -> list[Any]:
        from dataclasses import replace

        return [replace(version, aliases=()) for version in versions]

    monkeypatch.setattr(version_lineage, "registered_versions", without_alias)
    aliased = Rules(keep_newest=0, keep_days=0, registered="aliased")
    assert not plan_for(copied, aliased, time.time()).kept
    assert plan_for(copied, NOTHING_NEW, time.time()).kept


def test_another_registry_than_the_one_that_has_the_versions_is_refused(
    copied: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(RegistryError, match="was registered elsewhere"):
        check_registry(copied)
    before = bytes_in(copied)
    assert main(["retention", f"--work={copied}", "--delete=yes", "--keep-days=0"]) == 2
    assert "MLFLOW_TRACKING_URI" in capsys.readouterr().err
    assert bytes_in(copied) == before
