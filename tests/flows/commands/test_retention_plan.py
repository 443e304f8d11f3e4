"""What retention keeps: properties over made graphs of results."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.lineage import Lineage, place_in
from flows.commands.retention import Entry, Rules, plan_retention
from tests.albert_core.stage.test_lineage import graphs, key_of, reached, result

NOW = 1_000_000_000.0
DAY = 86_400.0
STAGES = ("corpus", "vocab", "examples", "pretraining")


def stage_of(number: int) -> str:
    return STAGES[number % len(STAGES)]


def place_of(number: int) -> str:
    return f"{stage_of(number)}/{key_of(number)}"


def lineage_of(graph: list[set[int]]) -> Lineage:
    """Return results of several stages; addresses of inputs name the stage."""
    results = []
    for number, made_of in enumerate(graph):
        plain = result(number, set(), stage_of(number))
        inputs = {str(n): f"/w/{place_of(n)}/manifest.json" for n in made_of}
        manifest = plain.manifest.model_copy(update={"input_manifests": inputs})
        results.append(type(plain)(plain.uri, manifest))
    return Lineage(results)


def entry(name: str, days: float = 100, num_bytes: int = 10, is_finished: bool = True) -> Entry:
    return Entry(name, num_bytes, NOW - days * DAY, is_finished)


@settings(deadline=None)
@given(
    graphs(),
    st.integers(0, 3),
    st.sampled_from([0.0, 30.0, 1000.0]),
    st.sets(st.integers(0, 11)),
    st.integers(0, 99),
)
def test_nothing_that_a_kept_result_was_made_of_is_ever_deleted(
    graph: list[set[int]], keep_newest: int, keep_days: float, registered: set[int], seed: int
) -> None:
    draw = random.Random(seed)
    entries = [
        entry(place_of(n), draw.uniform(0, 100), draw.randrange(1000), draw.random() < 0.8)
        for n in range(len(graph))
    ]
    versions = {place_of(n): "models:/m/1" for n in registered}
    rules = Rules(keep_newest, keep_days)
    plan = plan_retention(entries, lineage_of(graph), {}, (), versions, rules, NOW)
    kept = {each.name for each in plan.kept}
    for number in range(len(graph)):
        if place_of(number) in kept:
            assert {place_of(n) for n in reached(graph, number)} <= kept
    assert {place_of(n) for n in registered if n < len(graph)} <= kept
    assert {e.name for e in entries if NOW - e.modified < keep_days * DAY} <= kept
    for stage in STAGES:
        finished = [e for e in entries if e.area == stage and e.is_finished]
        newest = sorted(finished, key=lambda e: -e.modified)[:keep_newest]
        assert {e.name for e in newest} <= kept
    gone = [each.name for each in plan.superfluous]
    assert kept.isdisjoint(gone)
    assert len(kept) + len(gone) == len(entries)
    assert plan.account.total == sum(each.num_bytes for each in entries)
    assert plan.account.kept == sum(each.num_bytes for each in plan.kept)
    for number, name in enumerate(place_of(n) for n in range(len(graph))):
        if name in gone:
            made_of = [place_of(n) for n in graph[number] if place_of(n) in gone]
            assert all(gone.index(name) < gone.index(other) for other in made_of)


@settings(deadline=None)
@given(graphs())
def test_without_versions_and_with_nothing_new_everything_may_go(graph: list[set[int]]) -> None:
    entries = [entry(place_of(n)) for n in range(len(graph))]
    plan = plan_retention(entries, lineage_of(graph), {}, (), {}, Rules(0, 0), NOW)
    assert not plan.kept


def test_each_thing_kept_says_why() -> None:
    graph: list[set[int]] = [set(), {0}, {0, 1}, {2}, set(), {4}]
    lineage = lineage_of(graph)
    entries = [entry(place_of(n)) for n in range(4)]
    entries += [entry(place_of(4), days=90), entry(place_of(5), days=1, is_finished=False)]
    entries.append(entry("corpus/mine", days=500))
    versions = {place_of(3): "models:/m/1 @champion"}
    plan = plan_retention(entries, lineage, {}, (), versions, Rules(1, 30), NOW)
    assert {each.name: why for each, why in plan.kept.items()} == {
        place_of(0): f"{place_of(3)} is made of it",
        place_of(1): "among the newest 1 of vocab",
        place_of(2): "among the newest 1 of examples",
        place_of(3): "models:/m/1 @champion is made of it",
        place_of(4): "among the newest 1 of corpus",
        place_of(5): "younger than 30 days",
        "corpus/mine": "it is not a stage's",
    }


def test_units_and_parts_of_current_results_stay_and_those_of_registered_ones_need_not() -> None:
    old, new = place_of(0), place_of(4)
    entries = [entry(old), entry(new, days=50)]
    entries += [entry(f"units/{name}") for name in "abc"] + [entry("units/d", days=1)]
    made_with = {old: {"units/a", "units/b"}, new: {"units/b", "units/c"}}
    lineage = lineage_of([set(), set(), set(), set(), set()])
    versions = {old: "models:/m/1"}
    plan = plan_retention(entries, lineage, made_with, (), versions, Rules(1, 30), NOW)
    assert [each.name for each in plan.superfluous] == ["units/a"]
    silent = plan_retention(entries, lineage, {new: None}, (), versions, Rules(1, 30), NOW)
    assert not silent.superfluous


def test_an_entry_is_known_by_its_key() -> None:
    assert entry(place_of(3)).is_known
    assert not entry("corpus/notes").is_known
    assert place_in(place_of(3)) == place_of(3)
