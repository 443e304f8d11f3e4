"""Pure: which results of a work folder are kept, each with the reason, and which are not needed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from albert_core.contract.lineage import STAGES, Lineage, place_in
from albert_core.contract.manifest import Account

UNITS, PARTS, RECIPES = "units", "parts", "recipes"
AREAS = (*STAGES, UNITS, PARTS, RECIPES)
"""The folders of a work folder that retention looks at. The others are not results of stages, or,
as receipts and the databases, must stay."""
_SECONDS_PER_DAY = 86_400
_MADE_WITH = {UNITS: "corpus", PARTS: "examples"}
"""What is kept to save work, and the stage that it saves work."""


@dataclass(frozen=True)
class Rules:
    """What is to be kept besides what a kept result was made of."""

    keep_newest: int = 2
    """Finished results of each stage."""
    keep_days: float = 30.0
    """What is younger, finished or not."""
    registered: Literal["all", "aliased"] = "all"
    """Whose versions: all, or those with an alias."""


@dataclass(frozen=True)
class Entry:
    """A result's folder, or something that is kept to save work."""

    name: str
    """Below the work folder: area and name; of a result, its place."""
    num_bytes: int
    modified: float
    """When its newest file changed, in seconds since 1970."""
    is_finished: bool

    @property
    def area(self) -> str:
        """The folder that it is in."""
        return self.name.partition("/")[0]

    @property
    def is_known(self) -> bool:
        """Whether the name is one that a stage gives."""
        return self.area not in STAGES or place_in(self.name) == self.name


@dataclass
class RetentionPlan:
    """What is kept, and why, and what may go."""

    kept: dict[Entry, str] = field(default_factory=dict)
    superfluous: list[Entry] = field(default_factory=list)
    """In the order of deletion: nothing before what was made of it."""

    @property
    def account(self) -> Account:
        """Bytes before, kept and superfluous."""
        kept = sum(entry.num_bytes for entry in self.kept)
        dropped = sum(entry.num_bytes for entry in self.superfluous)
        dropped_by_name = {"not needed": dropped}
        return Account(what="bytes", total=kept + dropped, kept=kept, dropped=dropped_by_name)


def plan_retention(
    entries: Collection[Entry],
    lineage: Lineage,
    made_with: Mapping[str, Collection[str] | None],
    being_made: Collection[str],
    registered: Mapping[str, str],
    rules: Rules,
    now: float,
) -> RetentionPlan:
    """Return what to keep and what may go.

    Args:
        entries: all there are.
        lineage: of all results, also of those that are begun.
        made_with: place of a corpus or of examples -> the names of the entries that would save
            work on the next; None: it does not say.
        being_made: places that other processes are at work on: what may serve them is kept.
        registered: place -> a version that was made of it.
        rules: what to keep.
        now: seconds since 1970.
    """
    reasons: dict[str, str] = {}
    for entry in entries:
        if place_in(entry.name) in registered:
            reasons[entry.name] = f"{registered[entry.name]} is made of it"
    for entry in entries:
        if entry.name in being_made:
            reasons.setdefault(entry.name, "it is being made")
        elif being_made and entry.area in (UNITS, PARTS):
            reasons[entry.name] = "a stage is being made, which may use it"
    current = dict(_current(entries, rules, now))
    reasons |= {name: why for name, why in current.items() if name not in reasons}
    for place in list(reasons):
        for before in lineage.before([place]) - reasons.keys():
            reasons[before] = f"{place} is made of it"
    reasons |= dict(_saving_work(entries, current, made_with, reasons))
    plan = RetentionPlan()
    for entry in entries:
        if entry.name in reasons:
            plan.kept[entry] = reasons[entry.name]
    last_first = {place: -number for number, place in enumerate(lineage.results)}
    left = [entry for entry in entries if entry not in plan.kept]
    plan.superfluous = sorted(left, key=lambda e: (last_first.get(e.name, 1), e.name))
    return plan


def _current(entries: Iterable[Entry], rules: Rules, now: float) -> Iterator[tuple[str, str]]:
    """Yield what is kept for its own sake, and why."""
    by_area: dict[str, list[Entry]] = {}
    for entry in entries:
        by_area.setdefault(entry.area, []).append(entry)
    for area, found in by_area.items():
        finished = sorted((e for e in found if e.is_finished), key=lambda e: -e.modified)
        newest = finished[: rules.keep_newest] if area not in _MADE_WITH else []
        for entry in found:
            if not entry.is_known:
                yield entry.name, "it is not a stage's"
            elif entry in newest:
                yield entry.name, f"among the newest {rules.keep_newest} of {area}"
            elif now - entry.modified < rules.keep_days * _SECONDS_PER_DAY:
                yield entry.name, f"younger than {rules.keep_days:g} days"


def _saving_work(
    entries: Iterable[Entry],
    current: Mapping[str, str],
    made_with: Mapping[str, Collection[str] | None],
    reasons: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield the units and parts of the current results, which the next ones may share."""
    for area, stage in _MADE_WITH.items():
        users = [place for place in current if place.startswith(f"{stage}/")]
        for entry in entries:
            if entry.area != area or entry.name in reasons:
                continue
            for place in users:
                names = made_with.get(place)
                if names is None:
                    yield entry.name, f"{place} does not say what it was made with"
                elif entry.name in names:
                    yield entry.name, f"{place} was made with it"
