"""Delete what no registered version and no current result needs: ``albert retention``.

Kept are the results that registered versions were made of, the newest of each stage, all that is
young, what is being made, and everything that one of these was made of. Receipts, databases and
MLflow's files are not touched.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from albert_core.stage import lock, storage
from albert_core.stage.environment import shown_tracking_uri, tracking_uri
from albert_core.stage.errors import RegistryError
from albert_core.stage.lineage import (
    REGISTRATION,
    STAGES,
    Lineage,
    place_in,
    read_made_with,
    read_work,
)
from albert_core.stage.manifest import BEGUN, MANIFEST, Account, digest_of, modified_at

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


_WHOLE = {UNITS: "unit.json"}
"""File that makes a folder whole, other than a manifest."""
_FIRST_DELETED = (MANIFEST, *_WHOLE.values())


def plan_for(work: str, rules: Rules, now: float) -> RetentionPlan:
    """Return what of a work folder is kept and what may go.

    Raises:
        RegistryError: the registry does not answer.
    """
    lineage, entries = read_work(work, begun=True), find_entries(work)
    being_made = {
        entry.name
        for entry in entries
        if entry.area in STAGES and not entry.is_finished and _is_held(entry, work)
    }
    folders = {place: result.folder for place, result in lineage.results.items()}
    return plan_retention(
        entries=entries,
        lineage=lineage,
        made_with={place: _made_with(folder) for place, folder in folders.items()},
        being_made=being_made,
        registered=_registered(work, rules, lineage),
        rules=rules,
        now=now,
    )


def find_entries(work: str) -> list[Entry]:
    """Return all that retention decides on, each with the bytes of all its files."""
    files: dict[str, list[tuple[str, int, float]]] = {}
    for area in AREAS:
        fs, path = storage.filesystem(storage.join(work, area))
        fs.invalidate_cache()
        for found, info in fs.find(path, detail=True).items():
            inner = str(found).removeprefix(path).lstrip("/")
            name = inner.partition("/")[0]
            stem = name.partition(".")[0] if area == PARTS else name
            size = int(info["size"] or 0)
            files.setdefault(f"{area}/{stem or name}", []).append((inner, size, modified_at(info)))
    return [
        Entry(
            name=name,
            num_bytes=sum(size for _, size, _ in found),
            modified=max(modified for _, _, modified in found),
            is_finished=_is_finished(name, {inner for inner, _, _ in found}),
        )
        for name, found in sorted(files.items())
    ]


def check_registry(work: str) -> None:
    """Refuse to go on with another registry than the one that the results here are in.

    Raises:
        RegistryError: a result was registered elsewhere, where its version would not be seen.
    """
    here = {digest_of(uri(work)) for uri in (tracking_uri, shown_tracking_uri)}
    for result in read_work(work).of_stage(REGISTRATION):
        if result.manifest.inputs.get("registry") not in here:
            raise RegistryError(
                f"{result.uri} was registered elsewhere than in {shown_tracking_uri(work)}: what "
                "its version needs would not be seen. Set MLFLOW_TRACKING_URI as it was then, or, "
                "if only the address of the registry changed, give --other-registry."
            )


def delete(plan: RetentionPlan, work: str) -> None:
    """Delete what may go; what another process begins to make meanwhile is kept.

    A result loses its manifest first, so that one that is half deleted is an unfinished one.
    """
    for entry in list(plan.superfluous):
        is_result = entry.area in STAGES
        if is_result and _keep_if_being_made(plan, entry, work):
            continue
        for uri in _files_of(entry, work):
            storage.remove(uri)
        if entry.area != PARTS:
            storage.remove(storage.join(work, entry.name))
        if is_result:
            lock.release(work, _claim_of(entry))


def as_json(plan: RetentionPlan) -> dict[str, Any]:
    """Return the plan for a machine."""
    return {
        "bytes": plan.account.model_dump(),
        "kept": [{**asdict(entry), "why": why} for entry, why in plan.kept.items()],
        "not_needed": [asdict(entry) for entry in plan.superfluous],
    }


def as_text(plan: RetentionPlan, work: str, is_done: bool) -> str:
    """Return the plan for a person."""
    account = plan.account
    title = f"{work}: {'deleted' if is_done else 'what may go'}"
    gone = account.total - account.kept
    lines = [title, "=" * len(title)]
    lines += [f"  before  {account.total:>16,} bytes", f"  kept    {account.kept:>16,}"]
    lines += [f"  {'deleted' if is_done else 'may go '} {gone:>16,}", ""]
    lines += ["Deleted" if is_done else "May go", *map(_line, plan.superfluous)]
    lines += ["", "Kept", *(f"{_line(entry)}  {why}" for entry, why in plan.kept.items())]
    if not is_done and plan.superfluous:
        lines += ["", "Nothing was deleted. --delete=yes does it."]
    return "\n".join(lines)


def _made_with(folder: str) -> set[str] | None:
    """Return the names of entries that the result in ``folder`` was made with, if it says so."""
    names = read_made_with(folder)
    return None if names is None else {name.partition(".")[0] for name in names}


def _registered(work: str, rules: Rules, lineage: Lineage) -> dict[str, str]:
    """Return the places that registered versions need, each with one of those versions."""
    from albert_core.registry.version_lineage import has_registry, registered_versions

    if not has_registry(work):
        return {}
    versions = [
        version
        for version in registered_versions(work)
        if version.aliases or rules.registered == "all"
    ]
    needed = {place: str(version) for version in versions for place in version.places}
    uris = {version.uri: str(version) for version in versions}
    for result in lineage.of_stage(REGISTRATION):
        if (uri := result.manifest.facts.get("model_uri")) in uris:
            needed[result.place] = uris[uri]
    return needed


def _keep_if_being_made(plan: RetentionPlan, entry: Entry, work: str) -> bool:
    """Move the entry to what is kept if another process holds it, else hold it; return whether."""
    if not _is_held(entry, work, hold=True):
        return False
    plan.superfluous.remove(entry)
    plan.kept[entry] = "it is being made"
    return True


def _is_held(entry: Entry, work: str, hold: bool = False) -> bool:
    """Return whether another process holds the entry; ``hold`` it if not."""
    looks = iter((False, False))
    if not lock.take(work, _claim_of(entry), lambda: next(looks, True)):
        return True
    if not hold:
        lock.release(work, _claim_of(entry))
    return False


def _claim_of(entry: Entry) -> str:
    return entry.name.replace("/", "-")


def _files_of(entry: Entry, work: str) -> list[str]:
    """Return its files in the order of deletion: first what makes it whole, last what names it."""
    area = storage.join(work, entry.area)
    fs, path = storage.filesystem(area)
    fs.invalidate_cache()
    name = entry.name.partition("/")[2]
    inner = (str(found).removeprefix(path).lstrip("/") for found in fs.find(path))
    mine = [
        each
        for each in inner
        if each.partition("/")[0] == name or (entry.area == PARTS and each.startswith(f"{name}."))
    ]
    last = f"{name}/{BEGUN}"
    ordered = sorted(mine, key=lambda i: (i == last, i.partition("/")[2] not in _FIRST_DELETED, i))
    return [storage.join(area, each) for each in ordered]


def _is_finished(name: str, files: set[str]) -> bool:
    area, _, inner = name.partition("/")
    if area in (PARTS, RECIPES):
        return True
    return f"{inner}/{_WHOLE.get(area, MANIFEST)}" in files


def _line(entry: Entry) -> str:
    day = datetime.fromtimestamp(entry.modified, UTC).date()
    unfinished = "" if entry.is_finished else "  unfinished"
    return f"  {entry.name:<40} {entry.num_bytes:>14,}  {day}{unfinished}"
