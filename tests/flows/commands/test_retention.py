"""Deleting what is not needed from a work folder with a registered model."""

import errno
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from albert_core.stage import lock, storage
from albert_core.stage.errors import SourceError
from albert_core.stage.lineage import place_in, read_work
from albert_core.stage.manifest import StagePlan, check_shard, shard_of
from albert_core.stage.results import STAGES
from albert_core.stage.settings import Settings
from flows.commands import retention
from flows.commands.main import main
from flows.recipe import load_recipe, save_recipe
from tests.albert_core.stage.test_lineage import lineage_of, place_of
from tests.conftest import not_listed
from tests.flows.conftest import Tiny

NOTHING_NEW = retention.Rules(keep_newest=0, keep_days=0)


def plan(number: int, stage: str = "corpus", **made_of: str) -> StagePlan:
    return StagePlan(stage, {"number": number}, {}, "code", {}, made_of)


def write(work: str, number: int, stage: str = "corpus", **made_of: str) -> str:
    """Write a result with one shard and a list beside it, 400 days old; return its manifest."""
    made = plan(number, stage, **made_of)
    folder = made.folder(work)
    storage.write_bytes(f"{folder}/a.arrow", b"x" * (number + 1))
    storage.write_bytes(f"{folder}/begun.json", b"{}")
    uri = made.write(work, [shard_of(f"{folder}/a.arrow", folder, "documents", 1)], [], Settings())
    age(folder, 400 - number)
    return uri


def age(folder: str, days: float) -> None:
    """Set the times of all files in a folder to so many days ago."""
    then = time.time() - days * 86_400
    for path in Path(folder).rglob("*"):
        os.utime(path, (then, then))


def planned(work: str, rules: retention.Rules = NOTHING_NEW) -> retention.RetentionPlan:
    return retention.plan_for(work, rules, time.time())


def reasons(work: str, rules: retention.Rules = NOTHING_NEW) -> dict[str, str]:
    return {entry.name: why for entry, why in planned(work, rules).kept.items()}


def bytes_in(work: str) -> int:
    return sum(entry.num_bytes for entry in retention.find_entries(work))


def check_is_whole(work: str) -> None:
    """Check that every result has its shards and its inputs."""
    lineage = read_work(work)
    for result in lineage.results.values():
        for shard in result.manifest.shards:
            check_shard(shard, result.folder)
        assert result.inputs <= lineage.results.keys()


@contextmanager
def held(work: str, place: str) -> Iterator[None]:
    """Hold the lock on a place during the block, as another process does."""
    claim = lock._claim_at(lock._uri_of(work, place))
    assert claim.take(lock.Owner.this_process())
    try:
        yield
    finally:
        claim.release()


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """A work folder without a registry: three corpora, two vocabularies, a year old."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    work = str(tmp_path)
    corpora = [write(work, number) for number in range(3)]
    return work, [*corpora, *(write(work, n, "vocab", corpus=corpora[n]) for n in range(2))]


def test_what_is_not_needed_is_listed_and_deleted_only_on_request(
    old: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    work, uris = old
    before = bytes_in(work)
    command = ["retention", f"--work={work}", "--keep-newest=1", "--keep-days=0"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "Nothing was deleted. --delete=yes does it." in text
    assert re.search(rf"May go\n(  {place_in(uris[0])} +[\d,]+  20|.*\n)+Kept", text)
    for delete in ("no", "yes"):
        assert all(Path(uri).exists() for uri in uris)
        assert main([*command, f"--delete={delete}", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        named = {each["name"] for each in [*found["kept"], *found["not_needed"]]}
        assert named == {place_in(uri) for uri in uris}
        assert all(each["why"] for each in found["kept"])
        told = found["bytes"]
        assert told["total"] == before == told["kept"] + told["dropped"]["not needed"]
    assert 0 < told["kept"] == bytes_in(work) < before
    assert [Path(uri).parent.exists() for uri in uris] == [False, True, True, False, True]


def test_a_folder_that_cannot_be_listed_ends_it(old: tuple[str, list[str]]) -> None:
    work, [uri, *_] = old
    folder = Path(uri).parent
    with not_listed(folder), pytest.raises(SourceError, match=f"{folder} can't be listed"):
        retention.find_entries(work)


def test_a_deletion_that_is_killed_leaves_no_manifest_without_its_shards_or_inputs(
    old: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = old
    remove, left = storage.remove, 0

    def killed(uri: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        remove(uri)

    for attempt in range(12):
        made, left = planned(work), attempt % 3
        with monkeypatch.context() as patch:
            patch.setattr(storage, "remove", killed)
            with pytest.raises(KeyboardInterrupt):
                retention.delete(made, work)
        lock.release_all()
        check_is_whole(work)
    retention.delete(planned(work), work)
    assert retention.find_entries(work) == []


def test_what_is_being_made_stays_however_old_it_is(old: tuple[str, list[str]]) -> None:
    work, (corpus, *_) = old
    running = plan(7, "examples", corpus=corpus)
    assert running.find(work) is None  # which writes what it is begun with
    lock.release_all()
    storage.write_bytes(f"{running.folder(work)}/part.arrow", b"x")
    storage.write_bytes(f"{work}/units/old/unit.json", b"{}")
    age(work, 400)
    with held(work, f"examples/{running.key}"):
        assert reasons(work) == {
            f"examples/{running.key}": "it is being made",
            place_in(corpus): f"examples/{running.key} is made of it",
            "units/old": "a stage is being made, which may use it",
        }
    assert not reasons(work)


def test_what_a_process_in_an_object_store_was_making_stays_until_it_is_long_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    work, running = "memory://long-silent", plan(7)
    storage.write_bytes(f"{running.folder(work)}/part.arrow", b"x")
    claim = f"{work}/claims/corpus-{running.key}/000001.json"
    lock.Owner.this_process().model_copy(update={"machine": "another"}).write(claim)
    assert reasons(work) == {f"corpus/{running.key}": "it is being made"}
    fs, path = storage.filesystem(claim)
    fs.store[path].modified -= timedelta(days=2)
    assert not reasons(work)


def test_a_work_folder_that_may_only_be_read_is_listed(
    old: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    work, _ = old
    running, killed = plan(7), plan(8)
    for each in (running, killed):
        storage.write_bytes(f"{each.folder(work)}/part.arrow", b"x")
    ended = lock.Owner.this_process().model_copy(update={"started": "0"})
    ended.write(f"{work}/claims/corpus-{killed.key}.json")
    with held(work, f"corpus/{running.key}"):
        monkeypatch.setattr(lock.LockFile, "take", refuse)
        assert reasons(work) == {f"corpus/{running.key}": "it is being made"}
        with pytest.raises(PermissionError):
            retention.delete(planned(work), work)


def test_what_a_run_that_is_under_way_made_or_found_stays(
    old: tuple[str, list[str]],
) -> None:
    work, (found, corpus, *_) = old
    recipe = save_recipe(load_recipe("tiny"), work)
    os.utime(corpus)
    assert plan(0).find(work) == found
    storage.write_bytes(f"{work}/units/new/unit.json", b"{}")
    lock.release_all()
    with held(work, f"recipes/{Path(recipe).name}"):
        assert reasons(work) == {
            f"recipes/{Path(recipe).name}": "a run of it is under way",
            place_in(found): "a run that is under way may have made or found it",
            place_in(corpus): "a run that is under way may have made or found it",
            "units/new": "a run that is under way may have made or found it",
        }
        assert save_recipe(load_recipe("tiny"), work) == recipe
    assert not reasons(work)


def test_what_a_run_needs_that_began_after_the_plan_stays(old: tuple[str, list[str]]) -> None:
    work, (found, other, *_) = old
    recipe = save_recipe(load_recipe("tiny"), work)
    lock.release_all()
    made = planned(work)
    assert plan(0).find(work) == found
    with held(work, f"recipes/{Path(recipe).name}"):
        retention.delete(made, work)
    assert {entry.name: why for entry, why in made.kept.items()} == {
        f"recipes/{Path(recipe).name}": "a run of it is under way",
        place_in(found): "a run that is under way may have found it",
    }
    assert Path(recipe).exists()
    assert Path(found).exists()
    assert not Path(other).exists()


def test_all_that_a_registered_version_is_made_of_stays_and_what_only_saves_work_may_go(
    copied: Tiny,
) -> None:
    made = planned(copied.work)
    assert {entry.area for entry in made.kept} == set(STAGES) - {"audit", "contamination"}
    assert set(made.kept.values()) == {"models:/albert-tiny/1 @champion is made of it"}
    assert {entry.area for entry in made.superfluous} == {"units", "parts", "recipes"}
    retention.delete(made, copied.work)
    assert not list(Path(copied.work).glob("units/*/*")) + list(Path(copied.work).glob("parts/*"))
    check_is_whole(copied.work)


def test_versions_without_an_alias_need_not_stay(
    copied: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from albert_core.registry import versions as registry

    versions = registry.registered_versions(copied.work)
    without = [replace(version, aliases=()) for version in versions]
    monkeypatch.setattr(registry, "registered_versions", lambda _: without)
    assert not reasons(copied.work, replace(NOTHING_NEW, registered="aliased"))
    assert reasons(copied.work)


def test_another_registry_than_the_one_that_has_the_versions_is_refused(
    copied: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{copied.work}/other.db")
    before = bytes_in(copied.work)
    assert main(["retention", f"--work={copied.work}", "--delete=yes", "--keep-days=0"]) == 2
    error = capsys.readouterr().err
    assert "was registered elsewhere" in error
    assert "MLFLOW_TRACKING_URI" in error
    assert bytes_in(copied.work) == before


def test_without_the_registry_nothing_that_its_versions_need_is_deleted(
    copied: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = bytes_in(copied.work)
    asked = ["retention", f"--work={copied.work}", "--delete=yes", "--keep-days=0"]
    assert main(asked) == 2
    assert "has none of them: what they need would go" in capsys.readouterr().err
    assert bytes_in(copied.work) == before


NOW = 1_000_000_000.0
DAY = 86_400.0


def entry(
    name: str, days: float = 100, num_bytes: int = 10, is_finished: bool = True
) -> retention.Entry:
    return retention.Entry(name, num_bytes, NOW - days * DAY, is_finished)


def plan_of(
    graph: list[set[int]],
    entries: list[retention.Entry],
    rules: retention.Rules,
    registered: Mapping[str, str],
    made_with: Mapping[str, Collection[str]] | None = None,
) -> retention.RetentionPlan:
    return retention.plan_retention(
        entries, lineage_of(graph), made_with or {}, (), registered, rules, NOW
    )


def test_what_a_kept_result_was_made_of_stays_and_the_rest_goes_before_its_inputs() -> None:
    graph: list[set[int]] = [set(), {0}, {0, 1}, {2}, set(), {4}, {4, 5}]
    entries = [entry(place_of(n), num_bytes=1 << n) for n in range(len(graph))]
    plan = plan_of(graph, entries, retention.Rules(0, 30), {place_of(2): "models:/m/1"})
    assert {each.name for each in plan.kept} == {place_of(n) for n in (0, 1, 2)}
    gone = [each.name for each in plan.superfluous]
    assert sorted(gone) == sorted(place_of(n) for n in (3, 4, 5, 6))
    assert gone.index(place_of(6)) < gone.index(place_of(5)) < gone.index(place_of(4))
    assert (plan.account.kept, plan.account.total) == (0b111, 0b1111111)


def test_each_thing_kept_says_why() -> None:
    graph: list[set[int]] = [set(), {0}, {0, 1}, {2}, set(), {4}]
    entries = [entry(place_of(n)) for n in range(4)]
    entries += [entry(place_of(4), days=90), entry(place_of(5), days=1, is_finished=False)]
    entries.append(entry("corpus/mine", days=500))
    plan = plan_of(graph, entries, retention.Rules(1, 30), {place_of(3): "models:/m/1 @champion"})
    assert {each.name: why for each, why in plan.kept.items()} == {
        place_of(0): f"{place_of(3)} is made of it",
        place_of(1): "among the newest 1 of vocab",
        place_of(2): "among the newest 1 of examples",
        place_of(3): "models:/m/1 @champion is made of it",
        place_of(4): "among the newest 1 of corpus",
        place_of(5): "younger than 30 days",
        "corpus/mine": "no stage made it",
    }


def test_units_and_parts_of_current_results_stay_and_those_of_registered_ones_need_not() -> None:
    old, new = place_of(0), place_of(4)
    graph: list[set[int]] = [set() for _ in range(5)]
    entries = [entry(old), entry(new, days=50)]
    entries += [entry(f"units/{name}") for name in "abc"] + [entry("units/d", days=1)]
    versions = {old: "models:/m/1"}
    made_with = {old: {"units/a", "units/b"}, new: {"units/b", "units/c"}}
    plan = plan_of(graph, entries, retention.Rules(1, 30), versions, made_with)
    assert [each.name for each in plan.superfluous] == ["units/a"]
