"""What retention keeps: properties of its plan for arbitrary graphs of results."""

import random
from collections.abc import Collection, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.stage.lineage import STAGES
from flows.commands.retention import Entry, RetentionPlan, Rules, plan_retention
from tests.albert_core.stage.test_lineage import graphs, lineage_of, place_of, reached

NOW = 1_000_000_000.0
DAY = 86_400.0


def entry(name: str, days: float = 100, num_bytes: int = 10, is_finished: bool = True) -> Entry:
    return Entry(name, num_bytes, NOW - days * DAY, is_finished)


def planned(
    graph: list[set[int]],
    entries: list[Entry],
    rules: Rules,
    registered: Mapping[str, str],
    made_with: Mapping[str, Collection[str]] | None = None,
) -> RetentionPlan:
    return plan_retention(entries, lineage_of(graph), made_with or {}, (), registered, rules, NOW)


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
    places = [place_of(n) for n in range(len(graph))]
    entries = [
        entry(place, draw.uniform(0, 100), draw.randrange(1000), draw.random() < 0.8)
        for place in places
    ]
    versions = {place_of(n): "models:/m/1" for n in registered}
    plan = planned(graph, entries, Rules(keep_newest, keep_days), versions)
    kept = {each.name for each in plan.kept}
    gone = [each.name for each in plan.superfluous]
    assert sorted([*kept, *gone]) == sorted(places)
    assert versions.keys() & set(places) <= kept
    assert {e.name for e in entries if NOW - e.modified < keep_days * DAY} <= kept
    for stage in STAGES:
        finished = [e for e in entries if e.area == stage and e.is_finished]
        newest = sorted(finished, key=lambda e: -e.modified)[:keep_newest]
        assert {e.name for e in newest} <= kept
    for number, place in enumerate(places):
        if place in kept:
            assert reached(graph, number) <= kept
        else:
            made_of = [place_of(n) for n in graph[number] if place_of(n) in gone]
            assert all(gone.index(place) < gone.index(other) for other in made_of)
    assert plan.account.total == sum(each.num_bytes for each in entries)
    assert plan.account.kept == sum(each.num_bytes for each in plan.kept)


@settings(deadline=None)
@given(graphs())
def test_without_versions_and_with_nothing_new_everything_may_go(graph: list[set[int]]) -> None:
    entries = [entry(place_of(n)) for n in range(len(graph))]
    assert not planned(graph, entries, Rules(0, 0), {}).kept


def test_each_thing_kept_says_why() -> None:
    graph: list[set[int]] = [set(), {0}, {0, 1}, {2}, set(), {4}]
    entries = [entry(place_of(n)) for n in range(4)]
    entries += [entry(place_of(4), days=90), entry(place_of(5), days=1, is_finished=False)]
    entries.append(entry("corpus/mine", days=500))
    plan = planned(graph, entries, Rules(1, 30), {place_of(3): "models:/m/1 @champion"})
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
    plan = planned(graph, entries, Rules(1, 30), versions, made_with)
    assert [each.name for each in plan.superfluous] == ["units/a"]
